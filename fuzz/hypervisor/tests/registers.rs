// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests the tables of control registers: no register of the architecture is missing, each is written exactly if its
//! feature exists, and registers that a guest may not use are closed.

use std::collections::BTreeSet;

use arm_sysregs::el2::fake::SystemRegisters;
use arm_sysregs::el2::registers::{CptrEl2, HcrEl2, HdfgrtrEl2, HfgitrEl2, HfgrtrEl2, HfgwtrEl2, MdcrEl2, Mpam2El2};
use twofold_fuzz_hypervisor::faked;
use twofold_fuzz_hypervisor::registers::access::Access;
use twofold_fuzz_hypervisor::registers::{self, Confinement, Cpu, el1, el2, left, shut};
use twofold_stage2::Features;

/// Returns the names of the registers of EL2, from an independent crate.
fn independent() -> BTreeSet<String> {
    let all = format!("{:?}", SystemRegisters::default());
    let words = all.split(|other: char| !other.is_ascii_alphanumeric() && other != '_');
    words.filter(|word| word.ends_with("_el2")).map(str::to_uppercase).collect()
}

#[test]
fn no_register_of_el2_is_missing() {
    let names = independent();
    assert!(names.len() > 100, "only {} names were found: {names:?}", names.len());
    let in_table = |name: &str| el2::TABLE.iter().filter(|register| register.name == name).count();
    let missing: Vec<_> = names.iter().filter(|name| in_table(name) == 0 && left::row(name).is_none()).collect();
    assert!(missing.is_empty(), "neither set nor left with a reason: {missing:?}");
    let twice: Vec<_> =
        names.iter().filter(|name| in_table(name) + usize::from(left::row(name).is_some()) > 1).collect();
    assert!(twice.is_empty(), "set twice, or set and left: {twice:?}");
}

#[test]
fn each_row_gives_a_reason() {
    for register in el2::TABLE.iter().chain(el1::TABLE) {
        assert!(register.why.len() > 10, "{}", register.name);
    }
    for left in left::LEFT {
        assert!(left.why.len() > 10 && !left.names.is_empty(), "{:?}", left.names);
    }
}

