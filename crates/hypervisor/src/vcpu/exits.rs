// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The exits of a vCPU in its turn on a CPU, and the answer to each.
//!
//! The memory decides the answer to a stage-2 fault ([`GuestMemory::fault`]); this module reads the fault from the
//! registers, and carries the answer out.
//!
//! [`GuestMemory::fault`]: twofold_memory::GuestMemory::fault

use twofold_abi::virt;
use twofold_devices::vgic::SgiRegister;
use twofold_memory::{Answer, Done, GuestFault};
use twofold_stage2::fault::{AccessKind, Fault, ipa_from_hpfar};
use twofold_stage2::{Ipa, Level};
use twofold_vmm::calls::Reply;
use twofold_vmm::console::Notice;
use twofold_vmm::power;
use twofold_vmm::restart::Why;

use super::calls;
use super::pages::Around;
use super::state::{Leave, Own, Power};
use crate::abort::{self, Located};
use crate::emulation::Device;
use crate::experiment::ExitObserver;
use crate::gic::physical;
use crate::gic::sources::KICK;
use crate::mmio::{self, Operation, Order};
use crate::registers::access::Access;
use crate::registers::shut;
use crate::schedule::cpu::ThisCpu;
use crate::schedule::deadlines::NEVER;
use crate::stats::{INTERRUPT, Purpose, Stats};
use crate::switch::Running;
use crate::timer::{self, Due};
use crate::virtio::Place;
use crate::vm::Vm;
use crate::vm::end::End;
use crate::world::{self, Trap};
use crate::{inject, read_sysreg, schedule};

/// A vCPU that is loaded on this CPU.
pub(super) struct Loaded<'a> {
    pub(super) vm: &'static Vm,
    pub(super) index: usize,
    pub(super) cpu: &'a mut ThisCpu,
    pub(super) running: Running<'a>,
    pub(super) own: &'a mut Own,
    stats: &'static Stats,
}

/// An interrupt that was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// The guest has it.
    ForGuest,
    /// It asks to look at what has changed for the vCPU.
    Kick,
    /// EL2's own, or one for another vCPU.
    Other,
}

/// Exception classes of ESR_EL2 (Arm ARM DDI 0487K.a, D23.2).
mod class {
    pub const WAIT: u64 = 0x01;
    pub const FP: u64 = 0x07;
    pub const HVC: u64 = 0x16;
    pub const SMC: u64 = 0x17;
    pub const SYSTEM_REGISTER: u64 = 0x18;
    pub const INSTRUCTION_ABORT: u64 = 0x20;
    pub const DATA_ABORT: u64 = 0x24;
}

impl<'a> Loaded<'a> {
    pub(super) fn new(
        vm: &'static Vm,
        index: usize,
        cpu: &'a mut ThisCpu,
        running: Running<'a>,
        own: &'a mut Own,
        stats: &'static Stats,
    ) -> Self {
        Self { vm, index, cpu, running, own, stats }
    }

    /// T3 and T4. Out of line: with anything else around it, the compiler keeps less of the fault path in registers.
    #[inline(never)]
    pub(super) fn run(&mut self) -> Leave {
        // V1, if pages of the guest may be absent.
        if self.own.pages.is_some()
            && let Some(leave) = self.look_for_pages()
        {
            return leave;
        }
        timer::arm_for_entry(self.first_due());
        loop {
            if let Some(leave) = self.turn() {
                return leave;
            }
        }
    }

    /// T5.
    pub(super) fn put(self) {
        self.running.put();
    }

    #[inline(always)]
    fn turn(&mut self) -> Option<Leave> {
        self.own.observer.guest_entered();
        // SAFETY: `Switch::load` set the CPU up for this guest, and no code here sets its PSTATE to EL2.
        let trap = unsafe { world::enter(self.running.context()) };
        self.own.observer.guest_left();
        if trap != Trap::Sync {
            return self.interrupted(trap);
        }
        let esr = read_sysreg!(ESR_EL2);
        self.measure(esr);
        self.stats.exit(esr, self.running.context().pc);
        self.own.observer.before_answer(self.vm);
        let leave = self.answer(esr);
        self.own.observer.after_answer(self.vm, esr);
        leave
    }

    /// Counts the instructions since the last exit.
    #[inline(always)]
    fn measure(&mut self, esr: u64) {
        if let Err(impossible) = self.cpu.meter.turn(esr, self.stats) {
            self.vm.fail(format_args!("{impossible}"));
        }
    }

