// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loop of a CPU: it chooses a vCPU, runs it for a turn, and waits when there is none.
//!
//! Every CPU runs this loop from the start of the guests to the end of the image. Interrupts are masked at EL2: one that
//! comes meanwhile is an exit right after the next entry into a guest, or ends the wait.

use alloc::vec::Vec;
use core::arch::asm;

use spin::{Mutex, Once};
use twofold_vmm::calls::Workaround;
use twofold_vmm::console::Notice;
use twofold_vmm::mitigation::{Needs, Tables};
use twofold_vmm::scheduler::{Decision, EntityId};

use super::deadlines::{Deadlines, Due, NEVER};
use crate::experiment::{ExitObserver, Observer};
use crate::gic::interface;
use crate::gic::physical::{self, OwnRedistributor};
use crate::gic::sources::Sources;
use crate::pmu::Counter;
use crate::schedule::{self, Schedule};
use crate::stats::Meter;
use crate::switch::Switch;
use crate::{cpus, host_devices, mitigation, read_sysreg, timer};

/// What a CPU runs: a vCPU, or a task of the hypervisor.
pub(crate) trait Entity: Sync {
    /// What the scheduler calls it.
    fn id(&self) -> EntityId;

    /// A turn on this CPU, by this decision. Returns what the CPU does next.
    fn turn(&self, cpu: &mut ThisCpu, switch: &mut Switch, decision: Decision) -> Decision;

    /// The time of its guest's alarm has come, perhaps. `here` is the vCPU that is loaded on this CPU, of whichever guest.
    /// Returns the machine's time of the next alarm.
    fn alarm_due(&self, _here: Option<EntityId>) -> u64 {
        NEVER
    }

    /// The machine's UART has received something for its guest, or has room again. `here` as above.
    fn serial_interrupt(&self, _here: Option<EntityId>) {}

    /// The control channel's port has something to say.
    fn port_interrupt(&self) {}
}

/// Whether a task goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// There is more to do.
    More,
    /// There is nothing to do until it is woken again.
    Finished,
}

/// What there is to run, in the order of the scheduler's numbers, and the deadlines of each CPU. The first entity's guest
/// has the machine's UART. The last entity is the task of the control channel, if there is one.
struct Entities {
    all: Vec<&'static dyn Entity>,
    /// Taken by the CPU when it begins its loop. They are made before the guests run, so that EL2's heap does not grow later.
    deadlines: Vec<Mutex<Option<Deadlines>>>,
}

static ENTITIES: Once<Entities> = Once::new();

/// Makes these the entities that `cpus` CPUs run.
pub(crate) fn install(all: Vec<&'static dyn Entity>, cpus: usize) {
    let deadlines = (0..cpus).map(|_| Mutex::new(Some(Deadlines::new(all.len())))).collect();
    ENTITIES.call_once(|| Entities { all, deadlines });
}

/// What the calling CPU has for its loop.
pub(crate) struct ThisCpu {
    /// Its place in [`Board::cpus`](crate::board::Board::cpus).
    pub(crate) number: usize,
    pub(crate) meter: Meter,
    pub(crate) redistributor: OwnRedistributor,
    pub(crate) deadlines: Deadlines,
    /// When it has to choose again, by the machine's counter.
    pub(crate) until: u64,
    /// What it does after a turn that was cut short.
    pub(crate) next: Decision,
    schedule: &'static Schedule,
    sources: Sources,
    entities: &'static [&'static dyn Entity],
    /// What this CPU needs against speculation, and by it when the tables change.
    needs: Needs,
    tables: Tables,
}

/// Runs guests on this CPU, which has set itself up for them.
pub(crate) fn run(redistributor: OwnRedistributor, sources: Sources, counts: bool) -> ! {
    let number = cpus::current();
    interface::ThisCpu.clear();
    // SAFETY: the CPU was just set up; no vCPU has run on it.
    let counter = if counts { unsafe { Counter::start() } } else { None };
    // SAFETY: as above; guests run on this CPU by this value only.
    let mut switch = unsafe { Switch::new(number) };
    let Entities { all: entities, deadlines } = ENTITIES.get().expect("`install` comes before");
    let deadlines = deadlines.get(number).and_then(|own| own.lock().take()).expect("a CPU begins its loop once");
    let meter = Meter::new(counter);
    let needs = mitigation::of_this_cpu();
    if needs.store_bypass_stays_on() {
        mitigation::execute(Workaround::StoreBypass, 1);
    }
    let tables = Tables::new(&needs);
    let mut next = schedule::pick(number);
    let (until, schedule) = (NEVER, schedule::get());
    let mut cpu =
        ThisCpu { number, meter, redistributor, deadlines, until, next, schedule, sources, entities, needs, tables };
    loop {
        next = match next.run.and_then(|entity| entities.get(entity.index())) {
            Some(entity) => entity.turn(&mut cpu, &mut switch, next),
            None => cpu.wait(),
        };
    }
}

/// The decision for an entity that follows without a limit.
pub(crate) fn follow(entity: EntityId) -> Decision {
    Decision { run: Some(entity), until: NEVER }
}

