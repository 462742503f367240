// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests the CPU that a guest sees: what is hidden stays hidden on every CPU, CPUs of different kinds have in common what
//! each of them has, and `docs/guest-cpu.md` lists the same as the code.

use std::collections::BTreeSet;

use twofold_fuzz_hypervisor::faked;
use twofold_fuzz_hypervisor::guest_cpu::table::{Rule, TABLE};
use twofold_fuzz_hypervisor::guest_cpu::{GuestCpu, IdValues, Lost};
use twofold_fuzz_hypervisor::registers::access::Access;
use twofold_vmm::agreement::Unfit;

/// A CPU whose ID registers are all ones, or all zero.
fn cpu(bits: u64) -> IdValues {
    faked::reset();
    let mut ids = IdValues::read();
    for register in TABLE {
        for low in (0..64).step_by(4) {
            ids = ids.with(register.name, low, bits & 0xf);
        }
    }
    ids
}

fn shown(guest: &GuestCpu, register: &str) -> u64 {
    guest.get(TABLE.iter().find(|row| row.name == register).unwrap().place)
}

fn field(guest: &GuestCpu, register: &str, name: &str) -> u64 {
    let row = TABLE.iter().find(|row| row.name == register).unwrap();
    let field = row.fields.iter().find(|field| field.name == name).unwrap();
    guest.get(row.place) >> field.low & 0xf
}

#[test]
fn a_cpu_that_does_not_exist_differs_in_one_field() {
    let read = |bits| {
        faked::reset();
        faked::set("S3_0_C0_C6_0", bits);
        IdValues::read()
    };
    for (before, field, after) in [(u64::MAX, 0, !0xf0), (u64::MAX, 5, !0xa0), (0, 0xf, 0xf0), (0x123, 4, 0x143)] {
        assert_eq!(read(before).with("ID_AA64ISAR0_EL1", 4, field), read(after), "{before:#x} with {field}");
    }
    faked::reset();
}

#[test]
fn no_field_is_shown_that_the_table_does_not_name() {
    let all = GuestCpu::new(&cpu(u64::MAX));
    for row in TABLE {
        let named = row.fields.iter().fold(0, |bits, field| bits | 0xf_u64 << field.low);
        assert_eq!(shown(&all, row.name) & !named, 0, "{}", row.name);
        for field in row.fields {
            let value = shown(&all, row.name) >> field.low & 0xf;
            let expected = match field.rule {
                Rule::UpTo(most) | Rule::Weakness(most) => most,
                // All ones is -1: the feature is missing.
                Rule::SignedUpTo(_) => 15,
                Rule::Hidden(value) => value,
            };
            assert_eq!(value, expected, "{}.{}", row.name, field.name);
        }
    }
}

#[test]
fn what_the_issue_names_is_hidden() {
    let all = GuestCpu::new(&cpu(u64::MAX));
    let hidden = [
        ("ID_AA64PFR0_EL1", "SVE"),
        ("ID_AA64PFR1_EL1", "SME"),
        ("ID_AA64PFR1_EL1", "MTE"),
        ("ID_AA64DFR0_EL1", "PMUVer"),
        ("ID_AA64DFR0_EL1", "PMSVer"),
        ("ID_AA64DFR0_EL1", "TraceVer"),
        ("ID_AA64DFR0_EL1", "TraceFilt"),
        ("ID_AA64DFR0_EL1", "TraceBuffer"),
        ("ID_AA64DFR0_EL1", "BRBE"),
        ("ID_AA64PFR0_EL1", "AMU"),
        ("ID_AA64PFR0_EL1", "MPAM"),
        ("ID_AA64PFR1_EL1", "MPAM_frac"),
        ("ID_AA64PFR1_EL1", "RAS_frac"),
        ("ID_AA64PFR0_EL1", "EL2"),
        ("ID_AA64MMFR2_EL1", "NV"),
        ("ID_AA64MMFR1_EL1", "VH"),
        ("ID_AA64MMFR1_EL1", "LO"),
    ];
    for (register, name) in hidden {
        assert_eq!(field(&all, register, name), 0, "{register}.{name}");
    }
    for register in ["ID_AA64ZFR0_EL1", "ID_AA64SMFR0_EL1", "ID_AA64PFR2_EL1"] {
        assert_eq!(shown(&all, register), 0, "{register}");
    }
    assert_eq!(field(&all, "ID_AA64DFR0_EL1", "DoubleLock"), 15, "no double lock is -1");
    assert_eq!(field(&GuestCpu::new(&cpu(0)), "ID_AA64DFR0_EL1", "DoubleLock"), 15, "on no CPU");
}

