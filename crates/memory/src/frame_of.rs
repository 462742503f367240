// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which frame holds a page of the guest: for a judge that reads the machine's memory and not the guest's.
//!
//! Invariant: the answer comes from the slot's backing, whether or not the page is mapped. So a judge can compare it with
//! what the tables say.

use twofold_stage2::{Granule, Ipa, Pa, Platform};

use crate::guest::{Error, GuestMemory};
use crate::ram::Content as PageContent;
use crate::slots::Content;

impl<P: Platform, G: Granule> GuestMemory<P, G> {
    /// The frame that holds the content of the page at `page`; `None` if the page reads as zero and no frame holds it. It
    /// may have changed when this returns, unless no vCPU and no device runs.
    ///
    /// # Errors
    ///
    /// [`Error::NoRam`] if the guest has no RAM there. With a page store, [`Error::Absent`] if the page is not in memory.
    pub fn frame_of(&self, page: Ipa) -> Result<Option<Pa>, Error> {
        let page = page.align_down(G::SIZE);
        let slot = self.slots.find(page).ok_or(Error::NoRam { ipa: page })?;
        match &slot.content {
            Content::Ram(ram) => match ram.lock(self.stage2.platform()).content(page) {
                PageContent::At(lent, offset) => Ok(Some(lent.run().pa() + offset)),
                PageContent::Zero => Ok(None),
                PageContent::Away => Err(Error::Absent { page, done: 0 }),
            },
            Content::Preallocated(preallocated) => Ok(Some(preallocated.frames.run().pa() + (page - slot.range.start))),
            Content::Device(_) => Err(Error::NoRam { ipa: page }),
        }
    }
}