impl ThisCpu {
    /// I2 and I3: waits for an interrupt, and chooses again.
    fn wait(&mut self) -> Decision {
        self.until = NEVER;
        self.arm();
        // SAFETY: waiting changes nothing. The barrier lets what this CPU has written be seen before it waits.
        unsafe { asm!("dsb ish", "wfi", options(nostack, preserves_flags)) };
        self.take_interrupts();
        let _noted = schedule::is_due(self.number);
        schedule::pick(self.number)
    }

    /// A turn of a task of the hypervisor, which does its work in pieces. Before each of them this CPU takes its interrupts:
    /// before the first one, too, because what led to this turn may have been long.
    pub(crate) fn work(&mut self, decision: Decision, mut piece: impl FnMut() -> Progress) -> Decision {
        let task = decision.run;
        self.until = decision.until;
        self.arm();
        self.take_interrupts();
        loop {
            if piece() == Progress::Finished {
                return self.block_out_of_line();
            }
            self.take_interrupts();
            if self.has_to_choose() {
                let next = schedule::pick(self.number);
                if next.run != task {
                    return next;
                }
                self.until = next.until;
                self.arm();
            }
        }
    }

    /// [`Schedule::block`] on this CPU.
    #[inline(always)]
    pub(crate) fn block(&self) -> Result<EntityId, Decision> {
        self.schedule.block(self.number)
    }

    /// As [`block`](Self::block), out of line.
    #[inline(never)]
    pub(crate) fn block_out_of_line(&self) -> Decision {
        self.block().map_or_else(|decision| decision, follow)
    }

    /// Sets EL2's timer to what comes first, while no vCPU is loaded.
    fn arm(&self) {
        timer::arm(self.until.min(self.deadlines.first()));
    }

    /// Takes all interrupts that are pending, while no vCPU is loaded.
    fn take_interrupts(&mut self) {
        loop {
            // Each acknowledgement takes what is pending by then.
            cpus::looks().look();
            let Some(intid) = physical::acknowledge() else { break };
            physical::drop_priority(intid);
            if intid == self.sources.own_timer {
                self.deadlines_passed(None);
                // The line stays high until the timer is off or set anew. Each caller looks for the end of the slice.
                timer::arm(self.deadlines.first());
            } else {
                self.shared_interrupt(intid, None);
            }
            physical::deactivate(intid);
        }
    }

    /// Wakes what was waiting for a time that has come. `here` is the vCPU that is loaded on this CPU, if one is.
    pub(crate) fn deadlines_passed(&mut self, here: Option<EntityId>) {
        let now = timer::machine_time();
        while let Some(due) = self.deadlines.passed(now) {
            let (Due::Vcpu(index) | Due::Alarm(index)) = due;
            let next = match (self.entities.get(index), due) {
                (Some(entity), Due::Alarm(_)) => entity.alarm_due(here),
                (Some(entity), Due::Vcpu(_)) => {
                    schedule::wake(entity.id());
                    NEVER
                }
                (None, _) => NEVER,
            };
            self.deadlines.set(due, next);
        }
    }

    /// Handles an interrupt that belongs to no vCPU. `here` as above.
    pub(crate) fn shared_interrupt(&mut self, intid: u32, here: Option<EntityId>) {
        if intid == self.sources.uart
            && let Some(first) = self.entities.first()
        {
            first.serial_interrupt(here);
        }
        if self.sources.port.is_some_and(|port| port.intid == intid)
            && let Some(last) = self.entities.last()
        {
            last.port_interrupt();
        }
        host_devices::interrupt(intid);
    }

    /// K3: a console asks for the task of the control channel. The caller arms EL2's timer afterwards.
    #[cold]
    pub(crate) fn console_asks(&mut self, notice: Notice) {
        /// A part of a second for which bytes are gathered.
        const WHILE: u64 = 500;
        let Some(index) = self.entities.len().checked_sub(1) else { return };
        match notice {
            Notice::None => {}
            Notice::Soon => {
                let soon = timer::machine_time() + read_sysreg!(CNTFRQ_EL0) / WHILE;
                self.deadlines.set(Due::Vcpu(index), soon);
            }
            Notice::Now => schedule::wake(self.entities[index].id()),
        }
    }

    /// Whether this CPU has to choose anew: another CPU asked for it, or its time is over.
    pub(crate) fn has_to_choose(&self) -> bool {
        schedule::is_due(self.number) || (self.until != NEVER && timer::machine_time() >= self.until)
    }

    /// The tables with this VTTBR_EL2 are about to be loaded.
    pub(crate) fn tables_loaded(&mut self, vttbr: u64) {
        if self.tables.load(vttbr, |workaround| mitigation::execute(workaround, 0)) && Observer::SEES_TABLES {
            Observer::tables_loaded(vttbr);
        }
    }

    /// A guest's call of a workaround.
    pub(crate) fn mitigate(&self, workaround: Workaround, argument: u64) {
        if self.needs.passes_on(workaround) {
            mitigation::execute(workaround, argument);
        }
    }
}
