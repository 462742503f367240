// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an embedder may get wrong: each is refused by name, with the figure, and the guest goes on. Stores that
//! misbehave are in `misbehaving.rs`, and files that are full, short or failing in `machine/tests/file_store`.

use std::sync::Arc;

use twofold_memory::async_fault::AreaMemory;
use twofold_memory::async_fault::Arrival::{Failed, Present};
use twofold_memory::swap::{
    AttachError, Clock, FRAMES_PER_VCPU, Generations, LimitError, NotAttached, NotBegun, PinnedFor, Place, SwapOptions,
    Unasked, Waiter, WriteOutError, WrittenOut,
};
use twofold_memory::{Backing, Error, Frames, GuestMemory, Pages, SharedFrames, Slot};
use twofold_stage2::{Geometry, Kib4, Kib16, Pa, Vmid};

use crate::machine::{HUGE_PAGE, Machine, RAM, device_at};
use crate::rig::{Absent, FEATURES, Plan, Rig, ipa};
use crate::store::{Reports, Store};

#[test]
fn without_a_store_nothing_leaves() {
    let mut rig = Rig::new();
    (0..4).for_each(|page| rig.write(page));
    std::rc::Rc::get_mut(&mut rig.memory).unwrap().detach_store().unwrap();
    let memory = &rig.memory;
    assert_eq!(rig.write_out(1), Err(WriteOutError::NoStore));
    assert_eq!(Clock::new().make_room(memory, 1), Err(WriteOutError::NoStore));
    assert_eq!(Generations::new().make_room(memory, 1), Err(WriteOutError::NoStore));
    assert_eq!(memory.bring(ipa(1), Waiter::Other(0)), Err(NotAttached));
    let place = Place::new(1);
    assert_eq!(memory.begin_read(ipa(1), place, Unasked::Here).unwrap_err(), NotBegun::Elsewhere);
    assert_eq!(memory.make_zero(ipa(1), place), Err(NotBegun::Elsewhere));
    assert_eq!((memory.wants_frames(), memory.fail_waiting(), memory.frame_use().waiting), (0, 0, 0));
    // A guest without a store takes 2 MiB at a time.
    let refused = memory.set_limit(511).unwrap_err();
    assert_eq!(refused, LimitError::TooSmall { limit: 511, least: 512, pinned: 0 });
    assert_eq!(memory.set_limit(512), Ok(0));
    // The rest of the guest has no frame, which is an error and no page to wait for.
    assert_eq!(memory.write(ipa(512), &[1]), Err(Error::NoFrames { ipa: ipa(512) }));
    (0..4).for_each(|page| rig.write(page));
    memory.set_limit(1024).unwrap();
    rig.write(512);
    rig.end();
}

#[test]
fn a_limit_counts_each_vcpu_and_each_pinned_page() {
    for vcpus in [1, 2, 5] {
        let rig = Rig::with_vcpus(Plan { huge_pages: 0, singles: 120, ..Plan::default() }, vcpus);
        let pinned = rig.memory.pin(ipa(0)..ipa(7), PinnedFor::Writing).unwrap();
        let least = u64::from(vcpus) * FRAMES_PER_VCPU + 7;
        let refused = rig.memory.set_limit(least - 1).unwrap_err();
        assert_eq!(refused, LimitError::TooSmall { limit: least - 1, least, pinned: 7 });
        let text = refused.to_string();
        assert!([least - 1, least, 7].iter().all(|figure| text.contains(&figure.to_string())), "{text}");
        assert_eq!(rig.memory.frame_use().limit, u64::MAX, "nothing has changed");
        assert_eq!(rig.memory.set_limit(least), Ok(0));
        (0..least).for_each(|page| rig.write(page));
        assert_eq!(rig.try_write(least), Err(Absent));
        rig.memory.unpin(pinned);
        rig.leave(0);
        rig.write(least);
        rig.memory.set_limit(u64::MAX).unwrap();
        rig.end();
    }
}

#[test]
fn addresses_without_ram_are_refused_by_name() {
    let rig = Rig::new();
    let none = ipa(5000);
    assert_eq!(rig.memory.write_out(none), Err(WriteOutError::NoRam { page: none }));
    assert_eq!(rig.memory.locate(none), Err(Error::NoRam { ipa: none }));
    rig.memory.bring(none, Waiter::Other(3)).unwrap();
    assert_eq!(rig.reports.arrived(), [(Waiter::Other(3), Failed)], "it cannot come");
    rig.write(0);
    rig.check();
    rig.end();
}

