// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests that an exception that EL2 injects is the one that hardware would take (Arm ARM DDI 0487K.a, D1.3), also with
//! features that QEMU lacks.

use twofold_fuzz_hypervisor::context::Context;
use twofold_fuzz_hypervisor::faked::{read, reset, set};
use twofold_fuzz_hypervisor::inject;

const PC: u64 = 0xffff_8000_1234_5678;
const FAR: u64 = 0xffff_8000_8765_4321;
const VBAR: u64 = 0xffff_8000_0001_0800;

/// Values of PSTATE.M.
const EL1T: u64 = 0b0_0100;
const EL1H: u64 = 0b0_0101;
const EL0: u64 = 0b0_0000;
const EL0_AARCH32: u64 = 0b1_0000;

const FLAGS: u64 = 0xf << 28;
const TCO: u64 = 1 << 25;
const DIT: u64 = 1 << 24;
const PAN: u64 = 1 << 22;
const ALLINT: u64 = 1 << 13;
const SSBS: u64 = 1 << 12;
const EXLOCK: u64 = 1 << 34;
/// EL1 with SP_EL1, D, A, I and F set.
const HANDLER: u64 = 0x3c5;

/// Syndromes.
const DATA_ABORT: u64 = 0x24 << 26 | LONG;
const INSTRUCTION_ABORT: u64 = 0x20 << 26 | LONG;
const LONG: u64 = 1 << 25;
const FNV: u64 = 1 << 10;
const WALK: u64 = 1 << 7;
const WRITE: u64 = 1 << 6;
const EXTERNAL: u64 = 0x10;
const TRANSLATION_FAULT_3: u64 = 0x07;

/// Features and controls.
const NMI: (&str, u64) = ("ID_AA64PFR1_EL1", 1 << 36);
const GCS: (&str, u64) = ("ID_AA64PFR1_EL1", 1 << 44);
const DOUBLE_FAULT_2: (&str, u64) = ("ID_AA64PFR1_EL1", 1 << 56);
const HAS_SCTLR2: (&str, u64) = ("S3_0_C0_C7_3", 1 << 4);
const EASE: (&str, u64) = ("S3_0_C1_C0_3", 1 << 5);
const EXLOCKEN: (&str, u64) = ("S3_0_C2_C5_0", 1 << 6);
const SPAN: (&str, u64) = ("SCTLR_EL1", 1 << 23);
const DSSBS: (&str, u64) = ("SCTLR_EL1", 1 << 44);
const SPINTMASK: (&str, u64) = ("SCTLR_EL1", 1 << 62);

