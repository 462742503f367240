// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a fault does for the log: steps D2 to D6 of the protocol in [`super`].
//!
//! D5 and D6 may be long work: [`Tracker::Adaptive`] sets DBM on 32 MiB after some faults there. They are done for
//! [`AT_ONCE`] pages after the other. If an interrupt is pending then, the fault ends, and the next fault in these 32 MiB
//! goes on: the sections' bits say where. Nothing is lost by that: a page without DBM costs a fault, which marks it.

use core::ops::ControlFlow;

use twofold_stage2::primitive::full_fence;
use twofold_stage2::{Access, Error, Granule, Ipa, IpaRange, Platform, Relaxed};

use super::log::{Log, Running};
use super::options::Tracker;
use crate::guest::GuestMemory;
use crate::slots::Memslot;

impl<P: Platform, G: Granule> GuestMemory<P, G> {
    /// Marks a leaf that was made writable, or memory that was written past the tables, if a log runs (D3, D4). A log
    /// that starts later sees the leaf.
    #[inline(always)]
    pub(crate) fn note_writes(&self, slot: &Memslot<G>, leaf: IpaRange) {
        full_fence();
        if slot.tracking.running().is_some() {
            mark(slot, &leaf);
        }
    }

    /// Takes DBM back from `pages` if the log for which it was set does not run any more (D6): the log that runs now
    /// does not look there. Returns whether the log still runs.
    pub(crate) fn note_tracked(&self, slot: &Memslot<G>, pages: IpaRange, log: Running) -> bool {
        full_fence();
        let runs = slot.tracking.running() == Some(log);
        if !runs {
            self.undo_tracked(slot, pages);
        }
        runs
    }

    /// Lets the guest write to a page while a log runs, and marks it (D2 to D6).
    #[inline(always)]
    pub(crate) fn relax_logged(
        &self,
        slot: &Memslot<G>,
        log: &Log,
        ipa: Ipa,
        then: Running,
    ) -> Result<(Relaxed, Around), Error> {
        let relaxed = match self.stage2.relax_page(ipa, Access::READ_WRITE) {
            Ok(relaxed) => relaxed,
            Err(Error::BlockInTheWay { .. }) => self.relax_block(slot, ipa)?,
            Err(error) => return Err(error),
        };
        let number = (ipa - slot.range.start) / G::SIZE;
        full_fence();
        if slot.tracking.running().is_some() {
            log.pages.set(number);
        }
        let around = if then.sets_dbm_around() { self.set_dbm_around(slot, log, number, then)? } else { Around::Short };
        Ok((relaxed, around))
    }

    /// The same for a page in a block. The block is split, so that only the page becomes writable. If no table page is
    /// left, the whole block becomes writable, and is marked.
    #[cold]
    fn relax_block(&self, slot: &Memslot<G>, ipa: Ipa) -> Result<Relaxed, Error> {
        let page = ipa.align_down(G::SIZE);
        loop {
            let on = |_: &mut _, _| ControlFlow::Continue(());
            let split = self.stage2.split(page..page + G::SIZE, G::SIZE, &mut self.tables(), on)?;
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

    /// Has hardware record writes around a page whose write has faulted (D5).
    fn set_dbm_around(&self, slot: &Memslot<G>, log: &Log, number: u64, then: Running) -> Result<Around, Error> {
        let section = then.section();
        let pages = match then.tracker() {
            Tracker::Combined => number / section * section..(number / section + 1) * section,
            Tracker::Adaptive => match log.heat.fault(number) {
                Some(pages) => pages,
                None => return Ok(Around::Short),
            },
            _ => return Ok(Around::Short),
        };
        let end = pages.end.min(log.pages.count());
        let (mut first, mut around) = (pages.start, Around::Short);
        while first < end {
            let last = end.min(first + AT_ONCE);
            let sections = first / section..last.div_ceil(section);
            if !sections.clone().all(|section| log.tracked.is_set(section)) {
                let at = |page: u64| slot.range.start + page * G::SIZE;
                // DBM before the section's bit, so that a get that finds the bit sees DBM (I3).
                self.stage2.set_dbm(at(first)..at(last))?;
                log.tracked.set_run(sections.start, sections.end);
                if !self.note_tracked(slot, at(first)..at(last), then) {
                    break;
                }
                if last < end {
                    around = Around::Long;
                    if self.stage2.platform().interrupt_is_pending() {
                        log.heat.left_over(number);
                        break;
                    }
                }
            }
            first = last;
        }
        Ok(around)
    }

    /// Clears DBM that was set for a log that does not run any more (D6). Pages that hardware recorded meanwhile are
    /// marked for the log that runs.
    #[cold]
    fn undo_tracked(&self, slot: &Memslot<G>, pages: IpaRange) {
        let Some(log) = slot.tracking.log() else { return };
        if self.swap.is_some() {
            // Before DBM goes: a page that leaves meanwhile is found hardware-tracked, or sees this (module `swap`).
            self.end_copies(slot, pages.clone());
        }
        let undone = self.stage2.clear_dbm_and_write(pages, &mut |marked| log.mark_found(slot, &marked));
        if let Ok(pending) = undone {
            let _ = pending.complete();
        }
    }
}

/// How much work it was to set DBM around.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Around {
    /// At most [`AT_ONCE`] pages.
    Short,
    /// More. It has looked for interrupts, and has left the rest to the next fault if one was pending.
    Long,
}

/// Pages on which DBM is set without a look at pending interrupts: two tables, about 10,300 instructions. A multiple of
/// each section's pages.
const AT_ONCE: u64 = 1024;

/// Out of line: most faults are answered while no log runs.
#[inline(never)]
fn mark<G: Granule>(slot: &Memslot<G>, leaf: &IpaRange) {
    if let Some(log) = slot.tracking.log() {
        log.mark(slot, leaf);
    }
}
