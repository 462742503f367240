// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask mutants`: leaves out, weakens or changes each step of the engine, one at a time, and reports the mutants
//! that no test caught.
//!
//! There are three kinds. A *mutant of a call* (`calls`) leaves out or weakens one barrier, TLB invalidation, cache
//! operation, lock or ordered access. A *mutant of a value* (`values`) changes one comparison's bound, condition,
//! operator, literal or constant. A *mutant of a register* (`registers`) loses one register in the switch between vCPUs.
//! All mutants of a kind are in one build, and an environment variable selects one.
//!
//! # What it proves
//!
//! - **The tests see each listed step.** A caught mutant is a step whose absence or change made a named test fail, after
//!   that test executed it. So the step is needed, and a later edit that loses it fails the same test.
//! - **The list is complete by construction.** It comes from the source: what can be left out is declared once, in
//!   `stage2::instrumented`, and each call of it is a site. A step that the reader cannot resolve is an error.
//! - **Defects of other projects would be seen here.** `calls` names a mutant for each that a mutant can express.
//!
//! # What it does not prove
//!
//! - That the engine is right. A mutant shows that a test depends on a step, not that the steps suffice.
//! - Anything about two changes at once, or about code that is missing altogether.
//! - That an excused mutant is harmless. Each excuse is an argument in words, which a reader must check. The report
//!   names each of them and counts it as not caught.
//! - Anything about code that the hosted machine does not execute: `arm64.rs`, and most of the hypervisor.
//!
//! # Verdicts do not depend on time
//!
//! Only the tests that execute a mutant judge it, with fixed seeds, and concurrent CPUs take seeded turns. An endless loop
//! ends at a number of evaluations. The watchdog on time ends the rest; its verdict is not "caught".

mod aside;
mod calls;
mod command;
mod judge;
mod judged;
mod mutation;
mod options;
mod outcome;
mod parallel;
mod program;
mod registers;
mod syntax;
mod values;

pub use calls::find;
pub use command::command;
pub use judge::CHOICE;
pub use options::{HELP, Options};
