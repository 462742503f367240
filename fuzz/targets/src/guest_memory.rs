// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's memory under any memslots, loader's writes, faults and calls of dirty logs, compared with a list of
//! memslots and of written bytes. The machine and its CPU are those of `memory`'s own tests.

use std::collections::BTreeMap;

use arbitrary::{Result, Unstructured};
use twofold_memory::dirty::{DirtyPages, LogError, LogOptions, Tracker};
use twofold_memory::{Answer, Done, Error, Frames, Pages, Slot, SlotError, SlotId};
use twofold_stage2::fault::{AccessKind, FaultKind};
use twofold_stage2::{Features, Ipa, IpaRange, Level, Pa};

use crate::any;
use crate::machine::guest::{IPA_BITS, Outcome, RunningGuest, needed};
use crate::machine::{GIB, HUGE_PAGE, Machine, PAGE, PREALLOCATED, RAM};

/// The frames: some single pages, and so few huge pages that they are likely to run out.
const SINGLES: Pa = Pa::new(0x9_0000_0000);
const SINGLE_PAGES: u64 = 24;
const HUGE_PAGES: u64 = 2;
const MOST_OPERATIONS: usize = 32;
/// The base of most addresses, so that operations overlap.
const BASE: u64 = GIB;

/// A memslot is accepted or refused by the rules, and a refusal changes nothing. A fault is answered by its memslot's
/// rules and makes progress; the mapped page holds the written bytes, and zeros elsewhere. No frame has two uses. A
/// page that no log reports equals its last copy.
pub fn guest_memory(data: &[u8]) {
    let _ = run(&mut Unstructured::new(data));
}

fn run(u: &mut Unstructured<'_>) -> Result<()> {
    let records = u.arbitrary()?;
    let base = Features::NONE.with_hardware_access_flag(records).with_hardware_dirty_state(records);
    let base = base.with_data_line(2048).with_instruction_line(2048);
    let features = any::features(u, base)?;
    // Large, like the cache lines, so that a huge page does not take tens of thousands of them.
    let features = features.with_zero_block(features.zero_block / 64 * 2048);
    let mut world = World::new(features, if u.arbitrary()? { Pages::Largest } else { Pages::Small });
    for _ in 0..MOST_OPERATIONS {
        if u.is_empty() {
            break;
        }
        match u.int_in_range(0..=9)? {
            0 => world.add_slot(slot(u)?),
            1 | 2 => {
                let (kind, access) = (any::fault_kind(u)?, any::access_kind(u)?);
                world.fault(Ipa::new(address(u)?), kind, access);
            }
            3 => {
                let access = any::access_kind(u)?;
                world.touch(Ipa::new(address(u)?), access);
            }
            4 => {
                let at = Ipa::new(address(u)?);
                let bytes = vec![u.arbitrary::<u8>()? | 1; u.int_in_range(0..=3 * PAGE as usize)?];
                world.write(at, &bytes);
            }
            5 => {
                let byte = u.arbitrary()?;
                world.store(Ipa::new(address(u)?), byte);
            }
            6 => world.start(u.arbitrary()?, options(u)?),
            7 => world.copy_dirty(u.arbitrary()?),
            8 => {
                let (slot, first, pages, words) = u.arbitrary::<(u8, u16, u16, u8)>()?;
                let masks = vec![u.arbitrary()?; usize::from(words) % 16];
                world.clear(slot, (u64::from(first), u64::from(pages)), &masks);
            }
            _ => {
                let (slot, kind) = u.arbitrary()?;
                world.end(slot, kind, Ipa::new(address(u)?));
            }
        }
    }
    world.check_contents();
    world.check_uses();
    Ok(())
}

/// The preallocated backing in bytes, for one memslot at a time.
const GIVEN_SIZE: u64 = 3 * HUGE_PAGE;

