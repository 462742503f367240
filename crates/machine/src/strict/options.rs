// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The configuration of a machine, and why one cannot be made.

use std::io;
use std::path::PathBuf;

use twofold_stage2::Features;

use super::bbm::Bbm;
use super::clock::CPUS;
use crate::arena::{ArenaError, ArenaOptions};

/// The configuration of a machine.
#[derive(Clone, Debug)]
pub struct Options {
    /// CPUs, 1 to 8.
    pub cpus: usize,
    /// The seed of all random choices.
    pub seed: u64,
    /// The average number of events between two switches from one CPU to another.
    pub events_between_switches: u32,
    /// The CPUs' features.
    pub features: Features,
    /// The changes of a mapping's size that the CPUs allow without a break.
    pub bbm: Bbm,
    /// Memory.
    pub memory: ArenaOptions,
    /// The file for a trace (`docs/trace.md`). If there is none, `TWOFOLD_TRACE` names one; the second machine of a
    /// process appends `.1` to the name, and so on.
    pub trace: Option<PathBuf>,
}

/// The reason why a machine cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// Too many CPUs, or none.
    #[error("{asked} CPUs: strict mode has 1 to {CPUS}; take {CPUS}, or the fast mode")]
    Cpus {
        /// The number of CPUs that was asked for.
        asked: usize,
    },
    /// The memory cannot be made.
    #[error(transparent)]
    Memory(#[from] ArenaError),
    /// The trace cannot be written.
    #[error("the trace cannot be written to {path}: {why}; name a file in a directory that exists")]
    Trace {
        /// The file.
        path: PathBuf,
        /// The error that the host returned.
        why: io::Error,
    },
}
