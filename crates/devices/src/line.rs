// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A device's interrupt line.

/// The line from a device to the interrupt controller.
///
/// A device sets the level that its registers call for, after each change of them, as often as it likes: setting the
/// same level again changes nothing. What an edge is, and which vCPU is interrupted, is the controller's decision.
pub trait InterruptLine {
    /// Sets the line's level.
    fn set(&mut self, asserted: bool);
}

/// A line that only keeps its level.
impl InterruptLine for bool {
    fn set(&mut self, asserted: bool) {
        *self = asserted;
    }
}
