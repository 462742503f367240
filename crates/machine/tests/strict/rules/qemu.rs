// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cases in which QEMU's TLB is stale without an invalidation, and cases in which QEMU hides a missing one. The machine
//! reports all of them.
//!
//! Other files have further cases: `records` a page cleaned without an invalidation, and a page of guest tables whose
//! stage-2 entry stays; `concurrency` stores that land after an invalidation on one CPU; `caches`; and `sizes`
//! conflicts.

use twofold_machine::program::Instructions;
use twofold_machine::strict::{Bbm, Rule, Withdrawn};
use twofold_stage2::platform::{Domain, Tlbi};
use twofold_stage2::tlb::range_operand;
use twofold_stage2::{Kib4, Platform};

use super::hand::{BASE, Hand, Machinery, READ, READ_WRITE, VMID, ipa, pages, table};
use super::{SEEDS, reported};
use crate::world::{MODERN, PAGE};

#[test]
fn qemu_is_stale_when_write_access_goes_without_an_invalidation() {
    reported(Rule::StillCached, |hand| {
        hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
        hand.make(hand.entry(0), hand.leaf(0, &READ));
        hand.expect_flushed(pages(0..1), Withdrawn::Writes);
    });
    // The write lands silently, unless the CPU walks the tables.
    let lands = |seed| {
        let machinery = Machinery::new(MODERN, Bbm::default(), 1, seed);
        let stored = machinery.alone(|hand| {
            hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
            hand.make(hand.entry(0), hand.leaf(0, &READ));
            hand.enter(0).store(BASE, 7).is_ok() && hand.content(0) == 7
        });
        stored.unwrap_or_else(|breach| panic!("{breach}"))
    };
    let landed = (0..SEEDS).filter(|seed| lands(*seed)).count() as u64;
    assert!(landed > 0 && landed < SEEDS);
}

#[test]
fn qemu_is_stale_when_a_page_is_unmapped_without_an_invalidation() {
    reported(Rule::FrameReusedTooEarly, |hand| {
        hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
        hand.make(hand.entry(0), 0);
        hand.cpu.reuse(hand.frame(0), PAGE);
    });
}

#[test]
fn qemu_is_stale_when_a_page_is_remapped_without_an_invalidation() {
    reported(Rule::MakeBeforeFlush, |hand| {
        hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
        hand.make(hand.entry(0), 0);
        hand.make(hand.entry(0), hand.leaf(1, &READ_WRITE));
    });
}

fn unmapped(hand: &Hand, flush: impl Fn()) {
    hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
    hand.make(hand.entry(0), 0);
    flush();
    hand.dsb(Domain::Ish);
    hand.platform.isb();
    hand.expect_flushed(pages(0..1), Withdrawn::Everything);
}

#[test]
fn qemu_is_stale_when_stage_2_is_invalidated_alone() {
    reported(Rule::StillCached, |hand| unmapped(hand, || hand.by_ipa(ipa(0))));
    let by_range = |hand: &Hand| hand.tlbi(Tlbi::Ripas2E1Is, range_operand(ipa(0), 0, 0, None, Kib4));
    let ended = Machinery::new(MODERN, Bbm::default(), 2, 1).alone(|hand| unmapped(hand, || by_range(hand)));
    assert_eq!(ended.unwrap_err().rule, Rule::StillCached);
}

/// QEMU behaves correctly here.
#[test]
fn qemu_hides_that_combined_entries_are_invalidated_alone() {
    reported(Rule::StillCached, |hand| unmapped(hand, || hand.tlbi(Tlbi::VmallE1Is, 0)));
}

#[test]
fn qemu_is_stale_when_one_cpu_alone_is_invalidated() {
    reported(Rule::StillCached, |hand| {
        unmapped(hand, || {
            hand.flush_here(ipa(0));
        });
    });
}

#[test]
fn qemu_is_stale_when_a_block_becomes_a_table_without_an_invalidation() {
    reported(Rule::MakeBeforeFlush, |hand| {
        let entry = hand.tree.level_2 + 8;
        hand.make(entry, hand.block(0, &READ_WRITE));
        hand.make(entry, 0);
        hand.make(entry, table(hand.table()));
    });
}

#[test]
fn qemu_is_stale_when_a_vmid_gets_another_root() {
    reported(Rule::VmidReused, |hand| {
        let other = Hand::tree(hand.cpu, hand.world, 1, VMID);
        hand.cpu.load(other.vttbr);
    });
}

/// QEMU flushes everything at each change of VMID.
#[test]
fn qemu_hides_that_a_vmid_is_used_again() {
    reported(Rule::VmidReused, |hand| {
        let [other, next] = [(1, 4), (2, VMID)].map(|(root, vmid)| Hand::tree(hand.cpu, hand.world, root, vmid));
        hand.cpu.load(other.vttbr);
        hand.cpu.load(next.vttbr);
    });
}

#[test]
fn qemu_hides_missing_barriers() {
    let missing: [fn(&Hand); 4] = [
        // Before the invalidation: walks may read the old entry again.
        |hand| {
            hand.tlbi(Tlbi::VmallS12E1Is, 0);
            hand.dsb(Domain::Ish);
            hand.platform.isb();
        },
        // Between two invalidations: a walk may combine with the old stage-2 entry again.
        |hand| {
            hand.dsb(Domain::IshSt);
            hand.by_ipa(ipa(0));
            hand.tlbi(Tlbi::VmallE1Is, 0);
            hand.dsb(Domain::Ish);
            hand.platform.isb();
        },
        // After the invalidation.
        |hand| {
            hand.dsb(Domain::IshSt);
            hand.tlbi(Tlbi::VmallS12E1Is, 0);
            hand.platform.isb();
        },
        // The context synchronization.
        |hand| {
            hand.dsb(Domain::IshSt);
            hand.tlbi(Tlbi::VmallS12E1Is, 0);
            hand.dsb(Domain::Ish);
        },
    ];
    for flush in missing {
        reported(Rule::StillCached, |hand| {
            hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
            hand.set(hand.entry(0), 0);
            flush(hand);
            hand.expect_flushed(pages(0..1), Withdrawn::Everything);
        });
    }
}

/// A barrier for this CPU only does not reach the others.
#[test]
fn qemu_hides_barriers_that_do_not_reach_far_enough() {
    reported(Rule::StillCached, |hand| {
        hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
        hand.set(hand.entry(0), 0);
        hand.dsb(Domain::NshSt);
        hand.tlbi(Tlbi::VmallS12E1Is, 0);
        hand.dsb(Domain::Ish);
        hand.platform.isb();
        hand.expect_flushed(pages(0..1), Withdrawn::Everything);
    });
    reported(Rule::StillCached, |hand| {
        hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
        hand.make(hand.entry(0), 0);
        hand.tlbi(Tlbi::VmallS12E1Is, 0);
        hand.dsb(Domain::Nsh);
        hand.platform.isb();
        hand.expect_flushed(pages(0..1), Withdrawn::Everything);
    });
}
