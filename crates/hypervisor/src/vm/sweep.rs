// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Work on all of a guest's RAM for the launcher's commands, in pieces, while the guest may run: its dirty log, its blocks, and
//! how it is mapped.
//!
//! # A piece, and the guest's end or reset
//!
//! - P1. The piece takes the guest's lock for sweeps.
//! - P2. It looks whether the guest runs or is stopped. If it does neither, the piece does nothing.
//! - P3. It works.
//! - P4. It gives the lock back.
//!
//! A release and a restart change the guest's life first. Then they wait until this lock is free, as for the vCPUs' locks
//! (`Vm::has_turns`). A piece that had taken the lock before is waited for. One that takes it later sees the change in P2. So a
//! piece never works on memory that is released or cleared.
//!
//! Invariant: a piece executes at most 21,000 instructions, and the CPU takes its interrupts after each; but the first piece
//! of a log makes and fills its bitmaps, which takes longer for a guest of more than 512 MiB.

use core::ops::Range;

use spin::Mutex;
use twofold_abi::channel::PAGE_SIZE;
use twofold_abi::virt;
use twofold_memory::dirty::{DirtyLog, LogError, LogOptions, Tracker};
use twofold_stage2::Ipa;
use twofold_vmm::life::NotNow;

use super::Vm;
use crate::experiment::EnginePlatform;
use crate::granule::{GuestGranule, PAGE};

/// What a sweep does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sweep {
    /// Start a dirty log, with all pages in it. [`Protect`](Self::Protect) comes next.
    Start,
    /// Clear the log: from here on, the pages that the guest writes are in it.
    Protect,
    /// Collect it.
    Collect,
    /// Split blocks.
    Split,
    /// Make blocks.
    Coalesce,
}

/// A guest's lock for sweeps (P1), with what its log is for.
#[derive(Default)]
pub(crate) struct Sweeps(Mutex<LogUse>);

/// What the log of a guest's RAM is for.
#[derive(Default)]
struct LogUse {
    /// Pages that it has collected.
    collected: u64,
    /// A launcher copies the guest by it ([`tracked`](super::tracked)): nothing else may take pages out of it.
    is_copied: bool,
}

/// What a piece did.
pub(crate) struct Swept {
    /// Pages that were collected, or blocks that were split or made.
    pub(crate) found: u64,
    /// The page of RAM to continue from; `None`: this was the last piece.
    pub(crate) next: Option<u64>,
}

/// Why a piece did nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unswept {
    /// The guest is not in a state for it.
    #[error(transparent)]
    Guest(#[from] NotNow),
    /// The log does not run, or the tables cannot be changed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log is for another use.
    #[error("a launcher copies the guest's memory by its dirty log")]
    Copied,
}

impl Unswept {
    /// Whether it is the guest's state or its log's, and no failure.
    pub(crate) fn is_state(&self) -> bool {
        matches!(
            self,
            Self::Guest(_) | Self::Copied | Self::Log(LogError::Running { .. } | LogError::NotRunning { .. })
        )
    }
}

/// Pages of 4 KiB, in which all answers are, in a page of the guest's tables.
const FRAMES: u64 = PAGE / PAGE_SIZE as u64;
/// Pages of a piece that looks at each page: two huge pages, whose pages may all be written or split.
const PIECE: u64 = 2 * 512;
/// Pages of a piece that changes each leaf: a table, whose leaves may all have been accessed.
const ACCESSES_PIECE: u64 = 512;
/// Pages of a piece that looks at tables.
const TABLES_PIECE: u64 = 128 * 512;

impl Sweeps {
    /// Whether a piece is under way.
    pub(crate) fn has_turn(&self) -> bool {
        self.0.try_lock().is_none()
    }

    /// A piece of other work (P1, P4).
    pub(super) fn piece<T>(&self, work: impl FnOnce() -> T) -> T {
        let _piece = self.0.lock();
        work()
    }

    /// A piece that starts the logs by which a launcher copies the guest.
    pub(super) fn begin_copy(&self, start: impl FnOnce() -> Result<(), Unswept>) -> Result<(), Unswept> {
        let mut log = self.0.lock();
        start()?;
        log.is_copied = true;
        Ok(())
    }
}

