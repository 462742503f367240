// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mutants of calls: a barrier, TLB invalidation, cache operation, lock or ordered access is left out or weakened.
//!
//! All of them are in one build of the engine (`--cfg mutants`). `source` and `reader` read the engine's source, `sites`
//! makes the list, `judges` builds the tests, and `run` judges. `excused` and `defects` name mutants of the list: those
//! that no test can catch, and those that are a defect of another project.

mod defects;
mod excused;
mod judges;
mod origin;
mod reader;
mod report;
mod run;
mod sites;
mod source;

pub use run::{find, judge, list};
