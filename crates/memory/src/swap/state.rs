// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest with a page store has beside its memory.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use twofold_stage2::{Lock, Platform};

use super::single::{Page, Singles};
use super::store::{Notify, PageStore, Place};
use super::waiters::Waiting;

/// Options of [`attach_store`](crate::GuestMemory::attach_store).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapOptions {
    /// How many vCPUs the guest has.
    pub vcpus: u32,
    /// How many others may wait for a page at a time, such as devices.
    pub others: u32,
    /// How many frames the write-out task keeps free under the limit, so that most faults need not wait for one.
    pub headroom: u64,
}

/// The store, and what waits for its pages.
pub(crate) struct Swap {
    pub(super) store: Box<dyn PageStore>,
    pub(super) notify: Box<dyn Notify>,
    pub(super) options: SwapOptions,
    /// Taken after a slot's backing, or alone. Nothing else is locked while it is held.
    pub(super) waiting: Lock<Waiting>,
    /// For faults, which allocate nothing. Taken after a slot's backing, or alone.
    spare: Lock<Vec<Singles>>,
    /// Pages on their way out, and on their way in. Figures that order nothing.
    pub(super) leaving: Count,
    pub(super) arriving: Count,
    /// Pages that have left and had the access flag.
    pub(super) accessed_and_left: Count,
}

/// Spare states of huge pages.
const SPARE: usize = 8;

/// A figure that several CPUs change, and that decides nothing by itself.
#[derive(Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn sub(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Swap {
    /// `None` if the heap is full.
    pub(super) fn new(store: Box<dyn PageStore>, notify: Box<dyn Notify>, options: SwapOptions) -> Option<Self> {
        let waiting = Lock::new(Waiting::new(options.vcpus, options.others)?);
        let mut spare = Vec::new();
        spare.try_reserve_exact(SPARE).ok()?;
        while spare.len() < SPARE {
            spare.push(Singles::new()?);
        }
        let (leaving, arriving, accessed_and_left) = Default::default();
        Some(Self { store, notify, options, waiting, spare: Lock::new(spare), leaving, arriving, accessed_and_left })
    }

    /// Discards a place. No lock is held.
    pub(crate) fn discard(&self, place: Place) {
        self.store.discard(place);
    }

    /// Whether the page is in the store, which [answers at once](PageStore::reads_at_once).
    pub(crate) fn reads_at_once(&self, page: &Page) -> bool {
        matches!(page, Page::Absent(place) if self.store.reads_at_once(*place))
    }

    /// States for a huge page, without allocating.
    pub(super) fn spare<P: Platform>(&self, platform: &P) -> Option<Singles> {
        self.spare.lock(platform).pop()
    }

    /// Whether there are spare states.
    pub(super) fn has_spare<P: Platform>(&self, platform: &P) -> bool {
        !self.spare.lock(platform).is_empty()
    }

    /// Allocates what was used, as far as the heap has memory. Returns whether anything was.
    pub(super) fn refill<P: Platform>(&self, platform: &P) -> bool {
        let mut allocated = false;
        while self.spare.lock(platform).len() < SPARE {
            let Some(new) = Singles::new() else { break };
            self.give_back(platform, new);
            allocated = true;
        }
        allocated
    }

    /// Takes back states that were not needed. The list never grows on the heap.
    pub(super) fn give_back<P: Platform>(&self, platform: &P, singles: Singles) {
        let mut spare = self.spare.lock(platform);
        if spare.len() < SPARE {
            spare.push(singles);
        }
    }
}
