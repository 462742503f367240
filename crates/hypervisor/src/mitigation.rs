// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls to the firmware that mitigate weaknesses of speculation: which it has for this CPU, and the calls themselves.
//! `twofold_vmm::mitigation` decides what follows.
//!
//! Invariant: a workaround is called only after this CPU's firmware has announced it, and that is asked only of firmware
//! that has SMCCC 1.1 (Arm DEN0028, discovery by PSCI_FEATURES). On other firmware the numbers may mean anything.

use smccc::{Call, Hvc, Smc, arch, psci};
use twofold_vmm::calls::Workaround;
use twofold_vmm::mitigation::Needs;

use crate::power::{self, Conduit};

/// What the firmware reports for this CPU.
pub(crate) fn of_this_cpu() -> Needs {
    match power::conduit() {
        Some(Conduit::Smc) => ask::<Smc>(),
        Some(Conduit::Hvc) => ask::<Hvc>(),
        None => Needs::UNKNOWN,
    }
}

/// Calls a workaround of this CPU's firmware. `argument` is x1.
#[cold]
#[inline(never)]
pub(crate) fn execute(workaround: Workaround, argument: u64) {
    let arguments = [argument as u32, 0, 0, 0, 0, 0, 0];
    // These calls return nothing.
    match power::conduit() {
        Some(Conduit::Smc) => _ = Smc::call32(number(workaround), arguments),
        Some(Conduit::Hvc) => _ = Hvc::call32(number(workaround), arguments),
        None => {}
    }
}

fn ask<C: Call>() -> Needs {
    let is_new = |major: u16, minor: u16, wanted: (u16, u16)| (major, minor) >= wanted;
    let has_features = psci::version::<C>().is_ok_and(|version| is_new(version.major, version.minor, (1, 0)));
    if !has_features || psci::psci_features::<C>(arch::SMCCC_VERSION).is_err() {
        return Needs::UNKNOWN;
    }
    if !arch::version::<C>().is_ok_and(|version| is_new(version.major, version.minor, (1, 1))) {
        return Needs::UNKNOWN;
    }
    Needs::ask(|workaround| {
        let arguments = [number(workaround), 0, 0, 0, 0, 0, 0];
        Some(C::call32(arch::SMCCC_ARCH_FEATURES, arguments)[0] as i32)
    })
}

fn number(workaround: Workaround) -> u32 {
    match workaround {
        Workaround::BranchTarget => arch::SMCCC_ARCH_WORKAROUND_1,
        Workaround::StoreBypass => arch::SMCCC_ARCH_WORKAROUND_2,
        Workaround::BranchHistory => arch::SMCCC_ARCH_WORKAROUND_3,
    }
}
