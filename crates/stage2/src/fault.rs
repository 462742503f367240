// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A stage-2 fault, decoded from the syndrome (Arm ARM DDI 0487K.a, D23.2, `ESR_EL2`).

use crate::{Ipa, Level};

/// A stage-2 fault, without its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The cause.
    pub kind: FaultKind,
    /// The guest's access.
    pub access: AccessKind,
    /// The level of the entry that stopped the walk; L0 for level -1.
    pub level: Level,
    /// Whether it happened while hardware walked the guest's own tables.
    pub stage1_walk: bool,
}

/// The kinds of fault that a stage-2 walk ends with. The numbers are the syndrome's (xFSC\[5:2\]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// Nothing is mapped.
    Translation = 1,
    /// The access flag is clear, and hardware does not set it.
    AccessFlag = 2,
    /// The entry does not allow the access.
    Permission = 3,
}

/// The kinds of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// A load.
    Read,
    /// A store, or hardware updating the guest's own tables.
    Write,
    /// An instruction fetch.
    Execute,
    /// Cache maintenance by address, for example `DC CIVAC` or `IC IVAU`. It changes no memory, though the syndrome
    /// reports a write.
    Maintenance,
}

impl Fault {
    /// Decodes `ESR_EL2`. Returns `None` if it is no translation, permission or access flag fault from a lower
    /// exception level.
    pub const fn from_syndrome(esr: u64) -> Option<Self> {
        const INSTRUCTION_ABORT: u64 = 0x20;
        const DATA_ABORT: u64 = 0x24;
        let execute = match esr >> 26 & 0x3f {
            INSTRUCTION_ABORT => true,
            DATA_ABORT => false,
            _ => return None,
        };
        let (kind, level) = match (esr >> 2 & 0xf, esr & 0x3f) {
            (0b0001, _) => (FaultKind::Translation, Level::new((esr & 3) as u8)),
            (0b0010, _) => (FaultKind::AccessFlag, Level::new((esr & 3) as u8)),
            (0b0011, _) => (FaultKind::Permission, Level::new((esr & 3) as u8)),
            (_, TRANSLATION_AT_MINUS_1) => (FaultKind::Translation, Some(Level::L0)),
            _ => return None,
        };
        let Some(level) = level else { return None };
        let stage1_walk = esr >> 7 & 1 == 1;
        let access = if execute && !stage1_walk {
            AccessKind::Execute
        } else if stage1_walk && matches!(kind, FaultKind::Permission) {
            // A walk needs write permission only to update an entry, and WnR does not report that. If this were a read,
            // the guest would fault here for ever.
            AccessKind::Write
        } else {
            ACCESS[(esr >> 6 & 0b111) as usize]
        };
        Some(Self { kind, access, level, stage1_walk })
    }

    /// Whether `HPFAR_EL2` holds the address. On a permission fault outside a stage-1 walk it is UNKNOWN: then
    /// translate `FAR_EL2` with `AT S1E1R`, and use [`ipa_from_par`].
    pub const fn hpfar_is_valid(&self) -> bool {
        self.stage1_walk || !matches!(self.kind, FaultKind::Permission)
    }
}

/// A translation fault at level -1, which FEAT_LPA2 has (Arm ARM DDI 0487K.a, D8.2.4). No stage 2 here begins there, but a
/// guest's stage 1 may: for a fault on the walk of its root table QEMU 7.2 reports the level of stage 1.
const TRANSLATION_AT_MINUS_1: u64 = 0b10_1011;

/// The access for bits 8 to 6 of a data abort's syndrome: CM, S1PTW and WnR. CM means maintenance; WnR is 1 then, and
/// does not count. `DC ZVA`, which writes, has CM clear. An AT instruction sets CM too, but its stage-2 fault is one of
/// the walk of the guest's tables.
const ACCESS: [AccessKind; 8] = {
    use AccessKind::{Maintenance, Read, Write};
    [Read, Write, Read, Read, Maintenance, Maintenance, Read, Read]
};

/// The faulting page's address from `HPFAR_EL2`: FIPA is IPA\[51:12\] in bits 43 to 4.
pub const fn ipa_from_hpfar(hpfar: u64) -> Ipa {
    Ipa::new((hpfar >> 4 & 0xff_ffff_ffff) << 12)
}

