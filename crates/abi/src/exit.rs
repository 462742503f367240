// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The exit statuses of the hypervisor's image: the control channel's last line ([`control::EXIT`](crate::control::EXIT)).
//!
//! QEMU itself exits with 1 on bad arguments, so 1 never comes from the image. An image that ends by semihosting
//! (`SYS_EXIT_EXTENDED`) makes QEMU exit with the same status.

/// The guest powered itself off (PSCI `SYSTEM_OFF`); for a test image: every test passed.
pub const POWER_OFF: i32 = 0;
/// The guest asked for a reset (PSCI `SYSTEM_RESET`), which is what Linux does after a panic with `panic=-1`.
pub const RESET: i32 = 16;
/// A panic or an unexpected exception at EL2; the report is on the console and on the control channel.
pub const PANIC: i32 = 17;
/// The guest could not be started; the control channel says why.
pub const CANNOT_START: i32 = 18;
/// A test failed; the control channel says which and why.
pub const TEST_FAILED: i32 = 19;
