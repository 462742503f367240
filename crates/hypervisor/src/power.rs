// SPDX-License-Identifier: Apache-2.0 OR MIT
//! PSCI calls to the firmware.
//!
//! Invariant: EL2 makes no call before `init` has set the instruction, SMC or HVC.

use core::arch::asm;
use core::sync::atomic::{AtomicU8, Ordering};

use smccc::psci::{self, AffinityState, Error, LowestAffinityLevel};
use smccc::{Hvc, Smc};

/// The instruction that calls the firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Conduit {
    /// Secure monitor call.
    Smc = 1,
    /// Hypervisor call, for a virtualized EL2.
    Hvc = 2,
}

/// Stops this CPU without a report.
pub fn park() -> ! {
    loop {
        // SAFETY: waiting changes nothing.
        unsafe { asm!("wfi", options(nomem, nostack, preserves_flags)) };
    }
}

/// Starts a CPU at physical address `entry` with `context` in x0.
pub fn cpu_on(mpidr: u64, entry: u64, context: u64) -> Result<(), Error> {
    call(|| psci::cpu_on::<Smc>(mpidr, entry, context), || psci::cpu_on::<Hvc>(mpidr, entry, context))
}

/// Switches this CPU off.
pub fn cpu_off() -> ! {
    let _ = call(psci::cpu_off::<Smc>, psci::cpu_off::<Hvc>);
    park()
}

/// Whether a CPU is on.
pub fn affinity_info(mpidr: u64) -> Result<AffinityState, Error> {
    let level = LowestAffinityLevel::All;
    call(|| psci::affinity_info::<Smc>(mpidr, level), || psci::affinity_info::<Hvc>(mpidr, level))
}

/// Switches the machine off. Returns only if that fails.
pub fn system_off() -> Result<(), Error> {
    call(psci::system_off::<Smc>, psci::system_off::<Hvc>)
}

/// 0: not set yet.
static CONDUIT: AtomicU8 = AtomicU8::new(0);

pub(crate) fn init(conduit: Conduit) {
    CONDUIT.store(conduit as u8, Ordering::Relaxed);
}

/// The instruction, once it is set.
pub(crate) fn conduit() -> Option<Conduit> {
    const SMC: u8 = Conduit::Smc as u8;
    const HVC: u8 = Conduit::Hvc as u8;
    match CONDUIT.load(Ordering::Relaxed) {
        SMC => Some(Conduit::Smc),
        HVC => Some(Conduit::Hvc),
        _ => None,
    }
}

fn call<T>(smc: impl FnOnce() -> Result<T, Error>, hvc: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    match conduit() {
        Some(Conduit::Smc) => smc(),
        Some(Conduit::Hvc) => hvc(),
        None => Err(Error::NotSupported),
    }
}
