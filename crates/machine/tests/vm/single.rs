// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One vCPU.

use std::sync::Arc;

use twofold_machine::fast::{FastPlatform, VcpuError};
use twofold_machine::guest_tables::TablesInRam;
use twofold_machine::vm::{FastCpu, RunError, Vm};
use twofold_memory::{Error, Pages};
use twofold_stage2::Ipa;
use twofold_workload::stage1::TableMemory;

use crate::programs::{PAGE, Script};
use crate::scenarios::{self, RAM, Room};
use crate::{machine, modes, room};

fn on_a_cpu(parts: u64, scenario: impl Fn(&Room<'_, FastPlatform>, &FastCpu, u64)) {
    let machine = machine(1, parts);
    scenario(&room(&machine), &FastCpu { machine: Arc::clone(&machine), number: 0 }, 0);
}

#[test]
fn what_is_not_there_or_not_allowed_is_an_external_abort() {
    on_a_cpu(2, scenarios::slots);
}

#[test]
fn a_vcpu_that_takes_no_abort_is_left_with_it() {
    on_a_cpu(1, scenarios::own_faults);
}

#[test]
fn what_was_written_is_executed() {
    on_a_cpu(2, scenarios::code);
}

#[test]
fn calls_are_answered() {
    on_a_cpu(1, scenarios::hypercalls);
}

#[test]
fn interrupts_wake_a_vcpu_that_waits() {
    on_a_cpu(1, scenarios::interrupts);
}

#[test]
fn a_guest_has_tables_of_its_own() {
    on_a_cpu(2, scenarios::stage1);
}

#[test]
fn a_vcpus_registers_go_along() {
    on_a_cpu(1, scenarios::registers_go_along);
}

#[test]
fn updates_of_a_guests_tables_are_recorded() {
    on_a_cpu(1, scenarios::stage1_updates_are_recorded);
}

#[test]
fn updates_of_a_guests_tables_fault_as_writes() {
    on_a_cpu(1, scenarios::stage1_updates_fault_as_writes);
}

#[test]
fn a_guest_goes_on_when_there_are_frames_again() {
    on_a_cpu(9, scenarios::out_of_frames);
}

/// Pages for a guest's tables are aligned, zeroed, distinct, and inside their range.
#[test]
fn tables_stay_in_their_range() {
    const KIB_16: u64 = 16 << 10;
    let machine = machine(1, 1);
    let memory = room(&machine).memory(0, 1, Pages::Small);
    memory.write(RAM, &[7; 3 * KIB_16 as usize]).unwrap();
    let mut tables = TablesInRam::new(&memory, RAM + 8..RAM + 3 * KIB_16 + 8);
    for page in [1, 2] {
        let ipa = tables.take(KIB_16).unwrap().unwrap();
        assert_eq!(ipa, RAM.raw() + page * KIB_16);
        assert!((0..KIB_16).step_by(8).all(|offset| tables.read(ipa + offset) == Ok(0)));
        tables.write(ipa + 8, 1 << 40 | 5).unwrap();
        assert_eq!(tables.read(ipa + 8), Ok(1 << 40 | 5));
    }
    assert_eq!(tables.take(KIB_16), Ok(None));
    assert_eq!(tables.read(RAM.raw() + KIB_16 - 8), Ok(u64::from_le_bytes([7; 8])), "the word before the range");
    assert_eq!(tables.read(RAM.raw() + 3 * KIB_16), Ok(0), "the word after the range, which was never written");
    let nowhere = Ipa::new(1 << 32);
    assert_eq!(TablesInRam::new(&memory, nowhere..nowhere + PAGE).take(PAGE), Err(Error::NoRam { ipa: nowhere }));
}

#[test]
fn a_cpu_that_is_not_there_runs_nothing() {
    let machine = machine(1, 1);
    let room = room(&machine);
    let vm = Vm::new(room.memory(0, 1, Pages::Small));
    let cpu = FastCpu { machine: Arc::clone(&machine), number: 1 };
    let left = vm.run(&cpu, &mut room.vcpu(Script::new(&[])), |_| 0);
    assert_eq!(left, Err(RunError::Cpu(VcpuError::NoCpu { index: 1, cpus: 1 })));
}

#[test]
fn guests_of_each_mode_find_what_they_wrote() {
    on_a_cpu(modes::PARTS, modes::what_is_written_is_found);
}

#[test]
fn what_stage_2_takes_is_gone_whatever_granule_stage_1_has() {
    on_a_cpu(modes::PARTS, modes::what_is_taken_is_gone);
}
