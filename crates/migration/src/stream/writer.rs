// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes a stream.

use alloc::vec::Vec;

use embedded_io::{Error as _, ErrorKind, Write};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use super::hello::{Hello, HelloError};
use super::message::{Message, ownership_bytes};
use super::name::Name;
use super::order::{Order, OrderError};
use super::page::{Compression, Packer};
use super::slots::Slot;
use super::wire::{Header, PAYLOAD_MAX, Preamble, SectionHead, VERSION, WHOLE, checksum, kind, page, request, round};
use crate::commit::Ownership;

/// Writes a stream's records. From source to target: [`hello`](Self::hello), [`slots`](Self::slots), rounds and
/// sections, [`end`](Self::end). From target to source: [`message`](Self::message), and for absent pages
/// [`request`](Self::request).
///
/// A call that fails for the record's place or content writes nothing. If the sink fails, the stream ends there.
pub struct Writer<W> {
    output: Output<W>,
    order: Order,
    packer: Packer,
}

/// Why a record was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The sink failed, now or before.
    #[error("the stream's sink failed: {0:?}")]
    Sink(ErrorKind),
    /// The record does not belong here.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// The hello is none.
    #[error(transparent)]
    Hello(#[from] HelloError),
    /// Only a stream with absent pages has this record.
    #[error("a record of absent pages in a stream of version {0}")]
    Version(u32),
    /// The page has another size than the hello said.
    #[error("a page of {found} bytes, where the hello has {wanted}")]
    PageSize {
        /// The page's.
        found: usize,
        /// The hello's.
        wanted: usize,
    },
}

impl<W: Write> Writer<W> {
    /// Makes a writer. Nothing is written before the first record.
    pub fn new(sink: W, compression: Compression) -> Self {
        Self::of(WHOLE, sink, compression)
    }

    /// Makes a writer of a stream that may have absent pages, or of the answers to one. Readers that know only streams of
    /// version 1 refuse it.
    pub fn with_absent(sink: W, compression: Compression) -> Self {
        Self::of(VERSION, sink, compression)
    }

    fn of(version: u32, sink: W, compression: Compression) -> Self {
        let preamble = Preamble::of(version);
        let output = Output { sink, preamble, chain: preamble.chain(), bytes: 0, broken: None };
        Self { output, order: Order::new(version), packer: Packer::new(compression) }
    }

    /// Returns the number of bytes written.
    pub fn bytes(&self) -> u64 {
        self.output.bytes
    }

    /// The sink.
    pub fn sink(&self) -> &W {
        &self.output.sink
    }

    /// Returns the sink.
    pub fn into_sink(self) -> W {
        self.output.sink
    }

    /// Writes the hello: the first record.
    pub fn hello(&mut self, hello: &Hello) -> Result<(), WriteError> {
        hello.check()?;
        self.order.greet(hello.clone())?;
        self.record(Header { kind: kind::HELLO, ..Header::default() }, &hello.to_bytes())
    }

    /// Writes the memslots: the second record. They are in ascending order of addresses.
    pub fn slots(&mut self, slots: &[Slot]) -> Result<(), WriteError> {
        self.order.slots(slots)?;
        self.record(Header { kind: kind::SLOTS, ..Header::default() }, &Slot::to_bytes(slots))
    }

    /// Begins a round. The first has each page once, counted over all streams. With `stopped`, the guest is stopped, and
    /// the round is the last.
    pub fn round(&mut self, stopped: bool) -> Result<(), WriteError> {
        let number = self.order.round(None, stopped)?;
        let form = if stopped { round::STOPPED } else { round::RUNNING };
        self.record(Header { kind: kind::ROUND, form, argument: number.into(), ..Header::default() }, &[])
    }

    /// Writes a page in the form that is the shortest.
    pub fn page(&mut self, slot: u16, page: u64, bytes: &[u8]) -> Result<(), WriteError> {
        let (found, wanted) = (bytes.len(), self.order.hello().map(|hello| 1 << hello.page_shift));
        if let Some(wanted) = wanted.filter(|&wanted| found != wanted) {
            return Err(WriteError::PageSize { found, wanted });
        }
        self.order.pages(slot, page, 1)?;
        let (form, payload) = self.packer.pack(bytes);
        let (length, content) = match form {
            page::ZERO => (1, 0),
            _ => (payload.len() as u32, checksum(bytes)),
        };
        let mut header = Header { kind: kind::PAGE, form, slot: slot.into(), ..Header::default() };
        (header.length, header.argument, header.content) = (length.into(), page.into(), content.into());
        self.output.put(header, payload)
    }

    /// Writes a run of `count` zero pages.
    pub fn zero_pages(&mut self, slot: u16, page: u64, count: u32) -> Result<(), WriteError> {
        self.order.pages(slot, page, count.into())?;
        let mut header = Header { kind: kind::PAGE, form: page::ZERO, slot: slot.into(), ..Header::default() };
        (header.length, header.argument) = (count.into(), page.into());
        self.output.put(header, &[])
    }

    /// Ends the round; returns the number of its pages.
    pub fn end_round(&mut self) -> Result<u64, WriteError> {
        let pages = self.order.end_round(None)?;
        self.record(Header { kind: kind::ROUND_END, argument: pages.into(), ..Header::default() }, &[])?;
        Ok(pages)
    }

