// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mutants of values that change nothing that a test could notice, and why.
//!
//! Invariant: an entry stands for exactly one mutant; one that has none any more is an error.

use anyhow::bail;

use super::super::excused::Excused;
use super::sites::Value;

/// All of them.
pub const EXCUSED: &[Excused] = &[
    excused(AGE, "Found::default: 0 => 1 #2", "each pass sets the shift before it adds anything"),
    excused(AGE, "age::age_row: young != 0 => true", "a row without an access flag is stored as it is"),
    excused(AGE, GLANCE, SAME_ROW),
    excused(AGE, "Clean::entries: 0 => 1", SAME_ROW),
    excused(AGE, "Clean::entries: writable == 0 => false", SAME_ROW),
    excused(AGE, "Clean::entries: 0 => 1 #2", SAME_ROW),
    excused(CACHE, "CacheMaintenance::new: !features.instruction_cache_coherent => true", COHERENT),
    excused(CACHE, "cache::before_execute: features.instruction_cache_coherent => false", COHERENT),
    excused(DESCRIPTOR, "Descriptor::leaf: 0 => 1", VALID),
    excused(DESCRIPTOR, "descriptor::data_bits: 0 => 1", VALID),
    excused(DESCRIPTOR, "descriptor::data_bits: 0 => 1 #2", VALID),
    excused(DESCRIPTOR, "descriptor::encode: 0 => 1", VALID),
    excused(DESCRIPTOR, "descriptor::encode: 0 => 1 #2", VALID),
    excused(FEATURES, "Features::least: a < b => a <= b", EQUAL),
    excused(GEOMETRY, "Geometry::new: features.pa_bits < 48 => features.pa_bits <= 48", EQUAL),
    excused(GEOMETRY, "Geometry::new: 48 => 49", EQUAL),
    excused(GEOMETRY, "Geometry::new: 1 => 2", "the smallest IPA space takes two levels"),
    excused(INJECT, "inject::external_abort: 0x3f => 0x3e", "the classes of aborts from a lower level are even"),
    excused(INJECT, "take::STACK_OF_EL1: 1 => a bit more", "PSTATE.M[1] is 0 at EL1"),
    excused(INJECT, "inject::AARCH32: 1 << 4 => a bit more", "bit 5 is 0 where bit 4 is"),
    excused(INJECT, "pstate_in_handler::DIT: 1 << 24 => a bit more", "bit 25 is TCO, which is set in any case"),
    excused(CONTEXT, "Context::new: 0 => 1 #3", "the switch writes both words before it reads them"),
    excused(TLB, "Changed::anything_in: 0xf => 0xe", "it is more than one level either way"),
    excused(TLB, "Changed::anything_in: 0xf => 0x1f", "it is more than one level either way"),
    excused(TLB, "Changed::table: 0 => 1", "the level does not count where a table goes"),
    excused(TLB, "Tlb::hint: *level != Level::L0 => true", "there are no leaves at level 0"),
    excused(REGISTERS, "registers::hcr: 0 => 1", VM_IS_SET),
    excused(REGISTERS, "hcr::VM: 1 << 0 => a bit more", "bit 1 is SWIO, which is set in any case"),
    excused(REGISTERS, "hcr::TSC: 1 << 19 => a bit more", "bit 20 is TIDCP, which is set in any case"),
    excused(REGISTERS, "hcr::APK: 1 << 40 => a bit more", "bit 41 is API, which is set in any case"),
    excused(STAGE1, "stage1::TOP_BYTE: 0xff << 56 => a bit more", "there is no bit above bit 63"),
    excused(
        STAGE1,
        "root::BADDR: 0x0000_ffff_ffff_fffe => its lowest bit clear",
        "the smallest table is of 16 bytes, so bit 1 goes with its alignment",
    ),
    excused(TRANSLATE, "translate::PAGE: 0x000f_ffff_ffff_f000 => a bit more", "no output address has 53 bits"),
    excused(CPUS, "Memory::zero: 0 => 1", "nothing reads a stack before it writes there"),
    excused(AGE, "Age::wants: counts.leaves() > 0 => counts.leaves() >= 0", NO_LEAVES),
    excused(ARM, "ArmClean::wants: counts.leaves() > 0 => counts.leaves() >= 0", NO_LEAVES),
    excused(PROTECT, "Protect::wants: counts.leaves() > 0 => counts.leaves() >= 0", NO_LEAVES),
    excused(ARM, "Arm::entries: locked.counts.armed() == 0 => false", ONE_BY_ONE),
    excused(PROTECT, "WriteProtect::entries: locked.counts.armed() > 0 => true", ONE_BY_ONE),
    excused(PROTECT, "WriteProtect::entries: locked.counts.armed() > 0 => locked.counts.armed() >= 0", ONE_BY_ONE),
    excused(ARM, "arm::arm_cells: CLEAN => true", "no caller looks at the span where nothing is made clean"),
    excused(ARM, "arm::arm_row: 0 => 1", BELOW_WRITE),
    excused(ARM, "arm::written_in: 0 => 1 #4", BELOW_WRITE),
    excused(PROTECT, "protect::write_protect_row: 0 => 1", BELOW_WRITE),
    excused(ARM, "arm::written_in: 0 => 1", SAME_ROW),
    excused(ARM, "arm::written_in: any & Descriptor::WRITE == 0 => false", SAME_ROW),
    excused(ARM, "arm::written_in: any & Descriptor::WRITE => any | Descriptor::WRITE", SAME_ROW),
    excused(ARM, "arm::written_in: 0 => 1 #2", SAME_ROW),
    excused(PROTECT, "protect::write_protect_row: writable != 0 => true", SAME_ROW),
    excused(PROTECT, "protect::write_protect_row: 0 => 1 #2", SAME_ROW),
    excused(
        PROTECT,
        "protect::write_protect_cells: writable == 0xff => false",
        "eight bits are counted, and the same is found",
    ),
    excused(PROTECT, "protect::write_protect_cells: 0xff => 0x1ff", "eight bits are counted, and the same is found"),
    excused(PROTECT, "protect::write_protect_cells: !rest.is_empty() => true", "in no cells there is nothing to do"),
    excused(
        DESCENT,
        "Stage2::descend_once: at < level => at <= level #2",
        "the look after the last entry is one more than is needed",
    ),
    excused(
        DESCENT,
        "Stage2::descend_once: at < level => true #2",
        "the look after the last entry is one more than is needed",
    ),
    excused(DESCENT, "Locked::take: old.is_armed() => true", ATOMIC),
    excused(DESCENT, "Locked::make_busy: old.is_armed() => true", ATOMIC),
    excused(DESCENT, "Locked::change_cell: new != old => true", "the store writes what is there"),
    excused(DESCENT, "Locked::quiet: 1 => 2", PAUSE),
    excused(DESCENT, "Locked::make_busy: 1 => 2", PAUSE),
    excused(BELOW, "Stage2::lock_quiet: 1 => 2", PAUSE),
    excused(COALESCE, "Stage2::claim: 1 => 2", PAUSE),
    excused(LOCK, "Lock::lock_slowly: 1 => 2", PAUSE),
    excused(PLATFORM, "Platform::pause: 0 => 1", PAUSE),
    excused(REMOVED, "Stage2::removal: !R::WATCHES => false", UNWATCHED),
    excused(REMOVED, "Stage2::removal: 0 => 1", UNWATCHED),
    excused(REMOVED, "Stage2::removal: 0 => 1 #2", UNWATCHED),
    excused(REMOVED, "Stage2::removal: 1 => 2", NUMBERED),
    excused(REMOVED, "Stage2::removal: 1 => 2 #2", NUMBERED),
    excused(PASS, "Stage2::pass_entries: index < last => true", NO_ENTRIES),
    excused(PASS, "Stage2::pass_entries: index < last => index <= last", NO_ENTRIES),
    excused(MAP_RANGE, "Stage2::map_some: below == Level::L3 => false", PAGE_FITS),
    excused(MAP, "Stage2::map_with: 1 => 2", PAUSE),
    excused(SPLIT, "Stage2::split_block: 1 => 2", PAUSE),
    excused(STAGE2, "Stage2::find: 1 => 2", PAUSE),
    excused(WALK, "Walk::entry: 1 => 2", PAUSE),
    excused(RECORD, "record::PAUSES: 128 => its lowest bit clear", PAUSE),
    excused(RECORD, "record::PAUSES: 128 => a bit more", PAUSE),
    excused(
        DESCRIPTOR,
        "Descriptor::has_memory_of: (self.0 ^ other.0) & Self::MEMORY => (self.0 ^ other.0) | Self::MEMORY",
        OTHER_TYPE,
    ),
    excused(DESCRIPTOR, "Descriptor::has_memory_of: self.0 ^ other.0 => self.0 | other.0", OTHER_TYPE),
    excused(DESCRIPTOR, "Descriptor::has_memory_of: 0 => 1", OTHER_TYPE),
    excused(MAP, "Stage2::fill_entry: !old.has_memory_of(new) => true", OTHER_TYPE),
    excused(RECORD, "Record::OTHER_MEMORY: 1 << 2 => a bit more", "bit 3 of a link is free, as bit 2 is"),
    excused(RECORD, "Record::new: 0 => 1 #2", "the first use of a record sets its link"),
    excused(STAGE2, "Stage2::new: 0 => 1 #3", "a root is coalesced by no block: nothing reads the claim on it"),
    excused(UNMAP, "Stage2::unmap_page: place.level != Level::L3 => true", LONG_WAY),
    excused(UNMAP, "Stage2::unmap_page: 1 => 2", LONG_WAY),
    excused(UNMAP, "Stage2::unmap_page: R::WATCHES => true", "a leaf is told to a closure that does nothing"),
    excused(DETACHED, "Stage2::free_table: false => true", "the caller is told nothing it asked for, and does nothing"),
    excused(DETACHED, "Stage2::free_table: wanted => true", PASSED_OVER),
    excused(
        DETACHED,
        "Stage2::free_table: self.platform().record(pa).last().armed() > 0 => self.platform().record(pa).last().armed() >= 0",
        PASSED_OVER,
    ),
    excused(DETACHED, "Stage2::free_table: cleans => true", CLEANED_ALONE),
    excused(CACHE, "Stage2::note_memory: memory == Memory::NonCacheable => true", CLEANED_ALONE),
    excused(CACHE, "Stage2::note_memory: 1 => 2", "any value but 0 is the note"),
    excused(HOLES, "Holes::clean: !self.hole.is_empty() => true", "no line is in an empty hole"),
    excused(HOLES, "Holes::leaf: start != self.hole.end => true", "a hole that is cleaned in parts is cleaned"),
    excused(HOLES, "Holes::leaf: found.is_leaf(entry.level) => true", NO_LEAF),
    excused(KEPT, "Stage2::give_kept: self.kept.0.load(Ordering::Relaxed) != 0 => true", LOOK),
    excused(KEPT, "Stage2::give_kept: 0 => 1", LOOK),
    excused(BELOW, "Stage2::lock_quiet: self.platform().record(table).last().busy() > 0 => false", LOOK),
    excused(BELOW, "Stage2::lock_quiet: 0 => 1", LOOK),
    excused(BELOW, "Stage2::hold_below: above.counts.tables() == 0 => false", HOLDS_NONE),
    excused(BELOW, "HeldBelow::drop: self.count > 0 => true", HOLDS_NONE),
    excused(BELOW, "HeldBelow::drop: self.count > 0 => self.count >= 0", HOLDS_NONE),
    excused(FLUSH, "Flushed::free: self.detached.is_empty() => false", "no table is in an empty chain"),
    excused(FLUSH, "Flushed::drop: !self.detached.is_empty() => true", "no table is in an empty chain"),
    excused(
        FLUSH,
        "Pending::drop: self.removed.is_some() => true",
        "what was completed has nothing left to flush, to count or to free",
    ),
    excused(
        FLUSH,
        "Pending::flush_all: !self.changed.is_empty() => true",
        "the claim for a trace is of no address, and the change is empty already",
    ),
    excused(COALESCE, "Stage2::coalesce_to: 0 => 1", "the engine frees after the make; a baseline's count is its own"),
    excused(COALESCE, "Stage2::coalesce_to: other_memory => true", OTHERS_ALONE),
    excused(COALESCE, "Stage2::coalesce_to: false => true", OTHERS_ALONE),
    excused(COALESCE, "Stage2::claim: false => true", OTHERS_ALONE),
    excused(COALESCE, "Stage2::look_for: false => true", OTHERS_ALONE),
    excused(COALESCE, "Stage2::look_for: leaf => true #2", OTHERS_ALONE),
    excused(COALESCE, "Stage2::look_for: !same => true", OTHERS_ALONE),
    excused(COALESCE, "Stage2::look_for: leaf => true", NO_LEAF),
    excused(COALESCE, "Stage2::claim: record.link() & CLAIMED != 0 => false", LOOK),
    excused(
        COALESCE,
        "Stage2::coalesce_to: !upkeep.is_needed() => false",
        "the CPU claims the table then, and has nothing to clean",
    ),
    excused(
        COALESCE,
        "coalesce::CLAIMED: 1 => a bit more",
        "bit 1 of a link is free, as bit 0 is, while the table is linked",
    ),
    excused(COALESCE, "Stage2::coalesce_to: FREE_FIRST => false", BASELINE),
    excused(COALESCE, "Stage2::coalesce_to: FREE_FIRST => false #2", BASELINE),
    excused(COALESCE, "Stage2::coalesce_to: CLEANED => false", BASELINE),
    excused(
        FRAME_MAP,
        "FrameMap::give: run.pa() - self.run.pa() < self.run.size() => run.pa() - self.run.pa() <= self.run.size()",
        "a run behind the end is larger than what is left, which is nothing",
    ),
    excused(MAP_RANGE, "Stage2::map_some: place.level > Level::L0 => true", NO_L0),
    excused(MAP_RANGE, "Stage2::map_some: place.level > Level::L0 => place.level >= Level::L0", NO_L0),
    excused(SPLIT, "Stage2::split_block: busy.old != block => true", "the tables are filled again with what they have"),
    excused(SPLIT, "Stage2::may_hold_blocks: level < Level::L2 => level <= Level::L2", MAY_HOLD),
    excused(SPLIT, "Stage2::may_hold_blocks: counts.leaves() > 0 => counts.leaves() >= 0", MAY_HOLD),
    excused(SPLIT, "Stage2::may_hold_blocks: counts.busy() > 0 => counts.busy() >= 0", MAY_HOLD),
    excused(SPLIT, "Stage2::next_block_in: self.may_hold_blocks(entry, below) => true", MAY_HOLD),
    excused(TABLE, "Cell::unrecorded: old.is_armed() => true", TRACE),
    excused(TABLE, "Cell::unrecorded: old.is_armed() => false", TRACE),
    excused(TABLE, "Cell::update: new == old => false", "the exchange writes what is there"),
    excused(ADAPTIVE, "Cold::looked: 0 => 1", "COLD is more than 1"),
    excused(
        ADAPTIVE,
        "Cold::looked: longest >= COLD => true",
        "the sections are looked at one by one, and the same is found",
    ),
    excused(BITS, "Bits::take: cell.load(Ordering::Relaxed) & mask == 0 => false", TAKE_NOTHING),
    excused(
        BITS,
        "Bits::take: cell.load(Ordering::Relaxed) & mask => cell.load(Ordering::Relaxed) | mask",
        TAKE_NOTHING,
    ),
    excused(
        BITS,
        "Bits::take: old & !mask == 0 => true",
        "the bit above is set again where bits are left, and only the log's owner looks for it",
    ),
    excused(BITS, "Bits::set_above: above.load(Ordering::Relaxed) & bit == 0 => true", "the bit is set already"),
    excused(BITS, "bits::inside: left < WORD => left <= WORD", "64 bits are all bits either way"),
    excused(
        CLEAR,
        "Held::clearing: false => true",
        "an empty run is begun anew, or goes on from the first page: the same run",
    ),
    excused(CLEAR, "Clearing::word: taken == inside => false", "a whole word's pages are protected by their mask"),
    excused(
        CLEAR,
        "Clearing::split_before: first < self.split => false",
        "a chunk that is split has no blocks to split",
    ),
    excused(DIRTY_FAULT, "GuestMemory::note_writes: slot.tracking.running().is_some() => true", STOPPED),
    excused(DIRTY_FAULT, "GuestMemory::relax_logged: slot.tracking.running().is_some() => true", STOPPED),
    excused(DIRTY_FAULT, "GuestMemory::relax_logged: then.arms_around() => true", ARMS),
    excused(
        DIRTY_FAULT,
        "GuestMemory::arm_around: sections.clone().all(|section| log.armed.is_set(section)) => false",
        "what is armed is armed again, and stays as it is",
    ),
    excused(DIRTY_LOG, "Running::arms_around: self.0 & 4 => self.0 | 4", ARMS),
    excused(DIRTY_LOG, "Running::arms_around: 4 => 5", ARMS),
    excused(DIRTY_LOG, "Running::arms_around: 0 => 1", ARMS),
    excused(DIRTY_LOG, "Tracking::run: 0 => 1", "each tracker is among all of them"),
    excused(DIRTY_LOG, "Log::new: 0 => 1", START_NUMBER),
    excused(DIRTY_LOG, "Tracking::run: 1 => 2", START_NUMBER),
    excused(DIRTY_LOG, "Tracking::run: 7 => 8", START_NUMBER),
    excused(GET, "Held::take_all: !dirty.has_room() => true", ROOM),
    excused(GET, "Held::report: !dirty.has_room() => true", ROOM),
    excused(GET, "Held::report: !dirty.has_room() => false", ROOM),
    excused(GET, "Held::report: !dirty.has_room() => dirty.has_room()", ROOM),
    excused(GET, "Held::report: 1 => 2", ROOM),
    excused(GET, "Held::take_all: 1 => 2", ROOM),
    excused(
        PAGES,
        "DirtyPages::has_room: self.words.len() < self.words.capacity() => self.words.len() <= self.words.capacity()",
        ROOM,
    ),
    excused(
        GET,
        "Held::end_records: armed.take(word, u64::MAX) & self.sections_in(word) => armed.take(word, u64::MAX) | self.sections_in(word)",
        NOT_ARMED,
    ),
    excused(
        GET,
        "Held::look_at_armed: armed.word(word) & self.sections_in(word) => armed.word(word) | self.sections_in(word)",
        NOT_ARMED,
    ),
    excused(GET, "Held::look_at_armed: cold != 0 => true", "no section is in an empty mask"),
    excused(DIRTY_BLOCKS, "DirtyLog::ready_block: place.level < Level::L3 => place.level <= Level::L3", COALESCED),
    excused(OPTIONS, "LogOptions::check: 512 => 513", "513 is no power of two"),
    excused(
        MEMORY_FAULT,
        "GuestMemory::fault: fault.access == AccessKind::Write => false",
        "a write reaches allow_write through allow, one call later",
    ),
    excused(MEMORY_FAULT, "GuestMemory::map_logged: slot.writable => true", LOGGED),
    excused(MEMORY_FAULT, "GuestMemory::map_logged: slot.writable => true #2", LOGGED),
    excused(FRAMES, "Frames::take: count < PER_MAP => count <= PER_MAP", ANY_MAP),
    excused(FRAMES, "Range::new: size.div_ceil(SECTION) as usize + 1 => size.div_ceil(SECTION) as usize - 1", CAPACITY),
    excused(FRAMES, "Range::new: 1 => 2", CAPACITY),
    excused(FRAMES, "Range::new: 0 => 1", ANY_MAP),
    excused(
        FRAMES,
        "Range::take_from_broken: self.first_free += self.maps[self.first_free..].iter().take_while(|map| map.free() == 0).count() => ()",
        ANY_MAP,
    ),
    excused(FRAMES, "Range::take_from_broken: 0 => 1", ANY_MAP),
    excused(FRAMES, "Range::take_whole: count > PER_MAP => true", ANY_MAP),
    excused(FRAMES, "Range::take_whole: count > PER_MAP => count >= PER_MAP", ANY_MAP),
    excused(FRAMES, "Range::give: self.first_free.min(at) => self.first_free.max(at)", ANY_MAP),
    excused(FRAMES, "Range::give: self.maps[at].free() == PER_MAP => true", ANY_MAP),
    excused(RAM, "BackedPage::make_section_ready: *self.ready == [0; 8] => false", "page by page, the same is zeroed"),
    excused(RAM, "BackedPage::make_page_ready: 8 => 9", "a page's word is one of eight"),
    excused(SLOTS, "Slots::add: 1 => 2", "a number is compared with another alone"),
    excused(
        SLOTS,
        "Slots::place_of: other.range.start < start => other.range.start <= start",
        "a slot that begins at the same address is a neighbour either way",
    ),
    excused(ADAPTIVE, "Cold::new: 0 => 1 #2", "a round begins with what is free"),
    excused(EL2, "mpam2::TRAP_MPAM1: 1 << 48 => a bit more", "bit 49 is TRAP_MPAM0, which is set in any case"),
    // Maps, passes, splits and unmaps.
    excused(MAP, "Stage2::map_to: !CacheMaintenance::new(self.features(), attributes).is_needed() => false", LONG_WAY),
    excused(MAP, "Stage2::map_to: place.entry == Descriptor::INVALID => true", LOOK),
    excused(MAP, "Stage2::map_to: place.entry == Descriptor::INVALID => place.entry != Descriptor::INVALID", LOOK),
    excused(MAP, "Stage2::fill_entry: !upkeep.is_needed() => false", BY_BUSY),
    excused(MAP, "Stage2::fill_entry: place.level == Level::L3 => false", BY_BUSY),
    excused(
        MAP_RANGE,
        "Stage2::fill_run: count as u64 * page => count as u64 / page",
        "what was filled is found mapped, page by page: the same with more work",
    ),
    excused(PASS, "Stage2::pass_table: level == Level::L3 => false", ENTRY_BY_ENTRY),
    excused(PASS, "Stage2::pass_table: entry.is_vacant() => false", VACANT),
    excused(PASS, "Stage2::pass_entries: 1 => 2 #2", WHOLE_PAGES),
    excused(PASS, "Stage2::pass_entries: level < Level::L3 => true", NO_TABLE),
    excused(PASS, "Stage2::pass_entries: level < Level::L3 => level <= Level::L3", NO_TABLE),
    excused(
        PASS,
        "Stage2::pass_entries: V::wants(locked.counts) => true",
        "a visitor changes no entry that it does not want",
    ),
    excused(RECORD, "Record::lock_slowly: self.state.load(Ordering::Relaxed) & LOCKED != 0 => false", LOOK),
    excused(SPLIT, "Stage2::pages_to_split: 1 => 2", WHOLE_PAGES),
    excused(SPLIT, "Stage2::next_block_in: below < Level::L3 => true", MAY_HOLD),
    excused(SPLIT, "Stage2::next_block_in: below < Level::L3 => below <= Level::L3", MAY_HOLD),
    excused(
        SPLIT,
        "Stage2::split_before: ipa.is_aligned(self.geometry().granule().span(self.geometry().root_level())) => false",
        "a leaf is found that begins there, or none",
    ),
    excused(SPLIT, "Stage2::refill: 0 => 1", "the entries of a table that is built are all tables, or all leaves"),
    excused(UNMAP, "Unmap::table: entry == Descriptor::INVALID => false", VACANT),
    excused(UNMAP, "Unmap::table: entry == Descriptor::STALE => false", VACANT),
    excused(UNMAP, "Unmap::unlink: if_empty => false", LOOK),
    excused(UNMAP, "Unmap::unlink: counts.is_some_and(|counts| counts.live() > 0 || counts.busy() > 0) => false", LOOK),
    excused(UNMAP, "Unmap::unlink: counts.live() > 0 => false", LOOK),
    excused(UNMAP, "Unmap::unlink: 0 => 1", LOOK),
    excused(UNMAP, "Unmap::unlink: counts.busy() > 0 => false", LOOK),
    excused(UNMAP, "Unmap::unlink: 0 => 1 #2", LOOK),
    excused(UNMAP, "Unmap::leaves: 1 => 2 #2", WHOLE_PAGES),
    excused(UNMAP, "Unmap::is_inside: level == Level::L3 => false", "a page is in a range of whole pages, or outside"),
    excused(UNMAP, "Unmap::take_told: range.start < range.end => true", NO_ADDRESS),
    excused(UNMAP, "Unmap::take_told: range.start < range.end => range.start <= range.end", NO_ADDRESS),
];

