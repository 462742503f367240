// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The dirty log on the host: what each operation costs (`dirty-costs`), and what logging costs the guest under each
//! tracker (`dirty-table`).
//!
//! Invariant: one thread runs guest and collector in turn, and every figure is that thread's CPU time. So work that
//! moves from one to the other stays in the sum. The subjects of one comparison are interleaved, run by run.

mod costs;
mod guest;
mod recorded;
mod span;
mod table;
mod workloads;

pub use costs::command as costs;
pub use table::command as table;
