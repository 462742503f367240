// SPDX-License-Identifier: Apache-2.0 OR MIT
//! R1, R2, R6, R7, R8, R9, R10: the changes that an entry allows, and the lock that they need.

use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

use twofold_machine::strict::Rule;
use twofold_stage2::platform::{Domain, Tlbi};
use twofold_stage2::{Access, Attributes, Memory, Platform};

use super::hand::{ACCESSED, DBM, READ, READ_WRITE, TRACKED, WRITE, ipa, table};
use super::{allowed, reported};

// R1

#[test]
fn a_live_output_address_is_reported() {
    reported(Rule::LiveChange, |hand| {
        hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
        hand.set(hand.entry(0), hand.leaf(1, &READ_WRITE));
    });
}

#[test]
fn a_live_memory_type_is_reported() {
    reported(Rule::LiveChange, |hand| {
        hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
        hand.set(hand.entry(0), hand.leaf(0, &Attributes { memory: Memory::NonCacheable, ..READ_WRITE }));
    });
}

#[test]
fn a_live_block_that_becomes_a_table_is_reported() {
    reported(Rule::LiveChange, |hand| {
        let entry = hand.tree.level_2 + 8;
        hand.make(entry, hand.block(0, &READ_WRITE));
        let parts = hand.page();
        hand.fill(parts, |index| hand.leaf(index, &READ_WRITE));
        hand.set(entry, table(parts));
    });
}

#[test]
fn a_live_table_that_becomes_a_block_is_reported() {
    reported(Rule::LiveChange, |hand| hand.set(hand.tree.level_2, hand.block(0, &READ_WRITE)));
}

#[test]
fn permissions_dbm_access_flag_and_software_bits_change_in_place() {
    const SOFTWARE: u64 = 0xf << 55;
    allowed(|hand| {
        let (entry, raw) = (hand.entry(0), hand.leaf(0, &READ));
        for new in [
            raw,
            hand.leaf(0, &READ_WRITE),
            hand.leaf(0, &Attributes::ram(Access::ALL)),
            hand.leaf(0, &TRACKED),
            hand.leaf(0, &TRACKED) | WRITE,
            raw | SOFTWARE,
            raw & !ACCESSED,
            raw,
        ] {
            hand.make(entry, new);
        }
    });
}

// R2

fn replaced_by(steps: impl Fn(&super::Hand) + Sync) -> impl Fn(&super::Hand) + Sync {
    move |hand| {
        hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
        hand.set(hand.entry(0), 0);
        steps(hand);
        hand.make(hand.entry(0), hand.leaf(1, &READ_WRITE));
    }
}

#[test]
fn another_frame_without_an_invalidation_is_reported() {
    reported(Rule::MakeBeforeFlush, replaced_by(|hand| hand.dsb(Domain::Ish)));
}

#[test]
fn an_invalidation_without_the_barrier_before_is_reported() {
    reported(
        Rule::MakeBeforeFlush,
        replaced_by(|hand| {
            hand.by_ipa(ipa(0));
            hand.dsb(Domain::Ish);
            hand.tlbi(Tlbi::VmallE1Is, 0);
            hand.dsb(Domain::Ish);
            hand.platform.isb();
        }),
    );
}

#[test]
fn an_invalidation_without_the_barrier_between_is_reported() {
    reported(
        Rule::MakeBeforeFlush,
        replaced_by(|hand| {
            hand.dsb(Domain::IshSt);
            hand.by_ipa(ipa(0));
            hand.tlbi(Tlbi::VmallE1Is, 0);
            hand.dsb(Domain::Ish);
            hand.platform.isb();
        }),
    );
}

#[test]
fn an_invalidation_without_the_barrier_behind_is_reported() {
    reported(
        Rule::MakeBeforeFlush,
        replaced_by(|hand| {
            hand.dsb(Domain::IshSt);
            hand.tlbi(Tlbi::VmallS12E1Is, 0);
        }),
    );
}

#[test]
fn an_invalidation_with_a_barrier_for_stores_behind_is_reported() {
    reported(
        Rule::MakeBeforeFlush,
        replaced_by(|hand| {
            hand.dsb(Domain::IshSt);
            hand.tlbi(Tlbi::VmallS12E1Is, 0);
            hand.dsb(Domain::IshSt);
        }),
    );
}

#[test]
fn a_table_in_a_block_s_place_without_an_invalidation_is_reported() {
    reported(Rule::MakeBeforeFlush, |hand| {
        let entry = hand.tree.level_2 + 8;
        hand.make(entry, hand.block(0, &READ_WRITE));
        let parts = hand.page();
        hand.fill(parts, |index| hand.leaf(index, &READ_WRITE));
        hand.make(entry, 0);
        hand.make(entry, table(parts));
    });
}