    /// Writes a section: the state of a device or a vCPU, or an image that a reset of the guest needs.
    pub fn section(&mut self, name: Name, instance: u32, version: u32, bytes: &[u8]) -> Result<(), WriteError> {
        self.order.section(name, instance, bytes.len() as u64)?;
        let size = (bytes.len() as u64).into();
        let head = SectionHead { name: name.bytes(), instance: instance.into(), version: version.into(), size };
        self.record(Header { kind: kind::SECTION, ..Header::default() }, head.as_bytes())?;
        for part in bytes.chunks(PAYLOAD_MAX) {
            let offset = self.order.part(None, part.len() as u64)?;
            self.record(Header { kind: kind::PART, argument: offset.into(), ..Header::default() }, part)?;
        }
        Ok(())
    }

    /// Writes the end, and flushes: all of the guest was sent. It offers the guest to the target, so raise
    /// [`Event::Offer`](crate::commit::Event::Offer) first. `from` is what the owner record holds.
    pub fn end(&mut self, from: Ownership) -> Result<(), WriteError> {
        self.order.end()?;
        self.record(Header { kind: kind::END, ..Header::default() }, &ownership_bytes(from))?;
        self.flush()
    }

    /// Writes a message, and flushes.
    pub fn message(&mut self, message: &Message) -> Result<(), WriteError> {
        if *message == Message::Complete {
            self.check_absent()?;
        }
        self.order.message(message)?;
        let (form, payload) = message.to_form_and_bytes();
        self.record(Header { kind: kind::MESSAGE, form, ..Header::default() }, &payload)?;
        self.flush()
    }

    /// Writes absent pages: bit `n` of word `m` is set for page `page + 64 * m + n`, and `page` is a multiple of 64. From
    /// source to target, they are those that follow the end, in ascending order. From target to source, they are those
    /// that the target lacks.
    pub fn absent(&mut self, slot: u16, page: u64, words: &[u64]) -> Result<(), WriteError> {
        self.check_absent()?;
        let mut page = page;
        for words in words.chunks(PAYLOAD_MAX / size_of::<u64>()) {
            let words: Vec<_> = words.iter().map(|&word| U64::new(word)).collect();
            self.order.absent(slot, page, &words)?;
            let header = Header { kind: kind::ABSENT, slot: slot.into(), argument: page.into(), ..Header::default() };
            self.record(header, words.as_bytes())?;
            page += 64 * words.len() as u64;
        }
        Ok(())
    }

    /// Writes a request for absent pages, and flushes. `waits` says that a vCPU waits for the first.
    pub fn request(&mut self, waits: bool, slot: u16, page: u64, count: u32) -> Result<(), WriteError> {
        self.check_absent()?;
        self.order.request(slot, page, count)?;
        let form = if waits { request::WAITS } else { request::AHEAD };
        let mut header = Header { kind: kind::REQUEST, form, slot: slot.into(), ..Header::default() };
        (header.length, header.argument) = (count.into(), page.into());
        self.output.put(header, &[])?;
        self.flush()
    }

    /// Writes that the link is back, after the memslots, and flushes. Absent pages follow. `owned` is what the owner
    /// record holds, as far as the source knows.
    pub fn resume(&mut self, owned: Ownership) -> Result<(), WriteError> {
        self.check_absent()?;
        self.order.resume()?;
        self.record(Header { kind: kind::RESUME, ..Header::default() }, &ownership_bytes(owned))?;
        self.flush()
    }

    fn check_absent(&self) -> Result<(), WriteError> {
        if self.order.version() > WHOLE { Ok(()) } else { Err(WriteError::Version(self.order.version())) }
    }

    /// Waits until the sink has passed on all bytes.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        self.output.attempt(W::flush)
    }

    fn record(&mut self, mut header: Header, payload: &[u8]) -> Result<(), WriteError> {
        (header.length, header.content) = ((payload.len() as u32).into(), checksum(payload).into());
        self.output.put(header, payload)
    }
}

/// The sink, and what was written to it.
struct Output<W> {
    sink: W,
    preamble: Preamble,
    chain: u64,
    bytes: u64,
    broken: Option<ErrorKind>,
}

impl<W: Write> Output<W> {
    /// Completes the header and writes the record, with the preamble before the first.
    fn put(&mut self, mut header: Header, payload: &[u8]) -> Result<(), WriteError> {
        let preamble = self.preamble;
        if self.bytes == 0 {
            self.all(preamble.as_bytes())?;
        }
        self.chain = header.chain_after(self.chain);
        header.chain = self.chain.into();
        self.all(header.as_bytes())?;
        self.all(payload)
    }

    fn all(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        self.attempt(|sink| sink.write_all(bytes))?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Calls the sink, unless it has failed before.
    fn attempt(&mut self, call: impl FnOnce(&mut W) -> Result<(), W::Error>) -> Result<(), WriteError> {
        if self.broken.is_none() {
            self.broken = call(&mut self.sink).err().map(|error| error.kind());
        }
        self.broken.map_or(Ok(()), |kind| Err(WriteError::Sink(kind)))
    }
}
