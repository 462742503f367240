// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Granules of 16 KiB and 64 KiB: a page, a block, a page of a dirty log and what is refused follow the geometry.
//!
//! The walk of these tests is `twofold_machine`'s, which knows the granules from `VTCR_EL2` alone.

use std::rc::Rc;

use twofold_memory::dirty::{CoalescedRange, DirtyPages, LogError, LogOptions, Tracker};
use twofold_memory::{Backing, Error, Frames, GuestFault, GuestMemory, Slot, SlotError, SlotId};
use twofold_stage2::{Contiguous, Geometry, Granule, Kib4, Kib4Lpa2, Kib16, Kib64, Pa, Vmid};

use super::*;
use crate::machine::platform::mmu::Leaf;
use crate::machine::platform::{Event, VMID};
use crate::machine::{HUGE_PAGE, Host, Machine, PREALLOCATED, RAM, device_at};

const FEATURES: Features = FORCED
    .with_granule_16k(true)
    .with_lpa2_4k(true)
    .with_pa_bits(52)
    .with_hardware_access_flag(true)
    .with_hardware_dirty_state(true);

struct Rig<G: Granule> {
    machine: Rc<Machine>,
    memory: GuestMemory<Host, G>,
}

impl<G: Granule> Rig<G> {
    /// A guest with `huge_pages` times 2 MiB, and `preallocated` bytes beside them.
    fn new(pages: Pages, huge_pages: u64, preallocated: u64) -> Self {
        Self::with(FEATURES, pages, huge_pages, preallocated)
    }

    fn with(features: Features, pages: Pages, huge_pages: u64, preallocated: u64) -> Self {
        let machine = Machine::new(features, &[(RAM, huge_pages * HUGE_PAGE), (PREALLOCATED, preallocated)]);
        let mut frames = Frames::new(features);
        frames.add(machine.donate(RAM, huge_pages * HUGE_PAGE));
        let geometry = Geometry::new(G::default(), 40, &features).unwrap();
        let memory = GuestMemory::new(machine.platform(), geometry, Vmid::new(VMID), frames, pages).unwrap();
        machine.enter(memory.stage2().vttbr(), memory.stage2().vtcr());
        Self { machine, memory }
    }

    fn add(&mut self, start: Ipa, size: u64, backing: Backing) -> Result<SlotId, SlotError> {
        let slot = Slot { range: start..start + size, backing, writable: true };
        self.memory.add_slot(slot).map_err(|refused| refused.error)
    }

    fn fault(&self, ipa: Ipa, kind: FaultKind, access: AccessKind) -> Answer {
        self.memory.fault(&GuestFault { ipa, kind, access }).unwrap()
    }

    fn walk(&self, ipa: Ipa) -> Option<Leaf> {
        self.machine.mmu().translate(&|pa| self.machine.read(pa), ipa).ok()
    }

    fn level(&self, ipa: Ipa) -> Option<u8> {
        self.walk(ipa).map(|leaf| leaf.level)
    }

    fn dirty(&self, slot: SlotId) -> Vec<u64> {
        let mut dirty = DirtyPages::new();
        let log = self.memory.dirty_log(slot).unwrap();
        log.get(&mut dirty).unwrap();
        log.clear_these(&dirty).unwrap();
        dirty.pages().collect()
    }
}