#[test]
fn cpus_of_two_kinds_have_the_lesser_of_each_field() {
    let zero = cpu(0);
    for row in TABLE {
        for entry in row.fields {
            for (one, other) in (0..16).flat_map(|one| (0..16).map(move |other| (one, other))) {
                let ids = |value| zero.with(row.name, entry.low, value);
                let common = GuestCpu::new(&ids(one)).and(&ids(other));
                assert_eq!(common, GuestCpu::new(&ids(other)).and(&ids(one)), "{}.{}", row.name, entry.name);
                let signed = |value: u64| if value > 7 { value as i64 - 16 } else { value as i64 };
                let expected = match entry.rule {
                    Rule::UpTo(most) => one.min(other).min(most),
                    Rule::Weakness(most) => one.max(other).min(most),
                    Rule::SignedUpTo(most) => (signed(one).min(signed(other)).min(most as i64) & 0xf) as u64,
                    Rule::Hidden(value) => value,
                };
                assert_eq!(
                    field(&common, row.name, entry.name),
                    expected,
                    "{}.{}: {one}, {other}",
                    row.name,
                    entry.name
                );
                // A CPU with either is good enough for what both have in common, except for a weakness it lacks.
                assert_eq!(common.check(&ids(one)), Ok(()), "{}.{}: {one}, {other}", row.name, entry.name);
            }
        }
    }
}

#[test]
fn a_cpu_with_less_is_refused_by_name() {
    let full = cpu(0).with("ID_AA64ISAR0_EL1", 20, 2).with("ID_AA64PFR0_EL1", 16, 1);
    let guest = GuestCpu::new(&full);
    assert_eq!(guest.check(&full), Ok(()));
    let without_atomics = full.with("ID_AA64ISAR0_EL1", 20, 1);
    assert_eq!(guest.check(&without_atomics), Err(Lost { register: "ID_AA64ISAR0_EL1", field: "Atomic" }));
    let without_fp = full.with("ID_AA64PFR0_EL1", 16, 15);
    let error = guest.check_cpu(3, &without_fp).unwrap_err();
    assert_eq!(error, Unfit::Less { cpu: 3, register: "ID_AA64PFR0_EL1", field: "FP" });
    assert_eq!(error.to_string(), "CPU 3 has less than the guest was shown in ID_AA64PFR0_EL1.FP");
    // More is hidden, and no reason to refuse.
    assert_eq!(guest.check(&full.with("ID_AA64PFR0_EL1", 32, 1)), Ok(()));
    assert_eq!(guest.check(&full.with("ID_AA64ISAR0_EL1", 20, 3)), Ok(()));
    // A weakness that the guest was not shown.
    assert!(guest.check(&full.with("ID_AA64MMFR1_EL1", 24, 1)).is_err());
}

#[test]
fn each_register_is_read_from_its_own_encoding() {
    for row in TABLE {
        let [crm, op2] = row.place;
        faked::reset();
        faked::set(format!("S3_0_C0_C{crm}_{op2}").leak(), 0x1234);
        assert_eq!((row.read)(), 0x1234, "{}", row.name);
    }
    faked::reset();
    faked::set("S3_0_C0_C6_0", 1 << 4);
    assert_eq!(field(&GuestCpu::new(&IdValues::read()), "ID_AA64ISAR0_EL1", "AES"), 1);
    faked::reset();
}

