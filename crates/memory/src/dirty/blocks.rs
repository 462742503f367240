// SPDX-License-Identifier: Apache-2.0 OR MIT
//! After a log has stopped: blocks come back, one by one, while the guest runs, ahead of its faults (source S4).
//!
//! Invariant: a block is put together only while no log runs, so none is ever written without a mark for each of its pages;
//! and only where all its pages are ready, so nothing has to be zeroed for it.

use twofold_stage2::{Coalesced, Grant, Ipa, Level, Mapped, Platform};

use super::{DirtyLog, LogError};
use crate::frames::FRAME;
use crate::guest::Pages;
use crate::ram::SECTION;
use crate::slots::Content;

/// How far [`DirtyLog::rejoin`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Rejoined {
    /// Blocks that took the place of pages.
    pub blocks: u64,
    /// The page to go on from; `None` where all of the slot was looked at.
    pub next: Option<u64>,
}

impl<P: Platform> DirtyLog<'_, P> {
    /// Puts pages together to the largest blocks that fit, from `page` on, the slot's first being 0: at most `blocks` of them,
    /// each of which takes one flush. To be called again and again, with what it told last, in between other work, after the
    /// log has stopped. What was not touched as a whole stays as it is.
    ///
    /// # Errors
    ///
    /// The log runs (again). What was done stands.
    pub fn rejoin(&self, page: u64, blocks: u64) -> Result<Rejoined, LogError> {
        let (memory, slot) = (self.memory, self.slot);
        let mut rejoined = Rejoined { blocks: 0, next: None };
        // Where no log was ever started, nothing was split for one.
        let Some(log) = slot.tracking.log().filter(|_| memory.pages == Pages::Largest) else { return Ok(rejoined) };
        let platform = memory.stage2.platform();
        // No block is smaller than a section.
        let mut at = (slot.range.start + page.min(self.pages()) * FRAME).raw().next_multiple_of(SECTION);
        while let Some(end) = at.checked_add(SECTION).filter(|end| *end <= slot.range.end.raw()) {
            let ipa = Ipa::new(at);
            if rejoined.blocks == blocks {
                rejoined.next = Some((ipa - slot.range.start) / FRAME);
                return Ok(rejoined);
            }
            at = end;
            let Some((level, grant)) = self.ready_block(ipa) else { continue };
            let Some(leaf) = memory.stage2.look_up(ipa) else { continue };
            at = (ipa + grant.size()).raw();
            if leaf.level <= level {
                // It is a block already: no lock is taken for it.
                continue;
            }
            // Held for one block: a log that is to start waits no longer than that.
            let _own = log.hold(platform);
            if slot.tracking.running().is_some() {
                return Err(LogError::Running { start: slot.range.start });
            }
            let attributes = memory.ram_attributes(true, false, false);
            match memory.coalesce(level, grant, &attributes)? {
                Coalesced::Done { .. } | Coalesced::Mapped(Mapped::New) => rejoined.blocks += 1,
                Coalesced::Mapped(_) => {}
            }
        }
        Ok(rejoined)
    }

    /// The largest block that may begin at `ipa`, where a section does, if all of it is ready: its level, and the right to map
    /// it.
    fn ready_block(&self, ipa: Ipa) -> Option<(Level, Grant<'_, P>)> {
        let stage2 = &self.memory.stage2;
        match &self.slot.content {
            Content::Ram(ram) => {
                let ram = ram.lock(stage2.platform());
                Some((Level::L2, stage2.grant(ram.ready_section(ipa)?, ipa, SECTION)?))
            }
            Content::Given(given) => {
                let place = given.leaf_from(&self.slot.range, ipa, stage2.geometry());
                let grant = stage2.grant(&given.frames, ipa, place.size(stage2.geometry()))?;
                (place.level < Level::L3).then_some((place.level, grant))
            }
            Content::Device(_) => None,
        }
    }
}
