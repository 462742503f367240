// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes of permissions and flags: a downgrade reaches all CPUs, and a grant this CPU. Neither breaks an entry.

use super::*;
use crate::platform::{KIB_4, MIB_2, frame, table};
use twofold_stage2::{Donated, Error, Geometry, Granule, Kib4, Kib4Lpa2, Marked, Pa, Relaxed, Root, Vmid};

const WRITABLE: u64 = 1 << 7;
const CLEAN: Attributes = Attributes { dirty_by_hardware: true, ..Attributes::ram(Access::READ) };

#[test]
fn a_narrowed_leaf_is_flushed_everywhere_on_completion() {
    for (level, size) in [(Level::L3, KIB_4), (Level::L2, MIB_2), (Level::L1, GIB)] {
        let mut guest = guest(HINTS);
        map(&mut guest, BASE, frame(0), level, &RAM);
        guest.watch(BASE);

        let pending = guest.stage2.protect(range(BASE, size), Access::READ, &mut guest.pool).unwrap();
        let (narrowing, empty) = (guest.machine.events(), pending.is_empty());
        let _ = pending.complete();

        let narrowed = vec![sees(BASE, level.raw(), frame(0), Access::READ)];
        assert_eq!(narrowing, narrowed);
        assert!(!empty);
        assert_eq!(guest.events(), by_leaf(BASE, Some(level.raw())));
    }
}

#[test]
fn what_allows_no_more_already_is_not_flushed() {
    let mut guest = guest(HINTS);
    map(&mut guest, BASE, frame(0), Level::L3, &Attributes::ram(Access::READ));
    guest.watch(BASE);
    let pending = guest.stage2.protect(range(BASE, 4 * KIB_4), Access::READ, &mut guest.pool).unwrap();
    assert!(pending.is_empty());
    guest.machine.events();
    let _ = pending.complete();
    assert_eq!(guest.events(), []);
}

#[test]
fn the_flush_spans_the_leaves_that_changed_and_no_others() {
    let mut guest = guest(RANGES);
    map_pages(&mut guest, BASE, frame(0), 16);
    let inner = range(BASE + 4 * KIB_4, 8 * KIB_4);
    let _ = guest.stage2.protect(inner.clone(), Access::READ, &mut guest.pool).unwrap().complete();
    guest.events();

    let all = range(BASE, 12 * KIB_4);
    let pending = guest.stage2.protect(all, Access::READ, &mut guest.pool).unwrap();
    guest.machine.events();
    let _ = pending.complete();

    let reach = Reach::Range(BASE, inner.start, Some(3));
    assert_eq!(guest.events(), by_ipa(&[(Tlbi::Ripas2Le1Is, reach)]));
}

/// Blocks at both ends are split; the middle stays a block.
#[test]
fn blocks_across_the_ends_are_split_before() {
    let mut guest = guest(HINTS);
    for index in 0..3 {
        map(&mut guest, BASE + index * MIB_2, frame(index * MIB_2), Level::L2, &RAM);
    }
    let (first, last) = (BASE + (MIB_2 - KIB_4), BASE + 2 * MIB_2);
    let after = last + KIB_4;
    guest.watch(first);
    guest.watch(after);

    let pending = guest.stage2.protect(first..after, Access::READ, &mut guest.pool).unwrap();
    let narrowing = guest.machine.events();
    let _ = pending.complete();

    let rw = Access::READ_WRITE;
    let expected = [
        vec![Event::Take(table(1)), sees_nothing(first)],
        by_leaf(BASE, Some(2)),
        vec![sees(first, 3, frame(MIB_2 - KIB_4), rw), Event::Dsb(Domain::IshSt)],
        vec![Event::Take(table(2)), sees_nothing(after)],
        by_leaf(last, Some(2)),
        vec![sees(after, 3, frame(2 * MIB_2 + KIB_4), rw), Event::Dsb(Domain::IshSt)],
        vec![sees(first, 3, frame(MIB_2 - KIB_4), Access::READ)],
    ];
    assert_eq!(narrowing, expected.concat());
    // Pages and a block: no level hint is possible, and the range has too many pages for single invalidations.
    assert_eq!(guest.events(), by_vmid());
    assert_eq!(guest.walk(BASE + MIB_2).unwrap().level, 2);
    assert_eq!(guest.walk(after).unwrap().access(), rw);
    assert_eq!(guest.walk(BASE).unwrap().access(), rw);
}