impl Vm {
    /// A piece of a sweep, from this page of RAM on.
    pub(crate) fn sweep(&self, sweep: Sweep, page: u64) -> Result<Swept, Unswept> {
        let mut log_use = self.sweeps.0.lock();
        let log = self.ram_log()?;
        let (pages, next) = piece(page, PIECE, log.pages());
        let found = match sweep {
            Sweep::Start => {
                // A block is split when the guest first writes to it.
                log.start(&LogOptions { chunk: 0, ..LogOptions::new(Tracker::Manual) })?;
                *log_use = LogUse::default();
                return Ok(Swept { found: 0, next: None });
            }
            Sweep::Protect | Sweep::Collect if log_use.is_copied => return Err(Unswept::Copied),
            Sweep::Protect => {
                log.collect(pages)?;
                0
            }
            Sweep::Collect => {
                let found = log.collect(pages)? * FRAMES;
                log_use.collected += found;
                found
            }
            Sweep::Split => log.split_pages(pages)?,
            // Pages that no block can be made of would not be refused.
            Sweep::Coalesce if log.tracker().is_some() => {
                return Err(LogError::Running { start: Ipa::new(virt::RAM_BASE) }.into());
            }
            Sweep::Coalesce => log.coalesce_pages(pages)?,
        };
        Ok(Swept { found, next })
    }

    /// Stops the dirty log.
    pub(crate) fn stop_log(&self) -> Result<(), Unswept> {
        let mut log_use = self.sweeps.0.lock();
        self.ram_log()?.stop()?;
        log_use.is_copied = false;
        // Those of the other memslots run only if a launcher tracks all.
        let _ = self.stop_logs(self.memslots().count() - 1);
        Ok(())
    }

    /// The pages that the dirty log has collected; `None`: no log runs, or it is for another use.
    pub(crate) fn collected(&self) -> Option<u64> {
        let log_use = self.sweeps.0.lock();
        self.memory.dirty_log(self.ram).ok()?.tracker().filter(|_| !log_use.is_copied).map(|_| log_use.collected)
    }

    /// The leaves that map a piece of RAM from this page on, by level, and the page to continue from. `None`: the guest is
    /// not in a state for it.
    pub(crate) fn leaves(&self, page: u64) -> Option<([u64; 4], Option<u64>)> {
        let _piece = self.sweeps.0.lock();
        let log = self.ram_log().ok()?;
        let (pages, next) = piece(page, TABLES_PIECE, log.pages());
        let at = |page: u64| Ipa::new(virt::RAM_BASE + page * PAGE);
        let leaves = self.memory.stage2().count_leaves(at(pages.start)..at(pages.end)).ok()?;
        Some((leaves, next))
    }

    /// Begins to count the pages of RAM that were accessed. Returns whether [`accesses`](Self::accesses) is to follow, and then
    /// [`end_accesses`](Self::end_accesses).
    ///
    /// A guest without a store has no working set that is of interest. Where hardware keeps no access flags, each page would
    /// fault.
    pub(crate) fn begin_accesses(&self) -> bool {
        let has_flags = self.memory.stage2().features().hardware_access_flag;
        self.swap().is_some_and(|swap| has_flags && swap.counts().begin_window())
    }

    /// Counts those of a piece of RAM from this page on, and begins anew for them. Returns the page to continue from, too.
    /// `None`: the guest is not in a state for it.
    pub(crate) fn accesses(&self, page: u64) -> Option<(u64, Option<u64>)> {
        let _piece = self.sweeps.0.lock();
        let log = self.ram_log().ok()?;
        let (pages, next) = piece(page, ACCESSES_PIECE, log.pages());
        let at = |page: u64| Ipa::new(virt::RAM_BASE + page * PAGE);
        let accessed = self.memory.count_accessed(at(pages.start)..at(pages.end)).ok()?;
        if next.is_none() {
            self.memory.stage2().invalidate_all();
        }
        Some((accessed, next))
    }

    /// All were counted; `None`: the guest was not in a state for it.
    pub(crate) fn end_accesses(&self, accessed: Option<u64>) {
        if let Some(swap) = self.swap() {
            swap.counts().end_window(accessed, self.memory.accessed_and_left());
        }
    }

    /// The pages that the guest has accessed from one statistics command to the next, if they were counted.
    pub(crate) fn working_set(&self) -> Option<u64> {
        self.swap()?.counts().working_set()
    }

    /// P2. The log of RAM, if the guest runs or is stopped.
    fn ram_log(&self) -> Result<DirtyLog<'_, EnginePlatform, GuestGranule>, Unswept> {
        self.look()?;
        Ok(self.memory.dirty_log(self.ram)?)
    }
}

fn piece(page: u64, most: u64, all: u64) -> (Range<u64>, Option<u64>) {
    let end = (page + most).min(all);
    (page..end, (end < all).then_some(end))
}
