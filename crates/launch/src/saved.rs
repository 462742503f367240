// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A stopped guest, taken from the hypervisor over the control channel, and made anew in another one: its sections and its
//! pages (`docs/control.md`, save, restore, read, write).
//!
//! Invariant: at most [`COMMANDS_MAX`] commands are without an answer, so the hypervisor refuses none for their number.

use std::collections::{BTreeMap, VecDeque};

use thiserror::Error;
use twofold_abi::channel::wire::COMMANDS_MAX;
use twofold_abi::channel::{Command, PAGE_SIZE};
use twofold_abi::section::{self, Head};
use twofold_abi::virt;

use crate::session::{Answer, Refusal, Session, SessionError};

/// A guest as it was when it was stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedGuest {
    /// All that it is besides its memory: sections, one behind the other, each with its head.
    pub sections: Vec<u8>,
    /// The pages that are not all zero, by their addresses divided by [`PAGE_SIZE`].
    pub pages: BTreeMap<u32, Vec<u8>>,
}

/// Why a guest is not saved, or not restored.
#[derive(Debug, Error)]
pub enum SavedError {
    /// The hypervisor does not answer.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// It refuses.
    #[error("{what}: {refusal}")]
    Refused {
        /// What was asked for.
        what: String,
        /// Why not.
        refusal: Refusal,
    },
    /// A command names a page by 24 bits.
    #[error("the guest has {} GiB of memory, and one with more than 63 GiB cannot be saved yet", *.0 >> 30)]
    TooLarge(u64),
    /// The sections are cut.
    #[error("the sections of the guest are cut at byte {0}")]
    Cut(usize),
}

impl SavedGuest {
    /// Saves guest number `guest`, which is stopped, and has this many bytes of RAM.
    ///
    /// # Errors
    ///
    /// [`SavedError`]. The guest is as it was.
    pub fn save(session: &Session, guest: u16, memory: u64, has_firmware: bool) -> Result<Self, SavedError> {
        if memory > MEMORY_MAX {
            return Err(SavedError::TooLarge(memory));
        }
        Self::save_pages(session, guest, pages_of(memory, has_firmware))
    }

    /// As [`save`](Self::save), with these pages alone.
    ///
    /// # Errors
    ///
    /// [`SavedError`]. The guest is as it was.
    pub fn save_pages(session: &Session, guest: u16, pages: impl Iterator<Item = u32>) -> Result<Self, SavedError> {
        let sections = accepted(session.ask(Some(guest), Command::Save)?, || "the guest's state".to_owned())?.content;
        let (asked, mut pages) = (pages, BTreeMap::new());
        let asks = asked.map(|page| (page, session.send(Some(guest), Command::Read(page))));
        answers(session, asks, |page, answer| {
            let content = accepted(answer, || format!("the page at {:#x}", address(page)))?.content;
            if !content.is_empty() {
                pages.insert(page, content);
            }
            Ok(())
        })?;
        Ok(Self { sections, pages })
    }

    /// Restores it as guest number `guest`, which comes from elsewhere
    /// ([`INCOMING`](twofold_abi::bundle::flags::INCOMING)) and has the settings that it was saved with. It stays stopped.
    ///
    /// # Errors
    ///
    /// [`SavedError`]. The guest has a part of the state then, and must not go on.
    pub fn restore(&self, session: &Session, guest: u16) -> Result<(), SavedError> {
        let whole = sections(&self.sections).map(<[u8]>::len).sum();
        if whole != self.sections.len() {
            return Err(SavedError::Cut(whole));
        }
        for section in sections(&self.sections) {
            let request = session.send_with(guest, Command::Restore, section)?;
            accepted(session.answer(request)?, || format!("section {}", name(section)))?;
        }
        let asks =
            self.pages.iter().map(|(page, content)| (*page, session.send_with(guest, Command::Write(*page), content)));
        answers(session, asks, |page, answer| {
            accepted(answer, || format!("the page at {:#x}", address(page))).map(drop)
        })
    }
}

