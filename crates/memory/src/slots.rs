// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memslots: which guest addresses have memory or a device behind them.
//!
//! Invariant: slots are sorted, do not overlap, and are made of whole pages. They do not change while vCPUs run, so
//! finding one takes no lock. Only the backing of a RAM slot changes then, under a lock of its own.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use twofold_stage2::{Geometry, Granule, Ipa, IpaRange, Lent, Level, Lock, Pa, Run, Window};

use crate::dirty::log::Tracking;
use crate::frames::HUGE_PAGE;
use crate::preallocated::Preallocated;
use crate::ram::Ram;

/// A memslot: a range of guest-physical addresses with one backing.
#[derive(Debug, PartialEq, Eq)]
pub struct Slot {
    /// The guest-physical addresses.
    pub range: IpaRange,
    /// The memory or device behind them.
    pub backing: Backing,
    /// Whether the guest may write. A write to a read-only slot gets an external abort.
    pub writable: bool,
}

/// The memory or device behind a slot.
#[derive(Debug, PartialEq, Eq)]
pub enum Backing {
    /// Frames from the guest's [`Frames`](crate::Frames), taken at the first touch and zeroed.
    Ram,
    /// Preallocated memory of the embedder, with its content. The embedder gets it back when the slot is removed
    /// ([`remove_slot`](crate::GuestMemory::remove_slot)) or refused ([`Refused`]), or when the guest is destroyed
    /// ([`destroy`](crate::GuestMemory::destroy)).
    Preallocated {
        /// As many bytes as the slot has addresses, in the same order. A block needs both the frames and the addresses
        /// aligned to its size.
        frames: Run,
        /// The largest leaf that may map the memory. With the 4 KiB granule: level 1 for 1 GiB (as KVM maps hugetlb), 2 for
        /// 2 MiB (transparent huge pages), 3 for 4 KiB. With 16 KiB, level 2 is 32 MiB; with 64 KiB, 512 MiB.
        largest: Level,
    },
    /// The registers of a device, in the order of the slot's addresses. The embedder vouches for them
    /// ([`Window::new`]). The part of the window beyond the slot's size is not mapped.
    Device(Window),
}

/// The identity of a slot. It is never used again, not even after the slot was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotId(u64);

/// Why a slot was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SlotError {
    /// The slot is empty, or not made of whole pages.
    #[error("the slot from {start} to {end} is not made of whole pages of {page} bytes")]
    Misaligned {
        /// The slot's first byte.
        start: Ipa,
        /// The first byte after the slot.
        end: Ipa,
        /// Bytes in a page.
        page: u64,
    },
    /// The device's registers do not start on a page boundary.
    #[error("the slot from {start} has a device at {device}, which is not on a boundary of {page} bytes")]
    DeviceMisaligned {
        /// The slot's first byte.
        start: Ipa,
        /// The physical address of the device.
        device: Pa,
        /// Bytes in a page.
        page: u64,
    },
    /// The device's registers would wrap around the end of the physical address space.
    #[error("the slot from {start} has a device at {device}, which ends beyond the last physical address")]
    DeviceOutside {
        /// The slot's first byte.
        start: Ipa,
        /// The physical address of the device.
        device: Pa,
    },
    /// The device's window is smaller than the slot.
    #[error("the slot from {start} has {size} bytes, but its device's window has {window}: make the window as large")]
    WindowSize {
        /// The slot's first byte.
        start: Ipa,
        /// The slot's size in bytes.
        size: u64,
        /// Bytes in the window.
        window: u64,
    },
    /// The preallocated memory is larger or smaller than the slot.
    #[error(
        "the slot from {start} has {size} bytes, but its preallocated memory has {preallocated}: make both as large"
    )]
    PreallocatedSize {
        /// The slot's first byte.
        start: Ipa,
        /// The slot's size in bytes.
        size: u64,
        /// Bytes of preallocated memory.
        preallocated: u64,
    },
    /// The preallocated memory does not start on a page boundary.
    #[error("the slot from {start} has memory at {preallocated}, which is not on a boundary of {page} bytes")]
    PreallocatedMisaligned {
        /// The slot's first byte.
        start: Ipa,
        /// The first byte of the preallocated memory.
        preallocated: Pa,
        /// Bytes in a page.
        page: u64,
    },
    /// Another slot has some of the addresses.
    #[error("the slot from {start} overlaps the slot from {other}")]
    Overlap {
        /// The slot's first byte.
        start: Ipa,
        /// The first byte of the other slot.
        other: Ipa,
    },
    /// The slot was removed.
    #[error("the slot is gone")]
    Gone,
    /// The slot reaches beyond the IPA space.
    #[error("the slot that ends at {end} reaches beyond the IPA space, which ends at {limit}")]
    OutsideIpa {
        /// The first byte after the slot.
        end: Ipa,
        /// The first byte after the IPA space.
        limit: Ipa,
    },
}

