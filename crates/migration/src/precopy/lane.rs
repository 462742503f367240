// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One of the streams that carry a migration: its part of each round.
//!
//! A round's pages are cut into pieces, and stream `n` of `m` sends the pieces `n`, `n + m`, and so on. Each piece is
//! cleared right before it is read. So a page that the guest writes between the round's begin and that moment is sent
//! once, and not again in the next round.
//!
//! A page in the guest's store is asked for, and sent when it has come; other pages go first meanwhile. The store answers
//! for [`AHEAD`] pages at a time, so its delay is not the delay of each.
//!
//! Invariant: a page is read only after its piece was cleared, or while the guest is stopped. A page in the store is asked
//! for only then, too, and is sent in the same round.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use embedded_io::Write;

use super::error::Cause;
use crate::pages::{PageSet, WORD, bits};
use crate::ram::{AHEAD, Ahead, PageRead, SourceRam};
use crate::runtime::{Cancel, LOOK, Runtime};
use crate::section::Section;
use crate::stream::{Hello, Slot, WriteError, Writer, is_zero};

/// A stream, and how its last work ended.
pub(crate) struct Lane<W> {
    pub writer: Writer<W>,
    number: usize,
    lanes: usize,
    page: Vec<u8>,
    /// The pages of the last round that were not zero.
    pub content: u64,
    failed: Option<Cause>,
}

/// A round, as each stream sends its part of it.
pub(crate) struct Round<'a, M> {
    pub ram: &'a M,
    pub pages: &'a PageSet,
    pub stopped: bool,
    pub cancel: &'a Cancel,
    /// Words of pages in a piece.
    pub piece: usize,
    /// Bytes a second that a stream may send.
    pub limit: Option<u64>,
}

/// Words in a piece at most: few enough that a piece is sent soon after it was cleared, and enough that the flush of
/// a clear is a small part of it.
const PIECE: usize = 16;

/// The longest time for which a stream that works sends nothing.
const QUIET: Duration = Duration::from_secs(1);

impl<W: Write> Lane<W> {
    pub fn new(writer: Writer<W>, (number, lanes): (usize, usize), page_shift: u8) -> Self {
        Self { writer, number, lanes, page: vec![0; 1 << page_shift], content: 0, failed: None }
    }

    /// Does work of the stream, and keeps its error.
    pub fn attempt(&mut self, work: impl FnOnce(&mut Self) -> Result<(), Cause>) {
        self.failed = work(self).err();
    }

    /// Sends which guest comes.
    pub fn greet(&mut self, hello: &Hello, slots: &[Slot]) -> Result<(), Cause> {
        self.writer.hello(&Hello { stream: self.number as u16, streams: self.lanes as u16, ..hello.clone() })?;
        self.writer.slots(slots)?;
        Ok(self.writer.flush()?)
    }

    /// Sends sections.
    pub fn sections(&mut self, sections: &[Section]) -> Result<(), Cause> {
        for Section { name, instance, version, bytes } in sections {
            self.writer.section(*name, *instance, *version, bytes)?;
        }
        Ok(())
    }

    /// Sends which pages are absent.
    pub fn absent(&mut self, slots: &[Slot], absent: &PageSet) -> Result<(), Cause> {
        for (index, slot) in slots.iter().enumerate() {
            let words = absent.words(index);
            let (first, last) = (words.iter().position(|&word| word != 0), words.iter().rposition(|&word| word != 0));
            if let (Some(first), Some(last)) = (first, last) {
                self.writer.absent(slot.number, first as u64 * WORD, &words[first..=last])?;
            }
        }
        Ok(())
    }

