// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many frames hold the guest's data, and how many may.
//!
//! Invariant: a frame is counted as *data* from the moment it is taken for a page until it is free again, so also while
//! its I/O is in flight. Tables are counted apart. Taking data frames checks the limit under the frames' lock, so their
//! number never grows beyond it.

use twofold_stage2::{Granule, Platform};

use super::state::Swap;
use crate::frames::PAGES;
use crate::guest::GuestMemory;

/// What one instruction of a vCPU may need in memory at once: three pages (its own, and an access across a page
/// boundary), each with four levels of the guest's tables; and the vCPU's area for asynchronous faults.
pub const FRAMES_PER_VCPU: u64 = 3 * (1 + 4) + 1;

/// Free frames that are left to tables while a store is attached: what mapping one page takes, with the most levels
/// that there are.
pub(super) const RESERVE: u64 = 4;

/// Which frames a guest uses, as they were at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameUse {
    /// Frames that hold data, those with I/O in flight included.
    pub data: u64,
    /// The most frames that may hold data.
    pub limit: u64,
    /// Free frames.
    pub free: u64,
    /// Frames that hold tables.
    pub tables: u64,
    /// Pages on their way out. Their frames are data.
    pub leaving: u64,
    /// Pages on their way in. Their frames are data.
    pub arriving: u64,
    /// vCPUs and others that wait for a page.
    pub waiting: u64,
}

/// Why a limit was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// The guest would make no progress.
    #[error("a limit of {limit} frames is too small: the guest needs {least}, of which {pinned} are pinned")]
    TooSmall {
        /// The limit that was asked for.
        limit: u64,
        /// The least limit.
        least: u64,
        /// Pinned pages.
        pinned: u64,
    },
}

impl<P: Platform, G: Granule> GuestMemory<P, G> {
    /// Limits the frames that hold the guest's data.
    ///
    /// If more are in use, no more are taken until the guest is below the limit. The result is how many have to leave
    /// first.
    ///
    /// # Errors
    ///
    /// [`LimitError::TooSmall`]: with a store, [`FRAMES_PER_VCPU`] for each vCPU are needed, and the pinned pages;
    /// without one, a huge page.
    pub fn set_limit(&self, frames: u64) -> Result<u64, LimitError> {
        let platform = self.stage2.platform();
        let pinned = self.slots.ram().map(|ram| ram.lock(platform).pins.count() as u64).sum();
        let working = match &self.swap {
            Some(swap) => FRAMES_PER_VCPU * u64::from(swap.options.vcpus),
            None => PAGES,
        };
        let least = working + pinned;
        if frames < least {
            return Err(LimitError::TooSmall { limit: frames, least, pinned });
        }
        let used = {
            let mut locked = self.frames();
            locked.limit_data(frames);
            locked.data().0
        };
        // Pages may have waited for a higher one.
        self.swap.iter().for_each(|swap| self.serve(swap));
        Ok(used.saturating_sub(frames))
    }

    /// Which frames the guest uses.
    pub fn frame_use(&self) -> FrameUse {
        let swap = self.swap.as_deref();
        let waiting = swap.map_or(0, |swap| swap.waiting.lock(self.stage2.platform()).count() as u64);
        let (leaving, arriving) = swap.map_or((0, 0), |swap| (swap.leaving.get(), swap.arriving.get()));
        let frames = self.frames();
        let ((data, limit), (taken, given)) = (frames.data(), frames.table_counts());
        FrameUse { data, limit, free: frames.free(), tables: taken - given, leaving, arriving, waiting }
    }

    /// How many pages should leave now, so that each page that waits gets a frame and the headroom is free. Pages that
    /// are on their way out are counted already. 0: the write-out task may sleep until
    /// [`frames_wanted`](super::Notify::frames_wanted).
    ///
    /// Pages leave in batches: as long as no page waits and half of the headroom is free, this is 0. From then on it is what is
    /// wanted, until all of the headroom is free.
    ///
    /// Pages that wait get what frames have become free otherwise: from tables, or from the embedder.
    pub fn wants_frames(&self) -> u64 {
        let Some(swap) = &self.swap else { return 0 };
        if !self.frames_are_wanted(swap) {
            return 0;
        }
        self.serve(swap);
        let room = self.frames().data_room() + swap.leaving.get();
        let (waiting, wanted) = {
            let mut waiting = swap.waiting.lock(self.stage2.platform());
            let (count, headroom) = (waiting.wanting() as u64, swap.options.headroom);
            let wanted = (count + headroom).saturating_sub(room);
            let is_short = room < count + headroom.div_ceil(2);
            waiting.refills = wanted > 0 && (waiting.refills || is_short);
            (count, if waiting.refills { wanted } else { 0 })
        };
        // A page may wait for spare states only, which the task allocates.
        wanted.max(u64::from(self.waits_for_states(swap, waiting)))
    }

    /// The usual case, by one look: no page waits, and enough of the headroom is free.
    #[inline]
    fn frames_are_wanted(&self, swap: &Swap) -> bool {
        let room = self.frames().data_room() + swap.leaving.get();
        let waiting = swap.waiting.lock(self.stage2.platform());
        waiting.refills || waiting.wanting() > 0 || room < swap.options.headroom.div_ceil(2)
    }

    fn waits_for_states(&self, swap: &Swap, waiting: u64) -> bool {
        waiting > 0 && !swap.has_spare(self.stage2.platform())
    }
}
