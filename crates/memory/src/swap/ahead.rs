// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages that a store reads ahead: it has the neighbours of a page that is wanted at hand, and nothing has asked for them.
//!
//! The store takes a request for such a page *before* it reads. From then on the page is *arriving*, as if it had been
//! brought: its place is not discarded, and a CPU that needs the page meanwhile waits for this read. So the store never
//! has content that is out of date.

use twofold_stage2::{Ipa, Platform};

use super::single::Page;
use super::store::{Place, ReadRequest};
use crate::frames::FRAME;
use crate::guest::GuestMemory;
use crate::ram::Kind;

impl<P: Platform> GuestMemory<P> {
    /// A request to read the page at `page`, for which nothing has asked. The store completes it as any other.
    ///
    /// `None` if the page is not at `place` any more, or if there is no room: pages wait for frames, or half of the
    /// [headroom](super::SwapOptions::headroom) would be used up. The other half is for faults.
    pub fn read_ahead(&self, page: Ipa, place: Place) -> Option<ReadRequest> {
        let swap = self.swap.as_deref()?;
        let page = page.align_down(FRAME);
        let (_, ram) = self.find_ram(page)?;
        let platform = self.stage2.platform();
        let mut ram = ram.lock(platform);
        let Kind::Single(state, _) = ram.page(page) else { return None };
        if !matches!(state, Page::Absent(at) if *at == place) || swap.waiting.lock(platform).wanting() > 0 {
            return None;
        }
        let frame = {
            let mut frames = self.frames.lock(platform);
            if frames.data_room() <= swap.options.headroom / 2 {
                return None;
            }
            frames.take_data(1)?
        };
        *state = Page::Arriving(place);
        swap.arriving.add();
        Some(ReadRequest::new(page, place, self.stage2.vttbr(), frame))
    }
}