/// A memslot, as it was added.
#[derive(Clone, Debug)]
struct PlainSlot {
    range: IpaRange,
    backing: Backing,
    writable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backing {
    Ram,
    /// Preallocated backing: the offset in pages, and the largest leaf.
    Preallocated(u64, Level),
    Device(Pa),
}

/// The guest, and its expected state.
struct World {
    guest: RunningGuest,
    slots: Vec<PlainSlot>,
    /// The logs of `slots`, in the same order.
    logs: Vec<Log>,
    /// The pages that are not all zero.
    contents: BTreeMap<Ipa, Vec<u8>>,
    /// The last copies of pages of running logs.
    copies: BTreeMap<Ipa, Vec<u8>>,
}

/// The log of a memslot.
struct Log {
    id: SlotId,
    runs: Option<Tracker>,
}

/// The largest memslot in bytes for which a log is started; a larger one would take too long.
const MOST_LOGGED: u64 = 4 * GIB;

impl World {
    fn new(features: Features, pages: Pages) -> Self {
        let banks = [(SINGLES, SINGLE_PAGES * PAGE), (RAM, HUGE_PAGES * HUGE_PAGE), (PREALLOCATED, GIVEN_SIZE)];
        let machine = Machine::new(features, &banks);
        let mut frames = Frames::new(features);
        banks[..2].iter().for_each(|(start, size)| frames.add(machine.donate(*start, *size)));
        let (contents, copies) = (BTreeMap::new(), BTreeMap::new());
        Self {
            guest: RunningGuest::on(machine, frames, pages, IPA_BITS),
            slots: Vec::new(),
            logs: Vec::new(),
            contents,
            copies,
        }
    }

    /// Makes a memslot's backing. Preallocated backing is zero and exclusive, and has the memslot's size or all that is
    /// left.
    fn backing(&self, slot: &PlainSlot) -> twofold_memory::Backing {
        match slot.backing {
            Backing::Ram => twofold_memory::Backing::Ram,
            Backing::Device(device) => crate::machine::device_at(device),
            Backing::Preallocated(page, largest) => {
                self.guest.machine.bank(PREALLOCATED).make_zero();
                let size = slot.range.end.raw().saturating_sub(slot.range.start.raw());
                let size = if size.is_multiple_of(PAGE) { size.min(GIVEN_SIZE - page * PAGE) } else { PAGE };
                self.guest.machine.give(PREALLOCATED + page * PAGE, size, largest)
            }
        }
    }

    fn add_slot(&mut self, slot: PlainSlot) {
        let (start, end) = (slot.range.start, slot.range.end);
        let limit = Ipa::new(1 << IPA_BITS);
        let is_preallocated = |slot: &PlainSlot| matches!(slot.backing, Backing::Preallocated(..));
        if is_preallocated(&slot) && self.slots.iter().any(is_preallocated) {
            return;
        }
        let overlaps = |other: &PlainSlot| other.range.start < end && start < other.range.end;
        let pages = start < end && start.is_aligned(PAGE) && end.is_aligned(PAGE);
        let before = self.guest.scan();
        let added = Slot { range: slot.range.clone(), backing: self.backing(&slot), writable: slot.writable };
        match self.guest.memory.add_slot(added) {
            Ok(id) => {
                assert!(self.logs.iter().all(|log| log.id != id), "an id is used again");
                assert!(pages && end <= limit && !self.slots.iter().any(overlaps), "{slot:?} was accepted");
                if let Backing::Device(device) = slot.backing {
                    let ends = device.raw().checked_add(end - start).is_some();
                    assert!(device.is_aligned(PAGE) && ends, "{slot:?} was accepted");
                }
                self.slots.push(slot);
                self.logs.push(Log { id, runs: None });
            }
            Err(twofold_memory::Refused { error, .. }) => match error {
                SlotError::Misaligned { .. } => assert!(!pages),
                SlotError::OutsideIpa { .. } => assert!(end > limit),
                SlotError::DeviceMisaligned { device, .. } => assert!(!device.is_aligned(PAGE)),
                SlotError::DeviceOutside { device, .. } => {
                    assert!(device.raw().checked_add(end - start).is_none());
                }
                SlotError::PreallocatedSize { size, preallocated, .. } => {
                    assert!(is_preallocated(&slot) && size == end - start && size != preallocated)
                }
                SlotError::Overlap { other, .. } => {
                    let named = self.slots.iter().find(|slot| slot.range.start == other);
                    assert!(named.is_some_and(overlaps), "{slot:?} and {other}");
                }
                error => panic!("{slot:?} is new: {error}"),
            },
        }
        assert_eq!(self.guest.scan(), before);
    }

