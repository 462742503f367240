// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes of a mapping's size without a break, on CPUs that allow them (FEAT_BBM), and their effects on accesses.

use std::sync::atomic::Ordering::Acquire;

use twofold_machine::program::{Exit, Instructions};
use twofold_machine::strict::{Bbm, Breach, Rule, Withdrawn};
use twofold_stage2::{Attributes, Ipa, Memory, Pa};

use super::SEEDS;
use super::hand::{BASE, Hand, Machinery, READ, READ_WRITE, table};
use crate::world::{MIB_2, MODERN, PAGE};

/// The block's address: the second entry of the table of level 2.
const BLOCK: u64 = BASE + MIB_2;
/// nT.
const NOT_TRANSLATED: u64 = 1 << 16;

fn on(bbm: Bbm, seed: u64, body: impl Fn(&Hand) + Sync) -> Result<(), Breach> {
    Machinery::new(MODERN, bbm, 2, seed).alone(&body)
}

#[track_caller]
fn reported(rule: Rule, bbm: Bbm, body: impl Fn(&Hand) + Sync) {
    assert_eq!(on(bbm, 1, body).err().map(|breach| breach.rule), Some(rule), "{bbm:?}");
}

#[track_caller]
fn allowed(bbm: Bbm, body: impl Fn(&Hand) + Sync) {
    on(bbm, 1, body).unwrap_or_else(|breach| panic!("{bbm:?}: {breach}"));
}

fn entry(hand: &Hand) -> Pa {
    hand.tree.level_2 + 8
}

/// A table that maps the frames from `first` on; from 0 on, these are the first block's.
fn parts(hand: &Hand, first: u64, attributes: &Attributes) -> Pa {
    let page = hand.page();
    hand.fill(page, |index| hand.leaf(first + index, attributes));
    page
}

fn flush_block(hand: &Hand) {
    hand.flush_all();
    hand.expect_flushed(Ipa::new(BLOCK)..Ipa::new(BLOCK + MIB_2), Withdrawn::Everything);
}

fn split(hand: &Hand, flags: u64) {
    hand.make(entry(hand), hand.block(0, &READ_WRITE) | flags);
    hand.make(entry(hand), table(parts(hand, 0, &READ_WRITE)));
    flush_block(hand);
}

fn coalesce(hand: &Hand, flags: u64) {
    let old = parts(hand, 0, &READ_WRITE);
    hand.make(entry(hand), table(old));
    hand.make(entry(hand), hand.block(0, &READ_WRITE) | flags);
    flush_block(hand);
    hand.cpu.free_page(old);
}

/// Splits the block without an invalidation, and returns the entry of its first page.
fn split_live(hand: &Hand, attributes: &Attributes) -> Pa {
    hand.make(entry(hand), hand.block(0, attributes));
    let first = parts(hand, 0, attributes);
    hand.make(entry(hand), table(first));
    first
}

#[test]
fn at_level_0_a_size_is_not_changed_live() {
    for change in [split, coalesce] {
        reported(Rule::LiveChange, Bbm::Level0, |hand| change(hand, 0));
    }
}

#[test]
fn at_level_1_a_size_is_changed_live_where_the_block_is_marked() {
    for change in [split, coalesce] {
        reported(Rule::LiveChange, Bbm::Level1, |hand| change(hand, 0));
        allowed(Bbm::Level1, |hand| change(hand, NOT_TRANSLATED));
    }
    // At level 1, nT is not a part of the address.
    allowed(Bbm::Level1, |hand| {
        hand.make(entry(hand), hand.block(0, &READ_WRITE));
        hand.make(entry(hand), hand.block(0, &READ_WRITE) | NOT_TRANSLATED);
        hand.flush_all();
        hand.make(entry(hand), table(parts(hand, 0, &READ_WRITE)));
    });
    reported(Rule::LiveChange, Bbm::Level0, |hand| {
        hand.make(entry(hand), hand.block(0, &READ_WRITE));
        hand.make(entry(hand), hand.block(0, &READ_WRITE) | NOT_TRANSLATED);
    });
}

