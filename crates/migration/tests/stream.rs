// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is written is read; what was cut, changed, repeated, put in another order or forged is refused, where it is, and
//! no part of it is called complete.

mod guest;

use std::collections::BTreeMap;

use guest::{PAGE, Raw, capabilities, forge, hello, join, name, noise, read, read_as, slots, split, stream, text};
use proptest::prelude::*;
use twofold_migration::stream::wire::{Header, kind, page};
use twofold_migration::stream::{
    Capabilities, Cause, Compression, Feature, Hello, HelloError, Message, MessageError, OrderError, PageError,
    Progress, ReadError, Reader, Record, Refusal, SlotError, WriteError, Writer,
};

#[test]
fn each_form_of_page_comes_as_it_was_sent() {
    let [whole, lz4] = [Compression::Off, Compression::Lz4].map(stream);
    let (came, result) = read(&lz4);
    assert_eq!(result, Ok(()));
    assert_eq!(came.pages[&(4, 1)], text(1));
    assert_eq!(came.pages[&(0, 5)], text(0x55));
    assert_eq!(came.pages[&(0, 9)], noise(10));
    assert_eq!(came.pages.len(), 6, "the others are zero, page 0 since the second round");
    assert_eq!(came.offer, Some(guest::OFFER));
    assert_eq!(read(&whole), (came, result), "compression changes no record that comes");
    let forms = |stream: &[u8]| {
        let pages = split(stream).into_iter().filter(|(header, _)| header.kind == kind::PAGE);
        pages.map(|(header, _)| header.form).collect::<Vec<_>>()
    };
    let (z, w, l) = (page::ZERO, page::WHOLE, page::LZ4);
    assert_eq!(forms(&whole), [w, w, z, w, w, w, w, z, w]);
    assert_eq!(forms(&lz4), [l, l, z, w, w, w, l, z, w]);
}

/// A source whose reads return as few bytes as it likes.
struct Trickle<'a>(&'a [u8], usize);

impl embedded_io::ErrorType for Trickle<'_> {
    type Error = core::convert::Infallible;
}

impl embedded_io::Read for Trickle<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize, Self::Error> {
        self.1 = self.1 % 7 + 1;
        let count = self.1.min(bytes.len()).min(self.0.len());
        let (now, later) = self.0.split_at(count);
        bytes[..count].copy_from_slice(now);
        self.0 = later;
        Ok(count)
    }
}

#[test]
fn a_source_may_return_few_bytes_at_once() {
    let stream = stream(Compression::Lz4);
    let (mut reader, mut records) = (Reader::new(Trickle(&stream, 0), capabilities()), 0);
    while reader.next().unwrap().is_some() {
        records += 1;
    }
    assert_eq!(records, split(&stream).len());
}

#[test]
fn a_cut_stream_is_refused_wherever_it_is_cut() {
    let whole = stream(Compression::Lz4);
    for length in sampled(&whole) {
        let (came, result) = read(&whole[..length]);
        let error = result.unwrap_err();
        assert_eq!(error.cause, Cause::Cut, "cut at {length}");
        assert!(error.offset <= length as u64 && came.offer.is_none());
    }
}

#[test]
fn a_changed_byte_is_refused_wherever_it_is() {
    let whole = stream(Compression::Lz4);
    let starts = starts(&whole);
    for at in sampled(&whole) {
        let mut changed = whole.clone();
        changed[at] ^= 1 << (at % 8);
        let (came, result) = read(&changed);
        let Err(error) = result else {
            // An lz4 block may be written in more than one way.
            assert_eq!(came, read(&whole).0, "byte {at}");
            continue;
        };
        let record = starts.iter().rposition(|&start| start <= at as u64).unwrap_or(0);
        assert_eq!(error.record, record as u64, "byte {at}: {error}");
        assert_eq!(error.offset, if record == 0 { 0 } else { starts[record] }, "byte {at}: {error}");
    }
}

/// Returns the offsets of all bytes in headers, and of some in payloads.
fn sampled(stream: &[u8]) -> Vec<usize> {
    let starts = starts(stream);
    let in_header = |at: usize| starts.iter().any(|&start| (start..start + 32).contains(&(at as u64)));
    (0..stream.len()).filter(|&at| at < 1000 || at % 61 == 0 || in_header(at)).collect()
}

/// Returns the offset of each record.
fn starts(stream: &[u8]) -> Vec<u64> {
    let sizes = split(stream).into_iter().map(|(_, payload)| (size_of::<Header>() + payload.len()) as u64);
    sizes.scan(16, |next, size| Some(core::mem::replace(next, *next + size))).collect()
}

