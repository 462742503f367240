// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Defects that were found in other implementations, one test for each. Those of concurrency are in `threads`.

use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;
use std::rc::Rc;

use super::*;
use crate::platform::tlb::RemoteTlb;
use crate::platform::window::ByAddress as _;
use crate::platform::{KIB_4, MIB_2, VMID, frame};
use twofold_stage2::{Broken, Leaf, Memory, Unwatched};

const WRITABLE: u64 = 1 << 7;
const TRACKED: Attributes = Attributes { dirty_by_hardware: true, ..Attributes::ram(Access::READ) };
const OTHER: u64 = 0x0033_0000_4567_8001;

type Taking = (&'static str, Level, fn(&mut Guest));

/// All operations that remove a page at `BASE`, or an access to it, or to the block that contains it.
const TAKING: [Taking; 10] = [
    ("unmap", Level::L3, |guest| {
        let pending = guest.stage2.unmap(range(BASE, KIB_4), &mut guest.pool, Unwatched).unwrap();
        pending.complete().free(&mut guest.pool);
    }),
    ("unmap and report", Level::L3, |guest| {
        let pending = guest.stage2.unmap(range(BASE, KIB_4), &mut guest.pool, |_: Broken| ()).unwrap();
        pending.complete().free(&mut guest.pool);
    }),
    ("unmap a table", Level::L3, |guest| {
        let pending = guest.stage2.unmap(range(BASE, GIB), &mut guest.pool, Unwatched).unwrap();
        pending.complete().free(&mut guest.pool);
    }),
    ("unmap a part", Level::L2, |guest| {
        let pending = guest.stage2.unmap(range(BASE, KIB_4), &mut guest.pool, Unwatched).unwrap();
        pending.complete().free(&mut guest.pool);
    }),
    ("write-protect", Level::L3, |guest| drop(guest.stage2.write_protect(range(BASE, KIB_4)).unwrap().complete())),
    ("write-protect a mask", Level::L3, |guest| drop(guest.stage2.write_protect_mask(BASE, 1).unwrap().complete())),
    ("protect", Level::L3, |guest| {
        drop(guest.stage2.protect(range(BASE, KIB_4), Access::NONE, &mut guest.pool).unwrap().complete());
    }),
    ("clean", Level::L3, |guest| drop(guest.stage2.clean(range(BASE, KIB_4), &mut |_| ()).unwrap().complete())),
    ("replace", Level::L3, |guest| {
        assert!(guest.stage2.map(BASE, frame(GIB), Level::L3, &RAM, &mut guest.pool).is_ok());
    }),
    ("replace by another type", Level::L2, |guest| {
        let attributes = Attributes { memory: Memory::NonCacheable, ..RAM };
        assert!(guest.stage2.map(BASE, frame(0), Level::L2, &attributes, &mut guest.pool).is_ok());
    }),
];

/// Operations that replace an entry by one of another size that maps the same memory.
const RESHAPING: [Taking; 2] = [
    ("split", Level::L2, |guest| {
        let go_on = |_: &mut _, _| ControlFlow::Continue(());
        assert_eq!(guest.stage2.split(range(BASE, MIB_2), GIB, &mut guest.pool, go_on).unwrap().blocks, 1);
    }),
    ("coalesce", Level::L3, |guest| {
        let pool = &mut guest.pool;
        assert!(guest.stage2.coalesce(BASE, frame(0), Level::L2, &RAM, pool, &mut |_| ()).is_ok());
    }),
];

/// A guest with one dirty leaf.
fn guest_with(features: Features, level: Level) -> Guest {
    let mut guest = guest(features);
    map(&mut guest, BASE, frame(0), level, &TRACKED);
    guest.machine.hardware_sets(guest.walk(BASE).unwrap().entry, WRITABLE);
    guest
}

fn each(check: impl Fn(&str, Guest, fn(&mut Guest))) {
    for features in [HINTS, RANGES, HINTS.with_forced_write_back(false)] {
        for (name, level, act) in TAKING.into_iter().chain(RESHAPING) {
            check(name, guest_with(features, level), act);
        }
    }
}

/// The flush of hvisor has an empty body; that of axvm has no barrier before it. aarch64-paging and Bao leave combined
/// entries.
#[test]
#[cfg_attr(miri, ignore = "full tables take too long there")]
fn whatever_takes_away_invalidates_by_the_whole_sequence() {
    each(|name, mut guest, act| {
        act(&mut guest);
        let is_part = |event: &Event| matches!(event, Event::Tlbi(..) | Event::Dsb(_) | Event::Isb);
        let events: Vec<Event> = guest.events().into_iter().filter(is_part).collect();
        let is_stage_2 = |event: &Event| matches!(event, Event::Tlbi(operation, _) if *operation != Tlbi::VmallE1Is);
        let first = events.iter().position(is_stage_2).unwrap_or_else(|| panic!("{name} invalidates nothing"));
        let last = first + events[first..].iter().take_while(|event| is_stage_2(event)).count();
        assert_eq!(events[first - 1], Event::Dsb(Domain::IshSt), "{name}");
        let all = events[first] == Event::Tlbi(Tlbi::VmallS12E1Is, Reach::Vmid);
        let behind = if all { &by_vmid()[2..] } else { &by_ipa(&[])[1..] };
        assert!(events[last..].starts_with(behind), "{name}: {events:x?}");
    });
}

/// Zephyr and page_table_multiarch shift the address by the granule, axvm not at all: they invalidate another address.
/// Hafnium and OP-TEE name another IPA space, which [`Reach::decode`] refuses.
#[test]
fn the_address_that_is_invalidated_is_the_one_that_changed() {
    for page in [0, 1, 0x155, 0x1ff_ffff] {
        let ipa = Ipa::new(page * KIB_4);
        let mut guest = guest(HINTS);
        map(&mut guest, ipa, frame(0), Level::L3, &RAM);
        let _ = guest.stage2.write_protect(range(ipa, KIB_4)).unwrap().complete();
        assert_eq!(guest.events(), by_leaf(ipa, Some(3)));
    }
}

/// Bao writes the VMID back where the whole register belongs.
#[test]
#[cfg_attr(miri, ignore = "full tables take too long there")]
fn the_register_of_the_guest_that_was_loaded_comes_back_whole() {
    each(|name, mut guest, act| {
        guest.machine.load(OTHER);
        act(&mut guest);
        assert_eq!(guest.machine.loaded(), OTHER, "{name}");
        let loads: Vec<_> = guest.events().into_iter().filter(|event| matches!(event, Event::LoadVttbr(_))).collect();
        assert!(!loads.is_empty(), "{name}");
        let pair = [Event::LoadVttbr(guest.stage2.vttbr()), Event::LoadVttbr(OTHER)];
        assert!(loads.chunks(2).all(|chunk| chunk == pair), "{name}: {loads:x?}");
    });
}

/// axvm and axaddrspace read the access back inverted.
#[test]
fn access_reads_back_as_it_was_asked_for() {
    let write_only = Access { read: false, ..Access::READ_WRITE };
    for access in [Access::NONE, Access::READ, write_only, Access::READ_WRITE, Access::ALL] {
        let mut guest = guest(HINTS);
        map(&mut guest, BASE, frame(0), Level::L3, &Attributes::ram(access));
        assert_eq!(guest.walk(BASE).unwrap().access(), access);
        let leaf = guest.stage2.look_up(BASE).unwrap();
        assert_eq!((leaf.descriptor.access(), leaf.descriptor.is_writable()), (access, access.write));
        assert_eq!(leaf.descriptor.attributes(guest.stage2.features()).access, access);
    }
}

/// In Genode, detached memory stays reachable. Here another CPU's TLB holds everything that was mapped. When the
/// operation has ended, that TLB holds nothing that the tables do not have. casemate allows a changed output address on
/// a live leaf; that fails here too, since the TLB still holds the old one.
#[test]
#[cfg_attr(miri, ignore = "full tables take too long there")]
fn what_is_gone_is_gone_for_a_tlb_that_held_it() {
    each(|name, mut guest, act| {
        let tlb = Rc::new(RefCell::new(RemoteTlb::new(VMID, guest.scan())));
        let other_cpu = tlb.clone();
        guest.machine.set_hook(move |event, vttbr| other_cpu.borrow_mut().observe(event, vttbr));
        act(&mut guest);
        assert!(!name.is_empty());
        tlb.borrow().check(&guest.scan());
    });
}

/// The same from the walk's side: at each step it finds the old frame, nothing, or the new frame, in this order. During
/// the flush it finds nothing.
#[test]
fn an_output_address_is_never_swapped_on_a_live_leaf() {
    let mut guest = guest(HINTS);
    map(&mut guest, BASE, frame(0), Level::L3, &RAM);
    let (machine, mmu) = (guest.machine.clone(), guest.mmu());
    let seen = Rc::new(RefCell::new(Vec::new()));
    let found = seen.clone();
    let look = move || {
        let pa = mmu.translate(&|pa| machine.read(pa), BASE).ok().map(|leaf| leaf.pa());
        let mut found = found.borrow_mut();
        if found.last() != Some(&pa) {
            found.push(pa);
        }
    };
    let at_atomics = look.clone();
    guest.machine.set_hook(move |_, _| look());
    guest.machine.set_atomic_hook(at_atomics);
    assert!(guest.stage2.map(BASE, frame(GIB), Level::L3, &RAM, &mut guest.pool).is_ok());
    assert_eq!(*seen.borrow(), [Some(frame(0)), None, Some(frame(GIB))]);
}

/// The posted combined dirty log (Kolothum 2023) applies a stale value again in a retry loop, and reads dirty state
/// before the break. Here hardware writes just before each read-modify-write of each operation. Then the entry has the
/// write, or the operation reports it.
#[test]
fn what_hardware_records_at_any_moment_is_kept_or_reported() {
    type Act = fn(&mut Guest) -> bool;
    let operations: [(&str, Act); 8] = [
        ("relax", |guest| guest.stage2.relax(BASE, Access { write: false, ..Access::ALL }).is_err()),
        ("make young", |guest| guest.stage2.make_young(BASE).is_err()),
        ("age", |guest| guest.stage2.age(range(BASE, KIB_4), &mut |_| ()).is_err()),
        ("protect", |guest| {
            let keep = Access { read: false, ..Access::READ_WRITE };
            drop(guest.stage2.protect(range(BASE, KIB_4), keep, &mut guest.pool).unwrap().complete());
            false
        }),
        ("clean", |guest| {
            let mut reported = false;
            drop(guest.stage2.clean(range(BASE, KIB_4), &mut |_| reported = true).unwrap().complete());
            reported
        }),
        ("unmap", |guest| {
            let mut reported = false;
            let removed = |leaf: Broken| reported = leaf.is_hardware_dirty();
            let pending = guest.stage2.unmap(range(BASE, KIB_4), &mut guest.pool, removed).unwrap();
            pending.complete().free(&mut guest.pool);
            reported
        }),
        ("unmap a table", |guest| {
            let mut reported = false;
            let removed = |leaf: Broken| reported |= leaf.is_hardware_dirty();
            let pending = guest.stage2.unmap(range(BASE, GIB), &mut guest.pool, removed).unwrap();
            pending.complete().free(&mut guest.pool);
            reported
        }),
        ("coalesce", |guest| {
            let (mut reported, pool) = (false, &mut guest.pool);
            let dirty = &mut |leaf: Leaf| reported |= leaf.descriptor.is_hardware_dirty();
            assert!(guest.stage2.coalesce(BASE, frame(0), Level::L2, &TRACKED, pool, dirty).is_ok());
            reported
        }),
    ];
    for (name, act) in operations {
        let mut written_in_all = 0;
        for moment in 0.. {
            let mut guest = guest(HINTS);
            map(&mut guest, BASE, frame(0), Level::L3, &Attributes { accessed: false, ..TRACKED });
            let entry = guest.walk(BASE).unwrap().entry;
            let machine = guest.machine.clone();
            let (steps, written) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
            let (at, did) = (steps.clone(), written.clone());
            guest.machine.set_atomic_hook(move || {
                // As hardware does: never in a broken entry.
                if at.get() == moment && machine.read(entry) & 1 == 1 {
                    machine.hardware_sets(entry, WRITABLE);
                    did.set(true);
                }
                at.set(at.get() + 1);
            });
            let reported = act(&mut guest);
            guest.machine.set_atomic_hook(|| ());
            let kept = guest.walk(BASE).is_some_and(|leaf| leaf.access().write);
            assert_eq!(reported as u32 + kept as u32, u32::from(written.get()), "{name}, at {moment}");
            written_in_all += u32::from(written.get());
            if moment >= steps.get() {
                break;
            }
        }
        assert!(written_in_all > 0, "{name} was never met");
    }
}

/// It also stores plainly over hardware's updates. No hook can run between the load and the store of such a change. So
/// this test counts: changing a leaf with DBM takes one more read-modify-write than changing a leaf by a store under
/// the lock.
#[test]
fn a_leaf_in_which_hardware_records_is_never_stored_to() {
    type Act = fn(&mut Guest);
    let operations: [(&str, Act); 4] = [
        ("relax", |guest| assert!(guest.stage2.relax(BASE, Access { write: false, ..Access::ALL }).is_ok())),
        ("make young", |guest| assert!(guest.stage2.make_young(BASE).is_ok())),
        ("age", |guest| assert!(guest.stage2.age(range(BASE, KIB_4), &mut |_| ()).is_ok())),
        ("protect", |guest| {
            let keep = Access { read: false, ..Access::READ_WRITE };
            drop(guest.stage2.protect(range(BASE, KIB_4), keep, &mut guest.pool).unwrap().complete());
        }),
    ];
    for (name, act) in operations {
        let [tracked, plain] = [true, false].map(|dirty_by_hardware| {
            let mut guest = guest(HINTS);
            let accessed = name == "age";
            let attributes = Attributes { dirty_by_hardware, accessed, ..Attributes::ram(Access::READ) };
            map(&mut guest, BASE, frame(0), Level::L3, &attributes);
            let before = guest.walk(BASE).unwrap().raw;
            let atomics = Rc::new(Cell::new(0));
            let count = atomics.clone();
            guest.machine.set_atomic_hook(move || count.set(count.get() + 1));
            act(&mut guest);
            assert_ne!(guest.walk(BASE).unwrap().raw, before, "{name} changes the leaf");
            atomics.get()
        });
        assert!(tracked > plain, "{name}: {tracked} read-modify-writes with DBM, {plain} without");
    }
}