/// The area of a vCPU is in one page of RAM that the guest may write, and that may go.
#[test]
fn an_area_has_to_be_in_ram() {
    let mut rig = Rig::new();
    let memory = std::rc::Rc::get_mut(&mut rig.memory).unwrap();
    let devices = ipa(3000)..ipa(3001);
    let device = Slot { range: devices, backing: device_at(Pa::new(0x1000_0000)), writable: true };
    memory.add_slot(device).unwrap();
    memory.add_slot(Slot { range: ipa(3001)..ipa(3002), backing: Backing::Ram, writable: false }).unwrap();
    let area = |memory: &_, at| AreaMemory::place(memory, at, 64);
    for refused in [ipa(3000), ipa(3001), ipa(2000), ipa(1) + (4096 - 63)] {
        assert_eq!(area(memory, refused), None, "{refused}");
    }
    assert_eq!(memory.locate(ipa(3000)), Err(Error::NoRam { ipa: ipa(3000) }));
    let place = area(memory, ipa(1) + (4096 - 64)).unwrap();
    assert_eq!(AreaMemory::write(memory, place, 4, &[1, 2, 3, 4]), Ok(()));
    assert_eq!(AreaMemory::read(memory, place, 4), Ok(0x0403_0201));
    // The last slot, so that no other takes its index.
    let last = memory.add_slot(Slot { range: ipa(4000)..ipa(4001), backing: Backing::Ram, writable: true }).unwrap();
    let place = area(memory, ipa(4000)).unwrap();
    memory.remove_slot(last).unwrap();
    assert_eq!(AreaMemory::read(memory, place, 0), Ok(0), "its owner sees the generation change");
    assert_eq!(AreaMemory::write(memory, place, 0, &[1]), Ok(()));
}

/// A store with fewer places than the guest has pages above its limit: the guest uses all places, stops at the page that
/// has none, and goes on when the store has room.
#[test]
fn a_guest_goes_as_far_as_its_store() {
    let rig = Rig::with(Plan { huge_pages: 0, singles: 60, ..Plan::default() });
    rig.memory.set_limit(16).unwrap();
    rig.store.get().capacity = 10;
    let mut ages = Generations::new();
    let mut stopped = None;
    for page in 0..40 {
        while rig.try_write(page).is_err() {
            rig.bring(page, 0);
            if let Err(error) = ages.make_room(&rig.memory, 1) {
                assert!(matches!(error, WriteOutError::StoreFull { .. }), "{error}");
                assert_eq!((rig.memory.fail_waiting(), rig.reports.arrived()), (1, vec![(Waiter::Other(0), Failed)]));
                stopped.get_or_insert(page);
                rig.store.get().capacity = 100;
            } else {
                assert_eq!(rig.reports.arrived(), [(Waiter::Other(0), Present)]);
            }
        }
        rig.check();
    }
    assert_eq!(stopped, Some(16 + 10), "the limit, and the places");
    // A page that is zero needs no place.
    rig.store.get().capacity = 0;
    let present = (0..40).find(|page| rig.located(*page) == twofold_memory::swap::Located::Present).unwrap();
    rig.write_zero(present);
    assert_eq!(rig.write_out(present), Ok(WrittenOut::Freed));
    rig.memory.set_limit(u64::MAX).unwrap();
    rig.store.get().capacity = 100;
    rig.end();
}

/// A store keeps pages of 4 KiB.
#[test]
fn a_guest_with_larger_pages_gets_no_store() {
    let features = FEATURES.with_granule_16k(true);
    let machine = Machine::new(features, &[(RAM, HUGE_PAGE)]);
    let mut frames = Frames::new(features);
    frames.add(machine.donate(RAM, HUGE_PAGE));
    let geometry = Geometry::new(Kib16, 40, &features).unwrap();
    let mut memory = GuestMemory::new(machine.platform(), geometry, Vmid::new(1), frames, Pages::Small).unwrap();
    let options = SwapOptions { vcpus: 1, others: 1, headroom: 0 };
    let refused = memory.attach_store(Box::new(Store::new()), Box::new(Arc::new(Reports::default())), &options);
    assert_eq!(refused, Err(AttachError::PageSize { page: 16384 }));
    assert_eq!(
        AttachError::PageSize { page: 16384 }.to_string(),
        "the guest has pages of 16384 bytes, and a store keeps pages of 4096"
    );
    memory.destroy(|_| ());
}

/// A huge page that guests share goes back to them as a whole, so none of its pages may be elsewhere.
#[test]
fn a_guest_that_shares_frames_gets_no_store() {
    let machine = Machine::new(FEATURES, &[(RAM, 3 * HUGE_PAGE)]);
    let mut frames = Frames::new(FEATURES);
    frames.add(machine.donate(RAM, 3 * HUGE_PAGE));
    let shared = Arc::new(SharedFrames::new(&mut frames));
    let frames = Frames::sharing(FEATURES, shared, 1024);
    let geometry = Geometry::new(Kib4, 40, &FEATURES).unwrap();
    let mut memory = GuestMemory::new(machine.platform(), geometry, Vmid::new(1), frames, Pages::Small).unwrap();
    let options = SwapOptions { vcpus: 1, others: 1, headroom: 0 };
    let refused = memory.attach_store(Box::new(Store::new()), Box::new(Arc::new(Reports::default())), &options);
    assert_eq!(refused, Err(AttachError::Shared));
    memory.destroy(|_| ());
}