#[test]
fn a_record_that_is_repeated_left_out_or_swapped_is_refused() {
    let records = split(&stream(Compression::Lz4));
    for at in 0..records.len() {
        let refused = |records: Vec<Raw>, record: usize| {
            let (came, result) = read(&join(&records));
            let error = result.unwrap_err();
            assert_eq!((error.cause, error.record), (Cause::Chain, record as u64));
            assert!(came.offer.is_none() || record == records.len() - 1, "the end was repeated");
        };
        let mut repeated = records.clone();
        repeated.insert(at, records[at].clone());
        refused(repeated, at + 1);
        if at + 1 < records.len() {
            let mut left_out = records.clone();
            left_out.remove(at);
            refused(left_out, at);
            let mut swapped = records.clone();
            swapped.swap(at, at + 1);
            refused(swapped, at);
        }
    }
}

#[test]
fn a_record_of_another_stream_is_refused() {
    let mut other = hello();
    other.migration[0] ^= 1;
    let mut writer = Writer::new(Vec::new(), Compression::Off);
    writer.hello(&other).unwrap();
    writer.slots(&slots()).unwrap();
    let (other, ours) = (split(&writer.into_sink()), split(&stream(Compression::Off)));
    let spliced = join(&[&other[..1], &ours[1..]].concat());
    assert_eq!(read(&spliced).1.unwrap_err(), ReadError { record: 1, offset: 192, cause: Cause::Chain });
}

/// Returns the error of the stream after `change`, with checksums that fit.
fn forged(change: impl FnOnce(&mut Vec<Raw>)) -> Cause {
    let mut records = split(&stream(Compression::Lz4));
    change(&mut records);
    let (came, result) = read(&forge(records));
    assert!(came.offer.is_none());
    result.unwrap_err().cause
}

/// Returns the places of the records of a kind.
fn places(records: &[Raw], kind: u8) -> Vec<usize> {
    (0..records.len()).filter(|&at| records[at].0.kind == kind).collect()
}

/// Returns the error after a change of the first record of a kind.
fn forged_first(kind: u8, change: impl FnOnce(&mut Header, &mut Vec<u8>)) -> Cause {
    forged(|records| {
        let at = places(records, kind)[0];
        let (header, payload) = &mut records[at];
        change(header, payload);
    })
}

#[test]
fn a_forged_record_out_of_its_place_is_refused() {
    let misplaced = |record, progress| Cause::Order(OrderError::Misplaced { record, progress });
    let moved = |kind, to: usize| {
        forged(|records| {
            let at = places(records, kind)[0];
            let record = records.remove(at);
            records.insert(to, record);
        })
    };
    assert_eq!(forged(|records| drop(records.remove(0))), misplaced("memslots", Progress::Start));
    assert_eq!(forged(|records| drop(records.remove(1))), misplaced("a section", Progress::Greeted));
    assert_eq!(forged(|records| records.insert(2, records[0].clone())), misplaced("a hello", Progress::Running));
    assert_eq!(forged(|records| records.insert(2, records[1].clone())), misplaced("memslots", Progress::Running));
    assert_eq!(moved(kind::PAGE, 2), misplaced("a page", Progress::Running));
    assert_eq!(moved(kind::ROUND, 4), misplaced("a round", Progress::Section));
    assert_eq!(moved(kind::ROUND_END, 2), misplaced("a round's end", Progress::Running));
    assert_eq!(moved(kind::SECTION, 6), misplaced("a section's part", Progress::Running));
    assert_eq!(moved(kind::END, 13), misplaced("an end", Progress::Running));
    assert_eq!(moved(kind::END, 6), misplaced("an end", Progress::Round));
    assert_eq!(moved(kind::END, 0), misplaced("an end", Progress::Start));
    let mut records = split(&stream(Compression::Off));
    records.push(records[5].clone());
    assert_eq!(read(&forge(records)).1.unwrap_err().cause, misplaced("a round", Progress::Ended));
}

