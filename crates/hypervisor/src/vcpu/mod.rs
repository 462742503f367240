// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A vCPU: its state while no CPU has it, and its turn on a CPU.
//!
//! | file | contents |
//! |---|---|
//! | this one | load, enter until there is a reason to leave, put away |
//! | [`exits`] | the answer to each exit |
//! | [`time`] | a vCPU's timers: their lines, and when they are due |
//! | [`calls`] | what a call of the guest needs of the hypervisor |
//!
//! # Locking
//!
//! The state is behind a lock that the CPU holds for the whole turn. The scheduler gives a vCPU to one CPU at a time, so a
//! CPU waits for the lock only while another one, which was told to run something else, still puts the vCPU away. No other
//! lock is held when this one is taken, and all others may be taken under it.
//!
//! # The order of a turn
//!
//! - T1. [`Switch::load`]: the guest's tables and the vCPU's registers.
//! - T2. [`GuestGic::load`]: the levels of its timers' lines, its list registers, and the machine's interrupts that are
//!   active for it.
//! - T3. EL2's timer is set to the end of the slice, or to what comes before.
//! - T4. Enter, answer, enter again.
//! - T5. [`Running::put`](crate::switch::Running::put): the timers are off from here on.
//! - T6. [`GuestGic::unload`] with the levels that the timers had. It returns whether an interrupt is signalled.
//! - T7. The state's lock is given back.
//! - T8. A vCPU that waits is blocked, unless T6 found an interrupt. Its timers become deadlines of this CPU before.
//!
//! [`GuestGic::load`]: crate::gic::guest::GuestGic::load
//! [`GuestGic::unload`]: crate::gic::guest::GuestGic::unload

use twofold_vmm::scheduler::Decision;

use self::exits::Loaded;
use self::time::Timers;
use crate::experiment::{ExitObserver, Observer};
use crate::gic::guest::Waiting;
use crate::schedule;
use crate::schedule::cpu::ThisCpu;
use crate::schedule::deadlines::{Due, NEVER};
use crate::stats::Purpose;
use crate::switch::{State, Switch};
use crate::vm::Vm;

mod calls;
mod exits;
mod time;

/// A vCPU that no CPU has, or that is in its turn.
pub struct Vcpu {
    registers: State,
    own: Own,
}

/// What a vCPU has beside its registers.
struct Own {
    timers: Timers,
    /// A read of the interrupt controller that waits for other CPUs.
    waiting: Option<Waiting>,
    observer: Observer,
    power: Power,
}

/// The state of a vCPU, as far as its next turn depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Power {
    /// Its registers have no meaning: it begins when it is switched on.
    Off,
    On,
    /// It waits in CPU_SUSPEND.
    Suspended,
}

/// Why a turn ends. It fits into a register, because each exit returns one or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leave {
    /// The CPU does something else: [`ThisCpu::next`].
    Preempted,
    /// The vCPU waits for an interrupt.
    Wait,
    /// The vCPU is off, or its guest has stopped.
    Stop,
}

impl Vcpu {
    /// vCPU `index`, which is off.
    #[must_use]
    pub fn new(index: usize) -> Self {
        let observer = Observer::vcpu_starts(index);
        let own = Own { timers: Timers::default(), waiting: None, observer, power: Power::Off };
        Self { registers: State::new(0, 0), own }
    }

    /// Switches it off, for a guest that begins anew.
    pub(crate) fn switch_off(&mut self) {
        self.own.power = Power::Off;
    }

    /// Whether it can execute an instruction now. If it was switched on since its last turn, it begins.
    fn can_run(&mut self, vm: &Vm, index: usize) -> bool {
        if vm.has_stopped() {
            return false;
        }
        match self.own.power {
            Power::On => return true,
            Power::Suspended => {
                vm.power().resume(index);
            }
            Power::Off => {
                let Some(start) = vm.power().begin(index) else { return false };
                self.registers = State::new(start.entry, start.argument);
                (self.own.timers, self.own.waiting) = (Timers::default(), None);
                vm.devices().gic.reset_interface(index);
            }
        }
        self.own.power = Power::On;
        true
    }
}

/// A turn of vCPU `index` on this CPU, which lasts until `until` at most. Returns what the CPU does next.
#[inline(never)]
pub(crate) fn turn(vm: &'static Vm, index: usize, cpu: &mut ThisCpu, switch: &mut Switch, until: u64) -> Decision {
    let slot = &vm.vcpus[index];
    let mut vcpu = slot.state.lock();
    cpu.deadlines.set(Due::Vcpu(slot.entity.index()), NEVER);
    if !vcpu.can_run(vm, index) {
        drop(vcpu);
        return schedule::block(cpu.number);
    }
    // What this CPU did since its last turn, up to where it looked for interrupts.
    if let Err(impossible) = cpu.meter.is_for_pieces(Purpose::Switch, &slot.stats) {
        vm.fail(format_args!("{impossible}"));
    }
    let Vcpu { registers, own } = &mut *vcpu;
    let offset = vm.counter_offset();
    let lines = own.timers.lines(registers, offset);
    cpu.tables_loaded(vm);
    // SAFETY: the seat is the guest's own, whose tables map only its memory, and its VMID is unique.
    let running =
        unsafe { switch.load(registers, &vm.seat(index), || vm.memory().stage2().invalidate_for_other_vcpu()) };
    let active = vm.devices().gic.load(index, cpu.number, lines);
    if active != 0 {
        cpu.redistributor.activate(active);
    }
    cpu.until = until;
    let mut loaded = Loaded::new(vm, index, cpu, running, own, &slot.stats);
    // A guest that ended since `can_run` looked may not have seen this vCPU loaded, and so interrupts no CPU for it.
    let leave = if vm.has_stopped() { Leave::Stop } else { loaded.run() };
    loaded.put();
    let lines = own.timers.lines(registers, offset);
    let is_signalled = vm.devices().gic.unload(index, lines, leave == Leave::Wait);
    let deadline = own.timers.deadline(registers, offset);
    drop(vcpu);
    match leave {
        Leave::Preempted => cpu.next,
        Leave::Wait if is_signalled => schedule::pick(cpu.number),
        Leave::Wait => {
            cpu.deadlines.set(Due::Vcpu(slot.entity.index()), deadline);
            schedule::block(cpu.number)
        }
        Leave::Stop => schedule::block(cpu.number),
    }
}
