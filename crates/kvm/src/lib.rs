// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest of the experiments under this host's KVM, on arm64 and x86-64: what a kernel's developer runs before and after
//! a patch.
//!
//! A [`KvmGuest`] is a virtual machine with a small guest of our own, whose vCPUs do [passes](twofold_pattern::pass) over
//! their memory and tell when they are done. The operations of the experiments are its methods; each answers with what it
//! cost: wall time, CPU time, and where there is a counter, instructions of the host's kernel.
//!
//! Invariants:
//!
//! * What is refused is refused before memory is touched, with what was needed, what there is, and what to do.
//! * Nobody waits by looking over and over, and nothing is printed or allocated in what is timed.
//! * What the guest writes follows from its passes alone, so the same pages are dirty as on the hosted machine.

mod arch;
mod bitmap;
mod calls;
pub mod check;
mod dirty;
mod error;
mod guest;
mod host;
mod layout;
mod mapping;
mod measure;
mod options;
mod ring;
mod run;
mod system;
mod vcpu;

pub use bitmap::Bitmap;
pub use error::{KvmError, Unavailable};
pub use guest::{Granted, KvmGuest, Place, available};
pub use host::{Host, Pool};
pub use layout::REGION;
pub use measure::{Cost, counts_instructions};
pub use options::{Backing, Clearing, KvmOptions, Log, Region};
pub use run::{RunTime, VcpuTime};
