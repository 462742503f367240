// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The edges of what a stream and a commit allow: the last value that is good, and the first that is not.

mod guest;

use guest::{Raw, forge, hello, name, read, split, stream};
use twofold_migration::commit::{Action, Event, Owner, Ownership, Request, State, step};
use twofold_migration::stream::wire::{FEATURES_MAX, Header, SLOTS_MAX, kind, message};
use twofold_migration::stream::{
    Cause, Compression, Feature, Hello, HelloError, Message, MessageError, OrderError, Slot, SlotError, WriteError,
    Writer,
};

#[test]
fn each_number_of_a_hello_has_its_range() {
    type Set = fn(&mut Hello, u64);
    let streams: Set = |hello, value| hello.streams = value as u16;
    let shift: Set = |hello, value| (hello.page_shift, hello.memory) = (value as u8, 1 << 18);
    let bits: Set = |hello, value| hello.ipa_bits = value as u8;
    let vcpus: Set = |hello, value| hello.vcpus = value as u32;
    let memory: Set = |hello, value| hello.memory = value;
    for (what, set, good, bad) in [
        ("streams", streams, &[1, 64][..], &[0, 65][..]),
        ("page shift", shift, &[12, 14, 16], &[11, 13, 15, 17]),
        ("address bits", bits, &[32, 52], &[31, 53]),
        ("vCPUs", vcpus, &[1, 512], &[0, 513]),
        ("memory", memory, &[1 << 12, 1 << 40], &[0, 1, (1 << 12) + 1, (1 << 40) + (1 << 12)]),
    ] {
        let check = |value| {
            let mut hello = hello();
            set(&mut hello, value);
            hello.check()
        };
        for &value in good {
            assert_eq!(check(value), Ok(()), "{what} {value}");
        }
        for &value in bad {
            assert_eq!(check(value), Err(HelloError::Number { what, value }));
        }
    }
}

#[test]
fn a_hello_has_512_features_at_most_and_none_twice() {
    let features = |count| {
        let feature = |index| Feature { name: name(&format!("feature.{index:04}")), value: 1, exact: false };
        Hello { features: (0..count).map(feature).collect(), ..hello() }
    };
    assert_eq!(FEATURES_MAX, 512);
    assert_eq!(features(512).check(), Ok(()));
    assert_eq!(features(513).check(), Err(HelloError::Number { what: "features", value: 513 }));
    let mut twice = features(2);
    twice.features[1] = twice.features[0];
    assert_eq!(twice.check(), Err(HelloError::Order(name("feature.0000"))));
}

#[test]
fn a_guest_has_512_memslots_at_most() {
    assert_eq!(SLOTS_MAX, 512);
    for (count, good) in [(512, true), (513, false)] {
        let mut writer = Writer::new(Vec::new(), Compression::Off);
        writer.hello(&Hello { memory: count << 12, ..hello() }).unwrap();
        let slot = |number: u64| Slot { number: number as u16, read_only: false, first: number, pages: 1 };
        let written = writer.slots(&(0..count).map(slot).collect::<Vec<_>>());
        let size = SlotError::Size(513 * size_of::<Slot>());
        assert_eq!(written, if good { Ok(()) } else { Err(WriteError::Order(size.into())) });
    }
}

#[test]
fn memory_may_reach_the_last_address_and_no_further() {
    let last = (1 << (40 - 12)) - 12;
    for (first, good) in [(last, true), (last + 1, false)] {
        let mut writer = Writer::new(Vec::new(), Compression::Off);
        writer.hello(&hello()).unwrap();
        let written = writer.slots(&[Slot { number: 0, read_only: false, first, pages: 12 }]);
        let fit = SlotError::Fit { number: 0, first, pages: 12 };
        assert_eq!(written, if good { Ok(()) } else { Err(WriteError::Order(fit.into())) });
    }
}

/// Returns the error of the stream after a change of its last record of a kind, with checksums that fit.
fn forged_last(kind: u8, change: fn(&mut Raw)) -> Cause {
    let mut records = split(&stream(Compression::Lz4));
    change(records.iter_mut().rfind(|(header, _)| header.kind == kind).unwrap());
    read(&forge(records)).1.unwrap_err().cause
}