#[test]
fn forged_rounds_and_pages_are_refused() {
    let order = |cause: OrderError| Cause::Order(cause);
    let change = |kind, field: fn(&mut Header)| forged_first(kind, |header, _| field(header));
    let round = change(kind::ROUND, |header| header.argument = 2.into());
    assert_eq!(round, order(OrderError::Round { found: 2, wanted: 1 }));
    let end = change(kind::ROUND_END, |header| header.argument = 11.into());
    assert_eq!(end, order(OrderError::RoundEnd { said: 11, came: 12 }));
    let slot = |cause: SlotError| order(cause.into());
    let no_page = |slot_number, page, count| slot(SlotError::NoPage { slot: slot_number, page, count });
    assert_eq!(change(kind::PAGE, |header| header.slot = 5.into()), no_page(5, 0, 1));
    assert_eq!(change(kind::PAGE, |header| header.argument = 2.into()), no_page(4, 2, 1));
    assert_eq!(change(kind::PAGE, |header| header.argument = u64::MAX.into()), no_page(4, u64::MAX, 1));
    assert_eq!(change(kind::PAGE, |header| header.argument = 1.into()), slot(SlotError::Repeated { slot: 4, page: 1 }));
    assert_eq!(change(kind::PAGE, |header| header.form = 3), Cause::Page(PageError::Form(3)));
    let wrong_sum = change(kind::PAGE, |header| header.content = 1.into());
    assert!(matches!(wrong_sum, Cause::Checksum { wanted: 1, .. }), "{wrong_sum}");
    // The zero pages, one too few and one too many.
    let zeros = |count: u32| forged(|records| records[8].0.length = count.into());
    assert_eq!(zeros(6), order(OrderError::RoundEnd { said: 12, came: 11 }));
    assert_eq!(zeros(8), no_page(0, 3, 8));
    assert_eq!(zeros(0), no_page(0, 3, 0));
    assert_eq!(zeros(u32::MAX), no_page(0, 3, u32::MAX.into()));
    let left_out = forged(|records| {
        records.remove(8);
        let end = places(records, kind::ROUND_END)[0];
        records[end].0.argument = 5.into();
    });
    assert_eq!(left_out, order(OrderError::FirstRound { came: 5, all: 12 }));
    // Bytes that are no page.
    let bytes = |at: usize, bytes: Vec<u8>| {
        forged(|records| {
            records[at].0.length = (bytes.len() as u32).into();
            records[at].1 = bytes;
        })
    };
    let length = |form, length| Cause::Page(PageError::Length { form, length, size: PAGE });
    assert_eq!(bytes(9, vec![1; PAGE - 1]), length(page::WHOLE, PAGE - 1));
    assert_eq!(bytes(6, vec![1; PAGE]), length(page::LZ4, PAGE));
    assert_eq!(bytes(6, vec![]), length(page::LZ4, 0));
    let shorter = lz4_block(&[7; PAGE - 1]);
    let longer = lz4_block(&[7; PAGE + 1]);
    for block in [vec![0], vec![0xff; 40], shorter, longer] {
        let length = block.len();
        assert_eq!(bytes(6, block), Cause::Page(PageError::Lz4 { length, size: PAGE }));
    }
}

/// Returns an lz4 block of a byte that repeats, made by hand: one literal, a match, and literals at the end.
fn lz4_block(bytes: &[u8]) -> Vec<u8> {
    let matched = bytes.len() - 1 - 12 - 4 - 15;
    let mut block = vec![0x1f, bytes[0], 1, 0];
    block.extend(std::iter::repeat_n(255, matched / 255));
    block.push((matched % 255) as u8);
    block.push(12 << 4);
    block.extend_from_slice(&bytes[..12]);
    block
}