/// A write that hardware would grant counts as granted.
#[test]
fn without_writes_hardware_may_not_grant_them_either() {
    let mut guest = guest(HINTS);
    map(&mut guest, BASE, frame(0), Level::L3, &CLEAN);
    let _ = guest.stage2.protect(range(BASE, KIB_4), Access::READ, &mut guest.pool).unwrap().complete();
    assert!(!guest.walk(BASE).unwrap().dirty_by_hardware());
    let flush = by_leaf(BASE, Some(3));
    assert!(guest.events().ends_with(&flush), "a TLB may still grant writes until it is flushed");
}

#[test]
fn execution_is_granted_after_invalidating_code() {
    let code = [Event::Dsb(Domain::Ish), Event::InvalidateCode(frame(0), KIB_4), Event::Dsb(Domain::Ish)];
    let granted = [sees(BASE, 3, frame(0), Access::ALL)];
    let mut guest = guest(HINTS.with_instruction_cache_pipt(true));
    guest.watch(BASE);

    map(&mut guest, BASE, frame(0), Level::L3, &RAM);
    assert_eq!(guest.stage2.relax(BASE, Access::ALL), Ok(Relaxed::Widened));
    assert_eq!(guest.events(), [&code[..], &granted, &on_this_cpu(BASE, 3)].concat());
}

/// Memory that is executable already needed its maintenance earlier.
#[test]
fn execution_that_is_granted_already_touches_no_cache() {
    for level in [Level::L3, Level::L2] {
        let mut guest = guest(HINTS.with_instruction_cache_pipt(true));
        let executable = Attributes::ram(Access { write: false, ..Access::ALL });
        map(&mut guest, BASE, frame(0), level, &executable);
        guest.watch(BASE);
        assert_eq!(guest.stage2.relax(BASE, Access::ALL), Ok(Relaxed::Widened));
        let granted = vec![sees(BASE, level.raw(), frame(0), Access::ALL)];
        assert_eq!(guest.events(), [granted, on_this_cpu(BASE, level.raw())].concat());
    }
}

/// Devices have no cache lines, and here not even a pointer.
#[test]
fn execution_of_a_device_touches_no_cache() {
    let mut guest = guest(HINTS);
    map(&mut guest, BASE, Pa::new(0x0900_0000), Level::L3, &Attributes::device());
    assert_eq!(guest.stage2.relax(BASE, Access::ALL), Ok(Relaxed::Widened));
    assert_eq!(guest.events(), on_this_cpu(BASE, 3));
    assert_eq!(guest.walk(BASE).unwrap().access(), Access::ALL);
}

#[test]
fn widening_is_flushed_on_this_cpu_only() {
    for (level, inside) in [(Level::L3, 0), (Level::L2, 7 * KIB_4 + 8), (Level::L1, 3 * MIB_2 + 1)] {
        let mut guest = guest(HINTS);
        map(&mut guest, BASE, frame(0), level, &Attributes::ram(Access::READ));
        guest.watch(BASE);
        assert_eq!(guest.stage2.relax(BASE + inside, Access::READ_WRITE), Ok(Relaxed::Widened));
        let widened = vec![sees(BASE, level.raw(), frame(0), Access::READ_WRITE)];
        assert_eq!(guest.events(), [widened, on_this_cpu(BASE, level.raw())].concat());
    }
}

/// This CPU's TLB may be stale: without the flush the guest would fault for ever.
#[test]
fn relaxing_flushes_even_where_nothing_changed() {
    let mut guest = guest(HINTS);
    map(&mut guest, BASE, frame(0), Level::L3, &RAM);
    assert_eq!(guest.stage2.relax(BASE, Access::READ), Ok(Relaxed::Already));
    assert_eq!(guest.events(), on_this_cpu(BASE, 3));
    assert_eq!(guest.walk(BASE).unwrap().access(), Access::READ_WRITE);
}

