// SPDX-License-Identifier: Apache-2.0 OR MIT
//! R3, R4, R5, R17, R18: the entries that a flush has to end before memory is freed, and the operands of the flush.

use std::sync::atomic::Ordering::AcqRel;

use twofold_machine::program::Instructions;
use twofold_machine::strict::{Bbm, Breach, Rule, Withdrawn};
use twofold_stage2::platform::{Domain, Tlbi};
use twofold_stage2::tlb::{range_operand, single_operand};
use twofold_stage2::{Access, Attributes, Ipa, Kib4, Level, Platform, Unwatched};

use super::hand::{ACCESSED, BASE, Hand, Machinery, READ, READ_WRITE, TRACKED, VMID, ipa, pages, table};
use super::{allowed, reported};
use crate::window::ByAddress as _;
use crate::world::{MODERN, PAGE};

/// A page is mapped, and its entry broken.
fn unmapped(hand: &Hand) {
    hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
    hand.make(hand.entry(0), 0);
}

// R3

#[test]
fn a_table_that_is_freed_while_it_is_linked_is_reported() {
    reported(Rule::TableFreedTooEarly, |hand| hand.cpu.free_page(hand.tree.level_3));
}

#[test]
fn a_table_that_is_freed_without_an_invalidation_is_reported() {
    reported(Rule::TableFreedTooEarly, |hand| {
        hand.make(hand.tree.level_2, 0);
        hand.cpu.free_page(hand.tree.level_3);
    });
}

#[test]
fn a_table_that_is_freed_after_an_invalidation_of_leaves_alone_is_reported() {
    reported(Rule::TableFreedTooEarly, |hand| {
        hand.make(hand.tree.level_2, 0);
        hand.tlbi(Tlbi::Ipas2Le1Is, single_operand(ipa(0), None, Kib4));
        hand.dsb(Domain::Ish);
        hand.tlbi(Tlbi::VmallE1Is, 0);
        hand.dsb(Domain::Ish);
        hand.platform.isb();
        hand.cpu.free_page(hand.tree.level_3);
    });
}

#[test]
fn a_root_that_is_given_away_while_it_is_loaded_is_reported() {
    reported(Rule::TableFreedTooEarly, |hand| {
        hand.cpu.drop_root(hand.tree.root, hand.tree.vttbr, hand.tree.vtcr);
    });
}

#[test]
fn a_walk_of_what_is_no_table_is_reported() {
    reported(Rule::TableFreedTooEarly, |hand| {
        let nowhere = u64::from(VMID) << 48 | hand.frame(0).raw();
        let _ = hand.cpu.enter(nowhere, hand.tree.vtcr, 0).load(BASE);
    });
}

#[test]
fn a_table_that_is_freed_after_its_walk_entry_is_invalidated_is_allowed() {
    allowed(|hand| {
        hand.make(hand.tree.level_2, 0);
        // A walk entry is never a combined entry.
        hand.by_ipa(ipa(7));
        hand.dsb(Domain::Ish);
        hand.platform.isb();
        hand.cpu.free_page(hand.tree.level_3);
    });
}

#[test]
fn a_root_that_no_cpu_has_loaded_is_given_away() {
    allowed(|hand| {
        let tree = Hand::tree(hand.cpu, hand.world, 1, 4);
        hand.cpu.load(tree.vttbr);
        hand.cpu.load(hand.tree.vttbr);
        hand.cpu.drop_root(tree.root, tree.vttbr, tree.vtcr);
    });
}

// R4

#[test]
fn a_frame_that_is_reused_without_an_invalidation_is_reported() {
    reported(Rule::FrameReusedTooEarly, |hand| {
        unmapped(hand);
        hand.cpu.reuse(hand.frame(0), PAGE);
    });
}

#[test]
fn a_frame_that_becomes_a_table_without_an_invalidation_is_reported() {
    reported(Rule::FrameReusedTooEarly, |hand| {
        unmapped(hand);
        hand.cpu.take_page(hand.frame(0));
    });
}

#[test]
fn a_frame_in_the_middle_of_a_block_is_reported() {
    reported(Rule::FrameReusedTooEarly, |hand| {
        hand.make(hand.tree.level_2 + 8, hand.block(0, &READ_WRITE));
        hand.make(hand.tree.level_2 + 8, 0);
        hand.cpu.reuse(hand.frame(300), PAGE);
    });
}

#[test]
fn a_frame_that_is_reused_with_a_tree_that_was_never_emptied_is_reported() {
    reported(Rule::FrameReusedTooEarly, |hand| {
        let tree = Hand::tree(hand.cpu, hand.world, 1, 4);
        hand.cpu.load(tree.vttbr);
        let other = hand.on(tree);
        other.make(other.entry(0), hand.leaf(0, &READ_WRITE));
        hand.cpu.load(hand.tree.vttbr);
        hand.cpu.drop_root(tree.root, tree.vttbr, tree.vtcr);
        hand.cpu.reuse(hand.frame(0), PAGE);
    });
}

