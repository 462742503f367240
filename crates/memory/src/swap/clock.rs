// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The simplest way to choose pages that leave: in the order of their addresses, around and around. It needs no memory,
//! and looks at no access. [`Generations`](super::Generations) does.

use twofold_stage2::{Granule, Ipa, Platform};

use super::leave::{WriteOutError, WrittenOut};
use crate::guest::GuestMemory;
use crate::slots::Content;

/// A hand that goes over a guest's pages.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    next: Ipa,
}

/// What [`Generations::make_room`](super::Generations::make_room) or [`Clock::make_room`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Relief {
    /// Pages whose frames are free.
    pub freed: u64,
    /// Pages that the store writes.
    pub started: u64,
    /// An [interrupt is pending](twofold_stage2::Platform::interrupt_is_pending) on this CPU, and ended the call early. The
    /// caller lets the CPU take it, and calls again.
    pub is_interrupted: bool,
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock {
    /// A hand at the first address.
    pub const fn new() -> Self {
        Self { next: Ipa::new(0) }
    }

    /// The next page that has a frame; `None` if none has.
    pub fn next<P: Platform, G: Granule>(&mut self, memory: &GuestMemory<P, G>) -> Option<Ipa> {
        let page = memory.next_with_frame(self.next).or_else(|| memory.next_with_frame(Ipa::new(0)))?;
        self.next = page.checked_add(G::SIZE).unwrap_or(Ipa::new(0));
        Some(page)
    }

    /// Writes out `count` pages, or as many as can leave in one round of the hand. It stops after a page if an interrupt is
    /// pending.
    ///
    /// # Errors
    ///
    /// The last error of a page, if none could leave: the write-out task then calls
    /// [`fail_waiting`](GuestMemory::fail_waiting), and tries again when the store is mended.
    pub fn make_room<P: Platform, G: Granule>(
        &mut self,
        memory: &GuestMemory<P, G>,
        count: u64,
    ) -> Result<Relief, WriteOutError> {
        let mut relief = Relief::default();
        let mut refused = None;
        let (start, mut last, mut wraps) = (self.next, None, 0);
        while relief.pages() < count {
            let Some(page) = self.next(memory) else { break };
            wraps += u32::from(last.map_or(page < start, |last| page <= last));
            // The page was tried, or the hand is where it began.
            if wraps > 1 || (wraps == 1 && page >= start) {
                break;
            }
            last = Some(page);
            match memory.write_out(page) {
                Ok(WrittenOut::Freed) => relief.freed += 1,
                Ok(WrittenOut::Started) => relief.started += 1,
                // An interrupt that is pending ends the loop below.
                Ok(WrittenOut::Needed | WrittenOut::NotPresent | WrittenOut::Pinned | WrittenOut::Interrupted) => {}
                Err(error) => refused = Some(error),
            }
            if relief.stops(memory, count) {
                break;
            }
        }
        match refused {
            Some(error) if relief == Relief::default() => Err(error),
            _ => Ok(relief),
        }
    }
}

impl Relief {
    /// Pages that are away, or on their way.
    pub(super) fn pages(&self) -> u64 {
        self.freed + self.started
    }

    /// Whether an interrupt ends the call, which has looked at a page. It does not if all is done.
    pub(super) fn stops<P: Platform, G: Granule>(&mut self, memory: &GuestMemory<P, G>, count: u64) -> bool {
        self.is_interrupted |= self.pages() < count && memory.stage2.platform().interrupt_is_pending();
        self.is_interrupted
    }
}

impl<P: Platform, G: Granule> GuestMemory<P, G> {
    /// The first page from `ipa` on that has a frame and no I/O in flight.
    pub(crate) fn next_with_frame(&self, ipa: Ipa) -> Option<Ipa> {
        self.slots.from(ipa).find_map(|slot| match &slot.content {
            Content::Ram(ram) => ram.lock(self.stage2.platform()).next_with_frame(ipa),
            Content::Preallocated(_) | Content::Device(_) => None,
        })
    }
}
