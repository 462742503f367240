// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attaching a page store to a guest, and detaching it.

use alloc::boxed::Box;

use twofold_stage2::{Granule, Ipa, Platform};

use super::limit::RESERVE;
use super::single::Page;
use super::state::{Swap, SwapOptions};
use super::store::{Completions, Notify, PageStore, Place, ReadRequest, WriteRequest};
use super::store_error::StoreError;
use super::unasked::{NotBegun, Unasked};
use crate::frames::FRAME;
use crate::guest::{Error, GuestMemory};
use crate::ram::Content as PageContent;

/// Why a store was not attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The guest has one.
    #[error("the guest has a page store: detach it first")]
    Attached,
    /// The guest's frames are of those that several guests share.
    #[error("the guest shares frames with others: give it frames of its own")]
    Shared,
    /// The guest's pages are not of 4 KiB.
    #[error("the guest has pages of {page} bytes, and a store keeps pages of 4096")]
    PageSize {
        /// Bytes in a page.
        page: u64,
    },
    /// No memory on the heap.
    #[error("no memory is left for {vcpus} vCPUs and {others} others that may wait for pages")]
    NoMemory {
        /// How many vCPUs were asked for.
        vcpus: u32,
        /// How many others.
        others: u32,
    },
}

/// Why a store was not detached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DetachError {
    /// The guest has none.
    #[error("the guest has no page store")]
    NotAttached,
    /// Pages are in the store, or on their way.
    #[error("{absent} pages are in the store and {in_flight} on their way: bring them first")]
    InUse {
        /// Pages that are in the store only.
        absent: usize,
        /// Pages with I/O in flight.
        in_flight: usize,
    },
}

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Located {
    /// It reads as zero, and may have no frame.
    Zero,
    /// It is in memory.
    Present,
    /// It is on its way out.
    Leaving,
    /// It is in the store.
    Absent(Place),
    /// It is on its way in.
    Arriving(Place),
}

impl<P: Platform, G: Granule> GuestMemory<P, G> {
    /// Attaches a page store. From now on pages of [`Backing::Ram`](crate::Backing::Ram) may leave, and first touches
    /// take single frames where no 2 MiB are free under the limit. No vCPU runs meanwhile.
    ///
    /// # Errors
    ///
    /// [`AttachError`]: nothing has changed.
    pub fn attach_store(
        &mut self,
        store: Box<dyn PageStore>,
        notify: Box<dyn Notify>,
        options: &SwapOptions,
    ) -> Result<(), AttachError> {
        if self.swap.is_some() {
            return Err(AttachError::Attached);
        }
        if G::SIZE != FRAME {
            return Err(AttachError::PageSize { page: G::SIZE });
        }
        // A huge page of a shared chunk goes back as a whole.
        if self.frames.get_mut().are_shared() {
            return Err(AttachError::Shared);
        }
        let SwapOptions { vcpus, others, .. } = *options;
        let swap = Swap::new(store, notify, *options).ok_or(AttachError::NoMemory { vcpus, others })?;
        self.swap = Some(Box::new(swap));
        self.frames.get_mut().reserve_for_tables(RESERVE);
        Ok(())
    }

    /// Detaches the store: a post-copy migration ends so. Copies in the store of pages in memory are discarded. No vCPU
    /// runs meanwhile.
    ///
    /// # Errors
    ///
    /// [`DetachError`]: nothing has changed.
    pub fn detach_store(&mut self) -> Result<(), DetachError> {
        let Some(swap) = &self.swap else { return Err(DetachError::NotAttached) };
        let platform = self.stage2.platform();
        let (mut absent, mut in_flight) = (0, 0);
        for ram in self.slots.ram() {
            let ram = ram.lock(platform);
            absent += ram.singles().filter(|page| matches!(page, Page::Absent(_))).count();
            in_flight += ram.in_flight();
        }
        if absent > 0 || in_flight > 0 {
            return Err(DetachError::InUse { absent, in_flight });
        }
        for ram in self.slots.ram() {
            for page in ram.lock(platform).singles_mut() {
                if let Page::Present(present) = page
                    && let Some(kept) = present.kept.take()
                {
                    swap.discard(kept.place);
                }
            }
        }
        self.swap = None;
        self.frames.get_mut().reserve_for_tables(0);
        Ok(())
    }

    /// Where the page at `page` is now.
    ///
    /// # Errors
    ///
    /// [`Error::NoRam`] if no slot has RAM there.
    pub fn locate(&self, page: Ipa) -> Result<Located, Error> {
        let page = page.align_down(G::SIZE);
        let slot = self.slots.find(page).ok_or(Error::NoRam { ipa: page })?;
        let Some((_, ram)) = self.find_ram(page) else {
            return if slot.is_device() { Err(Error::NoRam { ipa: page }) } else { Ok(Located::Present) };
        };
        let ram = ram.lock(self.stage2.platform());
        Ok(match (ram.content(page), ram.single(page)) {
            (PageContent::At(..), _) => Located::Present,
            (_, Some(Page::Leaving { .. })) => Located::Leaving,
            (_, Some(Page::Absent(place))) => Located::Absent(*place),
            (_, Some(Page::Arriving(place))) => Located::Arriving(*place),
            _ => Located::Zero,
        })
    }
}

impl<P: Platform, G: Granule> Completions for GuestMemory<P, G> {
    fn copy_out(&self, request: &WriteRequest, bytes: &mut [u8; FRAME as usize]) {
        request.frame().read(self.stage2.platform(), 0, bytes);
    }

    fn copy_in(&self, request: &ReadRequest, bytes: &[u8; FRAME as usize]) {
        request.frame().write(self.stage2.platform(), 0, bytes);
    }

    fn begin_read(&self, page: Ipa, place: Place, content: Unasked) -> Result<ReadRequest, NotBegun> {
        self.begin_read(page, place, content)
    }

    fn make_zero(&self, page: Ipa, place: Place) -> Result<(), NotBegun> {
        self.make_zero(page, place)
    }

    fn complete_write(&self, request: WriteRequest, result: Result<(), StoreError>) {
        self.complete_write(request, result);
    }

    fn complete_read(&self, request: ReadRequest, result: Result<(), StoreError>) {
        self.complete_read(request, result);
    }
}