/// A first touch zeroes and maps one page of the granule, and no more, whatever the policy: blocks of 32 MiB and more are
/// for preallocated memory.
fn a_first_touch<G: Granule>() {
    for pages in [Pages::Small, Pages::Largest] {
        let mut rig = Rig::<G>::new(pages, 4, G::SIZE);
        rig.add(BASE, 2 * HUGE_PAGE, Backing::Ram).unwrap();
        let page = BASE + 5 * G::SIZE;
        assert_eq!(rig.fault(page + (G::SIZE - 8), Translation, Write), mapped(Level::L3, true));
        let leaf = rig.walk(page).unwrap();
        assert_eq!((leaf.level, leaf.ipa, rig.walk(page + (G::SIZE - 1)).map(|leaf| leaf.ipa)), (3, page, Some(page)));
        assert!(leaf.pa().is_aligned(G::SIZE));
        assert!(rig.machine.bank(leaf.pa()).load(leaf.pa(), G::SIZE).iter().all(|byte| *byte == 0));
        assert_eq!((rig.walk(BASE + 4 * G::SIZE), rig.walk(BASE + 6 * G::SIZE)), (None, None));
        assert_eq!(rig.memory.counts().frames_zeroed, G::SIZE / 4096);
        // What is written crosses pages of the granule, and comes back.
        rig.memory.write(page + (G::SIZE - 2), b"across").unwrap();
        let mut bytes = [0; 6];
        rig.memory.read(page + (G::SIZE - 2), &mut bytes).unwrap();
        assert_eq!((&bytes, rig.memory.counts().frames_zeroed), (b"across", 2 * G::SIZE / 4096));
        assert_eq!(rig.fault(page + G::SIZE, Translation, Read), mapped(Level::L3, false));
        let pa = rig.walk(page + G::SIZE).unwrap().pa();
        assert_eq!(rig.machine.bank(pa).load(pa, 4), b"ross");
        assert_eq!(rig.memory.frame_of(page + (G::SIZE + 100)), Ok(Some(pa)));
    }
}

#[test]
fn a_first_touch_is_of_a_page_of_the_granule() {
    a_first_touch::<Kib16>();
    a_first_touch::<Kib64>();
}

/// With contiguous groups, a first touch zeroes and maps a huge page. What a log, or an unmap, takes apart is joined again.
fn groups<G: Granule>(tracker: Tracker) {
    let mut rig = Rig::<G>::new(Pages::Largest, 4, G::SIZE);
    let slot = rig.add(BASE, 2 * HUGE_PAGE, Backing::Ram).unwrap();
    let pages = HUGE_PAGE / G::SIZE;
    let grouped = |rig: &Rig<G>, start: Ipa| {
        let leaves = (0..pages).filter_map(|page| rig.memory.stage2().look_up(start + page * G::SIZE));
        leaves.filter(|leaf| leaf.level == Level::L3 && leaf.descriptor.is_contiguous()).count() as u64 == pages
    };
    let page = BASE + 5 * G::SIZE;
    assert_eq!(rig.fault(page, Translation, Write), mapped(Level::L3, true));
    assert!(grouped(&rig, BASE) && !grouped(&rig, BASE + HUGE_PAGE));
    let counts = rig.memory.counts();
    assert_eq!((counts.frames_zeroed, counts.first_touches[3]), (512, pages));
    let pa = rig.walk(page).unwrap().pa();
    assert!(rig.machine.bank(pa).load(pa, G::SIZE).iter().all(|byte| *byte == 0));

    // A log notes the page that is written, and no other of the group.
    let options = LogOptions { all_dirty: false, ..LogOptions::new(tracker) };
    rig.memory.dirty_log(slot).unwrap().start(&options).unwrap();
    assert_eq!(rig.dirty(slot), vec![]);
    if tracker == Tracker::Manual {
        assert_eq!(rig.fault(page, Permission, Write), WIDENED);
    } else {
        rig.memory.write(page, &[1]).unwrap();
    }
    assert_eq!((rig.dirty(slot), grouped(&rig, BASE)), (vec![5], false));
    // While a log runs, a first touch is of a page.
    assert_eq!(rig.fault(BASE + HUGE_PAGE, Translation, Write), mapped(Level::L3, true));
    assert_eq!((rig.dirty(slot), rig.walk(BASE + HUGE_PAGE + G::SIZE)), (vec![pages], None));
    let log = rig.memory.dirty_log(slot).unwrap();
    log.stop().unwrap();
    let coalesced = log.coalesce_range(0, 8).unwrap();
    assert_eq!((coalesced.blocks, coalesced.next, grouped(&rig, BASE)), (1, None, true), "one is not ready");
    assert_eq!(log.coalesce_range(0, 8).unwrap().blocks, 0);
    assert_eq!(log.split_pages(0..1), Ok(1));
    assert!(!grouped(&rig, BASE));

    // A fault joins what is there, and maps the rest.
    let last = BASE + (HUGE_PAGE - G::SIZE);
    rig.memory.clear(slot, last..last + G::SIZE).unwrap();
    assert_eq!(rig.fault(last, Translation, Write), mapped(Level::L3, true));
    assert_eq!((grouped(&rig, BASE), rig.memory.counts().promoted), (true, 2));
}