const BY_BUSY: &str = "an entry that is busy meanwhile becomes the same";
const ENTRY_BY_ENTRY: &str = "the entries are looked at one by one, and the same ones are handed over";
const VACANT: &str = "a vacant entry is looked at under the lock, and the same is found";
const WHOLE_PAGES: &str = "the addresses are of whole pages, so that one byte less is in the same page";
const NO_TABLE: &str = "no entry of level 3 is a table, so that none is found";
const NO_ADDRESS: &str = "the sequence of an invalidation without addresses is more work, and nothing else";
const PASS: &str = "crates/stage2/src/pass.rs";

const EQUAL: &str = "the smaller of two equal numbers is either of them";
const SAME_ROW: &str = "the row is looked at entry by entry, and the same is found";
const COHERENT: &str = "both places ask, and either of them is enough";
const VALID: &str = "bit 0 is VALID, which the entry has in any case";

const NO_LEAVES: &str = "in a table without leaves there is nothing to do";
const ONE_BY_ONE: &str = "leaves that hardware records nothing in are changed one by one then, to the same";
const BELOW_WRITE: &str = "bit 0 is shifted out";
const ATOMIC: &str = "an exchange does what the store does";
const PAUSE: &str = "how long a CPU waits is a matter of time";
const LONG_WAY: &str = "the long way does the same as the short one";
const OTHER_TYPE: &str = "a leaf that has the address and the type is not replaced at all";
const LOOK: &str = "the look before the lock, or before the atomic access, saves time alone";
const HOLDS_NONE: &str = "where there are no tables below, none is locked, and none unlocked";
const PASSED_OVER: &str = "a caller that is told of leaves it did not ask for passes over them";
const CLEANED_ALONE: &str = "the leaves are looked at one by one, and only those whose lines must go are cleaned";
const OTHERS_ALONE: &str = "the leaves are looked at one by one, and only those of another type are cleaned";
const NO_LEAF: &str = "an entry that is no leaf has the memory bits of no block that is cleaned for";
const BASELINE: &str = "what a bench is measured against; the engine has one order";
const NO_L0: &str = "the CPUs' tables have no leaves at level 0, and none fits";
const MAY_HOLD: &str = "a table without blocks is looked through, and none is found";
const TRACE: &str = "the word is for traces, and changes nothing";
const TAKE_NOTHING: &str = "what has no such bit stays as it is";
const STOPPED: &str = "a start clears the log, or fills it";
const ARMS: &str = "the trackers that arm nothing do nothing there either";
const ROOM: &str = "room is made for each word as it comes, too";
const NOT_ARMED: &str = "a section that is not armed has no records";
const COALESCED: &str = "what is mapped by a block already is found so, and counts for nothing";
const START_NUMBER: &str = "the number of a start is compared with that of another alone";
const LOGGED: &str = "a slot that has a log may be written";
const ANY_MAP: &str = "where to look first is a matter of time: the search over all maps comes after";
const CAPACITY: &str = "a vector grows by itself";
const VM_IS_SET: &str = "bit 0 is VM, which is set in any case";

