// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loop of a vCPU: enter, exit, answer, enter again.
//!
//! Each vCPU has its own CPU. The memory decides the answer to a stage-2 fault ([`GuestMemory::fault`]); this module
//! reads the fault from the registers, and carries the answer out.
//!
//! [`GuestMemory::fault`]: twofold_memory::GuestMemory::fault

use core::mem::needs_drop;

use twofold_abi::virt;
use twofold_devices::vgic::SgiRegister;
use twofold_memory::{Answer, Done, GuestFault};
use twofold_stage2::Ipa;
use twofold_stage2::fault::{AccessKind, Fault, ipa_from_hpfar};
use twofold_vmm::psci::{self, Reply};

use crate::abort::{self, Located};
use crate::emulation::Device;
use crate::experiment::{ExitObserver, Observer};
use crate::gic::guest::Waiting;
use crate::gic::physical;
use crate::gic::sources::KICK;
use crate::mmio::{self, Operation, Order};
use crate::pmu::Counter;
use crate::registers::access::Access;
use crate::registers::shut;
use crate::stats::{INTERRUPT, Meter, Purpose, Stats};
use crate::timer::{self, Due, PhysicalTimer};
use crate::vm::{End, Vm};
use crate::world::{self, Context, Trap};
use crate::{inject, power, read_sysreg};

/// Runs vCPU `index` from `entry` on this CPU, until it is switched off.
pub fn run(vm: &'static Vm, index: usize, entry: u64, argument: u64) -> ! {
    vm.confine_this_cpu(index);
    // SAFETY: the CPU was just set up; no other vCPU runs on it.
    let counter = if vm.counts_instructions() { unsafe { Counter::start() } } else { None };
    let mut vcpu = Vcpu {
        vm,
        index,
        context: Context::new(entry, argument),
        timer: PhysicalTimer::default(),
        timer_level: false,
        alarm: None,
        waiting: None,
        stats: &vm.vcpus[index].stats,
        meter: Meter::new(counter),
        observer: Observer::vcpu_starts(index),
    };
    loop {
        vcpu.turn();
    }
}

struct Vcpu {
    vm: &'static Vm,
    index: usize,
    context: Context,
    /// The physical timer, unless the guest has the machine's with an offset.
    timer: PhysicalTimer,
    /// The level of its line, as the interrupt controller knows it.
    timer_level: bool,
    /// The machine's time of the clock's alarm that this vCPU has set.
    alarm: Option<u64>,
    /// A read of the interrupt controller that waits for other CPUs.
    waiting: Option<Waiting>,
    stats: &'static Stats,
    meter: Meter,
    observer: Observer,
}

/// A CPU that leaves [`run`] switches itself off, and never drops its vCPU. So a vCPU must own nothing that needs a
/// drop, unless there is only one, which is never started twice.
const _: () = assert!(!needs_drop::<Vcpu>() || Observer::ONE_VCPU);

/// Exception classes of ESR_EL2 (Arm ARM DDI 0487K.a, D23.2).
mod class {
    pub const HVC: u64 = 0x16;
    pub const SMC: u64 = 0x17;
    pub const SYSTEM_REGISTER: u64 = 0x18;
    pub const INSTRUCTION_ABORT: u64 = 0x20;
    pub const DATA_ABORT: u64 = 0x24;
}

impl Vcpu {
    fn turn(&mut self) {
        self.observer.guest_entered();
        // SAFETY: `confine_this_cpu` set the CPU up for this guest, and no code here sets its PSTATE to EL2.
        let trap = unsafe { world::enter(&mut self.context) };
        self.observer.guest_left();
        if trap != Trap::Sync {
            return self.interrupted(trap);
        }
        let esr = read_sysreg!(ESR_EL2);
        self.measure(esr);
        self.stats.exit(esr, self.context.pc);
        self.observer.before_answer(self.vm);
        self.answer(esr);
        self.observer.after_answer(self.vm, esr);
    }

    /// Counts the instructions since the last exit.
    #[inline(always)]
    fn measure(&mut self, esr: u64) {
        if let Err(impossible) = self.meter.turn(esr, self.stats) {
            self.vm.fail(format_args!("{impossible}"));
        }
    }

    #[inline(always)]
    fn answer(&mut self, esr: u64) {
        match Fault::from_syndrome(esr) {
            Some(fault) => self.fault(&fault, esr),
            None => self.other(esr),
        }
    }

