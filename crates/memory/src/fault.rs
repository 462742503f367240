// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The fault path: from a guest's access that stage 2 stopped to what happens next.
//!
//! 1. Find the slot. Without one, the answer is an external abort, as from a bus. Cache maintenance there is skipped.
//! 2. Find the slot's backing, and how large a leaf slot, backing and policy allow.
//! 3. Make the memory ready: zero it if it was never touched. Only then map it. In between, the engine does the cache
//!    maintenance that this CPU needs. A table that is in a block's way is replaced by the block (Wang 2021), unless a
//!    log runs.
//! 4. If the mapping lets the guest write, and a log runs, mark the pages (module [`dirty`](crate::dirty)).
//!
//! Code that the first touch of a page does not need is out of line, so that the first touch has the registers to
//! itself (`cargo xtask test linux budget`).
//!
//! A fault that finds everything in place was stale: the TLB of this CPU is invalidated, and the guest tries again.
//! Every answer makes progress, so no guest faults for ever on one access. `Done::Interrupted` does too: a piece of the
//! huge page was zeroed, or another CPU holds the slot's lock, whose own fault makes progress.

use core::sync::atomic::Ordering;

use twofold_stage2::fault::{AccessKind, FaultKind};
use twofold_stage2::{
    Access, Attributes, CleanedPieces, Coalesced, Execute, Grant, Granule, Grouped, Ipa, IpaRange, Level, Lock,
    LockGuard, Mapped, Platform, Relaxed, Window, group_length,
};

use crate::answer::{Answer, Done};
use crate::dirty::fault::Around;
use crate::dirty::log::Running;
use crate::frames::HUGE_PAGE;
use crate::guest::{Error, GuestMemory, Pages};
use crate::guest_fault::GuestFault;
use crate::preallocated::{FittingLeaf, Preallocated};
use crate::ram::Ram;
use crate::slots::{Content, Memslot};

impl<P: Platform, G: Granule> GuestMemory<P, G> {
    /// Answers a fault. Several vCPUs may fault at once.
    ///
    /// # Errors
    ///
    /// [`Error::NoFrames`], or [`Error::Stage2`] if no table pages are left: the guest may repeat the access when there
    /// are some again. [`Error::Stage2`] also if a slot's physical addresses are beyond what the CPU can address.
    // With two callers it would be a function of its own, and each fault would pay 38 instructions more.
    #[inline(always)]
    pub fn fault(&self, fault: &GuestFault) -> Result<Answer, Error> {
        if fault.access == AccessKind::Maintenance
            && let Some(answer) = self.maintain(fault.ipa, fault.kind)
        {
            return answer;
        }
        match fault.kind {
            FaultKind::Translation => match self.map_page(fault) {
                Attempt::Mapped(done) => Ok(Answer::Retry(done)),
                Attempt::WasMapped => self.allow(fault),
                Attempt::NoSlot => Ok(Answer::ExternalAbort),
                Attempt::Unfinished(slot) => self.map(slot, fault.ipa, fault.kind, fault.access),
            },
            FaultKind::Permission if fault.access == AccessKind::Write => self.allow_write(fault.ipa),
            FaultKind::Permission => self.allow(fault),
            FaultKind::AccessFlag => self.relax(fault, Access::NONE),
        }
    }

    /// Maps a page that has arrived, for the access that found it absent. Such a page has a state of its own, so the way of a
    /// first touch is left out. If nothing can be mapped, the page has left again, or there is no memory for a table: the
    /// access that is repeated faults, and finds out.
    pub fn map_arrived(&self, fault: &GuestFault) {
        if let Some(slot) = self.slots.find(fault.ipa.align_down(G::SIZE)) {
            let _answer = self.map(slot, fault.ipa, FaultKind::Translation, fault.access);
        }
    }