const REGISTERS: &str = "crates/hypervisor/src/registers/mod.rs";
const STAGE1: &str = "crates/hypervisor/src/stage1.rs";
const TRANSLATE: &str = "crates/hypervisor/src/translate.rs";
const CPUS: &str = "crates/hypervisor/src/cpus.rs";
const ARM: &str = "crates/stage2/src/arm.rs";
const PROTECT: &str = "crates/stage2/src/protect.rs";
const DESCENT: &str = "crates/stage2/src/descent.rs";
const BELOW: &str = "crates/stage2/src/below.rs";
const COALESCE: &str = "crates/stage2/src/coalesce.rs";
const LOCK: &str = "crates/stage2/src/lock.rs";
const MAP: &str = "crates/stage2/src/map.rs";
const SPLIT: &str = "crates/stage2/src/split.rs";
const STAGE2: &str = "crates/stage2/src/stage2.rs";
const WALK: &str = "crates/stage2/src/walk.rs";
const RECORD: &str = "crates/stage2/src/record.rs";
const UNMAP: &str = "crates/stage2/src/unmap.rs";
const DETACHED: &str = "crates/stage2/src/detached.rs";
const HOLES: &str = "crates/stage2/src/holes.rs";
const KEPT: &str = "crates/stage2/src/kept.rs";
const FLUSH: &str = "crates/stage2/src/flush.rs";
const PLATFORM: &str = "crates/stage2/src/platform.rs";
const REMOVED: &str = "crates/stage2/src/removed.rs";
const UNWATCHED: &str = "a removal that nothing watches reports no leaf, so nothing is opened with its number";
const NUMBERED: &str = "the numbers of removals have to differ, and no more";
const NO_ENTRIES: &str = "a visitor that gets no entries does nothing";
const PAGE_FITS: &str = "a page fits wherever the address is aligned to the table's span";
const FRAME_MAP: &str = "crates/stage2/src/frame_map.rs";
const MAP_RANGE: &str = "crates/stage2/src/map_range.rs";
const TABLE: &str = "crates/stage2/src/table.rs";
const ADAPTIVE: &str = "crates/memory/src/dirty/adaptive.rs";
const BITS: &str = "crates/memory/src/dirty/bits.rs";
const CLEAR: &str = "crates/memory/src/dirty/clear.rs";
const DIRTY_FAULT: &str = "crates/memory/src/dirty/fault.rs";
const DIRTY_LOG: &str = "crates/memory/src/dirty/log.rs";
const GET: &str = "crates/memory/src/dirty/get.rs";
const PAGES: &str = "crates/memory/src/dirty/pages.rs";
const DIRTY_BLOCKS: &str = "crates/memory/src/dirty/blocks.rs";
const OPTIONS: &str = "crates/memory/src/dirty/options.rs";
const MEMORY_FAULT: &str = "crates/memory/src/fault.rs";
const FRAMES: &str = "crates/memory/src/frames.rs";
const RAM: &str = "crates/memory/src/ram.rs";
const SLOTS: &str = "crates/memory/src/slots.rs";
const EL2: &str = "crates/hypervisor/src/registers/el2.rs";
const CACHE: &str = "crates/stage2/src/cache.rs";
const CONTEXT: &str = "crates/hypervisor/src/context.rs";
const DESCRIPTOR: &str = "crates/stage2/src/descriptor.rs";
const FEATURES: &str = "crates/stage2/src/features.rs";
const GEOMETRY: &str = "crates/stage2/src/geometry.rs";
const INJECT: &str = "crates/hypervisor/src/inject.rs";
const TLB: &str = "crates/stage2/src/tlb.rs";
const AGE: &str = "crates/stage2/src/age.rs";
/// The look at a row at once.
const GLANCE: &str = "Clean::entries: cells.iter().fold(0, |all, cell| all | cell.load(Ordering::Relaxed)) & Descriptor::WRITE \
                      => cells.iter().fold(0, |all, cell| all | cell.load(Ordering::Relaxed)) | Descriptor::WRITE";

const fn excused(file: &'static str, label: &'static str, reason: &'static str) -> Excused {
    Excused { file, label, reason }
}

/// Why a mutant is excused, if it is.
pub fn reason(value: &Value) -> Option<&'static str> {
    EXCUSED.iter().find(|excused| stands_for(excused, value)).map(|excused| excused.reason)
}

/// Whether each entry stands for one of `values`, which are all there are.
pub fn check(values: &[Value]) -> anyhow::Result<()> {
    match EXCUSED.iter().find(|excused| values.iter().filter(|value| stands_for(excused, value)).count() != 1) {
        Some(Excused { file, label, .. }) => {
            bail!("mutants/values/excused.rs: {file} {label} is not one mutant; --list names all")
        }
        None => Ok(()),
    }
}

fn stands_for(excused: &Excused, value: &Value) -> bool {
    value.file == excused.file && value.label() == excused.label
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stands_for_one_mutant() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        check(&super::super::copy::read(root).unwrap().0.values).unwrap();
    }
}
