// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of the command `mutants`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::mutation::Mutation;

/// The kinds of mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Of {
    /// A barrier, TLB invalidation, cache operation, lock or ordered access.
    Calls,
    /// A comparison's bound, a condition, an operator, a literal, a constant.
    Values,
    /// A register that the switch between vCPUs does not save, or does not restore.
    Registers,
}

/// Options of `mutants`.
#[derive(Args, Clone, Debug, Default)]
pub struct Options {
    /// Judges only mutants of one kind
    #[arg(long, value_enum)]
    pub of: Option<Of>,
    /// Judges only mutants with one of these in their names: FILE:LINE:COLUMN:KIND, FUNCTION/CALL/KIND, or a part of a
    /// value's change
    #[arg(long, value_name = "FILTER,...", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Judges one mutant for each called function and kind, and a sample of the mutants of values
    #[arg(long)]
    pub quick: bool,
    /// Lists the mutants and judges none
    #[arg(long)]
    pub list: bool,
    /// Mutants judged at a time; default: the number of CPUs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: Option<u16>,
    /// Also runs the EL2 tests in QEMU that leave out steps of the hypervisor's own sequences
    #[arg(long)]
    pub el2: bool,
    /// Writes the outcomes to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl Options {
    /// Returns whether `--only` selects a mutant.
    pub fn selects(&self, mutant: &impl Mutation) -> bool {
        let names = [mutant.to_string(), mutant.label()];
        self.only.is_empty() || names.iter().any(|name| self.only.iter().any(|only| name.contains(only.as_str())))
    }
}

/// The last lines of the command's help.
pub const HELP: &str = "\
There are three kinds of mutant. A mutant of a call leaves out or weakens one barrier, TLB invalidation, cache
operation, lock or ordered access. A mutant of a value changes one comparison's bound, condition, operator, literal or
constant. A mutant of a register loses one register when a vCPU is saved, or when it is restored.
The tests that execute a mutant run until one of them fails. A mutant is not caught if no test executes it, or if its
only effect is that a test exceeds its time limit. One that is not caught is printed when it is found.
On two CPUs, all mutants of calls have taken half an hour, those of values two hours, builds included.

Examples:
  cargo xtask mutants
  cargo xtask mutants --quick
  cargo xtask mutants --of values --only tlb.rs,Stage2::unmap
  cargo xtask mutants --of registers
  cargo xtask mutants --list

The last line is `mutants: N of M caught`. Exit status: 1 if a mutant is not caught and neither
tools/mutants/src/calls/excused.rs nor tools/mutants/src/values/excused/ names it.";
