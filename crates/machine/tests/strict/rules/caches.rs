// SPDX-License-Identifier: Apache-2.0 OR MIT
//! R12, R13, R14, R21, R22: lines of data and instruction caches.

use twofold_machine::program::Instructions;
use twofold_machine::strict::{Bbm, Breach, Rule};
use twofold_stage2::platform::Domain;
use twofold_stage2::{Access, Attributes, Features, Memory};

use super::hand::{BASE, Hand, Machinery, READ_WRITE, ipa};
use crate::world::{MODERN, PAGE, PLAIN};

const CODE: Attributes = Attributes::ram(Access::ALL);
const NON_CACHEABLE: Attributes = Attributes { memory: Memory::NonCacheable, ..READ_WRITE };

fn on(features: Features, body: impl Fn(&Hand) + Sync) -> Result<(), Breach> {
    Machinery::new(features, Bbm::default(), 2, 1).alone(&body)
}

#[track_caller]
fn reported(rule: Rule, features: Features, body: impl Fn(&Hand) + Sync) {
    assert_eq!(on(features, body).err().map(|breach| breach.rule), Some(rule));
}

#[track_caller]
fn allowed(features: Features, body: impl Fn(&Hand) + Sync) {
    on(features, body).unwrap_or_else(|breach| panic!("{breach}"));
}

/// The hypervisor writes a page, and a guest with its MMU off reads it.
fn read_by_guest(hand: &Hand, attributes: &Attributes, between: impl Fn()) {
    hand.write(0, 7);
    between();
    hand.make(hand.entry(0), hand.leaf(0, attributes));
    assert_eq!(hand.enter(0).load(BASE), Ok(7));
}

// R12

#[test]
fn a_page_that_is_written_and_not_cleaned_is_reported() {
    reported(Rule::NotCleaned, PLAIN, |hand| read_by_guest(hand, &READ_WRITE, || {}));
    reported(Rule::NotCleaned, MODERN, |hand| read_by_guest(hand, &NON_CACHEABLE, || {}));
}

#[test]
fn a_cleaning_that_is_not_complete_is_reported() {
    reported(Rule::NotCleaned, PLAIN, |hand| read_by_guest(hand, &READ_WRITE, || hand.clean(0)));
}

#[test]
fn a_page_that_is_cleaned_is_allowed() {
    allowed(PLAIN, |hand| {
        read_by_guest(hand, &READ_WRITE, || {
            hand.clean(0);
            hand.dsb(Domain::Ish);
        });
    });
}

/// FEAT_S2FWB: stage 2 makes the guest's accesses go through the cache, whatever its stage 1 has.
#[test]
fn a_page_that_is_forced_to_be_cached_need_not_be_cleaned() {
    allowed(MODERN, |hand| read_by_guest(hand, &READ_WRITE, || {}));
}

// R13

fn fetched_by_guest(hand: &Hand, between: impl Fn()) {
    hand.write(0, 7);
    hand.clean(0);
    between();
    hand.make(hand.entry(0), hand.leaf(0, &CODE));
    assert_eq!(hand.enter(0).fetch(BASE), Ok(7));
}

#[test]
fn code_that_is_written_and_not_invalidated_is_reported() {
    for features in [PLAIN, MODERN] {
        reported(Rule::StaleInstruction, features, |hand| fetched_by_guest(hand, || hand.dsb(Domain::Ish)));
    }
}

#[test]
fn code_that_is_invalidated_before_its_write_is_complete_is_reported() {
    reported(Rule::StaleInstruction, MODERN, |hand| {
        fetched_by_guest(hand, || {
            hand.invalidate_code();
            hand.dsb(Domain::Ish);
        });
    });
}

#[test]
fn code_whose_invalidation_is_not_complete_is_reported() {
    reported(Rule::StaleInstruction, MODERN, |hand| {
        fetched_by_guest(hand, || {
            hand.dsb(Domain::Ish);
            hand.invalidate_code();
        });
    });
}