#[test]
fn a_huge_page_is_a_contiguous_group() {
    for tracker in [Tracker::Manual, Tracker::Hardware] {
        groups::<Contiguous<Kib16>>(tracker);
        groups::<Contiguous<Kib64>>(tracker);
    }
}

/// A group is executable from its first fetch on, and not before.
fn executes<G: Granule>() {
    for access in [Read, Write, Execute] {
        let mut rig = Rig::<G>::new(Pages::Largest, 4, G::SIZE);
        rig.add(BASE, HUGE_PAGE, Backing::Ram).unwrap();
        assert_eq!(rig.fault(BASE + 5 * G::SIZE, Translation, access), mapped(Level::L3, true));
        for page in [BASE, BASE + (HUGE_PAGE - G::SIZE)] {
            assert_eq!(rig.walk(page).unwrap().access().execute.any(), access == Execute, "{access:?}");
        }
    }
}

#[test]
fn a_group_is_executable_if_it_is_fetched() {
    executes::<Contiguous<Kib16>>();
    executes::<Contiguous<Kib64>>();
}

/// Without FEAT_S2FWB, the mapping cleans the group.
fn cleans<G: Granule>() {
    let features = PLAIN.with_granule_16k(true).with_zero_block(64);
    let mut rig = Rig::<G>::with(features, Pages::Largest, 4, G::SIZE);
    rig.add(BASE, HUGE_PAGE, Backing::Ram).unwrap();
    rig.machine.events();
    assert_eq!(rig.fault(BASE, Translation, Read), mapped(Level::L3, true));
    let start = rig.walk(BASE).unwrap().pa();
    let clean = |event| if let Event::Clean(pa, size) = event { Some((pa, size)) } else { None };
    let cleaned = rig.machine.events().into_iter().filter_map(clean);
    let cleaned = cleaned.filter(|(pa, _)| *pa >= start && *pa - start < HUGE_PAGE).map(|(_, size)| size);
    assert_eq!(cleaned.sum::<u64>(), HUGE_PAGE);
}

#[test]
fn a_group_is_cleaned_once() {
    cleans::<Contiguous<Kib16>>();
    cleans::<Contiguous<Kib64>>();
}

/// Of a slot of groups, nothing is left to coalesce. So no log is in the way.
fn passes_groups<G: Granule>() {
    let mut rig = Rig::<G>::new(Pages::Largest, 4, G::SIZE);
    let slot = rig.add(BASE, HUGE_PAGE, Backing::Ram).unwrap();
    assert_eq!(rig.fault(BASE, Translation, Write), mapped(Level::L3, true));
    let log = rig.memory.dirty_log(slot).unwrap();
    log.start(&LogOptions::new(Tracker::Manual)).unwrap();
    assert_eq!(log.coalesce_range(0, 8), Ok(CoalescedRange { blocks: 0, next: None }));
}

#[test]
fn a_coalesce_passes_over_groups() {
    passes_groups::<Contiguous<Kib16>>();
    passes_groups::<Contiguous<Kib64>>();
}

