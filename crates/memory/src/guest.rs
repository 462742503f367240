// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's memory as a whole: its slots, its tables, and the frames that it takes memory from.
//!
//! Invariant: data that several vCPUs change is in a lock, or is a count that orders nothing. The lock order is a
//! slot's backing, then the frames. Neither is held while the engine works on the tables.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use twofold_stage2::{
    Broken, Geometry, Granule, Ipa, IpaRange, Kib4, Lent, Level, Lock, LockGuard, Platform, Run, Stage2, TablePage,
    TableSource, Unwatched, Vmid,
};

use crate::frames::Frames;
use crate::ram::Content as PageContent;
use crate::slots::{Content, Memslot, Refused, Slot, SlotError, SlotId, Slots};
use crate::swap::state::Swap;
use crate::swap::store::Place;

/// How large the mappings of a guest's RAM may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Pages and blocks as large as slot and backing allow.
    Largest,
    /// Pages of the granule only.
    Small,
}

/// One guest's memory, mapped with pages of the granule `G`.
pub struct GuestMemory<P: Platform, G: Granule = Kib4> {
    pub(crate) stage2: Stage2<P, G>,
    pub(crate) slots: Slots<G>,
    pub(crate) frames: Lock<Frames>,
    pub(crate) pages: Pages,
    pub(crate) leaves: Leaves,
    pub(crate) promoted: AtomicU64,
    /// The page store, if there is one.
    pub(crate) swap: Option<Box<Swap>>,
    #[cfg(feature = "baselines")]
    pub(crate) baselines: crate::baselines::Baselines<G>,
}

/// Counts since the guest was made. While vCPUs run, one count may be ahead of another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Leaves that were mapped, by level: index 3 counts pages, 2 and 1 count blocks.
    pub mapped: [u64; 4],
    /// Translation faults that zeroed frames and mapped them, by level as above. Not counted: memory that a loader
    /// wrote before, that an attempt zeroed before it ran out of table pages, or that one vCPU zeroed and another
    /// mapped first.
    pub first_touches: [u64; 4],
    /// Blocks that a fault put in the place of a table that was in its way. They are counted in `mapped` too.
    pub promoted: u64,
    /// Frames of 4 KiB that were zeroed.
    pub frames_zeroed: u64,
    /// Table pages taken, including the root's.
    pub tables_allocated: u64,
    /// Table pages given back.
    pub tables_freed: u64,
}

/// Why a call to a guest's memory failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No frames are left, or no memory on the heap for their state.
    #[error("no memory is left to back the guest at {ipa}")]
    NoFrames {
        /// The guest's address.
        ipa: Ipa,
    },
    /// No memory is left for the root table.
    #[error("no memory is left for the root of the guest's tables ({size} bytes)")]
    NoRoot {
        /// The root's size in bytes.
        size: u64,
    },
    /// The guest has no RAM at that address.
    #[error("the guest has no RAM at {ipa}")]
    NoRam {
        /// The guest's address.
        ipa: Ipa,
    },
    /// The page is not in memory, or no frame is free for it. [Bring](GuestMemory::bring) it, and go on when it has
    /// arrived. Only with a page store.
    #[error("the page at {page} is not in memory: bring it and go on after {done} bytes")]
    Absent {
        /// The page.
        page: Ipa,
        /// The number of bytes that were read or written before it.
        done: u64,
    },
    /// The page is pinned, or it is in the store or on its way already.
    #[error("the page at {ipa} is pinned, in the store, or on its way")]
    Busy {
        /// The page.
        ipa: Ipa,
    },
    /// Pages of the slot are on their way out or in, or are pinned.
    #[error("the slot from {start} has {in_flight} pages in flight and {pinned} pinned: complete and unpin them")]
    InUse {
        /// The slot's first byte.
        start: Ipa,
        /// How many pages have I/O in flight.
        in_flight: usize,
        /// How many pages are pinned.
        pinned: usize,
    },
    /// The tables could not be changed.
    #[error("the guest's tables: {0}")]
    Stage2(#[from] twofold_stage2::Error),
    /// A slot was refused.
    #[error(transparent)]
    Slot(#[from] SlotError),
}

/// This conversion loses the slot's backing. To keep it, take it from the [`Refused`].
impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        Self::Slot(refused.error)
    }
}