#[test]
fn code_that_is_invalidated_is_allowed() {
    for features in [PLAIN, MODERN] {
        allowed(features, |hand| {
            fetched_by_guest(hand, || {
                hand.dsb(Domain::Ish);
                hand.invalidate_code();
                hand.dsb(Domain::Ish);
            });
        });
    }
}

/// CTR_EL0.DIC.
#[test]
fn code_where_fetches_are_coherent_need_not_be_invalidated() {
    let coherent = MODERN.with_instruction_cache_coherent(true);
    allowed(coherent, |hand| fetched_by_guest(hand, || {}));
}

// R14

/// A guest with its MMU off writes to a page, and the hypervisor reads it.
fn read_by_hypervisor(hand: &Hand, attributes: &Attributes, between: impl Fn()) {
    hand.make(hand.entry(0), hand.leaf(0, attributes));
    hand.enter(0).store(BASE, 7).unwrap();
    hand.make(hand.entry(0), 0);
    hand.flush(ipa(0));
    between();
    hand.cpu.reads(hand.frame(0), PAGE);
}

#[test]
fn a_page_that_a_guest_wrote_past_the_cache_is_reported() {
    reported(Rule::StaleData, PLAIN, |hand| read_by_hypervisor(hand, &READ_WRITE, || {}));
    reported(Rule::StaleData, PLAIN, |hand| read_by_hypervisor(hand, &READ_WRITE, || hand.clean(0)));
    reported(Rule::StaleData, MODERN, |hand| read_by_hypervisor(hand, &NON_CACHEABLE, || {}));
}

#[test]
fn a_page_that_a_guest_wrote_is_read_behind_its_invalidation() {
    allowed(PLAIN, |hand| {
        read_by_hypervisor(hand, &READ_WRITE, || {
            hand.clean(0);
            hand.dsb(Domain::Ish);
        });
    });
    allowed(MODERN, |hand| read_by_hypervisor(hand, &READ_WRITE, || {}));
}

// R21, R22

const DEVICE: Attributes = Attributes { memory: Memory::Device, ..READ_WRITE };

/// A guest writes to a page, which is then mapped as another type of memory, and uses it again.
fn used_again(hand: &Hand, attributes: [&Attributes; 2], settle: bool) {
    let [old, new] = attributes;
    hand.make(hand.entry(0), hand.leaf(0, old));
    let mut guest = hand.enter(0);
    guest.store(BASE, 7).unwrap();
    hand.make(hand.entry(0), 0);
    hand.flush(ipa(0));
    if settle {
        hand.clean(0);
        hand.dsb(Domain::Ish);
    }
    hand.make(hand.entry(0), hand.leaf(0, new));
    assert_eq!(guest.load(BASE), Ok(7));
    guest.store(BASE, 8).unwrap();
}

#[test]
fn what_was_written_past_the_cache_and_is_cached_now_is_reported() {
    for old in [NON_CACHEABLE, DEVICE] {
        reported(Rule::HiddenData, MODERN, |hand| used_again(hand, [&old, &READ_WRITE], false));
    }
}

#[test]
fn what_was_written_past_the_cache_is_cached_behind_its_invalidation() {
    for old in [NON_CACHEABLE, DEVICE] {
        allowed(MODERN, |hand| used_again(hand, [&old, &READ_WRITE], true));
        // Without FEAT_S2FWB, stage 2 leaves the choice to the guest, whose MMU is off.
        allowed(PLAIN, |hand| used_again(hand, [&old, &READ_WRITE], true));
    }
}

#[test]
fn what_was_cached_and_is_not_cacheable_any_more_is_reported() {
    for new in [NON_CACHEABLE, DEVICE] {
        reported(Rule::LateWriteBack, MODERN, |hand| used_again(hand, [&READ_WRITE, &new], false));
    }
}

#[test]
fn what_was_cached_is_past_the_cache_behind_its_cleaning() {
    for new in [NON_CACHEABLE, DEVICE] {
        allowed(MODERN, |hand| used_again(hand, [&READ_WRITE, &new], true));
    }
    // Neither type is cached.
    allowed(MODERN, |hand| used_again(hand, [&NON_CACHEABLE, &DEVICE], false));
}