    fn slot(&self, ipa: Ipa) -> Option<&PlainSlot> {
        self.slots.iter().find(|slot| slot.range.contains(&ipa))
    }

    fn is_ram(&self, ipa: Ipa) -> bool {
        self.slot(ipa).is_some_and(PlainSlot::is_ram)
    }

    /// Returns the answer to an access that no memslot allows, whatever is mapped; `None` if the access is allowed.
    fn refused(&self, ipa: Ipa, kind: FaultKind, access: AccessKind) -> Option<Answer> {
        let Some(slot) = self.slot(ipa) else {
            let skips = access == AccessKind::Maintenance;
            return Some(if skips { Answer::Skip } else { Answer::ExternalAbort });
        };
        let is_allowed = match access {
            AccessKind::Read => true,
            // Among cache maintenance, only `DC IVAC` takes a permission fault on readable memory.
            AccessKind::Maintenance => kind != FaultKind::Permission || slot.writable,
            AccessKind::Write => slot.writable,
            AccessKind::Execute => slot.is_ram(),
        };
        (!is_allowed).then_some(Answer::ExternalAbort)
    }

    /// Takes any fault, even one that the tables do not cause: a TLB may be stale.
    fn fault(&mut self, ipa: Ipa, kind: FaultKind, access: AccessKind) {
        let before = self.guest.scan();
        let was_mapped = self.guest.walk(ipa);
        let outcome = self.guest.fault(ipa, kind, access);
        let after = self.guest.scan();
        match outcome {
            Ok(answer @ (Answer::ExternalAbort | Answer::Skip)) => {
                assert_eq!(self.refused(ipa, kind, access), Some(answer), "{kind:?} for {access:?} at {ipa}");
                assert_eq!(before, after);
            }
            Ok(Answer::Absent) => panic!("an absent page, without a page store"),
            Ok(Answer::Retry(done)) => {
                assert_eq!(self.refused(ipa, kind, access), None, "{kind:?} for {access:?} at {ipa}");
                match done {
                    Done::Mapped { level, .. } => {
                        // A block may replace smaller leaves.
                        let grows = was_mapped.is_some_and(|leaf| leaf.level > level.raw());
                        assert!((was_mapped.is_none() || grows) && kind == FaultKind::Translation);
                        self.check_leaf(ipa);
                        self.check_new(ipa);
                    }
                    Done::Widened | Done::WidenedAround => assert!(was_mapped.is_some()),
                    Done::Interrupted => panic!("no interrupt is pending on this machine"),
                    // A log may set DBM on the pages around.
                    Done::Stale => assert!(before == after || self.logs.iter().any(|log| log.runs.is_some())),
                }
                if let Some(leaf) =
                    self.guest.walk(ipa).filter(|_| was_mapped.is_some() && kind != FaultKind::AccessFlag)
                {
                    assert!(leaf.access().covers(needed(access)), "{kind:?} for {access:?} at {ipa}: {leaf:x?}");
                }
            }
            Err(error) => {
                self.check_error(ipa, &error);
                assert_eq!(before.leaves, after.leaves, "{error}");
            }
        }
    }

    /// Checks the error of an allowed access: memory ran out, or the device's address is out of range.
    fn check_error(&self, ipa: Ipa, error: &Error) {
        use twofold_stage2::Error as Stage2;
        let slot = self.slot(ipa).unwrap_or_else(|| panic!("{ipa}: {error}"));
        let frames = self.guest.memory.frames().free();
        match (error, slot.backing) {
            (Error::NoFrames { .. }, Backing::Ram) => assert!(frames < HUGE_PAGES * HUGE_PAGE / PAGE),
            (Error::Stage2(Stage2::NoTablePage { .. }), _) => assert_eq!(frames, 0),
            (Error::Stage2(Stage2::OutsidePa { .. }), Backing::Device(device)) => {
                let pa = u128::from(device.raw()) + u128::from(ipa - slot.range.start);
                assert!(pa >> self.guest.machine.features.pa_bits != 0, "{error}");
            }
            _ => panic!("{ipa}: {error}"),
        }
    }