#[test]
fn the_id_space_answers_reads_alone() {
    let guest = GuestCpu::new(&cpu(0).with("ID_AA64ISAR0_EL1", 4, 2));
    let answer = |encoding, is_read, rt| {
        let mut x = [9; 31];
        let answered = guest.answer(&Access { encoding, rt, is_read }, &mut x);
        answered.then_some(x)
    };
    let mut expected = [9; 31];
    expected[4] = 0x20;
    assert_eq!(answer([3, 0, 0, 6, 0], true, 4), Some(expected));
    assert_eq!(answer([3, 0, 0, 6, 0], true, 31), Some([9; 31]), "into XZR");
    assert_eq!(answer([3, 0, 0, 6, 0], false, 4), None, "a write");
    expected[4] = 0;
    for (crm, op2) in (1..=7).flat_map(|crm| (0..8).map(move |op2| (crm, op2))) {
        if [crm, op2] != [6, 0] && TABLE.iter().all(|row| row.place != [crm, op2]) {
            assert_eq!(answer([3, 0, 0, crm, op2], true, 4), Some(expected), "reserved: CRm {crm}, op2 {op2}");
        }
    }
    for other in [[3, 0, 0, 0, 0], [3, 0, 0, 8, 0], [3, 1, 0, 4, 0], [2, 0, 0, 4, 0], [3, 0, 1, 4, 0]] {
        assert_eq!(answer(other, true, 4), None, "{other:?}");
    }
}

#[test]
fn a_register_is_named_by_its_place() {
    for row in TABLE {
        assert_eq!(GuestCpu::name(row.place), row.name);
    }
    assert_eq!(GuestCpu::name([0, 0]), "an ID register that is unknown here");
}

/// Arm ARM DDI 0487K.a, D23.2, ID_AA64ISAR0_EL1: RNDR is bits 63 to 60.
#[test]
fn a_guest_has_random_numbers_if_one_field_says_so() {
    const ISAR0: &str = "ID_AA64ISAR0_EL1";
    let has_random = |ids| GuestCpu::new(&ids).has_random();
    assert!(has_random(cpu(0).with(ISAR0, 60, 1)));
    assert!(!has_random(cpu(u64::MAX).with(ISAR0, 60, 0)));
}

#[test]
fn each_field_has_a_reason_and_bits_of_its_own() {
    let mut places = BTreeSet::new();
    for row in TABLE {
        assert!(places.insert(row.place) && (1..=7).contains(&row.place[0]), "{}", row.name);
        let mut bits = 0;
        for field in row.fields {
            assert!(field.why.len() > 2 && field.low.is_multiple_of(4), "{}.{}", row.name, field.name);
            assert_eq!(bits & 0xf << field.low, 0, "{}.{}", row.name, field.name);
            bits |= 0xf_u64 << field.low;
        }
    }
}

/// The table of the document, as the code has it.
fn document() -> String {
    let mut text = String::from("| register | field | a guest sees | |\n|---|---|---|---|\n");
    for row in TABLE {
        if row.fields.is_empty() {
            text += &format!("| {} | all | 0 | hidden |\n", row.name);
        }
        for field in row.fields {
            let (name, low, high) = (field.name, field.low, field.low + 3);
            let sees = match field.rule {
                Rule::UpTo(most) => format!("at most {most}"),
                Rule::SignedUpTo(most) => format!("at most {most}; 15 is none"),
                Rule::Weakness(most) => format!("the worst of the CPUs, at most {most}"),
                Rule::Hidden(value) => format!("**{value}**"),
            };
            text += &format!("| {} | {name} [{high}:{low}] | {sees} | {} |\n", row.name, field.why);
        }
    }
    text
}

/// With `TWOFOLD_PRINT` set it prints the table, to be copied into the document.
#[test]
fn the_document_lists_the_same() {
    let expected = document();
    if std::env::var_os("TWOFOLD_PRINT").is_some() {
        println!("{expected}");
    }
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guest-cpu.md")).unwrap();
    assert!(text.contains(&expected), "docs/guest-cpu.md differs from crates/hypervisor/src/guest_cpu/table.rs");
}