/// The most bytes of RAM of a guest that is saved: each page has a number of 24 bits.
const MEMORY_MAX: u64 = (1 << 24) * PAGE_SIZE as u64 - virt::RAM_BASE;

/// The pages that a guest with this memory may have: flash, stolen time and RAM.
fn pages_of(memory: u64, has_firmware: bool) -> impl Iterator<Item = u32> {
    let range = |base: u64, size: u64| (base / PAGE_SIZE as u64) as u32..((base + size) / PAGE_SIZE as u64) as u32;
    let flash = range(virt::FLASH_BASE, if has_firmware { virt::FLASH_SIZE } else { 0 });
    let stolen = range(virt::STOLEN_TIME_BASE, virt::STOLEN_TIME_SIZE);
    flash.chain(stolen).chain(range(virt::RAM_BASE, memory))
}

fn address(page: u32) -> u64 {
    u64::from(page) * PAGE_SIZE as u64
}

/// Sends commands as `asks` makes them, and calls `take` with each answer, in the same order.
fn answers(
    session: &Session,
    asks: impl Iterator<Item = (u32, Result<u32, SessionError>)>,
    mut take: impl FnMut(u32, Answer) -> Result<(), SavedError>,
) -> Result<(), SavedError> {
    let mut asks = asks;
    let mut asked = VecDeque::new();
    loop {
        while asked.len() < COMMANDS_MAX
            && let Some((page, request)) = asks.next()
        {
            asked.push_back((page, request?));
        }
        let Some((page, request)) = asked.pop_front() else { return Ok(()) };
        take(page, session.answer(request)?)?;
    }
}

fn accepted(answer: Answer, what: impl FnOnce() -> String) -> Result<Answer, SavedError> {
    match answer.refusal {
        None => Ok(answer),
        Some(refusal) => Err(SavedError::Refused { what: what(), refusal }),
    }
}

/// The whole sections at the start of `bytes`, each with its head.
pub(crate) fn sections(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    core::iter::from_fn(move || {
        let section = first_section(rest)?;
        rest = &rest[section.len()..];
        Some(section)
    })
}

/// The first section, with its head.
fn first_section(bytes: &[u8]) -> Option<&[u8]> {
    let (_, _, rest) = Head::split(bytes)?;
    bytes.get(..bytes.len() - rest.len())
}

/// The name in a section's head, for a message.
fn name(section: &[u8]) -> String {
    let Some((head, _, _)) = Head::split(section) else { return "that is none".to_owned() };
    format!("{} {}", section::name(&head.name).unwrap_or("without a name"), head.instance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_cut_at_their_ends() {
        const SIZE: usize = 32;
        let mut section = [0; size_of::<Head>() + 3];
        section[..4].copy_from_slice(b"time");
        section[24] = 5;
        section[SIZE] = 3;
        let two = [&section[..], &section[..]].concat();
        assert_eq!(first_section(&two), Some(&section[..]));
        assert_eq!(name(&section), "time 5");
        assert_eq!((first_section(&section[..42]), first_section(&section[..39])), (None, None));
        section[SIZE + 7] = 0xff;
        assert_eq!(first_section(&section), None);
    }

    #[test]
    fn a_guest_has_flash_stolen_time_and_ram() {
        let pages: Vec<_> = pages_of(64 << 20, false).collect();
        assert_eq!(pages.len(), 16 + 16384);
        assert_eq!((pages[0], pages[16], pages.last()), (0x90a0, 0x4_0000, Some(&0x4_3fff)));
        assert_eq!((MEMORY_MAX >> 30, pages_of(MEMORY_MAX, false).last()), (63, Some(0xff_ffff)));
        assert!(SavedError::TooLarge(64 << 30).to_string().contains("64 GiB"));
        assert_eq!(pages_of(64 << 20, true).take(2).collect::<Vec<_>>(), [0, 1]);
    }
}
