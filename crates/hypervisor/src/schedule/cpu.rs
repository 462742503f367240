// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loop of a CPU: it chooses a vCPU, runs it for a turn, and waits when there is none.
//!
//! Every CPU runs this loop from the start of the guests to the end of the image. Interrupts are masked at EL2: one that
//! comes meanwhile is an exit right after the next entry into a guest, or ends the wait.

use core::arch::asm;
use core::ptr;

use super::deadlines::{Deadlines, Due, NEVER};
use super::{Decision, Entity};
use crate::experiment::{ExitObserver, Observer};
use crate::gic::interface;
use crate::gic::physical::{self, OwnRedistributor};
use crate::gic::sources::Sources;
use crate::pmu::Counter;
use crate::restart::Progress;
use crate::schedule;
use crate::stats::Meter;
use crate::switch::Switch;
use crate::vm::{self, Vm};
use crate::{cpus, timer, vcpu};

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
    sources: Sources,
    /// The guest whose tables were loaded last.
    last: *const Vm,
}

/// Runs guests on this CPU, which has set itself up for them.
pub(crate) fn run(redistributor: OwnRedistributor, sources: Sources, counts: bool) -> ! {
    let number = cpus::current();
    interface::ThisCpu.clear();
    // SAFETY: the CPU was just set up; no vCPU has run on it.
    let counter = if counts { unsafe { Counter::start() } } else { None };
    // SAFETY: as above; guests run on this CPU by this value only.
    let mut switch = unsafe { Switch::new(number) };
    let deadlines = schedule::deadlines(number).expect("a CPU begins its loop once");
    let meter = Meter::new(counter);
    let mut next = schedule::pick(number);
    let mut cpu = ThisCpu { number, meter, redistributor, deadlines, until: NEVER, next, sources, last: ptr::null() };
    loop {
        next = match next.run.and_then(|entity| schedule::entities().get(entity.index())) {
            Some(Entity::Vcpu(vm, index)) => vcpu::turn(vm, *index, &mut cpu, &mut switch, next.until),
            Some(Entity::Restart(vm)) => cpu.work(next, || vm.restart()),
            None => cpu.wait(),
        };
    }
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

    /// A turn of a task of the hypervisor, which does its work in pieces. Between two of them this CPU takes its
    /// interrupts.
    fn work(&mut self, decision: Decision, mut piece: impl FnMut() -> Progress) -> Decision {
        let task = decision.run;
        self.until = decision.until;
        self.arm();
        loop {
            if piece() == Progress::Finished {
                return schedule::block(self.number);
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

    /// Sets EL2's timer to what comes first, while no vCPU is loaded.
    fn arm(&self) {
        let first = self.until.min(self.deadlines.first());
        timer::arm((first != NEVER).then_some(first));
    }

    /// Takes all interrupts that are pending, while no vCPU is loaded.
    fn take_interrupts(&mut self) {
        cpus::looks().look();
        while let Some(intid) = physical::acknowledge() {
            physical::drop_priority(intid);
            if intid == self.sources.own_timer {
                self.deadlines_passed(None);
                // The line stays high until the timer is off or set anew. Each caller looks for the end of the slice.
                let first = self.deadlines.first();
                timer::arm((first != NEVER).then_some(first));
            } else {
                self.shared_interrupt(intid, None);
            }
            physical::deactivate(intid);
        }
    }

    /// Wakes what was waiting for a time that has come. `here` is the vCPU that is loaded on this CPU, if one is.
    pub(crate) fn deadlines_passed(&mut self, here: Option<(&'static Vm, usize)>) {
        let now = timer::machine_time();
        while let Some(due) = self.deadlines.take(now) {
            let (Due::Vcpu(index) | Due::Alarm(index)) = due;
            let Some(Entity::Vcpu(vm, vcpu)) = schedule::entities().get(index) else { continue };
            match due {
                Due::Vcpu(_) => schedule::wake(vm.vcpus[*vcpu].entity),
                Due::Alarm(_) => {
                    vm.devices().alarm_due(of(here, vm));
                    self.deadlines.set(due, vm.devices().alarm().unwrap_or(NEVER));
                }
            }
        }
    }

    /// Handles an interrupt that belongs to no vCPU.
    pub(crate) fn shared_interrupt(&mut self, intid: u32, here: Option<(&'static Vm, usize)>) {
        if intid == self.sources.uart
            && let Some(vm) = vm::first()
        {
            vm.devices().serial_interrupt(of(here, vm));
        }
    }

    /// Whether this CPU has to choose anew: another CPU asked for it, or its time is over.
    pub(crate) fn has_to_choose(&self) -> bool {
        schedule::is_due(self.number) || (self.until != NEVER && timer::machine_time() >= self.until)
    }

    /// The tables of this guest are about to be loaded.
    pub(crate) fn tables_loaded(&mut self, vm: &'static Vm) {
        if !ptr::eq(self.last, vm) {
            self.last = vm;
            Observer::tables_loaded(vm.memory().stage2().vttbr());
        }
    }
}

/// The vCPU of this guest that is loaded on this CPU.
fn of(here: Option<(&'static Vm, usize)>, vm: &Vm) -> Option<usize> {
    here.filter(|(loaded, _)| ptr::eq(*loaded, vm)).map(|(_, vcpu)| vcpu)
}
