// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A small guest and its stream, a receiver that notes what came, and a forger that knows the checksums.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeMap;

use twofold_migration::commit::{Owner, Ownership};
use twofold_migration::stream::wire::{Header, Preamble, WHOLE, checksum, kind};
use twofold_migration::stream::{
    Capabilities, Compression, Feature, Hello, Name, ReadError, Reader, Record, Slot, Writer,
};
use zerocopy::{FromBytes, IntoBytes};

pub const PAGE: usize = 4096;

pub fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub fn hello() -> Hello {
    let feature = |text, value, exact| Feature { name: name(text), value, exact };
    Hello {
        migration: *b"a migration's id",
        stream: 0,
        streams: 1,
        model: name("virt-1"),
        page_shift: 12,
        ipa_bits: 40,
        vcpus: 2,
        memory: 12 * PAGE as u64,
        features: vec![feature("counter-frequency", 62_500_000, true), feature("id_aa64isar0.aes", 1, false)],
    }
}

pub fn capabilities() -> Capabilities {
    Capabilities {
        model: name("virt-1"),
        page_shift: 12,
        ipa_bits: 48,
        vcpus: 8,
        memory: 1 << 20,
        features: vec![(name("id_aa64isar0.aes"), 2), (name("counter-frequency"), 62_500_000), (name("sve"), 1)],
    }
}

pub fn slots() -> Vec<Slot> {
    let slot = |number, read_only, first, pages| Slot { number, read_only, first, pages };
    vec![slot(4, true, 0, 2), slot(0, false, 0x4_0000, 10)]
}

pub const OFFER: Ownership = Ownership { owner: Owner { host: 7, incarnation: 3 }, epoch: 41 };

/// Returns a page that lz4 cannot make smaller.
pub fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut word = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    (0..PAGE / 4).flat_map(|_| word().to_le_bytes()).collect()
}

/// Returns a page that lz4 makes smaller.
pub fn text(seed: u8) -> Vec<u8> {
    (0..PAGE).map(|at| (at / 100) as u8 ^ seed).collect()
}

/// Returns the stream of a guest with three rounds and three sections.
pub fn stream(compression: Compression) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), compression);
    writer.hello(&hello()).unwrap();
    writer.slots(&slots()).unwrap();
    writer.section(name("kernel"), 0, 1, &[&noise(9)[..], &[5; 70_000]].concat()).unwrap();
    writer.round(false).unwrap();
    for page in 0..2 {
        writer.page(4, page, &text(page as u8)).unwrap();
    }
    writer.zero_pages(0, 3, 7).unwrap();
    for page in [2, 0, 1] {
        writer.page(0, page, &noise(page)).unwrap();
    }
    writer.end_round().unwrap();
    writer.round(false).unwrap();
    writer.page(0, 5, &text(0x55)).unwrap();
    writer.page(0, 0, &[0; PAGE]).unwrap();
    writer.end_round().unwrap();
    writer.round(true).unwrap();
    writer.page(0, 9, &noise(10)).unwrap();
    writer.end_round().unwrap();
    writer.section(name("vcpu"), 0, 3, b"registers").unwrap();
    writer.section(name("vcpu"), 1, 3, b"").unwrap();
    writer.end(OFFER).unwrap();
    writer.into_sink()
}

/// Returns the stream of a guest that changes hands before all of its pages have come.
pub fn stream_with_absent(compression: Compression) -> Vec<u8> {
    let mut writer = Writer::with_absent(Vec::new(), compression);
    writer.hello(&hello()).unwrap();
    writer.slots(&slots()).unwrap();
    writer.round(false).unwrap();
    writer.page(4, 1, &text(1)).unwrap();
    writer.zero_pages(0, 3, 7).unwrap();
    writer.page(0, 1, &noise(1)).unwrap();
    writer.end_round().unwrap();
    writer.round(true).unwrap();
    writer.end_round().unwrap();
    writer.section(name("vcpu"), 0, 3, b"registers").unwrap();
    writer.absent(4, 0, &[0b1]).unwrap();
    writer.absent(0, 0, &[0b1_0000_0111]).unwrap();
    writer.end(OFFER).unwrap();
    writer.page(0, 2, &noise(2)).unwrap();
    writer.zero_pages(0, 8, 1).unwrap();
    writer.page(4, 0, &text(2)).unwrap();
    writer.into_sink()
}