#[test]
fn relaxing_sets_the_access_flag() {
    let mut guest = guest(HINTS);
    map(&mut guest, BASE, frame(0), Level::L3, &Attributes { accessed: false, ..RAM });
    assert!(!guest.walk(BASE).unwrap().accessed());
    assert_eq!(guest.stage2.relax(BASE, Access::NONE), Ok(Relaxed::Widened));
    assert!(guest.walk(BASE).unwrap().accessed());
}

/// The leaf was there a moment ago, and this CPU's TLB may still hold it, at any level.
#[test]
fn relaxing_what_is_gone_makes_this_cpu_forget_it() {
    let mut guest = guest(HINTS);
    map(&mut guest, BASE, frame(0), Level::L3, &RAM);
    for ipa in [BASE + KIB_4, Ipa::new(0)] {
        assert_eq!(guest.stage2.relax(ipa, Access::ALL), Err(Error::NotMapped { ipa }));
        assert_eq!(guest.events(), on_this_cpu(ipa, None));
    }
    let outside = Ipa::new(1 << IPA_BITS);
    assert_eq!(guest.stage2.relax(outside, Access::ALL), Err(Error::NotMapped { ipa: outside }));
    assert_eq!(guest.events(), []);
}

#[test]
fn cleaning_takes_the_recorded_writes_and_flushes_them() {
    let mut guest = guest(HINTS);
    for index in 0..4 {
        map(&mut guest, BASE + index * KIB_4, frame(index * KIB_4), Level::L3, &CLEAN);
    }
    // Writable without DBM, and clean with DBM: neither is reported.
    map(&mut guest, BASE + 4 * KIB_4, frame(4 * KIB_4), Level::L3, &RAM);
    let dirty = BASE + 2 * KIB_4;
    guest.machine.hardware_sets(guest.walk(dirty).unwrap().entry, WRITABLE);
    guest.watch(dirty);

    let mut reported = Vec::new();
    let pending = guest.stage2.clean(range(BASE, 8 * KIB_4), &mut |marked| reported.push(marked)).unwrap();
    let cleaning = guest.machine.events();
    let _ = pending.complete();

    assert_eq!(cleaning, [sees(dirty, 3, frame(2 * KIB_4), Access::READ)]);
    assert_eq!(guest.events(), by_leaf(dirty, Some(3)));
    assert_eq!(reported, [Marked { ipa: BASE, level: Level::L3, mask: 0b100 }]);
    assert!(guest.walk(dirty).unwrap().dirty_by_hardware(), "hardware goes on recording");
    assert!(guest.walk(BASE + 4 * KIB_4).unwrap().access().write);

    let pending = guest.stage2.clean(range(BASE, 8 * KIB_4), &mut |leaf| panic!("{leaf:?}")).unwrap();
    assert!(pending.is_empty());
}

/// The memory of dropped tables is lost, which the platform is notified of. The memory of destroyed tables comes back.
#[test]
fn tables_that_are_dropped_are_abandoned() {
    let mut guest = guest(HINTS);
    map_pages(&mut guest, BASE, frame(0), 1);
    let machine = guest.machine.clone();
    let root = Pa::new(guest.stage2.vttbr() & 0xffff_ffff_f000);
    drop(guest.stage2);
    assert_eq!(machine.abandoned.take(), [root]);
    let Guest { stage2, mut pool, machine, .. } = self::guest(HINTS);
    let (_root, _) = stage2.destroy(&mut pool, twofold_stage2::Unwatched);
    assert_eq!(machine.abandoned.take(), []);
}

/// What a fault needs: one page for each missing table, and none where nothing can be mapped.
#[test]
fn tables_that_are_missing_are_counted() {
    let mut guest = guest(HINTS);
    let needed =
        |guest: &Guest, ipa| [Level::L3, Level::L2, Level::L1].map(|level| guest.stage2.tables_needed(ipa, level));
    assert_eq!(needed(&guest, BASE), [2, 1, 0]);
    map(&mut guest, BASE, frame(0), Level::L2, &RAM);
    assert_eq!(needed(&guest, BASE + MIB_2), [1, 0, 0]);
    map_pages(&mut guest, BASE + MIB_2, frame(0), 1);
    assert_eq!(needed(&guest, BASE + MIB_2 + KIB_4), [0; 3]);
    for behind in [Ipa::new(1 << IPA_BITS), Ipa::new(1 << 50)] {
        assert_eq!(needed(&guest, behind), [0; 3]);
    }
}