/// A slot that was refused, with its backing, so that no memory is lost.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct Refused {
    /// The slot.
    pub slot: Slot,
    /// Why.
    pub error: SlotError,
}

/// A slot as it is kept. Its size is a power of two, so that a fault finds it by a shift. It shares no cache line with
/// another slot, so that the holder of its lock does not slow the others.
#[repr(align(128))]
pub(crate) struct Memslot<G: Granule> {
    pub(crate) range: IpaRange,
    pub(crate) writable: bool,
    pub(crate) tracking: Tracking,
    id: SlotId,
    pub(crate) content: Content<G>,
}

/// A slot's [`Backing`], with its state.
pub(crate) enum Content<G: Granule> {
    Ram(Lock<Ram<G>>),
    Preallocated(Preallocated),
    Device(Window),
}

impl<G: Granule> Memslot<G> {
    /// Whether a device is behind it.
    pub(crate) fn is_device(&self) -> bool {
        matches!(self.content, Content::Device(_))
    }

    /// The most of this slot that a leaf around `ipa` may map.
    pub(crate) fn around(&self, ipa: Ipa, geometry: &Geometry<G>) -> IpaRange {
        let largest = match &self.content {
            Content::Ram(_) => Ram::<G>::LARGEST,
            Content::Preallocated(preallocated) => preallocated.largest,
            Content::Device(_) => geometry.largest_block(),
        };
        let is_group = matches!(self.content, Content::Ram(_)) && Ram::<G>::IS_GROUP;
        let span = if is_group { HUGE_PAGE } else { geometry.granule().span(largest) };
        let start = ipa.align_down(span);
        start.max(self.range.start)..start.checked_add(span).unwrap_or(self.range.end).min(self.range.end)
    }
}

/// All slots of a guest.
pub(crate) struct Slots<G: Granule> {
    sorted: Vec<Memslot<G>>,
    /// Where the last search of any CPU ended: faults come in runs. A hint that orders nothing: the search checks that
    /// the slot there has the address, so every value is safe.
    last: AtomicUsize,
    /// How many slots were ever added.
    ids: u64,
    /// How many were removed.
    removed: u64,
}

impl<G: Granule> Default for Slots<G> {
    fn default() -> Self {
        Self { sorted: Vec::new(), last: AtomicUsize::new(0), ids: 0, removed: 0 }
    }
}

