// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A vCPU: its state while no CPU has it, and its turn on a CPU.
//!
//! | file | contents |
//! |---|---|
//! | this one | a turn: load, enter until there is a reason to leave, put away |
//! | [`state`] | a vCPU as data |
//! | [`exits`] | the answer to each exit |
//! | [`time`] | a vCPU's timers: their lines, and when they are due |
//! | [`calls`] | what a call of the guest needs of the hypervisor |
//! | [`stolen`] | its stolen time |
//! | [`pages`] | what it does while a page is absent |
//! | [`rest`] | how it waits for a page on a CPU that has nothing else to do |
//! | [`saved`] | its state as sections, and back |
//!
//! # Locking
//!
//! The state is behind a lock that the CPU holds for the whole turn. The scheduler gives a vCPU to one CPU at a time, so a
//! CPU waits for the lock only while another one, which has to run something else, still puts the vCPU away. No other
//! lock is held when this one is taken, and all others may be taken under it.
//!
//! # The order of a turn
//!
//! - T1a. The time that was stolen since the last turn is written, if the guest has asked for it.
//! - T1. [`Switch::load`]: the guest's tables and the vCPU's registers.
//! - T2. [`GuestGic::load`]: the levels of its timers' lines, its list registers, and the machine's interrupts that are
//!   active for it.
//! - T3. EL2's timer is set to the end of the slice, or to what comes before.
//! - T4. Enter, answer, enter again. If pages of the guest may be absent, what has arrived is taken before the first entry.
//! - T5. [`Running::put`](crate::switch::Running::put): the timers are off from here on.
//! - T6. [`GuestGic::unload`] with the levels that the timers had. It returns whether an interrupt is signalled. The
//!   time is read once, so a line that is not high in T6 has its rise in the deadline of T8.
//! - T6a. A vCPU that waits for a page has the steps W4 and W5 of [`swap`](crate::swap) instead of the next two. While its CPU
//!   has nothing else to do, it waits in T4 instead, and stays loaded ([`rest`]).
//! - T7. The state's lock is given back.
//! - T8. A vCPU that waits is blocked, unless T6 found an interrupt. Its timers become deadlines of this CPU before.
//!
//! If the scheduler gives the CPU another vCPU of the same guest, its turn follows at once. While a vCPU is not loaded its
//! timers do not change, so T2 does not look at the time if they were off in T6.
//!
//! [`GuestGic::load`]: crate::gic::guest::GuestGic::load
//! [`GuestGic::unload`]: crate::gic::guest::GuestGic::unload

use twofold_vmm::scheduler::{Decision, EntityId};

use self::exits::Loaded;
use self::state::{Leave, Power, Vcpu};
use self::time::Timers;
use crate::schedule;
use crate::schedule::cpu::{Entity, ThisCpu, follow};
use crate::schedule::deadlines::{Due, NEVER};
use crate::stats::Purpose;
use crate::switch::{State, Switch};
use crate::vm::{VcpuSlot, Vm};

mod calls;
mod exits;
pub(crate) mod pages;
mod rest;
pub(crate) mod saved;
pub mod state;
mod stolen;
mod time;

/// A vCPU, for the loop of a CPU.
pub(crate) struct Runnable {
    /// Its virtual machine.
    pub(crate) vm: &'static Vm,
    /// Its number there.
    pub(crate) index: usize,
}

impl Entity for Runnable {
    fn id(&self) -> EntityId {
        self.vm.vcpus[self.index].entity
    }

    fn turn(&self, cpu: &mut ThisCpu, switch: &mut Switch, decision: Decision) -> Decision {
        turns(self.vm, self.index, cpu, switch, decision.until)
    }

    fn alarm_due(&self, here: Option<EntityId>) -> u64 {
        let devices = self.vm.devices();
        devices.alarm_due(self.vm.vcpu_of(here));
        devices.alarm().unwrap_or(NEVER)
    }

    fn serial_interrupt(&self, here: Option<EntityId>) {
        self.vm.devices().serial_interrupt(self.vm.vcpu_of(here));
    }
}

/// Turns on this CPU: of vCPU `index`, which lasts until `until` at most, and then of each vCPU of the same guest that
/// comes next. Returns what the CPU does after them.
#[inline(never)]
fn turns(vm: &'static Vm, index: usize, cpu: &mut ThisCpu, switch: &mut Switch, until: u64) -> Decision {
    let mut vcpu = (index, &vm.vcpus[index]);
    let mut until = until;
    loop {
        (vcpu, until) = match turn(vm, vcpu, cpu, switch, until) {
            Next::Vcpu(next) => (next, NEVER),
            Next::Any(next) => match next.run.and_then(|entity| vm.slot_of(entity)) {
                Some(vcpu) => (vcpu, next.until),
                None => return next,
            },
        }
    }
}