    #[inline(always)]
    fn answer(&mut self, esr: u64) -> Option<Leave> {
        match esr >> 26 & 0x3f {
            class::DATA_ABORT | class::INSTRUCTION_ABORT => match Fault::from_syndrome(esr) {
                Some(fault) => self.fault(&fault, esr),
                None => self.other(esr),
            },
            class::WAIT => self.wait(esr),
            _ => self.other(esr),
        }
    }

    /// Answers an exit that is not a fault, nor WFI. Out of line, so that a fault pays nothing for it.
    #[inline(never)]
    fn other(&mut self, esr: u64) -> Option<Leave> {
        match esr >> 26 & 0x3f {
            class::DATA_ABORT | class::INSTRUCTION_ABORT => self.odd_abort(esr),
            class::HVC => return self.call(),
            class::SYSTEM_REGISTER if self.own.observer.register_trapped(esr, self.running.context()) => {}
            class::SYSTEM_REGISTER if self.interrupt_or_time(esr) => self.running.context().skip(),
            class::SYSTEM_REGISTER if self.system_register(esr) => self.running.context().skip(),
            class::SMC => {
                // SMC trapped before it was executed: the guest continues after it.
                self.running.context().skip();
                return self.call();
            }
            class::FP => self.running.first_use_of_fp(),
            _ => inject::undefined(self.running.context()),
        }
        None
    }

    /// WFI gives the CPU up, WFE the rest of the slice.
    #[inline(always)]
    fn wait(&mut self, esr: u64) -> Option<Leave> {
        const EVENT: u64 = 1;
        self.running.context().skip();
        if esr & EVENT == 0 {
            return Some(Leave::Wait);
        }
        self.spins()
    }

    #[inline(never)]
    fn spins(&mut self) -> Option<Leave> {
        let decision = schedule::spinning(self.cpu.number)?;
        self.obey(decision)
    }

    /// Answers an access to a system register that the guest has. Returns `false` if it has none there.
    fn system_register(&mut self, esr: u64) -> bool {
        let access = Access::from_syndrome(esr);
        let x = &mut self.running.context().x;
        self.vm.guest_cpu().answer(&access, x) || shut::answer(&access, x) || self.running.debug_register(&access)
    }

    #[inline(always)]
    fn fault(&mut self, fault: &Fault, esr: u64) -> Option<Leave> {
        let far = read_sysreg!(FAR_EL2);
        self.stats.fault(fault.kind);
        let ipa = if fault.hpfar_is_valid() {
            ipa_from_hpfar(read_sysreg!(HPFAR_EL2))
        } else {
            match abort::locate(self.vm.memory(), self.running.context(), esr, far) {
                Located::Page(ipa) => ipa,
                Located::Retry => return None,
                Located::Aborted => {
                    self.stats.external();
                    return None;
                }
            }
        };
        // Devices are below RAM. So an access to one takes no way through the memory, and a fault in RAM one comparison.
        if ipa.raw() < virt::RAM_BASE && self.below_ram(esr, far, ipa) {
            return None;
        }
        let (kind, access) = (fault.kind, fault.access);
        match self.vm.memory().fault(&GuestFault { ipa, kind, access }) {
            Ok(Answer::Retry(Done::Mapped { level: Level::L3, first_touch: true })) => {
                self.cpu.meter.is_for(Purpose::FirstTouch(Level::L3));
            }
            Ok(Answer::Retry(Done::Mapped { level: Level::L3, .. } | Done::Stale)) => {}
            Ok(Answer::Retry(Done::Mapped { level, first_touch })) => self.block(level, first_touch),
            Ok(Answer::Retry(Done::Interrupted)) => self.block(Level::L2, true),
            Ok(Answer::Retry(Done::Widened)) => {
                if access == AccessKind::Write {
                    self.stats.write_fault();
                    self.cpu.meter.is_for(Purpose::WriteFault);
                }
            }
            Ok(Answer::Retry(Done::WidenedAround)) => self.widened_around(),
            Ok(refused @ (Answer::Skip | Answer::ExternalAbort | Answer::Absent)) => {
                return self.refused(refused, esr, far, ipa);
            }
            // The `GuestFault` is made anew here: printing the first one would force it into memory on every fault.
            Err(error) => return self.fail(format_args!("{:x?}: {error}", GuestFault { ipa, kind, access })),
        }
        None
    }