/// Returns a guest on a CPU whose registers have these bits set.
fn guest(pstate: u64, bits: &[(&'static str, u64)]) -> Context {
    reset();
    set("VBAR_EL1", VBAR);
    for (register, bit) in bits {
        set(register, read(register) | bit);
    }
    let mut context = Context::new(PC, 0);
    context.pstate = pstate;
    context
}

/// Returns PSTATE after an undefined instruction.
fn pstate_after(pstate: u64, bits: &[(&'static str, u64)]) -> u64 {
    let mut context = guest(pstate, bits);
    inject::undefined(&mut context);
    context.pstate
}

/// Returns the guest's syndrome for an external abort.
fn syndrome(pstate: u64, esr: u64, walk: Option<i8>) -> u64 {
    inject::external_abort(&mut guest(pstate, &[]), esr, FAR, walk);
    read("ESR_EL1")
}

#[test]
fn the_vector_is_that_of_the_interrupted_level() {
    for (pstate, offset) in [(EL1T, 0x000), (EL1H, 0x200), (EL0, 0x400), (EL0_AARCH32, 0x600)] {
        let mut context = guest(pstate | FLAGS, &[]);
        inject::undefined(&mut context);
        assert_eq!(context.pc, VBAR + offset, "PSTATE.M {pstate:#x}");
        assert_eq!((read("ELR_EL1"), read("SPSR_EL1"), read("ESR_EL1")), (PC, pstate | FLAGS, LONG));
        // The bits below the vectors are RES0 and are ignored.
        let mut context = guest(pstate, &[("VBAR_EL1", 0x7ff)]);
        inject::undefined(&mut context);
        assert_eq!(context.pc, VBAR + offset);
    }
}

#[test]
fn an_external_abort_is_the_access_that_was_refused() {
    const DATA_ABORT_AT_EL1: u64 = 0x25 << 26 | LONG;
    const INSTRUCTION_ABORT_AT_EL1: u64 = 0x21 << 26 | LONG;
    for from_el1 in [EL1T, EL1H] {
        assert_eq!(syndrome(from_el1, DATA_ABORT | TRANSLATION_FAULT_3, None), DATA_ABORT_AT_EL1 | EXTERNAL);
        assert_eq!(syndrome(from_el1, INSTRUCTION_ABORT | WRITE, None), INSTRUCTION_ABORT_AT_EL1 | EXTERNAL);
    }
    for from_el0 in [EL0, EL0_AARCH32] {
        assert_eq!(syndrome(from_el0, DATA_ABORT | WRITE, None), DATA_ABORT | WRITE | EXTERNAL);
        assert_eq!(syndrome(from_el0, INSTRUCTION_ABORT | WRITE, None), INSTRUCTION_ABORT | EXTERNAL);
    }
    assert_eq!(read("FAR_EL1"), FAR);
    // Cache maintenance by address.
    const MAINTENANCE: u64 = DATA_ABORT | 1 << 8 | WRITE;
    assert_eq!(syndrome(EL0, MAINTENANCE | TRANSLATION_FAULT_3, None), MAINTENANCE | EXTERNAL);
}

#[test]
fn an_abort_of_a_walk_has_the_level_of_stage_1() {
    for (level, status) in [(-1, 0x13), (0, 0x14), (1, 0x15), (2, 0x16), (3, 0x17)] {
        // The level in EL2's syndrome is that of stage 2.
        let walk = DATA_ABORT | WALK | TRANSLATION_FAULT_3;
        assert_eq!(syndrome(EL0, walk, Some(level)), DATA_ABORT | status);
        assert_eq!(syndrome(EL0, walk | WRITE, Some(level)), DATA_ABORT | WRITE | status);
        assert_eq!(syndrome(EL0, INSTRUCTION_ABORT | WALK, Some(level)), INSTRUCTION_ABORT | status);
    }
}

#[test]
fn an_address_that_is_unknown_is_not_declared_valid() {
    assert_eq!(syndrome(EL0, DATA_ABORT | FNV | EXTERNAL, None), DATA_ABORT | FNV | EXTERNAL);
    assert_eq!(syndrome(EL0, INSTRUCTION_ABORT | FNV | EXTERNAL, None), INSTRUCTION_ABORT | FNV | EXTERNAL);
    assert_eq!(syndrome(EL0, DATA_ABORT | FNV | WRITE | EXTERNAL, None), DATA_ABORT | FNV | WRITE | EXTERNAL);
    assert_eq!(syndrome(EL0, DATA_ABORT | EXTERNAL, None), DATA_ABORT | EXTERNAL, "the address is known");
    // With another status the bit has no meaning, and the address is valid.
    assert_eq!(syndrome(EL0, DATA_ABORT | FNV | TRANSLATION_FAULT_3, None), DATA_ABORT | EXTERNAL);
    assert_eq!(syndrome(EL0, DATA_ABORT | FNV | EXTERNAL, Some(3)), DATA_ABORT | 0x17);
}

#[test]
fn external_aborts_go_to_the_serror_vector_where_the_guest_says_so() {
    let vector = |bits: &[_]| {
        let mut context = guest(EL1H, bits);
        inject::external_abort(&mut context, DATA_ABORT | TRANSLATION_FAULT_3, FAR, None);
        assert_eq!(read("ESR_EL1"), 0x25 << 26 | LONG | EXTERNAL, "the syndrome is the same");
        context.pc - VBAR
    };
    assert_eq!(vector(&[DOUBLE_FAULT_2, HAS_SCTLR2, EASE]), 0x380);
    assert_eq!(vector(&[DOUBLE_FAULT_2, HAS_SCTLR2]), 0x200);
    // Without the feature the bit does not exist.
    assert_eq!(vector(&[HAS_SCTLR2, EASE]), 0x200);
    assert_eq!(vector(&[DOUBLE_FAULT_2, EASE]), 0x200);
    // The same holds for a walk, and for another exception level.
    let mut context = guest(EL0, &[DOUBLE_FAULT_2, HAS_SCTLR2, EASE]);
    inject::external_abort(&mut context, DATA_ABORT | WALK, FAR, Some(0));
    assert_eq!(context.pc, VBAR + 0x580);
    // No other exception uses this vector.
    let mut context = guest(EL1H, &[DOUBLE_FAULT_2, HAS_SCTLR2, EASE]);
    inject::undefined(&mut context);
    assert_eq!(context.pc, VBAR + 0x200);
}

#[test]
fn pstate_keeps_what_hardware_keeps() {
    const SPAN_IS_SET: &[(&str, u64)] = &[SPAN];
    const KEPT: u64 = FLAGS | DIT;
    for level in [EL1T, EL1H, EL0, EL0_AARCH32] {
        assert_eq!(pstate_after(level, SPAN_IS_SET), HANDLER | TCO);
        for bit in (0..64).map(|bit| 1 << bit).filter(|bit| bit & 0x1f == 0) {
            let expected = HANDLER | TCO | bit & (KEPT | PAN);
            assert_eq!(pstate_after(level | bit, SPAN_IS_SET), expected, "PSTATE.M {level:#x}, bit {bit:#x}");
        }
    }
}

#[test]
fn pan_is_set_unless_the_guest_wants_it_left() {
    for before in [0, PAN] {
        assert_eq!(pstate_after(EL0 | before, &[]) & PAN, PAN, "SPAN is clear");
        assert_eq!(pstate_after(EL0 | before, &[SPAN]) & PAN, before, "SPAN is set");
    }
}

#[test]
fn ssbs_is_what_the_guest_wants() {
    for before in [0, SSBS] {
        assert_eq!(pstate_after(EL0 | before, &[]) & SSBS, 0);
        assert_eq!(pstate_after(EL0 | before, &[DSSBS]) & SSBS, SSBS);
    }
}

#[test]
fn nmis_are_masked_unless_the_guest_masks_by_stack() {
    for before in [0, ALLINT] {
        assert_eq!(pstate_after(EL1H | before, &[NMI]) & ALLINT, ALLINT);
        assert_eq!(pstate_after(EL1H | before, &[NMI, SPINTMASK]) & ALLINT, 0);
        assert_eq!(pstate_after(EL1H | before, &[]) & ALLINT, 0, "without FEAT_NMI");
    }
}

#[test]
fn the_return_address_is_locked_within_el1() {
    for (level, locked) in [(EL1T, EXLOCK), (EL1H, EXLOCK), (EL0, 0), (EL0_AARCH32, 0)] {
        assert_eq!(pstate_after(level, &[GCS, EXLOCKEN]) & EXLOCK, locked, "PSTATE.M {level:#x}");
        assert_eq!(pstate_after(level, &[GCS]) & EXLOCK, 0);
        assert_eq!(pstate_after(level, &[EXLOCKEN]) & EXLOCK, 0, "without FEAT_GCS");
    }
}

#[test]
fn a_vcpu_starts_with_its_argument_alone() {
    let context = Context::new(PC, 7);
    assert_eq!((context.pc, context.pstate, context.x[0]), (PC, HANDLER, 7));
    assert_eq!(context.x[1..], [0; 30]);
}

#[test]
fn a_skipped_instruction_has_been_executed() {
    const BTYPE: u64 = 3 << 10;
    const SINGLE_STEP: u64 = 1 << 21;
    const OTHER: u64 = FLAGS | DIT | PAN | EL1H;
    for bits in [BTYPE, 1 << 10, 1 << 11, SINGLE_STEP] {
        let mut context = guest(OTHER | bits, &[]);
        context.skip();
        assert_eq!((context.pc, context.pstate), (PC + 4, OTHER), "{bits:#x}");
    }
}

/// Returns a register with all bits set but these.
fn all_but(register: &'static str, bits: u64) -> (&'static str, u64) {
    (register, !bits)
}

#[test]
fn each_control_is_one_bit() {
    let plain = pstate_after(EL1H, &[]);
    assert_eq!(plain, HANDLER | TCO | PAN);
    let neighbours = all_but("SCTLR_EL1", SPAN.1 | DSSBS.1 | SPINTMASK.1);
    assert_eq!(pstate_after(EL1H, &[neighbours]), plain);
    assert_eq!(pstate_after(EL1H, &[neighbours, NMI]), plain | ALLINT);
    assert_eq!(pstate_after(EL1H, &[SPAN, DSSBS]), HANDLER | TCO | SSBS);
    assert_eq!(pstate_after(EL1H, &[SPAN, GCS, EXLOCKEN]), HANDLER | TCO | EXLOCK);
    assert_eq!(pstate_after(EL1H, &[GCS, all_but("S3_0_C2_C5_0", EXLOCKEN.1)]), plain);
    let mut context = guest(EL1H, &[DOUBLE_FAULT_2, HAS_SCTLR2, all_but("S3_0_C1_C0_3", EASE.1)]);
    inject::external_abort(&mut context, DATA_ABORT | EXTERNAL, FAR, None);
    assert_eq!(context.pc, VBAR + 0x200, "EASE is clear");
}

#[test]
fn fields_of_a_syndrome_are_distinct_from_their_neighbours() {
    const ISS2: u64 = 0x1f << 32;
    const ISV_AND_SET: u64 = 1 << 24 | 3 << 11;
    let from_el1 = 0x25 << 26 | LONG | EXTERNAL;
    assert_eq!(syndrome(EL1H, DATA_ABORT | ISS2 | ISV_AND_SET | EXTERNAL, None), from_el1);
    assert_eq!(syndrome(EL1H, DATA_ABORT | WRITE | FNV | EXTERNAL, None), from_el1 | WRITE | FNV);
    // FnV has no meaning with another status, such as the one next to an external abort's.
    assert_eq!(syndrome(EL1H, DATA_ABORT | FNV | EXTERNAL | 1, None), from_el1);
}

#[test]
fn a_vcpu_starts_as_psci_has_it() {
    let mut context = Context::new(PC, 7);
    assert_eq!((context.pc, context.pstate, context.x[0]), (PC, HANDLER, 7));
    assert_eq!(context.x[1..], [0; 30]);
    // Skipping an instruction clears BTYPE and SS.
    context.pstate = u64::MAX;
    context.skip();
    assert_eq!((context.pc, context.pstate), (PC + 4, !(3 << 10 | 1 << 21)));
}
