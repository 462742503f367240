// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The costs of Linux's KVM, in instructions at EL2.
//!
//! `cargo xtask peers kvm` measures each of them: Linux 6.12's KVM with its host kernel (VHE), in the same emulator and
//! deterministic mode as ours, for a VM with an in-kernel GIC. The suite `kvm` holds them against the kernel that it runs.

/// The heading of every row and column with figures of KVM.
pub const HEADING: &str = "KVM with its host kernel (VHE)";
/// The first touch of an anonymous 4 KiB page. It goes through KVM and the host kernel's memory management.
pub const FIRST_TOUCH: u64 = 7_672;
/// A write to a write-protected page of a memslot with a dirty log: 2 TLBIs and 3 DSBs among them.
pub const WRITE_FAULT: u64 = 3_343;
/// One page of a dirty iteration: the fault, and the page's part of the get and of the clear.
pub const ITERATION: u64 = 3_421;
/// One page of a clear.
pub const CLEAR: u64 = 78;
