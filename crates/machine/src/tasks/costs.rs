// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the machine does not measure and therefore charges: stated prices, each with its source.
//!
//! On the hosted machine an exit is a function call. So each exit, fault, interrupt and switch of a task advances its
//! vCPU's clock by a price. Prices of the hypervisor are those of KVM, not ours: its instruction counts
//! (`docs/results.md`), at 3 GHz and one instruction for each cycle. They are higher than ours, so the gains are lower.

use super::time::Nanos;

/// The prices of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// A stage-2 fault, from the guest's access to its next instruction.
    pub fault: Nanos,
    /// Any other exit and the entry that follows: a hypercall, a timer, a kick, WFI.
    pub exit: Nanos,
    /// Getting a vCPU to run that waited or was idle: the host switches to its thread.
    pub wake: Nanos,
    /// The guest's handling of an interrupt: vector, acknowledgement, handler, end of interrupt.
    pub interrupt: Nanos,
    /// The guest's switch from one task to another.
    pub switch: Nanos,
}

/// One price with its source, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stated {
    /// What it is paid for.
    pub what: &'static str,
    /// The price.
    pub price: Nanos,
    /// The source.
    pub source: &'static str,
}

/// 7,672 instructions: KVM's first touch of a 4 KiB page, counted at EL2 with its exit and entry.
const FAULT: Nanos = Nanos::new(2_557);
/// 3,343 instructions: KVM's write fault in a dirty log, counted in the same way. It is more than a bare exit.
const EXIT: Nanos = Nanos::new(1_114);
/// Assumed: the order of what Li, Ding and Shen report as the direct cost (Quantifying the Cost of Context Switch, 2007).
const SWITCH: Nanos = Nanos::new(3_800);
/// Assumed: 3,000 instructions of a guest kernel.
const INTERRUPT: Nanos = Nanos::new(1_000);

impl Costs {
    /// The prices that experiments charge.
    pub const STATED: Self = Self { fault: FAULT, exit: EXIT, wake: SWITCH, interrupt: INTERRUPT, switch: SWITCH };

    /// The prices with their sources.
    pub fn stated(&self) -> [Stated; 5] {
        let stated = |what, price, source| Stated { what, price, source };
        [
            stated("fault", self.fault, "KVM's first touch, 7,672 instructions at 3 GHz"),
            stated("other exit", self.exit, "KVM's write fault, 3,343 instructions at 3 GHz"),
            stated("vCPU's wake-up", self.wake, "assumed: the order of Li, Ding and Shen 2007"),
            stated("interrupt in the guest", self.interrupt, "assumed: 3,000 instructions at 3 GHz"),
            stated("switch of tasks", self.switch, "assumed: the order of Li, Ding and Shen 2007"),
        ]
    }
}
