// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's memory as a whole: its slots, its tables, and the frames it draws on.
//!
//! Invariant: what several vCPUs change is in a lock, or a count that orders nothing; the locks' order is a slot's backing,
//! then the frames, and neither is held while the engine works on the tables.

use core::sync::atomic::{AtomicU64, Ordering};

use twofold_stage2::{
    Broken, Geometry, Ipa, IpaRange, Lent, Level, Lock, LockGuard, Platform, Run, Stage2, TablePage, TableSource,
    Unwatched, Vmid,
};

use crate::frames::{FRAME, Frames};
use crate::slots::{Content, Refused, Slot, SlotError, SlotId, Slots};

/// How large the mappings of a guest's RAM may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// As large as slot and backing allow.
    Largest,
    /// 4 KiB pages only.
    Small,
}

/// One guest's memory.
pub struct GuestMemory<P: Platform> {
    pub(crate) stage2: Stage2<P>,
    pub(crate) slots: Slots,
    pub(crate) frames: Lock<Frames>,
    pub(crate) pages: Pages,
    pub(crate) leaves: Leaves,
    pub(crate) promoted: AtomicU64,
    #[cfg(feature = "baselines")]
    pub(crate) before: crate::baselines::Before,
}

/// What was done so far. While vCPUs run, one number may be ahead of another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Leaves that were mapped, by level: index 3 counts pages, 2 and 1 blocks.
    pub mapped: [u64; 4],
    /// Translation faults that zeroed frames and mapped them, by level as above. What a loader wrote before, what an
    /// attempt zeroed that then lacked a table page, or what one vCPU zeroed and another one mapped first, is not counted.
    pub first_touches: [u64; 4],
    /// Blocks that took the place of a table which was in a fault's way. They are among those that were mapped.
    pub promoted: u64,
    /// Frames that were zeroed.
    pub frames_zeroed: u64,
    /// Table pages taken, the root's included.
    pub tables_allocated: u64,
    /// Table pages given back.
    pub tables_freed: u64,
}

/// Why guest memory could not do what it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No frames are left.
    #[error("no memory is left to back the guest at {ipa}")]
    NoFrames {
        /// The guest's address.
        ipa: Ipa,
    },
    /// No memory is left for the root table.
    #[error("no memory is left for the root of the guest's tables ({size} bytes)")]
    NoRoot {
        /// Its size in bytes.
        size: u64,
    },
    /// There is no RAM at that address.
    #[error("the guest has no RAM at {ipa}")]
    NoRam {
        /// The guest's address.
        ipa: Ipa,
    },
    /// The tables could not be changed.
    #[error("the guest's tables: {0}")]
    Stage2(#[from] twofold_stage2::Error),
    /// A slot was refused.
    #[error(transparent)]
    Slot(#[from] SlotError),
}

/// What the slot was to be given is lost: to have it back, look at the [`Refused`].
impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        Self::Slot(refused.error)
    }
}

impl<P: Platform> GuestMemory<P> {
    /// A guest without memory. The VMID is the caller's to keep apart.
    pub fn new(platform: P, geometry: Geometry, vmid: Vmid, mut frames: Frames, pages: Pages) -> Result<Self, Error> {
        let features = frames.features();
        let root = frames.take_root(&geometry).ok_or(Error::NoRoot { size: geometry.root_size() })??;
        let stage2 = Stage2::new(platform, features, geometry, vmid, root)?;
        Ok(Self {
            stage2,
            slots: Slots::default(),
            frames: Lock::new(frames),
            pages,
            leaves: Leaves::default(),
            promoted: AtomicU64::new(0),
            #[cfg(feature = "baselines")]
            before: Default::default(),
        })
    }

    /// Gives the addresses of `slot` their meaning. Nothing is mapped yet. No vCPU runs meanwhile: who finds a slot takes
    /// no lock for it.
    ///
    /// # Errors
    ///
    /// The slot comes back, with what is wrong with it.
    pub fn add_slot(&mut self, slot: Slot) -> Result<SlotId, Refused> {
        let stage2 = &self.stage2;
        self.slots.add(slot, stage2.geometry().end(), |run, range| stage2.lend(run, range.start, range))
    }

