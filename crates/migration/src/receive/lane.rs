// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One of the streams by which a guest comes: it is read from one barrier to the next.

use alloc::vec::Vec;

use embedded_io::Read;

use super::error::{JoinError, ReceiveError};
use super::join::Seen;
use super::phase::Phase;
use crate::pages::PageSet;
use crate::ram::{PageWrite, Queued, RamError, TargetRam};
use crate::runtime::{LOOK, Runtime};
use crate::section::Section;
use crate::stream::{Capabilities, Hello, Message, Reader, Record, Slot};

/// A stream, and how its last work ended.
pub(super) struct Lane<S> {
    reader: Reader<S>,
    /// The stream's place in the list that the caller gave.
    place: usize,
    pub head: Option<(Hello, Vec<Slot>)>,
    /// What the last phase came to.
    pub phase: Option<Result<Phase, ReceiveError>>,
    /// The sections that came.
    pub sections: Vec<Section>,
    /// The pages that are absent.
    pub absent: Option<PageSet>,
    /// Bytes of sections that may still come.
    left: u64,
    /// The round that has begun.
    round: (u64, bool),
}

impl<S: Read> Lane<S> {
    pub fn new(source: S, place: usize, here: &Capabilities, sections: u64) -> Self {
        let reader = Reader::new(source, here.clone());
        Self {
            reader,
            place,
            head: None,
            phase: None,
            sections: Vec::new(),
            absent: None,
            left: sections,
            round: (0, false),
        }
    }

    /// The stream's version.
    pub fn version(&self) -> u32 {
        self.reader.version()
    }

    /// The stream, from where it was read.
    pub fn into_reader(self) -> Reader<S> {
        self.reader
    }

    /// The stream's number.
    pub fn number(&self) -> u16 {
        self.head.as_ref().map_or(0, |(hello, _)| hello.stream)
    }

    /// Reads which guest comes.
    pub fn greet(&mut self) -> Result<(), ReceiveError> {
        let stream = self.place;
        let read = |error| ReceiveError::Read { stream, error };
        let misplaced = |what| JoinError::Misplaced { what, stream: stream as u16 };
        let hello = match self.reader.next().map_err(read)? {
            Some(Record::Hello(hello)) => hello.clone(),
            _ => return Err(misplaced("no hello").into()),
        };
        let slots = match self.reader.next().map_err(read)? {
            Some(Record::Slots(slots)) => slots.to_vec(),
            Some(Record::Message(Message::Withdrawn(why))) => return Err(ReceiveError::Withdrawn(why)),
            _ => return Err(misplaced("no memslots").into()),
        };
        self.head = Some((hello, slots));
        Ok(())
    }

    /// Reads and stores until the end of a round, or of the stream.
    pub fn read(&mut self, ram: &impl TargetRam, seen: &Seen, runtime: &impl Runtime) -> Result<Phase, ReceiveError> {
        let (place, stream) = (self.place, self.number());
        let slots = self.head.as_ref().map_or(&[][..], |(_, slots)| slots);
        let index = |number| slots.iter().position(|slot| slot.number == number).unwrap_or(usize::MAX);
        let fresh = |slot: u16, page| {
            let fresh = seen.note(index(slot), page);
            if fresh { Ok(()) } else { Err(JoinError::Repeated { slot, page }) }
        };
        loop {
            let record = self.reader.next().map_err(|error| ReceiveError::Read { stream: place, error })?;
            let misplaced = |what| Err(JoinError::Misplaced { what, stream }.into());
            match record {
                Some(Record::Round { number, stopped }) => {
                    self.round = (number, stopped);
                    if number == 1 {
                        return Ok(Phase::Begun);
                    }
                }
                Some(Record::Page { slot, page, bytes }) => {
                    fresh(slot, page)?;
                    store(ram, (index(slot), page), Some(bytes), runtime)?;
                }
                Some(Record::ZeroPages { slot, page, count }) => {
                    let pages = page..page + u64::from(count);
                    pages.clone().try_for_each(|page| fresh(slot, page))?;
                    for page in pages {
                        store(ram, (index(slot), page), None, runtime)?;
                    }
                }
                Some(Record::RoundEnd { pages }) => {
                    let (number, stopped) = self.round;
                    return Ok(Phase::Round { number, stopped, pages });
                }
                Some(Record::Section { .. }) if stream != 0 => return Err(JoinError::Section { stream }.into()),
                Some(Record::Section { name, instance, version, size }) => {
                    let left = self.left;
                    self.left =
                        left.checked_sub(size).ok_or(ReceiveError::SectionSize { name, instance, size, left })?;
                    self.sections.push(Section { name, instance, version, bytes: Vec::new() });
                }
                // The reader has checked its place and size.
                Some(Record::Part(bytes)) => {
                    self.sections.iter_mut().last().iter_mut().for_each(|section| section.bytes.extend(bytes));
                }
                Some(Record::Absent { .. }) if stream != 0 => return misplaced("absent pages"),
                Some(Record::Absent { slot, page, words }) => {
                    let absent = self.absent.get_or_insert_with(|| PageSet::none(slots));
                    absent.change(index(slot), |all| {
                        // The reader has checked that the memslot has them.
                        let all = all.iter_mut().skip((page / 64) as usize);
                        all.zip(words).for_each(|(all, word)| *all |= word.get());
                    });
                }
                Some(Record::Request { .. }) => return misplaced("a request"),
                Some(Record::Resume(_)) => return misplaced("a resumption"),
                Some(Record::End(from)) => return Ok(Phase::End(from)),
                Some(Record::Message(Message::Withdrawn(why))) => return Err(ReceiveError::Withdrawn(why)),
                Some(Record::Message(_)) => return misplaced("a message of a target"),
                Some(Record::Hello(_) | Record::Slots(_)) => return misplaced("a second head"),
                None => return misplaced("nothing more"),
            }
        }
    }
}

/// Stores a page. If that has to wait for a frame, so does its stream: what comes is nowhere but here and in the guest's
/// memory.
fn store(
    ram: &impl TargetRam,
    (slot, page): (usize, u64),
    content: Option<&[u8]>,
    runtime: &impl Runtime,
) -> Result<(), RamError> {
    let PageWrite::Later(mut queued) = ram.write(slot, page, content)? else { return Ok(()) };
    let since = runtime.now();
    while !queued.look(content)? {
        let waited = runtime.now().saturating_sub(since);
        if waited >= ram.patience() {
            return Err(queued.silent(waited));
        }
        runtime.wait(LOOK);
    }
    Ok(())
}
