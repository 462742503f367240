// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves that a fault without memory left returns an error, leaves no half-made mapping and loses no frame, and that
//! the same fault succeeds when there is memory again.

use twofold_memory::{Error, Frames, GuestMemory};
use twofold_stage2::{Geometry, Kib4, Pa, Run, Vmid};

use super::*;
use crate::machine::guest::IPA_BITS;
use crate::machine::platform::VMID;
use crate::machine::{HUGE_PAGE, Machine, PAGE, RAM, device_at};

/// Memory that tests donate later.
const MORE: Pa = Pa::new(0x9_0000_0000);
/// Tables below the root that map one page.
const TABLES: u64 = 2;

/// A guest with `huge_pages` huge pages, and `frames` single frames beside the root's two.
fn poor(features: Features, pages: Pages, huge_pages: u64, frames: u64) -> RunningGuest {
    let banks = [(RAM, (huge_pages + 1) * HUGE_PAGE), (MORE, 8 * HUGE_PAGE)];
    let machine = Machine::new(features, &banks);
    let mut pool = Frames::new(features);
    pool.add(machine.donate(RAM, huge_pages * HUGE_PAGE + (2 + frames) * PAGE));
    let guest = RunningGuest::on(machine, pool, pages, IPA_BITS);
    assert_eq!(guest.memory.frames().free(), huge_pages * 512 + frames);
    guest
}

fn add(guest: &mut RunningGuest, offset: u64, size: u64) {
    let more = guest.machine.donate(MORE + offset, size);
    guest.memory.frames().add(more);
}

/// Checks that the fault fails with `error` each time, and that nothing is mapped at `ipa` then.
fn fails(guest: &mut RunningGuest, ipa: Ipa, access: AccessKind, error: Error) {
    let leaves = guest.scan().leaves;
    for _ in 0..3 {
        assert_eq!(guest.fault(ipa, Translation, access), Err(error));
        assert_eq!((guest.walk(ipa), guest.memory.stage2().look_up(ipa)), (None, None));
        assert_eq!(guest.scan().leaves, leaves);
    }
}

/// Checks that every frame is free, backs RAM, or is a table; `huge_pages` huge pages of RAM are taken.
fn check_frames(guest: &RunningGuest, donated: u64, huge_pages: u64) {
    let counts = guest.memory.counts();
    assert_eq!(counts.tables_freed, 0);
    assert_eq!(guest.memory.frames().free() + huge_pages * 512 + counts.tables_allocated, donated);
    // The root has two, and the walk finds the others.
    assert_eq!(guest.scan().links.len() as u64 + 2, counts.tables_allocated);
}

#[test]
fn no_frames_to_back_the_guest() {
    for (pages, level) in [(Pages::Small, Level::L3), (Pages::Largest, Level::L2)] {
        // One frame less than the mapping needs.
        let mut guest = poor(PLAIN, pages, 0, 500);
        guest.add_ram(BASE, HUGE_PAGE);
        let at = BASE + 3 * PAGE;
        fails(&mut guest, at + 0x234, Write, Error::NoFrames { ipa: at });
        check_frames(&guest, 502, 0);
        assert_eq!(guest.memory.counts().frames_zeroed, 0);

        add(&mut guest, 0, HUGE_PAGE);
        assert_eq!(guest.fault(at + 0x234, Translation, Write), Ok(mapped(level, true)));
        assert_eq!(guest.fault_of(at, Write), None);
        check_frames(&guest, 502 + 512, 1);
    }
}

#[test]
fn fragments_do_not_back_a_huge_page() {
    let mut guest = poor(PLAIN, Pages::Small, 0, TABLES);
    guest.add_ram(BASE, HUGE_PAGE);
    // 1022 frames in a row, but no aligned 2 MiB.
    add(&mut guest, PAGE, 2 * HUGE_PAGE - 2 * PAGE);
    fails(&mut guest, BASE, Read, Error::NoFrames { ipa: BASE });
    add(&mut guest, 4 * HUGE_PAGE, HUGE_PAGE);
    guest.reach(BASE, Read);
    check_frames(&guest, 2 + TABLES + 1022 + 512, 1);
}