    /// Takes a slot away: nothing of it is mapped any more, and its frames are free when this returns. Those that it was
    /// [given](crate::Backing::Given) are the caller's again. No vCPU runs meanwhile.
    ///
    /// # Errors
    ///
    /// It is gone already; its tables cannot be emptied, and it stays.
    pub fn remove_slot(&mut self, slot: SlotId) -> Result<Option<Run>, Error> {
        let range = self.slots.get(slot).ok_or(SlotError::Gone)?.range.clone();
        // Blocks at its ends may be split for that. They are the slot's own: none reaches beyond.
        let frames = self.frames.get_mut();
        let vacated = self.stage2.vacate(range, frames)?;
        let reclaim = |lent| reclaimed(vacated.reclaim(lent));
        match self.slots.remove(slot).map(|slot| slot.content) {
            Some(Content::Ram(ram)) => {
                ram.into_inner().into_frames().filter_map(reclaim).for_each(|run| frames.give_own(run));
                Ok(None)
            }
            Some(Content::Given(given)) => Ok(reclaim(given.frames)),
            Some(Content::Device(_)) | None => Ok(None),
        }
    }

    /// The end of the guest: its slots go, its tables are empty, and no TLB entry of its VMID is left, which another guest
    /// may get. All its frames are free again, those of its tables included, and are the caller's, as [`Frames`]. What slots
    /// were [given](crate::Backing::Given) goes to `given`, run by run. No vCPU runs, and no CPU has the tables loaded.
    pub fn destroy(self, mut given: impl FnMut(Run)) -> Frames {
        let Self { stage2, slots, frames, .. } = self;
        let mut frames = frames.into_inner();
        let (root, _) = stage2.destroy(&mut frames, Unwatched);
        let reclaim = |lent| reclaimed(root.reclaim(lent));
        for content in slots.into_contents() {
            match content {
                Content::Ram(ram) => {
                    ram.into_inner().into_frames().filter_map(reclaim).for_each(|run| frames.give_own(run));
                }
                Content::Given(backing) => reclaim(backing.frames).into_iter().for_each(&mut given),
                Content::Device(_) => {}
            }
        }
        frames.give_own(root.into_run());
        frames
    }

    /// Unmaps a slot's addresses in `range`, beside vCPUs. What is there stays, and is mapped again when it is touched. A
    /// running dirty log keeps what was written: what hardware recorded is in it when this returns, and no page is cleared
    /// before the flush that ends the guest's writes.
    ///
    /// # Errors
    ///
    /// The slot is gone; the range is not made of whole pages; a block reaches beyond it, and no table page is left to split
    /// that. Nothing was unmapped then.
    pub fn unmap(&self, slot: SlotId, range: IpaRange) -> Result<(), Error> {
        let slot = self.slots.get(slot).ok_or(SlotError::Gone)?;
        let range = range.start.max(slot.range.start)..range.end.min(slot.range.end);
        if range.start >= range.end {
            return Ok(());
        }
        let (log, tables) = (slot.tracking.log(), &mut self.tables());
        let own = log.map(|log| log.hold(self.stage2.platform()));
        let removed = |leaf: Broken| {
            if let Some(log) = log.filter(|_| leaf.is_hardware_dirty()) {
                log.mark(slot, &(leaf.ipa()..leaf.ipa() + FRAME));
            }
        };
        self.stage2.unmap(range.clone(), tables, removed)?.complete().free(tables);
        if own.is_none() {
            // The slot's first log may have been started meanwhile.
            self.note_writes(slot, range);
        }
        Ok(())
    }