impl<P: Platform, G: Granule> GuestMemory<P, G> {
    /// A guest without memory. The caller gives each guest its own VMID.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoot`] if `frames` has no memory for the root table; [`Error::Stage2`] if the engine refuses the
    /// geometry or the root.
    pub fn new(
        platform: P,
        geometry: Geometry<G>,
        vmid: Vmid,
        mut frames: Frames,
        pages: Pages,
    ) -> Result<Self, Error> {
        let features = frames.features();
        // Only frames that guests share have more. If they have none, the root is what is missing.
        let _ = frames.add_tables(&platform);
        let root = frames.take_root(&geometry).ok_or(Error::NoRoot { size: geometry.root_size() })??;
        let stage2 = Stage2::new(platform, features, geometry, vmid, root)?;
        Ok(Self {
            stage2,
            slots: Slots::default(),
            frames: Lock::new(frames),
            pages,
            leaves: Leaves::default(),
            promoted: AtomicU64::new(0),
            swap: None,
            #[cfg(feature = "baselines")]
            baselines: Default::default(),
        })
    }

    /// Adds a memslot. Nothing is mapped yet. No vCPU runs meanwhile, since slots are found without a lock.
    ///
    /// # Errors
    ///
    /// [`Refused`] returns the slot, with the reason.
    pub fn add_slot(&mut self, slot: Slot) -> Result<SlotId, Refused> {
        let stage2 = &self.stage2;
        self.slots.add(slot, stage2.geometry(), |run, range| stage2.lend(run, range.start, range))
    }

    /// Removes a memslot. When this returns, nothing of it is mapped, the flush is complete, and its frames are free.
    /// [Preallocated](crate::Backing::Preallocated) memory is returned to the caller. No vCPU runs meanwhile.
    ///
    /// # Errors
    ///
    /// [`SlotError::Gone`] if the slot was removed before; [`Error::InUse`] if pages of it are in flight or pinned;
    /// [`Error::Stage2`] if its tables cannot be emptied. The slot stays then.
    pub fn remove_slot(&mut self, slot: SlotId) -> Result<Option<Run>, Error> {
        let memslot = self.slots.get(slot).ok_or(SlotError::Gone)?;
        let range = memslot.range.clone();
        if let Content::Ram(ram) = &memslot.content {
            let ram = ram.lock(self.stage2.platform());
            let (in_flight, pinned) = (ram.in_flight(), ram.pins.count());
            if in_flight > 0 || pinned > 0 {
                return Err(Error::InUse { start: range.start, in_flight, pinned });
            }
        }
        // No block reaches beyond the slot, so none of another slot is split for this.
        let frames = self.frames.get_mut();
        let vacated = self.stage2.vacate(range, frames)?;
        let reclaim = |lent| reclaimed(vacated.reclaim(lent));
        match self.slots.remove(slot).map(|slot| slot.content) {
            Some(Content::Ram(ram)) => {
                let discard = |place| discard(&self.swap, place);
                let mut runs = Vec::new();
                ram.into_inner().into_frames(discard, |lent| runs.extend(reclaim(lent)));
                let platform = self.stage2.platform();
                runs.into_iter().for_each(|run| self.frames.get_mut().give_data(platform, run));
                Ok(None)
            }
            Some(Content::Preallocated(preallocated)) => Ok(reclaim(preallocated.frames)),
            Some(Content::Device(_)) | None => Ok(None),
        }
    }

    /// Destroys the guest. No TLB entry of its VMID is left, so another guest may get the VMID. All frames, including
    /// those of the tables, return to the caller as [`Frames`]. [Preallocated](crate::Backing::Preallocated) memory of slots
    /// goes to `given`, run by run.
    ///
    /// Requests of a page store that are in flight keep their frames: take them by
    /// [`into_frame`](crate::swap::WriteRequest::into_frame), and give them to the result. All places are discarded.
    ///
    /// No vCPU of the guest runs, and no CPU has its tables loaded.
    pub fn destroy(self, mut given: impl FnMut(Run)) -> Frames {
        let Self { stage2, slots, frames, swap, .. } = self;
        let mut frames = frames.into_inner();
        let (root, _) = stage2.destroy(&mut frames, Unwatched);
        let reclaim = |lent| reclaimed(root.reclaim(lent));
        for content in slots.into_contents() {
            match content {
                Content::Ram(ram) => {
                    let discard = |place| discard(&swap, place);
                    let give = |lent| reclaim(lent).into_iter().for_each(|run| frames.keep_data(run));
                    ram.into_inner().into_frames(discard, give);
                }
                Content::Preallocated(backing) => reclaim(backing.frames).into_iter().for_each(&mut given),
                Content::Device(_) => {}
            }
        }
        frames.give_own(root.into_run());
        frames.end_guest();
        frames
    }