/// The pages of a slot of `size` bytes that are in a log which starts just before a fault makes page 5 writable. Its
/// start has not seen that. With `is_mapped`, an earlier log has made the page read-only.
fn logged_as_it_becomes_writable<G: Granule>(size: u64, is_preallocated: bool, is_mapped: bool) -> Vec<u64> {
    let mut rig = Rig::<G>::new(Pages::Largest, 4, size);
    let backing = if is_preallocated { rig.machine.give(PREALLOCATED, size, Level::L2) } else { Backing::Ram };
    let slot = rig.add(BASE, size, backing).unwrap();
    let page = BASE + 5 * G::SIZE;
    let protect = LogOptions { all_dirty: false, chunk: 0, ..LogOptions::new(Tracker::Manual) };
    if is_mapped {
        let _ = rig.fault(page, Translation, Write);
        let log = rig.memory.dirty_log(slot).unwrap();
        log.start(&protect).unwrap();
        log.stop().unwrap();
        assert!(!rig.walk(page).unwrap().access().write);
    }
    let memory = Rc::new(rig.memory);
    let other = Rc::clone(&memory);
    rig.machine.before_next_atomic(move || other.dirty_log(slot).unwrap().start(&protect).unwrap());
    let kind = if is_mapped { Permission } else { Translation };
    assert!(matches!(memory.fault(&GuestFault { ipa: page, kind, access: Write }), Ok(Answer::Retry(_))));
    let log = memory.dirty_log(slot).unwrap();
    assert_eq!(log.tracker(), Some(Tracker::Manual), "it was started meanwhile");
    let mut dirty = DirtyPages::new();
    log.get(&mut dirty).unwrap();
    for page in 0..size / G::SIZE {
        let leaf = rig.machine.mmu().translate(&|pa| rig.machine.read(pa), BASE + page * G::SIZE);
        assert!(dirty.contains(page) || leaf.is_err() || !leaf.unwrap().access().write, "page {page} is lost");
    }
    dirty.pages().collect()
}

#[test]
fn what_becomes_writable_as_a_log_starts_is_reported_whole() {
    let all = |size, page| Vec::from_iter(0..size / page);
    for is_mapped in [false, true] {
        let group = logged_as_it_becomes_writable::<Contiguous<Kib16>>(HUGE_PAGE, false, is_mapped);
        assert_eq!(group, all(HUGE_PAGE, Kib16::SIZE), "mapped: {is_mapped}");
        let group = logged_as_it_becomes_writable::<Contiguous<Kib64>>(HUGE_PAGE, false, is_mapped);
        assert_eq!(group, all(HUGE_PAGE, Kib64::SIZE), "mapped: {is_mapped}");
        assert_eq!(logged_as_it_becomes_writable::<Kib16>(HUGE_PAGE, false, is_mapped), [5]);
    }
    let span = Kib16.span(Level::L2);
    let block = logged_as_it_becomes_writable::<Contiguous<Kib16>>(span, true, true);
    assert_eq!(block, all(span, Kib16::SIZE));
}

/// Of preallocated memory that is cleared, the pages are zero, and those around them stay.
fn clears_preallocated<G: Granule>() {
    let mut rig = Rig::<G>::new(Pages::Largest, 4, 4 * G::SIZE);
    let backing = rig.machine.give(PREALLOCATED, 4 * G::SIZE, Level::L3);
    let slot = rig.add(BASE, 4 * G::SIZE, backing).unwrap();
    let page = vec![0xa5; G::SIZE as usize];
    let whole = page.repeat(4);
    rig.memory.write(BASE, &whole).unwrap();
    rig.memory.clear(slot, BASE + G::SIZE..BASE + 3 * G::SIZE).unwrap();
    let mut read = vec![1; whole.len()];
    rig.memory.read(BASE, &mut read).unwrap();
    let zeroes = vec![0; 2 * page.len()];
    assert!(read == [&page[..], &zeroes, &page].concat(), "{}", G::SIZE);
}

#[test]
fn preallocated_memory_is_cleared_by_pages_of_the_granule() {
    clears_preallocated::<Kib4>();
    clears_preallocated::<Kib16>();
    clears_preallocated::<Kib64>();
}

