// SPDX-License-Identifier: Apache-2.0 OR MIT
//! R11, R15, R16, R20: the faults of a guest, the vCPUs that ran before it, and the values that it reads.

use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

use twofold_machine::program::{Exit, Instructions};
use twofold_machine::strict::{Bbm, Rule, Withdrawn};
use twofold_stage2::Platform;
use twofold_stage2::fault::{Fault, FaultKind};
use twofold_stage2::platform::{Domain, Tlbi};

use super::hand::{BASE, Hand, Machinery, READ, READ_WRITE, VMID, ipa, pages, table};
use super::{SEEDS, allowed, reported};
use crate::world::{MODERN, PAGE, PLAIN};

fn fault(exit: Exit) -> FaultKind {
    let Exit::Abort(abort) = exit else { panic!("{exit:?}") };
    Fault::from_syndrome(abort.esr).expect("a fault of the tables").kind
}

/// Some run on one CPU is reported, and none as another rule.
#[track_caller]
fn reported_by_chance(rule: Rule, body: impl Fn(&Hand) + Sync) {
    let run = |seed| Machinery::new(MODERN, Bbm::default(), 2, seed).alone(&body).err();
    let rules: Vec<Rule> = (0..SEEDS).filter_map(run).map(|breach| breach.rule).collect();
    assert!(!rules.is_empty() && rules.iter().all(|found| *found == rule), "{rules:?}");
}

#[track_caller]
fn never_reported(body: impl Fn(&Hand) + Sync) {
    for seed in 0..SEEDS {
        let ended = Machinery::new(MODERN, Bbm::default(), 2, seed).alone(&body);
        ended.unwrap_or_else(|breach| panic!("seed {seed}: {breach}"));
    }
}

/// The guest stores, and `answer` handles each fault.
fn store_until_done(hand: &Hand, mut answer: impl FnMut(FaultKind)) {
    let mut guest = hand.enter(0);
    while let Err(exit) = guest.store(BASE, 7) {
        answer(fault(exit));
    }
}

// R11

#[test]
fn a_wider_leaf_whose_old_one_is_not_invalidated_here_is_reported() {
    reported_by_chance(Rule::NoProgress, |hand| {
        hand.make(hand.entry(0), hand.leaf(0, &READ));
        store_until_done(hand, |kind| {
            assert_eq!(kind, FaultKind::Permission);
            hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
        });
    });
}

#[test]
fn a_fault_that_is_never_answered_is_reported() {
    reported(Rule::NoProgress, |hand| store_until_done(hand, |_| {}));
}

#[test]
fn a_wider_leaf_whose_old_one_is_invalidated_on_this_cpu_alone_is_allowed() {
    never_reported(|hand| {
        hand.make(hand.entry(0), hand.leaf(0, &READ));
        store_until_done(hand, |kind| {
            assert_eq!(kind, FaultKind::Permission);
            hand.set(hand.entry(0), hand.leaf(0, &READ_WRITE));
            hand.flush_here(ipa(0));
        });
    });
}

/// A new mapping needs a barrier, and no invalidation.
#[test]
fn a_leaf_where_nothing_was_is_seen_by_the_next_access() {
    never_reported(|hand| {
        let mut faults = 0;
        store_until_done(hand, |kind| {
            assert_eq!((kind, faults), (FaultKind::Translation, 0));
            faults += 1;
            hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
        });
    });
}

/// `ERET` is a context synchronization, also for an invalidation without an `ISB`.
#[test]
fn the_way_into_the_guest_ends_an_invalidation() {
    never_reported(|hand| {
        hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
        let mut guest = hand.enter(0);
        guest.store(BASE, 7).unwrap();
        hand.make(hand.entry(0), 0);
        hand.tlbi(Tlbi::VmallS12E1Is, 0);
        hand.dsb(Domain::Ish);
        assert_eq!(fault(guest.store(BASE, 8).unwrap_err()), FaultKind::Translation);
        hand.expect_flushed(pages(0..1), Withdrawn::Everything);
    });
}

/// A store becomes visible to walks at some time; without a barrier, that time is not known.
#[test]
fn a_leaf_that_is_made_without_a_barrier_may_be_missed_for_a_while() {
    let faults = |seed| {
        let mut faults = 0;
        let ended = Machinery::new(MODERN, Bbm::default(), 2, seed).alone(|hand| {
            store_until_done(hand, |_| {
                faults += 1;
                hand.set(hand.entry(0), hand.leaf(0, &READ_WRITE));
            });
        });
        ended.unwrap_or_else(|breach| panic!("seed {seed}: {breach}"));
        faults
    };
    let most = (0..SEEDS).map(faults).max();
    assert!(most > Some(1), "{most:?}");
}

