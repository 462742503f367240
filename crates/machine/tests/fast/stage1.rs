// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest with stage-1 tables: one table of level 3, for 2 MiB from `VA` on.

use super::*;

/// The IPA of the guest's tables, of levels 1 to 3.
const TABLES: u64 = RAM.raw();
const DATA: u64 = RAM.raw() + 8 * PAGE;
pub const VA: u64 = 0x20_0000;

const LEAF: u64 = 0b11 | 3 << 8;
const ACCESSED: u64 = 1 << 10;
const READ_ONLY: u64 = 1 << 7;
const DBM: u64 = 1 << 51;

/// 39-bit addresses by TTBR0, none by TTBR1; 48-bit IPA; HA and HD set.
const TCR: u64 = 25 | 0b0101 << 8 | 3 << 12 | 1 << 23 | 5 << 32 | 1 << 39 | 1 << 40;

pub fn guest() -> (BareTables, FastVcpu) {
    let mut guest = BareTables::new(FEATURES);
    let tracked = Attributes { dirty_by_hardware: true, ..Attributes::ram(Access::READ) };
    for page in 0..16 {
        guest.map(RAM + page * PAGE, frame(page), Level::L3, &tracked);
    }
    let mut vcpu = guest.vcpu(0);
    vcpu.store(TABLES, (TABLES + PAGE) | 0b11).unwrap();
    vcpu.store(TABLES + PAGE + (VA >> 21) * 8, (TABLES + 2 * PAGE) | 0b11).unwrap();
    set(&mut vcpu, 0, DATA | LEAF | ACCESSED);
    set(&mut vcpu, 1, (DATA + PAGE) | LEAF | ACCESSED | READ_ONLY);
    set(&mut vcpu, 2, (DATA + 2 * PAGE) | LEAF | READ_ONLY | DBM);
    // Hardware records this write, so from now on stage 2 allows writes to the page.
    vcpu.store(DATA + PAGE, 0).unwrap();
    turn_on(&mut vcpu, true);
    (guest, vcpu)
}

fn entry(page: u64) -> u64 {
    TABLES + 2 * PAGE + page * 8
}

fn set(vcpu: &mut FastVcpu, page: u64, raw: u64) {
    vcpu.store(entry(page), raw).unwrap();
}

fn turn_on(vcpu: &mut FastVcpu, on: bool) {
    let registers = vcpu.stage1();
    (registers.sctlr, registers.tcr, registers.ttbr0) = (u64::from(on), TCR, TABLES);
}

#[test]
fn both_stages_are_asked() {
    let (guest, mut vcpu) = guest();
    vcpu.store(VA + 8, 7).unwrap();
    assert_eq!(guest.machine.arena().load(frame(8) + 8), Some(7));
    assert_eq!(vcpu.load(VA + PAGE), Ok(0));
    let Exit::Stage1(Abort { esr, far, .. }) = vcpu.store(VA + PAGE, 1).unwrap_err() else { panic!() };
    assert_eq!((esr & 0x7f, far), (1 << 6 | 0b1111, VA + PAGE), "a write, permission, level 3");
    let Exit::Stage1(Abort { esr, .. }) = vcpu.load(VA + 5 * PAGE).unwrap_err() else { panic!() };
    assert_eq!(esr & 0x7f, 0b0111, "a read, translation, level 3");
    assert_eq!(ipa_from_par(vcpu.translate_stage1(VA + PAGE + 8)), Some(Ipa::new(DATA + PAGE)));
    assert_eq!(ipa_from_par(vcpu.translate_stage1(VA + 5 * PAGE)), None);

    // With the MMU off again, the address is the IPA.
    turn_on(&mut vcpu, false);
    assert_eq!(vcpu.load(DATA + 8), Ok(7));
}

#[test]
fn hardware_updates_the_guests_tables_and_stage_2_records_it() {
    let (guest, mut vcpu) = guest();
    let cleaned = |guest: &BareTables| {
        let mut marked = Vec::new();
        let mut note = |leaves: twofold_stage2::Marked| marked.extend(leaves.leaves(PAGE));
        let _ = guest.stage2.clean(RAM..RAM + 16 * PAGE, &mut note).unwrap().complete();
        marked
    };
    cleaned(&guest);
    assert_eq!(vcpu.load(VA), Ok(0));
    assert_eq!(cleaned(&guest), [], "its access flag was set before");
    assert_eq!(vcpu.load(VA + 2 * PAGE), Ok(0));
    assert_eq!(cleaned(&guest), [RAM + 2 * PAGE], "the page of its table");
    let at = frame(2) + 2 * 8;
    assert_eq!(guest.machine.arena().load(at).unwrap() & (ACCESSED | READ_ONLY), ACCESSED | READ_ONLY);
    vcpu.store(VA + 2 * PAGE, 1).unwrap();
    assert_eq!(guest.machine.arena().load(at).unwrap() & (ACCESSED | READ_ONLY), ACCESSED);
    assert_eq!(cleaned(&guest), [RAM + 2 * PAGE, Ipa::new(DATA + 2 * PAGE)]);
}

#[test]
fn the_guest_invalidates_for_itself() {
    let (guest, mut vcpu) = guest();
    assert_eq!(vcpu.load(VA), Ok(0));
    // Another CPU of the guest unmaps the page.
    guest.machine.arena().store(frame(2), 0).unwrap();
    assert_eq!(vcpu.load(VA), Ok(0), "the TLB has it");
    vcpu.invalidate_stage1();
    assert!(matches!(vcpu.load(VA), Err(Exit::Stage1(_))));
}

/// `VMALLE1` removes the entries that combine both stages.
#[test]
fn what_stage_2_takes_away_is_gone() {
    let (mut guest, mut vcpu) = guest();
    vcpu.store(VA, 1).unwrap();
    guest.unmap(Ipa::new(DATA), PAGE);
    let gone = vcpu.store(VA, 2).unwrap_err();
    assert_eq!(fault(gone), Some((FaultKind::Translation, AccessKind::Write, 3)));
    let Exit::Abort(abort) = gone else { panic!() };
    assert_eq!((abort.far, ipa_from_hpfar(abort.hpfar)), (VA, Ipa::new(DATA)));

    guest.unmap(RAM + 2 * PAGE, PAGE);
    let Exit::Abort(abort) = vcpu.load(VA + PAGE).unwrap_err() else { panic!() };
    assert!(Fault::from_syndrome(abort.esr).unwrap().stage1_walk);
    assert_eq!(ipa_from_hpfar(abort.hpfar), RAM + 2 * PAGE);
}

#[test]
fn registers_that_make_no_sense_are_the_guests_own_fault() {
    let (_guest, mut vcpu) = guest();
    vcpu.stage1().tcr |= 1 << 6;
    assert!(matches!(vcpu.load(VA), Err(Exit::Stage1(_))));
}
