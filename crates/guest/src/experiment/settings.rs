// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The settings of an experiment, from the words of the command line.
//!
//! The launcher has checked that they make sense (`twofold-launch`, `experiment`). This parser also refuses the words
//! that would break the program itself: a known word with an unreadable value, and memory that is not whole pages.

use twofold_abi::vendor::{TRACKERS, WRITE_PROTECT};
use twofold_workload::mode::Mode;

use crate::number::{hexadecimal, size};

/// An experiment.
#[derive(Clone, Copy)]
pub struct Settings {
    /// `experiment=dirty-log` or `page-table`.
    pub name: Name,
    /// `mode=p40v48-4k`, by name or number.
    pub mode: Mode,
    /// `ipa-bits=40`: bits of a guest physical address.
    pub ipa_bits: u32,
    /// `at=0x...`: the start of the test memory.
    pub at: u64,
    /// `bytes=64M`: its size, a multiple of the mode's granule.
    pub bytes: u64,
    /// `iterations=2`.
    pub iterations: u64,
    /// `tracker=combined`, as an index of [`TRACKERS`].
    pub tracker: usize,
    /// `all-dirty=1`: all pages are dirty at first. The default is 1 for each tracker with a separate clear.
    pub all_dirty: bool,
    /// `chunk=2M`: the number of bytes to split at once.
    pub chunk: u64,
    /// `write-percent=100`.
    pub write_percent: u64,
    /// `random-order=0`.
    pub random_order: u64,
    /// `seed=1`: the generator's first state.
    pub seed: u64,
    /// `block=4K`: the size of the test memory's backing pages or blocks, a multiple of 4 KiB.
    pub block: u64,
    /// `coalesce=0`: whether blocks are coalesced after the log has stopped, before the guest's accesses.
    pub coalesce: bool,
}

/// The experiments.
#[derive(Clone, Copy)]
pub enum Name {
    /// As `dirty_log_perf_test`.
    DirtyLog,
    /// As `kvm_page_table_test`.
    PageTable,
}

/// A word with an invalid value.
#[derive(Debug, thiserror::Error)]
#[error("{key}={value} is invalid, alone or with the other words")]
pub struct WrongWord<'a> {
    key: &'a str,
    value: &'a str,
}

impl Settings {
    /// Reads the words of a command line.
    pub fn parse(arguments: &str) -> Result<Self, WrongWord<'_>> {
        let mut settings = Self::default();
        let mut all_dirty = None;
        for word in arguments.split_ascii_whitespace() {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            settings.take(key, value, &mut all_dirty).ok_or(WrongWord { key, value })?;
        }
        settings.all_dirty = all_dirty.unwrap_or(settings.tracker != WRITE_PROTECT);
        let granule = settings.mode.granule.size();
        if settings.bytes == 0 || !settings.bytes.is_multiple_of(granule) {
            return Err(WrongWord { key: "bytes", value: "(its size)" });
        }
        if settings.block < 4096 || !settings.bytes.is_multiple_of(settings.block) {
            return Err(WrongWord { key: "block", value: "(its size)" });
        }
        Ok(settings)
    }

    fn take(&mut self, key: &str, value: &str, all_dirty: &mut Option<bool>) -> Option<()> {
        let is_on = || [("0", false), ("1", true)].into_iter().find(|(text, _)| *text == value).map(|(_, on)| on);
        match key {
            "experiment" => {
                self.name = match value {
                    "dirty-log" => Name::DirtyLog,
                    "page-table" => Name::PageTable,
                    _ => return None,
                }
            }
            "mode" => self.mode = Mode::find(value)?,
            "ipa-bits" => self.ipa_bits = value.parse().ok()?,
            "at" => self.at = hexadecimal(value)?,
            "bytes" => self.bytes = size(value)?,
            "iterations" => self.iterations = value.parse().ok()?,
            "tracker" => {
                let is =
                    |name: &&str| name.bytes().eq(value.bytes().map(|byte| if byte == b'-' { b'_' } else { byte }));
                self.tracker = TRACKERS.iter().position(is)?;
            }
            "all-dirty" => *all_dirty = Some(is_on()?),
            "chunk" => self.chunk = size(value)?,
            "write-percent" => self.write_percent = value.parse().ok().filter(|percent| *percent <= 100)?,
            "random-order" => self.random_order = is_on()?.into(),
            "seed" => self.seed = value.parse().ok().filter(|seed| (1..(1 << 31) - 1).contains(seed))?,
            "block" => self.block = size(value)?,
            "coalesce" => self.coalesce = is_on()?,
            // Not a word of this program.
            _ => {}
        }
        Some(())
    }
}

impl Default for Settings {
    fn default() -> Self {
        let mode = Mode::find("p40v48-4k").expect("it is in the list of modes");
        Self {
            name: Name::DirtyLog,
            mode,
            ipa_bits: 40,
            at: 0,
            bytes: 0,
            iterations: 2,
            tracker: WRITE_PROTECT,
            all_dirty: false,
            chunk: 2 << 20,
            write_percent: 100,
            random_order: 0,
            seed: 1,
            block: 4096,
            coalesce: false,
        }
    }
}
