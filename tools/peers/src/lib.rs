// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask peers`: measures Linux's code for the same job beside ours, in one run.
//!
//! There are two peers. `peers linux` (`linux`) compiles KVM's stage-2 page-table code for this machine, unmodified, and
//! lets one operation of it and one of ours take turns. `peers kvm` ([`kvm`]) boots Debian's kernel at EL2 in QEMU, runs
//! the kernel's own selftests there, and counts KVM's instructions.
//!
//! # What it proves
//!
//! - **`peers linux`:** how long both sides take for the same operation on the same number of pages, on one machine, in
//!   turn, as medians; and how many TLB invalidations, barriers, cache lines, table pages and atomic operations each
//!   needs. A target is a ratio of two figures of one run, so a faster machine does not meet it more easily.
//! - **`peers kvm`:** how many instructions at EL2 KVM takes for a first touch, a write fault, a get and a clear. Equal
//!   kernels give equal figures on every host. These figures are the ones that reports show beside ours ([`recorded`]),
//!   and the suite `kvm` checks that they still hold. Also what an exit costs: a call, an interrupt, a
//!   timer tick, a switch of vCPUs, as the bare-metal guest measures them there.
//! - **`peers kvm`, also:** that the guest of `bench dirty-log --on kvm` measures what the kernel's own program measures:
//!   the same pages are dirty in each round, and the costs agree within 10 %.
//!
//! # What it does not prove
//!
//! - The cost of TLBI, DSB and cache operations themselves. In `peers linux` they are free and counted.
//! - What hardware would take. Instructions under QEMU are not cycles, and no time is measured there.
//! - Contention. `peers linux` runs one thread on each side, `peers kvm` one CPU.
//! - Anything about kernels other than the fetched one (Debian's 6.12 series).
//!
//! # The peer's code
//!
//! It is fetched on demand from Debian, built with headers or a counter of our own (`peers/linux`, `peers/kvm`; their
//! READMEs have the details), and runs as a separate process. None of it is linked with ours, and none of it is in this
//! repository. Invariant: the peer is changed by its own options only.

mod command;
mod difference;
pub mod kvm;
mod linux;
mod source;

pub use command::{Options, command};
pub use difference::Difference;
pub use kvm::recorded;
