// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a fault has to do for the log: as the invariants in [`super`] have it, the guest is let write first, then it is
//! marked.

use core::ops::ControlFlow;

use twofold_stage2::primitive::full_fence;
use twofold_stage2::{Access, Error, Ipa, IpaRange, Platform, Relaxed};

use super::{Log, Running, Tracker};
use crate::frames::FRAME;
use crate::guest::GuestMemory;
use crate::ram::SECTION;
use crate::slots::Kept;

impl<P: Platform> GuestMemory<P> {
    /// A leaf was made that lets the guest write, or that hardware may make one, by who found `then` running. Whoever
    /// started another log meanwhile did not see it.
    #[inline(always)]
    pub(crate) fn note_writes(&self, slot: &Kept, leaf: IpaRange, then: Option<Running>) {
        full_fence();
        let now = slot.tracking.running();
        if now.is_some() || then.is_some() {
            self.log_leaf(slot, leaf, then, now);
        }
    }

    #[inline(never)]
    fn log_leaf(&self, slot: &Kept, leaf: IpaRange, then: Option<Running>, now: Option<Running>) {
        let Some(log) = slot.tracking.log() else { return };
        if now.is_some() {
            log.mark(slot, &leaf);
        }
        if now != then && then.is_some_and(Running::maps_armed) {
            self.undo_armed(slot, log, leaf);
        }
    }

    /// Lets the guest write to a page of a slot whose log runs, and marks it.
    #[inline(always)]
    pub(crate) fn relax_logged(&self, slot: &Kept, log: &Log, ipa: Ipa, then: Running) -> Result<Relaxed, Error> {
        let relaxed = match self.stage2.relax_page(ipa, Access::READ_WRITE) {
            Ok(relaxed) => relaxed,
            Err(Error::BlockInTheWay { .. }) => self.relax_block(slot, ipa, then)?,
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
    fn relax_block(&self, slot: &Kept, ipa: Ipa, then: Running) -> Result<Relaxed, Error> {
        let page = ipa.align_down(FRAME);
        loop {
            let on = |_: &mut _, _| ControlFlow::Continue(());
            let split = self.stage2.split(page..page + FRAME, FRAME, &mut self.tables(), on)?;
            if split.stopped.is_some() {
                let relaxed = self.stage2.relax(ipa, Access::READ_WRITE)?;
                // No block of RAM is larger (module `fault` of the crate).
                let section = ipa.align_down(SECTION);
                self.note_writes(slot, section..section + SECTION, Some(then));
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
            Tracker::Adaptive => log.heat.fault(number),
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
        full_fence();
        if slot.tracking.running() != Some(then) {
            self.undo_armed(slot, log, range);
        }
        Ok(())
    }

    /// Takes back what was armed for a log that ran, while another may run by now, which does not look there. What was written
    /// meanwhile is marked.
    #[cold]
    fn undo_armed(&self, slot: &Kept, log: &Log, range: IpaRange) {
        let undone = self.stage2.disarm(range, &mut |marked| log.mark_found(slot, &marked));
        if let Ok(pending) = undone {
            let _ = pending.complete();
        }
    }
}