/// A register that exists with a feature: its name, its encoding, the ID register, the field's lowest bit, and the
/// field's least value with the register.
type Optional = (&'static str, &'static str, &'static str, u32, u64);

const PFR0: &str = "ID_AA64PFR0_EL1";
const PFR1: &str = "ID_AA64PFR1_EL1";
const DFR0: &str = "ID_AA64DFR0_EL1";
const MMFR0: &str = "ID_AA64MMFR0_EL1";
const MMFR1: &str = "ID_AA64MMFR1_EL1";
const MMFR3: &str = "S3_0_C0_C7_3";
const MMFR4: &str = "S3_0_C0_C7_4";

const OPTIONAL: [Optional; 37] = [
    ("HCRX_EL2", "S3_4_C1_C2_2", MMFR1, 40, 1),
    ("HFGRTR_EL2", "S3_4_C1_C1_4", MMFR0, 56, 1),
    ("HFGWTR_EL2", "S3_4_C1_C1_5", MMFR0, 56, 1),
    ("HFGITR_EL2", "S3_4_C1_C1_6", MMFR0, 56, 1),
    ("HDFGRTR_EL2", "S3_4_C3_C1_4", MMFR0, 56, 1),
    ("HDFGWTR_EL2", "S3_4_C3_C1_5", MMFR0, 56, 1),
    ("HFGRTR2_EL2", "S3_4_C3_C1_2", MMFR0, 56, 2),
    ("HFGWTR2_EL2", "S3_4_C3_C1_3", MMFR0, 56, 2),
    ("HFGITR2_EL2", "S3_4_C3_C1_7", MMFR0, 56, 2),
    ("HDFGRTR2_EL2", "S3_4_C3_C1_0", MMFR0, 56, 2),
    ("HDFGWTR2_EL2", "S3_4_C3_C1_1", MMFR0, 56, 2),
    ("BRBCR_EL2", "S2_4_C9_C0_0", DFR0, 52, 1),
    ("TRFCR_EL2", "S3_4_C1_C2_1", DFR0, 40, 1),
    ("PMSCR_EL2", "S3_4_C9_C9_0", DFR0, 32, 1),
    ("MPAM2_EL2", "S3_4_C10_C5_0", PFR0, 40, 1),
    ("MPAM2_EL2", "S3_4_C10_C5_0", PFR1, 16, 1),
    ("HACDBSBR_EL2", "S3_4_C2_C3_4", MMFR4, 12, 1),
    ("CNTPOFF_EL2", "S3_4_C14_C0_6", MMFR0, 60, 2),
    ("CNTHV_CTL_EL2", "S3_4_C14_C3_1", MMFR1, 8, 1),
    ("ICC_SRE_EL2", "S3_4_C12_C9_5", PFR0, 24, 1),
    ("ICH_HCR_EL2", "S3_4_C12_C11_0", PFR0, 24, 1),
    ("SCTLR2_EL1", "S3_0_C1_C0_3", MMFR3, 4, 1),
    ("TCR2_EL1", "S3_0_C2_C0_3", MMFR3, 0, 1),
    ("GCSCR_EL1", "S3_0_C2_C5_0", PFR1, 44, 1),
    ("GCSCRE0_EL1", "S3_0_C2_C5_2", PFR1, 44, 1),
    ("PMUSERENR_EL0", "S3_3_C9_C14_0", DFR0, 8, 1),
    ("AMUSERENR_EL0", "S3_3_C13_C2_3", PFR0, 44, 1),
    ("BRBCR_EL1", "S2_1_C9_C0_0", DFR0, 52, 1),
    ("TRFCR_EL1", "S3_0_C1_C2_1", DFR0, 40, 1),
    ("PMSCR_EL1", "S3_0_C9_C9_0", DFR0, 32, 1),
    ("PMBLIMITR_EL1", "S3_0_C9_C10_0", DFR0, 32, 1),
    ("TRBLIMITR_EL1", "S3_0_C9_C11_0", DFR0, 44, 1),
    ("MPAM1_EL1", "S3_0_C10_C5_0", PFR0, 40, 1),
    ("MPAM1_EL1", "S3_0_C10_C5_0", PFR1, 16, 1),
    ("MPAM0_EL1", "S3_0_C10_C5_1", PFR0, 40, 1),
    ("MPAM0_EL1", "S3_0_C10_C5_1", PFR1, 16, 1),
    ("LORC_EL1", "S3_0_C10_C4_3", MMFR1, 16, 1),
];

/// The offset of the guest's counters.
const OFFSET: u64 = 0x12_3456_789a;

/// Sets the tables' registers on a CPU with these ID registers; returns the writes.
fn written(ids: &[(&'static str, u64)]) -> Vec<(&'static str, u64)> {
    for (name, value) in ids {
        faked::set(name, *value);
    }
    faked::take_written();
    let hcr = registers::hcr(&Features::NONE);
    let guest = Confinement { hcr, vtcr: 0x8002_3559, vttbr: 0x1_0000_4123_4000, counter_offset: OFFSET };
    // SAFETY: the registers are faked.
    unsafe { registers::set_for(&guest) };
    for (name, _) in ids {
        faked::set(name, 0);
    }
    faked::take_written()
}

fn value(written: &[(&'static str, u64)], encoding: &str) -> Option<u64> {
    written.iter().find(|(name, _)| *name == encoding).map(|(_, value)| *value)
}

#[test]
fn an_optional_register_is_written_where_it_exists_alone() {
    let none = written(&[]);
    for (name, encoding, id, low, first) in OPTIONAL {
        assert_eq!(value(&none, encoding), None, "{name} without its feature");
        for field in 1..16 {
            // PMUVer 0xf is not an architected PMU.
            let exists = field >= first && !(id == DFR0 && low == 8 && field == 15);
            let with = written(&[(id, field << low)]);
            assert_eq!(value(&with, encoding).is_some(), exists, "{name} where {id} has {field} at bit {low}");
        }
    }
}

#[test]
fn the_list_above_has_each_optional_register() {
    let none: BTreeSet<_> = written(&[]).into_iter().map(|(name, _)| name).collect();
    // HAFGRTR_EL2 needs two features, and MPAMHCR_EL2 depends on a third ID register.
    let elsewhere = ["HAFGRTR_EL2", "MPAMHCR_EL2"];
    for register in el2::TABLE.iter().chain(el1::TABLE) {
        let listed = OPTIONAL.iter().find(|(name, ..)| *name == register.name);
        let is_optional = !(register.exists)(&registers::Cpu::default());
        assert_eq!(is_optional, listed.is_some() || elsewhere.contains(&register.name), "{}", register.name);
        assert!(listed.is_none_or(|(_, encoding, ..)| !none.contains(encoding)), "{}", register.name);
    }
}

#[test]
fn buffers_that_el3_has_are_left_alone() {
    const OWNED: u64 = 1 << 4;
    let spe = (DFR0, 1 << 32);
    let trbe = (DFR0, 1 << 44);
    assert_eq!(value(&written(&[spe, ("S3_0_C9_C10_7", OWNED)]), "S3_4_C9_C9_0"), None);
    assert_eq!(value(&written(&[trbe, ("S3_0_C9_C11_7", OWNED)]), "S3_0_C9_C11_0"), None);
    // The neighbouring bits do not concern the owner.
    assert_eq!(value(&written(&[spe, ("S3_0_C9_C10_7", !OWNED)]), "S3_4_C9_C9_0"), Some(0));
    assert_eq!(value(&written(&[trbe, ("S3_0_C9_C11_7", !OWNED)]), "S3_0_C9_C11_0"), Some(0));
}

#[test]
fn activity_monitors_with_fine_grained_traps() {
    let both = written(&[(PFR0, 1 << 44), (MMFR0, 1 << 56)]);
    assert_eq!(value(&both, "S3_4_C3_C1_6"), Some(0));
    assert_eq!(value(&written(&[(PFR0, 1 << 44)]), "S3_4_C3_C1_6"), None);
    assert_eq!(value(&written(&[(MMFR0, 1 << 56)]), "S3_4_C3_C1_6"), None);
}

#[test]
fn stage_2_and_the_counter_are_set_on_every_cpu() {
    let none = written(&[]);
    let hcr = HcrEl2::from_bits_retain(value(&none, "S3_4_C1_C1_0").unwrap());
    let needed = HcrEl2::VM | HcrEl2::SWIO | HcrEl2::TSC | HcrEl2::TIDCP | HcrEl2::RW | HcrEl2::IMO | HcrEl2::FMO;
    assert!(hcr.contains(needed), "{hcr:?} lacks {:?}", needed - hcr);
    assert!(!hcr.intersects(HcrEl2::E2H | HcrEl2::TGE | HcrEl2::AMO | HcrEl2::HCD), "{hcr:?}");
    assert_eq!(value(&none, "S3_4_C2_C1_2"), Some(0x8002_3559), "VTCR_EL2");
    assert_eq!(value(&none, "S3_4_C2_C1_0"), Some(0x1_0000_4123_4000), "VTTBR_EL2");
    assert_eq!(value(&none, "S3_4_C14_C0_3"), Some(OFFSET), "CNTVOFF_EL2");
}

/// Without an offset the physical counter and timer trap. With one, they have that of the virtual ones.
#[test]
fn no_counter_shows_the_machines_time() {
    assert_eq!(value(&written(&[]), "S3_4_C14_C1_0"), Some(0), "CNTHCTL_EL2");
    let with = written(&[(MMFR0, 2 << 60)]);
    assert_eq!(value(&with, "S3_4_C14_C1_0"), Some(1 << 12 | 1 << 1 | 1), "CNTHCTL_EL2");
    assert_eq!(value(&with, "S3_4_C14_C0_6"), Some(OFFSET), "CNTPOFF_EL2");
}

#[test]
fn an_offset_that_the_cpu_ignores_is_none() {
    let offset = Cpu { id_aa64mmfr0: 2 << 60, ..Cpu::default() };
    assert!(offset.has_physical_offset());
    assert!(!Cpu { ignores_offset: true, ..offset }.has_physical_offset());
}

#[test]
fn what_belongs_to_the_machine_is_trapped() {
    let hcr = |ids| HcrEl2::from_bits_retain(value(&written(ids), "S3_4_C1_C1_0").unwrap());
    assert!(!hcr(&[]).intersects(HcrEl2::TERR | HcrEl2::TLOR | HcrEl2::TID1 | HcrEl2::TID5));
    assert_eq!(hcr(&[(PFR0, 1 << 28)]) - hcr(&[]), HcrEl2::TERR, "error records");
    assert_eq!(hcr(&[(MMFR1, 1 << 16)]) - hcr(&[]), HcrEl2::TLOR, "LORegions");
    assert_eq!(hcr(&[(PFR1, 1 << 24)]) - hcr(&[]), HcrEl2::TID1, "SMIDR_EL1");
    assert_eq!(hcr(&[(PFR1, 2 << 8)]) - hcr(&[]), HcrEl2::TID5, "GMID_EL1");
    assert_eq!(hcr(&[(PFR1, 1 << 8)]), hcr(&[]), "FEAT_MTE has no GMID_EL1");

    const TTA: CptrEl2 = CptrEl2::from_bits_retain(1 << 20);
    let cptr = |ids| CptrEl2::from_bits_retain(value(&written(ids), "S3_4_C1_C1_2").unwrap());
    assert_eq!(cptr(&[]).bits(), 0x33ff, "SVE, SME and what is RES1");
    assert_eq!(cptr(&[(PFR0, 1 << 32), (PFR1, 1 << 24)]).bits(), 0x33ff, "SVE and SME trap");
    assert_eq!(cptr(&[(PFR0, 1 << 44)]) - cptr(&[]), CptrEl2::TAM, "activity monitors");
    assert_eq!(cptr(&[(DFR0, 1 << 4)]) - cptr(&[]), TTA, "the trace unit");

    let mdcr = |ids| MdcrEl2::from_bits_retain(value(&written(ids), "S3_4_C1_C1_1").unwrap());
    assert_eq!(mdcr(&[]).bits(), 0);
    assert_eq!(
        mdcr(&[(DFR0, 6 << 8), ("PMCR_EL0", 6 << 11)]),
        MdcrEl2::HPMD | MdcrEl2::HCCD | MdcrEl2::TPM | MdcrEl2::TPMCR | MdcrEl2::from_bits_retain(6)
    );
    for counters in [1, 31] {
        // The bits around PMCR_EL0.N are of other fields.
        let pmcr = !(0x1f << 11) | counters << 11;
        let written = written(&[(DFR0, 1 << 8), ("PMCR_EL0", pmcr)]);
        assert_eq!(value(&written, "S3_4_C1_C1_1").unwrap() & 0x1f, counters);
    }
    assert_eq!(mdcr(&[(DFR0, 1 << 32)]), MdcrEl2::TPMS, "profiling");
    assert_eq!(mdcr(&[(DFR0, 1 << 40)]), MdcrEl2::TTRF, "trace filters");

    let mpam = |idr| written(&[(PFR0, 1 << 40), ("S3_0_C10_C4_4", idr)]);
    let mpam2 = |idr| Mpam2El2::from_bits_retain(value(&mpam(idr), "S3_4_C10_C5_0").unwrap());
    assert_eq!(mpam2(0), Mpam2El2::TRAPMPAM0EL1 | Mpam2El2::TRAPMPAM1EL1);
    assert_eq!(mpam2(1 << 59), mpam2(0), "a neighbour of MPAMIDR_EL1.HAS_TIDR");
    assert_eq!(mpam2(1 << 58), Mpam2El2::TRAPMPAM0EL1 | Mpam2El2::TRAPMPAM1EL1 | Mpam2El2::TIDR);
    assert_eq!(value(&mpam(0), "S3_4_C10_C4_0"), None, "MPAMHCR_EL2");
    assert_eq!(value(&mpam(1 << 17), "S3_4_C10_C4_0"), Some(1 << 31), "MPAMHCR_EL2");
}

/// A bit whose name begins with N traps if it is clear; any other bit traps if it is set.
#[test]
fn fine_grained_traps_are_open_but_for_what_is_hidden() {
    let fgt = written(&[(MMFR0, 1 << 56)]);
    let of = |encoding| value(&fgt, encoding).unwrap();
    const HIDDEN: [&str; 15] = [
        "NACCDATA_EL1",
        "NGCS_EL0",
        "NGCS_EL1",
        "NSMPRI_EL1",
        "NTPIDR2_EL0",
        "NRCWMASK_EL1",
        "NS2POR_EL1",
        "NMAIR2_EL1",
        "NAMAIR2_EL1",
        "NGCSPUSHM_EL1",
        "NGCSSTR_EL1",
        "NGCSEPP",
        "NBRBINJ",
        "NBRBIALL",
        "NPMSNEVFR_EL1",
    ];
    macro_rules! check {
        ($type:ident, $encoding:literal) => {
            for (name, bit) in $type::all().iter_names() {
                let is_open = (of($encoding) & bit.bits() != 0) == name.starts_with('N');
                let is_hidden = name.contains("BRB") || HIDDEN.contains(&name);
                assert_eq!(is_open, !is_hidden, "{name} of {}", stringify!($type));
            }
        };
    }
    check!(HfgrtrEl2, "S3_4_C1_C1_4");
    check!(HfgwtrEl2, "S3_4_C1_C1_5");
    check!(HfgitrEl2, "S3_4_C1_C1_6");
    check!(HdfgrtrEl2, "S3_4_C3_C1_4");
}

#[test]
fn what_a_later_feature_opens_is_open_where_the_guest_sees_it() {
    let hcrx = |ids| value(&written(ids), "S3_4_C1_C2_2");
    // MSCEn, TCR2En, SCTLR2En; TALLINT closes FEAT_NMI.
    let open = 1 << 11 | 1 << 14 | 1 << 15;
    assert_eq!(hcrx(&[(MMFR1, 1 << 40)]), Some(open));
    assert_eq!(hcrx(&[(MMFR1, 1 << 40), (PFR1, 1 << 36)]), Some(open | 1 << 6));
}

/// Returns the syndrome of an MRS or MSR with Rt = 5.
fn syndrome([op0, op1, crn, crm, op2]: [u64; 5], is_read: bool) -> u64 {
    0x18 << 26 | 1 << 25 | op0 << 20 | op2 << 17 | op1 << 14 | crn << 10 | 5 << 5 | crm << 1 | u64::from(is_read)
}

#[test]
fn an_access_is_read_from_its_syndrome() {
    let encoding = [3, 1, 9, 12, 5];
    assert_eq!(Access::from_syndrome(syndrome(encoding, true)), Access { encoding, rt: 5, is_read: true });
    assert_eq!(Access::from_syndrome(syndrome(encoding, false) | 31 << 5), Access { encoding, rt: 31, is_read: false });
    assert_eq!(Access { encoding, rt: 0, is_read: true }.number(), 0b11 << 14 | 1 << 11 | 9 << 7 | 12 << 3 | 5);
}

fn answered(encoding: [u64; 5], is_read: bool) -> Option<[u64; 31]> {
    let mut x = [7; 31];
    let answered = shut::answer(&Access { encoding, rt: 5, is_read }, &mut x);
    assert!(answered || x == [7; 31], "{encoding:?} changed a register");
    answered.then_some(x)
}

#[test]
fn error_records_read_as_zero() {
    for encoding in [[3, 0, 5, 3, 0], [3, 0, 5, 4, 1], [3, 0, 5, 5, 7]] {
        let mut zero = [7; 31];
        zero[5] = 0;
        assert_eq!(answered(encoding, true), Some(zero), "a read of {encoding:?}");
        assert_eq!(answered(encoding, false), Some([7; 31]), "a write of {encoding:?}");
        assert!(shut::answer(&Access { encoding, rt: 31, is_read: true }, &mut [1; 31]), "a read into XZR");
    }
}

#[test]
fn two_id_registers_that_trap_with_another_are_the_cpus() {
    faked::set("REVIDR_EL1", 0x11);
    faked::set("AIDR_EL1", 0x22);
    assert_eq!(answered([3, 0, 0, 0, 6], true).map(|x| x[5]), Some(0x11));
    assert_eq!(answered([3, 1, 0, 0, 7], true).map(|x| x[5]), Some(0x22));
    assert_eq!(answered([3, 0, 0, 0, 6], false), None, "REVIDR_EL1 is read-only");
    assert_eq!(answered([3, 1, 0, 0, 7], false), None, "AIDR_EL1 is read-only");
    faked::reset();
}

#[test]
fn what_is_hidden_is_left_to_the_caller() {
    let others = [
        [3, 3, 9, 12, 0], // PMCR_EL0
        [3, 3, 14, 8, 0], // PMEVCNTR0_EL0
        [3, 0, 9, 9, 0],  // PMSCR_EL1
        [3, 0, 9, 11, 0], // TRBLIMITR_EL1
        [3, 0, 10, 4, 7], // LORID_EL1
        [3, 0, 10, 4, 4], // MPAMIDR_EL1
        [3, 0, 10, 5, 0], // MPAM1_EL1
        [3, 3, 13, 2, 0], // AMCR_EL0
        [3, 0, 1, 2, 1],  // TRFCR_EL1
        [2, 1, 0, 0, 0],  // TRCTRACEIDR
        [2, 1, 9, 2, 0],  // BRBIDR0_EL1
        [3, 0, 1, 0, 6],  // GCR_EL1
        [3, 1, 0, 0, 6],  // SMIDR_EL1
        [3, 1, 0, 0, 4],  // GMID_EL1
        [3, 1, 15, 2, 0], // IMPLEMENTATION DEFINED
        [3, 4, 1, 1, 0],  // HCR_EL2
        [3, 0, 1, 0, 0],  // SCTLR_EL1
        [3, 0, 5, 2, 0],  // ESR_EL1
        [3, 0, 5, 6, 0],  // TFSR_EL1
        [3, 3, 13, 0, 2], // TPIDR_EL0
        [1, 0, 7, 14, 2], // DC CISW
    ];
    for encoding in others {
        assert_eq!(answered(encoding, true), None, "{encoding:?}");
        assert_eq!(answered(encoding, false), None, "{encoding:?}");
    }
}

/// Arm ARM DDI 0487K.a, D23.2, HCR_EL2: VM, SWIO, FMO, IMO, TID3, TSC, TIDCP, RW, APK, API, EnSCXT; not ATA. FWB if the
/// tables rely on it.
#[test]
fn the_controls_that_confine_a_guest_are_these_bits() {
    let bits = [0, 1, 3, 4, 18, 19, 20, 31, 40, 41, 53].iter().fold(0, |all, bit| all | 1u64 << bit);
    assert_eq!(registers::hcr(&Features::NONE), bits);
    assert_eq!(registers::hcr(&Features::NONE.with_forced_write_back(true)), bits | 1 << 46);
}

/// A register that no ID register announces is undefined: a read would end EL2.
#[test]
fn what_a_cpu_does_not_have_is_not_read() {
    let optional = ["PMCR_EL0", "S3_0_C9_C10_7", "S3_0_C9_C11_7", "S3_0_C10_C4_4"];
    faked::reset();
    optional.iter().for_each(|name| faked::set(name, 7));
    let read = || {
        let cpu = registers::Cpu::read();
        [cpu.pmcr, cpu.pmbidr, cpu.trbidr, cpu.mpamidr]
    };
    assert_eq!(read(), [0; 4]);
    for (at, (id, field)) in [(DFR0, 8), (DFR0, 32), (DFR0, 44), (PFR0, 40)].into_iter().enumerate() {
        faked::set(id, 1 << field);
        let mut expected = [0; 4];
        expected[at] = 7;
        assert_eq!(read(), expected, "{}", optional[at]);
        faked::set(id, 0);
    }
    faked::reset();
}

#[test]
fn a_row_of_many_registers_has_those_with_a_number() {
    let many = left::LEFT.iter().flat_map(|left| left.names).find(|name| name.contains('n')).unwrap();
    assert!(left::row(&many.replace('n', "0")).is_some() && left::row(&many.replace('n', "15")).is_some(), "{many}");
    for other in ["", "x", "1x", "-1"] {
        assert!(left::row(&many.replace('n', other)).is_none(), "{many} with {other:?}");
    }
}
