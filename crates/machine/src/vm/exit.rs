// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The handling of a guest's exits: the hypervisor's part, as in `crates/hypervisor` (`vcpu`, `inject`).

use twofold_memory::async_fault::AbsentPage;
use twofold_memory::{Answer, Done, Error, GuestFault};
use twofold_stage2::Platform;
use twofold_stage2::fault::{AccessKind, Fault, ipa_from_hpfar, ipa_from_par};

use super::{Cpu, InGuest, Left, RunError, Vcpu, Vm, WriteFaults};
use crate::interrupts::Woken;
use crate::program::{Abort, Ended, Exit, Program};

impl<H: Platform> Vm<H> {
    /// Handles exits until one is for the caller.
    pub(super) fn exits<C: Cpu<Host = H>, P: Program>(
        &self,
        cpu: &C,
        guest: &mut C::Entered<'_>,
        vcpu: &mut Vcpu<P>,
        mut call: impl FnMut([u64; 4]) -> u64,
    ) -> Result<Left, RunError> {
        loop {
            match guest.run(&mut vcpu.program) {
                Ok(Ended) => return Ok(Left::Ended),
                Err(Exit::Abort(abort)) => self.abort(guest, &abort, &vcpu.write_faults)?,
                Err(Exit::Stage1(abort)) => return Ok(Left::Fault(abort)),
                Err(Exit::Hypercall(arguments)) => guest.answer(call(arguments)),
                Err(Exit::WaitForInterrupt) => match cpu.wait(vcpu.interrupts()) {
                    Woken::Pending => {}
                    Woken::Kicked => return Ok(Left::Kicked),
                },
                Err(Exit::Kicked) => return Ok(Left::Kicked),
            }
        }
    }

    fn abort(&self, guest: &mut impl InGuest, abort: &Abort, counted: &WriteFaults) -> Result<(), RunError> {
        let Some(fault) = stage2_fault(guest, abort) else {
            self.odd_abort(guest, abort);
            return Ok(());
        };
        let Some(fault) = fault else { return Ok(()) };
        let answer = self.memory.fault(&fault);
        match answer.map_err(|error| RunError::Memory { fault, error })? {
            Answer::Retry(Done::Mapped { .. } | Done::Widened | Done::WidenedAround)
                if fault.access == AccessKind::Write =>
            {
                counted.add()
            }
            Answer::Retry(_) => {}
            Answer::Skip => guest.skip(),
            Answer::ExternalAbort => guest.raise(external(abort)),
            Answer::Absent => {
                let page = AbsentPage::of(&fault).page;
                return Err(RunError::Memory { fault, error: Error::Absent { page, done: 0 } });
            }
        }
        Ok(())
    }

    /// Handles an abort that no descriptor caused.
    fn odd_abort(&self, guest: &mut impl InGuest, abort: &Abort) {
        const TLB_CONFLICT: u64 = 0b11_0000;
        if abort.esr & STATUS == TLB_CONFLICT {
            self.memory.stage2().invalidate_all();
        } else {
            // The bus refused, or the address is too wide: the guest gets an external abort.
            guest.raise(external(abort));
        }
    }
}

/// The guest's fault that this abort reports; `None` if no descriptor caused it. If the guest changed its stage-1 tables
/// meanwhile, the fault has no IPA (`Some(None)`), and the guest repeats the access.
pub(crate) fn stage2_fault(guest: &mut impl InGuest, abort: &Abort) -> Option<Option<GuestFault>> {
    let fault = Fault::from_syndrome(abort.esr)?;
    let ipa = if fault.hpfar_is_valid() {
        Some(ipa_from_hpfar(abort.hpfar))
    } else {
        ipa_from_par(guest.translate_stage1(abort.far))
    };
    Some(ipa.map(|ipa| GuestFault { ipa, kind: fault.kind, access: fault.access }))
}

/// xFSC.
const STATUS: u64 = 0x3f;

/// The synchronous external abort that EL1 takes in place of this abort, which EL2 took for an access by EL1 (Arm ARM
/// DDI 0487K.a, D1.3 and D23.2).
fn external(abort: &Abort) -> Abort {
    const SYNCHRONOUS_EXTERNAL: u64 = 0b01_0000;
    const WRITE_OR_MAINTENANCE: u64 = 1 << 6 | 1 << 8;
    const LONG_INSTRUCTION: u64 = 1 << 25;
    const INSTRUCTION_ABORT: u64 = 0x20;
    const UNKNOWN: u64 = u64::MAX;
    let class = abort.esr >> 26 & 0x3f;
    let write = if class == INSTRUCTION_ABORT { 0 } else { abort.esr & WRITE_OR_MAINTENANCE };
    // The exception class for an abort without a change of exception level is one more.
    let esr = (class + 1) << 26 | LONG_INSTRUCTION | write | SYNCHRONOUS_EXTERNAL;
    Abort { esr, far: abort.far, hpfar: UNKNOWN }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_external_abort_is_taken_by_el1_from_el1() {
        let taken = |esr| external(&Abort { esr, far: 0x1234, hpfar: 0x40_2010 });
        assert_eq!(taken(0x9200_0047).esr, 0x9600_0050, "a write");
        assert_eq!(taken(0x9200_0007).esr, 0x9600_0010, "a read");
        assert_eq!(taken(0x9200_014f).esr, 0x9600_0150, "cache maintenance");
        assert_eq!(taken(0x8200_000f).esr, 0x8600_0010, "a fetch");
        assert_eq!(taken(0x9200_0007).far, 0x1234);
    }
}