    /// This exit is for a block, perhaps for its first touch.
    #[cold]
    #[inline(never)]
    fn block(&mut self, level: Level, first_touch: bool) {
        if first_touch {
            self.cpu.meter.is_for(Purpose::FirstTouch(level));
        }
        self.in_pieces();
    }

    /// A write fault that had hardware record writes to many pages.
    #[cold]
    #[inline(never)]
    fn widened_around(&mut self) {
        self.stats.write_fault();
        self.cpu.meter.is_for(Purpose::WriteFault);
        self.in_pieces();
    }

    /// This exit may have looked for interrupts.
    pub(super) fn in_pieces(&mut self) {
        if let Err(impossible) = self.cpu.meter.in_pieces(self.stats) {
            self.vm.fail(format_args!("{impossible}"));
        }
    }

    /// Nothing is mapped there: the guest skips the access, takes an abort, or needs a page that is not in memory.
    #[cold]
    #[inline(never)]
    fn refused(&mut self, answer: Answer, esr: u64, far: u64, ipa: Ipa) -> Option<Leave> {
        match answer {
            Answer::Skip => self.running.context().skip(),
            // The fault is read anew: passed on, it would be in memory on every fault.
            Answer::Absent => return self.absent(&Fault::from_syndrome(esr)?, ipa),
            Answer::ExternalAbort | Answer::Retry(_) => {
                self.stats.external();
                abort::refuse(self.vm.memory(), self.running.context(), esr, far, ipa);
            }
        }
        None
    }

    /// As [`device`](Self::device), out of line.
    #[inline(never)]
    fn below_ram(&mut self, esr: u64, far: u64, ipa: Ipa) -> bool {
        self.device(esr, far, ipa)
    }

    /// Emulates an access to a device. Returns `false` if there is none at the page `ipa`, or if the syndrome does not
    /// describe the access.
    #[inline(always)]
    fn device(&mut self, esr: u64, far: u64, ipa: Ipa) -> bool {
        let address = ipa.raw() | far & 0xfff;
        let Some(device) = self.vm.devices().find(address) else { return self.virtio(esr, address) };
        let Some(access) = mmio::Access::from_syndrome(esr) else { return false };
        self.cpu.meter.is_for(match device {
            Device::Gic(_) => Purpose::Gic,
            Device::Uart(_) => Purpose::Uart,
            Device::Rtc(_) => Purpose::Rtc,
        });
        let (order, operation) = self.operation(&access);
        let waiting = &mut self.own.waiting;
        let Some(value) = self.vm.devices().access(self.index, device, access.width, operation, waiting) else {
            return true;
        };
        if !access.is_write {
            access.load(&mut self.running.context().x, value, order);
        }
        match device {
            Device::Gic(_) => {}
            Device::Uart(_) => self.take_notice(),
            Device::Rtc(_) => {
                self.cpu.deadlines.set(self.vm.alarm(), self.vm.devices().alarm().unwrap_or(NEVER));
                self.arm();
            }
        }
        self.running.context().skip();
        true
    }

    /// As [`device`](Self::device), for a virtio device. Out of line, so that the other devices pay nothing for it.
    #[inline(never)]
    fn virtio(&mut self, esr: u64, address: u64) -> bool {
        let Some(place) = Place::at(address) else { return false };
        let Some(access) = mmio::Access::from_syndrome(esr) else { return false };
        self.cpu.meter.is_for(Purpose::Virtio);
        let (order, operation) = self.operation(&access);
        let value = self.vm.virtio(self.index, place, access.width, operation);
        if !access.is_write {
            access.load(&mut self.running.context().x, value, order);
        }
        self.take_notice();
        self.in_pieces();
        self.running.context().skip();
        true
    }

    /// What the guest's access does, and in which order its bytes are.
    #[inline(always)]
    fn operation(&mut self, access: &mmio::Access) -> (Order, Operation) {
        let order = Order::of(self.running.context().pstate, read_sysreg!(SCTLR_EL1));
        let operation = match access.is_write {
            true => Operation::Write(access.stored(&self.running.context().x, order)),
            false => Operation::Read,
        };
        (order, operation)
    }

