// SPDX-License-Identifier: Apache-2.0 OR MIT
//! PSCI for the guest (Arm DEN0022), by HVC or SMC.
//!
//! The module only decides; all state is behind [`Vcpus`], so a host test can cover each case. Invariant: only the CPU
//! that won [`Vcpus::try_on`] switches a vCPU on, and the vCPU is off again if its start fails.

use core::fmt;

use smccc::psci;

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The caller continues with this value in x0.
    Return(u64),
    /// The caller is off.
    Off,
    /// The guest asks for power-off.
    SystemOff,
    /// The guest asks for a reset.
    SystemReset,
}

/// Why a vCPU was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotStarted<W> {
    /// Its CPU is still on.
    AlreadyOn,
    /// Its CPU is being switched on.
    OnPending,
    /// Another reason.
    Failed(W),
}

/// The vCPUs of a guest, by their numbers.
pub trait Vcpus {
    /// Why a start failed.
    type Why: fmt::Display;
    /// The vCPU with this affinity.
    fn find(&self, mpidr: u64) -> Option<usize>;
    /// Whether the guest has RAM at this intermediate physical address.
    fn is_ram(&self, address: u64) -> bool;
    /// Gives the caller the right to switch a vCPU on. Returns `false` if the vCPU is already on.
    fn try_on(&self, index: usize) -> bool;
    /// Marks a vCPU off. The caller runs on that vCPU, or has switched it on.
    fn set_off(&self, index: usize);
    /// Starts a vCPU at `entry` with `argument` in x0. The caller must have the right to.
    fn start(&self, index: usize, entry: u64, argument: u64) -> Result<(), NotStarted<Self::Why>>;
    /// Whether a vCPU is off and can be started.
    fn is_off(&self, index: usize) -> bool;
    /// Reports a call that was refused for a reason that its result does not give.
    fn refused(&self, why: fmt::Arguments);
}

const SUCCESS: i64 = 0;
const NOT_SUPPORTED: i64 = -1;
const INVALID_PARAMETERS: i64 = -2;
const ALREADY_ON: i64 = -4;
const ON_PENDING: i64 = -5;
const INTERNAL_FAILURE: i64 = -6;
const INVALID_ADDRESS: i64 = -9;

/// Answers the call with these arguments (x0 to x3) of vCPU `index`.
pub fn call(vcpus: &impl Vcpus, index: usize, arguments: &[u64; 4]) -> Reply {
    const CALL_64: u64 = 1 << 30;
    let [function, ..] = *arguments;
    // A 32-bit call has 32-bit arguments.
    let mask = if function & CALL_64 == 0 { u64::from(u32::MAX) } else { u64::MAX };
    let [first, second, third] = [arguments[1] & mask, arguments[2] & mask, arguments[3] & mask];
    let result = match function as u32 {
        psci::PSCI_VERSION => 1 << 16 | 1,
        psci::PSCI_FEATURES => features(first as u32),
        psci::PSCI_MIGRATE_INFO_TYPE => 2,
        psci::PSCI_CPU_ON_32 | psci::PSCI_CPU_ON_64 => cpu_on(vcpus, first, second, third),
        psci::PSCI_AFFINITY_INFO_32 | psci::PSCI_AFFINITY_INFO_64 => affinity_info(vcpus, first, second),
        // A standby state may end at once.
        psci::PSCI_CPU_SUSPEND_32 | psci::PSCI_CPU_SUSPEND_64 => SUCCESS,
        psci::PSCI_CPU_OFF => {
            vcpus.set_off(index);
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

fn cpu_on(vcpus: &impl Vcpus, mpidr: u64, entry: u64, context: u64) -> i64 {
    let Some(target) = vcpus.find(mpidr) else { return INVALID_PARAMETERS };
    // Without RAM there, the vCPU would abort on its first fetch, and then on the first fetch of its vector, for ever.
    if !vcpus.is_ram(entry) {
        return INVALID_ADDRESS;
    }
    if !vcpus.try_on(target) {
        return ALREADY_ON;
    }
    match vcpus.start(target, entry, context) {
        Ok(()) => SUCCESS,
        Err(error) => {
            vcpus.set_off(target);
            match error {
                NotStarted::AlreadyOn => ALREADY_ON,
                NotStarted::OnPending => ON_PENDING,
                NotStarted::Failed(why) => {
                    vcpus.refused(format_args!("vCPU {target} cannot be started: {why}"));
                    INTERNAL_FAILURE
                }
            }
        }
    }
}

fn affinity_info(vcpus: &impl Vcpus, mpidr: u64, lowest_level: u64) -> i64 {
    match vcpus.find(mpidr) {
        // Affinity levels above 0 are deprecated, and need not be supported (DEN0022, AFFINITY_INFO).
        Some(target) if lowest_level == 0 => i64::from(vcpus.is_off(target)),
        _ => INVALID_PARAMETERS,
    }
}