#[test]
fn another_frame_behind_a_whole_sequence_is_allowed() {
    allowed(replaced_by(|hand| hand.flush(ipa(0))));
    allowed(replaced_by(|hand| hand.flush_all()));
}

/// The sequence of Arm ARM DDI 0487K.a, D8.16.1 contains no context synchronization.
#[test]
fn another_frame_without_an_isb_is_allowed() {
    allowed(replaced_by(|hand| {
        hand.dsb(Domain::IshSt);
        hand.tlbi(Tlbi::VmallS12E1Is, 0);
        hand.dsb(Domain::Ish);
    }));
}

#[test]
fn the_same_frame_again_is_allowed_without_an_invalidation() {
    allowed(|hand| {
        hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
        hand.make(hand.entry(0), 0);
        hand.make(hand.entry(0), hand.leaf(0, &READ));
    });
}

// R6

#[test]
fn a_table_that_is_linked_without_any_order_is_reported() {
    reported(Rule::TableNotReady, |hand| {
        let (entry, new) = (hand.tree.level_2 + 8, hand.table());
        hand.locked(entry, || hand.cpu.write_entry(entry, table(new), Relaxed));
    });
}

#[test]
fn a_table_that_was_not_filled_is_reported() {
    reported(Rule::TableNotReady, |hand| hand.set(hand.tree.level_2 + 8, table(hand.page())));
}

#[test]
fn a_table_that_is_linked_with_release_is_allowed() {
    allowed(|hand| hand.set(hand.tree.level_2 + 8, table(hand.table())));
}

#[test]
fn a_table_that_is_linked_by_a_plain_store_behind_a_barrier_is_allowed() {
    allowed(|hand| {
        let (entry, new) = (hand.tree.level_2 + 8, hand.table());
        hand.dsb(Domain::IshSt);
        hand.locked(entry, || hand.cpu.write_entry(entry, table(new), Relaxed));
    });
}

// R7

#[test]
fn a_leaf_before_what_it_leads_to_is_reported() {
    reported(Rule::FrameNotReady, |hand| {
        hand.write(0, 7);
        hand.locked(hand.entry(0), || hand.cpu.write_entry(hand.entry(0), hand.leaf(0, &READ), Relaxed));
    });
}

#[test]
fn a_leaf_in_a_new_table_before_what_it_leads_to_is_reported() {
    reported(Rule::FrameNotReady, |hand| {
        let new = hand.table();
        hand.cpu.write_entry(new, hand.leaf(0, &READ), Relaxed);
        hand.dsb(Domain::IshSt);
        hand.write(0, 7);
        let entry = hand.tree.level_2 + 8;
        hand.locked(entry, || hand.cpu.write_entry(entry, table(new), Relaxed));
    });
}

#[test]
fn a_leaf_with_release_or_behind_a_barrier_is_allowed() {
    allowed(|hand| {
        hand.write(0, 7);
        hand.set(hand.entry(0), hand.leaf(0, &READ));
        hand.write(1, 7);
        hand.dsb(Domain::IshSt);
        hand.locked(hand.entry(1), || hand.cpu.write_entry(hand.entry(1), hand.leaf(1, &READ), Relaxed));
    });
}

// R8

#[test]
fn an_entry_without_its_lock_is_reported() {
    reported(Rule::NoLock, |hand| hand.cpu.write_entry(hand.entry(0), hand.leaf(0, &READ), Release));
}

#[test]
fn an_entry_under_another_table_s_lock_is_reported() {
    reported(Rule::NoLock, |hand| {
        hand.cpu.lock(hand.tree.level_2);
        hand.cpu.exchange_entry(hand.entry(0), hand.leaf(0, &READ), AcqRel);
    });
}

#[test]
fn entries_of_an_unlinked_table_need_no_lock() {
    allowed(|hand| {
        let new = hand.table();
        hand.cpu.write_entry(new, hand.leaf(0, &READ), Relaxed);
        hand.set(hand.tree.level_2 + 8, table(new));
        // The entries of a root that was never loaded need no lock either.
        let tree = super::Hand::tree(hand.cpu, hand.world, 1, 4);
        hand.cpu.write_entry(tree.root + 16, table(hand.table()), Release);
    });
}

// R9

#[test]
fn a_lock_taken_upward_is_reported() {
    reported(Rule::LockOrder, |hand| {
        hand.cpu.lock(hand.tree.level_3);
        hand.cpu.lock(hand.tree.level_2);
    });
}

#[test]
fn a_lock_taken_upward_is_reported_whatever_is_locked_above() {
    reported(Rule::LockOrder, |hand| {
        hand.cpu.lock(hand.tree.root);
        hand.cpu.lock(hand.tree.level_3);
        hand.cpu.lock(hand.tree.level_2);
    });
}

#[test]
fn a_lock_beside_another_is_reported() {
    reported(Rule::LockOrder, |hand| {
        let beside = hand.table();
        hand.make(hand.tree.level_2 + 8, table(beside));
        hand.cpu.lock(hand.tree.level_3);
        hand.cpu.lock(beside);
    });
}

