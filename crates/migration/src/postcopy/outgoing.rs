// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The source's stream, after the guest has changed hands.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use embedded_io::{Read, Write};

use super::source::Source;
use crate::answers::{AnswerError, Answers, Asked};
use crate::commit::Ownership;
use crate::pages::PageSet;
use crate::ram::{Ahead, Away, PageRead, RamError, SourceRam};
use crate::stream::{Compression, Hello, Slot, WriteError, Writer};

/// The stream on which absent pages are sent.
pub struct Outgoing<W> {
    writer: Writer<W>,
    page: Vec<u8>,
}

/// What [`Outgoing::send`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Served {
    /// It sent this page: the memslot's index, and the page.
    Page(usize, u64),
    /// The pages to send next are on their way from the source's own store. Call it again soon.
    Later,
    /// All pages were sent on this link.
    All,
}

/// Why absent pages cannot be sent. The source keeps them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The stream cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The guest's memory cannot be read.
    #[error(transparent)]
    Ram(#[from] RamError),
    /// The target does not go on with this guest.
    #[error(transparent)]
    Answer(#[from] AnswerError),
    /// The target says that it lacks pages that the guest does not have.
    #[error("the target lacks pages from {page:#x} on of memslot {slot}, which has no such pages")]
    NoSuchPages {
        /// The memslot's number.
        slot: u16,
        /// The first page.
        page: u64,
    },
}

impl<W: Write> Outgoing<W> {
    /// The stream after its end, or after its resumption.
    pub(crate) fn new(writer: Writer<W>, page_shift: u8) -> Self {
        Self { writer, page: vec![0; 1 << page_shift] }
    }

    /// What the stream is written to.
    pub fn sink(&self) -> &W {
        self.writer.sink()
    }

    /// Returns the bytes that were written to the stream so far, those before the guest changed hands included.
    pub fn bytes(&self) -> u64 {
        self.writer.bytes()
    }

    /// Sends the next page. A page in the source's own store is asked for, and sent by a later call; `ahead` has those,
    /// from one call to the next.
    ///
    /// While this writes, requests wait; so an embedder with threads holds a lock of `source` only to choose the page:
    /// [`Source::choose`], and then [`send_page`](Self::send_page).
    ///
    /// # Errors
    ///
    /// The link is cut, or the page cannot be read. The source keeps it in either case. A page that could not be read
    /// from the source's own store ([`RamError::Store`]) is asked for again by the next call.
    pub fn send<M: SourceRam>(
        &mut self,
        source: &mut Source,
        ram: &M,
        ahead: &mut Ahead<M::Away>,
    ) -> Result<Served, ServeError> {
        let chosen = source.choose(ahead);
        self.send_page(source.slots(), chosen, ram, ahead)
    }

    /// Sends a page that was [chosen](Source::choose), or one that has come from the source's own store.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn send_page<M: SourceRam>(
        &mut self,
        slots: &[Slot],
        chosen: Option<(usize, u64)>,
        ram: &M,
        ahead: &mut Ahead<M::Away>,
    ) -> Result<Served, ServeError> {
        let Some((slot, page)) = chosen else { return self.send_ahead(slots, ahead) };
        match ram.read(slot, page, &mut self.page)? {
            PageRead::Done => self.write(slots, (slot, page)),
            PageRead::Later(away) => {
                // The embedder decides how long it waits: the guest is elsewhere already.
                ahead.push((slot, page), away, Duration::ZERO);
                self.send_ahead(slots, ahead)
            }
        }
    }

    fn send_ahead<A: Away>(&mut self, slots: &[Slot], ahead: &mut Ahead<A>) -> Result<Served, ServeError> {
        match ahead.take(&mut self.page, Duration::ZERO)? {
            Some(page) => self.write(slots, page),
            None if ahead.is_empty() => Ok(Served::All),
            None => Ok(Served::Later),
        }
    }

    fn write(&mut self, slots: &[Slot], (slot, page): (usize, u64)) -> Result<Served, ServeError> {
        let number = slots.get(slot).ok_or(RamError::NoPage { slot, page })?.number;
        self.writer.page(number, page, &self.page)?;
        self.writer.flush()?;
        Ok(Served::Page(slot, page))
    }
}

/// Goes on over a new link (L2): returns the stream for the pages that the target lacks, of which `source` learns.
/// `owned` is what the owner record holds: the target's.
///
/// # Errors
///
/// The link is cut again, or the target does not have this guest. The source keeps all pages.
pub fn resume_source<W: Write, A: Read>(
    sink: W,
    (hello, compression): (&Hello, Compression),
    owned: Ownership,
    answers: &mut Answers<A>,
    source: &mut Source,
) -> Result<Outgoing<W>, ServeError> {
    let mut writer = Writer::with_absent(sink, compression);
    writer.hello(&Hello { stream: 0, streams: 1, ..hello.clone() })?;
    writer.slots(source.slots())?;
    writer.resume(owned)?;
    let mut lacks = PageSet::none(source.slots());
    loop {
        match answers.asked()? {
            Asked::Absent { slot, page, words } => {
                let index = source.slots().iter().position(|known| known.number == slot);
                let added = index.and_then(|index| lacks.change(index, |all| add(all, page / 64, &words))).flatten();
                added.ok_or(ServeError::NoSuchPages { slot, page })?;
            }
            Asked::Accepted => break,
            _ => return Err(AnswerError::Other("which pages it lacks").into()),
        }
    }
    source.resume(lacks);
    Ok(Outgoing::new(writer, hello.page_shift))
}

/// Adds words to a memslot's; `None` if it has fewer.
fn add(all: &mut [u64], first: u64, words: &[u64]) -> Option<()> {
    let end = usize::try_from(first).ok()?.checked_add(words.len())?;
    let range = all.get_mut(first as usize..end)?;
    range.iter_mut().zip(words).for_each(|(all, word)| *all |= word);
    Some(())
}
