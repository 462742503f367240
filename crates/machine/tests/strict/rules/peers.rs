// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Defects that were found in other projects that do this job, as small pieces of wrong code. Each is reported, or
//! loses a write that a test finds.

use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

use twofold_machine::program::Instructions;
use twofold_machine::strict::{Bbm, Rule, Withdrawn};
use twofold_stage2::platform::{Domain, Tlbi};
use twofold_stage2::tlb::single_operand;
use twofold_stage2::{Kib4, Platform};

use super::hand::{BASE, Hand, Machinery, READ_WRITE, TRACKED, VMID, WRITE, ipa, pages};
use super::records::loses;
use super::reported;
use crate::world::{MODERN, PAGE};

/// A page is unmapped and `flush` executed. The test relies on a complete flush.
#[track_caller]
fn leaves_something(flush: fn(&Hand)) {
    reported(Rule::StillCached, |hand| {
        hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
        hand.set(hand.entry(0), 0);
        flush(hand);
        hand.expect_flushed(pages(0..1), Withdrawn::Everything);
    });
}

/// `TLBI VAE2IS` is for EL2's own stage 1. For a guest's entries it does nothing.
#[test]
fn peer_axvm_invalidates_another_regime() {
    leaves_something(|hand| {
        hand.dsb(Domain::IshSt);
        hand.dsb(Domain::Ish);
        hand.platform.isb();
    });
}

#[test]
fn peer_axvm_does_not_shift_the_operand() {
    leaves_something(|hand| {
        hand.dsb(Domain::IshSt);
        hand.tlbi(Tlbi::Ipas2E1Is, ipa(0).raw());
        hand.dsb(Domain::Ish);
        hand.tlbi(Tlbi::VmallE1Is, 0);
        hand.dsb(Domain::Ish);
        hand.platform.isb();
    });
}

#[test]
fn peer_axvm_has_no_barrier_before() {
    leaves_something(|hand| {
        hand.by_ipa(ipa(0));
        hand.dsb(Domain::Ish);
        hand.tlbi(Tlbi::VmallE1Is, 0);
        hand.dsb(Domain::Ish);
        hand.platform.isb();
    });
}

#[test]
fn peer_hvisor_flushes_nothing() {
    leaves_something(|_| {});
}

#[test]
fn peer_bao_and_aarch64_paging_do_not_invalidate_combined_entries() {
    leaves_something(|hand| {
        hand.dsb(Domain::IshSt);
        hand.by_ipa(ipa(0));
        hand.dsb(Domain::Ish);
        hand.platform.isb();
    });
}

/// The guest that was loaded resumes with a VTTBR_EL2 without tables.
#[test]
fn peer_bao_restores_the_vmid_alone() {
    reported(Rule::TableFreedTooEarly, |hand| {
        hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
        let other = Hand::tree(hand.cpu, hand.world, 1, 4);
        let mut guest = hand.enter(0);
        guest.store(BASE, 7).unwrap();
        let saved = hand.platform.vttbr();
        hand.platform.load_vttbr(other.vttbr);
        hand.platform.isb();
        hand.flush_all();
        hand.platform.load_vttbr(saved & 0xffff << 48);
        hand.platform.isb();
        let _ = guest.load(BASE);
    });
}

/// With the whole register restored, the guest resumes correctly.
#[test]
fn what_bao_should_restore_is_allowed() {
    super::allowed(|hand| {
        hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
        let other = Hand::tree(hand.cpu, hand.world, 1, 4);
        let mut guest = hand.enter(0);
        guest.store(BASE, 7).unwrap();
        let saved = hand.platform.vttbr();
        hand.platform.load_vttbr(other.vttbr);
        hand.platform.isb();
        hand.flush_all();
        hand.platform.load_vttbr(saved);
        hand.platform.isb();
        assert_eq!(guest.load(BASE), Ok(7));
    });
}

