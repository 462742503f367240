// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The fault path: from a guest's access that stage 2 stopped to what happens next.
//!
//! 1. Find the slot; an address without one answers with an external abort, as a bus does.
//! 2. Find what is behind it, and how large a leaf slot, backing and policy allow.
//! 3. Make the memory ready: zeroed where it was never touched. Only then map it; the engine does the cache
//!    maintenance that this CPU needs in between.
//!
//! A fault that finds everything in place already was stale: the TLB of this CPU is invalidated and the guest
//! tries again. Every answer makes progress, so no guest faults for ever on one access.

use twofold_stage2::fault::{AccessKind, FaultKind};
use twofold_stage2::{Access, Attributes, Ipa, Level, Mapped, Pa, Platform, Relaxed};

use crate::guest::{Error, GuestMemory, Pages};
use crate::ram::SECTION;
use crate::slots::{Backing, Slot};

/// A stage-2 fault of the guest's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestFault {
    /// Where, in the guest's physical addresses.
    pub ipa: Ipa,
    /// What was wrong.
    pub kind: FaultKind,
    /// What the guest was doing.
    pub access: AccessKind,
}

/// What a fault leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Answer {
    /// Let the guest do its access again.
    Retry(Done),
    /// Nothing answers there: the guest gets a synchronous external abort.
    ExternalAbort,
}

/// What was done before the guest tries again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// A leaf of this level was mapped; `first_touch`: over memory that the guest had never touched.
    Mapped {
        /// The leaf's level.
        level: Level,
        /// Whether frames were zeroed for it.
        first_touch: bool,
    },
    /// A leaf that was there allows more.
    Widened,
    /// Everything was in place: this CPU's TLB was stale.
    Stale,
}

impl<P: Platform> GuestMemory<P> {
    /// Answers a fault.
    ///
    /// # Errors
    ///
    /// No frames or table pages are left; the guest may try again when there are some.
    pub fn fault(&mut self, fault: &GuestFault) -> Result<Answer, Error> {
        let Some(backed) = self.slots.find(fault.ipa) else { return Ok(Answer::ExternalAbort) };
        if !allows(&backed.slot, fault.access) {
            return Ok(Answer::ExternalAbort);
        }
        match fault.kind {
            FaultKind::Translation => self.map(fault),
            FaultKind::Permission => self.relax(fault.ipa, wanted(fault.access)),
            FaultKind::AccessFlag => self.relax(fault.ipa, Access::NONE),
        }
    }

    fn map(&mut self, fault: &GuestFault) -> Result<Answer, Error> {
        let page = fault.ipa.align_down(self.stage2.geometry().granule().size());
        let Some(backed) = self.slots.find(page) else { return Ok(Answer::ExternalAbort) };
        let (pa, mut attributes, mut level) = match (&mut backed.ram, backed.slot.backing) {
            (Some(ram), _) => {
                let pa = ram.back(page, &mut self.frames).ok_or(Error::NoFrames { ipa: page })?;
                // A section is the largest run of frames there is: 1 GiB would have to be zeroed in one fault.
                let most = if self.pages == Pages::Largest { Level::L2 } else { Level::L3 };
                (pa, Attributes::ram(Access::READ), most)
            }
            (None, Backing::Device(start)) => {
                (start + (page - backed.slot.range.start), Attributes::device(), Level::L1)
            }
            (None, Backing::Ram) => return Err(Error::NoRam { ipa: page }),
        };
        if backed.ram.is_some() {
            attributes.access.execute =
                fault.access == AccessKind::Execute || self.stage2.features().instruction_cache_coherent;
        }
        attributes.access.write = backed.slot.writable;
        loop {
            let span = self.stage2.geometry().granule().span(level);
            if let Some((ipa, pa)) = fits(&backed.slot, page, pa, span) {
                let zeroed = match &mut backed.ram {
                    Some(ram) => ram.make_ready(ipa, span, &self.frames, self.stage2.platform()),
                    None => 0,
                };
                self.counts.frames_zeroed += zeroed;
                match self.stage2.map(ipa, pa, level, &attributes, &mut self.frames) {
                    Ok(Mapped::Already(_)) => return self.relax(fault.ipa, wanted(fault.access)),
                    Ok(Mapped::New | Mapped::Replaced(_)) => {
                        self.counts.mapped[level.raw() as usize] += 1;
                        self.counts.first_touches[level.raw() as usize] += u64::from(zeroed > 0);
                        return Ok(Answer::Retry(Done::Mapped { level, first_touch: zeroed > 0 }));
                    }
                    // Some of it is mapped by smaller leaves: add one of theirs.
                    Err(twofold_stage2::Error::TableInTheWay { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            level = level.below().ok_or(Error::NoRam { ipa: page })?;
        }
    }

    fn relax(&mut self, ipa: Ipa, access: Access) -> Result<Answer, Error> {
        match self.stage2.relax(ipa, access) {
            Ok(Relaxed::Widened) => Ok(Answer::Retry(Done::Widened)),
            // Not mapped: what the guest ran into is gone already, and it will fault for that next.
            Ok(Relaxed::Already) | Err(twofold_stage2::Error::NotMapped { .. }) => Ok(Answer::Retry(Done::Stale)),
            Err(error) => Err(error.into()),
        }
    }
}

/// Where a leaf that spans `span` bytes around `page` would lie, if slot and alignment allow one.
fn fits(slot: &Slot, page: Ipa, pa: Pa, span: u64) -> Option<(Ipa, Pa)> {
    let ipa = page.align_down(span);
    let start = Pa::new(pa.raw().checked_sub(page - ipa)?);
    let inside = ipa >= slot.range.start && ipa.checked_add(span)? <= slot.range.end;
    (inside && start.is_aligned(span)).then_some((ipa, start))
}

fn allows(slot: &Slot, access: AccessKind) -> bool {
    match access {
        AccessKind::Read => true,
        AccessKind::Write => slot.writable,
        AccessKind::Execute => slot.backing == Backing::Ram,
    }
}

fn wanted(access: AccessKind) -> Access {
    match access {
        AccessKind::Read => Access::READ,
        AccessKind::Write => Access::READ_WRITE,
        AccessKind::Execute => Access { execute: true, ..Access::READ },
    }
}

const _: () = assert!(SECTION == 2 << 20, "a section is what level 2 spans with the 4 KiB granule");