    /// Unmaps the addresses in `range` that are in the slot, while vCPUs may run. The memory keeps its content, and is
    /// mapped again when it is touched.
    ///
    /// A running dirty log loses no write: pages that hardware recorded are in it when this returns, and no page is
    /// cleared before the flush that ends the guest's writes.
    ///
    /// # Errors
    ///
    /// The slot was removed; the range is not made of whole pages; a block reaches beyond the range, and no table page
    /// is left to split it. Nothing was unmapped then.
    pub fn unmap(&self, slot: SlotId, range: IpaRange) -> Result<(), Error> {
        let slot = self.slots.get(slot).ok_or(SlotError::Gone)?;
        let range = range.start.max(slot.range.start)..range.end.min(slot.range.end);
        if range.start >= range.end {
            return Ok(());
        }
        let (log, tables) = (slot.tracking.log(), &mut self.tables());
        let own = log.map(|log| log.hold(self.stage2.platform()));
        let removed = |leaf: Broken<G>| {
            if let Some(log) = log.filter(|_| leaf.is_hardware_dirty()) {
                log.mark(slot, &(leaf.ipa()..leaf.ipa() + G::SIZE));
                if self.swap.is_some() {
                    self.end_copy(slot, leaf.ipa());
                }
            }
        };
        self.stage2.unmap(range.clone(), tables, removed)?.complete().free(tables);
        if own.is_none() {
            // The slot's first log may have started meanwhile, and this call holds no lock of it.
            self.note_writes(slot, range);
        }
        Ok(())
    }

    /// Writes into the guest's RAM: for a loader before the guest runs, and for writes by devices and the hypervisor
    /// while it runs. The pages are in a running dirty log when this returns. A page that was never touched is zeroed
    /// first.
    ///
    /// If a page is not mapped yet, its bytes are clean to the point of coherency when it gets mapped. A mapped page is
    /// written through this CPU's caches. The guest sees such a write if its own caches are on, or if FEAT_S2FWB forces
    /// its accesses to be write-back.
    ///
    /// # Errors
    ///
    /// [`Error::NoRam`] with the first address that is not RAM, or [`Error::NoFrames`] with the first page that has no
    /// frames. With a page store, [`Error::Absent`] with the first page that is not in memory. The bytes before it were
    /// written.
    pub fn write(&self, ipa: Ipa, bytes: &[u8]) -> Result<(), Error> {
        let mut at = ipa;
        let mut left = bytes;
        while !left.is_empty() {
            let page = at.align_down(G::SIZE);
            let (now, later) = left.split_at(left.len().min((G::SIZE - (at - page)) as usize));
            let slot = self.slots.find(at).ok_or(Error::NoRam { ipa: at })?;
            self.write_in_page(slot, at, now).map_err(|error| after(error, at - ipa))?;
            at = at + now.len() as u64;
            left = later;
        }
        Ok(())
    }

    /// Writes bytes of one page, and marks it.
    pub(crate) fn write_in_page(&self, slot: &Memslot<G>, at: Ipa, bytes: &[u8]) -> Result<(), Error> {
        let (page, platform) = (at.align_down(G::SIZE), self.stage2.platform());
        match &slot.content {
            Content::Ram(ram) => {
                let mut ram = ram.lock(platform);
                match ram.back(page, &self.frames, &self.stage2) {
                    Some(mut backed) => {
                        backed.make_ready(platform, self.stage2.features());
                        backed.write(platform, at - page, bytes);
                    }
                    None => self.write_single(slot, ram, at, bytes)?,
                }
            }
            Content::Preallocated(preallocated) => {
                preallocated.frames.run().write(platform, at - slot.range.start, bytes);
            }
            Content::Device(_) => return Err(Error::NoRam { ipa: at }),
        }
        self.note_writes(slot, page..page + G::SIZE);
        Ok(())
    }

    /// Reads the guest's RAM through this CPU's caches. Memory that was never touched reads as zero.
    ///
    /// If vCPUs write there meanwhile, each byte is an old or a new one. If a [`write`](Self::write) runs meanwhile,
    /// each page of [`Backing::Ram`](crate::Backing::Ram) is read as it was before or after that write to the page;
    /// preallocated memory has no such guarantee.
    ///
    /// # Errors
    ///
    /// [`Error::NoRam`], with the first address that is not RAM. With a page store, [`Error::Absent`] with the first
    /// page that is not in memory. The bytes before it were read.
    pub fn read(&self, ipa: Ipa, bytes: &mut [u8]) -> Result<(), Error> {
        let mut at = ipa;
        let mut left = bytes;
        while !left.is_empty() {
            let page = at.align_down(G::SIZE);
            let count = left.len().min((G::SIZE - (at - page)) as usize);
            let (now, later) = left.split_at_mut(count);
            let slot = self.slots.find(at).ok_or(Error::NoRam { ipa: at })?;
            self.read_in_page(slot, at, now).map_err(|error| after(error, at - ipa))?;
            at = at + count as u64;
            left = later;
        }
        Ok(())
    }