#[test]
fn a_lock_beside_another_s_child_is_reported() {
    reported(Rule::LockOrder, |hand| {
        let (above, beside) = (hand.table(), hand.table());
        hand.make(hand.tree.root, table(above));
        hand.make(above, table(beside));
        hand.cpu.lock(hand.tree.root);
        hand.cpu.lock(hand.tree.level_2);
        hand.cpu.lock(hand.tree.level_3);
        hand.cpu.lock(beside);
    });
}

#[test]
fn a_lock_released_by_a_cpu_without_it_is_reported() {
    reported(Rule::LockOrder, |hand| hand.cpu.unlock(hand.tree.level_3));
}

#[test]
fn locks_beside_each_other_are_allowed_below_a_table_that_is_locked_too() {
    allowed(|hand| {
        let beside = hand.table();
        hand.make(hand.tree.level_2 + 8, table(beside));
        let locks = [hand.tree.level_2, beside, hand.tree.level_3];
        locks.into_iter().for_each(|table| hand.cpu.lock(table));
        locks.into_iter().rev().for_each(|table| hand.cpu.unlock(table));
    });
}

/// The lock of the table that is still linked counts.
#[test]
fn a_lock_taken_upward_is_reported_although_another_table_is_unlinked() {
    reported(Rule::LockOrder, |hand| {
        let beside = hand.table();
        hand.make(hand.tree.level_2 + 8, table(beside));
        hand.cpu.lock(hand.tree.level_2);
        hand.cpu.lock(beside);
        hand.cpu.lock(hand.tree.level_3);
        hand.cpu.write_entry(hand.tree.level_2, 0, Release);
        hand.cpu.unlock(hand.tree.level_2);
        hand.cpu.lock(hand.tree.level_2);
    });
}

#[test]
fn a_lock_above_an_unlinked_table_is_allowed() {
    allowed(|hand| {
        hand.cpu.lock(hand.tree.level_2);
        hand.cpu.lock(hand.tree.level_3);
        hand.cpu.write_entry(hand.tree.level_2, 0, Release);
        hand.cpu.unlock(hand.tree.level_2);
        hand.cpu.lock(hand.tree.level_2);
        hand.cpu.unlock(hand.tree.level_2);
        hand.cpu.unlock(hand.tree.level_3);
        hand.flush_all();
    });
}

#[test]
fn locks_taken_downward_are_allowed() {
    allowed(|hand| {
        hand.cpu.lock(hand.tree.root);
        hand.cpu.lock(hand.tree.level_2);
        hand.cpu.lock(hand.tree.level_3);
        // Released in any order.
        hand.cpu.unlock(hand.tree.level_2);
        hand.cpu.unlock(hand.tree.root);
        hand.cpu.unlock(hand.tree.level_3);
    });
}

// R10

#[test]
fn an_entry_in_a_table_that_was_unlinked_is_reported() {
    reported(Rule::LateWrite, |hand| {
        hand.make(hand.tree.level_2, 0);
        hand.flush_all();
        hand.set(hand.entry(0), hand.leaf(0, &READ));
    });
}

#[test]
fn an_entry_in_memory_that_is_no_table_is_reported() {
    reported(Rule::LateWrite, |hand| hand.cpu.write_entry(hand.frame(0), hand.leaf(0, &READ), Release));
}

#[test]
fn a_link_to_what_is_no_table_is_reported() {
    reported(Rule::LateWrite, |hand| hand.set(hand.tree.level_2 + 8, table(hand.frame(0))));
}

/// A CPU with the table's lock may finish its change before the flush begins, because the flush covers it.
#[test]
fn an_entry_that_is_written_while_its_table_is_unlinked_is_allowed() {
    allowed(|hand| {
        hand.cpu.lock(hand.tree.level_2);
        hand.cpu.lock(hand.tree.level_3);
        hand.cpu.write_entry(hand.tree.level_2, 0, Release);
        hand.cpu.write_entry(hand.entry(0), hand.leaf(0, &READ), Release);
        hand.cpu.unlock(hand.tree.level_3);
        hand.cpu.unlock(hand.tree.level_2);
        hand.flush_all();
        hand.cpu.reuse(hand.frame(0), 4096);
        hand.cpu.free_page(hand.tree.level_3);
    });
}

/// DBM may be set in place. Clearing it withdraws access.
#[test]
fn dbm_is_set_in_place() {
    allowed(|hand| {
        hand.make(hand.entry(0), hand.leaf(0, &READ));
        let old = hand.locked(hand.entry(0), || {
            hand.cpu.replace_entry(hand.entry(0), hand.leaf(0, &READ), hand.leaf(0, &READ) | DBM, AcqRel)
        });
        assert_eq!(old, Ok(hand.leaf(0, &READ)));
    });
}
