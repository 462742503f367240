// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which frames of the machine hold a stopped guest's pages: for a judge that reads the machine's memory from outside, and asks
//! this image for nothing else.
//!
//! Invariant: where the guest's tables map a page, they and the memory's own state agree on its frame. If they do not, the
//! answer is an error, and no address.

use alloc::vec::Vec;

use thiserror::Error;
use twofold_abi::channel::PAGE_SIZE;
use twofold_abi::channel::wire::{FRAMES_MAX, frame};
use twofold_stage2::{Ipa, Pa};
use twofold_vmm::life::{NotNow, State};

use super::Vm;
use crate::granule;

/// Why it is not known where a page is.
#[derive(Debug, Error)]
pub(crate) enum FramesError {
    /// The guest is not stopped, so its pages move.
    #[error(transparent)]
    State(#[from] NotNow),
    /// The guest has no memory there.
    #[error(transparent)]
    Memory(#[from] twofold_memory::Error),
    /// The guest would see another frame than its memory has.
    #[error("the guest's tables map {page} to {mapped}, and its memory has it at {found:?}")]
    Differ {
        /// The page.
        page: Ipa,
        /// Where the tables lead.
        mapped: Pa,
        /// Where its content is.
        found: Option<Pa>,
    },
}

impl Vm {
    /// A word for the page at `page` times 4096, and for those of RAM behind it, at most `FRAMES_MAX`: the address of its
    /// frame, or one of [`frame`]. A piece in the sense of [`sweep`](super::sweep).
    pub(crate) fn frames(&self, page: u32) -> Result<Vec<u8>, FramesError> {
        self.sweeps.piece(|| {
            match self.life.change(|life, _| life.state()) {
                State::Stopped => {}
                other => return Err(NotNow(other).into()),
            }
            let mut words = Vec::with_capacity(FRAMES_MAX * size_of::<u64>());
            for number in 0..FRAMES_MAX as u64 {
                match self.frame_word(Ipa::new((u64::from(page) + number) * PAGE_SIZE as u64)) {
                    Ok(word) => words.extend_from_slice(&word.to_le_bytes()),
                    // The RAM ends before.
                    Err(FramesError::Memory(twofold_memory::Error::NoRam { .. })) if number > 0 => break,
                    Err(why) => return Err(why),
                }
            }
            Ok(words)
        })
    }

    fn frame_word(&self, page: Ipa) -> Result<u64, FramesError> {
        let found = match self.memory.frame_of(page) {
            Err(twofold_memory::Error::Absent { .. }) => return Ok(frame::ABSENT),
            // A page of the guest's tables may have several of the protocol's.
            found => found?.map(|frame| frame + (page - page.align_down(granule::PAGE))),
        };
        let mapped = self.memory.stage2().look_up(page).map(|leaf| leaf.descriptor.address() + (page - leaf.ipa));
        match mapped {
            Some(mapped) if found != Some(mapped) => Err(FramesError::Differ { page, mapped, found }),
            _ => Ok(found.map_or(frame::ZERO, Pa::raw)),
        }
    }
}
