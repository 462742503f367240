// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Blocks and pages, while the guest runs. After a log has stopped, ranges are coalesced into blocks again, one by one, before
//! the guest faults (Wang 2021). And blocks are split ahead of a log (Bras 2026).
//!
//! Invariant: a range is coalesced only while no log runs, so no block is written without a mark for each of its pages;
//! and only if all its pages are ready, so nothing has to be zeroed for it.

use core::ops::{ControlFlow, Range};

use twofold_stage2::{Coalesced, Error, Grant, Granule, Ipa, Level, Mapped, Platform, Stopped};

use super::options::LogError;
use super::start::DirtyLog;
use crate::frames::HUGE_PAGE;
use crate::guest::Pages;
use crate::ram::Ram;
use crate::slots::Content;

/// What [`DirtyLog::coalesce_range`] did, and where to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct CoalescedRange {
    /// Blocks that were made.
    pub blocks: u64,
    /// The page to continue from, or `None` if the end of the slot was reached.
    pub next: Option<u64>,
}

impl<P: Platform, G: Granule> DirtyLog<'_, P, G> {
    /// Coalesces the slot from page `page` on into the largest blocks that fit, or into contiguous groups: at most `blocks` of them, with one
    /// flush each. `page` counts from the start of the slot, and is rounded up to the next boundary of the smallest
    /// blocks (2 MiB with the 4 KiB granule) of the guest's addresses.
    ///
    /// Call it after the log has stopped, between other work, again and again with the [`next`](CoalescedRange::next) that
    /// the last call returned. vCPUs may run meanwhile.
    ///
    /// A range is left as it is if a page of it was never touched, if its first page is not mapped, or if it is mapped
    /// by a block as large already. A guest of [`Pages::Small`] and a slot whose log was never started have nothing to
    /// coalesce: `Ok`, with 0 blocks.
    ///
    /// # Errors
    ///
    /// [`LogError::Running`] if a log runs when a range is to be coalesced. The log is looked at only there: with every
    /// range left as it is, or with `blocks` 0, the call returns `Ok` while a log runs, and changes nothing. `Ok` is
    /// therefore no proof that no log runs; [`tracker`](Self::tracker) reports that.
    ///
    /// [`LogError::Stage2`] if the tables cannot be changed.
    ///
    /// Blocks that were made before an error stay.
    pub fn coalesce_range(&self, page: u64, blocks: u64) -> Result<CoalescedRange, LogError> {
        self.coalesce_until(page, self.slot.range.end, blocks)
    }

    /// [`coalesce_range`](Self::coalesce_range) of the whole huge pages of the guest in these pages, however many blocks that
    /// is. Returns the number of blocks that were made. The time that it takes is bounded by the range.
    ///
    /// # Errors
    ///
    /// As [`coalesce_range`](Self::coalesce_range).
    pub fn coalesce_pages(&self, pages: Range<u64>) -> Result<u64, LogError> {
        let end = self.slot.range.start + pages.end.min(self.pages()) * G::SIZE;
        Ok(self.coalesce_until(pages.start, end, u64::MAX)?.blocks)
    }

    /// Splits all blocks that map some of these pages, whether a log runs or not. Returns the number of blocks that were
    /// split. [`coalesce_range`](Self::coalesce_range) makes blocks of them again, and so does a fault.
    ///
    /// # Errors
    ///
    /// [`LogError::NoMemory`] for the slot's bitmaps, which its first log would make. [`LogError::Stage2`] if the tables cannot
    /// be changed, or no table page is left. Blocks that were split before an error stay split.
    pub fn split_pages(&self, pages: Range<u64>) -> Result<u64, LogError> {
        let (memory, slot) = (self.memory, self.slot);
        // A coalesce looks for blocks only if there is a log.
        let _ = slot.tracking.log_or_new(self.pages())?;
        let at = |page: u64| slot.range.start + page.min(self.pages()) * G::SIZE;
        let range = at(pages.start)..at(pages.end);
        if range.start >= range.end {
            return Ok(0);
        }
        let (block, on) = (smallest_block::<G>(), |_: &mut _, _| ControlFlow::Continue(()));
        let split = memory.stage2.split(range, block, &mut memory.tables(), on)?;
        match split.stopped {
            Some(Stopped::Dry) => Err(Error::NoTablePage { ipa: split.done, level: Level::L3 }.into()),
            Some(Stopped::Asked) | None => Ok(split.blocks),
        }
    }

    /// [`coalesce_range`](Self::coalesce_range), up to the address `limit`.
    fn coalesce_until(&self, page: u64, limit: Ipa, blocks: u64) -> Result<CoalescedRange, LogError> {
        let (memory, slot) = (self.memory, self.slot);
        let mut coalesced = CoalescedRange { blocks: 0, next: None };
        // If no log was ever started, none has split a block.
        let Some(log) = slot.tracking.log().filter(|_| memory.pages == Pages::Largest) else { return Ok(coalesced) };
        let platform = memory.stage2.platform();
        let block = smallest_block::<G>();
        let mut at = (slot.range.start + page.min(self.pages()) * G::SIZE).raw().next_multiple_of(block);
        while let Some(end) = at.checked_add(block).filter(|end| *end <= limit.raw()) {
            let ipa = Ipa::new(at);
            if coalesced.blocks == blocks {
                coalesced.next = Some((ipa - slot.range.start) / G::SIZE);
                return Ok(coalesced);
            }
            at = end;
            let Some((level, grant)) = self.ready_block(ipa) else { continue };
            let Some(leaf) = memory.stage2.look_up(ipa) else { continue };
            at = (ipa + grant.size()).raw();
            if leaf.level < level || leaf.level == level && (level < Level::L3 || leaf.descriptor.is_contiguous()) {
                // The range is a block or a group already, so the lock is not needed.
                continue;
            }
            // Held for one block, so that a start waits for no more than one.
            let _own = log.hold(platform);
            if slot.tracking.running().is_some() {
                return Err(LogError::Running { start: slot.range.start });
            }
            let attributes = memory.ram_attributes(true, false, false);
            let made = match level {
                Level::L3 => memory.map_group(grant, &attributes).map(Coalesced::Mapped),
                _ => memory.coalesce(level, grant, &attributes),
            };
            match made {
                Ok(Coalesced::Done { .. } | Coalesced::Mapped(Mapped::New)) => coalesced.blocks += 1,
                Ok(Coalesced::Mapped(_)) => {}
                // Some memory was withdrawn, perhaps this: find out again.
                Err(Error::Withdrawn { .. }) => at = ipa.raw(),
                Err(Error::NotOneGroup { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(coalesced)
    }

    /// The largest block that may begin at `ipa`, a boundary of the smallest blocks, if all of it is ready: its level, and the right to
    /// map it.
    fn ready_block(&self, ipa: Ipa) -> Option<(Level, Grant<'_, P, G>)> {
        let stage2 = &self.memory.stage2;
        match &self.slot.content {
            Content::Ram(_) if Ram::<G>::LARGEST == Level::L3 && !Ram::<G>::IS_GROUP => None,
            Content::Ram(ram) => {
                let ram = ram.lock(stage2.platform());
                Some((Ram::<G>::LARGEST, stage2.grant(ram.ready_huge_page(ipa)?, ipa, HUGE_PAGE)?))
            }
            Content::Preallocated(preallocated) => {
                let leaf = preallocated.leaf_from(&self.slot.range, ipa, stage2.geometry());
                let grant = stage2.grant(&preallocated.frames, ipa, leaf.size(stage2.geometry()))?;
                (leaf.level < Level::L3).then_some((leaf.level, grant))
            }
            Content::Device(_) => None,
        }
    }
}

/// Bytes of the smallest blocks, or of a contiguous group that maps a huge page.
fn smallest_block<G: Granule>() -> u64 {
    if Ram::<G>::IS_GROUP { HUGE_PAGE } else { G::default().span(Level::L2) }
}
