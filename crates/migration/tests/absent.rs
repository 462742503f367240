// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Version 2 of the stream: absent pages, requests, and a link that is back.

mod guest;

use guest::{Raw, capabilities, forge, forge_as, hello, name, noise, read, slots, split, stream_with_absent, text};
use twofold_migration::stream::wire::{Header, VERSION, kind, request};
use twofold_migration::stream::{
    Cause, Compression, Message, MessageError, OrderError, Progress, Reader, Record, SlotError, WriteError, Writer,
};

#[test]
fn absent_pages_come_after_the_end() {
    let (came, result) = read(&stream_with_absent(Compression::Lz4));
    assert_eq!(result, Ok(()));
    assert_eq!(came.offer, Some(guest::OFFER));
    assert_eq!((&came.pages[&(0, 2)], &came.pages[&(4, 0)]), (&noise(2), &text(2)));
    let absent: Vec<_> = came.lines.iter().filter(|line| line.starts_with("absent")).collect();
    assert_eq!(
        absent,
        ["absent from page 0 of slot 4 on: 0000000000000001", "absent from page 0 of slot 0 on: 0000000000000107"]
    );
}

#[test]
fn a_stream_of_version_1_has_none_of_this() {
    let records = split(&stream_with_absent(Compression::Lz4));
    let first = |kind: u8| records.iter().find(|(header, _)| header.kind == kind).unwrap().clone();
    let head = &records[..2];
    let cause = |more: &[Raw]| read(&forge([head, more].concat())).1.unwrap_err().cause;
    assert_eq!(cause(&[first(kind::ABSENT)]), Cause::Kind(kind::ABSENT));
    let mut answers = Writer::with_absent(Vec::new(), Compression::Off);
    answers.request(true, 0, 3, 1).unwrap();
    answers.message(&Message::Complete).unwrap();
    let answers = split(&answers.into_sink());
    assert_eq!(read(&forge(answers[..1].to_vec())).1.unwrap_err().cause, Cause::Kind(kind::REQUEST));
    let complete = read(&forge(answers[1..].to_vec())).1.unwrap_err().cause;
    assert_eq!(complete, Cause::Message(MessageError::Form(4)));
    let mut link = Writer::with_absent(Vec::new(), Compression::Off);
    link.hello(&hello()).unwrap();
    link.slots(&slots()).unwrap();
    link.resume(guest::OFFER).unwrap();
    let resumed = forge(split(&link.into_sink()));
    assert_eq!(read(&resumed).1.unwrap_err().cause, Cause::Kind(kind::RESUME));
    // The first round of version 1 has each page.
    let round = forge(records[..7].to_vec());
    assert_eq!(read(&round).1.unwrap_err().cause, Cause::Order(OrderError::FirstRound { came: 9, all: 12 }));

    let mut writer = Writer::new(Vec::new(), Compression::Off);
    let version = Err(WriteError::Version(1));
    assert_eq!(writer.absent(0, 0, &[1]), version);
    assert_eq!(writer.request(true, 0, 0, 1), version);
    assert_eq!(writer.resume(guest::OFFER), version);
    assert_eq!(writer.message(&Message::Complete), version);
    assert_eq!(writer.bytes(), 0);
}

/// Returns the error of the stream after `change`, with checksums that fit.
fn forged(change: impl FnOnce(&mut Vec<Raw>)) -> Cause {
    let mut records = split(&stream_with_absent(Compression::Lz4));
    change(&mut records);
    read(&forge_as(VERSION, records)).1.unwrap_err().cause
}

fn place(records: &[Raw], kind: u8) -> usize {
    records.iter().position(|(header, _)| header.kind == kind).unwrap()
}

fn forged_absent(change: impl FnOnce(&mut Header, &mut Vec<u8>)) -> Cause {
    forged(|records| {
        let at = place(records, kind::ABSENT);
        let (header, payload) = &mut records[at];
        change(header, payload);
        header.length = (payload.len() as u32).into();
    })
}

