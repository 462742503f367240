// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests the state of a vCPU outside of a machine: all of it goes out and comes back, and a state that no guest could
//! have come to is refused with the register's name.

use twofold_fuzz_hypervisor::faked;
use twofold_fuzz_hypervisor::switch::has::Group;
use twofold_fuzz_hypervisor::switch::state::{GENERAL, VECTORS};
use twofold_fuzz_hypervisor::switch::table::{TABLE, encoding};
use twofold_fuzz_hypervisor::switch::{Has, Record, State, StateError};

const PC: u32 = GENERAL + 31;
const PSTATE: u32 = GENERAL + 32;

/// A CPU with 6 breakpoints, 4 watchpoints, and no optional feature but the GIC's registers.
fn has() -> Has {
    faked::reset();
    faked::set("ID_AA64PFR0_EL1", 1 << 24);
    faked::set("ID_AA64DFR0_EL1", 5 << 12 | 3 << 20);
    faked::set("S3_4_C12_C11_1", 3 | 4 << 26);
    Has::read()
}

fn records(state: &State, has: Has) -> Vec<Record> {
    let mut all = Vec::new();
    state.records(has, |record| all.push(record));
    all
}

fn example() -> State {
    let mut state = State::new(0x4000_0000, 7);
    let mut value = 0x1234_5678_9abc_def0_u64;
    let mut next = || {
        value = value.rotate_left(9).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        value
    };
    state.context.x.fill_with(&mut next);
    TABLE.iter().for_each(|row| assert!(state.set(row.encoding, next() & row.allowed)));
    state.vectors.0.fill_with(|| u128::from(next()) << 64 | u128::from(next()));
    state
}

/// The records with one of them replaced.
fn with(register: u32, value: u64) -> Result<State, StateError> {
    let mut all = records(&example(), has());
    all.iter_mut().find(|record| record.register == register).unwrap().value = value;
    State::from_records(has(), all)
}

#[test]
fn all_of_a_state_goes_out_and_comes_back() {
    let (state, has) = (example(), has());
    let out = records(&state, has);
    let rows = TABLE.iter().filter(|row| has.has(row.group)).count();
    assert_eq!(out.len(), 33 + rows + 64);
    assert!(rows < TABLE.len(), "this CPU lacks registers");
    let back = State::from_records(has, out.iter().rev().copied()).unwrap();
    assert_eq!(records(&back, has), out);
    assert_eq!((back.context.x, back.context.pc, back.context.pstate), (state.context.x, 0x4000_0000, 0x3c5));
    assert_eq!(back.vectors, state.vectors);
    for row in TABLE.iter().filter(|row| has.has(row.group)) {
        assert_eq!(back.get(row.encoding), state.get(row.encoding), "{}", row.name);
    }
}

#[test]
fn what_a_cpu_lacks_is_refused() {
    let mut all = records(&example(), has());
    let pauth = TABLE.iter().find(|row| row.group == Group::PAUTH).unwrap();
    all.push(Record { register: pauth.encoding.into(), value: 0 });
    assert_eq!(State::from_records(has(), all).unwrap_err(), StateError::Absent("APIAKeyLo_EL1"));
}

#[test]
fn an_unknown_register_is_refused() {
    for register in [0, u32::from(encoding("S3_4_C1_C1_0")), GENERAL + 33, VECTORS - 1, VECTORS + 64, u32::MAX] {
        let mut all = records(&example(), has());
        all.push(Record { register, value: 0 });
        assert_eq!(State::from_records(has(), all).unwrap_err(), StateError::Unknown(register));
    }
}

#[test]
fn a_register_that_is_missing_or_there_twice_is_refused() {
    let all = records(&example(), has());
    for at in 0..all.len() {
        let mut short = all.clone();
        let record = short.remove(at);
        assert!(matches!(State::from_records(has(), short), Err(StateError::Missing(_))), "{record:x?}");
        let mut long = all.clone();
        long.push(record);
        assert!(matches!(State::from_records(has(), long), Err(StateError::Twice(_))), "{record:x?}");
    }
    assert_eq!(State::from_records(has(), []).unwrap_err(), StateError::Missing("x0"));
}

#[test]
fn a_pstate_outside_of_the_guest_is_refused() {
    for mode in 0..32 {
        let accepted = with(PSTATE, 0x3c0 | mode).is_ok();
        assert_eq!(accepted, [0b0000, 0b0100, 0b0101].contains(&mode), "mode {mode:#b}");
    }
    for bit in 0..64 {
        let accepted = with(PSTATE, 1 << bit | 0b0100).is_ok();
        // SPSel; DAIF; BTYPE and SSBS; IL, SS, PAN, UAO, DIT and TCO; NZCV.
        let expected = matches!(bit, 0 | 2 | 6..=12 | 20..=25 | 28..=31);
        assert_eq!(accepted, expected, "bit {bit}");
    }
    let error = with(PSTATE, 0x3c9).unwrap_err();
    assert_eq!(error, StateError::Impossible { name: "PSTATE", value: 0x3c9, bits: 9 });
    let error = with(PSTATE, 1 << 5 | 0b0101).unwrap_err();
    assert_eq!(error, StateError::Impossible { name: "PSTATE", value: 0b10_0101, bits: 1 << 5 }, "the mode is good");
    assert!(with(PC, u64::MAX).is_ok(), "a bad PC is the guest's own problem");
}

#[test]
fn what_only_el2_can_set_is_refused() {
    let timer = u32::from(encoding("S3_3_C14_C3_1"));
    assert!(with(timer, 0b11).is_ok() && with(timer, 0b100).is_err(), "the timer's status is hardware's");
    let error = with(timer, 0b101).unwrap_err();
    assert_eq!(error.to_string(), "the state has CNTV_CTL_EL0=0x5, and no guest can set the bits 0x4");
}

/// Hardware shows more than the guest can set: the timer's status.
#[test]
fn a_state_that_goes_out_comes_back_whatever_hardware_showed() {
    let mut state = example();
    assert!(TABLE.iter().all(|row| state.set(row.encoding, u64::MAX)));
    let out = records(&state, has());
    let back = State::from_records(has(), out.iter().copied()).unwrap();
    assert_eq!(records(&back, has()), out);
}

#[test]
fn a_vcpu_starts_as_a_kernel_expects_it() {
    let state = State::new(0x4020_0000, 0x4800_0000);
    assert_eq!((state.context.pc, state.context.x[0], state.context.pstate), (0x4020_0000, 0x4800_0000, 0x3c5));
    for row in TABLE {
        let expected = match row.name {
            "SCTLR_EL1" => 0x30d0_0800,
            "OSLAR_EL1" => 1,
            "ICC_SRE_EL1" => 7,
            _ => 0,
        };
        assert_eq!(state.get(row.encoding), Some(expected), "{}", row.name);
    }
    assert_eq!(state.get(0), None);
}
