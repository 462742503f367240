// SPDX-License-Identifier: Apache-2.0 OR MIT
//! PSCI as the guest sees it (Arm DEN0022), by HVC or SMC.
//!
//! The invariant: a vCPU is switched on only from off, by who wins [`VcpuSlot::try_on`](crate::vm).

use smccc::psci::{self, AffinityState};

use crate::cpus::StartError;
use crate::power;
use crate::vm::Vm;

/// What a call leads to.
pub enum Reply {
    /// The caller goes on with this in x0.
    Return(u64),
    /// The caller is off.
    Off,
    /// The guest wants the machine off.
    SystemOff,
    /// The guest wants a reset.
    SystemReset,
}

const SUCCESS: i64 = 0;
const NOT_SUPPORTED: i64 = -1;
const INVALID_PARAMETERS: i64 = -2;
const ALREADY_ON: i64 = -4;
const ON_PENDING: i64 = -5;
const INTERNAL_FAILURE: i64 = -6;

/// Answers the call with these arguments (x0 to x3) of vCPU `index`.
pub fn call(vm: &'static Vm, index: usize, arguments: &[u64; 4]) -> Reply {
    const CALL_64: u64 = 1 << 30;
    let [function, ..] = *arguments;
    // A 32-bit call has 32-bit arguments.
    let mask = if function & CALL_64 == 0 { u64::from(u32::MAX) } else { u64::MAX };
    let [first, second, third] = [arguments[1] & mask, arguments[2] & mask, arguments[3] & mask];
    let result = match function as u32 {
        psci::PSCI_VERSION => 1 << 16 | 1,
        psci::PSCI_FEATURES => features(first as u32),
        psci::PSCI_MIGRATE_INFO_TYPE => 2,
        psci::PSCI_CPU_ON_32 | psci::PSCI_CPU_ON_64 => cpu_on(vm, first, second, third),
        psci::PSCI_AFFINITY_INFO_32 | psci::PSCI_AFFINITY_INFO_64 => affinity_info(vm, first, second),
        // A standby state may end at once.
        psci::PSCI_CPU_SUSPEND_32 | psci::PSCI_CPU_SUSPEND_64 => SUCCESS,
        psci::PSCI_CPU_OFF => {
            vm.vcpus[index].set_off();
            return Reply::Off;
        }
        psci::PSCI_SYSTEM_OFF => return Reply::SystemOff,
        psci::PSCI_SYSTEM_RESET => return Reply::SystemReset,
        _ => NOT_SUPPORTED,
    };
    Reply::Return(result as u64)
}

fn features(function: u32) -> i64 {
    match function {
        psci::PSCI_VERSION
        | psci::PSCI_FEATURES
        | psci::PSCI_MIGRATE_INFO_TYPE
        | psci::PSCI_CPU_ON_32
        | psci::PSCI_CPU_ON_64
        | psci::PSCI_AFFINITY_INFO_32
        | psci::PSCI_AFFINITY_INFO_64
        | psci::PSCI_CPU_SUSPEND_32
        | psci::PSCI_CPU_SUSPEND_64
        | psci::PSCI_CPU_OFF
        | psci::PSCI_SYSTEM_OFF
        | psci::PSCI_SYSTEM_RESET => SUCCESS,
        _ => NOT_SUPPORTED,
    }
}

fn cpu_on(vm: &'static Vm, mpidr: u64, entry: u64, context: u64) -> i64 {
    let Some(target) = vm.vcpus.iter().position(|vcpu| vcpu.mpidr == mpidr) else { return INVALID_PARAMETERS };
    if !vm.vcpus[target].try_on() {
        return ALREADY_ON;
    }
    match vm.start_vcpu(target, entry, context) {
        Ok(()) => SUCCESS,
        Err(error) => {
            vm.vcpus[target].set_off();
            match error {
                // It said that it is off, and is on its way: the guest may try again.
                StartError::Firmware(_, psci::Error::AlreadyOn) => ALREADY_ON,
                StartError::Firmware(_, psci::Error::OnPending) => ON_PENDING,
                _ => {
                    crate::log!("vCPU {target} cannot be started: {error}");
                    INTERNAL_FAILURE
                }
            }
        }
    }
}

fn affinity_info(vm: &Vm, mpidr: u64, lowest_level: u64) -> i64 {
    match vm.vcpus.iter().find(|vcpu| vcpu.mpidr == mpidr && lowest_level == 0) {
        // Off is off only when its CPU is: until then it cannot be switched on again.
        Some(vcpu) => i64::from(!vcpu.is_on() && power::affinity_info(mpidr) == Ok(AffinityState::Off)),
        None => INVALID_PARAMETERS,
    }
}
