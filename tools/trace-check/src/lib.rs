// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask trace-check`: checks a recorded trace (`docs/trace.md`) by its text alone.
//!
//! The hosted machine and the hypervisor can record each write of a table entry, each barrier, each TLB invalidation and
//! each lock as a line. This crate reads such a file and reports every line that breaks a rule of `docs/mmu-rules.md`,
//! with the earlier line that it conflicts with.
//!
//! # What it proves
//!
//! In this one recorded run, each change of a live entry was made by break-before-make; each flush named the right
//! addresses, level and VMID, and was complete before the CPU relied on it; tables were complete before they were linked,
//! and freed only after their flush; each write of a linked table was made under its lock.
//!
//! The proof does not rest on the engine: nothing here comes from `twofold-stage2`. The meaning of entries, operands and
//! barriers is written a second time, from the Arm ARM, so a misreading in the engine is not repeated here by copying it.
//!
//! # What it does not prove
//!
//! - That the trace is complete. An operation that is left out together with its line leaves no trace.
//! - Anything about runs other than the recorded one.
//! - That no CPU used a stale entry. The checker demands what the rules demand, whether or not a TLB held the entry.
//! - What no line records: loads, the order of writes that make no entry, the use of frames by guests.
//!
//! `docs/trace.md` has the whole list, under "What the checker cannot see".
//!
//! # How the checker itself is judged
//!
//! The tests corrupt recorded traces at one place at a time. The checker must report each corruption by the rule that it
//! breaks, and accept the unchanged traces.
//!
//! # Files
//!
//! `command` is the command, `report` reads the lines, and `check` hands each line to the rules. `state` is what a trace
//! says so far. `changes` has the rules of tables and entries, `flush` and `debts` those of invalidations, `publication`
//! those of visibility, and `guests` those of VTTBR_EL2 and vCPUs.

mod changes;
mod check;
mod command;
mod debts;
mod entries;
mod flush;
mod frames;
mod guests;
mod operands;
mod publication;
mod report;
mod rules;
mod state;
mod tables;
#[cfg(test)]
mod tests;

pub use command::{HELP, Options, command};
