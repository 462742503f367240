// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each stream sends of a round, and when.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use twofold_migration::plan::{Outcome, Plan, Wanted};
use twofold_migration::precopy::{Cause, Failed, Postcopy};
use twofold_migration::ram::RamError;
use twofold_migration::{Cancel, Runtime};

use crate::noted::{ALL, Memory, SECOND, Sends, lines};

/// Eight pieces for each stream, and at most 16 words in one. A piece is cleared by the stream that sends it.
#[test]
fn streams_send_pieces_in_turn() {
    for (pages, streams, piece) in
        [([64, 64 * 4 - 9], 1, 1), ([64 * 20 - 5, 64 * 28], 2, 3), ([64 * 36, 64 * 100], 1, 16)]
    {
        let memory = Memory::new(&pages);
        let (sent, bytes) = Sends::new(&memory, streams).go();
        assert_eq!(sent.map(|sent| (sent.rounds, sent.pages)), Ok((1, pages.iter().sum())));
        let pieces = |slot: usize| {
            let words = pages[slot].div_ceil(64) as usize;
            (0..words).step_by(piece).map(move |first| (slot, first, piece.min(words - first)))
        };
        let all: Vec<_> = pieces(0).chain(pieces(1)).collect();
        let wanted = (0..streams).flat_map(|stream| all.iter().copied().skip(stream).step_by(streams));
        let cleared = memory.cleared.lock().unwrap();
        let found = cleared.iter().map(|(slot, first, words, _)| (*slot, *first, words.len()));
        assert!(found.eq(wanted), "{cleared:?}");
        for (stream, bytes) in bytes.iter().enumerate() {
            let run = |&(slot, first, words): &(usize, usize, usize)| {
                let (first, end) = (first as u64 * 64, pages[slot].min((first + words) as u64 * 64));
                format!("{}: {first}+{}", 7 + slot, end - first)
            };
            let mut wanted = vec!["round 1".to_owned()];
            wanted.extend(all.iter().skip(stream).step_by(streams).map(run));
            wanted.push("round 2".into());
            assert_eq!(lines(bytes), wanted);
        }
    }
}

/// A later round. The pages are such that each word of them is 1, where there are any.
#[test]
fn a_piece_without_pages_is_not_cleared() {
    let mut memory = Memory::new(&[64 * 32, 64 * 16]);
    memory.full = (0..64).map(|page| (0, page)).collect();
    memory.clock.byte = 10;
    // Pieces have six words.
    memory.written = vec![vec![], vec![(0, 6 * 64), (0, 7 * 64), (0, 11 * 64), (1, 13 * 64)], vec![], vec![(0, 64)]];
    let sends = Sends::new(&memory, 1);
    let (sent, bytes) = sends.go();
    assert_eq!(sent.map(|sent| (sent.rounds, sent.last_pages)), Ok((2, 1)));
    let lines = lines(&bytes[0]);
    let second = lines.iter().position(|line| line == "round 2").unwrap();
    assert_eq!(lines[second + 1..], ["7: 384+1", "7: 448+1", "7: 704+1", "8: 832+1", "round 3", "7: 64+1"]);
    let cleared = memory.cleared.lock().unwrap();
    let again: Vec<_> = cleared[9..].iter().map(|(slot, first, words, _)| (*slot, *first, &words[..])).collect();
    assert_eq!(again, [(0, 6, &[1, 1, 0, 0, 0, 1][..]), (1, 12, &[0, 1, 0, 0][..])]);
}

