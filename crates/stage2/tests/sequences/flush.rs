// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose entries a flush reaches. A TLBI applies to the VMID in `VTTBR_EL2`, so the guest's value is loaded during the
//! flush, and the old value restored after it. Also: a flush that was forgotten.

use super::*;
use crate::platform::window::ByAddress as _;
use crate::platform::{KIB_4, frame};
use twofold_stage2::{Broken, Error, Unwatched};

/// Another guest's `VTTBR_EL2`, with CnP.
const OTHER: u64 = 0x0033_0000_4567_8001;

/// Runs `act` on one mapped page, once with this guest's `VTTBR_EL2` loaded and once with another's, and compares the
/// events.
#[track_caller]
fn flushes_as_itself(flush: Vec<Event>, act: impl Fn(&mut Guest)) {
    for loaded in [true, false] {
        let mut guest = guest(HINTS);
        map_pages(&mut guest, BASE, frame(0), 1);
        let vttbr = guest.stage2.vttbr();
        if !loaded {
            guest.machine.load(OTHER);
        }
        act(&mut guest);
        let expected = if loaded {
            flush.clone()
        } else {
            let switch = |to| vec![Event::LoadVttbr(to), Event::Isb];
            [switch(vttbr), flush.clone(), switch(OTHER)].concat()
        };
        let events = guest.events();
        assert!(events.ends_with(&expected), "loaded: {loaded}: {events:x?}\nexpected {expected:x?}");
        let loads = |events: &[Event]| events.iter().filter(|e| matches!(e, Event::LoadVttbr(_))).count();
        assert_eq!(loads(&events), loads(&expected));
        assert_eq!(guest.machine.loaded(), if loaded { vttbr } else { OTHER });
    }
}

#[test]
fn by_leaf_everywhere() {
    flushes_as_itself(by_leaf(BASE, Some(3)), |guest| {
        let _ = guest.stage2.write_protect(range(BASE, KIB_4)).unwrap().complete();
    });
}

#[test]
fn by_leaf_here() {
    flushes_as_itself(on_this_cpu(BASE, 3), |guest| {
        assert!(guest.stage2.relax(BASE, Access::ALL).is_ok());
    });
}

#[test]
fn the_whole_guest() {
    flushes_as_itself(by_vmid(), |guest| guest.stage2.invalidate_all());
}

/// Stage 1 belongs to the vCPU, and the VMID to the guest.
#[test]
fn stage_1_of_another_vcpu() {
    let local = vec![Event::Tlbi(Tlbi::VmallE1, Reach::Vmid), Event::Dsb(Domain::Nsh), Event::Isb];
    flushes_as_itself(local, |guest| guest.stage2.invalidate_for_other_vcpu());
}

#[test]
fn a_replaced_leaf() {
    let mut guest = guest(HINTS);
    map_pages(&mut guest, BASE, frame(0), 1);
    guest.watch(BASE);
    guest.machine.load(OTHER);
    let vttbr = guest.stage2.vttbr();
    assert!(guest.stage2.map(BASE, frame(KIB_4), Level::L3, &RAM, &mut guest.pool).is_ok());
    let expected = [
        vec![sees_nothing(BASE), Event::LoadVttbr(vttbr), Event::Isb],
        by_leaf(BASE, Some(3)),
        vec![Event::LoadVttbr(OTHER), Event::Isb, sees(BASE, 3, frame(KIB_4), Access::READ_WRITE)],
        vec![Event::Dsb(Domain::IshSt)],
    ];
    assert_eq!(guest.events(), expected.concat());
}

/// The same VMID with other tables is another guest's.
#[test]
fn equal_vmids_do_not_make_equal_guests() {
    let guest = guest(HINTS);
    let alias = guest.stage2.vttbr() ^ 0x1_0000;
    guest.machine.load(alias);
    guest.events();
    guest.stage2.invalidate_all();
    let loads: Vec<_> = guest.events().into_iter().filter(|event| matches!(event, Event::LoadVttbr(_))).collect();
    assert_eq!(loads, [Event::LoadVttbr(guest.stage2.vttbr()), Event::LoadVttbr(alias)]);
}