impl<G: Granule> Slots<G> {
    /// Adds a slot. `lend` lends its preallocated frames to the tables, for its addresses.
    pub(crate) fn add(
        &mut self,
        slot: Slot,
        geometry: &Geometry<G>,
        lend: impl FnOnce(Run, IpaRange) -> Lent,
    ) -> Result<SlotId, Refused> {
        let at = match self.place_of(&slot, geometry.end()) {
            Ok(at) => at,
            Err(error) => return Err(Refused { slot, error }),
        };
        let content = match slot.backing {
            Backing::Ram => Content::Ram(Lock::new(Ram::new(&slot.range))),
            // Levels above that have no leaves.
            Backing::Preallocated { frames, largest } => {
                let frames = lend(frames, slot.range.clone());
                Content::Preallocated(Preallocated { frames, largest: largest.max(geometry.largest_block()) })
            }
            Backing::Device(window) => Content::Device(window),
        };
        self.ids += 1;
        let (id, tracking) = (SlotId(self.ids), Tracking::default());
        self.sorted.insert(at, Memslot { range: slot.range, writable: slot.writable, tracking, id, content });
        Ok(id)
    }

    /// The index at which to insert a slot, after all checks.
    fn place_of(&self, slot: &Slot, limit: Ipa) -> Result<usize, SlotError> {
        let IpaRange { start, end } = slot.range;
        if start >= end || !start.is_aligned(G::SIZE) || !end.is_aligned(G::SIZE) {
            return Err(SlotError::Misaligned { start, end, page: G::SIZE });
        }
        match &slot.backing {
            Backing::Device(window) if !window.pa().is_aligned(G::SIZE) => {
                return Err(SlotError::DeviceMisaligned { start, device: window.pa(), page: G::SIZE });
            }
            Backing::Device(window) if window.pa().checked_add(end - start).is_none() => {
                return Err(SlotError::DeviceOutside { start, device: window.pa() });
            }
            Backing::Device(window) if window.size() < end - start => {
                return Err(SlotError::WindowSize { start, size: end - start, window: window.size() });
            }
            Backing::Preallocated { frames, .. } if !frames.pa().is_aligned(G::SIZE) => {
                return Err(SlotError::PreallocatedMisaligned { start, preallocated: frames.pa(), page: G::SIZE });
            }
            Backing::Preallocated { frames, .. } if frames.size() != end - start => {
                return Err(SlotError::PreallocatedSize { start, size: end - start, preallocated: frames.size() });
            }
            _ => {}
        }
        if end > limit {
            return Err(SlotError::OutsideIpa { end, limit });
        }
        let at = self.sorted.partition_point(|other| other.range.start < start);
        let neighbours = self.sorted[..at].last().into_iter().chain(self.sorted.get(at));
        for other in neighbours.map(|other| &other.range) {
            if other.start < end && start < other.end {
                return Err(SlotError::Overlap { start, other: other.start });
            }
        }
        Ok(at)
    }

    /// The slot with this identity, unless it was removed.
    pub(crate) fn get(&self, id: SlotId) -> Option<&Memslot<G>> {
        self.sorted.iter().find(|slot| slot.id == id)
    }

    /// Removes a slot.
    pub(crate) fn remove(&mut self, id: SlotId) -> Option<Memslot<G>> {
        let at = self.sorted.iter().position(|slot| slot.id == id)?;
        self.removed += 1;
        Some(self.sorted.remove(at))
    }

    /// Changes whenever a slot comes or goes. Until then, a slot keeps its index.
    pub(crate) fn generation(&self) -> u64 {
        self.ids + self.removed
    }

    /// The index of the slot that holds `ipa`.
    pub(crate) fn index_of(&self, ipa: Ipa) -> Option<usize> {
        let index = self.sorted.partition_point(|slot| slot.range.start <= ipa).checked_sub(1)?;
        self.sorted[index].range.contains(&ipa).then_some(index)
    }

    /// The slot with this index.
    pub(crate) fn at(&self, index: usize) -> Option<&Memslot<G>> {
        self.sorted.get(index)
    }

    /// The slots that reach beyond `ipa`, ascending.
    pub(crate) fn from(&self, ipa: Ipa) -> impl Iterator<Item = &Memslot<G>> {
        self.sorted[self.sorted.partition_point(|slot| slot.range.end <= ipa)..].iter()
    }

