// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mutants of values: of a comparison's bound, a condition, an operator, a literal, or a constant.
//!
//! A copy of the sources below `target/` contains all of them in one build, and one is selected at run time. `sources`
//! names the files, `sites` makes the list, `rewrite` puts a switch at each node, `copy` builds, and `run` judges.
//! `switch` is not compiled here: it is the source of the crate that the copy's switches call.
//!
//! Invariant: a mutant counts as caught only if a test that evaluated it failed or reached the limit on evaluations. A
//! mutant that reaches the watchdog's time limit is reported, and is not caught.

mod constants;
mod copy;
mod excused;
mod names;
mod node;
mod rewrite;
mod run;
mod sites;
mod sources;
mod value;

pub use run::{judge, list};
