// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Free memory that several guests share, in chunks of 2 MiB, with a limit for each guest.
//!
//! A guest's [`Frames`](crate::Frames) take a chunk when they have nothing left: for a huge page of RAM, which is the whole chunk, or
//! for tables. So only the first touch of 2 MiB and one table in 512 come here. A guest that has ended gives its chunks
//! back ([`GuestMemory::release`](crate::GuestMemory::release)).
//!
//! Invariants: a chunk is either free here or belongs to one guest, since a [`Run`] is moved. A guest never owns more than
//! its limit. If the limits of all guests together are at most what was free at the start, no guest waits for another.
//!
//! The chunk that was given back last is the first one that is taken. Taking and giving needs no memory on the heap.

use alloc::sync::Arc;
use alloc::vec::Vec;

use twofold_stage2::{FrameMap, Lock, Platform, Run};

use crate::frames::{Frames, HUGE_PAGE, PAGES};

/// Chunks that no guest has.
pub struct SharedFrames {
    /// The last one is taken next. Its lock is the last in the lock order, after a guest's frames.
    free: Lock<Vec<Run>>,
}

impl SharedFrames {
    /// Takes all whole, aligned 2 MiB runs of these frames.
    #[must_use]
    pub fn new(from: &mut Frames) -> Self {
        let mut free = Vec::with_capacity(from.huge_pages() as usize);
        free.extend(core::iter::from_fn(|| from.take(PAGES)));
        // The lowest one is taken first.
        free.reverse();
        Self { free: Lock::new(free) }
    }

    /// How many chunks there are, before guests have any.
    #[must_use]
    pub fn count(&mut self) -> u64 {
        self.free.get_mut().len() as u64
    }

    /// How many chunks are free.
    pub fn free<P: Platform>(&self, platform: &P) -> u64 {
        self.free.lock(platform).len() as u64
    }

    fn take<P: Platform>(&self, platform: &P) -> Option<Run> {
        self.free.lock(platform).pop()
    }

    fn give<P: Platform>(&self, platform: &P, chunk: Run) {
        let mut free = self.free.lock(platform);
        debug_assert!(free.len() < free.capacity(), "a chunk comes from here");
        free.push(chunk);
    }
}

/// What one guest has of them.
pub(crate) struct Share {
    from: Arc<SharedFrames>,
    /// The most chunks that the guest may own.
    limit: u64,
    owned: u64,
    /// Chunks for tables. There are few, one for 1 GiB of RAM.
    tables: Vec<FrameMap>,
    /// Chunks that held data, and hold nothing now.
    empty: Vec<Run>,
}

impl Share {
    pub(crate) fn new(from: Arc<SharedFrames>, limit: u64) -> Self {
        Self { from, limit, owned: 0, tables: Vec::new(), empty: Vec::new() }
    }

    /// A whole chunk. `None`: the guest has reached its limit, or none is free.
    pub(crate) fn take_chunk<P: Platform>(&mut self, platform: &P) -> Option<Run> {
        if let Some(chunk) = self.empty.pop() {
            return Some(chunk);
        }
        if self.owned >= self.limit {
            return None;
        }
        let chunk = self.from.take(platform)?;
        self.owned += 1;
        Some(chunk)
    }

    /// One more chunk for tables. `None` as above, or no memory is left on the heap.
    pub(crate) fn add_tables<P: Platform>(&mut self, platform: &P) -> Option<()> {
        self.tables.try_reserve(1).ok()?;
        let map = FrameMap::new(self.take_chunk(platform)?);
        debug_assert!(map.is_ok(), "a chunk is one aligned span");
        self.tables.push(map.ok()?);
        Some(())
    }

    /// Less than a chunk, for tables.
    pub(crate) fn take(&mut self, count: u64) -> Option<Run> {
        self.tables.iter_mut().rev().find_map(|map| map.take(count))
    }

    /// Takes back what was taken here. Returns the run if it was not.
    pub(crate) fn give(&mut self, run: Run) -> Result<(), Run> {
        if run.size() == HUGE_PAGE {
            self.empty.push(run);
            return Ok(());
        }
        self.tables.iter_mut().try_fold(run, |run, map| map.give(run).err().ok_or(())).map_or(Ok(()), Err)
    }

    /// Gives a chunk back to all guests.
    pub(crate) fn give_back<P: Platform>(&mut self, platform: &P, chunk: Run) {
        self.owned -= 1;
        self.from.give(platform, chunk);
    }

    /// Gives all chunks back that hold nothing. Returns how many frames for tables these had.
    pub(crate) fn give_back_empty<P: Platform>(&mut self, platform: &P) -> u64 {
        while let Some(chunk) = self.empty.pop() {
            self.give_back(platform, chunk);
        }
        let mut frames = 0;
        for map in core::mem::take(&mut self.tables) {
            match map.into_run() {
                Ok(chunk) => {
                    frames += PAGES;
                    self.give_back(platform, chunk);
                }
                Err(map) => self.tables.push(map),
            }
        }
        frames
    }

    /// Frames that no guest has.
    pub(crate) fn free_to_all<P: Platform>(&self, platform: &P) -> u64 {
        self.from.free(platform) * PAGES
    }

    /// How many chunks the guest owns.
    pub(crate) fn owned(&self) -> u64 {
        self.owned
    }
}
