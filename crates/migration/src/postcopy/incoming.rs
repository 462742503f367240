// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The target's stream, after the guest has changed hands.

use alloc::vec::Vec;

use embedded_io::{Read, Write};

use super::target::Target;
use crate::commit::Ownership;
use crate::ram::{PageWrite, RamError, TargetRam};
use crate::stream::{Capabilities, Hello, Message, ReadError, Reader, Record, Slot, WriteError, Writer};

/// The stream on which absent pages come.
pub struct Incoming<S> {
    reader: Reader<S>,
    /// The numbers of the memslots.
    numbers: Vec<u16>,
}

/// A page that came, or several that are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Came<'a> {
    /// The memslot's index.
    pub slot: usize,
    /// The first page.
    pub page: u64,
    /// How many.
    pub count: u32,
    /// The page's bytes; `None` for zeros.
    pub bytes: Option<&'a [u8]>,
}

/// Why absent pages do not come.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// The stream cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The stream ends before all pages came.
    #[error("the stream ends")]
    Ended,
    /// A record that does not belong here.
    #[error("{0} among absent pages")]
    Misplaced(&'static str),
    /// The answers cannot be written.
    #[error("the answers: {0}")]
    Write(#[from] WriteError),
    /// A page cannot be stored.
    #[error(transparent)]
    Ram(#[from] RamError),
    /// The link brings another guest.
    #[error("the new link is for another {0}")]
    Another(&'static str),
}

impl<S: Read> Incoming<S> {
    /// The stream after its end, or after its resumption.
    pub(crate) fn new(reader: Reader<S>, slots: &[Slot]) -> Self {
        Self { reader, numbers: slots.iter().map(|slot| slot.number).collect() }
    }

    /// Waits for the next page. The embedder stores it if the target [wants](Target::wants) it, and then says so
    /// ([`Target::stored`]).
    ///
    /// # Errors
    ///
    /// The link is cut, or brings something else. Call [`Target::cut`] then.
    #[expect(clippy::should_implement_trait, reason = "a page borrows the stream")]
    pub fn next(&mut self) -> Result<Came<'_>, FetchError> {
        let index = |number| self.numbers.iter().position(|&known| known == number).unwrap_or(usize::MAX);
        match self.reader.next()? {
            Some(Record::Page { slot, page, bytes }) => {
                Ok(Came { slot: index(slot), page, count: 1, bytes: Some(bytes) })
            }
            Some(Record::ZeroPages { slot, page, count }) => Ok(Came { slot: index(slot), page, count, bytes: None }),
            Some(_) => Err(FetchError::Misplaced("another record")),
            None => Err(FetchError::Ended),
        }
    }

    /// Waits for the next page, and stores it. Returns it, with whether a vCPU waits for it.
    ///
    /// # Errors
    ///
    /// The link is cut, which the target's state says then too. Or the page cannot be stored: it is absent as before.
    pub fn store(&mut self, target: &mut Target, ram: &impl TargetRam) -> Result<(usize, u64, bool), FetchError> {
        let Came { slot, page, count, bytes } = self.next().inspect_err(|error| {
            target.cut(&alloc::format!("{error}"));
        })?;
        let mut waits = false;
        for page in
            (page..page + u64::from(count)).filter(|&page| target.absent().contains(slot, page)).collect::<Vec<_>>()
        {
            match ram.write(slot, page, bytes)? {
                PageWrite::Done => {}
                // Its own pages do not leave meanwhile.
                PageWrite::Later(_) => return Err(RamError::NoFrame { slot, page }.into()),
            }
            waits |= target.stored(slot, page);
        }
        Ok((slot, page, waits))
    }
}

/// Goes on over a new link (L2, L3): compares what comes with the guest that runs here, says which pages it lacks, and
/// asks for those that vCPUs wait for. `owned` is what the owner record holds: this side.
///
/// # Errors
///
/// The link is cut again, or brings another guest. The guest waits as before.
pub fn resume_target<S: Read, A: Write>(
    source: S,
    here: Capabilities,
    hello: &Hello,
    owned: Ownership,
    answers: &mut Writer<A>,
    target: &mut Target,
) -> Result<Incoming<S>, FetchError> {
    let mut reader = Reader::new(source, here);
    match reader.next()? {
        Some(Record::Hello(came)) if *came == (Hello { stream: 0, streams: 1, ..hello.clone() }) => {}
        _ => return Err(FetchError::Another("guest")),
    }
    match reader.next()? {
        Some(Record::Slots(slots)) if *slots == *target.slots() => {}
        _ => return Err(FetchError::Another("list of memslots")),
    }
    match reader.next()? {
        Some(Record::Resume(from)) if from == owned => {}
        Some(Record::Resume(_)) => return Err(FetchError::Another("owner")),
        _ => return Err(FetchError::Misplaced("no resumption")),
    }
    for (index, slot) in target.slots().iter().enumerate() {
        answers.absent(slot.number, 0, target.absent().words(index))?;
    }
    answers.message(&Message::Accepted)?;
    let mut at = (0, 0);
    while let Some((slot, page)) = target.waits().next(at) {
        answers.request(true, target.slots()[slot].number, page, 1)?;
        at = (slot, page + 1);
    }
    target.resume();
    Ok(Incoming::new(reader, target.slots()))
}