    /// Makes the guest's access with its faults; returns the physical address that it reaches.
    fn touch(&mut self, ipa: Ipa, access: AccessKind) -> Option<Pa> {
        match self.guest.touch(ipa, access) {
            Ok(Outcome::Reaches(pa, _)) => {
                assert_eq!(self.refused(ipa, FaultKind::Translation, access), None, "{access:?} at {ipa} reaches {pa}");
                self.check_leaf(ipa);
                Some(pa)
            }
            Ok(outcome @ (Outcome::Aborts | Outcome::Skipped)) => {
                let answer = if outcome == Outcome::Skipped { Answer::Skip } else { Answer::ExternalAbort };
                assert_eq!(self.refused(ipa, FaultKind::Translation, access), Some(answer), "{access:?} at {ipa}");
                None
            }
            Err(error) => {
                self.check_error(ipa, &error);
                None
            }
        }
    }

    /// The guest stores a byte, if it may, and reads it back.
    fn store(&mut self, at: Ipa, byte: u8) {
        if let Some(leaf) = self.guest.walk(at).filter(|leaf| leaf.dirty_by_hardware()) {
            // Hardware sets S2AP[1] first.
            assert!(leaf.level == 3 && self.guest.machine.features.hardware_dirty_state, "{leaf:x?}");
            self.guest.machine.bank(leaf.entry).set_word(leaf.entry, leaf.raw | 1 << 7);
        }
        let Some(pa) = self.touch(at, AccessKind::Write).filter(|_| self.is_ram(at)) else { return };
        self.guest.machine.bank(pa).store(pa, &[byte]);
        self.set(at, byte);
    }

    /// The loader writes bytes to addresses that are not mapped yet.
    fn write(&mut self, at: Ipa, bytes: &[u8]) {
        let pages =
            (at.raw() / PAGE..=at.raw().saturating_add(bytes.len() as u64) / PAGE).map(|page| Ipa::new(page * PAGE));
        if pages.into_iter().any(|page| self.guest.walk(page).is_some()) {
            return;
        }
        let before = self.guest.scan();
        let stored = match self.guest.memory.write(at, bytes) {
            Ok(()) => bytes.len() as u64,
            Err(Error::NoRam { ipa }) => {
                assert!(!self.is_ram(ipa));
                ipa - at
            }
            Err(Error::NoFrames { ipa }) => {
                assert!(self.is_ram(ipa));
                ipa.raw().saturating_sub(at.raw())
            }
            Err(error) => panic!("{at}: {error}"),
        };
        assert_eq!(self.guest.scan(), before);
        for (offset, byte) in bytes.iter().enumerate().take(stored as usize) {
            let ipa = at + offset as u64;
            assert!(self.is_ram(ipa), "{ipa} was written");
            self.set(ipa, *byte);
        }
    }

    fn set(&mut self, at: Ipa, byte: u8) {
        let page = at.align_down(PAGE);
        self.contents.entry(page).or_insert_with(|| vec![0; PAGE as usize])[(at - page) as usize] = byte;
    }

    /// Selects a memslot, if there is one.
    fn any_slot(&self, any: u8) -> Option<usize> {
        usize::from(any).checked_rem(self.slots.len())
    }

    /// Returns the first page and the number of pages of a memslot.
    fn range(&self, slot: usize) -> (Ipa, u64) {
        let IpaRange { start, end } = self.slots[slot].range;
        (start, (end - start) / PAGE)
    }