#[test]
fn forged_absent_pages_are_refused() {
    let no_page = |slot, page, count| Cause::Order(SlotError::NoPage { slot, page, count }.into());
    assert_eq!(forged_absent(|_, payload| payload[0] = 4), no_page(4, 0, 64), "beyond the memslot");
    assert_eq!(forged_absent(|_, payload| payload.extend([0; 8])), no_page(4, 0, 128));
    assert_eq!(forged_absent(|header, _| header.slot = 5.into()), no_page(5, 0, 64));
    assert_eq!(forged_absent(|header, _| header.argument = 1.into()), no_page(4, 1, 64));
    assert_eq!(forged_absent(|header, _| header.argument = (u64::MAX - 63).into()), no_page(4, u64::MAX - 63, 64));
    assert_eq!(forged_absent(|_, payload| payload.clear()), no_page(4, 0, 0));
    assert_eq!(forged_absent(|_, payload| payload.push(0)), Cause::Absent(9));
    assert_eq!(forged_absent(|header, _| header.form = 1), Cause::Reserved("form"));
    let absent = |slot, page| Cause::Order(OrderError::Absent { slot, page });
    let twice = |records: &mut Vec<Raw>| {
        let at = place(records, kind::ABSENT);
        records.insert(at, records[at].clone());
    };
    assert_eq!(forged(twice), absent(4, 0));
    let swapped = |records: &mut Vec<Raw>| {
        let at = place(records, kind::ABSENT);
        records.swap(at, at + 1);
    };
    assert_eq!(forged(swapped), absent(4, 0));
    let misplaced = |record, progress| Cause::Order(OrderError::Misplaced { record, progress });
    let early = |records: &mut Vec<Raw>| {
        let at = place(records, kind::ABSENT);
        let record = records.remove(at);
        records.insert(2, record);
    };
    assert_eq!(forged(early), misplaced("absent pages", Progress::Running));
    // A page after the end, where none is absent; one that comes twice; one that the guest does not have.
    let none = |records: &mut Vec<Raw>| records.retain(|(header, _)| header.kind != kind::ABSENT);
    assert_eq!(forged(none), misplaced("a page", Progress::Ended));
    let again = |records: &mut Vec<Raw>| records.push(records.last().unwrap().clone());
    assert_eq!(forged(again), Cause::Order(SlotError::Repeated { slot: 4, page: 0 }.into()));
    let beyond = |records: &mut Vec<Raw>| records.last_mut().unwrap().0.argument = 2.into();
    assert_eq!(forged(beyond), no_page(4, 2, 1));
}

#[test]
fn a_link_that_is_back_starts_with_what_the_target_knows() {
    let mut writer = Writer::with_absent(Vec::new(), Compression::Off);
    writer.hello(&hello()).unwrap();
    writer.slots(&slots()).unwrap();
    writer.resume(guest::OFFER).unwrap();
    writer.page(0, 5, &noise(5)).unwrap();
    let repeated = OrderError::Slot(SlotError::Repeated { slot: 0, page: 5 });
    assert_eq!(writer.page(0, 5, &noise(5)), Err(repeated.into()));
    assert!(writer.round(false).is_err() && writer.end(guest::OFFER).is_err());
    let stream = writer.into_sink();
    let mut reader = Reader::new(&stream[..], capabilities());
    let records = [(); 2].map(|()| format!("{:?}", reader.next().unwrap().unwrap()));
    assert!(records[0].starts_with("Hello") && records[1].starts_with("Slots"));
    assert_eq!(reader.next().unwrap(), Some(Record::Resume(guest::OFFER)));
    assert_eq!(reader.next().unwrap(), Some(Record::Page { slot: 0, page: 5, bytes: &noise(5) }));
    assert_eq!(reader.next(), Ok(None));
    assert_eq!(reader.version(), 2);
    // Not in the middle of a guest.
    for section in [true, false] {
        let mut late = Writer::with_absent(Vec::new(), Compression::Off);
        late.hello(&hello()).unwrap();
        late.slots(&slots()).unwrap();
        if section {
            late.section(name("vcpu"), 0, 1, &[]).unwrap();
        } else {
            late.round(false).unwrap();
            late.end_round().unwrap();
        }
        let progress = Progress::Running;
        assert_eq!(late.resume(guest::OFFER), Err(OrderError::Misplaced { record: "a resumption", progress }.into()));
    }
}

#[test]
fn a_target_asks_and_says_what_it_lacks() {
    let mut writer = Writer::with_absent(Vec::new(), Compression::Off);
    // More words than a record has room for.
    let words: Vec<_> = (1..=10_000).collect();
    writer.absent(7, 128, &words).unwrap();
    writer.message(&Message::Accepted).unwrap();
    writer.request(true, 7, 200, 1).unwrap();
    writer.request(false, 7, 300, 64).unwrap();
    writer.message(&Message::Complete).unwrap();
    let no_page = |page, count| Err(OrderError::Slot(SlotError::NoPage { slot: 7, page, count }).into());
    assert_eq!(writer.request(true, 7, 200, 0), no_page(200, 0));
    assert_eq!(writer.request(true, 7, u64::MAX, 2), no_page(u64::MAX, 2));
    assert_eq!(writer.absent(7, 3, &[1]), no_page(3, 64));
    let misplaced = OrderError::Misplaced { record: "memslots", progress: Progress::Answers };
    assert_eq!(writer.slots(&slots()), Err(misplaced.into()));
    let stream = writer.into_sink();
    let (mut reader, mut came, mut others) = (Reader::new(&stream[..], capabilities()), Vec::new(), Vec::new());
    while let Some(record) = reader.next().unwrap() {
        match record {
            Record::Absent { slot, page, words } => {
                assert_eq!((slot, page), (7, 128 + 64 * came.len() as u64));
                came.extend(words.iter().map(|word| word.get()));
            }
            other => others.push(format!("{other:?}")),
        }
    }
    assert_eq!(came, words);
    assert_eq!(
        others,
        [
            "Message(Accepted)",
            "Request { waits: true, slot: 7, page: 200, count: 1 }",
            "Request { waits: false, slot: 7, page: 300, count: 64 }",
            "Message(Complete)"
        ]
    );
    let mut records = split(&stream);
    let at = place(&records, kind::REQUEST);
    records[at].0.form = request::AHEAD + 1;
    assert_eq!(read(&forge_as(VERSION, records)).1.unwrap_err().cause, Cause::Reserved("form"));
}