#[test]
fn a_dropped_flush_is_done_as_complete_does_it() {
    let mut guest = guest(HINTS);
    map_pages(&mut guest, BASE, frame(0), 1);
    let pending = guest.stage2.protect(range(BASE, KIB_4), Access::READ, &mut guest.pool).unwrap();
    guest.machine.events();
    drop(pending);
    assert_eq!(guest.events(), by_leaf(BASE, Some(3)));
    // The change is not pending any more, so a repetition flushes nothing.
    let _ = guest.stage2.write_protect(range(BASE, KIB_4)).unwrap().complete();
    assert_eq!(guest.events(), []);
}

/// The README's example: the second call fails, and the first change is flushed all the same.
#[test]
fn a_flush_that_an_error_drops_is_done() {
    fn protect(stage2: &Stage2<Host>, section: IpaRange, other: Ipa, mask: u64) -> Result<(), Error> {
        let mut pending = stage2.write_protect(section)?;
        pending.join(stage2.write_protect_mask(other, mask)?);
        let _ = pending.complete();
        Ok(())
    }
    let mut guest = guest(HINTS);
    map_pages(&mut guest, BASE, frame(0), 2);
    let outcome = protect(&guest.stage2, range(BASE, KIB_4), BASE + 1, 1);
    assert_eq!(outcome, Err(Error::Misaligned { address: BASE.raw() + 1, size: KIB_4 }));
    assert_eq!(guest.events(), by_leaf(BASE, Some(3)));
    assert_eq!(protect(&guest.stage2, range(BASE, KIB_4), BASE, 0b10), Ok(()));
    assert_eq!(guest.events(), by_leaf(BASE + KIB_4, Some(3)), "only what was not protected before");
}

/// The tables of a flush that is dropped, before or after it is complete, are given back by the next operation that
/// frees pages. Their leaves are reported.
#[test]
fn tables_of_a_dropped_flush_go_back_with_the_next_operation() {
    for complete in [false, true] {
        let mut guest = guest(HINTS);
        map_pages(&mut guest, BASE, frame(0), 2);
        map_pages(&mut guest, BASE + GIB, frame(0), 1);
        let mut reported = Vec::new();
        let out = guest.pool.out.len();
        let pending =
            guest.stage2.unmap(range(BASE, GIB), &mut guest.pool, |leaf: Broken| reported.push(leaf.ipa())).unwrap();
        guest.machine.events();
        if complete {
            drop(pending.complete())
        } else {
            drop(pending)
        }
        assert_eq!(reported, [BASE, BASE + KIB_4]);
        assert!(!guest.machine.events().iter().any(|event| matches!(event, Event::Give(_))), "no source was brought");
        assert_eq!(guest.pool.out.len(), out);
        let _ = guest.stage2.unmap(range(BASE + GIB, 2 * KIB_4), &mut guest.pool, Unwatched).unwrap().complete();
        assert_eq!(guest.pool.out.len(), out - 2, "those of the first GiB");
        let Guest { stage2, mut pool, .. } = guest;
        let _root = stage2.destroy(&mut pool, Unwatched);
        assert_eq!(pool.out.len(), 0);
    }
}

/// An invalidation is of one VMID.
#[test]
fn flushes_of_two_guests_are_not_joined() {
    let (mut one, mut other) = (guest(HINTS), guest(HINTS));
    map_pages(&mut one, BASE, frame(0), 1);
    map_pages(&mut other, BASE, frame(0), 1);
    let mut pending = one.stage2.write_protect(range(BASE, KIB_4)).unwrap();
    pending.join(other.stage2.write_protect(range(BASE, KIB_4)).unwrap());
    assert_eq!(other.machine.events(), by_leaf(BASE, Some(3)), "flushed at once");
    assert_eq!(one.machine.events(), []);
    let _ = pending.complete();
    assert_eq!(one.events(), by_leaf(BASE, Some(3)));
}

#[test]
fn nothing_to_flush_may_be_forgotten() {
    let mut guest = guest(HINTS);
    let pending = guest.stage2.unmap(range(BASE, KIB_4), &mut guest.pool, Unwatched).unwrap();
    assert!(pending.is_empty());
    guest.machine.events();
    drop(pending);
    assert_eq!(guest.events(), []);
}
