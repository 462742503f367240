// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask coverage`: which lines of `stage2` and `memory` the tests on the host execute.
//!
//! The compiler inserts the counters (`-C instrument-coverage`), and the toolchain's own `llvm-cov` reads them.
//!
//! # What it proves
//!
//! That at least 90 % of each crate's lines were executed by some test on the host, and which lines were not. Lines of
//! tests are not counted.
//!
//! # What it does not prove
//!
//! - That a test would notice if an executed line were wrong. `cargo xtask mutants` judges that.
//! - Anything about code that the host does not compile (`arm64.rs`), or about branches within a line.
//!
//! `measure` builds and runs the tests, `lines` has the counts, and `command` prints them.

mod command;
mod lines;
mod measure;

pub use command::{HELP, Options, command};
