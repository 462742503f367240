// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a stopped guest's pages are in the machine's memory (`docs/control.md`: frames), for a judge that reads the file behind
//! that memory ([`Machine::memory_file`](crate::machine::Machine::memory_file)) and asks the hypervisor for no content.

use thiserror::Error;
use twofold_abi::channel::Command;
use twofold_abi::channel::wire::{FRAMES_MAX, frame};
use twofold_migration::stream::Slot;
use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

use crate::machine::RAM_BASE;
use crate::session::{Session, SessionError};

/// Where the content of a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// At this offset in the machine's memory.
    At(u64),
    /// Nowhere: it is all zero.
    Zero,
    /// Not in memory: it is in the guest's store, or has yet to come.
    Absent,
}

/// Why it is not known where pages are.
#[derive(Debug, Error)]
pub enum FramesError {
    /// The hypervisor has ended.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The hypervisor refuses: the guest runs, or its tables lead elsewhere.
    #[error("{0}")]
    Refused(String),
    /// The answer has another number of pages, or an address that is none of the machine's.
    #[error("the hypervisor's answer for the page at {0:#x} is none")]
    Strange(u64),
}

/// Calls `each` with the address of each page of these memslots, in order, and where it is.
///
/// # Errors
///
/// [`FramesError`]; some pages were passed to `each` then.
pub fn for_each(
    session: &Session,
    guest: u16,
    slots: &[Slot],
    mut each: impl FnMut(u64, Frame),
) -> Result<(), FramesError> {
    for slot in slots {
        let mut done = 0;
        while done < slot.pages {
            let first = slot.first + done;
            let strange = || FramesError::Strange(first << PAGE_SHIFT);
            let number = u32::try_from(first).map_err(|_| strange())?;
            let answer = session.ask(Some(guest), Command::Frames(number))?;
            if let Some(refusal) = answer.refusal {
                return Err(FramesError::Refused(refusal.text));
            }
            // The answer goes on into the next memslot if nothing is between them.
            let wanted = (slot.pages - done).min(FRAMES_MAX as u64);
            let words = <[U64]>::ref_from_bytes(&answer.content).map_err(|_| strange())?;
            let words = words.get(..wanted as usize).ok_or_else(strange)?;
            for (page, word) in (first..).zip(words) {
                each(page << PAGE_SHIFT, frame_of(word.get()).ok_or(FramesError::Strange(page << PAGE_SHIFT))?);
            }
            done += wanted;
        }
    }
    Ok(())
}

const PAGE_SHIFT: u32 = 12;

fn frame_of(word: u64) -> Option<Frame> {
    match word {
        frame::ZERO => Some(Frame::Zero),
        frame::ABSENT => Some(Frame::Absent),
        address if address.is_multiple_of(1 << PAGE_SHIFT) => address.checked_sub(RAM_BASE).map(Frame::At),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_whole_page_of_the_machines_memory() {
        assert_eq!(frame_of(RAM_BASE + 0x3000), Some(Frame::At(0x3000)));
        assert_eq!((frame_of(0), frame_of(1)), (Some(Frame::Zero), Some(Frame::Absent)));
        for none in [2, RAM_BASE - 0x1000, RAM_BASE + 1] {
            assert_eq!(frame_of(none), None, "{none:#x}");
        }
    }
}
