// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The syndrome registers after a fault (Arm ARM DDI 0487K.a, D23.2: `ESR_ELx`, `FAR_ELx`, `HPFAR_EL2`).
//!
//! Invariant: a value that the architecture leaves UNKNOWN is always wrong here, so no code can rely on it.

use super::stage2::Stage2Fault;
use super::{Access, AccessKind, El, FaultKind, Purpose};
use crate::program::Abort;

/// The value of a register that is UNKNOWN after a fault.
pub const UNKNOWN: u64 = u64::MAX;

/// The registers of EL2 after a stage-2 fault of `access`, which an instruction at `va` made or caused.
pub fn stage2(fault: &Stage2Fault, access: Access, va: u64) -> Abort {
    let own = access.purpose == Purpose::Own;
    let s1ptw = u64::from(!own) << 7;
    // HPFAR_EL2 is valid except for permission faults of an instruction's own access.
    let known = !own || fault.kind != FaultKind::Permission;
    Abort {
        esr: lower_level(access.kind) | s1ptw | write_not_read(access) | status(fault.kind, fault.level),
        far: va,
        hpfar: if known { (fault.ipa & 0x000f_ffff_ffff_f000) >> 8 } else { UNKNOWN },
    }
}

/// The registers of EL2 after an access at `va` hit two TLB entries, of which one is a stage-2 entry.
pub fn conflict(access: Access, va: u64) -> Abort {
    const TLB_CONFLICT: u64 = 0b11_0000;
    Abort { esr: lower_level(access.kind) | write_not_read(access) | TLB_CONFLICT, far: va, hpfar: UNKNOWN }
}

/// The registers of EL1 after a stage-1 fault. There is no `HPFAR_EL1`.
pub fn stage1(kind: FaultKind, level: u8, access: Access, va: u64) -> Abort {
    let class = match access.el {
        El::El0 => lower_level(access.kind),
        El::El1 => lower_level(access.kind) | SAME_LEVEL,
    };
    Abort { esr: class | write_not_read(access) | status(kind, level), far: va, hpfar: UNKNOWN }
}

/// EC bit of an abort that is taken to the exception level it comes from.
const SAME_LEVEL: u64 = 1 << 26;

/// EC of an abort from a lower exception level, and IL, which is set where ISV is clear.
const fn lower_level(kind: AccessKind) -> u64 {
    const INSTRUCTION_ABORT: u64 = 0x20;
    const DATA_ABORT: u64 = 0x24;
    const IL: u64 = 1 << 25;
    let class = match kind {
        AccessKind::Execute => INSTRUCTION_ABORT,
        AccessKind::Read | AccessKind::Write | AccessKind::Maintenance => DATA_ABORT,
    };
    class << 26 | IL
}

/// WnR, and CM with it. For a walk's fault they say nothing: CPUs leave WnR clear even for a failed descriptor update.
const fn write_not_read(access: Access) -> u64 {
    const WNR: u64 = 1 << 6;
    const CM: u64 = 1 << 8;
    match (access.purpose, access.kind) {
        (Purpose::Own, AccessKind::Write) => WNR,
        (Purpose::Own, AccessKind::Maintenance) => CM | WNR,
        _ => 0,
    }
}

/// xFSC.
const fn status(kind: FaultKind, level: u8) -> u64 {
    (kind as u64) << 2 | level as u64
}

#[cfg(test)]
mod tests {
    use twofold_stage2::fault::{self, ipa_from_hpfar};
    use twofold_stage2::{Ipa, Level};

    use super::*;

    const KINDS: [AccessKind; 4] = [AccessKind::Read, AccessKind::Write, AccessKind::Execute, AccessKind::Maintenance];
    const PURPOSES: [Purpose; 3] = [Purpose::Own, Purpose::Stage1Walk, Purpose::Stage1Update];
    const VA: u64 = 0xffff_8000_1234_5678;
    const IPA: u64 = 0x8765_4321_0abc;

    fn access(kind: AccessKind, purpose: Purpose) -> Access {
        Access::new(kind, El::El1).with(purpose)
    }