    /// Answers an exit that is not a fault. Out of line, so that a fault pays nothing for it.
    #[inline(never)]
    fn other(&mut self, esr: u64) {
        match esr >> 26 & 0x3f {
            class::DATA_ABORT | class::INSTRUCTION_ABORT => self.odd_abort(esr),
            class::HVC => self.call(),
            class::SYSTEM_REGISTER if self.observer.register_trapped(esr, &mut self.context) => {}
            class::SYSTEM_REGISTER if self.interrupt_or_time(esr) => self.context.skip(),
            class::SYSTEM_REGISTER if self.system_register(esr) => self.context.skip(),
            class::SMC => {
                // SMC trapped before it was executed: the guest continues after it.
                self.context.skip();
                self.call();
            }
            _ => inject::undefined(&mut self.context),
        }
    }

    /// Answers an access to a system register that the guest has. Returns `false` if it has none there.
    fn system_register(&mut self, esr: u64) -> bool {
        let (access, x) = (Access::from_syndrome(esr), &mut self.context.x);
        self.vm.guest_cpu().answer(&access, x) || shut::answer(&access, x)
    }

    #[inline(always)]
    fn fault(&mut self, fault: &Fault, esr: u64) {
        let far = read_sysreg!(FAR_EL2);
        self.stats.fault(fault.kind);
        let ipa = if fault.hpfar_is_valid() {
            ipa_from_hpfar(read_sysreg!(HPFAR_EL2))
        } else {
            match abort::locate(self.vm.memory(), &mut self.context, esr, far) {
                Located::Page(ipa) => ipa,
                Located::Retry => return,
                Located::Aborted => return self.stats.external(),
            }
        };
        // Devices are below RAM. So an access to one takes no way through the memory, and a fault in RAM one comparison.
        if ipa.raw() < virt::RAM_BASE && self.below_ram(esr, far, ipa) {
            return;
        }
        let (kind, access) = (fault.kind, fault.access);
        match self.vm.memory().fault(&GuestFault { ipa, kind, access }) {
            Ok(Answer::Retry(Done::Mapped { level, first_touch: true })) => {
                self.meter.is_for(Purpose::FirstTouch(level));
            }
            Ok(Answer::Retry(Done::Mapped { .. } | Done::Stale)) => {}
            Ok(Answer::Retry(Done::Widened)) => {
                if access == AccessKind::Write {
                    self.stats.write_fault();
                    self.meter.is_for(Purpose::WriteFault);
                }
            }
            Ok(refused @ (Answer::Skip | Answer::ExternalAbort | Answer::Absent)) => {
                self.refused(refused, esr, far, ipa)
            }
            // The `GuestFault` is made anew here: printing the first one would force it into memory on every fault.
            Err(error) => self.vm.fail(format_args!("{:x?}: {error}", GuestFault { ipa, kind, access })),
        }
    }

    /// Nothing is mapped there: the guest skips the access, or takes an abort. No page is absent, since no store is
    /// attached.
    #[cold]
    #[inline(never)]
    fn refused(&mut self, answer: Answer, esr: u64, far: u64, ipa: Ipa) {
        match answer {
            Answer::Skip => self.context.skip(),
            Answer::Absent => self.vm.fail(format_args!("{ipa:x?} is absent, and there is no page store")),
            Answer::ExternalAbort | Answer::Retry(_) => {
                self.stats.external();
                abort::refuse(self.vm.memory(), &mut self.context, esr, far, ipa);
            }
        }
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
        let Some(device) = self.vm.devices().find(ipa.raw() | far & 0xfff) else { return false };
        let Some(access) = mmio::Access::from_syndrome(esr) else { return false };
        self.meter.is_for(match device {
            Device::Gic(_) => Purpose::Gic,
            Device::Uart(_) => Purpose::Uart,
            Device::Rtc(_) => Purpose::Rtc,
        });
        let order = Order::of(self.context.pstate, read_sysreg!(SCTLR_EL1));
        let operation = match access.is_write {
            true => Operation::Write(access.stored(&self.context.x, order)),
            false => Operation::Read,
        };
        let waiting = &mut self.waiting;
        let Some(value) = self.vm.devices().access(self.index, device, access.width, operation, waiting) else {
            return true;
        };
        if !access.is_write {
            access.load(&mut self.context.x, value, order);
        }
        if let Device::Rtc(_) = device {
            self.alarm = self.vm.devices().alarm();
            self.arm();
        }
        self.context.skip();
        true
    }

