// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest of the experiments under this host's KVM, on arm64 and x86-64. A kernel developer can run it before and
//! after a patch.
//!
//! A [`KvmGuest`] is a virtual machine with a small guest of our own. Its vCPUs do [passes](twofold_workload::pass) over
//! their memory, and report when they are done. The operations of the experiments are its methods. Each returns its
//! cost: wall-clock time, CPU time and, if there is a counter, instructions of the host's kernel.
//!
//! On arm64 `bare` boots a bare-metal image in the same way, with an interrupt controller, a UART and a
//! clock.
//!
//! Invariants:
//!
//! * A guest that the host cannot run is refused before memory is touched. The error says what was needed, what there
//!   is, and what to do.
//! * No thread waits by polling, and nothing is printed or allocated while the clock runs.
//! * The guest's writes follow from its passes alone, so the same pages are dirty as on the hosted machine.

mod arch;
#[cfg(target_arch = "aarch64")]
pub mod bare;
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
pub use guest::{Granted, KvmGuest, SlotPage, available};
pub use host::{Host, Pool};
pub use layout::REGION;
pub use measure::{Cost, counts_instructions};
pub use options::{Backing, Clearing, KvmOptions, Log, Region};
pub use run::{RunTime, VcpuTime};