    #[test]
    fn syndromes_spelled_out() {
        let translation = Stage2Fault { kind: FaultKind::Translation, level: 3, ipa: 0x4020_1ff8 };
        let abort = stage2(&translation, access(AccessKind::Write, Purpose::Own), VA);
        assert_eq!((abort.esr, abort.far, abort.hpfar), (0x9200_0047, VA, 0x40_2010));
        let abort = stage2(&translation, access(AccessKind::Maintenance, Purpose::Own), VA);
        assert_eq!(abort.esr, 0x9200_0147, "CM and WnR");
        let permission = Stage2Fault { kind: FaultKind::Permission, level: 2, ipa: 0x4020_1ff8 };
        let abort = stage2(&permission, access(AccessKind::Execute, Purpose::Own), VA);
        assert_eq!((abort.esr, abort.hpfar), (0x8200_000e, UNKNOWN));
        let abort = stage2(&permission, access(AccessKind::Write, Purpose::Stage1Update), VA);
        assert_eq!((abort.esr, abort.hpfar), (0x9200_008e, 0x40_2010), "S1PTW, and WnR is clear");
        assert_eq!(conflict(access(AccessKind::Write, Purpose::Own), VA).esr, 0x9200_0070);
        assert_eq!(stage1(FaultKind::AccessFlag, 1, access(AccessKind::Read, Purpose::Own), VA).esr, 0x9600_0009);
        let el0 = Access::new(AccessKind::Execute, El::El0);
        assert_eq!(stage1(FaultKind::Permission, 3, el0, VA).esr, 0x8200_000f);
    }

    /// The hypervisor decodes each syndrome to the fault it was made from.
    #[test]
    fn faults_are_read_back() {
        let mut read = 0;
        for (kind, expected) in [
            (FaultKind::Translation, fault::FaultKind::Translation),
            (FaultKind::AccessFlag, fault::FaultKind::AccessFlag),
            (FaultKind::Permission, fault::FaultKind::Permission),
        ] {
            for level in 0..=3 {
                for (access_kind, purpose) in KINDS.into_iter().flat_map(|kind| PURPOSES.map(|purpose| (kind, purpose)))
                {
                    let access = access(access_kind, purpose);
                    // Stage 2 refuses an update only for permission: any other fault would already have refused the
                    // walk's read.
                    let refused = purpose == Purpose::Stage1Update || kind != FaultKind::Permission;
                    if purpose != Purpose::Own && !refused {
                        continue;
                    }
                    let abort = stage2(&Stage2Fault { kind, level, ipa: IPA }, access, VA);
                    let fault = fault::Fault::from_syndrome(abort.esr).unwrap();
                    let meant = match (purpose, kind) {
                        (Purpose::Own, _) => access_kind,
                        (_, FaultKind::Permission) => AccessKind::Write,
                        _ => AccessKind::Read,
                    };
                    assert_eq!((fault.kind, fault.access), (expected, meant), "{abort:?}");
                    assert_eq!((fault.level, fault.stage1_walk), (Level::new(level).unwrap(), purpose != Purpose::Own));
                    let ipa = Ipa::new(IPA & !0xfff);
                    assert_eq!(ipa_from_hpfar(abort.hpfar) == ipa, fault.hpfar_is_valid(), "{abort:?}");
                    read += 1;
                }
            }
        }
        assert_eq!(read, 4 * (12 + 12 + 8));
    }

    #[test]
    fn other_aborts_are_no_faults_of_the_tables() {
        for kind in KINDS {
            let access = access(kind, Purpose::Own);
            let size = Stage2Fault { kind: FaultKind::AddressSize, level: 1, ipa: IPA };
            for abort in
                [conflict(access, VA), stage2(&size, access, VA), stage1(FaultKind::Translation, 3, access, VA)]
            {
                assert_eq!(fault::Fault::from_syndrome(abort.esr), None, "{abort:?}");
                assert_eq!(abort.far, VA);
            }
        }
    }
}