    /// K2 and K3, if the guest's console asks for the control channel's task.
    #[inline(always)]
    fn take_notice(&mut self) {
        let notice = self.vm.devices().notice();
        if notice != Notice::None {
            self.cpu.console_asks(notice);
            self.arm();
        }
    }

    /// Emulates a trapped access to the interrupt controller's or a timer's register. Returns `false` if it is not one.
    fn interrupt_or_time(&mut self, esr: u64) -> bool {
        let access = Access::from_syndrome(esr);
        let [3, 0, 12, 11, register] = access.encoding else { return self.time(&access) };
        if access.is_read {
            return false;
        }
        let value = self.running.context().x.get(access.rt).copied().unwrap_or(0);
        let gic = &self.vm.devices().gic;
        match register {
            1 => gic.deactivate(self.index, value as u32 & 0xff_ffff),
            5 => gic.send(self.index, SgiRegister::Group1, value),
            6 => gic.send(self.index, SgiRegister::Alias, value),
            7 => gic.send(self.index, SgiRegister::Group0, value),
            _ => return false,
        }
        true
    }

    /// As [`interrupt_or_time`](Self::interrupt_or_time), for the physical counter and timer.
    fn time(&mut self, access: &Access) -> bool {
        let now = self.guest_time();
        match self.own.timers.physical.access(access, &mut self.running.context().x, now) {
            None => return false,
            Some(false) => {}
            Some(true) => self.timer_changed(),
        }
        true
    }

    /// Sets the line of the physical timer, and EL2's timer.
    fn timer_changed(&mut self) {
        let level = self.own.timers.physical.due(self.guest_time()) == Due::Now;
        if level != self.own.timers.level {
            self.own.timers.level = level;
            self.vm.devices().gic.set_physical_timer(self.index, level);
        }
        self.arm();
    }

    /// Sets EL2's timer to whatever comes first.
    pub(super) fn arm(&self) {
        timer::arm(self.first_due());
    }

    /// The machine's time of what comes first; [`NEVER`] if nothing is to come.
    #[inline(always)]
    fn first_due(&self) -> u64 {
        let own = match self.own.timers.physical.rise(self.own.timers.level) {
            Some(time) => timer::of_machine(time, self.vm.counter_offset()),
            None => NEVER,
        };
        own.min(self.cpu.until).min(self.cpu.deadlines.first())
    }

    fn guest_time(&self) -> u64 {
        timer::machine_time().wrapping_sub(self.vm.counter_offset())
    }

    /// Answers an exit because of a physical interrupt, which is still pending.
    #[inline(never)]
    fn interrupted(&mut self, trap: Trap) -> Option<Leave> {
        self.measure(INTERRUPT);
        self.stats.exit(INTERRUPT, self.running.context().pc);
        match trap {
            // The vCPU that ran has read or written what went wrong, as far as anything can say that.
            Trap::SError => return self.fail(format_args!("a physical SError was taken while it ran")),
            // Only group 0 is an FIQ, and EL2 has put every interrupt into group 1.
            Trap::Fiq => self.vm.fail(format_args!("a physical FIQ was taken to EL2")),
            Trap::Irq | Trap::Sync => {}
        }
        // It may have been withdrawn meanwhile.
        let intid = physical::acknowledge()?;
        match self.take(intid) {
            Taken::ForGuest => None,
            Taken::Kick if self.own.pages.is_some() => self.kicked(),
            Taken::Kick | Taken::Other => self.after_interrupt(),
        }
    }

    /// Handles an interrupt that was acknowledged.
    #[inline(always)]
    pub(super) fn take(&mut self, intid: u32) -> Taken {
        physical::drop_priority(intid);
        let (devices, sources) = (self.vm.devices(), self.vm.sources());
        if intid == sources.virtual_timer {
            // It stays active until the guest ends the virtual one.
            devices.gic.virtual_timer_fired(self.index);
            return Taken::ForGuest;
        }
        if intid == sources.physical_timer {
            devices.gic.physical_timer_fired(self.index);
            return Taken::ForGuest;
        }
        let mut taken = Taken::Other;
        if intid == sources.own_timer {
            self.cpu.deadlines_passed(Some(self.vm.vcpus[self.index].entity));
            self.timer_changed();
        } else if intid == KICK || intid == sources.maintenance {
            devices.gic.synchronize(self.index);
            taken = Taken::Kick;
        } else {
            self.cpu.shared_interrupt(intid, Some(self.vm.vcpus[self.index].entity));
        }
        physical::deactivate(intid);
        taken
    }

