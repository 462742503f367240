// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a trace says so far, and the rules that it broke.
//!
//! Invariant: after a breach the checker takes the line's effect as given, so that one mistake is reported once.

use std::collections::HashMap;

use super::flush::Flushes;
use super::frames::Frames;
use super::guests::Guests;
use super::operands::Formats;
use super::publication::Publication;
use super::rules::Rule;
use super::tables::Tables;

/// The state that a trace describes.
#[derive(Clone, Default)]
pub struct Checker {
    pub(super) tables: Tables,
    pub(super) frames: Frames,
    pub(super) locks: HashMap<u64, Lock>,
    pub(super) flushes: Flushes,
    pub(super) publication: Publication,
    pub(super) guests: Guests,
    /// For each CPU, the entry whose hardware records its next store may overwrite.
    pub(super) unrecorded: HashMap<u32, u64>,
    pub(super) formats: Formats,
    /// The rules that were broken.
    pub breaches: Vec<Breach>,
    /// The events at which lines are missing.
    pub lost: Vec<usize>,
}

/// A broken rule. An event is named by its number in the sorted trace.
#[derive(Clone)]
pub struct Breach {
    pub at: usize,
    pub rule: Rule,
    pub what: String,
    /// The earlier event that conflicts with it.
    pub since: Option<usize>,
}

/// A lock that a CPU holds.
#[derive(Clone, Copy)]
pub struct Lock {
    pub cpu: u32,
    pub at: usize,
}

impl Checker {
    /// Adds a breach.
    pub(super) fn breach(&mut self, at: usize, since: Option<usize>, rule: Rule, what: impl Into<String>) {
        self.breaches.push(Breach { at, rule, what: what.into(), since });
    }
}