#[test]
fn forged_heads_are_refused() {
    // The hello: the model's name, the memory, the number of features, the stream, the page size, the addresses.
    let hello = |at: usize, bytes: &'static [u8]| {
        forged_first(kind::HELLO, |_, payload| payload[at..at + bytes.len()].copy_from_slice(bytes))
    };
    let number = |what, value| Cause::Hello(HelloError::Number { what, value });
    assert_eq!(hello(16, b"V"), Cause::Hello(HelloError::Name));
    assert_eq!(hello(40, &[1]), number("memory", 0xc001));
    assert_eq!(hello(40, &[0, 0, 0, 0, 0, 0, 0, 0]), number("memory", 0));
    assert_eq!(hello(46, &[1]), number("memory", (1 << 48) + 0xc000));
    assert_eq!(hello(48, &[0]), number("vCPUs", 0));
    assert_eq!(hello(52, &[3]), Cause::Hello(HelloError::Size(144)));
    assert_eq!(hello(52, &[0xff; 4]), Cause::Hello(HelloError::Size(144)));
    assert_eq!(hello(56, &[1]), number("stream", 1));
    assert_eq!(hello(58, &[0]), number("streams", 0));
    assert_eq!(hello(60, &[13]), number("page shift", 13));
    assert_eq!(hello(60, &[64]), number("page shift", 64));
    assert_eq!(hello(61, &[255]), number("address bits", 255));
    assert_eq!(hello(62, &[9]), number("reserved bytes", 9));
    assert_eq!(hello(64, b"z"), Cause::Hello(HelloError::Order(name("id_aa64isar0.aes"))));
    assert_eq!(hello(96, &[2]), number("exact", 2));
    // Memslots: reserved bits, a size that overlaps the next, a sum that is not the hello's.
    let slots = |at: usize, byte| forged_first(kind::SLOTS, |_, payload| payload[at] = byte);
    let slot = |cause: SlotError| Cause::Order(cause.into());
    assert_eq!(slots(2, 2), slot(SlotError::Reserved(4)));
    assert_eq!(slots(7, 1), slot(SlotError::Reserved(4)));
    assert_eq!(slots(16, 3), slot(SlotError::Sum { found: 13, wanted: 12 }));
    assert_eq!(slots(18, 5), slot(SlotError::Fit { number: 0, first: 0x4_0000, pages: 10 }));
    // Sections.
    let head = |at: usize, byte| forged_first(kind::SECTION, |_, payload| payload[at] = byte);
    assert_eq!(head(0, b' '), Cause::Section(40));
    let part = |offset, length, wanted, left| Cause::Order(OrderError::Part { offset, length, wanted, left });
    assert_eq!(head(34, 0), part(0, 65536, 0, 8560));
    assert_eq!(forged(|records| records.swap(3, 4)), part(65536, 8560, 0, 74096));
    let twice = forged(|records| {
        let section = records[2..5].to_vec();
        records.splice(2..2, section);
    });
    assert_eq!(twice, Cause::Order(OrderError::Section { name: name("kernel"), instance: 0 }));
    // Messages, unused fields, kinds, lengths.
    let end = |change: fn(&mut Header, &mut Vec<u8>)| forged_first(kind::END, change);
    assert_eq!(end(|_, payload| payload[16..].fill(0xff)), Cause::End(24));
    let message = |form: u8| end_as_message(|header| header.form = form);
    assert_eq!(message(4), Cause::Message(MessageError::Form(4)));
    assert_eq!(message(0), Cause::Message(MessageError::Payload { form: 0, length: 24 }));
    assert_eq!(
        message(2),
        Cause::Order(OrderError::Misplaced { record: "a message of a target", progress: Progress::Stopped })
    );
    assert_eq!(forged_first(kind::HELLO, |header, _| header.slot = 1.into()), Cause::Reserved("slot"));
    assert_eq!(forged_first(kind::ROUND, |header, _| header.form = 2), Cause::Reserved("form"));
    assert_eq!(forged_first(kind::END, |header, _| header.argument = 1.into()), Cause::Reserved("argument"));
    assert_eq!(forged_first(kind::SLOTS, |header, _| header.kind = 10), Cause::Kind(10));
    assert_eq!(forged_first(kind::SLOTS, |header, _| header.length = u32::MAX.into()), Cause::Length(u32::MAX));
    let long = forged_first(kind::ROUND, |header, payload| {
        header.length = 1.into();
        payload.push(0);
    });
    assert_eq!(long, Cause::Reserved("length"));
}

/// Returns the error after the end was made a message.
fn end_as_message(change: impl FnOnce(&mut Header)) -> Cause {
    forged_first(kind::END, |header, _| {
        header.kind = kind::MESSAGE;
        change(header);
    })
}

/// A hello with a different guest, and what a target says to it.
fn refused(change: impl FnOnce(&mut Hello), here: Capabilities) -> String {
    let mut hello = hello();
    change(&mut hello);
    let mut writer = Writer::new(Vec::new(), Compression::Off);
    writer.hello(&hello).unwrap();
    let error = read_as(&writer.into_sink(), here).1.unwrap_err();
    assert!(matches!(&error.cause, Cause::Refused(refusals) if !refusals.is_empty()));
    error.to_string()
}

