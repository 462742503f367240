// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests how EL2 finds the page of a guest's address, also with features that QEMU lacks.

use twofold_fuzz_hypervisor::faked::{reset, set};
use twofold_fuzz_hypervisor::translate::{Translation, translate};
use twofold_stage2::Ipa;

const VA: u64 = 0x20_1128;
/// The guest's only table, of level 3, for 16 address bits.
const TABLE: u64 = 0x8000_0000;
const SMALL_VA: u64 = 0x1128;
const FOUND: Ipa = Ipa::new(0x8765_4000);
const ATTRIBUTES: u64 = 0xff << 56;
/// PAR_EL1 with F and its RES1 bit.
const FAULT: u64 = 1 << 11 | 1;
const STAGE_2: u64 = 1 << 9;
const PERMISSION_FAULT_3: u64 = FAULT | 0x0f << 1;
const ATS1A: u64 = 1 << 60;

fn nothing(ipa: u64) -> Option<u64> {
    panic!("{ipa:#x} is read, although hardware has the answer")
}

/// Returns the translation after this result of `AT S1E1R`.
fn after(par: u64) -> Translation {
    reset();
    set("AT S1E1R", par);
    translate(VA, nothing)
}

#[test]
fn hardware_answers_where_it_can() {
    assert_eq!(after(ATTRIBUTES | FOUND.raw() | 0xb80), Translation::Page(FOUND));
    assert_eq!(after(0x000f_8765_4321_0000), Translation::Page(Ipa::new(0x000f_8765_4321_0000)), "52 bits");
}

#[test]
fn tables_that_do_not_translate_it_say_so() {
    // Address size, translation, access flag, TLB conflict.
    for status in [0x00, 0x04, 0x07, 0x08, 0x0b, 0x2a, 0x2b, 0x30] {
        assert_eq!(after(FAULT | status << 1), Translation::Unmapped, "{status:#x}");
    }
    // Stage 2 stopped the walk, so stage 1 did not deny a permission.
    assert_eq!(after(PERMISSION_FAULT_3 | STAGE_2), Translation::Unmapped);
    assert_eq!(after(FAULT | STAGE_2 | 0x07 << 1), Translation::Unmapped);
}

#[test]
fn an_abort_of_the_walk_has_its_level() {
    for first in [0x14_u64, 0x1c, 0x24] {
        for level in -1..=3_i8 {
            let status = first.wrapping_add_signed(level.into());
            assert_eq!(after(FAULT | status << 1), Translation::Aborted(level), "{status:#x}");
            // The bits beside the status: RES0 and PTW.
            assert_eq!(after(FAULT | 3 << 7 | status << 1), Translation::Aborted(level), "{status:#x}");
        }
    }
}

#[test]
fn a_page_that_el1_may_not_read_is_found_without_permissions() {
    for status in 0x0c..=0x0f {
        reset();
        set("S3_0_C0_C6_2", ATS1A);
        set("AT S1E1R", FAULT | status << 1);
        set("AT S1E1A", FOUND.raw());
        assert_eq!(translate(VA, nothing), Translation::Page(FOUND), "{status:#x}");
    }
    // The bit beside S does not concern stage 2.
    reset();
    set("S3_0_C0_C6_2", ATS1A);
    set("AT S1E1R", PERMISSION_FAULT_3 | STAGE_2 << 1);
    set("AT S1E1A", FOUND.raw());
    assert_eq!(translate(VA, nothing), Translation::Page(FOUND));
    // A fault of S1E1A counts like one of S1E1R.
    set("AT S1E1R", PERMISSION_FAULT_3);
    set("AT S1E1A", FAULT | 0x16 << 1);
    assert_eq!(translate(VA, nothing), Translation::Aborted(2));
    set("AT S1E1A", PERMISSION_FAULT_3);
    assert_eq!(translate(VA, nothing), Translation::Unmapped);
}

#[test]
fn without_that_instruction_the_tables_are_walked_in_software() {
    const TCR: u64 = 1 << 23 | 48;
    reset();
    set("AT S1E1R", PERMISSION_FAULT_3);
    for (register, value) in [("SCTLR_EL1", 1), ("TCR_EL1", TCR), ("TTBR0_EL1", TABLE), ("TTBR1_EL1", !0)] {
        set(register, value);
    }
    let entry = |descriptor: Option<u64>| {
        move |ipa: u64| {
            assert_eq!(ipa, TABLE + 8, "the entry's address");
            descriptor
        }
    };
    assert_eq!(translate(SMALL_VA, entry(Some(FOUND.raw() | 0b11))), Translation::Page(FOUND));
    // Another page; the result has no offset.
    let odd = FOUND + 0x1000;
    assert_eq!(translate(SMALL_VA, entry(Some(odd.raw() | 0b11))), Translation::Page(odd));
    assert_eq!(translate(SMALL_VA, entry(Some(0))), Translation::Unmapped);
    // The table is not in RAM, where hardware's access aborts too.
    assert_eq!(translate(SMALL_VA, entry(None)), Translation::Aborted(3));
    // The upper half is disabled.
    assert_eq!(translate(!0, nothing), Translation::Unmapped);
}