/// What came by a stream.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Came {
    /// A line for each record.
    pub lines: Vec<String>,
    /// Pages that are not zero.
    pub pages: BTreeMap<(u16, u64), Vec<u8>>,
    /// The source's offer, with which all of the guest came.
    pub offer: Option<Ownership>,
}

/// Reads a stream, and notes what came until the end or an error.
pub fn read(bytes: &[u8]) -> (Came, Result<(), ReadError>) {
    read_as(bytes, capabilities())
}

pub fn read_as(bytes: &[u8], here: Capabilities) -> (Came, Result<(), ReadError>) {
    let (mut reader, mut came) = (Reader::new(bytes, here), Came::default());
    loop {
        match reader.next() {
            Ok(None) => return (came, Ok(())),
            Ok(Some(record)) => came.note(record),
            Err(error) => {
                assert!(reader.next().is_err(), "nothing comes after an error");
                return (came, Err(error));
            }
        }
    }
}

impl Came {
    fn note(&mut self, record: Record<'_>) {
        self.lines.push(match &record {
            Record::Page { slot, page, bytes } => format!("page {page} of slot {slot}: {:016x}", checksum(bytes)),
            Record::Absent { slot, page, words } => {
                let words: Vec<_> = words.iter().map(|word| format!("{:016x}", word.get())).collect();
                format!("absent from page {page} of slot {slot} on: {}", words.join(" "))
            }
            Record::Part(bytes) => format!("part of {} bytes: {:016x}", bytes.len(), checksum(bytes)),
            other => format!("{other:?}"),
        });
        match record {
            Record::Page { slot, page, bytes } => drop(self.pages.insert((slot, page), bytes.to_vec())),
            Record::ZeroPages { slot, page, count } => {
                self.pages.retain(|&(at, known), _| at != slot || !(page..page + u64::from(count)).contains(&known));
            }
            Record::End(from) => self.offer = Some(from),
            _ => {}
        }
    }
}

/// A record's header and payload.
pub type Raw = (Header, Vec<u8>);

/// Returns the records of a good stream.
pub fn split(stream: &[u8]) -> Vec<Raw> {
    let (_, mut rest) = Preamble::read_from_prefix(stream).unwrap();
    let mut records = Vec::new();
    while !rest.is_empty() {
        let (header, after) = Header::read_from_prefix(rest).unwrap();
        let (payload, after) = after.split_at(header.payload());
        records.push((header, payload.to_vec()));
        rest = after;
    }
    records
}

/// Returns the records as a stream, as they are.
pub fn join(records: &[Raw]) -> Vec<u8> {
    join_as(WHOLE, records)
}

fn join_as(version: u32, records: &[Raw]) -> Vec<u8> {
    let records = records.iter().flat_map(|(header, payload)| [header.as_bytes(), payload]);
    [Preamble::of(version).as_bytes()].into_iter().chain(records).flatten().copied().collect()
}

/// Returns the records as a stream, with checksums that fit.
pub fn forge(records: Vec<Raw>) -> Vec<u8> {
    forge_as(WHOLE, records)
}

/// The same, as a stream of a version.
pub fn forge_as(version: u32, mut records: Vec<Raw>) -> Vec<u8> {
    let mut chain = Preamble::of(version).chain();
    for (header, payload) in &mut records {
        if header.kind != kind::PAGE {
            header.content = checksum(payload).into();
        }
        chain = header.chain_after(chain);
        header.chain = chain.into();
    }
    join_as(version, &records)
}