/// A round that takes a second, at the end of which the last page comes from the store. Four pages have content.
#[test]
fn a_rounds_bandwidth_is_that_of_its_pages_with_content() {
    let mut memory = Memory::new(&[200]);
    memory.full = [10, 11, 70, 140].map(|page| (0, page)).into();
    memory.stored = [69, 70, 130, 140, 199].map(|page| ((0, page), 1_000_000)).into();
    memory.written = vec![vec![], vec![(0, 5)]];
    memory.read = 999_000_000 / 200;
    let sends = Sends { wanted: Wanted { fixed: SECOND / 2, ..ALL }, ..Sends::new(&memory, 1) };
    let (sent, bytes) = sends.go();
    assert_eq!(sent.map(|sent| (sent.rounds, sent.pages, sent.last_pages)), Ok((1, 201, 1)));
    let host = sends.host.borrow();
    let [(200, time, Plan::Stop(forecast))] = &host.rounds[..] else { panic!("{:?}", host.rounds) };
    assert_eq!((*time, forecast.outcome, forecast.downtime), (SECOND, Outcome::Converges, SECOND / 2 + SECOND / 4));
    let first = [
        "round 1",
        "7: 10 has 1",
        "7: 11 has 1",
        "7: 0+10",
        "7: 12+52",
        "7: 64+5",
        "7: 71+57",
        "7: 128+2",
        "7: 131+9",
        "7: 141+51",
        "7: 192+7",
        "7: 69+1",
        "7: 70 has 1",
        "7: 130+1",
        "7: 140 has 1",
        "7: 199+1",
        "round 2",
        "7: 5+1",
    ];
    assert_eq!(lines(&bytes[0]), first);
}

#[test]
fn a_stream_asks_a_store_for_eight_pages_at_a_time() {
    let mut memory = Memory::new(&[64]);
    memory.stored = (0..64).map(|page| ((0, page), 1_000_000)).collect();
    let (sent, bytes) = Sends::new(&memory, 1).go();
    assert_eq!(sent.map(|sent| sent.pages), Ok(64));
    assert_eq!(lines(&bytes[0]).len(), 66, "each page comes by itself");
    assert_eq!(*memory.away.lock().unwrap(), (0, 8));
}

#[test]
fn a_store_has_as_long_as_the_memory_says() {
    for (takes, good) in [(2_000_000, true), (2_000_001, false)] {
        let mut memory = Memory::new(&[64]);
        memory.stored = [((0, 3), takes)].into();
        let (sent, _) = Sends::new(&memory, 1).go();
        let silent = RamError::Silent { slot: 0, page: 3, others: 0, waited: Duration::from_millis(2) };
        let silent = Failed { cause: Cause::Ram(silent), stream: Some(0) };
        assert_eq!(sent.map(|sent| sent.pages), if good { Ok(64) } else { Err(silent) });
    }
}

/// The migration is cancelled by a page's read, or by a look at a page in the store.
#[test]
fn a_round_that_is_cancelled_reads_and_waits_no_more() {
    for (stored, call, reads) in [(false, 10, 64), (true, 10, 8)] {
        let (calls, cancel) = (AtomicU64::new(0), Cancel::new());
        let hook = || {
            if calls.fetch_add(1, Ordering::Relaxed) == call {
                cancel.cancel();
            }
        };
        let mut memory = Memory::new(&[640]);
        if stored {
            memory.stored = (0..640).map(|page| ((0, page), 1_000_000)).collect();
        }
        memory.hook = Some(&hook);
        let (sent, _) = Sends { cancel: &cancel, ..Sends::new(&memory, 1) }.go();
        assert_eq!(sent, Err(Failed { cause: Cause::Cancelled, stream: Some(0) }));
        assert_eq!(memory.reads.load(Ordering::Relaxed), reads);
        assert_eq!(memory.away.lock().unwrap().0, 0, "what was asked for is forgotten");
    }
}

/// A page with content in each word of 64, and a byte a second. No limit is less than that.
#[test]
fn a_stream_waits_after_each_word_until_its_limit_allows_more() {
    for limit in [0, 1, 1000] {
        let mut memory = Memory::new(&[64 * 3]);
        memory.full = [3, 64, 190].map(|page| (0, page)).into();
        let (sent, _) = Sends { limit: Some(limit), ..Sends::new(&memory, 1) }.go();
        assert_eq!(sent.map(|sent| sent.pages), Ok(192));
        let before = memory.cleared.lock().unwrap()[0].3;
        let (mut due, waits) = (Duration::ZERO, memory.clock.waits.lock().unwrap());
        assert_eq!(waits.len(), 3);
        for (time, sent) in &*waits {
            due += *time;
            assert_eq!(due, (sent - before) as u32 * SECOND / limit.max(1) as u32, "limit {limit}");
        }
    }
}

