// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Dirty logs by hardware's records: a guest stores, and a write without a record is lost.
//!
//! That breaks no rule of the machine. The machine finds it with a guest that writes, and hardware that records, at the
//! worst moment.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use twofold_machine::program::{Instructions, Stage1Registers};
use twofold_machine::strict::{Bbm, Breach, Rule, Withdrawn};
use twofold_stage2::platform::{Domain, Tlbi};

use super::SEEDS;
use super::hand::{BASE, Hand, Machinery, READ_WRITE, TRACKED, WRITE, ipa, pages};
use crate::world::MODERN;

/// A round of a dirty log: returns whether the page was dirty, and leaves it clean.
pub type Round = fn(&Hand) -> bool;

/// The current entry.
fn now(hand: &Hand) -> u64 {
    hand.world.machine.arena().load(hand.entry(0)).expect("an entry")
}

/// CPU 1's guest stores to a page from time to time, and CPU 0 copies it if `round` returns that it was dirty. Returns
/// whether the page was ever clean and different from its copy.
pub fn is_lost(seed: u64, round: Round) -> Result<bool, Breach> {
    let (mut lost, done) = (false, AtomicBool::new(false));
    let machinery = Machinery::new(MODERN, Bbm::default(), 2, seed);
    machinery.alone(|hand| hand.make(hand.entry(0), hand.leaf(0, &TRACKED)))?;
    machinery.race(
        |hand| {
            let mut copy = 0;
            for _ in 0..20 {
                if round(hand) {
                    copy = hand.content(0);
                }
                for _ in 0..8 {
                    hand.cpu.pause();
                    lost |= hand.content(0) != copy && now(hand) & (1 | WRITE) == 1;
                }
            }
            done.store(true, Relaxed);
        },
        |hand| {
            let mut guest = hand.enter(0);
            for value in 1.. {
                let _ = guest.store(BASE, value);
                guest.forget_fault();
                (0..hand.cpu.draw(16)).for_each(|_| hand.cpu.pause());
                if done.load(Relaxed) {
                    break;
                }
            }
        },
    )?;
    Ok(lost)
}

/// Some run loses a write, and none reports a breach.
#[track_caller]
pub fn loses(round: Round) {
    let losses = (0..SEEDS).filter(|seed| is_lost(*seed, round).unwrap_or_else(|breach| panic!("{breach}"))).count();
    assert!(losses > 0, "no write is lost");
}

#[track_caller]
fn loses_nothing(round: Round) {
    for seed in 0..SEEDS {
        assert!(!is_lost(seed, round).unwrap_or_else(|breach| panic!("{breach}")), "seed {seed}");
    }
}

#[test]
fn an_exchange_and_a_flush_lose_nothing() {
    loses_nothing(|hand| {
        let tracked = hand.leaf(0, &TRACKED);
        let old = hand.locked(hand.entry(0), || hand.cpu.exchange_entry(hand.entry(0), tracked, AcqRel));
        hand.flush(ipa(0));
        old & WRITE != 0
    });
}

#[test]
fn a_retry_loop_that_looks_again_loses_nothing() {
    loses_nothing(|hand| {
        let entry = hand.entry(0);
        let old = hand.locked(entry, || {
            let mut old = hand.cpu.read_entry(entry, Relaxed);
            loop {
                match hand.cpu.replace_entry(entry, old, old & !WRITE, AcqRel) {
                    Ok(old) => return old,
                    Err(now) => old = now,
                }
            }
        });
        hand.flush(ipa(0));
        old & WRITE != 0
    });
}

#[test]
fn dirty_state_that_is_read_by_the_break_loses_nothing() {
    loses_nothing(|hand| {
        let old = hand.locked(hand.entry(0), || hand.cpu.exchange_entry(hand.entry(0), 0, AcqRel));
        hand.flush(ipa(0));
        hand.make(hand.entry(0), hand.leaf(0, &TRACKED));
        old & WRITE != 0
    });
}