    /// Emulates a trapped access to the interrupt controller's or a timer's register. Returns `false` if it is not one.
    fn interrupt_or_time(&mut self, esr: u64) -> bool {
        let access = Access::from_syndrome(esr);
        let [3, 0, 12, 11, register] = access.encoding else { return self.time(&access) };
        if access.is_read {
            return false;
        }
        let value = self.context.x.get(access.rt).copied().unwrap_or(0);
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
        match self.timer.access(access, &mut self.context.x, now) {
            None => return false,
            Some(false) => {}
            Some(true) => self.timer_changed(),
        }
        true
    }

    /// Sets the line of the physical timer, and EL2's timer.
    fn timer_changed(&mut self) {
        let level = self.timer.due(self.guest_time()) == Due::Now;
        if level != self.timer_level {
            self.timer_level = level;
            self.vm.devices().gic.set_physical_timer(self.index, level);
        }
        self.arm();
    }

    /// Sets EL2's timer to whatever comes first.
    fn arm(&self) {
        let timer = match self.timer.due(self.guest_time()) {
            Due::At(time) => Some(time.saturating_add(self.vm.counter_offset())),
            Due::Now | Due::Never => None,
        };
        timer::arm(timer.into_iter().chain(self.alarm).min());
    }

    fn guest_time(&self) -> u64 {
        timer::machine_time().wrapping_sub(self.vm.counter_offset())
    }

    /// Answers an exit because of a physical interrupt, which is still pending.
    #[inline(never)]
    fn interrupted(&mut self, trap: Trap) {
        self.measure(INTERRUPT);
        self.stats.exit(INTERRUPT, self.context.pc);
        match trap {
            Trap::SError => self.vm.fail(format_args!("a physical SError was taken to EL2")),
            // Only group 0 is an FIQ, and EL2 has put every interrupt into group 1.
            Trap::Fiq => self.vm.fail(format_args!("a physical FIQ was taken to EL2")),
            Trap::Irq | Trap::Sync => {}
        }
        // It may have been withdrawn meanwhile.
        let Some(intid) = physical::acknowledge() else { return };
        physical::drop_priority(intid);
        let (devices, sources) = (self.vm.devices(), self.vm.sources());
        if intid == sources.virtual_timer {
            // It stays active until the guest ends the virtual one.
            return devices.gic.virtual_timer_fired(self.index);
        }
        if intid == sources.physical_timer {
            return devices.gic.physical_timer_fired(self.index);
        }
        if intid == sources.own_timer {
            self.own_timer();
        } else if intid == sources.uart {
            devices.serial_interrupt(self.index);
        } else if intid == KICK || intid == sources.maintenance {
            devices.gic.synchronize(self.index);
        }
        physical::deactivate(intid);
    }

    /// EL2's timer has fired.
    fn own_timer(&mut self) {
        if self.alarm.is_some_and(|alarm| alarm <= timer::machine_time()) {
            self.vm.devices().alarm_due(self.index);
            self.alarm = self.vm.devices().alarm();
        }
        self.timer_changed();
    }

    /// Handles an abort whose cause is not the content of the tables.
    fn odd_abort(&mut self, esr: u64) {
        if abort::odd(self.vm.memory(), &mut self.context, esr) {
            self.stats.external();
        }
    }

    fn call(&mut self) {
        assert!(!self.vm.panics_on_call(), "panic at the guest's first call, as the bundle asks for");
        let [a, b, c, d, ..] = self.context.x;
        if let Some(vendor) = self.vm.vendor()
            && let Some(answer) = vendor.call(self.vm, &mut self.meter, [a, b, c, d])
        {
            self.context.x[0] = answer as u64;
            return;
        }
        match psci::call(&self.vm, self.index, &[a, b, c, d]) {
            Reply::Return(value) => self.context.x[0] = value,
            Reply::Off => self.off(),
            Reply::SystemOff => self.end(End::PowerOff),
            Reply::SystemReset => self.end(End::Reset),
        }
    }

    /// Switches this CPU off.
    fn off(&mut self) -> ! {
        timer::arm(None);
        self.vm.devices().gic.stop(self.index);
        power::cpu_off()
    }

    fn end(&mut self, end: End) -> ! {
        // The instructions of this exit so far count for it.
        self.measure(read_sysreg!(ESR_EL2));
        self.observer.guest_ends(self.vm);
        self.vm.end(end)
    }
}