#[test]
fn at_level_2_a_size_is_changed_live() {
    for change in [split, coalesce] {
        allowed(Bbm::Level2, |hand| change(hand, 0));
    }
}

/// Only the size may change.
#[test]
fn at_level_2_nothing_else_is_changed_live() {
    let other = Attributes { memory: Memory::NonCacheable, ..READ_WRITE };
    reported(Rule::LiveChange, Bbm::Level2, |hand| {
        hand.make(entry(hand), hand.block(0, &READ_WRITE));
        hand.make(entry(hand), table(parts(hand, 1, &READ_WRITE)));
    });
    reported(Rule::LiveChange, Bbm::Level2, |hand| {
        hand.make(entry(hand), table(parts(hand, 0, &other)));
        hand.make(entry(hand), hand.block(0, &READ_WRITE));
    });
    reported(Rule::LiveChange, Bbm::Level2, |hand| {
        hand.make(entry(hand), hand.block(0, &READ_WRITE));
        hand.make(entry(hand), hand.block(1, &READ_WRITE));
    });
}

/// The invalidation is still needed.
#[test]
fn at_level_2_the_old_entry_stays_until_it_is_invalidated() {
    reported(Rule::StillCached, Bbm::Level2, |hand| {
        hand.make(entry(hand), hand.block(0, &READ_WRITE));
        hand.make(entry(hand), table(parts(hand, 0, &READ_WRITE)));
        hand.expect_flushed(Ipa::new(BLOCK)..Ipa::new(BLOCK + MIB_2), Withdrawn::Everything);
    });
    reported(Rule::TableFreedTooEarly, Bbm::Level2, |hand| {
        let old = parts(hand, 0, &READ_WRITE);
        hand.make(entry(hand), table(old));
        hand.make(entry(hand), hand.block(0, &READ_WRITE));
        hand.cpu.free_page(old);
    });
    // The new pages may change only after the invalidation.
    reported(Rule::MakeBeforeFlush, Bbm::Level2, |hand| {
        hand.make(entry(hand), hand.block(0, &READ_WRITE));
        let new = parts(hand, 0, &READ_WRITE);
        hand.make(entry(hand), table(new));
        hand.make(new, 0);
        hand.make(new, hand.leaf(600, &READ_WRITE));
    });
}

/// A page of a block that was split without an invalidation loses write permission: a TLB may still hold the block.
#[test]
fn at_level_2_what_a_page_lost_is_still_granted_by_the_block_before_it() {
    for attributes in [READ_WRITE, Attributes { dirty_by_hardware: true, ..READ_WRITE }] {
        reported(Rule::StillCached, Bbm::Level2WithoutAborts, |hand| {
            let page = split_live(hand, &attributes);
            hand.make(page, hand.leaf(0, &READ));
            hand.expect_flushed(Ipa::new(BLOCK)..Ipa::new(BLOCK + PAGE), Withdrawn::Writes);
        });
        allowed(Bbm::Level2WithoutAborts, |hand| {
            let page = split_live(hand, &attributes);
            hand.make(page, hand.leaf(0, &READ));
            hand.expect_flushed(Ipa::new(BLOCK + PAGE)..Ipa::new(BLOCK + MIB_2), Withdrawn::Writes);
            hand.flush(Ipa::new(BLOCK));
            hand.expect_flushed(Ipa::new(BLOCK)..Ipa::new(BLOCK + MIB_2), Withdrawn::Writes);
        });
    }
}

/// A block was split without an invalidation. CPU 0 `withdraws` write permission from a page of it. At the same time CPU 1
/// `learns` what it reads of that page, and relies on a flush of its own.
#[track_caller]
fn allowed_beside(seed: u64, withdraws: impl Fn(&Hand, Pa) + Sync, learns: impl Fn(&Hand, Pa) + Sync) {
    let machinery = Machinery::new(MODERN, Bbm::Level2WithoutAborts, 2, seed);
    let page = machinery.alone(|hand| split_live(hand, &READ_WRITE)).unwrap_or_else(|breach| panic!("{breach}"));
    let expect = |hand: &Hand| hand.expect_flushed(Ipa::new(BLOCK)..Ipa::new(BLOCK + PAGE), Withdrawn::Writes);
    let raced = machinery.race(
        |hand| {
            withdraws(hand, page);
            expect(hand);
        },
        |hand| {
            learns(hand, page);
            expect(hand);
        },
    );
    raced.unwrap_or_else(|breach| panic!("seed {seed}: {breach}"));
}