    /// The content of each slot.
    pub(crate) fn into_contents(self) -> impl Iterator<Item = Content<G>> {
        self.sorted.into_iter().map(|slot| slot.content)
    }

    /// The backing of each RAM slot.
    pub(crate) fn ram(&self) -> impl Iterator<Item = &Lock<Ram<G>>> {
        self.sorted.iter().filter_map(|slot| match &slot.content {
            Content::Ram(ram) => Some(ram),
            Content::Preallocated(_) | Content::Device(_) => None,
        })
    }

    /// The addresses of each RAM slot.
    pub(crate) fn ram_ranges(&self) -> impl Iterator<Item = IpaRange> {
        let ram = self.sorted.iter().filter(|slot| matches!(slot.content, Content::Ram(_)));
        ram.map(|slot| slot.range.clone())
    }

    /// The slot that holds `ipa`.
    pub(crate) fn find(&self, ipa: Ipa) -> Option<&Memslot<G>> {
        let holds = |slot: &&Memslot<G>| slot.range.contains(&ipa);
        if let Some(slot) = self.sorted.get(self.last.load(Ordering::Relaxed)).filter(holds) {
            return Some(slot);
        }
        let index = self.sorted.partition_point(|slot| slot.range.start <= ipa).checked_sub(1)?;
        self.last.store(index, Ordering::Relaxed);
        self.sorted.get(index).filter(holds)
    }
}

#[cfg(test)]
mod tests {
    use twofold_stage2::{Features, Kib4};

    use super::*;

    fn slot(start: u64, end: u64) -> Slot {
        Slot { range: Ipa::new(start)..Ipa::new(end), backing: Backing::Ram, writable: true }
    }

    fn nothing_lent(run: Run, _: IpaRange) -> Lent {
        unreachable!("no slot here is preallocated, but {run:?} is lent")
    }

    #[test]
    fn slots_are_found_by_any_of_their_addresses() {
        let mut slots = Slots::default();
        let geometry = Geometry::new(Kib4, 32, &Features::NONE).unwrap();
        for (start, end) in [(0x4000, 0x6000), (0x1000, 0x2000), (0x2000, 0x3000)] {
            slots.add(slot(start, end), &geometry, nothing_lent).unwrap();
        }
        let start = |ipa| slots.find(Ipa::new(ipa)).map(|kept| kept.range.start.raw());
        assert_eq!(start(0xfff), None);
        assert_eq!(start(0x1000), Some(0x1000));
        assert_eq!(start(0x1fff), Some(0x1000));
        assert_eq!(start(0x2000), Some(0x2000));
        assert_eq!(start(0x3000), None);
        assert_eq!(start(0x5fff), Some(0x4000));
        assert_eq!(start(0x6000), None);
    }

    #[test]
    fn bad_slots_are_refused() {
        let mut slots = Slots::default();
        let geometry = Geometry::new(Kib4, 32, &Features::NONE).unwrap();
        let mut add = |slot| slots.add(slot, &geometry, nothing_lent).map_err(|refused| refused.error);
        add(slot(0x4000, 0x6000)).unwrap();
        for (start, end) in [(0x5000, 0x7000), (0x3000, 0x5000), (0x3000, 0x7000), (0x4000, 0x6000), (0x4000, 0x5000)] {
            assert!(matches!(add(slot(start, end)), Err(SlotError::Overlap { .. })), "{start:#x}");
        }
        for (start, end) in [(0x8000, 0x8000), (0x9000, 0x8000), (0x8001, 0x9000), (0x8000, 0x8fff)] {
            assert!(matches!(add(slot(start, end)), Err(SlotError::Misaligned { .. })));
        }
        assert!(matches!(add(slot(0xffff_f000, 0x1_0000_1000)), Err(SlotError::OutsideIpa { .. })));
        assert!(add(slot(0xffff_f000, 0x1_0000_0000)).is_ok(), "the slot ends where the IPA space does");
    }
}