/// Of 2 MiB that are cleared, given up or removed, every page goes, and every frame returns.
fn goes<G: Granule>() {
    let mut rig = Rig::<G>::new(Pages::Small, 6, G::SIZE);
    let free = rig.memory.frames().free();
    let slot = rig.add(BASE, 2 * HUGE_PAGE, Backing::Ram).unwrap();
    let last = BASE + (HUGE_PAGE - G::SIZE);
    let touch = |rig: &Rig<G>| {
        for ipa in [BASE, last] {
            rig.memory.write(ipa + (G::SIZE - 4), b"used").unwrap();
            assert_eq!(rig.fault(ipa, Translation, Write), mapped(Level::L3, false));
        }
    };
    let read = |rig: &Rig<G>| {
        let mut bytes = [0xff; 4];
        rig.memory.read(last + (G::SIZE - 4), &mut bytes).unwrap();
        bytes
    };
    touch(&rig);
    rig.memory.clear(slot, last..last + G::SIZE).unwrap();
    assert_eq!((read(&rig), rig.level(last), rig.level(BASE)), ([0; 4], None, Some(3)));
    rig.memory.clear(slot, BASE..BASE + HUGE_PAGE).unwrap();
    touch(&rig);
    assert_eq!(rig.memory.give_up(BASE..BASE + HUGE_PAGE).unwrap().frames, 512);
    assert_eq!((read(&rig), rig.level(last), rig.level(BASE)), ([0; 4], None, None));
    touch(&rig);
    rig.memory.remove_slot(slot).unwrap();
    let tables = 2 * G::SIZE / 4096;
    assert!(rig.memory.frames().free() >= free - tables, "only tables are left");
    let frames = rig.memory.destroy(|_| panic!("no slot is preallocated"));
    assert_eq!(frames.free(), 6 * 512);
}

#[test]
fn memory_goes_by_pages_of_the_granule() {
    goes::<Kib16>();
    goes::<Kib64>();
    goes::<Contiguous<Kib16>>();
    goes::<Contiguous<Kib64>>();
}

/// Preallocated memory is mapped by the largest block that the geometry has and that fits.
fn blocks<G: Granule>(level: Level, largest: Level) {
    let span = G::default().span(level);
    let mut rig = Rig::<G>::new(Pages::Largest, 4, 2 * span);
    let backing = rig.machine.give(PREALLOCATED, span, largest);
    rig.add(BASE, span, backing).unwrap();
    // By one page next to a block's boundary, nothing but pages fits.
    let odd = BASE + (1 << 36);
    let backing = rig.machine.give(PREALLOCATED + (span + G::SIZE), span - G::SIZE, largest);
    rig.add(odd, span - G::SIZE, backing).unwrap();
    let inside = BASE + (span - 2 * G::SIZE);
    assert_eq!(rig.fault(inside, Translation, Write), mapped(level, false));
    assert_eq!(rig.walk(BASE).map(|leaf| (leaf.level, leaf.pa())), Some((level.raw(), PREALLOCATED)));
    assert_eq!(rig.fault(odd, Translation, Write), mapped(Level::L3, false));
}

#[test]
fn blocks_are_the_geometrys() {
    blocks::<Kib16>(Level::L2, Level::L1);
    blocks::<Kib64>(Level::L2, Level::L2);
    blocks::<Contiguous<Kib16>>(Level::L2, Level::L1);
    blocks::<Kib4Lpa2>(Level::L1, Level::L1);
}

/// Registers are, too: 64 GiB and 4 TiB are no blocks without FEAT_LPA2 and FEAT_LPA.
fn of_a_device<G: Granule>(level: Level) {
    let mut rig = Rig::<G>::new(Pages::Small, 4, G::SIZE);
    let start = Ipa::new(64 << 30);
    rig.add(start, 64 << 30, device_at(Pa::new(128 << 30))).unwrap();
    assert_eq!(rig.fault(start + (1 << 30), Translation, Read), mapped(level, false));
}

#[test]
fn registers_are_mapped_by_blocks_of_the_geometry() {
    of_a_device::<Kib16>(Level::L2);
    of_a_device::<Kib64>(Level::L2);
    of_a_device::<Kib4Lpa2>(Level::L1);
}

