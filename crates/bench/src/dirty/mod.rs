// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The dirty log, natively: what each of its operations costs (`dirty-costs`), and what a guest that is logged loses by each
//! tracker (`dirty-table`).
//!
//! Invariant: one thread does everything, guest and collector in turn, and its CPU time is what is told: what is moved from one
//! of them to the other stays in the sum. What is measured together takes turns, run by run.

mod costs;
mod guest;
mod patterns;
mod recorded;
mod rows;
mod shown;
mod span;
mod table;

pub use costs::command as costs;
pub use table::command as table;