#[test]
fn a_target_refuses_by_name_and_figure() {
    let prefix = "record 0, which starts at byte 0: ";
    let small = Capabilities { memory: 0x8000, vcpus: 1, ..capabilities() };
    assert_eq!(
        refused(|_| (), small),
        format!(
            "{prefix}the guest has 2 vCPUs, and this target at most 1; \
             the guest has 49152 bytes of memory, and this target at most 32768"
        )
    );
    assert_eq!(
        refused(|hello| hello.model = name("virt-2"), capabilities()),
        format!("{prefix}the guest's machine is virt-2, and this target builds virt-1")
    );
    assert_eq!(
        refused(|hello| (hello.page_shift, hello.ipa_bits, hello.memory) = (16, 52, 1 << 16), capabilities()),
        format!(
            "{prefix}the guest's pages have 65536 bytes, and those of this target 4096; \
             the guest has 52 bits of physical address, and this target at most 48"
        )
    );
    let features = |features: &[(&str, u64, bool)]| {
        let feature = |&(text, value, exact): &(&str, u64, bool)| Feature { name: name(text), value, exact };
        let features: Vec<_> = features.iter().map(feature).collect();
        refused(|hello| hello.features = features, capabilities())
    };
    assert_eq!(
        features(&[("async-fault", 1, false), ("id_aa64isar0.aes", 3, false), ("sve", 0, true)]),
        format!(
            "{prefix}the guest was given async-fault with value 1, and this target does not have it; \
             the guest was given id_aa64isar0.aes with value 3, and this target has 2; \
             the guest was given sve with value 0, and this target has 1"
        )
    );
    let exactly = Capabilities { ipa_bits: 40, vcpus: 2, memory: 0xc000, ..capabilities() };
    assert_eq!(hello().refusals(&exactly), [] as [Refusal; 0], "what is just enough is enough");
}

#[test]
fn a_target_answers_by_messages_alone() {
    let taken = Message::Taken(guest::OFFER);
    let long = "é".repeat(400);
    let mut writer = Writer::new(Vec::new(), Compression::Off);
    for message in [Message::Accepted, taken.clone(), Message::Refused(long)] {
        writer.message(&message).unwrap();
    }
    let stream = writer.into_sink();
    let mut reader = Reader::new(&stream[..], capabilities());
    assert_eq!(reader.next().unwrap(), Some(Record::Message(Message::Accepted)));
    assert_eq!(reader.next().unwrap(), Some(Record::Message(taken)));
    assert_eq!(reader.next().unwrap(), Some(Record::Message(Message::Refused("é".repeat(256)))), "512 bytes at most");
    assert_eq!(reader.next().unwrap(), None);
}

#[test]
fn a_source_that_keeps_the_guest_says_why() {
    let mut writer = Writer::new(Vec::new(), Compression::Off);
    writer.hello(&hello()).unwrap();
    writer.slots(&slots()).unwrap();
    writer.round(false).unwrap();
    writer.message(&Message::Withdrawn("cancelled".into())).unwrap();
    let misplaced = WriteError::Order(OrderError::Misplaced { record: "a page", progress: Progress::Withdrawn });
    assert_eq!(writer.page(0, 0, &[0; PAGE]), Err(misplaced));
    let (came, result) = read(&writer.into_sink());
    assert_eq!((result, came.offer), (Ok(()), None));
}

#[test]
fn a_source_that_takes_its_guest_back_says_so() {
    let sent = stream(Compression::Off);
    let mut records = split(&sent);
    let mut writer = Writer::new(Vec::new(), Compression::Off);
    writer.message(&Message::Taken(guest::OFFER)).unwrap();
    records.extend(split(&writer.into_sink()));
    let (came, result) = read(&forge(records));
    assert_eq!((result, came.lines.len()), (Ok(()), split(&sent).len() + 1));
}

#[test]
fn a_writer_refuses_what_a_reader_would() {
    let mut writer = Writer::new(Vec::new(), Compression::Lz4);
    let bad = Hello { vcpus: 0, ..hello() };
    assert_eq!(writer.hello(&bad), Err(HelloError::Number { what: "vCPUs", value: 0 }.into()));
    let misplaced = OrderError::Misplaced { record: "a page", progress: Progress::Start };
    assert_eq!(writer.page(0, 0, &noise(1)), Err(misplaced.into()));
    assert!(writer.end(guest::OFFER).is_err());
    assert_eq!(writer.bytes(), 0, "nothing was written for a call that failed");
    writer.hello(&hello()).unwrap();
    writer.slots(&slots()).unwrap();
    writer.round(true).unwrap();
    writer.page(0, 4, &noise(1)).unwrap();
    let before = writer.bytes();
    let repeated = OrderError::Slot(SlotError::Repeated { slot: 0, page: 4 });
    assert_eq!(writer.zero_pages(0, 0, 10), Err(repeated.into()));
    assert_eq!(writer.page(0, 5, &[1; 100]), Err(WriteError::PageSize { found: 100, wanted: PAGE }));
    assert_eq!(writer.end_round(), Err(OrderError::FirstRound { came: 1, all: 12 }.into()));
    assert_eq!(writer.bytes(), before);
    // The failed call for zero pages has not taken any of them.
    for (slot, page, count) in [(4, 0, 2), (0, 0, 4), (0, 5, 5)] {
        writer.zero_pages(slot, page, count).unwrap();
    }
    assert_eq!(writer.end_round(), Ok(12));
    writer.end(guest::OFFER).unwrap();
    assert_eq!(read(&writer.into_sink()).1, Ok(()));
}