/// CPU 1 does not know of the change, for which CPU 0 flushes.
#[test]
fn at_level_2_another_cpu_may_be_about_to_flush_the_block_for_a_page() {
    let withdraws = |hand: &Hand, page| {
        hand.make(page, hand.leaf(0, &READ));
        hand.flush(Ipa::new(BLOCK));
    };
    (0..SEEDS).for_each(|seed| allowed_beside(seed, withdraws, |_, _| ()));
}

/// CPU 1 may know that the page was removed, and not that it is there again, with less access.
#[test]
fn at_level_2_another_cpu_may_be_about_to_replace_a_page_of_the_block() {
    let withdraws = |hand: &Hand, page| {
        hand.make(page, 0);
        hand.flush(Ipa::new(BLOCK));
        hand.make(page, hand.leaf(0, &READ));
    };
    let learns = |hand: &Hand, page| {
        hand.cpu.read_entry(page, Acquire);
    };
    (0..SEEDS).for_each(|seed| allowed_beside(seed, withdraws, learns));
}

#[test]
fn at_level_2_a_broken_block_becomes_pages_of_the_same_without_an_invalidation_between() {
    let body = |hand: &Hand| {
        hand.make(entry(hand), hand.block(0, &READ_WRITE));
        let new = parts(hand, 0, &READ_WRITE);
        hand.make(entry(hand), 0);
        hand.make(entry(hand), table(new));
    };
    allowed(Bbm::Level2, body);
    reported(Rule::MakeBeforeFlush, Bbm::Level0, body);
}

/// The results of a guest's stores after a change of size: the numbers of conflicts and of stores. `flushed` is whether
/// the change is flushed first.
fn met(bbm: Bbm, flags: u64, flushed: bool) -> (usize, usize) {
    let mut met = (0, 0);
    for seed in 0..SEEDS {
        let machinery = Machinery::new(MODERN, bbm, 1, seed);
        let stored = machinery.alone(|hand| {
            hand.make(entry(hand), hand.block(0, &READ_WRITE) | flags);
            hand.make(entry(hand), table(parts(hand, 0, &READ_WRITE)));
            if flushed {
                hand.flush_all();
            }
            let mut guest = hand.enter(0);
            let stored = match guest.store(BLOCK + 5 * PAGE, 7) {
                Ok(()) => true,
                Err(Exit::Abort(abort)) => {
                    // A data abort with the status of a TLB conflict, which has no IPA.
                    assert_eq!((abort.esr >> 26, abort.esr & 0x3f, abort.far), (0x24, 0b11_0000, BLOCK + 5 * PAGE));
                    assert_eq!(abort.hpfar, u64::MAX);
                    // The handler invalidates the whole VMID, and the guest retries.
                    hand.flush_all();
                    guest.store(BLOCK + 5 * PAGE, 7).expect("only the new entry can be hit");
                    false
                }
                Err(exit) => panic!("{exit:?}"),
            };
            assert_eq!(hand.content(5), 7);
            stored
        });
        match stored.unwrap_or_else(|breach| panic!("seed {seed}: {breach}")) {
            true => met.1 += 1,
            false => met.0 += 1,
        }
    }
    met
}

#[test]
fn at_level_2_an_access_may_hit_both_sizes_until_the_old_one_is_invalidated() {
    let (conflicts, stores) = met(Bbm::Level2, 0, false);
    assert!(conflicts > 0 && stores > 0, "{conflicts} conflicts, {stores} stores");
    assert_eq!(met(Bbm::Level2, 0, true).0, 0);
}

#[test]
fn at_level_1_no_access_ends_as_a_conflict() {
    assert_eq!(met(Bbm::Level1, NOT_TRANSLATED, false).0, 0);
}