    /// The fast path of [`map`](Self::map): maps a page of RAM that has a frame. Its result is in registers. So it
    /// returns no [`Error`], which `map` finds again.
    #[inline(always)]
    fn map_page(&self, fault: &GuestFault) -> Attempt<'_, G> {
        let page = fault.ipa.align_down(G::SIZE);
        let Some(slot) = self.slots.find(page) else { return Attempt::NoSlot };
        let Content::Ram(ram) = &slot.content else { return Attempt::Unfinished(slot) };
        if !allows(slot, fault.access) || slot.tracking.running().is_some() || self.maps_huge_pages() {
            return Attempt::Unfinished(slot);
        }
        let Some((grant, first_touch)) = self.make_ready(page, ram.lock(self.stage2.platform())) else {
            return Attempt::Unfinished(slot);
        };
        let attributes = self.ram_attributes(slot.writable, fault.access == AccessKind::Execute, false);
        let Ok(mapped) = self.map_leaf(Level::L3, grant, &attributes) else { return Attempt::Unfinished(slot) };
        self.note_writes(slot, page..page + G::SIZE);
        if let Mapped::Already(_) = mapped {
            return Attempt::WasMapped;
        }
        self.leaves.count(Level::L3, first_touch);
        Attempt::Mapped(Done::Mapped { level: Level::L3, first_touch })
    }

    /// Maps whatever is at the fault's address. Where memory was withdrawn meanwhile, perhaps that of another page, it
    /// starts again. Only here pages may be absent.
    ///
    /// The parts of the fault are passed one by one: as a whole it would be forced into memory on the fast path.
    #[inline(never)]
    fn map(&self, slot: &Memslot<G>, ipa: Ipa, kind: FaultKind, access: AccessKind) -> Result<Answer, Error> {
        let fault = &GuestFault { ipa, kind, access };
        let page = fault.ipa.align_down(G::SIZE);
        if !allows(slot, fault.access) {
            return Ok(Answer::ExternalAbort);
        }
        loop {
            let mapped = match &slot.content {
                Content::Ram(ram) => self.map_ram(page, slot, ram, fault),
                Content::Preallocated(preallocated) => self.map_preallocated(page, slot, preallocated, fault),
                Content::Device(window) => self.map_device(page, slot, window, fault),
            };
            match mapped {
                Err(Error::Stage2(twofold_stage2::Error::Withdrawn { .. })) => {}
                Err(Error::Absent { .. }) => return Ok(Answer::Absent),
                mapped => return mapped,
            }
        }
    }

    /// Whether huge pages are mapped as a whole: as blocks, or as contiguous groups of pages.
    #[inline(always)]
    fn maps_huge_pages(&self) -> bool {
        (Ram::<G>::LARGEST < Level::L3 || Ram::<G>::IS_GROUP) && self.pages == Pages::Largest
    }

    /// The attributes of RAM. It may be executed if it is mapped for `code`, or if this CPU needs no cache maintenance
    /// for code.
    pub(crate) fn ram_attributes(&self, write: bool, code: bool, dirty_by_hardware: bool) -> Attributes {
        let code = code || self.stage2.features().instruction_cache_coherent;
        let execute = if code { Execute::ALWAYS } else { Execute::NEVER };
        Attributes { dirty_by_hardware, ..Attributes::ram(Access { read: true, write, execute }) }
    }

    /// Maps a page of RAM, or a block around it.
    fn map_ram(&self, page: Ipa, slot: &Memslot<G>, ram: &Lock<Ram<G>>, fault: &GuestFault) -> Result<Answer, Error> {
        if let Some(running) = slot.tracking.running() {
            return self.map_logged(page, slot, fault, running);
        }
        if let Some(swap) = &self.swap
            && let Some(locked) = ram.lock_unless_interrupted(self.stage2.platform())
            && let Some(single) = locked.single(page)
        {
            // F1.
            if single.is_away() && !swap.reads_at_once(single) {
                return Ok(Answer::Absent);
            }
            return self.map_single(page, slot, locked, fault, None);
        }
        if self.maps_huge_pages()
            && let Some(answer) = self.map_huge_page(page, slot, ram, fault)
        {
            return answer;
        }
        let Some(locked) = ram.lock_unless_interrupted(self.stage2.platform()) else { return Ok(INTERRUPTED) };
        let Some((grant, first_touch)) = self.make_ready(page, locked) else {
            return self.map_single(page, slot, ram.lock(self.stage2.platform()), fault, None);
        };
        self.map_ready(Level::L3, grant, slot, first_touch, fault)
    }

    /// Maps the huge page around `page` as a block, or as a contiguous group of pages, or returns `None` if it does not fit the slot or is not whole. RAM
    /// has no larger blocks: 1 GiB would have to be zeroed in one fault.
    #[inline(never)]
    fn map_huge_page(
        &self,
        page: Ipa,
        slot: &Memslot<G>,
        ram: &Lock<Ram<G>>,
        fault: &GuestFault,
    ) -> Option<Result<Answer, Error>> {
        block_around(page, &slot.range)?;
        let (platform, features) = (self.stage2.platform(), self.stage2.features());
        let Some(mut ram) = ram.lock_unless_interrupted(platform) else { return Some(Ok(INTERRUPTED)) };
        let cleans = !Ram::<G>::IS_GROUP && self.cleans_ahead(page) && ram.pins.count() == 0;
        let mut backed = ram.back(page, &self.frames, &self.stage2)?;
        let Some(first_touch) = backed.make_huge_page_ready(platform, features, cleans) else {
            return Some(Ok(INTERRUPTED));
        };
        // As in `make_ready`.
        let (grant, cleaned) = (backed.huge_page_grant(&self.stage2)?, backed.cleaned());
        drop(ram);
        if Ram::<G>::IS_GROUP {
            return self.map_ready_group(grant, slot, first_touch, fault);
        }
        Some(match cleans {
            true => self.map_cleaned(grant, cleaned, slot, first_touch, fault),
            false => self.map_ready(Level::L2, grant, slot, first_touch, fault),
        })
    }

    /// Maps a huge page that is ready as a contiguous group, or returns `None` if other memory is mapped there.
    fn map_ready_group(
        &self,
        grant: Grant<'_, P, G>,
        slot: &Memslot<G>,
        first_touch: bool,
        fault: &GuestFault,
    ) -> Option<Result<Answer, Error>> {
        let attributes = self.ram_attributes(slot.writable, fault.access == AccessKind::Execute, false);
        let mapped = match self.map_group(grant, &attributes) {
            Err(twofold_stage2::Error::NotOneGroup { .. }) => return None,
            Err(error) => return Some(Err(error.into())),
            Ok(mapped) => mapped,
        };
        // A log that starts meanwhile loses no write by the group, as by a block.
        self.note_writes(slot, grant.ipa()..grant.ipa() + grant.size());
        if let Mapped::Already(_) = mapped {
            return Some(self.allow(fault));
        }
        self.leaves.count_group(group_length::<G>(Level::L3) as u64, first_touch);
        Some(Ok(Answer::Retry(Done::Mapped { level: Level::L3, first_touch })))
    }

    /// Maps a contiguous group of pages. Writes that hardware had recorded in them are not reported, as by
    /// [`promote`](Self::promote). If it joined pages that were mapped, that is counted, and the result is as if
    /// nothing had been mapped.
    pub(crate) fn map_group(
        &self,
        grant: Grant<'_, P, G>,
        attributes: &Attributes,
    ) -> Result<Mapped<G>, twofold_stage2::Error> {
        Ok(match grant.map_group(Level::L3, attributes, &mut self.tables(), &mut |_| ())? {
            Grouped::New => Mapped::New,
            Grouped::Already(leaf) => Mapped::Already(leaf),
            Grouped::Joined => {
                self.promoted.fetch_add(1, Ordering::Relaxed);
                Mapped::New
            }
        })
    }

    /// Whether the huge page around `page` is cleaned in pieces before it is mapped, and not by the mapping.
    fn cleans_ahead(&self, page: Ipa) -> bool {
        #[cfg(feature = "baselines")]
        if self.baselines.changes_map() {
            return false;
        }
        self.stage2.cleans_block(page)
    }

    /// As [`map_ready`](Self::map_ready), for a huge page whose pieces were cleaned ahead.
    #[cold]
    fn map_cleaned(
        &self,
        grant: Grant<'_, P, G>,
        cleaned: CleanedPieces,
        slot: &Memslot<G>,
        first_touch: bool,
        fault: &GuestFault,
    ) -> Result<Answer, Error> {
        let attributes = self.ram_attributes(slot.writable, fault.access == AccessKind::Execute, false);
        let mapped = grant.map_cleaned(&attributes, cleaned, &mut self.tables());
        self.note_mapped(Level::L2, grant, &attributes, mapped, slot, first_touch, fault)
    }

    /// Maps preallocated memory by the largest leaf that fits.
    #[inline(never)]
    fn map_preallocated(
        &self,
        page: Ipa,
        slot: &Memslot<G>,
        preallocated: &Preallocated,
        fault: &GuestFault,
    ) -> Result<Answer, Error> {
        if let Some(running) = slot.tracking.running() {
            return self.map_logged(page, slot, fault, running);
        }
        let largest = if self.pages == Pages::Largest { preallocated.largest } else { Level::L3 };
        let pa = preallocated.pa(&slot.range, page);
        let geometry = self.stage2.geometry();
        let leaf = FittingLeaf::around(page, pa, &slot.range, largest, geometry);
        let grant =
            self.stage2.grant(&preallocated.frames, leaf.ipa, leaf.size(geometry)).ok_or(Error::NoRam { ipa: page })?;
        self.map_ready(leaf.level, grant, slot, false, fault)
    }

    /// Maps memory that is ready. A table that is in the way, from a log that has stopped or from an unmap of a part,
    /// is replaced by the block. A log that starts meanwhile loses no write by that (module [`dirty`](crate::dirty)).
    #[inline(never)]
    fn map_ready(
        &self,
        level: Level,
        grant: Grant<'_, P, G>,
        slot: &Memslot<G>,
        first_touch: bool,
        fault: &GuestFault,
    ) -> Result<Answer, Error> {
        let attributes = self.ram_attributes(slot.writable, fault.access == AccessKind::Execute, false);
        let mapped = self.map_leaf(level, grant, &attributes);
        self.note_mapped(level, grant, &attributes, mapped, slot, first_touch, fault)
    }

    /// The end of both: the block in the place of a table, and the marks of a log.
    #[allow(clippy::too_many_arguments, reason = "what both know, in registers")]
    #[inline(always)]
    fn note_mapped(
        &self,
        level: Level,
        grant: Grant<'_, P, G>,
        attributes: &Attributes,
        mapped: Result<Mapped<G>, twofold_stage2::Error>,
        slot: &Memslot<G>,
        first_touch: bool,
        fault: &GuestFault,
    ) -> Result<Answer, Error> {
        let mapped = match mapped {
            Err(twofold_stage2::Error::TableInTheWay { .. }) => self.promote(level, grant, attributes)?,
            mapped => mapped?,
        };
        self.note_writes(slot, grant.ipa()..grant.ipa() + grant.size());
        self.mapped(mapped, level, first_touch, fault)
    }

    /// Puts a block in the place of a table (Wang 2021). Writes that hardware had recorded in the table are not
    /// reported: if a log runs by then, the caller marks the whole block.
    #[cold]
    fn promote(&self, level: Level, grant: Grant<'_, P, G>, attributes: &Attributes) -> Result<Mapped<G>, Error> {
        #[cfg(feature = "baselines")]
        if self.baselines.cleans_on_abort() {
            return Ok(self.promoted(self.coalesce_cleaned(level, grant, attributes)?));
        }
        Ok(self.promoted(self.coalesce(level, grant, attributes)?))
    }

    /// The result as if the block had been mapped where nothing was. Counts a block that replaced a table.
    fn promoted(&self, coalesced: Coalesced<G>) -> Mapped<G> {
        match coalesced {
            Coalesced::Done { .. } => {
                self.promoted.fetch_add(1, Ordering::Relaxed);
                Mapped::New
            }
            Coalesced::Mapped(mapped) => mapped,
        }
    }

    /// Puts a block in the place of smaller mappings of the same memory.
    pub(crate) fn coalesce(
        &self,
        level: Level,
        grant: Grant<'_, P, G>,
        attributes: &Attributes,
    ) -> Result<Coalesced<G>, twofold_stage2::Error> {
        #[cfg(feature = "baselines")]
        if self.baselines.frees_first() {
            return self.coalesce_freeing_first(level, grant, attributes);
        }
        grant.coalesce(level, attributes, &mut self.tables(), &mut |_| ())
    }

    /// Maps a leaf.
    #[inline(always)]
    pub(crate) fn map_leaf(
        &self,
        level: Level,
        grant: Grant<'_, P, G>,
        attributes: &Attributes,
    ) -> Result<Mapped<G>, twofold_stage2::Error> {
        #[cfg(feature = "baselines")]
        if self.baselines.changes_map() {
            return self.map_by_policies(level, grant, attributes);
        }
        grant.map(level, attributes, &mut self.tables())
    }

    /// Maps a page while a log runs. The page becomes writable only for a write, or with DBM, where hardware records
    /// the write.
    #[cold]
    fn map_logged(&self, page: Ipa, slot: &Memslot<G>, fault: &GuestFault, running: Running) -> Result<Answer, Error> {
        let (grant, first_touch) = match &slot.content {
            Content::Ram(ram) => match ram.lock_unless_interrupted(self.stage2.platform()) {
                None => return Ok(INTERRUPTED),
                Some(locked) => match self.make_ready(page, locked) {
                    Some(ready) => ready,
                    None => {
                        let locked = ram.lock(self.stage2.platform());
                        return self.map_single(page, slot, locked, fault, Some(running));
                    }
                },
            },
            Content::Preallocated(preallocated) => {
                (self.stage2.grant(&preallocated.frames, page, G::SIZE).ok_or(Error::NoRam { ipa: page })?, false)
            }
            Content::Device(_) => return Ok(Answer::ExternalAbort),
        };
        let write = slot.writable && fault.access == AccessKind::Write;
        let tracked = slot.writable && running.maps_tracked();
        let attributes = self.ram_attributes(write, fault.access == AccessKind::Execute, tracked);
        let mapped = self.map_leaf(Level::L3, grant, &attributes)?;
        if tracked {
            // Hardware records writes to the page. A page that is mapped for a write counts as recorded already.
            let _ = self.note_tracked(slot, page..page + G::SIZE, running);
        } else if write {
            self.note_writes(slot, page..page + G::SIZE);
        }
        self.mapped(mapped, Level::L3, first_touch, fault)
    }

    /// Backs a page and makes it ready. Returns the right to map it, and whether its frame was zeroed; `None` if there
    /// is no whole huge page. The slot's lock is released before the caller maps. The grant is made under it: from then
    /// on, a withdrawal of this memory makes it stale.
    #[inline(always)]
    fn make_ready(&self, page: Ipa, mut ram: LockGuard<'_, Ram<G>>) -> Option<(Grant<'_, P, G>, bool)> {
        let (platform, features) = (self.stage2.platform(), self.stage2.features());
        let mut backed = ram.back(page, &self.frames, &self.stage2)?;
        let (zeroed, grant) = (backed.make_ready(platform, features), backed.grant(&self.stage2));
        // The frames were lent to these tables for the slot's addresses, so there is a grant.
        Some((grant?, zeroed))
    }

    /// Maps a device's registers by the largest leaf that fits. After an unmap of a part, smaller mappings may be left
    /// there. They stay, and the guest gets a smaller leaf beside them: replacing them by a block needs a break, and
    /// the guest may be using these registers.
    #[inline(never)]
    fn map_device(&self, page: Ipa, slot: &Memslot<G>, window: &Window, fault: &GuestFault) -> Result<Answer, Error> {
        let pa = window.pa() + (page - slot.range.start);
        let access = Access { write: slot.writable, ..Access::READ };
        let attributes = Attributes { access, ..Attributes::device() };
        let mut largest = self.stage2.geometry().largest_block();
        loop {
            let FittingLeaf { level, ipa, .. } =
                FittingLeaf::around(page, pa, &slot.range, largest, self.stage2.geometry());
            let span = self.stage2.geometry().granule().span(level);
            let part = window.part(ipa - slot.range.start, span);
            let part = part.ok_or(twofold_stage2::Error::NotGranted { ipa, size: span })?;
            let mapped = self.stage2.open(part, ipa).map(level, &attributes, &mut self.tables());
            match (mapped, level.below()) {
                (Err(twofold_stage2::Error::TableInTheWay { .. }), Some(below)) => largest = below,
                (mapped, _) => return self.mapped(mapped?, level, false, fault),
            }
        }
    }

    /// The answer after a leaf was mapped, which is counted. If the leaf was mapped already, the guest faulted for
    /// another reason, or its fault was stale.
    #[inline(always)]
    pub(crate) fn mapped(
        &self,
        mapped: Mapped<G>,
        level: Level,
        first_touch: bool,
        fault: &GuestFault,
    ) -> Result<Answer, Error> {
        if let Mapped::Already(_) = mapped {
            return self.allow(fault);
        }
        self.leaves.count(level, first_touch);
        Ok(Answer::Retry(Done::Mapped { level, first_touch }))
    }

    /// Allows the access that has faulted at a leaf that is mapped.
    #[cold]
    fn allow(&self, fault: &GuestFault) -> Result<Answer, Error> {
        match fault.access {
            AccessKind::Write => self.allow_write(fault.ipa),
            access => self.relax(fault, wanted(access)),
        }
    }

    #[inline(never)]
    fn relax(&self, fault: &GuestFault, access: Access) -> Result<Answer, Error> {
        if !self.slots.find(fault.ipa).is_some_and(|slot| allows(slot, fault.access)) {
            return Ok(Answer::ExternalAbort);
        }
        answer(self.stage2.relax(fault.ipa, access))
    }

    /// Answers cache maintenance by address, or returns `None` if it is to be answered as a load. Only `DC IVAC` needs
    /// the permission to write. If the slot allows writes, the page becomes writable and is marked: a guest must not
    /// notice that a log has protected a page. Out of line, so that no other fault pays for it.
    #[cold]
    #[inline(never)]
    fn maintain(&self, ipa: Ipa, kind: FaultKind) -> Option<Result<Answer, Error>> {
        match kind {
            _ if self.slots.find(ipa).is_none() => Some(Ok(Answer::Skip)),
            FaultKind::Permission => Some(self.allow_write(ipa)),
            FaultKind::Translation | FaultKind::AccessFlag => None,
        }
    }

    /// Lets the guest write, and marks the page if a log runs (D1 to D6 of [`dirty`](crate::dirty)).
    #[inline(never)]
    fn allow_write(&self, ipa: Ipa) -> Result<Answer, Error> {
        let slot = match self.slots.find(ipa) {
            Some(slot) if slot.writable => slot,
            _ => return Ok(Answer::ExternalAbort),
        };
        if self.swap.is_some() {
            self.end_copy(slot, ipa);
        }
        if let Some((running, log)) = slot.tracking.running_log() {
            return match self.relax_logged(slot, log, ipa, running) {
                Ok((Relaxed::Widened, Around::Long)) => Ok(Answer::Retry(Done::WidenedAround)),
                relaxed => answer(relaxed.map(|(relaxed, _)| relaxed)),
            };
        }
        let relaxed = self.stage2.relax(ipa, Access::READ_WRITE);
        // A log may have started meanwhile, and the leaf may be a page or a block.
        self.note_writes(slot, slot.around(ipa, self.stage2.geometry()));
        answer(relaxed)
    }
}