#[test]
fn a_field_that_a_record_does_not_use_is_zero() {
    for kind in [kind::HELLO, kind::SLOTS, kind::ROUND_END, kind::SECTION, kind::PART, kind::END] {
        let error = forged_last(kind, |(header, _)| header.form = 1);
        assert_eq!(error, Cause::Reserved("form"), "kind {kind}");
    }
    let longer = |record: &mut Raw| {
        record.0.length = 1.into();
        record.1.push(0);
    };
    for kind in [kind::ROUND, kind::ROUND_END] {
        assert_eq!(forged_last(kind, longer), Cause::Reserved("length"), "kind {kind}");
    }
    let mut stream = stream(Compression::Off);
    stream[12] = 1;
    assert_eq!(read(&stream).1.unwrap_err().cause, Cause::Reserved("the preamble"));
}

#[test]
fn a_stream_of_no_version_is_refused() {
    let mut stream = stream(Compression::Off);
    stream[8] = 0;
    assert_eq!(read(&stream).1.unwrap_err().cause, Cause::Version(0));
}

/// Returns the error of a stream of one message, after a change of it.
fn forged_message(change: impl FnOnce(&mut Raw)) -> Option<Cause> {
    let mut writer = Writer::new(Vec::new(), Compression::Off);
    writer.message(&Message::Refused("too small".into())).unwrap();
    let mut records = split(&writer.into_sink());
    change(&mut records[0]);
    read(&forge(records)).1.err().map(|error| error.cause)
}

#[test]
fn a_message_has_512_bytes_of_text_at_most_and_no_argument() {
    for (length, good) in [(512, true), (513, false)] {
        let error = forged_message(|(header, payload)| {
            header.length = (length as u32).into();
            payload.resize(length, b'x');
        });
        let long = Cause::Message(MessageError::Payload { form: message::REFUSED, length: 513 });
        assert_eq!(error, (!good).then_some(long));
    }
    assert_eq!(forged_message(|(header, _)| header.argument = 1.into()), Some(Cause::Reserved("argument")));
}

/// A round's pages are noted 64 to a word.
#[test]
fn each_page_of_a_round_comes_once() {
    for page in [0, 62, 63, 64, 127] {
        let mut writer = Writer::new(Vec::new(), Compression::Off);
        writer.hello(&Hello { memory: 128 << 12, ..hello() }).unwrap();
        writer.slots(&[Slot { number: 0, read_only: false, first: 0, pages: 128 }]).unwrap();
        writer.round(false).unwrap();
        writer.zero_pages(0, page, 1).unwrap();
        let repeated = SlotError::Repeated { slot: 0, page };
        assert_eq!(writer.zero_pages(0, page, 1), Err(WriteError::Order(repeated.into())));
    }
}

#[test]
fn a_part_of_a_section_has_bytes() {
    let mut records = split(&stream(Compression::Off));
    let at = records.iter().position(|(header, _)| header.kind == kind::PART).unwrap();
    records.insert(at, (Header { kind: kind::PART, ..Header::default() }, Vec::new()));
    let empty = OrderError::Part { offset: 0, length: 0, wanted: 0, left: 74096 };
    assert_eq!(read(&forge(records)).1.unwrap_err().cause, Cause::Order(empty));
}

const HERE: Owner = Owner { host: 2, incarnation: 5 };
const THERE: Owner = Owner { host: 1, incarnation: 9 };

#[test]
fn a_guest_whose_memory_is_here_runs_from_it_and_only_another_is_booted() {
    let from = Ownership { owner: THERE, epoch: 7 };
    let now = from.taken_by(HERE);
    assert_eq!(now, Ownership { owner: HERE, epoch: 8 });
    for (boot, run) in [(false, Action::Run), (true, Action::Boot)] {
        let wins = step(HERE, State::InDoubt { from, boot }, Event::Record(now));
        assert_eq!(wins, (State::Running { owned: now }, vec![run, Action::Announce(now)]));
    }
}

/// A side learns of the owner from the record, and may then receive the guest from that owner.
#[test]
fn a_stream_of_the_newest_epoch_that_is_known_is_not_late() {
    let from = Ownership { owner: THERE, epoch: 7 };
    let taken = (State::InDoubt { from, boot: false }, vec![Action::Ask(Request::Take { from, by: HERE })]);
    for (seen, good) in [(6, true), (7, true), (8, false)] {
        let idle = State::Idle { seen };
        let late = (idle, vec![Action::Release]);
        assert_eq!(step(HERE, idle, Event::Received(from)), if good { taken.clone() } else { late });
    }
}
