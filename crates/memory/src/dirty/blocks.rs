// SPDX-License-Identifier: Apache-2.0 OR MIT
//! After a log has stopped: blocks come back, section by section, while the guest runs (source S4).
//!
//! Invariant: a section is put together only while no log runs, so no block is ever written without a mark for each of its
//! pages; and only where all its pages are ready, so nothing has to be zeroed for it.

use twofold_stage2::{Coalesced, Ipa, Level, Mapped, Platform};

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
    /// Puts pages together to blocks of 2 MiB, from `page` on, the slot's first being 0: at most `blocks` of them, each of which
    /// takes one flush. To be called again and again, with what it told last, in between other work, after the log has
    /// stopped. Sections that were not touched as a whole stay as they are.
    ///
    /// # Errors
    ///
    /// The log runs (again). What was done stands.
    pub fn rejoin(&self, page: u64, blocks: u64) -> Result<Rejoined, LogError> {
        let (memory, slot) = (self.memory, self.slot);
        let mut rejoined = Rejoined { blocks: 0, next: None };
        let (Pages::Largest, Content::Ram(ram)) = (memory.pages, &slot.content) else { return Ok(rejoined) };
        // Where no log was ever started, nothing was split for one.
        let Some(log) = slot.tracking.log() else { return Ok(rejoined) };
        let platform = memory.stage2.platform();
        let mut at = (slot.range.start + page.min(self.pages()) * FRAME).raw().next_multiple_of(SECTION);
        while let Some(end) = at.checked_add(SECTION).filter(|end| *end <= slot.range.end.raw()) {
            let ipa = Ipa::new(at);
            if rejoined.blocks == blocks {
                rejoined.next = Some((ipa - slot.range.start) / FRAME);
                return Ok(rejoined);
            }
            at = end;
            let Some(pa) = ram.lock(platform).ready_section(ipa) else { continue };
            if memory.stage2.look_up(ipa).is_none_or(|leaf| leaf.level < Level::L3) {
                continue;
            }
            // Held for one section: a log that is to start waits no longer than that.
            let _own = log.hold(platform);
            if slot.tracking.running().is_some() {
                return Err(LogError::Running { start: slot.range.start });
            }
            let attributes = memory.ram_attributes(true, false, false);
            let tables = &mut memory.tables();
            match memory.stage2.coalesce(ipa, pa, Level::L2, &attributes, tables, &mut |_| ())? {
                Coalesced::Done { .. } | Coalesced::Mapped(Mapped::New) => rejoined.blocks += 1,
                Coalesced::Mapped(_) => {}
            }
        }
        Ok(rejoined)
    }
}
