// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several streams as one: a guest is returned only when all have come whole, and fit together.

use twofold_migration::commit::{Owner, Ownership, Side, State};
use twofold_migration::receive::{JoinError, Receive, ReceiveError};
use twofold_migration::stream::{Compression, Hello, Writer};

use crate::guest::{capabilities, hello, name, places, slots};
use crate::link::Arbiter;
use crate::moved::{Still, first};
use crate::program::Work;
use crate::sides::Target;

/// Returns one of several streams of a guest of zeros, in which only the first page of a memslot has content. Each
/// stream has the pages of memslots 2, 0 and 1 in turn. `more` writes more, after the first round.
pub fn stream(number: u16, streams: u16, more: impl FnOnce(&mut Writer<Vec<u8>>)) -> Vec<u8> {
    changed(number, streams, |_| (), |_| true, first(), more)
}

fn changed(
    number: u16,
    streams: u16,
    change: fn(&mut Hello),
    has: fn(u64) -> bool,
    from: Ownership,
    more: impl FnOnce(&mut Writer<Vec<u8>>),
) -> Vec<u8> {
    let mut hello = Hello { stream: number, streams, ..hello(1) };
    change(&mut hello);
    let mut writer = Writer::new(Vec::new(), Compression::Off);
    writer.hello(&hello).unwrap();
    writer.slots(&slots()).unwrap();
    writer.round(false).unwrap();
    for (index, slot) in slots().iter().enumerate().filter(|(index, _)| index % streams as usize == number as usize) {
        if has(index as u64) {
            writer.page(slot.number, 0, &[7 + index as u8; 4096]).unwrap();
        }
        writer.zero_pages(slot.number, 1, slot.pages as u32 - 1).unwrap();
    }
    writer.end_round().unwrap();
    more(&mut writer);
    writer.round(true).unwrap();
    writer.end_round().unwrap();
    if number == 0 {
        writer.section(name("vcpu"), 0, 1, &Work::new(0, (40, 80)).to_bytes()).unwrap();
    }
    writer.end(from).unwrap();
    writer.into_sink()
}

/// Returns why no guest comes by these streams. What was built is released.
#[track_caller]
pub fn refusal(streams: &[&[u8]]) -> ReceiveError {
    let [_, mut there] = places();
    let arbiter = Arbiter::new(first());
    let mut target = Target::new(&mut there, None, &arbiter);
    let side = Side::new(Owner { host: 1, incarnation: 0 }, State::START);
    let receive = Receive { here: capabilities(), sections: 1 << 20, runtime: &Still };
    let error = receive.run(streams.to_vec(), &side, &mut target).expect_err("it is refused");
    assert_eq!(target.refused, [error.to_string()]);
    assert!(target.guest.is_none());
    assert!(there.frames.is_some(), "what came is released");
    error
}

#[track_caller]
fn join(streams: &[&[u8]]) -> JoinError {
    match refusal(streams) {
        ReceiveError::Join(error) => error,
        other => panic!("{other}"),
    }
}

#[test]
fn a_guest_comes_by_streams_in_any_order() {
    let streams = [0, 1, 2].map(|number| stream(number, 3, |_| ()));
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        let [_, mut there] = places();
        let arbiter = Arbiter::new(first());
        let mut target = Target::new(&mut there, None, &arbiter);
        let mut side = Side::new(Owner { host: 1, incarnation: 0 }, State::START);
        let receive = Receive { here: capabilities(), sections: 1 << 20, runtime: &Still };
        let received = receive.run(order.map(|number| &streams[number][..]).to_vec(), &side, &mut target).unwrap();
        assert_eq!((received.from, received.slots.clone()), (first(), slots()));
        assert!(matches!(received.take(&mut side, &mut target).0, State::Running { .. }));
        let digests = target.digests.take().unwrap();
        let zero = digests[1];
        let full: Vec<_> = (0..digests.len()).filter(|&page| digests[page] != zero).collect();
        assert_eq!(full, [0, 5, 305]);
    }
}

#[test]
fn a_stream_that_is_missing_or_another_is_refused() {
    let [a, b, c] = [0, 1, 2].map(|number| stream(number, 3, |_| ()));
    let alone = stream(0, 1, |_| ());
    assert_eq!(join(&[]), JoinError::Streams { came: 0, said: 0 });
    assert_eq!(join(&[&a, &b]), JoinError::Streams { came: 2, said: 3 });
    assert_eq!(join(&[&alone, &b]), JoinError::Streams { came: 2, said: 1 });
    assert_eq!(join(&[&a, &b, &b]), JoinError::Number { wanted: 2, found: 1 });
    assert_eq!(join(&[&b, &c, &c]), JoinError::Number { wanted: 0, found: 1 });
    let other = changed(1, 3, |hello| hello.migration[0] = 0, |_| true, first(), |_| ());
    assert_eq!(join(&[&a, &other, &c]), JoinError::Differs { stream: 1, what: "migration's id" });
    let other = changed(2, 3, |hello| hello.vcpus = 2, |_| true, first(), |_| ());
    assert_eq!(join(&[&a, &b, &other]), JoinError::Differs { stream: 2, what: "guest" });
}