#[test]
fn a_page_that_is_cleaned_without_an_invalidation_loses_writes() {
    loses(|hand| {
        let tracked = hand.leaf(0, &TRACKED);
        let old = hand.locked(hand.entry(0), || hand.cpu.exchange_entry(hand.entry(0), tracked, AcqRel));
        old & WRITE != 0
    });
}

#[test]
fn a_page_that_is_cleaned_without_an_invalidation_is_reported() {
    super::reported(Rule::StillCached, |hand| {
        hand.make(hand.entry(0), hand.leaf(0, &TRACKED) | WRITE);
        hand.make(hand.entry(0), hand.leaf(0, &TRACKED));
        hand.expect_flushed(pages(0..1), Withdrawn::Records);
    });
}

/// The guest's stage 1, in pages 10 to 12 of its memory: it maps the 2 MiB from [`BASE`] on to themselves. The guest
/// may not write to page 1, but hardware may grant that, and then hardware writes to page 12.
fn guest_tables(hand: &Hand) -> Stage1Registers {
    const TABLE_OR_PAGE: u64 = 3;
    const ACCESSED_SHAREABLE: u64 = 1 << 10 | 3 << 8;
    const READ_ONLY_DBM: u64 = 1 << 7 | 1 << 51;
    let store = |page: u64, index: u64, raw: u64| {
        hand.world.machine.arena().store(hand.frame(page) + index * 8, raw).expect("a frame");
    };
    store(10, 1, ipa(11).raw() | TABLE_OR_PAGE);
    store(11, 0, ipa(12).raw() | TABLE_OR_PAGE);
    (0..512).for_each(|page| store(12, page, ipa(page).raw() | ACCESSED_SHAREABLE | TABLE_OR_PAGE));
    store(12, 1, ipa(1).raw() | READ_ONLY_DBM | ACCESSED_SHAREABLE | TABLE_OR_PAGE);
    // 39 bits of VA, write-back walks, 40 bits of IPA, HA and HD, and no TTBR1.
    let tcr = 3 << 39 | 2 << 32 | 1 << 23 | 3 << 12 | 0b0101 << 8 | 25;
    Stage1Registers { sctlr: 1, tcr, ttbr0: ipa(10).raw(), ttbr1: 0, mair: 0xff }
}

/// The page with the guest's own tables is cleaned, and hardware updates those tables. Returns whether that write is
/// lost.
fn loses_a_table_update(seed: u64, flush: fn(&Hand)) -> Result<bool, Breach> {
    Machinery::new(MODERN, Bbm::default(), 1, seed).alone(|hand| {
        let registers = guest_tables(hand);
        (0..12).for_each(|page| hand.make(hand.entry(page), hand.leaf(page, &READ_WRITE)));
        hand.make(hand.entry(12), hand.leaf(12, &TRACKED) | WRITE);
        let mut guest = hand.enter(0);
        *guest.stage1() = registers;
        guest.store(BASE, 7).expect("all is mapped");
        hand.set(hand.entry(12), hand.leaf(12, &TRACKED));
        flush(hand);
        let word = hand.frame(12) + 8;
        let before = hand.world.machine.arena().load(word);
        guest.store(BASE + 4096, 7).expect("hardware grants it");
        let is_written = hand.world.machine.arena().load(word) != before;
        assert!(is_written, "hardware has updated the guest's entry");
        hand.cpu.read_entry(hand.entry(12), Relaxed) & WRITE == 0
    })
}

/// `TLBI VMALLE1IS` removes combined entries, but the guest's walks of its tables use stage-2 entries.
#[test]
fn a_page_of_guest_tables_that_is_cleaned_without_invalidating_stage_2_loses_an_update() {
    let without: fn(&Hand) = |hand| {
        hand.dsb(Domain::IshSt);
        hand.tlbi(Tlbi::VmallE1Is, 0);
        hand.dsb(Domain::Ish);
    };
    let lost = |flush| (0..SEEDS).filter(|seed| loses_a_table_update(*seed, flush).unwrap()).count();
    assert!(lost(without) > 0);
    assert_eq!(lost(|hand| hand.flush(ipa(12))), 0);
}
