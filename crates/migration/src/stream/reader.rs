// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads a stream, whatever its bytes are.

use alloc::vec;
use alloc::vec::Vec;

use embedded_io::{Error as _, Read};
use zerocopy::{FromZeros, IntoBytes};

use super::error::{Cause, ReadError};
use super::hello::Capabilities;
use super::order::Order;
use super::record::{Record, interpret};
use super::wire::{Header, MAGIC, OLDEST, PAYLOAD_MAX, Preamble, VERSION, WHOLE};

/// Reads a stream record by record. An error ends the stream.
///
/// Invariants, whatever the bytes are:
///
/// * [`next`](Self::next) does not panic.
/// * The reader never holds more than [`heap_bound`] bytes of heap.
/// * A record is returned only if it is whole, its checksums are right, and it belongs where it is. So after
///   [`Record::End`], all of the guest came.
pub struct Reader<R> {
    source: R,
    here: Capabilities,
    order: Order,
    chain: u64,
    /// Where the next record starts, and how many came.
    offset: u64,
    records: u64,
    payload: Vec<u8>,
    unpacked: Vec<u8>,
    failed: bool,
}

/// Returns the most bytes of heap that a [`Reader`] holds, if the target can take `memory` bytes of guest memory: 384
/// KiB, and a bit for each 4 KiB.
pub const fn heap_bound(memory: u64) -> u64 {
    (384 << 10) + memory.div_ceil(8 * 4096)
}

impl<R: Read> Reader<R> {
    /// Makes a reader for a target with these capabilities. For a stream from target to source, which has messages only,
    /// they do not matter.
    pub fn new(source: R, here: Capabilities) -> Self {
        let (order, chain) = (Order::new(WHOLE), Preamble::new().chain());
        let (payload, unpacked) = (vec![0; PAYLOAD_MAX], Vec::new());
        Self { source, here, order, chain, offset: 0, records: 0, payload, unpacked, failed: false }
    }

    /// Returns the stream's version, once a record has come.
    pub fn version(&self) -> u32 {
        self.order.version()
    }

    /// Returns the next record. `None` is the end of the bytes, where a stream may end: after [`Record::End`], after a
    /// withdrawal, or in a stream of a target's messages.
    #[expect(clippy::should_implement_trait, reason = "a record borrows the reader")]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        let (record, offset) = (self.records, self.offset);
        let error = |cause| ReadError { record, offset, cause };
        if self.failed {
            return Err(error(Cause::Failed));
        }
        // Stays set if an error returns early.
        self.failed = true;
        let header = match self.header() {
            Ok(Some(header)) => header,
            Ok(None) => {
                self.failed = false;
                return Ok(None);
            }
            Err(cause) => return Err(error(cause)),
        };
        let payload = &mut self.payload[..header.payload()];
        fill(&mut self.source, payload, &mut self.offset).map_err(error)?;
        let record = interpret(header, payload, &mut self.unpacked, &mut self.order, &self.here).map_err(error)?;
        (self.failed, self.records) = (false, self.records + 1);
        Ok(Some(record))
    }

    /// Reads a header, and the preamble before the first one. `None`: the bytes end where a stream may end.
    fn header(&mut self) -> Result<Option<Header>, Cause> {
        let Self { source, offset, .. } = self;
        if *offset == 0 {
            let mut preamble = Preamble::new_zeroed();
            fill(source, preamble.as_mut_bytes(), offset)?;
            if preamble.magic != MAGIC {
                return Err(Cause::Magic(preamble.magic));
            }
            if !(OLDEST..=VERSION).contains(&preamble.version.get()) {
                return Err(Cause::Version(preamble.version.get()));
            }
            if preamble.reserved.get() != 0 {
                return Err(Cause::Reserved("the preamble"));
            }
            self.order.set_version(preamble.version.get());
            self.chain = preamble.chain();
        }
        let (mut header, start) = (Header::default(), *offset);
        match fill(source, header.as_mut_bytes(), offset) {
            // A cut in a header moves the offset, so this is the end between two records.
            Err(Cause::Cut) if *offset == start && self.order.may_stop() => return Ok(None),
            filled => filled?,
        }
        self.chain = header.chain_after(self.chain);
        if self.chain != header.chain.get() {
            return Err(Cause::Chain);
        }
        if header.payload() > PAYLOAD_MAX {
            return Err(Cause::Length(header.length.get()));
        }
        Ok(Some(header))
    }
}

/// Fills `bytes` from the source, and counts them.
fn fill(source: &mut impl Read, mut bytes: &mut [u8], offset: &mut u64) -> Result<(), Cause> {
    while !bytes.is_empty() {
        match source.read(bytes) {
            Ok(0) => return Err(Cause::Cut),
            Ok(count) => {
                *offset += count as u64;
                bytes = &mut bytes[count..];
            }
            Err(error) => return Err(Cause::Source(error.kind())),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::{Owner, Ownership};
    use crate::stream::{Compression, Message, Name, Writer};

    #[test]
    fn the_bound_on_the_heap_is_a_bit_for_each_page() {
        assert_eq!([0, 1, 1 << 15, 1 << 38].map(heap_bound), [393_216, 393_217, 393_217, 393_216 + (1 << 23)]);
    }

    /// A stream of messages may stop between two of them, and not within one.
    #[test]
    fn bytes_behind_the_last_record_are_a_cut() {
        let mut bytes = Vec::new();
        let from = Ownership { owner: Owner { host: 1, incarnation: 2 }, epoch: 3 };
        let mut writer = Writer::new(&mut bytes, Compression::Off);
        writer.message(&Message::Taken(from)).unwrap();
        writer.flush().unwrap();
        drop(writer);
        let model = Name::new("any").unwrap();
        let here = Capabilities { model, page_shift: 12, ipa_bits: 40, vcpus: 1, memory: 0, features: Vec::new() };
        let mut reader = Reader::new(&bytes[..], here.clone());
        assert!(matches!(reader.next(), Ok(Some(Record::Message(Message::Taken(taken)))) if taken == from));
        assert!(matches!(reader.next(), Ok(None)) && matches!(reader.next(), Ok(None)), "at the end again and again");
        bytes.push(0);
        let mut reader = Reader::new(&bytes[..], here);
        assert!(reader.next().is_ok());
        assert!(matches!(reader.next(), Err(ReadError { cause: Cause::Cut, .. })));
    }
}
