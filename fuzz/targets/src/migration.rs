// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A migration's stream from any source.

use std::collections::BTreeSet;

use twofold_migration::commit::Ownership;
use twofold_migration::stream::wire::{Header, Preamble, VERSION, WHOLE, checksum, kind, page};
use twofold_migration::stream::{
    Capabilities, Compression, Hello, Message, Name, ReadError, Reader, Record, Slot, Writer, heap_bound,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::heap;

/// A stream is refused, or can be written again and is read as the same. Its reader holds no more heap than it may.
///
/// If the first byte is odd, the rest is a stream. If it is even, the rest is a stream's records, and their checksums are
/// made to fit, as a forger does. Its next bit is set for a stream with absent pages.
pub fn migration(data: &[u8]) {
    let Some((&mode, data)) = data.split_first() else { return };
    let stream = if mode % 2 == 1 { data.to_vec() } else { forge(data, if mode & 2 == 0 { WHOLE } else { VERSION }) };
    let here = capabilities();
    let bound = heap_bound(here.memory);
    let (heap, ()) = heap::most(|| skim(Reader::new(&stream[..], here)));
    assert!(heap <= bound, "a reader held {heap} bytes of heap, and may hold {bound}");
    // What came before an error was whole and in order, so it can be written too.
    let mut came = Vec::new();
    let (version, _) = read(&stream, &mut came);
    assert_no_page_twice(&came);
    let Some(again) = write(&came, version) else { return };
    let mut same = Vec::new();
    let _ = read(&again, &mut same);
    assert_eq!(came, same);
}

/// A record that does not borrow.
#[derive(Debug, PartialEq)]
enum Came {
    Hello(Hello),
    Slots(Vec<Slot>),
    Round(bool),
    Page(u16, u64, Vec<u8>),
    Zeros(u16, u64, u32),
    RoundEnd(u64),
    Section(Name, u32, u32, u64),
    Part(Vec<u8>),
    End(Ownership),
    Message(Message),
    Absent(u16, u64, Vec<u64>),
    Request(bool, u16, u64, u32),
    Resume(Ownership),
}

fn capabilities() -> Capabilities {
    let name = |text| Name::new(text).unwrap();
    let features = vec![(name("sve"), 1), (name("counter-frequency"), 62_500_000)];
    Capabilities { model: name("virt-1"), page_shift: 12, ipa_bits: 48, vcpus: 8, memory: 1 << 22, features }
}

fn read(stream: &[u8], came: &mut Vec<Came>) -> (u32, Result<(), ReadError>) {
    let mut reader = Reader::new(stream, capabilities());
    loop {
        let error = match reader.next() {
            Ok(None) => return (reader.version(), Ok(())),
            Ok(Some(record)) => {
                came.push(keep(record));
                continue;
            }
            Err(error) => error,
        };
        assert!(error.offset <= stream.len() as u64 && !error.to_string().is_empty());
        assert!(reader.next().is_err(), "nothing comes after an error");
        return (reader.version(), Err(error));
    }
}

fn keep(record: Record<'_>) -> Came {
    match record {
        Record::Hello(hello) => Came::Hello(hello.clone()),
        Record::Slots(slots) => Came::Slots(slots.to_vec()),
        Record::Round { stopped, .. } => Came::Round(stopped),
        Record::Page { slot, page, bytes } if bytes.iter().all(|&byte| byte == 0) => Came::Zeros(slot, page, 1),
        Record::Page { slot, page, bytes } => Came::Page(slot, page, bytes.to_vec()),
        Record::ZeroPages { slot, page, count } => Came::Zeros(slot, page, count),
        Record::RoundEnd { pages } => Came::RoundEnd(pages),
        Record::Section { name, instance, version, size } => Came::Section(name, instance, version, size),
        Record::Part(bytes) => Came::Part(bytes.to_vec()),
        Record::End(from) => Came::End(from),
        Record::Message(message) => Came::Message(message),
        Record::Absent { slot, page, words } => Came::Absent(slot, page, words.iter().map(|word| word.get()).collect()),
        Record::Request { waits, slot, page, count } => Came::Request(waits, slot, page, count),
        Record::Resume(owned) => Came::Resume(owned),
    }
}

/// A page comes at most once in a round, and at most once after the end.
fn assert_no_page_twice(came: &[Came]) {
    let mut pages = BTreeSet::new();
    for record in came {
        let (slot, first, count) = match *record {
            Came::Page(slot, page, _) => (slot, page, 1),
            Came::Zeros(slot, page, count) => (slot, page, u64::from(count)),
            Came::Round(_) | Came::End(_) => {
                pages.clear();
                continue;
            }
            _ => continue,
        };
        for page in first..first + count {
            assert!(pages.insert((slot, page)), "page {page} of memslot {slot} comes twice");
        }
    }
}

/// Reads to the end or to an error, and keeps nothing.
fn skim(mut reader: Reader<&[u8]>) {
    while let Ok(Some(_)) = reader.next() {}
}

/// Writes the records again; `None` if they end in a section, or have parts that a writer would not make.
fn write(came: &[Came], version: u32) -> Option<Vec<u8>> {
    let new = if version == WHOLE { Writer::new } else { Writer::with_absent };
    let mut writer = new(Vec::new(), Compression::Lz4);
    let mut records = came.iter().peekable();
    while let Some(record) = records.next() {
        let written = match record {
            Came::Hello(hello) => writer.hello(hello),
            Came::Slots(slots) => writer.slots(slots),
            Came::Round(stopped) => writer.round(*stopped),
            Came::Page(slot, page, bytes) => writer.page(*slot, *page, bytes),
            Came::Zeros(slot, page, count) => writer.zero_pages(*slot, *page, *count),
            Came::RoundEnd(pages) => writer.end_round().map(|written| assert_eq!(written, *pages)),
            Came::Section(name, instance, version, size) => {
                let bytes = match records.peek() {
                    _ if *size == 0 => &[][..],
                    Some(Came::Part(bytes)) if bytes.len() as u64 == *size => bytes,
                    _ => return None,
                };
                records.next_if(|_| *size > 0);
                writer.section(*name, *instance, *version, bytes)
            }
            Came::Part(_) => unreachable!("a part came without its section"),
            Came::End(from) => writer.end(*from),
            Came::Message(message) => writer.message(message),
            Came::Absent(slot, page, words) => writer.absent(*slot, *page, words),
            Came::Request(waits, slot, page, count) => writer.request(*waits, *slot, *page, *count),
            Came::Resume(owned) => writer.resume(*owned),
        };
        written.expect("what was read can be written");
    }
    Some(writer.into_sink())
}

/// Returns a stream of these records with checksums that fit. A whole page's bytes come from its header, so that a short
/// input has room for many.
pub fn forge(mut data: &[u8], version: u32) -> Vec<u8> {
    let preamble = Preamble::of(version);
    let (mut stream, mut chain) = (preamble.as_bytes().to_vec(), preamble.chain());
    while let Ok((mut header, rest)) = Header::read_from_prefix(data) {
        let whole = (header.kind, header.form) == (kind::PAGE, page::WHOLE);
        let made = vec![header.content.get() as u8; header.payload().min(1 << 16)];
        let (payload, rest) = if whole { (&made[..], rest) } else { rest.split_at(header.payload().min(rest.len())) };
        if header.kind != kind::PAGE || whole {
            header.content = checksum(payload).into();
        }
        chain = header.chain_after(chain);
        header.chain = chain.into();
        stream.extend_from_slice(header.as_bytes());
        stream.extend_from_slice(payload);
        data = rest;
    }
    stream
}
