// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The calls by which a guest measures itself ([`twofold_abi::vendor`]), if its bundle allows them.
//!
//! A guest has one state of them for all its vCPUs, made before its first instruction, so a vCPU that starts or stops
//! allocates and frees nothing. The calls are out of line, so an ordinary exit pays nothing for them.
//!
//! Invariant: no CPU ends the guest while it holds the lock, because the CPU that reports waits for the lock.

use spin::Mutex;
use twofold_abi::vendor;

use super::log_calls::LogCalls;
use super::observed_guest::ObservedGuest;
use super::phases::Phases;
use crate::stats::Meter;

/// The state between the calls of the guest's vCPUs.
pub struct VendorCalls(Mutex<State>);

struct State {
    log: LogCalls,
    phases: Phases,
}

impl VendorCalls {
    /// For a guest with `slots` slots of test memory.
    pub fn new(slots: usize) -> Self {
        Self(Mutex::new(State { log: LogCalls::new(slots), phases: Phases::default() }))
    }

    /// Answers the call with these arguments (x0 to x3). Returns `None` if it is not one of these calls.
    #[inline(never)]
    pub fn call(&self, guest: &impl ObservedGuest, meter: &mut Meter, arguments: [u64; 4]) -> Option<i64> {
        let [function, first, ..] = arguments;
        if function == vendor::SWAP_OUT.into() {
            return Some(guest.swap_out().map_or(vendor::NOT_SUPPORTED, |pages| pages as i64));
        }
        let answer = {
            let State { log, phases } = &mut *self.0.lock();
            phases.call(guest, meter, log, [function, first]).or_else(|| log.call(guest, arguments).map(Ok))
        };
        // Outside the lock: another CPU may be ending the guest, and waits for the lock.
        Some(answer?.unwrap_or_else(|phase| guest.fail(format_args!("a count fell in the phase {phase}"))))
    }

    /// Writes the figures of all phases to the control channel.
    pub fn report(&self, guest: &impl ObservedGuest) {
        self.0.lock().phases.report(guest);
    }
}
