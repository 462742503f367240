// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves that a removed slot leaves nothing behind: no mapping, no frame, no log and no identity; and that a read of
//! the guest's RAM returns what was written.

use twofold_memory::dirty::{LogError, LogOptions, Tracker};
use twofold_memory::{Answer, Error, GuestFault, Pages, Slot, SlotError};
use twofold_stage2::Pa;
use twofold_stage2::fault::{AccessKind, FaultKind};

use crate::machine::{HUGE_PAGE, PAGE, device_at};
use crate::world::{BASE, EDGES, FEATURES, Mapped, PAGES, START, World};

#[test]
fn a_slot_that_is_removed_gives_its_frames_back() {
    for mapped in [Mapped::Nothing, Mapped::Pages, Mapped::Blocks, Mapped::Both] {
        let mut world = World::mapped(mapped);
        let counts = |world: &World| {
            let counts = world.guest.memory.counts();
            (world.guest.memory.frames().free(), counts.tables_allocated - counts.tables_freed)
        };
        let all = 4 * 512 + 64;
        assert_eq!(counts(&world).0 == all, mapped == Mapped::Nothing);
        let (given, flushes) = world.flushes(|world| world.guest.memory.remove_slot(world.slot).unwrap());
        assert_eq!(given, None);
        assert_eq!(flushes, usize::from(mapped != Mapped::Nothing));
        assert_eq!(counts(&world), (all, 2), "everything but the root is free");
        assert_eq!(world.guest.scan().leaves, []);
        // An access there aborts.
        let fault = GuestFault { ipa: BASE, kind: FaultKind::Translation, access: AccessKind::Read };
        assert_eq!(world.guest.memory.fault(&fault), Ok(Answer::ExternalAbort));
        assert_eq!(world.guest.memory.read(BASE, &mut [0]), Err(Error::NoRam { ipa: BASE }));
    }
}

#[test]
fn a_number_is_never_used_again() {
    let mut world = World::new(Pages::Small);
    world.start(LogOptions::new(Tracker::Manual));
    world.write_all(EDGES);
    let old = world.slot;
    for _ in 0..3 {
        world.replace_slot();
        assert_ne!(world.slot, old);
        assert_eq!(world.guest.memory.remove_slot(old), Err(Error::Slot(SlotError::Gone)));
        assert_eq!(world.guest.memory.unmap(old, START..START + PAGE), Err(Error::Slot(SlotError::Gone)));
        assert_eq!(world.guest.memory.dirty_log(old).err(), Some(LogError::SlotGone));
    }
    // The new slot has nothing of the old one: no log runs, and its memory is zero.
    assert_eq!(world.log().tracker(), None);
    world.start(LogOptions::new(Tracker::Manual));
    EDGES.into_iter().for_each(|page| world.touch(page, AccessKind::Read));
    world.copy_pages(0..PAGES);
    world.check_reported([]);
    assert_eq!(SlotError::Gone.to_string(), "the slot is gone");
}

#[test]
fn others_stay_when_one_goes() {
    let mut world = World::new(Pages::Largest);
    world.write_all(0..PAGES);
    world.start(LogOptions::new(Tracker::Manual));
    world.write_all(EDGES);
    let end = world.ipa(PAGES);
    let add = |world: &mut World, start, size, backing| {
        world.guest.memory.add_slot(Slot { range: start..start + size, backing, writable: true }).unwrap()
    };
    // In the same tables, on both sides.
    let device = add(&mut world, BASE, 3 * PAGE, device_at(Pa::new(0x20_0000_0000)));
    let behind = add(&mut world, end, HUGE_PAGE, device_at(Pa::new(0x30_0000_0000)));
    for ipa in [BASE, end] {
        let fault = GuestFault { ipa, kind: FaultKind::Translation, access: AccessKind::Write };
        assert!(matches!(world.guest.memory.fault(&fault), Ok(Answer::Retry(_))));
    }
    let before: Vec<_> = world.guest.scan().leaves;
    world.guest.memory.remove_slot(behind).unwrap();
    world.guest.memory.remove_slot(device).unwrap();
    let left: Vec<_> = before.into_iter().filter(|leaf| (START..end).contains(&leaf.ipa)).collect();
    assert_eq!(world.guest.scan().leaves, left);
    world.check_reported(EDGES);
}

#[test]
fn what_is_read_is_what_was_written_and_zero_elsewhere() {
    let bytes: Vec<u8> = (0..3 * PAGE).map(|at| (at ^ at >> 8) as u8 | 1).collect();
    for pages in [Pages::Small, Pages::Largest] {
        let world = World::with(FEATURES, pages, BASE, 1024, 64);
        for offset in [5, PAGE, HUGE_PAGE - PAGE - 3] {
            let at = BASE + offset;
            world.guest.memory.write(at, &bytes).unwrap();
            for (from, size) in [(0, bytes.len()), (1, 7), (8, 64), (4090, 4100), (3, 0)] {
                let mut read = vec![0xaa; size];
                world.guest.memory.read(at + from as u64, &mut read).unwrap();
                assert!(read == bytes[from..from + size], "{size} bytes from {from}, at {at}");
            }
        }
        // Reading memory that was never touched takes no frames.
        let free = world.guest.memory.frames().free();
        let mut read = vec![0xaa; 2 * PAGE as usize];
        world.guest.memory.read(BASE + (HUGE_PAGE + 9 * PAGE + 17), &mut read).unwrap();
        assert!(read.iter().all(|byte| *byte == 0) && world.guest.memory.frames().free() == free);
        // A read beyond RAM is refused, with the first such byte.
        let end = BASE + 2 * HUGE_PAGE;
        let at = BASE + (2 * HUGE_PAGE - 5);
        assert_eq!(world.guest.memory.read(at, &mut [0; 6]), Err(Error::NoRam { ipa: end }));
        assert_eq!(world.guest.memory.read(at, &mut [0; 5]), Ok(()));
    }
}
