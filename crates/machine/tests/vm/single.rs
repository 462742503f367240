// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One vCPU.

use std::sync::Arc;

use twofold_machine::fast::{FastPlatform, VcpuError};
use twofold_machine::vm::{FastCpu, RunError, Vm};
use twofold_memory::Pages;

use crate::programs::Script;
use crate::scenarios::{self, Room};
use crate::{machine, room};

fn on_a_cpu(parts: u64, scenario: impl Fn(&Room<'_, FastPlatform>, &FastCpu, u64)) {
    let machine = machine(1, parts);
    scenario(&room(&machine), &FastCpu { machine: Arc::clone(&machine), number: 0 }, 0);
}

#[test]
fn what_is_not_there_or_not_allowed_is_an_external_abort() {
    on_a_cpu(2, scenarios::slots);
}

#[test]
fn who_takes_no_abort_is_left_with_it() {
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
fn interrupts_wake_who_waits() {
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

#[test]
fn a_cpu_that_is_not_there_runs_nothing() {
    let machine = machine(1, 1);
    let room = room(&machine);
    let vm = Vm::new(room.memory(0, 1, Pages::Small));
    let cpu = FastCpu { machine: Arc::clone(&machine), number: 1 };
    let left = vm.run(&cpu, &mut room.vcpu(Script::new(&[])), |_| 0);
    assert_eq!(left, Err(RunError::Cpu(VcpuError::NoCpu { index: 1, cpus: 1 })));
}