    /// Reads bytes of one page.
    pub(crate) fn read_in_page(&self, slot: &Memslot<G>, at: Ipa, bytes: &mut [u8]) -> Result<(), Error> {
        let (page, platform) = (at.align_down(G::SIZE), self.stage2.platform());
        match &slot.content {
            Content::Ram(ram) => match ram.lock(platform).content(page) {
                PageContent::At(lent, offset) => lent.run().read(platform, offset + (at - page), bytes),
                PageContent::Zero => bytes.fill(0),
                PageContent::Away => return Err(Error::Absent { page, done: 0 }),
            },
            Content::Preallocated(preallocated) => {
                preallocated.frames.run().read(platform, at - slot.range.start, bytes);
            }
            Content::Device(_) => return Err(Error::NoRam { ipa: at }),
        }
        Ok(())
    }

    /// The guest's tables.
    pub fn stage2(&self) -> &Stage2<P, G> {
        &self.stage2
    }

    /// The frames that the guest takes memory from, locked: faults wait for them. While the caller holds the guard, a
    /// call that needs the frames, such as [`fault`](Self::fault) or [`counts`](Self::counts), would wait for itself.
    /// Pass [`tables`](Self::tables) to the engine instead.
    pub fn frames(&self) -> LockGuard<'_, Frames> {
        self.frames.lock(self.stage2.platform())
    }

    /// Takes back frames that held data.
    pub(crate) fn give_data(&self, run: Run) {
        self.frames().give_data(self.stage2.platform(), run);
    }

    /// The frames as a source of table pages for the engine. They are locked for one page at a time.
    pub fn tables(&self) -> impl TableSource<G> + '_ {
        Tables(self)
    }

    /// Counts since the guest was made.
    pub fn counts(&self) -> Counts {
        let (tables_allocated, tables_freed) = self.frames().table_counts();
        let frames_zeroed = self.slots.ram().map(|ram| ram.lock(self.stage2.platform()).zeroed()).sum();
        let leaves = self.leaves.read();
        Counts {
            mapped: leaves.map(|[first_touches, others]| first_touches + others),
            first_touches: leaves.map(|[first_touches, _]| first_touches),
            promoted: self.promoted.load(Ordering::Relaxed),
            frames_zeroed,
            tables_allocated,
            tables_freed,
        }
    }
}

/// The error of a page, after `done` bytes before it.
fn after(error: Error, done: u64) -> Error {
    match error {
        Error::Absent { page, .. } => Error::Absent { page, done },
        error => error,
    }
}

/// Discards the place of a page whose slot goes.
fn discard(swap: &Option<Box<Swap>>, place: Place) {
    if let Some(swap) = swap {
        swap.discard(place);
    }
}

/// The run that was reclaimed. A slot's frames were lent to this guest's tables for the slot's addresses, so reclaiming
/// them never fails.
fn reclaimed(reclaimed: Result<Run, Lent>) -> Option<Run> {
    debug_assert!(reclaimed.is_ok(), "{reclaimed:?} was lent for other addresses than its slot's");
    reclaimed.ok()
}

/// The frames of a guest, locked for one table page at a time. The engine takes pages with none of its own locks held,
/// and a fault holds no lock of a slot then.
struct Tables<'a, P: Platform, G: Granule>(&'a GuestMemory<P, G>);

impl<P: Platform, G: Granule> Tables<'_, P, G> {
    /// A page from the frames that guests share.
    #[cold]
    fn take_shared(&self) -> Option<TablePage<G>> {
        let mut frames = self.0.frames();
        frames.add_tables(self.0.stage2.platform())?;
        TableSource::take(&mut *frames)
    }
}

impl<P: Platform, G: Granule> TableSource<G> for Tables<'_, P, G> {
    fn take(&mut self) -> Option<TablePage<G>> {
        let page = TableSource::take(&mut *self.0.frames());
        page.or_else(|| self.take_shared())
    }

    fn give(&mut self, page: TablePage<G>) {
        self.0.frames().give(page);
    }
}

/// Leaves that were mapped, by level: first touches, and all others. Several vCPUs count at once. The counts are
/// relaxed, since they order nothing and decide nothing.
#[derive(Default)]
pub(crate) struct Leaves([[AtomicU64; 2]; 4]);

impl Leaves {
    /// Counts one leaf.
    #[inline]
    pub(crate) fn count(&self, level: Level, first_touch: bool) {
        self.0[level.raw() as usize][usize::from(!first_touch)].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the pages of a contiguous group.
    pub(crate) fn count_group(&self, pages: u64, first_touch: bool) {
        self.0[Level::L3.raw() as usize][usize::from(!first_touch)].fetch_add(pages, Ordering::Relaxed);
    }

    fn read(&self) -> [[u64; 2]; 4] {
        self.0.each_ref().map(|level| level.each_ref().map(|leaves| leaves.load(Ordering::Relaxed)))
    }
}
