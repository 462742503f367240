// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loop of a vCPU: enter, exit, answer, enter again.
//!
//! Each vCPU has its own CPU. The memory decides the answer to a stage-2 fault ([`GuestMemory::fault`]); this module
//! reads the fault from the registers, and carries the answer out.
//!
//! [`GuestMemory::fault`]: twofold_memory::GuestMemory::fault

use core::mem::needs_drop;

use twofold_memory::{Answer, Done, GuestFault};
use twofold_stage2::Ipa;
use twofold_stage2::fault::{AccessKind, Fault, ipa_from_hpfar};
use twofold_vmm::psci::{self, Reply};

use crate::abort::{self, Located};
use crate::experiment::{ExitObserver, Observer};
use crate::pmu::Counter;
use crate::registers::access::Access;
use crate::registers::shut;
use crate::stats::{Meter, Purpose, Stats};
use crate::vm::{End, Vm};
use crate::world::{self, Context, Trap};
use crate::{inject, power, read_sysreg};

/// Runs vCPU `index` from `entry` on this CPU, until it is switched off.
pub fn run(vm: &'static Vm, index: usize, entry: u64, argument: u64) -> ! {
    vm.confine_this_cpu();
    // SAFETY: the CPU was just set up; no other vCPU runs on it.
    let counter = if vm.counts_instructions() { unsafe { Counter::start() } } else { None };
    let mut vcpu = Vcpu {
        vm,
        index,
        context: Context::new(entry, argument),
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
        let esr = read_sysreg!(ESR_EL2);
        self.measure(esr);
        self.stats.exit(esr, self.context.pc);
        assert!(trap == Trap::Sync, "a physical {trap:?} was taken to EL2, although all interrupts are the guest's");
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
            Reply::Off => power::cpu_off(),
            Reply::SystemOff => self.end(End::PowerOff),
            Reply::SystemReset => self.end(End::Reset),
        }
    }

    fn end(&mut self, end: End) -> ! {
        // The instructions of this exit so far count for it.
        self.measure(read_sysreg!(ESR_EL2));
        self.observer.guest_ends(self.vm);
        self.vm.end(end)
    }
}