#[test]
fn a_guest_that_reaches_a_table_is_reported() {
    reported(Rule::FrameReusedTooEarly, |hand| {
        hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
        // The page is still mapped.
        hand.cpu.take_page(hand.frame(0));
        let _ = hand.enter(0).store(BASE, 7);
    });
}

#[test]
fn a_frame_that_is_reused_after_a_flush_is_allowed() {
    allowed(|hand| {
        unmapped(hand);
        hand.flush(ipa(0));
        hand.cpu.reuse(hand.frame(0), PAGE);
        hand.cpu.take_page(hand.frame(0));
    });
}

/// If the store that removes an entry finds its access flag clear, no TLB holds the entry.
#[test]
fn a_frame_that_was_never_accessed_is_reused_at_once() {
    allowed(|hand| {
        hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE) & !ACCESSED);
        let old = hand.locked(hand.entry(0), || hand.cpu.exchange_entry(hand.entry(0), 0, AcqRel));
        assert_eq!(old & ACCESSED, 0);
        hand.cpu.reuse(hand.frame(0), PAGE);
    });
}

/// If hardware sets access flags, a walk may have set the flag and cached the entry just before a plain store.
#[test]
fn a_frame_whose_access_flag_hardware_may_have_set_is_reported() {
    let unmapped_plainly = |hand: &Hand| {
        hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE) & !ACCESSED);
        hand.set(hand.entry(0), 0);
        hand.cpu.reuse(hand.frame(0), PAGE);
    };
    reported(Rule::FrameReusedTooEarly, unmapped_plainly);
    let by_software = MODERN.with_hardware_access_flag(false).with_hardware_dirty_state(false);
    let ended = Machinery::new(by_software, Bbm::default(), 2, 1).alone(unmapped_plainly);
    ended.unwrap_or_else(|breach| panic!("{breach}"));
}

// R5

#[test]
fn a_mapping_that_is_still_cached_behind_its_flush_is_reported() {
    reported(Rule::StillCached, |hand| {
        unmapped(hand);
        hand.flush(ipa(1));
        hand.expect_flushed(pages(0..1), Withdrawn::Everything);
    });
}

#[test]
fn writes_that_are_still_cached_behind_their_flush_are_reported() {
    reported(Rule::StillCached, |hand| {
        hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
        hand.make(hand.entry(0), hand.leaf(0, &READ));
        hand.by_ipa(ipa(0));
        hand.dsb(Domain::Ish);
        hand.expect_flushed(pages(0..1), Withdrawn::Writes);
    });
}

#[test]
fn writes_that_hardware_may_still_grant_are_reported() {
    reported(Rule::StillCached, |hand| {
        hand.make(hand.entry(0), hand.leaf(0, &TRACKED));
        hand.make(hand.entry(0), hand.leaf(0, &READ));
        hand.expect_flushed(pages(0..1), Withdrawn::Writes);
    });
}

#[test]
fn a_hint_of_the_wrong_level_is_reported() {
    let machinery = Machinery::new(MODERN, Bbm::default(), 1, 1);
    let breach = machinery.alone(|hand| {
        unmapped(hand);
        hand.tlbi(Tlbi::Ipas2E1Is, single_operand(ipa(0), Some(Level::L2), Kib4));
        hand.dsb(Domain::Ish);
        hand.tlbi(Tlbi::VmallE1Is, 0);
        hand.dsb(Domain::Ish);
        hand.platform.isb();
        hand.expect_flushed(pages(0..1), Withdrawn::Everything);
    });
    assert_eq!(breach.unwrap_err().rule, Rule::StillCached);
}

/// Four pages are unmapped, and invalidated by one range of `count` pages.
fn flushed_by_range(count: u32) -> Result<(), Breach> {
    Machinery::new(MODERN, Bbm::default(), 1, 1).alone(|hand| {
        for index in 0..4 {
            hand.make(hand.entry(index), hand.leaf(index, &READ_WRITE));
            hand.make(hand.entry(index), 0);
        }
        hand.tlbi(Tlbi::Ripas2E1Is, range_operand(ipa(0), 0, count / 2 - 1, Some(Level::L3), Kib4));
        hand.dsb(Domain::Ish);
        hand.tlbi(Tlbi::VmallE1Is, 0);
        hand.dsb(Domain::Ish);
        hand.platform.isb();
        hand.expect_flushed(pages(0..4), Withdrawn::Everything);
    })
}

#[test]
fn a_range_that_ends_too_early_is_reported() {
    assert_eq!(flushed_by_range(2).unwrap_err().rule, Rule::StillCached);
}

#[test]
fn a_range_that_fits_is_allowed() {
    flushed_by_range(4).unwrap_or_else(|breach| panic!("{breach}"));
}

