// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The calls by which a guest measures itself ([`twofold_abi::vendor`]), where its bundle allows them.
//!
//! A guest has one set of them for all its vCPUs, made before its first instruction: a vCPU that starts or stops allocates
//! nothing and frees nothing. They are kept out of line, so that the way of an ordinary exit has nothing of them.
//!
//! Invariant: no CPU ends the guest while it holds the lock, for which the CPU that reports waits.

use spin::Mutex;

use crate::log_calls::LogCalls;
use crate::phases::Phases;
use crate::stats::Meter;
use crate::vm::Vm;

/// What the calls of the guest's vCPUs have left.
pub struct VendorCalls(Mutex<State>);

struct State {
    log: LogCalls,
    phases: Phases,
}

impl VendorCalls {
    /// For a guest with so many slots of test memory.
    pub fn new(slots: usize) -> Self {
        Self(Mutex::new(State { log: LogCalls::new(slots), phases: Phases::default() }))
    }

    /// Answers the call with these arguments (x0 to x3); `None` where it is none of these calls.
    #[inline(never)]
    pub fn call(&self, vm: &Vm, meter: &mut Meter, arguments: [u64; 4]) -> Option<i64> {
        let [function, first, ..] = arguments;
        let answer = {
            let State { log, phases } = &mut *self.0.lock();
            phases.call(vm, meter, log, [function, first]).or_else(|| log.call(vm, arguments).map(Ok))
        };
        // Without the lock: another CPU may end the guest just now, and wait for it.
        Some(answer?.unwrap_or_else(|phase| vm.fail(format_args!("a count fell in the phase {phase}"))))
    }

    /// Writes what was measured to the control channel.
    pub fn report(&self, vm: &Vm) {
        self.0.lock().phases.report(vm);
    }
}