/// The faulting page's address from `PAR_EL1` after `AT S1E1R`; `None` if the translation failed.
///
/// If the guest has changed its tables since the fault, the translation fails, and the guest has to repeat its access.
/// After a permission fault (FST 0b0011LL) the guest would repeat it for ever: EL1 may not read the page (FEAT_S1PIE or
/// FEAT_GCS). Then use `AT S1E1A`, or walk the guest's stage 1 in software. An external abort on the walk is reported
/// in no register: the AT instruction itself takes the exception.
pub const fn ipa_from_par(par: u64) -> Option<Ipa> {
    if par & 1 == 1 { None } else { Some(Ipa::new(par & 0x000f_ffff_ffff_f000)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IL: u64 = 1 << 25;

    fn decode(class: u64, status: u64, bits: u64) -> Option<Fault> {
        Fault::from_syndrome(class << 26 | IL | bits | status)
    }

    #[test]
    fn kinds_and_levels() {
        let fault = decode(0x24, 0x07, 0).unwrap();
        assert_eq!((fault.kind, fault.access, fault.level), (FaultKind::Translation, AccessKind::Read, Level::L3));
        let fault = decode(0x24, 0x0e, 1 << 6).unwrap();
        assert_eq!((fault.kind, fault.access, fault.level), (FaultKind::Permission, AccessKind::Write, Level::L2));
        let fault = decode(0x20, 0x09, 0).unwrap();
        assert_eq!((fault.kind, fault.access, fault.level), (FaultKind::AccessFlag, AccessKind::Execute, Level::L1));
    }

    #[test]
    fn a_root_table_of_five_levels_may_be_absent() {
        let fault = decode(0x20, 0x2b, 1 << 7).unwrap();
        assert_eq!((fault.kind, fault.access, fault.level), (FaultKind::Translation, AccessKind::Read, Level::L0));
        for other in [0x29, 0x2a, 0x2c, 0x23] {
            assert_eq!(decode(0x20, other, 1 << 7), None, "{other:#x}");
        }
    }

    #[test]
    fn a_walk_that_was_refused_permission_is_a_write() {
        let s1ptw = 1 << 7;
        assert_eq!(decode(0x24, 0x0f, s1ptw).unwrap().access, AccessKind::Write);
        assert_eq!(decode(0x20, 0x0f, s1ptw).unwrap().access, AccessKind::Write);
        assert_eq!(decode(0x24, 0x07, s1ptw).unwrap().access, AccessKind::Read);
    }

    #[test]
    fn cache_maintenance_is_no_write() {
        const CM_AND_WNR: u64 = 1 << 8 | 1 << 6;
        assert_eq!(decode(0x24, 0x07, CM_AND_WNR).unwrap().access, AccessKind::Maintenance);
        assert_eq!(decode(0x24, 0x0f, CM_AND_WNR).unwrap().access, AccessKind::Maintenance);
        assert_eq!(decode(0x24, 0x07, 1 << 6).unwrap().access, AccessKind::Write, "DC ZVA");
        // `AT S1E1R`: its walk took a translation fault.
        assert_eq!(decode(0x24, 0x07, CM_AND_WNR | 1 << 7).unwrap().access, AccessKind::Read);
        // Bit 8 of an instruction abort is reserved.
        assert_eq!(decode(0x20, 0x07, 1 << 8).unwrap().access, AccessKind::Execute);
    }

    #[test]
    fn other_exceptions_are_none() {
        assert_eq!(decode(0x16, 0x07, 0), None, "HVC");
        assert_eq!(decode(0x24, 0x10, 0), None, "external abort");
        assert_eq!(decode(0x24, 0x00, 0), None, "address size");
        assert_eq!(decode(0x24, 0x30, 0), None, "TLB conflict");
        assert_eq!(decode(0x25, 0x07, 0), None, "data abort of the hypervisor itself");
    }

    #[test]
    fn where_the_address_is() {
        assert!(decode(0x24, 0x07, 0).unwrap().hpfar_is_valid());
        assert!(!decode(0x24, 0x0f, 0).unwrap().hpfar_is_valid());
        assert!(decode(0x24, 0x0f, 1 << 7).unwrap().hpfar_is_valid());
        assert_eq!(ipa_from_hpfar(0x40201 << 4), Ipa::new(0x4020_1000));
        assert_eq!(ipa_from_par(0xff00_0000_4020_1b80), Some(Ipa::new(0x4020_1000)));
        assert_eq!(ipa_from_par(0x40201001), None);
    }

    /// Bits beside a field do not change its value.
    #[test]
    fn fields_keep_apart_from_their_neighbours() {
        // ISS2 is above the exception class, and IL is below it.
        const ISS2: u64 = 0x1f << 32;
        assert_eq!(decode(0x24, 0x07, ISS2).map(|fault| fault.kind), Some(FaultKind::Translation));
        assert_eq!(decode(0x24, 0x07, 1 << 5), None, "bit 5 belongs to the status");
        let write = decode(0x24, 0x2b, 1 << 6).map(|fault| (fault.kind, fault.access, fault.level));
        assert_eq!(write, Some((FaultKind::Translation, AccessKind::Write, Level::L0)), "bit 6 is WnR");
        assert_eq!(decode(0x24, 0x07, 1 << 9).map(|fault| fault.access), Some(AccessKind::Read), "bit 9 is EA");
        // HPFAR_EL2: NS is bit 63, and bits 62 to 44 are reserved.
        assert_eq!(ipa_from_hpfar(0xffff_f000_0000_000f), Ipa::new(0));
        assert_eq!(ipa_from_hpfar(0x0000_0fff_ffff_fff0), Ipa::new(0x000f_ffff_ffff_f000));
        // PAR_EL1: attributes above the address, shareability and more below it.
        assert_eq!(ipa_from_par(0xfff0_0000_0000_0ffe), Some(Ipa::new(0)));
        assert_eq!(ipa_from_par(0x000f_ffff_ffff_f000), Some(Ipa::new(0x000f_ffff_ffff_f000)));
    }
}