// R15

#[test]
fn a_vmid_of_two_guests_is_reported() {
    reported(Rule::VmidReused, |hand| {
        let other = Hand::tree(hand.cpu, hand.world, 1, VMID);
        hand.cpu.load(other.vttbr);
    });
}

#[test]
fn a_vmid_that_is_given_to_the_next_guest_without_an_invalidation_is_reported() {
    reported(Rule::VmidReused, |hand| {
        hand.make(hand.tree.root + 8, 0);
        hand.flush(ipa(0));
        hand.cpu.load(0);
        let other = Hand::tree(hand.cpu, hand.world, 1, VMID);
        hand.cpu.enter(other.vttbr, other.vtcr, 0);
    });
}

#[test]
fn a_vmid_that_is_given_to_the_next_guest_after_everything_of_it_went_is_allowed() {
    let machinery = Machinery::new(MODERN, Bbm::default(), 1, 1);
    let ended = machinery.alone(|hand| {
        let other = Hand::tree(hand.cpu, hand.world, 1, VMID);
        // No tree with the VMID is loaded, or walks could continue.
        hand.cpu.load(u64::from(VMID) << 48 | 1);
        hand.flush_all();
        hand.cpu.enter(other.vttbr, other.vtcr, 0);
    });
    ended.unwrap_or_else(|breach| panic!("{breach}"));
}

#[test]
fn a_second_vmid_of_a_guest_is_reported() {
    reported(Rule::VmidReused, |hand| hand.cpu.load(with_vmid(hand.tree.vttbr, VMID + 1)));
}

#[test]
fn a_second_vmid_after_everything_went_is_allowed() {
    let ended = Machinery::new(MODERN, Bbm::default(), 1, 1).alone(|hand| {
        // The tree is loaded on no CPU, or walks could continue.
        hand.cpu.load(0);
        hand.tlbi(Tlbi::Alle1Is, 0);
        hand.dsb(Domain::Ish);
        hand.cpu.load(with_vmid(hand.tree.vttbr, VMID + 1));
    });
    ended.unwrap_or_else(|breach| panic!("{breach}"));
}

fn with_vmid(vttbr: u64, vmid: u16) -> u64 {
    vttbr & !(0xffff << 48) | u64::from(vmid) << 48
}

/// A VMID has the number of bits that the CPU implements: with two bits, 5 is 1.
#[test]
fn vmids_that_differ_in_bits_that_the_cpu_does_not_have_are_reported() {
    let features = MODERN.with_vmid_bits(2);
    let ended = |vmid: u64| {
        Machinery::new(features, Bbm::default(), 2, 1).alone(|hand| {
            let other = Hand::tree(hand.cpu, hand.world, 1, 1);
            hand.cpu.enter(with_vmid(other.vttbr, vmid as u16), other.vtcr, 0);
        })
    };
    assert_eq!(ended(u64::from(VMID) + 4).unwrap_err().rule, Rule::VmidReused);
    ended(2).unwrap_or_else(|breach| panic!("{breach}"));
}

/// Invalidations use the same bits.
#[test]
fn with_two_bits_of_vmid_an_invalidation_is_for_every_guest_that_has_them() {
    let features = MODERN.with_vmid_bits(2);
    let ended = Machinery::new(features, Bbm::default(), 2, 1).alone(|hand| {
        hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
        hand.make(hand.entry(0), 0);
        hand.cpu.load(hand.tree.vttbr | 4 << 48);
        hand.flush(ipa(0));
        hand.expect_flushed(pages(0..1), Withdrawn::Everything);
    });
    ended.unwrap_or_else(|breach| panic!("{breach}"));
}

/// A flush for a guest that is not loaded, while another guest is.
fn flush_for_another(hand: &Hand, synchronized: bool) {
    let other = Hand::tree(hand.cpu, hand.world, 1, 4);
    hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
    hand.cpu.load(other.vttbr);
    hand.make(hand.entry(0), 0);
    let saved = hand.platform.vttbr();
    hand.platform.load_vttbr(hand.tree.vttbr);
    if synchronized {
        hand.platform.isb();
    }
    hand.flush(ipa(0));
    hand.platform.load_vttbr(saved);
    hand.platform.isb();
    hand.expect_flushed(pages(0..1), Withdrawn::Everything);
}

#[test]
fn a_flush_for_a_guest_that_is_not_loaded_without_an_isb_before_is_reported() {
    reported(Rule::StillCached, |hand| flush_for_another(hand, false));
}

#[test]
fn a_flush_for_a_guest_that_is_not_loaded_is_allowed() {
    allowed(|hand| flush_for_another(hand, true));
}