/// A page with one byte more in a run is one byte shorter after compression.
#[test]
fn a_page_that_compression_does_not_make_smaller_is_sent_whole() {
    let sent = |same: usize| {
        let mut page = noise(77);
        page[..same].fill(1);
        let mut writer = Writer::new(Vec::new(), Compression::Lz4);
        writer.hello(&hello()).unwrap();
        writer.slots(&slots()).unwrap();
        writer.round(false).unwrap();
        writer.page(0, 0, &page).unwrap();
        let (header, payload) = split(&writer.into_sink()).pop().unwrap();
        (header.form, payload.len())
    };
    let shorter = (0..100).find(|&same| sent(same).0 == page::LZ4).unwrap();
    assert_eq!((sent(shorter - 1), sent(shorter)), ((page::WHOLE, PAGE), (page::LZ4, PAGE - 1)));
}

#[test]
fn a_full_sink_ends_the_stream() {
    let mut space = [0; 300];
    let mut writer = Writer::new(&mut space[..], Compression::Off);
    writer.hello(&hello()).unwrap();
    writer.slots(&slots()).unwrap();
    let Err(WriteError::Sink(why)) = writer.section(name("kernel"), 0, 1, &[1; 1000]) else { panic!("it fits") };
    assert_eq!(writer.flush(), Err(WriteError::Sink(why)), "it stays broken");
    assert!(writer.round(false).is_err());
}

proptest! {
    /// Pages in any order in any rounds, of any content: memory at the end is what it was at the source.
    #[test]
    fn memory_arrives(
        rounds in proptest::collection::vec(proptest::collection::btree_map(0_u64..10, (0_u8..3, any::<u8>()), 0..10), 1..5),
        lz4: bool,
    ) {
        let mut memory = BTreeMap::new();
        let compression = if lz4 { Compression::Lz4 } else { Compression::Off };
        let mut writer = Writer::new(Vec::new(), compression);
        writer.hello(&hello()).unwrap();
        writer.slots(&slots()).unwrap();
        writer.round(false).unwrap();
        writer.zero_pages(0, 0, 10).unwrap();
        writer.zero_pages(4, 0, 2).unwrap();
        writer.end_round().unwrap();
        for (number, round) in rounds.iter().enumerate() {
            writer.round(number + 1 == rounds.len()).unwrap();
            for (&page, &(content, seed)) in round.iter().rev() {
                let bytes = match content {
                    0 => vec![0; PAGE],
                    1 => text(seed | 0x80),
                    _ => noise(seed.into()),
                };
                writer.page(0, page, &bytes).unwrap();
                memory.insert((0, page), bytes);
            }
            writer.end_round().unwrap();
        }
        writer.end(guest::OFFER).unwrap();
        memory.retain(|_, bytes| bytes.iter().any(|&byte| byte != 0));
        let (came, result) = read(&writer.into_sink());
        prop_assert_eq!(result, Ok(()));
        prop_assert_eq!(came.offer, Some(guest::OFFER));
        prop_assert_eq!(came.pages, memory);
    }
}

#[test]
fn a_stream_of_nothing_is_refused() {
    assert_eq!(read(&[]).1.unwrap_err(), ReadError { record: 0, offset: 0, cause: Cause::Cut });
    assert_eq!(read(b"GET / HTTP/1.1\r\n").1.unwrap_err().cause, Cause::Magic(*b"GET / HT"));
    let mut later = stream(Compression::Off);
    later[8] = 3;
    let error = read(&later).1.unwrap_err();
    assert_eq!(error.cause, Cause::Version(3));
    assert_eq!(
        error.to_string(),
        "record 0, which starts at byte 0: a stream of version 3, and this target reads 1 to 2"
    );
}