#[test]
fn one_huge_page_of_two_can_be_backed() {
    let mut guest = poor(PLAIN, Pages::Largest, 1, TABLES);
    guest.add_ram(BASE, 2 * HUGE_PAGE);
    guest.reach(BASE, Write);
    fails(&mut guest, BASE + HUGE_PAGE, Write, Error::NoFrames { ipa: BASE + HUGE_PAGE });
    // The first mapping stays.
    assert_eq!(guest.fault_of(BASE + (HUGE_PAGE - 1), Write), None);
    add(&mut guest, 0, HUGE_PAGE);
    guest.reach(BASE + HUGE_PAGE, Write);
}

#[test]
fn no_table_page() {
    for features in [PLAIN, FORCED] {
        for (pages, needed) in [(Pages::Small, TABLES), (Pages::Largest, TABLES - 1)] {
            for frames in 0..needed {
                let mut guest = poor(features, pages, 1, frames);
                guest.add_ram(BASE, HUGE_PAGE);
                let at = BASE + 7 * PAGE;
                let leaf = if pages == Pages::Small { at } else { BASE };
                let level = Level::new(2 + frames as u8).unwrap();
                let error = Error::Stage2(twofold_stage2::Error::NoTablePage { ipa: leaf, level });
                fails(&mut guest, at, Write, error);
                check_frames(&guest, 512 + 2 + frames, 1);
                assert_eq!(guest.memory.counts().mapped, [0; 4]);

                let zeroes = vec![0; PAGE as usize];
                guest.machine.watch(at, Some(zeroes.clone()));
                // One page at a time, until there are enough.
                for have in frames..needed {
                    fails(
                        &mut guest,
                        at,
                        Write,
                        Error::Stage2(twofold_stage2::Error::NoTablePage {
                            ipa: leaf,
                            level: Level::new(2 + have as u8).unwrap(),
                        }),
                    );
                    add(&mut guest, have * PAGE, PAGE);
                }
                let pa = guest.reach(at, Write);
                guest.machine.check_page(pa, &zeroes);
                check_frames(&guest, 512 + 2 + needed, 1);
                // The huge page was taken and zeroed once.
                assert_eq!(guest.memory.counts().frames_zeroed, if pages == Pages::Small { 1 } else { 512 });
                assert_eq!(guest.memory.frames().free(), 0);
            }
        }
    }
}

#[test]
fn a_device_without_table_pages() {
    let mut guest = poor(PLAIN, Pages::Largest, 0, 0);
    guest.add(BASE, PAGE, device_at(Pa::new(0x20_0000_0000)), true);
    fails(&mut guest, BASE, Read, Error::Stage2(twofold_stage2::Error::NoTablePage { ipa: BASE, level: Level::L2 }));
    add(&mut guest, 0, TABLES * PAGE);
    guest.reach(BASE, Read);
    check_frames(&guest, 2 + TABLES, 0);
}

#[test]
fn writing_without_frames_says_where_it_stopped() {
    let mut guest = poor(FORCED, Pages::Small, 1, TABLES + 1);
    guest.add_ram(BASE, 2 * HUGE_PAGE);
    let at = BASE + (HUGE_PAGE - 3);
    assert_eq!(guest.memory.write(at, b"sixsix"), Err(Error::NoFrames { ipa: BASE + HUGE_PAGE }));
    add(&mut guest, 0, HUGE_PAGE);
    assert_eq!(guest.memory.write(at, b"second"), Ok(()));
    for (offset, byte) in b"second".iter().enumerate() {
        let pa = guest.reach(at + offset as u64, Read);
        assert_eq!(guest.machine.bank(pa).load(pa, 1), [*byte]);
    }
}

#[test]
fn no_root() {
    let machine = Machine::new(PLAIN, &[(RAM, 4 * PAGE)]);
    let geometry = Geometry::new(Kib4, IPA_BITS, &PLAIN).unwrap();
    let mut frames = Frames::new(PLAIN);
    // Two frames, but not aligned to their size.
    frames.add(machine.donate(RAM + PAGE, 2 * PAGE));
    let error = GuestMemory::new(machine.platform(), geometry, Vmid::new(VMID), frames, Pages::Small).err();
    assert_eq!(error, Some(Error::NoRoot { size: 2 * PAGE }));
}

#[test]
fn frames_that_others_hold_are_not_the_guests() {
    let mut guest = poor(PLAIN, Pages::Small, 1, TABLES);
    guest.add_ram(BASE, HUGE_PAGE);
    let run: Option<Run> = guest.memory.frames().take(512);
    assert!(run.is_some());
    fails(&mut guest, BASE, Read, Error::NoFrames { ipa: BASE });
}