/// What follows a turn.
enum Next {
    /// A turn of another vCPU of the guest, which has no limit.
    Vcpu((usize, &'static VcpuSlot)),
    /// Whatever was decided, perhaps such a turn.
    Any(Decision),
}

/// A turn of vCPU `index`, which is in `slot`. Returns what the CPU does next.
#[inline(always)]
fn turn(
    vm: &'static Vm,
    (index, slot): (usize, &'static VcpuSlot),
    cpu: &mut ThisCpu,
    switch: &mut Switch,
    until: u64,
) -> Next {
    let mut vcpu = slot.state.lock();
    if vcpu.own.timers.has_deadline {
        vcpu.own.timers.has_deadline = false;
        cpu.deadlines.set(Due::Vcpu(slot.entity.index()), NEVER);
    }
    if !can_run(&mut vcpu, vm, index, cpu) {
        drop(vcpu);
        return Next::Any(cpu.block_out_of_line());
    }
    // What this CPU did since its last turn, up to where it looked for interrupts.
    if let Err(impossible) = cpu.meter.is_for_pieces(Purpose::Switch, &slot.stats) {
        vm.fail(format_args!("{impossible}"));
    }
    let Vcpu { registers, own } = &mut *vcpu;
    let offset = vm.counter_offset();
    let lines = own.timers.look_again(registers, offset);
    own.stolen.turn_begins(vm.memory(), offset);
    let (seat, stage2) = (vm.seat(index, slot, offset), vm.memory().stage2());
    let (change, invalidate) = (|| cpu.tables_loaded(seat.vttbr), || stage2.invalidate_for_other_vcpu());
    // SAFETY: the seat is the guest's own, whose tables map only its memory, and its VMID is unique. It never changes, but
    // for the offset. The engine restores VTTBR_EL2 after a flush.
    let running = unsafe { switch.load(registers, &seat, change, invalidate) };
    let active = vm.devices().gic.load(slot.id, cpu.number, lines);
    if active != 0 {
        cpu.redistributor.activate(active);
    }
    cpu.until = until;
    let mut loaded = Loaded::new(vm, index, cpu, running, own, &slot.stats);
    // A guest that ended since `can_run` looked may not have seen this vCPU loaded, and so interrupts no CPU for it.
    let leave = if vm.has_stopped() { Leave::Stop } else { loaded.run() };
    loaded.put();
    let look = own.timers.look(registers, offset);
    let is_signalled = vm.devices().gic.unload(slot.id, look.lines, leave == Leave::Wait);
    // W4: what arrived while the vCPU was loaded has kicked this CPU, which has left the guest already.
    let has_reason = is_signalled || own.pages.is_some() && pages::have_arrived(vm, index);
    if leave == Leave::Wait && !has_reason {
        let deadline = own.timers.deadline(registers, look, offset);
        if let Some(deadline) = deadline {
            cpu.deadlines.set(Due::Vcpu(slot.entity.index()), deadline);
        }
        drop(vcpu);
        // The usual case first, in which the decision stays in registers.
        return match cpu.block() {
            Ok(entity) => match vm.slot_of(entity) {
                Some(vcpu) => Next::Vcpu(vcpu),
                None => Next::Any(follow(entity)),
            },
            Err(decision) => Next::Any(decision),
        };
    }
    drop(vcpu);
    Next::Any(match leave {
        Leave::Preempted => cpu.next,
        Leave::Wait => schedule::pick(cpu.number),
        Leave::Page => pages::wait(vm, slot, cpu, look),
        Leave::Rested => pages::rested(vm, slot, cpu, look),
        Leave::Stop => cpu.block_out_of_line(),
    })
}

/// Whether a vCPU can execute an instruction now. If it was switched on since its last turn, it begins.
#[inline(always)]
fn can_run(vcpu: &mut Vcpu, vm: &Vm, index: usize, cpu: &mut ThisCpu) -> bool {
    !vm.has_stopped() && (vcpu.own.power == Power::On || begins(vcpu, vm, index, cpu))
}

#[cold]
#[inline(never)]
fn begins(vcpu: &mut Vcpu, vm: &Vm, index: usize, cpu: &mut ThisCpu) -> bool {
    match vcpu.own.power {
        Power::On => {}
        Power::Arrived => {
            // A wait in CPU_SUSPEND may end without a reason.
            vm.power().resume(index);
            cpu.deadlines.set(vm.alarm(), vm.devices().alarm().unwrap_or(NEVER));
        }
        Power::Suspended => {
            vm.power().resume(index);
        }
        Power::Off => {
            let Some(start) = vm.power().begin(index) else { return false };
            vcpu.registers = State::new(start.entry, start.argument);
            (vcpu.own.timers, vcpu.own.waiting) = (Timers::default(), None);
            vm.devices().gic.reset_interface(index);
        }
    }
    vcpu.own.power = Power::On;
    true
}
