// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `peers kvm`: what KVM itself costs, at EL2 in QEMU, counted with the kernel's own selftests.
//!
//! Debian's kernel boots at EL2 and runs the selftests in turn. Every figure is a number of instructions at EL2, of KVM
//! and of the kernel's memory management. The figures of `twofold bench dirty-log --on kvm` for the same experiment
//! stand beside them. Invariant: equal kernels and equal programs give equal figures on every host, because QEMU runs
//! in its deterministic mode.
//!
//! `exits` has what exits cost. `selftests` builds the kernel's programs, `experiment` has their options, `measure` runs them, `calls` and `phases`
//! read their output and ours, `agreement` compares the two, and `report` formats. `recorded` has the figures in use.

mod agreement;
mod calls;
mod exits;
mod experiment;
mod measure;
mod phases;
pub mod recorded;
mod report;
mod run;
mod selftests;

pub use measure::{Measured, Peer, TOLERANCE};
pub use report::{Figure, figures};
pub use run::{HELP, Options, command};