/// A log counts pages of the granule. A block is split for it, and coalesced again.
fn logs<G: Granule>(tracker: Tracker) {
    let span = G::default().span(Level::L2);
    let mut rig = Rig::<G>::new(Pages::Largest, 8, span);
    let backing = rig.machine.give(PREALLOCATED, span, Level::L2);
    let slot = rig.add(BASE, span, backing).unwrap();
    let ram = rig.add(BASE + (1 << 36), HUGE_PAGE, Backing::Ram).unwrap();
    assert_eq!(rig.fault(BASE, Translation, Write), mapped(Level::L2, false));
    assert_eq!(rig.memory.dirty_log(slot).unwrap().pages(), span / G::SIZE);
    for slot in [slot, ram] {
        let options = LogOptions { all_dirty: false, ..LogOptions::new(tracker) };
        rig.memory.dirty_log(slot).unwrap().start(&options).unwrap();
    }
    assert_eq!((rig.dirty(slot), rig.dirty(ram)), (vec![], vec![]));
    // Hardware would record it, or the page is read-only.
    if tracker == Tracker::Manual {
        assert_eq!(rig.fault(BASE + (7 * G::SIZE + 5), Permission, Write), WIDENED);
    } else {
        rig.memory.write(BASE + (7 * G::SIZE + 5), &[1]).unwrap();
    }
    assert_eq!(rig.fault(BASE + (1 << 36) + 3 * G::SIZE, Translation, Write), mapped(Level::L3, true));
    rig.memory.write(BASE + (1 << 36) + (5 * G::SIZE - 1), &[1; 2]).unwrap();
    assert_eq!((rig.dirty(slot), rig.dirty(ram)), (vec![7], vec![3, 4, 5]));
    assert_eq!((rig.dirty(slot), rig.dirty(ram)), (vec![], vec![]));
    assert_eq!(rig.level(BASE), Some(3));
    let log = rig.memory.dirty_log(slot).unwrap();
    log.stop().unwrap();
    assert_eq!(log.coalesce_pages(0..span / G::SIZE - 1), Ok(0), "no whole block is in these pages");
    let coalesced = log.coalesce_range(0, 8).unwrap();
    assert_eq!((coalesced.blocks, coalesced.next, rig.level(BASE)), (1, None, Some(2)));
    assert_eq!(log.split_pages(0..1), Ok(1));
    assert_eq!(rig.level(BASE), Some(3));
    let log = rig.memory.dirty_log(ram).unwrap();
    log.stop().unwrap();
    assert_eq!(log.coalesce_range(0, 8).unwrap().blocks, 0, "RAM has no blocks of this size");
}

#[test]
fn a_log_counts_pages_of_the_granule() {
    for tracker in [Tracker::Manual, Tracker::Hardware] {
        logs::<Kib16>(tracker);
        logs::<Kib64>(tracker);
    }
}

/// What is not whole pages of the granule is refused by name.
fn refuses<G: Granule>() {
    let mut rig = Rig::<G>::new(Pages::Small, 4, 4 * G::SIZE);
    let page = G::SIZE;
    for (start, size) in [(BASE + 4096, page), (BASE, page + 4096)] {
        let error = SlotError::Misaligned { start, end: start + size, page };
        assert_eq!(rig.add(start, size, Backing::Ram), Err(error));
        assert!(error.to_string().ends_with(&format!("whole pages of {page} bytes")));
    }
    let device = Pa::new(0x900_1000);
    assert_eq!(rig.add(BASE, page, device_at(device)), Err(SlotError::DeviceMisaligned { start: BASE, device, page }));
    let preallocated = PREALLOCATED + 4096;
    let backing = rig.machine.give(preallocated, page, Level::L3);
    let error = SlotError::PreallocatedMisaligned { start: BASE, preallocated, page };
    assert_eq!(rig.add(BASE, page, backing), Err(error));
    let slot = rig.add(BASE, HUGE_PAGE, Backing::Ram).unwrap();
    let options = LogOptions { chunk: 4096, ..LogOptions::new(Tracker::Manual) };
    let started = rig.memory.dirty_log(slot).unwrap().start(&options);
    assert_eq!(started, Err(LogError::Chunk { chunk: 4096, page }));
    let unmapped = rig.memory.unmap(slot, BASE..BASE + 4096);
    assert!(matches!(unmapped, Err(Error::Stage2(twofold_stage2::Error::Misaligned { .. }))), "{unmapped:?}");
}

#[test]
fn parts_of_pages_of_the_granule_are_refused() {
    refuses::<Kib16>();
    refuses::<Kib64>();
}
