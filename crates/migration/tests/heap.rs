// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves that a reader holds no more heap than `heap_bound` says, with as much of everything as a stream can have.

#[path = "heap/counted.rs"]
mod counted;
mod guest;

use guest::{Raw, capabilities, forge_as, hello, name, split};
use proptest::prelude::*;
use twofold_migration::stream::wire::{FEATURES_MAX, Header, SECTIONS_MAX, SLOTS_MAX, VERSION, WHOLE, kind};
use twofold_migration::stream::{
    Capabilities, Cause, Compression, Feature, Hello, OrderError, Reader, Slot, Writer, heap_bound,
};

/// Reads a stream without keeping anything; returns the most heap that this took, and what ended it.
fn most(stream: &[u8], here: Capabilities) -> (u64, Option<Cause>) {
    counted::most(|| {
        let mut reader = Reader::new(stream, here);
        loop {
            match reader.next() {
                Ok(Some(_)) => {}
                Ok(None) => break None,
                Err(error) => break Some(error.cause),
            }
        }
    })
}

/// Returns a hello with as many features as there may be.
fn widest() -> Hello {
    let feature = |index| Feature { name: name(&format!("a-feature.{index:04}")), value: 1, exact: false };
    Hello { page_shift: 16, memory: 1 << 30, features: (0..FEATURES_MAX).map(feature).collect(), ..hello() }
}

fn wide() -> Capabilities {
    let features = widest().features.iter().map(|feature| (feature.name, feature.value)).collect();
    Capabilities { page_shift: 16, memory: 1 << 30, features, ..capabilities() }
}

#[test]
fn the_bound_holds_for_as_much_as_there_can_be() {
    let mut writer = Writer::new(Vec::new(), Compression::Lz4);
    writer.hello(&widest()).unwrap();
    let pages = (1 << 14) / SLOTS_MAX as u64;
    let slot = |number| Slot { number, read_only: false, first: u64::from(number) * pages, pages };
    writer.slots(&(0..SLOTS_MAX as u16).map(slot).collect::<Vec<_>>()).unwrap();
    writer.round(true).unwrap();
    writer.page(0, 0, &[3; 1 << 16]).unwrap();
    writer.zero_pages(0, 1, pages as u32 - 1).unwrap();
    for slot in 1..SLOTS_MAX as u16 {
        writer.zero_pages(slot, 0, pages as u32).unwrap();
    }
    writer.end_round().unwrap();
    for instance in 0..SECTIONS_MAX as u32 {
        writer.section(name("a-section"), instance, 1, &[1; 100]).unwrap();
    }
    let one_more = writer.section(name("b"), 0, 1, &[]);
    assert_eq!(one_more, Err(OrderError::Section { name: name("b"), instance: 0 }.into()));
    writer.end(guest::OFFER).unwrap();
    let (most, end) = most(&writer.into_sink(), wide());
    assert_eq!(end, None);
    let bound = heap_bound(1 << 30);
    assert!(most <= bound && most > bound / 3, "{most} bytes; the bound is {bound}");
}

#[test]
fn the_bound_holds_for_a_guest_that_is_refused() {
    let mut writer = Writer::new(Vec::new(), Compression::Off);
    let hello = Hello { ipa_bits: 52, memory: 1 << 52, ..widest() };
    writer.hello(&hello).unwrap();
    let (most, end) = most(&writer.into_sink(), capabilities());
    assert!(matches!(end, Some(Cause::Refused(refusals)) if refusals.len() == FEATURES_MAX + 3));
    assert!(most <= heap_bound(capabilities().memory), "{most} bytes");
}

proptest! {
    /// Any records with checksums that fit, after a good start.
    #[test]
    fn the_bound_holds_for_any_records(
        records in proptest::collection::vec(
            ((0_u8..14, 0_u8..5, 0_u16..6), any::<u64>(), proptest::collection::vec(any::<u8>(), 0..100), any::<u32>()),
            0..50,
        ),
        start in 0_usize..30,
        absent: bool,
    ) {
        let (version, whole) = match absent {
            false => (WHOLE, guest::stream(Compression::Lz4)),
            true => (VERSION, guest::stream_with_absent(Compression::Lz4)),
        };
        let mut stream: Vec<Raw> = split(&whole);
        stream.truncate(start);
        for ((kind, form, slot), argument, payload, length) in records {
            // Small numbers reach more.
            let argument = if argument % 2 == 0 { argument } else { argument % 13 };
            let mut header = Header { kind, form, slot: slot.into(), argument: argument.into(), ..Header::default() };
            let zeros = kind == self::kind::PAGE && form == 0 || kind == self::kind::REQUEST;
            header.length = if zeros { length } else { payload.len() as u32 }.into();
            stream.push((header, if zeros { Vec::new() } else { payload }));
        }
        let stream = forge_as(version, stream);
        let (most, _) = most(&stream, capabilities());
        prop_assert!(most <= heap_bound(capabilities().memory), "{} bytes", most);
    }
}