#[test]
fn peer_hafnium_and_op_tee_name_another_ipa_space() {
    const NON_SECURE: u64 = 1 << 63;
    reported(Rule::Operand, |hand| hand.tlbi(Tlbi::Ipas2E1Is, NON_SECURE | single_operand(ipa(0), None, Kib4)));
}

/// The address is in units of 4 KiB whatever the granule. In units of 64 KiB it is another address.
#[test]
fn peer_zephyr_and_page_table_multiarch_shift_the_operand_by_the_granule() {
    leaves_something(|hand| {
        hand.dsb(Domain::IshSt);
        hand.tlbi(Tlbi::Ipas2E1Is, ipa(0).raw() >> 16);
        hand.dsb(Domain::Ish);
        hand.tlbi(Tlbi::VmallE1Is, 0);
        hand.dsb(Domain::Ish);
        hand.platform.isb();
    });
}

#[test]
fn peer_genode_s_detached_memory_stays_reachable() {
    reported(Rule::FrameReusedTooEarly, |hand| {
        hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
        hand.make(hand.entry(0), 0);
        hand.cpu.reuse(hand.frame(0), PAGE);
    });
}

/// Two guests whose VMIDs are equal in the implemented bits.
#[test]
fn peer_freebsd_s_vmids_alias() {
    reported(Rule::VmidReused, |hand| {
        let other = Hand::tree(hand.cpu, hand.world, 1, VMID);
        hand.cpu.enter(other.vttbr, other.vtcr, 0);
    });
}

/// It invalidates where nothing was changed, and does not where an entry was changed.
#[test]
fn peer_dirty_log_inverts_its_test() {
    loses(|hand| {
        let tracked = hand.leaf(0, &TRACKED);
        let old = hand.locked(hand.entry(0), || hand.cpu.exchange_entry(hand.entry(0), tracked, AcqRel));
        if old == tracked {
            hand.flush(ipa(0));
        }
        old & WRITE != 0
    });
}

/// The store overwrites what hardware records after the load.
#[test]
fn peer_dirty_log_stores_plainly() {
    loses(|hand| {
        let entry = hand.entry(0);
        let old = hand.locked(entry, || {
            let old = hand.cpu.read_entry(entry, Relaxed);
            hand.cpu.write_entry(entry, old & !WRITE, Release);
            old
        });
        hand.flush(ipa(0));
        old & WRITE != 0
    });
}

/// A record by hardware makes the exchange fail. The retry then overwrites that record without looking at it.
#[test]
fn peer_dirty_log_applies_a_stale_value_again() {
    loses(|hand| {
        let entry = hand.entry(0);
        let first = hand.locked(entry, || {
            let first = hand.cpu.read_entry(entry, Relaxed);
            let (mut old, new) = (first, first & !WRITE);
            while let Err(now) = hand.cpu.replace_entry(entry, old, new, AcqRel) {
                old = now;
            }
            first
        });
        hand.flush(ipa(0));
        first & WRITE != 0
    });
}

/// Hardware records until the break.
#[test]
fn peer_dirty_log_reads_before_the_break() {
    loses(|hand| {
        let entry = hand.entry(0);
        let old = hand.locked(entry, || {
            let old = hand.cpu.read_entry(entry, Relaxed);
            hand.cpu.write_entry(entry, 0, Release);
            old
        });
        hand.flush(ipa(0));
        hand.make(entry, hand.leaf(0, &TRACKED));
        old & WRITE != 0
    });
}

/// The access flag is set.
#[test]
fn peer_casemate_swaps_the_output_address_of_a_live_leaf() {
    let machinery = Machinery::new(MODERN, Bbm::default(), 2, 1);
    let ended = machinery.alone(|hand| {
        hand.make(hand.entry(0), hand.leaf(0, &READ_WRITE));
        hand.enter(0).store(BASE, 7).unwrap();
        hand.locked(hand.entry(0), || hand.cpu.exchange_entry(hand.entry(0), hand.leaf(1, &READ_WRITE), AcqRel));
    });
    assert_eq!(ended.unwrap_err().rule, Rule::LiveChange);
}
