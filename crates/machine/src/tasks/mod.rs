// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guest tasks in virtual time: a guest whose vCPUs schedule tasks, over memory whose pages leave and come back.
//!
//! A discrete-event machine ([`TaskMachine`]). Each vCPU has a clock of its own. Tasks ([`Task`]) advance it by the
//! stated cost of their steps, and exits, interrupts and switches by stated prices ([`Costs`]). The store is late by
//! virtual time, so 60 seconds of a guest that waits for a disk pass in about one.
//!
//! What is real: each access goes through the machine's MMU and the engine's tables. Faults go to the guest's own
//! [`GuestMemory`](twofold_memory::GuestMemory), and absent pages to its state machine
//! ([`async_fault`](twofold_memory::async_fault)). The guest's kernel reads and writes its areas by such accesses, too.
//!
//! What is modelled: time. No figure of this machine is a measured time of any hardware.
//!
//! | file | concept |
//! |---|---|
//! | `machine.rs` | the order of events, M1 to M4 |
//! | `vcpu.rs`, `lines.rs`, `seats.rs` | one vCPU, its interrupts, and the CPU under it |
//! | `kernel.rs`, `scheduler.rs`, `task.rs` | the guest |
//! | `pager.rs`, `swapped.rs`, `store.rs` | memory whose pages may be absent; a guest's memory with a store in virtual time |
//! | `bm.rs` | the tasks of the program `bm` |
//! | `time.rs`, `costs.rs` | virtual time and prices |

pub mod bm;
mod costs;
mod kernel;
mod lines;
mod machine;
mod pager;
mod scheduler;
mod seats;
mod store;
mod swapped;
mod task;
mod time;
mod vcpu;

pub use costs::{Costs, Stated};
pub use kernel::{Enabled, KernelCounts};
pub use machine::{Counts, Ended, MachineError, TaskMachine, VcpuTasks};
pub use pager::{Paged, Pager, Request};
pub use scheduler::{SLICE, Scheduler, TaskId};
pub use store::{StoreCounts, VirtualStore};
pub use swapped::Swapped;
pub use task::{Access, Privilege, Step, Task};
pub use time::Nanos;
pub use vcpu::VcpuCounts;