    fn start(&mut self, any: u8, options: LogOptions) {
        let Some(slot) = self.any_slot(any) else { return };
        let ((start, pages), PlainSlot { writable, .. }) = (self.range(slot), self.slots[slot].clone());
        let is_ram = self.slots[slot].is_ram();
        let log = match self.guest.memory.dirty_log(self.logs[slot].id) {
            Ok(log) => log,
            Err(LogError::NotRam { start: at }) => return assert!(at == start && !is_ram),
            Err(LogError::ReadOnly { start: at }) => {
                return assert!(at == start && is_ram && !writable);
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!((log.pages(), log.tracker()), (pages, self.logs[slot].runs));
        if pages * PAGE > MOST_LOGGED {
            return;
        }
        let before = self.guest.scan();
        match log.start(&options) {
            Ok(()) => {
                assert_eq!((self.logs[slot].runs, log.tracker()), (None, Some(options.tracker)));
                self.logs[slot].runs = Some(options.tracker);
                if !options.all_dirty {
                    self.copy(start..start + pages * PAGE);
                }
                return;
            }
            Err(LogError::Running { .. }) => assert!(self.logs[slot].runs.is_some()),
            Err(LogError::NoDirtyState) => assert!(!self.guest.machine.features.hardware_dirty_state),
            Err(LogError::AllDirtyNeedsClear) => assert!(options.all_dirty && options.tracker == Tracker::WriteProtect),
            Err(LogError::Chunk { chunk, .. }) => assert!(chunk != 0 && (chunk < PAGE || !chunk.is_power_of_two())),
            Err(LogError::Section { pages }) => assert!(!pages.is_power_of_two() || !(8..=512).contains(&pages)),
            Err(error) => panic!("{error}"),
        }
        assert_eq!(before, self.guest.scan(), "a refused start changed the tables");
    }

    /// A round of a migration: the reported pages are cleared or stay dirty, and all other pages equal their copies.
    fn copy_dirty(&mut self, any: u8) {
        let Some(slot) = self.any_slot(any) else { return };
        let Ok(log) = self.guest.memory.dirty_log(self.logs[slot].id) else { return };
        let (mut dirty, (start, pages)) = (DirtyPages::new(), self.range(slot));
        let Some(tracker) = self.logs[slot].runs else {
            return assert_eq!(log.get(&mut dirty), Err(LogError::NotRunning { start }));
        };
        log.get(&mut dirty).unwrap();
        for (ipa, content) in self.contents.range(start..start + pages * PAGE) {
            let is_copied = || self.copies.get(ipa) == Some(content);
            assert!(dirty.contains((*ipa - start) / PAGE) || is_copied(), "{ipa} was written, but no log has it");
        }
        let cleared = any >= 128 && tracker != Tracker::WriteProtect;
        if cleared {
            log.clear_these(&dirty).unwrap();
        }
        if cleared || tracker == Tracker::WriteProtect {
            dirty.pages().for_each(|page| self.copy(start + page * PAGE..start + (page + 1) * PAGE));
        }
    }

    fn clear(&mut self, any: u8, (first, pages): (u64, u64), masks: &[u64]) {
        let Some(slot) = self.any_slot(any) else { return };
        let Ok(log) = self.guest.memory.dirty_log(self.logs[slot].id) else { return };
        let (start, count) = self.range(slot);
        let error = match log.clear(first, pages, masks) {
            Ok(()) => {
                assert!(self.logs[slot].runs.is_some_and(|tracker| tracker != Tracker::WriteProtect));
                assert!(first % 64 == 0 && first + pages <= count && (pages % 64 == 0 || first + pages == count));
                // The pages are read after the clear. Pages that were not cleared stay in the log.
                return self.copy(start + first * PAGE..start + (first + pages) * PAGE);
            }
            Err(error) => error,
        };
        let wrong = match error {
            LogError::Misaligned { page } => page % 64 != 0,
            LogError::Length { pages, slot } => pages % 64 != 0 && first + pages != slot,
            LogError::BeyondSlot { page, pages, slot } => page + pages > slot,
            LogError::Mask { words, pages } => words as u64 != pages.div_ceil(64),
            LogError::NotRunning { .. } => self.logs[slot].runs.is_none(),
            LogError::ClearedByGet => self.logs[slot].runs == Some(Tracker::WriteProtect),
            _ => false,
        };
        assert!(wrong, "{error}");
    }

    /// Stops a log, coalesces pages, unmaps pages, or removes a memslot.
    fn end(&mut self, any: u8, kind: u8, at: Ipa) {
        let Some(slot) = self.any_slot(any) else { return };
        let (id, (start, pages)) = (self.logs[slot].id, self.range(slot));
        match kind % 4 {
            0 => {
                let Ok(log) = self.guest.memory.dirty_log(id) else { return };
                let not_running = Err(LogError::NotRunning { start });
                assert_eq!(log.stop(), if self.logs[slot].runs.take().is_some() { Ok(()) } else { not_running });
            }
            1 => {
                let Ok(log) = self.guest.memory.dirty_log(id) else { return };
                match log.coalesce_range(at.raw() / PAGE % pages, u64::from(kind / 64)) {
                    Ok(coalesced) => assert!(coalesced.blocks <= u64::from(kind / 64)),
                    Err(LogError::Running { .. }) => assert!(self.logs[slot].runs.is_some()),
                    Err(LogError::Stage2(twofold_stage2::Error::NoTablePage { .. })) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            2 => {
                let page = at.align_down(PAGE);
                let Some(end) = page.checked_add(u64::from(kind) * PAGE) else { return };
                match self.guest.memory.unmap(id, page..end) {
                    Ok(()) => {}
                    Err(Error::Stage2(twofold_stage2::Error::NoTablePage { .. })) => {
                        assert_eq!(self.guest.memory.frames().free(), 0);
                    }
                    Err(error) => panic!("{page}: {error}"),
                }
            }
            _ => {
                let returned = self.guest.memory.remove_slot(id).unwrap();
                assert_eq!(returned.is_some(), matches!(self.slots[slot].backing, Backing::Preallocated(..)));
                assert_eq!(self.guest.memory.remove_slot(id), Err(Error::Slot(SlotError::Gone)));
                assert_eq!(self.guest.memory.dirty_log(id).err(), Some(LogError::SlotGone));
                self.slots.remove(slot);
                self.logs.remove(slot);
                for bytes in [&mut self.contents, &mut self.copies] {
                    bytes.retain(|ipa, _| !(start..start + pages * PAGE).contains(ipa));
                }
            }
        }
    }

    /// Copies pages, and checks that they hold the written bytes.
    fn copy(&mut self, pages: IpaRange) {
        for (ipa, content) in self.contents.range(pages) {
            let mut bytes = vec![0; PAGE as usize];
            self.guest.memory.read(*ipa, &mut bytes).unwrap();
            assert!(bytes == *content, "{ipa}");
            self.copies.insert(*ipa, bytes);
        }
    }

    /// Checks that the leaf is inside its memslot and maps the right memory.
    fn check_leaf(&self, ipa: Ipa) {
        let leaf = self.guest.walk(ipa).unwrap_or_else(|| panic!("{ipa} is not mapped"));
        let slot = self.slot(ipa).expect("a mapped address has a memslot");
        assert!(slot.range.start <= leaf.ipa && leaf.end() <= slot.range.end, "{leaf:x?} reaches beyond {slot:?}");
        assert!(slot.writable || !leaf.access().write, "{leaf:x?}");
        match slot.backing {
            Backing::Device(device) => {
                assert_eq!(leaf.output(ipa).raw(), device.raw() + (ipa - slot.range.start));
                assert!(!leaf.access().execute.any(), "{leaf:x?}");
            }
            Backing::Ram | Backing::Preallocated(..) => {
                let page = ipa.align_down(PAGE);
                let pa = leaf.output(page);
                if let Backing::Preallocated(first, largest) = slot.backing {
                    assert_eq!(pa, PREALLOCATED + first * PAGE + (page - slot.range.start));
                    assert!(leaf.level >= largest.raw());
                }
                assert!(self.guest.machine.bank(pa).load(pa, PAGE) == self.content(page), "{page}");
            }
        }
    }

    /// Checks that a guest with its caches off reads the same bytes through a leaf that was just mapped.
    fn check_new(&self, ipa: Ipa) {
        let Some(leaf) = self.guest.walk(ipa).filter(|_| self.is_ram(ipa)) else { return };
        let written = self.contents.range(leaf.ipa..leaf.end()).map(|(page, _)| *page);
        for page in written.chain([ipa.align_down(PAGE)]) {
            self.guest.machine.check_page(leaf.output(page), &self.content(page));
        }
    }

    fn content(&self, page: Ipa) -> Vec<u8> {
        self.contents.get(&page).cloned().unwrap_or_else(|| vec![0; PAGE as usize])
    }

    /// Checks that the guest's loads return exactly the written bytes.
    fn check_contents(&self) {
        for leaf in self.guest.scan().leaves {
            for ipa in (leaf.ipa.raw()..leaf.end().raw()).step_by(PAGE as usize).map(Ipa::new) {
                if self.is_ram(ipa) {
                    let pa = leaf.output(ipa);
                    assert!(self.guest.machine.bank(pa).load(pa, PAGE) == self.content(ipa), "{ipa}");
                }
            }
        }
    }

    /// Checks that tables and RAM share no frame.
    fn check_uses(&self) {
        let scan = self.guest.scan();
        let root = (self.guest.root(), self.guest.memory.stage2().geometry().root_size());
        let mut used: Vec<(Pa, u64)> = scan.links.iter().map(|link| (link.table, PAGE)).chain([root]).collect();
        used.extend(scan.leaves.iter().filter(|leaf| self.is_ram(leaf.ipa)).map(|leaf| (leaf.pa(), leaf.span())));
        used.sort();
        for pair in used.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{:x?} and {:x?} share frames", pair[0], pair[1]);
        }
    }
}

impl PlainSlot {
    fn is_ram(&self) -> bool {
        !matches!(self.backing, Backing::Device(_))
    }
}

fn slot(u: &mut Unstructured<'_>) -> Result<PlainSlot> {
    let start = address(u)?;
    let sizes = [0, PAGE, 3 * PAGE, HUGE_PAGE - PAGE, HUGE_PAGE, 3 * HUGE_PAGE, GIB, 2 * GIB];
    let end = if u.arbitrary()? { start.wrapping_add(*u.choose(&sizes)?) } else { address(u)? };
    let kind: u8 = u.arbitrary()?;
    let device = address(u)?;
    let backing = match kind {
        _ if kind & 1 == 1 => Backing::Ram,
        _ if kind & 3 == 2 => {
            let largest = [Level::L1, Level::L2, Level::L2, Level::L3][usize::from(kind >> 2 & 3)];
            Backing::Preallocated(u64::from(kind >> 4 & 1), largest)
        }
        _ => Backing::Device(Pa::new(device)),
    };
    Ok(PlainSlot { range: Ipa::new(start)..Ipa::new(end), backing, writable: u.arbitrary()? })
}

/// Makes any address, mostly one that is near to others.
fn address(u: &mut Unstructured<'_>) -> Result<u64> {
    let any: u32 = u.arbitrary()?;
    let near = u64::from(any >> 16 & 3) * HUGE_PAGE + u64::from(any >> 8 & 3) * PAGE;
    let inside = u64::from(any & 0xff) * 16;
    Ok(match any >> 28 {
        0..=7 => BASE + near,
        8 | 9 => BASE + near + inside,
        10 => BASE + 2 * GIB - near,
        11 => (1 << IPA_BITS) - near,
        12 => u64::MAX - near - inside,
        13 => 0u64.wrapping_sub(near),
        14 => u.arbitrary::<u64>()? & !0xfff & ((1 << IPA_BITS) - 1),
        _ => u.arbitrary()?,
    })
}

/// Makes options, mostly valid ones.
fn options(u: &mut Unstructured<'_>) -> Result<LogOptions> {
    let tracker = *u.choose(&Tracker::ALL)?;
    let chunk = *u.choose(&[0, 2 << 20, 4 << 10, 1 << 30, 1 << 63, 3 << 12, 2048])?;
    let section = *u.choose(&[64, 8, 512, 16, 4, 1024, 65])?;
    Ok(LogOptions { tracker, all_dirty: u.arbitrary()?, chunk, section })
}