/// The answer of a fault that leaves its work for a pending interrupt.
const INTERRUPTED: Answer = Answer::Retry(Done::Interrupted);

/// What [`GuestMemory::map_page`] came to.
enum Attempt<'a, G: Granule> {
    /// The page is mapped now.
    Mapped(Done),
    /// The page was mapped already.
    WasMapped,
    /// No slot holds the address.
    NoSlot,
    /// There is more to do in this slot. Nothing is half done.
    Unfinished(&'a Memslot<G>),
}

#[inline(always)]
fn answer(relaxed: Result<Relaxed, twofold_stage2::Error>) -> Result<Answer, Error> {
    match relaxed {
        Ok(Relaxed::Widened) => Ok(Answer::Retry(Done::Widened)),
        // Not mapped: the leaf for which the guest faulted is gone, and the guest will take a translation fault next.
        Ok(Relaxed::Already) | Err(twofold_stage2::Error::NotMapped { .. }) => Ok(Answer::Retry(Done::Stale)),
        Err(error) => Err(error.into()),
    }
}

/// The start of the huge page around `page`, if all of it belongs to the slot.
fn block_around(page: Ipa, slot: &IpaRange) -> Option<Ipa> {
    let start = page.align_down(HUGE_PAGE);
    (start >= slot.start && start.checked_add(HUGE_PAGE)? <= slot.end).then_some(start)
}

fn allows<G: Granule>(slot: &Memslot<G>, access: AccessKind) -> bool {
    match access {
        AccessKind::Read | AccessKind::Maintenance => true,
        AccessKind::Write => slot.writable,
        AccessKind::Execute => !matches!(slot.content, Content::Device(_)),
    }
}

/// The access to allow for a fault that is not a write; writes go by `allow_write`.
fn wanted(access: AccessKind) -> Access {
    match access {
        AccessKind::Read | AccessKind::Write | AccessKind::Maintenance => Access::READ,
        AccessKind::Execute => Access { execute: Execute::ALWAYS, ..Access::READ },
    }
}

// The model checker has tables of two entries.
#[cfg(not(loom))]
const _: () = assert!(
    HUGE_PAGE == twofold_stage2::Kib4.span(Level::L2),
    "a huge page is what level 2 spans with the 4 KiB granule"
);