    /// Sends this stream's part of a round.
    pub fn round<M: SourceRam>(&mut self, round: &Round<'_, M>, runtime: &impl Runtime) -> Result<(), Cause> {
        self.writer.round(round.stopped)?;
        self.content = 0;
        let mut ahead = Ahead::new();
        let (begin, before) = (runtime.now(), self.writer.bytes());
        let (mut flushed, mut turns) = (begin, (0..self.lanes).cycle());
        for (index, slot) in round.ram.slots().iter().enumerate() {
            for (piece, words) in round.pages.words(index).chunks(round.piece).enumerate() {
                if turns.next() != Some(self.number) || words.iter().all(|&word| word == 0) {
                    continue;
                }
                let (first, mut zeros) = (piece * round.piece, Zeros { slot: slot.number, ..Zeros::default() });
                if !round.stopped {
                    round.ram.clear(index, first, words)?;
                }
                round.ram.expect(index, first, words);
                for (word, &mask) in words.iter().enumerate().filter(|(_, mask)| **mask != 0) {
                    if round.cancel.is_cancelled() {
                        return Err(Cause::Cancelled);
                    }
                    for bit in bits(mask) {
                        let page = (first + word) as u64 * WORD + bit;
                        match round.ram.read(index, page, &mut self.page)? {
                            PageRead::Done if is_zero(&self.page) => zeros.add(page, &mut self.writer)?,
                            PageRead::Done => {
                                self.writer.page(slot.number, page, &self.page)?;
                                self.content += 1;
                            }
                            PageRead::Later(away) => {
                                ahead.push((index, page), away, runtime.now());
                                self.receive(&mut ahead, AHEAD - 1, round, runtime)?;
                            }
                        }
                    }
                    pace(round.limit, self.writer.bytes() - before, begin, runtime);
                    if runtime.now().saturating_sub(flushed) > QUIET {
                        // Zero pages take long to read and few bytes: the target is not to take that for a dead link.
                        zeros.send(&mut self.writer)?;
                        self.writer.flush()?;
                        flushed = runtime.now();
                    }
                }
                zeros.send(&mut self.writer)?;
            }
        }
        self.receive(&mut ahead, 0, round, runtime)?;
        self.writer.end_round()?;
        Ok(self.writer.flush()?)
    }

    /// Sends pages that come from the guest's store, until at most `left` of them are on their way.
    fn receive<M: SourceRam>(
        &mut self,
        ahead: &mut Ahead<M::Away>,
        left: usize,
        round: &Round<'_, M>,
        runtime: &impl Runtime,
    ) -> Result<(), Cause> {
        while ahead.len() > left {
            if round.cancel.is_cancelled() {
                return Err(Cause::Cancelled);
            }
            // One read in a thousand may fail, and is repeated. If none succeeds, that is the reason.
            if let Ok(Some((slot, page))) = ahead.take(&mut self.page, runtime.now()) {
                let number = round.ram.slots()[slot].number;
                if is_zero(&self.page) {
                    self.writer.zero_pages(number, page, 1)?;
                } else {
                    self.writer.page(number, page, &self.page)?;
                    self.content += 1;
                }
                continue;
            }
            let silent = ahead.silent(runtime.now());
            if let Some((_, why)) = silent.filter(|(waited, _)| *waited >= round.ram.patience()) {
                return Err(why.into());
            }
            runtime.wait(LOOK);
        }
        Ok(())
    }
}

/// Returns the first error of the streams, with the stream's number.
pub(crate) fn failed<W>(lanes: &mut [Lane<W>]) -> Result<(), (usize, Cause)> {
    match lanes.iter_mut().find_map(|lane| Some((lane.number, lane.failed.take()?))) {
        None => Ok(()),
        Some(failed) => Err(failed),
    }
}

/// Returns the words in a piece: each of the streams is to get several.
pub(crate) fn piece(slots: &[Slot], lanes: usize) -> usize {
    let words: u64 = slots.iter().map(|slot| slot.pages.div_ceil(WORD)).sum();
    (words as usize / (lanes * 8)).clamp(1, PIECE)
}

/// Waits until a stream with this limit may send more.
fn pace(limit: Option<u64>, bytes: u64, begin: Duration, runtime: &impl Runtime) {
    let Some(limit) = limit else { return };
    let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(limit.max(1));
    let due = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
    let early = due.saturating_sub(runtime.now().saturating_sub(begin));
    if early > Duration::ZERO {
        runtime.wait(early);
    }
}

/// A run of zero pages of one piece that was not sent yet.
#[derive(Default)]
struct Zeros {
    slot: u16,
    first: u64,
    count: u32,
}

impl Zeros {
    fn add<W: Write>(&mut self, page: u64, writer: &mut Writer<W>) -> Result<(), WriteError> {
        if page != self.first + u64::from(self.count) {
            self.send(writer)?;
            self.first = page;
        }
        self.count += 1;
        Ok(())
    }

    fn send<W: Write>(&mut self, writer: &mut Writer<W>) -> Result<(), WriteError> {
        match core::mem::take(&mut self.count) {
            0 => Ok(()),
            count => writer.zero_pages(self.slot, self.first, count),
        }
    }
}