    /// V1, after a kick.
    #[cold]
    fn kicked(&mut self) -> Option<Leave> {
        self.look_for_pages().or_else(|| self.after_interrupt())
    }

    #[inline(always)]
    fn after_interrupt(&mut self) -> Option<Leave> {
        if self.vm.has_stopped() {
            return Some(Leave::Stop);
        }
        if !self.cpu.has_to_choose() {
            return None;
        }
        let decision = schedule::pick(self.cpu.number);
        self.obey(decision)
    }

    /// Leaves for another entity, or goes on.
    fn obey(&mut self, decision: schedule::Decision) -> Option<Leave> {
        if decision.run != Some(self.vm.vcpus[self.index].entity) {
            self.cpu.next = decision;
            return Some(Leave::Preempted);
        }
        self.cpu.until = decision.until;
        self.arm();
        None
    }

    /// The guest cannot continue.
    #[cold]
    pub(super) fn fail(&mut self, why: core::fmt::Arguments) -> Option<Leave> {
        self.vm.stop_for(why);
        Some(Leave::Stop)
    }

    /// Handles an abort whose cause is not the content of the tables.
    fn odd_abort(&mut self, esr: u64) {
        if abort::odd(self.vm.memory(), self.running.context(), esr) {
            self.stats.external();
        }
    }

    #[inline(always)]
    fn call(&mut self) -> Option<Leave> {
        assert!(!self.vm.panics_on_call(), "panic at the guest's first call, as the bundle asks for");
        let [a, b, c, d, ..] = self.running.context().x;
        if let Some(vendor) = self.vm.vendor()
            && let Some(answer) = vendor.call(self.vm, &mut self.cpu.meter, [a, b, c, d])
        {
            self.running.context().x[0] = answer as u64;
            return None;
        }
        if let Some(value) = power::constant(a as u32, b) {
            self.running.context().x[0] = value;
            return None;
        }
        self.call_with_state([a, b, c, d])
    }

    /// A call whose answer depends on the state of the guest.
    #[inline(never)]
    fn call_with_state(&mut self, [a, b, c, d]: [u64; 4]) -> Option<Leave> {
        let Own { stolen, pages, .. } = &mut *self.own;
        let mut host = calls::Here(self.vm, stolen, pages.as_deref_mut());
        let reply = twofold_vmm::calls::call(&mut self.vm.power(), &mut host, self.index, [a, b, c, d]);
        let x = &mut self.running.context().x;
        match reply {
            Reply::Power(power::Reply::Return(value)) => x[0] = value,
            Reply::Values(values) => x[..4].copy_from_slice(&values),
            Reply::Power(reply) => return self.power_changed(reply),
            Reply::Mitigate(workaround, argument) => self.cpu.mitigate(workaround, argument),
        }
        None
    }

    #[inline(never)]
    fn power_changed(&mut self, reply: power::Reply) -> Option<Leave> {
        match reply {
            power::Reply::Return(value) => self.running.context().x[0] = value,
            power::Reply::Start(value, vcpu) => {
                self.running.context().x[0] = value;
                schedule::wake(self.vm.vcpus[vcpu].entity);
            }
            power::Reply::Suspend(value) => {
                self.running.context().x[0] = value;
                self.own.power = Power::Suspended;
                return Some(Leave::Wait);
            }
            power::Reply::Off => {
                self.own.power = Power::Off;
                let (vm, index) = (self.vm, self.index);
                if let (Some(pages), Some(swap)) = (&mut self.own.pages, vm.swap()) {
                    pages.off(&mut Around::loaded(vm, swap, index, 0));
                }
                return Some(Leave::Stop);
            }
            power::Reply::Stop => return Some(Leave::Stop),
            power::Reply::End(end) => {
                // The instructions of this exit so far count for it.
                self.measure(read_sysreg!(ESR_EL2));
                self.own.observer.guest_ends(self.vm);
                match end {
                    power::End::PowerOff => self.vm.end(End::PowerOff),
                    power::End::ColdReset => self.vm.reset(Why::ColdReset),
                    power::End::WarmReset => self.vm.reset(Why::WarmReset),
                }
                return Some(Leave::Stop);
            }
        }
        None
    }
}
