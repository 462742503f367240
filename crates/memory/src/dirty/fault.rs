// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a fault has to do for the log: as the invariants in [`super`] have it, the guest is let write first, then it is
//! marked.

use core::ops::ControlFlow;

use twofold_stage2::primitive::full_fence;
use twofold_stage2::{Access, Error, Ipa, IpaRange, Platform, Relaxed};

use super::{Log, Running, Tracker};
use crate::frames::FRAME;
use crate::guest::GuestMemory;
use crate::slots::Kept;

impl<P: Platform> GuestMemory<P> {
    /// A leaf was made that lets the guest write, or memory was written past the tables: it is marked, if a log runs. Whoever
    /// starts one later sees the leaf.
    #[inline(always)]
    pub(crate) fn note_writes(&self, slot: &Kept, leaf: IpaRange) {
        full_fence();
        if slot.tracking.running().is_some() {
            mark(slot, &leaf);
        }
    }

    /// Pages were armed for `log`, which looks there for what is written. Whoever started another one meanwhile did not see
    /// them, and does not look there.
    pub(crate) fn note_armed(&self, slot: &Kept, pages: IpaRange, log: Running) {
        full_fence();
        if slot.tracking.running() != Some(log) {
            self.undo_armed(slot, pages);
        }
    }

    /// Lets the guest write to a page of a slot whose log runs, and marks it.
    #[inline(always)]
    pub(crate) fn relax_logged(&self, slot: &Kept, log: &Log, ipa: Ipa, then: Running) -> Result<Relaxed, Error> {
        let relaxed = match self.stage2.relax_page(ipa, Access::READ_WRITE) {
            Ok(relaxed) => relaxed,
            Err(Error::BlockInTheWay { .. }) => self.relax_block(slot, ipa)?,
            Err(error) => return Err(error),
        };
        let number = (ipa - slot.range.start) / FRAME;
        full_fence();
        if slot.tracking.running().is_some() {
            log.pages.set(number);
        }
        if then.arms_around() {
            self.arm_around(slot, log, number, then)?;
        }
        Ok(relaxed)
    }

    /// The same where the page is part of a block, which is split, so that no more than the page is written. Where there is
    /// no page for a table, all of the block is, and marked.
    #[cold]
    fn relax_block(&self, slot: &Kept, ipa: Ipa) -> Result<Relaxed, Error> {
        let page = ipa.align_down(FRAME);
        loop {
            let on = |_: &mut _, _| ControlFlow::Continue(());
            let split = self.stage2.split(page..page + FRAME, FRAME, &mut self.tables(), on)?;
            if split.stopped.is_some() {
                let relaxed = self.stage2.relax(ipa, Access::READ_WRITE)?;
                self.note_writes(slot, slot.around(ipa, self.stage2.geometry()));
                return Ok(relaxed);
            }
            match self.stage2.relax_page(ipa, Access::READ_WRITE) {
                Err(Error::BlockInTheWay { .. }) => {}
                relaxed => return relaxed,
            }
        }
    }

    /// A write to a page has faulted: hardware records what is written around it from now on.
    fn arm_around(&self, slot: &Kept, log: &Log, number: u64, then: Running) -> Result<(), Error> {
        let section = then.section();
        let pages = match then.tracker() {
            Tracker::Combined => number / section * section..(number / section + 1) * section,
            Tracker::Adaptive => match log.heat.fault(number) {
                Some(pages) => pages,
                None => return Ok(()),
            },
            _ => return Ok(()),
        };
        let pages = pages.start..pages.end.min(log.pages.count());
        let sections = pages.start / section..pages.end.div_ceil(section);
        if sections.clone().all(|section| log.armed.is_set(section)) {
            return Ok(());
        }
        let at = |page: u64| slot.range.start + page * FRAME;
        let range = at(pages.start)..at(pages.end);
        // First, so that who finds the bit finds what is armed. Until it is set, what hardware records is about to be found.
        self.stage2.arm(range.clone())?;
        log.armed.set_run(sections.start, sections.end);
        self.note_armed(slot, range, then);
        Ok(())
    }

    /// Takes back what was armed for a log that runs no more. What was written meanwhile is marked, for the one that runs.
    #[cold]
    fn undo_armed(&self, slot: &Kept, pages: IpaRange) {
        let Some(log) = slot.tracking.log() else { return };
        let undone = self.stage2.disarm(pages, &mut |marked| log.mark_found(slot, &marked));
        if let Ok(pending) = undone {
            let _ = pending.complete();
        }
    }
}

/// Apart: most faults are answered while no log runs.
#[inline(never)]
fn mark(slot: &Kept, leaf: &IpaRange) {
    if let Some(log) = slot.tracking.log() {
        log.mark(slot, leaf);
    }
}
