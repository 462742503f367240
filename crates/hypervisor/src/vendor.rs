// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The calls by which a guest measures itself ([`twofold_abi::vendor`]), where its bundle allows them.
//!
//! Kept on the heap, and out of line, so that the way of an ordinary exit has nothing of it.

use alloc::boxed::Box;

use crate::log_calls::LogCalls;
use crate::phases::Phases;
use crate::stats::Meter;
use crate::vm::Vm;

/// What the calls of one vCPU have left.
#[derive(Default)]
pub struct VendorCalls {
    log: LogCalls,
    phases: Phases,
}

impl VendorCalls {
    /// For a vCPU of this virtual machine; `None` where it is not allowed.
    pub fn allowed(vm: &Vm) -> Option<Box<Self>> {
        vm.lets_guest_measure().then(Box::default)
    }

    /// Answers the call with these arguments (x0 to x3); `None` where it is none of these calls.
    #[inline(never)]
    pub fn call(&mut self, vm: &Vm, meter: &mut Meter, arguments: [u64; 4]) -> Option<i64> {
        let [function, first, ..] = arguments;
        let answer = self.phases.call(vm, meter, &self.log, [function, first]);
        answer.or_else(|| self.log.call(vm, arguments))
    }

    /// Writes what was measured to the control channel.
    pub fn report(&self, vm: &Vm) {
        self.phases.report(vm);
    }
}