#[test]
fn streams_that_are_not_at_the_same_place_are_refused() {
    let [a, b] = [0, 1].map(|number| stream(number, 2, |_| ()));
    let round = |writer: &mut Writer<Vec<u8>>| {
        writer.round(false).unwrap();
        writer.end_round().unwrap();
    };
    let (wanted, found) = ("the end of the stopped guest's round", "the end of a round");
    assert_eq!(join(&[&a, &stream(1, 2, round)]), JoinError::Apart { stream: 1, found, wanted });
    let from = Ownership { epoch: 1, ..first() };
    let other = changed(1, 2, |_| (), |_| true, from, |_| ());
    assert_eq!(join(&[&a, &other]), JoinError::Differs { stream: 1, what: "owner record" });
    let section = stream(1, 2, |writer| writer.section(name("vcpu"), 1, 1, &[]).unwrap());
    assert_eq!(join(&[&a, &section]), JoinError::Section { stream: 1 });
    // One stream is cut anywhere, the other is whole.
    for end in (0..b.len()).filter(|end| end % 31 == 0 || end + 60 > b.len()) {
        let why = refusal(&[&a, &b[..end]]);
        assert!(matches!(why, ReceiveError::Read { stream: 1, .. }), "{why}");
    }
    let kept = stream_withdrawn();
    assert_eq!(refusal(&[&a, &kept]), ReceiveError::Withdrawn("cancelled".into()));
}

/// A stream that is withdrawn in the first round.
fn stream_withdrawn() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), Compression::Off);
    writer.hello(&Hello { stream: 1, streams: 2, ..hello(1) }).unwrap();
    writer.slots(&slots()).unwrap();
    writer.round(false).unwrap();
    writer.message(&twofold_migration::stream::Message::Withdrawn("cancelled".into())).unwrap();
    writer.into_sink()
}

/// Returns a stream with absent pages. Its rounds have the pages of memslots 2 and 0; `absent` writes which pages of
/// memslot 1 are absent.
fn with_absent(number: u16, streams: u16, absent: impl FnOnce(&mut Writer<Vec<u8>>)) -> Vec<u8> {
    let mut writer = Writer::with_absent(Vec::new(), Compression::Off);
    writer.hello(&Hello { stream: number, streams, ..hello(1) }).unwrap();
    writer.slots(&slots()).unwrap();
    writer.round(false).unwrap();
    if number == 0 {
        writer.zero_pages(2, 0, 5).unwrap();
        writer.zero_pages(0, 0, 300).unwrap();
    }
    writer.end_round().unwrap();
    writer.round(true).unwrap();
    writer.end_round().unwrap();
    absent(&mut writer);
    writer.end(first()).unwrap();
    writer.into_sink()
}

#[test]
fn each_page_comes_or_is_absent() {
    let all = [!0, (1 << 26) - 1];
    let never = |page| JoinError::NeverCame { slot: 1, page };
    assert_eq!(join(&[&with_absent(0, 1, |_| ())]), never(0));
    let one = with_absent(0, 1, |writer| writer.absent(1, 0, &[!0, all[1] - 2]).unwrap());
    assert_eq!(join(&[&one]), never(65));
    let whole = with_absent(0, 2, |writer| writer.absent(1, 0, &all).unwrap());
    let refused = refusal(&[&with_absent(1, 2, |_| ()), &whole]).to_string();
    assert_eq!(refused, "90 pages are absent, and this target needs all");
    let other = with_absent(1, 2, |writer| writer.absent(1, 0, &all).unwrap());
    assert_eq!(join(&[&whole, &other]), JoinError::Misplaced { what: "absent pages", stream: 1 });
    assert_eq!(join(&[&whole, &stream(1, 2, |_| ())]), JoinError::Differs { stream: 1, what: "version" });
}

/// Each stream's reader sees nothing wrong here.
#[test]
fn pages_are_counted_over_all_streams() {
    let [a, b] = [0, 1].map(|number| stream(number, 2, |_| ()));
    let lacks = changed(1, 2, |_| (), |_| false, first(), |_| ());
    assert_eq!(join(&[&a, &lacks]), JoinError::FirstRound { came: 394, all: 395 });
    // Memslot 0 is in stream 1. Stream 0 has a page of it too, and lacks one of its own: the sum is right.
    let mut both = Writer::new(Vec::new(), Compression::Off);
    both.hello(&Hello { streams: 2, ..hello(1) }).unwrap();
    both.slots(&slots()).unwrap();
    both.round(false).unwrap();
    both.zero_pages(2, 0, 5).unwrap();
    both.zero_pages(1, 0, 89).unwrap();
    both.page(0, 250, &[1; 4096]).unwrap();
    both.end_round().unwrap();
    assert_eq!(join(&[&both.into_sink(), &b]), JoinError::Repeated { slot: 0, page: 250 });
}