/// A link that carries a byte in a nanosecond.
#[test]
fn a_stream_that_is_no_faster_than_its_limit_does_not_wait() {
    for (limit, waits) in [(500_000_000, 3), (1_000_000_000, 0), (2_000_000_000, 0)] {
        let mut memory = Memory::new(&[64 * 3]);
        memory.full = [3, 64, 190].map(|page| (0, page)).into();
        memory.clock.byte = 1;
        let (sent, _) = Sends { limit: Some(limit), ..Sends::new(&memory, 1) }.go();
        assert_eq!(sent.map(|sent| sent.pages), Ok(192));
        assert_eq!(memory.clock.waits.lock().unwrap().len(), waits, "limit {limit}");
    }
}

/// Each word of zero pages takes half a second, and pieces have four. What was read comes with the flush.
#[test]
fn a_stream_that_reads_zero_pages_sends_something_each_second() {
    let mut memory = Memory::new(&[64 * 32]);
    memory.read = SECOND.as_nanos() as u64 / 128;
    let (sent, bytes) = Sends::new(&memory, 1).go();
    assert_eq!(sent.map(|sent| sent.pages), Ok(64 * 32));
    let flushes: Vec<_> = memory.clock.flushes.lock().unwrap().iter().map(|at| at.as_millis() as u64).collect();
    // The hello comes before, and then the ends of both rounds and of the stream.
    let wanted: Vec<_> = (0..=15_000).step_by(1500).chain([16_000; 3]).collect();
    assert_eq!(flushes, wanted);
    let ends: Vec<u64> = (1..=32).filter(|end| end % 3 == 0 || end % 4 == 0).collect();
    let mut wanted = vec!["round 1".to_owned(), format!("7: 0+{}", 64 * ends[0])];
    wanted.extend(ends.windows(2).map(|ends| format!("7: {}+{}", 64 * ends[0], 64 * (ends[1] - ends[0]))));
    wanted.push("round 2".into());
    assert_eq!(lines(&bytes[0]), wanted);
}

/// Words of which only the first page is left, after words without pages. No more rounds are allowed.
#[test]
fn absent_pages_are_sent_from_the_first_word_to_the_last() {
    let mut memory = Memory::new(&[64, 64 * 8, 64]);
    memory.full = (0..64).map(|page| (0, page)).collect();
    memory.clock.byte = 10;
    let left = vec![(0, 0), (1, 64 * 2), (1, 64 * 4 + 1), (1, 64 * 5)];
    memory.written = vec![vec![], left];
    let wanted = Wanted { rounds: 1, ..ALL };
    let sends = Sends { wanted, postcopy: Postcopy::IfNeeded, ..Sends::new(&memory, 1) };
    let (sent, bytes) = sends.go();
    assert_eq!(sent.map(|sent| (sent.rounds, sent.last_pages)), Ok((1, 0)));
    let lines = lines(&bytes[0]);
    let last = lines.iter().position(|line| line == "round 2").unwrap();
    assert_eq!(lines[last + 1..], ["7: 0 absent [1]", "8: 128 absent [1, 0, 2, 1]"]);
}

/// A page that comes, or the first that is asked for, begins the time.
#[test]
fn a_store_is_silent_from_the_first_page_that_was_asked_for() {
    let mut memory = Memory::new(&[2]);
    memory.stored = [((0, 0), u64::MAX / 2), ((0, 1), u64::MAX / 2)].into();
    memory.read = 1_000_000;
    let (sent, _) = Sends::new(&memory, 1).go();
    let waited = Duration::from_millis(2);
    let silent = RamError::Silent { slot: 0, page: 0, others: 1, waited };
    assert_eq!(sent, Err(Failed { cause: Cause::Ram(silent), stream: Some(0) }));
    assert_eq!(memory.clock.now(), Duration::from_millis(1) + waited);
}

/// Pieces of a snapshot are those of one stream: four words here.
#[test]
fn a_snapshot_has_a_record_for_the_zero_pages_of_a_piece() {
    let memory = Memory::new(&[64 * 32]);
    let bytes = Sends::new(&memory, 1).save().unwrap();
    let mut wanted = vec!["round 1".to_owned()];
    wanted.extend((0..8).map(|piece| format!("7: {}+256", piece * 256)));
    assert_eq!(lines(&bytes), wanted);
}