    /// Writes into the guest's RAM: what a loader does before the guest runs, and the gate for what a device or the
    /// hypervisor writes while it does, as a running dirty log has it when this returns. Pages that were never touched are
    /// zero around it.
    ///
    /// Into a page that is not mapped yet the bytes are clean to the point of coherency when it is. A page that is mapped is
    /// written through this CPU's caches, which a guest sees that has its own on, or whose accesses are forced to be
    /// write-back (FEAT_S2FWB).
    ///
    /// # Errors
    ///
    /// There is no RAM, or no frames are left: what comes before was written.
    pub fn write(&self, ipa: Ipa, bytes: &[u8]) -> Result<(), Error> {
        let mut at = ipa;
        let mut left = bytes;
        while !left.is_empty() {
            let page = at.align_down(FRAME);
            let (now, later) = left.split_at(left.len().min((FRAME - (at - page)) as usize));
            let (slot, platform) = (self.slots.find(at).ok_or(Error::NoRam { ipa: at })?, self.stage2.platform());
            match &slot.content {
                Content::Ram(ram) => {
                    let mut ram = ram.lock(platform);
                    let mut backed = ram.back(page, &self.frames, &self.stage2).ok_or(Error::NoFrames { ipa: page })?;
                    backed.make_ready(platform, self.stage2.features());
                    backed.write(platform, at - page, now);
                }
                Content::Given(given) => given.frames.run().write(platform, at - slot.range.start, now),
                Content::Device(_) => return Err(Error::NoRam { ipa: at }),
            }
            self.note_writes(slot, page..page + FRAME);
            at = at + now.len() as u64;
            left = later;
        }
        Ok(())
    }

    /// Reads the guest's RAM, by this CPU's caches: what it holds at this moment, zeroes where it was never touched. Beside
    /// vCPUs that write there each byte is one that was written; beside [`write`](Self::write) a page of RAM that was not
    /// given is as it was, or as it is.
    ///
    /// # Errors
    ///
    /// There is no RAM.
    pub fn read(&self, ipa: Ipa, bytes: &mut [u8]) -> Result<(), Error> {
        let mut at = ipa;
        let mut left = bytes;
        while !left.is_empty() {
            let page = at.align_down(FRAME);
            let count = left.len().min((FRAME - (at - page)) as usize);
            let (now, later) = left.split_at_mut(count);
            let (slot, platform) = (self.slots.find(at).ok_or(Error::NoRam { ipa: at })?, self.stage2.platform());
            match &slot.content {
                Content::Ram(ram) => match ram.lock(platform).ready_page(page) {
                    Some((lent, offset)) => lent.run().read(platform, offset + (at - page), now),
                    None => now.fill(0),
                },
                Content::Given(given) => given.frames.run().read(platform, at - slot.range.start, now),
                Content::Device(_) => return Err(Error::NoRam { ipa: at }),
            }
            at = at + count as u64;
            left = later;
        }
        Ok(())
    }

    /// The guest's tables.
    pub fn stage2(&self) -> &Stage2<P> {
        &self.stage2
    }

    /// The frames that the guest draws on, locked: faults wait for them. Whoever holds them asks nothing else of this guest
    /// that needs them, or counts them, or it waits for itself: the engine is given [`tables`](Self::tables).
    pub fn frames(&self) -> LockGuard<'_, Frames> {
        self.frames.lock(self.stage2.platform())
    }

    /// The frames as the engine takes table pages from them, and gives them back: locked for each of them.
    pub fn tables(&self) -> impl TableSource + '_ {
        Tables(self)
    }

    /// What was done so far.
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

/// What was reclaimed. A slot's frames were lent for its addresses and to its guest's tables, so they always are.
fn reclaimed(reclaimed: Result<Run, Lent>) -> Option<Run> {
    debug_assert!(reclaimed.is_ok(), "{reclaimed:?} was lent for other addresses than its slot's");
    reclaimed.ok()
}

/// The frames of a guest, locked for one table page at a time. The engine asks with none of its own locks held, and faults
/// hold no slot's then.
struct Tables<'a, P: Platform>(&'a GuestMemory<P>);

impl<P: Platform> TableSource for Tables<'_, P> {
    fn take(&mut self) -> Option<TablePage> {
        TableSource::take(&mut *self.0.frames())
    }

    fn give(&mut self, page: TablePage) {
        self.0.frames().give(page);
    }
}

/// Leaves that were mapped, by level, as vCPUs count them beside each other: first touches, and all others. Relaxed: they
/// order nothing, and nothing is decided by them.
#[derive(Default)]
pub(crate) struct Leaves([[AtomicU64; 2]; 4]);

impl Leaves {
    /// One more.
    #[inline]
    pub(crate) fn count(&self, level: Level, first_touch: bool) {
        self.0[level.raw() as usize][usize::from(!first_touch)].fetch_add(1, Ordering::Relaxed);
    }

    fn read(&self) -> [[u64; 2]; 4] {
        self.0.each_ref().map(|level| level.each_ref().map(|leaves| leaves.load(Ordering::Relaxed)))
    }
}
