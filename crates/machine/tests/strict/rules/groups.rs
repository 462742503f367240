// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Contiguous groups: 16 pages with the 4 KiB granule, in the table of level 3.

use twofold_machine::strict::{Bbm, Breach, Rule, Withdrawn};
use twofold_stage2::Attributes;

use super::hand::{ACCESSED, DBM, Hand, Machinery, READ, READ_WRITE, ipa, pages};
use super::{allowed, reported};
use crate::world::MODERN;

const CONTIGUOUS: u64 = 1 << 52;
const LENGTH: u64 = 16;

/// Writes the leaves of the first group, under one lock.
fn group(hand: &Hand, raw: impl Fn(u64) -> u64) {
    let entry = hand.entry(0);
    hand.locked(entry, || {
        (0..LENGTH)
            .for_each(|index| hand.write_entry(entry + index * 8, raw(index), std::sync::atomic::Ordering::Release));
    });
    hand.dsb(twofold_stage2::platform::Domain::IshSt);
}

/// A group that maps the frames from the first on.
fn make(hand: &Hand, attributes: &Attributes) {
    group(hand, |index| hand.leaf(index, attributes) | CONTIGUOUS);
}

/// The complete sequence for all pages of the group.
fn flush(hand: &Hand) {
    (0..LENGTH).for_each(|index| hand.flush(ipa(index)));
}

fn on(bbm: Bbm, body: impl Fn(&Hand) + Sync) -> Result<(), Breach> {
    Machinery::new(MODERN, bbm, 2, 1).alone(&body)
}

#[test]
fn a_group_that_is_made_and_unmapped_as_a_whole_is_allowed() {
    allowed(|hand| {
        make(hand, &READ_WRITE);
        group(hand, |_| 0);
        flush(hand);
        hand.expect_flushed(pages(0..LENGTH), Withdrawn::Everything);
        hand.make(hand.entry(3), hand.leaf(40, &READ_WRITE));
    });
}

#[test]
fn a_group_that_is_not_whole_is_reported() {
    // One leaf alone; one that is missing, of another frame, of another access, without the bit, with DBM.
    reported(Rule::MixedGroup, |hand| hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE) | CONTIGUOUS));
    for odd in [
        |_: &Hand| 0,
        |hand: &Hand| hand.leaf(9, &READ_WRITE) | CONTIGUOUS,
        |hand: &Hand| hand.leaf(5, &READ) | CONTIGUOUS,
        |hand: &Hand| hand.leaf(5, &READ_WRITE),
        |hand: &Hand| hand.leaf(5, &READ_WRITE) | CONTIGUOUS | DBM,
    ] {
        reported(Rule::MixedGroup, |hand| {
            group(hand, |index| if index == 5 { odd(hand) } else { hand.leaf(index, &READ_WRITE) | CONTIGUOUS });
        });
    }
    // Its memory is not aligned to its size.
    reported(Rule::MixedGroup, |hand| group(hand, |index| hand.leaf(index + 1, &READ_WRITE) | CONTIGUOUS));
    // A part of it is unmapped.
    reported(Rule::MixedGroup, |hand| {
        make(hand, &READ_WRITE);
        hand.make(hand.entry(7), 0);
    });
}

#[test]
fn access_flags_that_differ_are_allowed() {
    allowed(|hand| {
        let accessed = |index| if index % 3 == 0 { ACCESSED } else { 0 };
        group(hand, |index| hand.leaf(index, &READ_WRITE) & !ACCESSED | CONTIGUOUS | accessed(index));
    });
}

#[test]
fn a_group_that_loses_access_as_a_whole_is_allowed() {
    allowed(|hand| {
        make(hand, &READ_WRITE);
        make(hand, &READ);
        flush(hand);
        hand.expect_flushed(pages(0..LENGTH), Withdrawn::Writes);
    });
}

/// A TLB may hold each leaf by itself.
#[test]
fn a_flush_of_one_page_of_a_group_is_reported() {
    reported(Rule::StillCached, |hand| {
        make(hand, &READ_WRITE);
        make(hand, &READ);
        hand.flush(ipa(0));
        hand.expect_flushed(pages(0..LENGTH), Withdrawn::Writes);
    });
}

/// A TLB may hold the group as one entry, made of any of its leaves.
#[test]
fn a_page_of_a_former_group_that_is_flushed_alone_is_reported() {
    reported(Rule::MakeBeforeFlush, |hand| {
        make(hand, &READ_WRITE);
        group(hand, |_| 0);
        // The flush leaves out the last page: a leaf there, and no other, is made again.
        (0..LENGTH - 1).for_each(|index| hand.flush(ipa(index)));
        hand.make(hand.entry(LENGTH - 1), hand.leaf(40, &READ_WRITE));
    });
    // With FEAT_BBM, the hint goes without a flush. A TLB still holds the group.
    assert_eq!(
        on(Bbm::Level2WithoutAborts, |hand| {
            make(hand, &READ_WRITE);
            group(hand, |index| hand.leaf(index, &READ_WRITE));
            hand.make(hand.entry(7), 0);
            hand.expect_flushed(pages(0..LENGTH), Withdrawn::Everything);
        })
        .err()
        .map(|breach| breach.rule),
        Some(Rule::StillCached)
    );
}

#[test]
fn the_hint_that_goes_or_comes_in_place_is_reported_below_level_2() {
    let take = |hand: &Hand| {
        make(hand, &READ_WRITE);
        group(hand, |index| hand.leaf(index, &READ_WRITE));
    };
    let give = |hand: &Hand| {
        group(hand, |index| hand.leaf(index, &READ_WRITE));
        make(hand, &READ_WRITE);
    };
    for bbm in [Bbm::Level0, Bbm::Level1] {
        assert_eq!(on(bbm, take).err().map(|breach| breach.rule), Some(Rule::LiveChange), "{bbm:?}");
        assert_eq!(on(bbm, give).err().map(|breach| breach.rule), Some(Rule::LiveChange), "{bbm:?}");
    }
    for bbm in [Bbm::Level2, Bbm::Level2WithoutAborts] {
        on(bbm, take).unwrap_or_else(|breach| panic!("{breach}"));
        on(bbm, give).unwrap_or_else(|breach| panic!("{breach}"));
    }
}

#[test]
fn the_hint_that_goes_without_a_flush_is_reported() {
    reported(Rule::MakeBeforeFlush, |hand| {
        make(hand, &READ_WRITE);
        group(hand, |_| 0);
        group(hand, |index| hand.leaf(index, &READ_WRITE));
    });
    allowed(|hand| {
        make(hand, &READ_WRITE);
        group(hand, |_| 0);
        flush(hand);
        group(hand, |index| hand.leaf(index, &READ_WRITE));
    });
}