/// Without loading the guest first, the flush is for the wrong VMID.
#[test]
fn a_flush_of_whatever_is_loaded_is_reported() {
    reported(Rule::StillCached, |hand| {
        let other = Hand::tree(hand.cpu, hand.world, 1, 4);
        hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
        hand.cpu.load(other.vttbr);
        hand.make(hand.entry(0), 0);
        hand.flush_all();
        hand.expect_flushed(pages(0..1), Withdrawn::Everything);
    });
}

// R16

fn two_vcpus(hand: &Hand, between: impl Fn()) {
    hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
    hand.enter(0).store(BASE, 7).unwrap();
    between();
    hand.enter(1).store(BASE, 8).unwrap();
}

#[test]
fn a_vcpu_that_follows_another_one_of_its_guest_is_reported() {
    reported(Rule::OtherVcpu, |hand| two_vcpus(hand, || {}));
}

#[test]
fn an_invalidation_between_two_vcpus_that_is_not_complete_is_reported() {
    reported(Rule::OtherVcpu, |hand| two_vcpus(hand, || hand.tlbi(Tlbi::VmallE1, 0)));
}

#[test]
fn a_vcpu_that_follows_another_one_behind_a_local_invalidation_is_allowed() {
    allowed(|hand| {
        two_vcpus(hand, || {
            hand.tlbi(Tlbi::VmallE1, 0);
            hand.dsb(Domain::Nsh);
        });
        // The same vCPU again needs none.
        hand.enter(1).store(BASE, 9).unwrap();
    });
}

// R20

#[test]
fn a_guest_that_reads_what_was_never_written_is_reported() {
    reported(Rule::Content, |hand| {
        hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
        let mut guest = hand.enter(0);
        guest.store(BASE, 7).unwrap();
        if guest.load(BASE) != Ok(8) {
            hand.cpu.report(format!("{BASE:#x} does not hold 8"));
        }
    });
}

#[test]
fn a_guest_that_goes_beyond_memory_is_reported() {
    reported(Rule::Content, |hand| {
        let beyond = hand.world.machine.arena().dense() / PAGE;
        hand.make(hand.entry(0), hand.leaf(beyond, &READ_WRITE));
        let _ = hand.enter(0).load(BASE);
    });
}

#[test]
fn a_guest_reads_what_it_wrote() {
    never_reported(|hand| {
        hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
        let mut guest = hand.enter(0);
        guest.store(BASE + 8, 7).unwrap();
        assert_eq!(guest.load(BASE + 8), Ok(7));
    });
}

/// Code other than the engine builds its own tree, from the root on.
#[test]
fn a_hypervisor_with_a_root_of_its_own_runs_a_guest() {
    for features in [MODERN, PLAIN] {
        let machinery = Machinery::new(features, Bbm::default(), 2, 1);
        let ended = machinery.alone(|hand| {
            // 40 bits of IPA from level 1 on, write-back and inner shareable walks; no hardware updates.
            let wide = u64::from(features.vmid_bits == 16);
            let vtcr = 1 << 31 | wide << 19 | 5 << 16 | 0b11 << 12 | 0b0101 << 8 | 1 << 6 | 24;
            let root = hand.world.machine.arena().base() + 7 * 16 * PAGE;
            let vttbr = 9 << 48 | root.raw();
            hand.cpu.make_root(root, 1024, vttbr, vtcr);
            (0..1024).for_each(|index| hand.cpu.write_entry(root + index * 8, 0, Relaxed));
            let [level_2, level_3] = [hand.table(), hand.table()];
            hand.cpu.write_entry(level_3, hand.leaf(0, &READ_WRITE), Relaxed);
            hand.cpu.write_entry(level_2, table(level_3), Release);
            hand.cpu.write_entry(root + 8, table(level_2), Release);
            hand.clean(0);
            hand.dsb(Domain::Ish);
            let mut guest = hand.cpu.enter(vttbr, vtcr, 0);
            guest.store(BASE, 7).expect("it is mapped");
            assert_eq!(guest.load(BASE), Ok(7));
            // The tree is removed again.
            hand.cpu.lock(root);
            assert_eq!(hand.cpu.exchange_entry(root + 8, 0, AcqRel), table(level_2));
            hand.cpu.unlock(root);
            hand.flush_all();
            hand.cpu.load(hand.tree.vttbr);
            hand.cpu.free_page(level_3);
            hand.cpu.free_page(level_2);
            hand.cpu.drop_root(root, vttbr, vtcr);
            hand.cpu.reuse(hand.frame(0), PAGE);
        });
        ended.unwrap_or_else(|breach| panic!("{breach}"));
    }
}