#[test]
fn a_vmid_has_to_fit() {
    let build = |vmid: u16, vmid_bits: u32| {
        let guest = guest(HINTS);
        let features = HINTS.with_vmid_bits(vmid_bits);
        let host = crate::platform::Host(guest.machine.clone());
        let Guest { stage2, mut pool, .. } = guest;
        let geometry = *stage2.geometry();
        let (root, _) = stage2.destroy(&mut pool, twofold_stage2::Unwatched);
        Stage2::new(host, features, geometry, Vmid::new(vmid), root).map(drop)
    };
    assert_eq!((build(0xff, 8), build(0x100, 16), build(0xffff, 16)), (Ok(()), Ok(()), Ok(())));
    let refused = Error::Feature { feature: "vmid_bits", value: 32 };
    assert_eq!(build(0xffff, 32), Err(refused), "a number that no CPU has");
    for vmid in [0x100, 0x1ff, 0xffff] {
        assert_eq!(build(vmid, 8), Err(Error::Vmid { vmid, bits: 8 }));
    }
}

/// A root of one table has no memory for a second one after it.
#[test]
fn a_root_has_to_be_large_enough() {
    let Guest { machine, stage2, mut pool, .. } = Guest::new(HINTS, 39);
    let (root, _) = stage2.destroy(&mut pool, twofold_stage2::Unwatched);
    let (pa, host) = (root.pa(), crate::platform::Host(machine.clone()));
    let geometry = Geometry::new(Kib4, IPA_BITS, &HINTS).unwrap();
    machine.events();
    let outcome = Stage2::new(host, HINTS, geometry, Vmid::new(1), root).map(drop);
    assert_eq!(outcome, Err(Error::Root { root: pa, size: 2 * KIB_4 }));
    assert_eq!(machine.events(), [], "nothing is written there");
}

/// With the geometry of another CPU, registers and descriptors would not fit this one.
#[test]
fn a_geometry_has_to_fit_the_features() {
    let Guest { machine, stage2, mut pool, .. } = guest(HINTS);
    let (root, _) = stage2.destroy(&mut pool, twofold_stage2::Unwatched);
    machine.events();
    let host = || crate::platform::Host(machine.clone());
    let refused = |geometry, features, root| Stage2::new(host(), features, geometry, Vmid::new(1), root).err().unwrap();
    let geometry = Geometry::new(Kib4, IPA_BITS, &HINTS.with_pa_bits(44)).unwrap();
    let error = refused(geometry, HINTS.with_granule_4k(false), root_at(0, &geometry));
    assert_eq!(error, Error::Granule { granule: "4 KiB" });
    let error = refused(geometry, HINTS.with_pa_bits(43), root_at(0, &geometry));
    assert_eq!(error, Error::GeometryOfOtherCpu { bits: 44, most: 43 });

    // A root of 48 bits, under a geometry of 44.
    let beyond = root_at(1 << 44, &Geometry::new(Kib4, IPA_BITS, &HINTS).unwrap());
    let error = refused(geometry, HINTS, beyond);
    assert_eq!(error, Error::OutsidePa { pa: Pa::new(1 << 44), bits: 44 });

    let wide = HINTS.with_pa_bits(52).with_lpa2_4k(true);
    let geometry = Geometry::new(Kib4Lpa2, 52, &wide).unwrap();
    let outcome = Stage2::new(host(), HINTS, geometry, Vmid::new(1), root_at(0, &geometry)).map(drop);
    assert_eq!(outcome, Err(Error::Granule { granule: "4 KiB with FEAT_LPA2" }));
    assert_eq!(machine.events(), [], "nothing is written");
    // Less than the CPU has is allowed.
    let geometry = Geometry::new(Kib4, IPA_BITS, &HINTS.with_pa_bits(44)).unwrap();
    Stage2::new(host(), HINTS, geometry, Vmid::new(1), root).unwrap().destroy(&mut pool, twofold_stage2::Unwatched);
}

/// A root that is refused before it is accessed.
fn root_at<G: Granule>(pa: u64, geometry: &Geometry<G>) -> Root {
    // SAFETY: nothing is accessed through it.
    unsafe { Donated::new(Pa::new(pa), geometry.root_size()) }.into_run().into_root(geometry).unwrap()
}