/// On the CPU that issued it, an invalidation is complete only at the next context synchronization.
#[test]
fn a_flush_without_its_isb_is_reported() {
    reported(Rule::StillCached, |hand| {
        unmapped(hand);
        hand.dsb(Domain::IshSt);
        hand.tlbi(Tlbi::VmallS12E1Is, 0);
        hand.dsb(Domain::Ish);
        hand.expect_flushed(pages(0..1), Withdrawn::Everything);
    });
}

#[test]
fn what_is_flushed_is_not_cached() {
    allowed(|hand| {
        unmapped(hand);
        hand.flush(ipa(0));
        hand.expect_flushed(pages(0..512), Withdrawn::Everything);
        hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
        hand.make(hand.entry(0), hand.leaf(0, &READ));
        hand.flush_all();
        hand.expect_flushed(pages(0..1), Withdrawn::Writes);
    });
}

/// A stale entry does no harm until software relies on its absence, and only the access that was withdrawn counts.
#[test]
fn what_was_not_withdrawn_may_be_cached() {
    allowed(|hand| {
        unmapped(hand);
        hand.expect_flushed(pages(1..512), Withdrawn::Everything);
        hand.expect_flushed(pages(0..1), Withdrawn::Writes);
        // Wider than before, which is harmless.
        hand.make(hand.entry(1), hand.leaf(1, &READ));
        hand.make(hand.entry(1), hand.leaf(1, &READ_WRITE));
        hand.expect_flushed(pages(1..2), Withdrawn::Everything);
    });
}

// R17

#[test]
fn an_operand_with_reserved_bits_is_reported() {
    reported(Rule::Operand, |hand| hand.tlbi(Tlbi::Ipas2E1Is, 1 << 50 | single_operand(ipa(0), None, Kib4)));
}

#[test]
fn an_operand_where_none_is_taken_is_reported() {
    reported(Rule::Operand, |hand| hand.tlbi(Tlbi::VmallE1Is, u64::from(VMID)));
}

#[test]
fn an_operand_of_an_address_that_changed_nothing_is_allowed() {
    allowed(|hand| hand.by_ipa(Ipa::new(0xff_ffff_f000)));
}

// R18

/// The platform reports it.
#[test]
fn tables_that_are_dropped_are_reported() {
    let machinery = Machinery::new(MODERN, Bbm::default(), 2, 1);
    let ended = machinery.alone(|hand| drop(hand.world.tables(1, 4, 40)));
    assert_eq!(ended.unwrap_err().rule, Rule::Dropped);
}

/// Its table pages and its frame are reused afterwards.
#[test]
fn a_flush_that_is_dropped_is_done() {
    let machinery = Machinery::new(MODERN, Bbm::default(), 2, 1);
    let ended = machinery.alone(|hand| {
        let (stage2, pages) = (hand.world.tables(1, 4, 40), &hand.world.pages);
        hand.cpu.load(stage2.vttbr());
        drop(stage2.unmap(super::hand::pages(0..1), &mut &*pages, Unwatched));
        let attributes = Attributes::ram(Access::READ_WRITE);
        for flushed in [false, true] {
            let mapped = stage2.map(ipa(0), hand.frame(0), Level::L3, &attributes, &mut &*pages);
            assert!(mapped.is_ok());
            let pending = stage2.unmap(super::hand::pages(0..1), &mut &*pages, Unwatched).unwrap();
            if flushed {
                drop(pending.complete())
            } else {
                drop(pending)
            }
            hand.cpu.reuse(hand.frame(0), 4096);
        }
        hand.cpu.load(hand.tree.vttbr);
        stage2.destroy(&mut &*pages, Unwatched);
    });
    ended.unwrap_or_else(|breach| panic!("{breach}"));
    assert_eq!(machinery.world.pages.out(), 2, "the pages of the tree that is written by hand");
}

/// TLBs may hold walk entries of the tables below an unlinked table.
#[test]
fn tables_below_a_table_that_was_unlinked_go_by_their_own_addresses() {
    let freed = |hand: &Hand, everything: bool| {
        hand.make(hand.tree.root + 8, 0);
        match everything {
            true => hand.flush_all(),
            false => hand.flush(Ipa::new(BASE + (1 << 29))),
        }
        hand.cpu.free_page(hand.tree.level_2);
        hand.cpu.free_page(hand.tree.level_3);
    };
    allowed(|hand| freed(hand, true));
    reported(Rule::TableFreedTooEarly, |hand| freed(hand, false));
}

/// The leaves of a table count as made when the table is linked.
#[test]
fn a_table_with_another_frame_in_it_behind_no_invalidation_is_reported() {
    reported(Rule::MakeBeforeFlush, |hand| {
        hand.make(hand.entry(0), hand.leaf(0, &READ));
        hand.make(hand.entry(0), 0);
        hand.make(hand.tree.level_2, 0);
        hand.by_ipa(ipa(1));
        hand.dsb(Domain::Ish);
        hand.platform.isb();
        let new = hand.page();
        hand.fill(new, |index| if index == 0 { hand.leaf(1, &READ) } else { 0 });
        hand.make(hand.tree.level_2, table(new));
    });
}
