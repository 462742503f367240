// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mutants of values that are equivalent to the original for every test, each with the reason.

use crate::mutation::{Excused, Excuses};

/// The excused mutants of values.
pub const EXCUSES: Excuses = Excuses { listed_in: "tools/mutants/src/values/excused.rs", all: EXCUSED };

const EXCUSED: &[Excused] = &[
    excused(AGE, "Found::default: 0 => 1 #2", "each pass sets the shift before it adds a leaf"),
    excused(AGE, "age::age_row: young != 0 => true", "a row without an access flag is stored unchanged"),
    excused(AGE, "Found::add: mask == 0 => false", "a mask without bits adds no leaf"),
    excused(AGE, "Found::complete_groups: !G::GROUPS => false", "no entry of a tree without groups is contiguous"),
    excused(AGE, GLANCE, SAME_ROW),
    excused(AGE, "Clean::entries: 0 => 1", SAME_ROW),
    excused(AGE, "Clean::entries: writable == 0 => false", SAME_ROW),
    excused(AGE, "Clean::entries: 0 => 1 #2", SAME_ROW),
    excused(CACHE, "CacheMaintenance::new: !features.instruction_cache_coherent => true", COHERENT),
    excused(CACHE, "cache::before_execute: features.instruction_cache_coherent => false", COHERENT),
    excused(DESCRIPTOR, "Descriptor::leaf: 0 => 1", VALID),
    excused(ENCODING, "encoding::data_bits: 0 => 1", VALID),
    excused(ENCODING, "encoding::data_bits: 0 => 1 #2", VALID),
    excused(ENCODING, "encoding::encode: 0 => 1", VALID),
    excused(ENCODING, "encoding::encode: 0 => 1 #2", VALID),
    excused(ENCODING, "encoding::encode: 0 => 1 #3", VALID),
    excused(DESCRIPTOR, "Descriptor::advanced: G::IS_PLAIN => false", LONG_WAY),
    excused(CONTENT, "content::write_words: size_of_val(words) == bytes.len() => false", WIDTH),
    excused(CONTENT, "content::write_words: size_of_val(halves) == bytes.len() => false", WIDTH),
    excused(CONTENT, "content::read_words: size_of_val(words) == length => false", WIDTH),
    excused(CONTENT, "content::read_words: size_of_val(halves) == length => false", WIDTH),
    excused(FRAME, "Run::into_table: G::SHIFT == Kib4::SHIFT => false", "every run is aligned to 4 KiB"),
    excused(FEATURES, "features::least: a < b => a <= b", EQUAL),
    excused(FEATURES, "Features::check: 2048 => 2049", "2049 is no power of two"),
    excused(GEOMETRY, "Geometry::new: features.pa_bits < held => features.pa_bits <= held", EQUAL),
    excused(GEOMETRY, "Geometry::new: pa_bits > at_level_2 => pa_bits >= at_level_2", EQUAL),
    excused(
        GEOMETRY,
        "Geometry::largest_block: self.largest_block.raw() > self.root_level.raw() => self.largest_block.raw() >= self.root_level.raw()",
        EQUAL,
    ),
    excused(
        INJECT,
        "inject::external_abort: 0x3f => 0x3e",
        "the exception classes of aborts from a lower level are even",
    ),
    excused(INJECT, "take::STACK_OF_EL1: 1 => a bit more", "PSTATE.M[1] is 0 at EL1"),
    excused(INJECT, "inject::AARCH32: 1 << 4 => a bit more", "bit 5 is 0 whenever bit 4 is 0"),
    excused(INJECT, "pstate_in_handler::DIT: 1 << 24 => a bit more", "bit 25 is TCO, which is always set"),
    excused(CONTEXT, "Context::new: 0 => 1 #3", "the switch writes both words before it reads them"),
    excused(TLB, "Changed::anything_in: 0xf => 0xe", SEVERAL_LEVELS),
    excused(TLB, "Changed::anything_in: 0xf => 0x1f", SEVERAL_LEVELS),
    excused(TLB, "Changed::table: 0 => 1", "the level is ignored if a table is removed"),
    excused(REGISTERS, "registers::hcr: 0 => 1", VM_IS_SET),
    excused(REGISTERS, "hcr::VM: 1 << 0 => a bit more", "bit 1 is SWIO, which is always set"),
    excused(REGISTERS, "hcr::TID3: 1 << 18 => a bit more", "bit 19 is TSC, which is always set"),
    excused(REGISTERS, "hcr::FMO: 1 << 3 => a bit more", "bit 4 is IMO, which is always set"),
    excused(REGISTERS, "hcr::TSC: 1 << 19 => a bit more", "bit 20 is TIDCP, which is always set"),
    excused(REGISTERS, "hcr::APK: 1 << 40 => a bit more", "bit 41 is API, which is always set"),
    excused(STAGE1, "stage1::TOP_BYTE: 0xff << 56 => a bit more", "there is no bit above bit 63"),
    excused(
        STAGE1,
        "root::BADDR: 0x0000_ffff_ffff_fffe => its lowest bit clear",
        "the smallest table has 16 bytes, so its alignment clears bit 1 too",
    ),
    excused(TRANSLATE, "translate::PAGE: 0x000f_ffff_ffff_f000 => a bit more", "no output address has 53 bits"),
    excused(CPUS, "Memory::zero: 0 => 1", "no code reads a word of a stack before it writes it"),
    excused(AGE, "Age::wants: counts.leaves() > 0 => counts.leaves() >= 0", NO_LEAVES),
    excused(DBM, "SetDbmClean::wants: counts.leaves() > 0 => counts.leaves() >= 0", NO_LEAVES),
    excused(PROTECT, "Protect::wants: counts.leaves() > 0 => counts.leaves() >= 0", NO_LEAVES),
    excused(DBM, "SetDbm::entries: locked.counts.hardware_tracked() == 0 => false", ONE_BY_ONE),
    excused(PROTECT, "WriteProtect::entries: locked.counts.hardware_tracked() > 0 => true", ONE_BY_ONE),
    excused(
        PROTECT,
        "WriteProtect::entries: locked.counts.hardware_tracked() > 0 => locked.counts.hardware_tracked() >= 0",
        ONE_BY_ONE,
    ),
    excused(DBM, "dbm::set_dbm_in_cells: CLEAN => true", "callers use the span only if an entry was made clean"),
    excused(DBM, "dbm::set_dbm_in_row: 0 => 1", BELOW_WRITE),
    excused(DBM, "dbm::written_in: 0 => 1 #4", BELOW_WRITE),
    excused(PROTECT, "protect::write_protect_row: 0 => 1", BELOW_WRITE),
    excused(DBM, "dbm::written_in: 0 => 1", SAME_ROW),
    excused(DBM, "dbm::written_in: any & Descriptor::WRITE == 0 => false", SAME_ROW),
    excused(DBM, "dbm::written_in: any & Descriptor::WRITE => any | Descriptor::WRITE", SAME_ROW),
    excused(DBM, "dbm::written_in: 0 => 1 #2", SAME_ROW),
    excused(PROTECT, "protect::write_protect_row: writable != 0 => true", SAME_ROW),
    excused(PROTECT, "protect::write_protect_row: 0 => 1 #2", SAME_ROW),
    excused(PROTECT, "protect::write_protect_cells: writable == 0xff => false", EIGHT_BITS),
    excused(PROTECT, "protect::write_protect_cells: 0xff => 0x1ff", EIGHT_BITS),
    excused(PROTECT, "protect::write_protect_cells: !rest.is_empty() => true", "an empty slice has no work"),
    excused(LOCKLESS_WALK, "Stage2::lockless_walk_from: at < level => at <= level #2", LAST_CHECK),
    excused(LOCKLESS_WALK, "Stage2::lockless_walk_from: at < level => true #2", LAST_CHECK),
    excused(LOCKLESS_WALK, "Locked::take: old.is_hardware_tracked() => true", ATOMIC),
    excused(LOCKLESS_WALK, "Locked::make_busy: old.is_hardware_tracked() => true", ATOMIC),
    excused(LOCKLESS_WALK, "Locked::change_cell: new != old => true", SAME_VALUE),
    excused(LOCKLESS_WALK, "Locked::quiet: 1 => 2", PAUSE),
    excused(LOCKLESS_WALK, "Locked::make_busy: 1 => 2", PAUSE),
    excused(TABLES_BELOW, "Stage2::lock_quiet: 1 => 2", PAUSE),
    excused(COALESCE, "Stage2::claim: 1 => 2", PAUSE),
    excused(LOCK, "Lock::lock_slowly_unless: 1 => 2", PAUSE),
    excused(PLATFORM, "Platform::pause: 0 => 1", PAUSE),
    excused(REMOVAL, "RemovalCount::next: !R::WATCHES => false", UNWATCHED),
    excused(REMOVAL, "RemovalCount::next: 0 => 1", UNWATCHED),
    excused(REMOVAL, "RemovalCount::next: 0 => 1 #2", UNWATCHED),
    excused(REMOVAL, "RemovalCount::next: 1 => 2", NUMBERED),
    excused(REMOVAL, "RemovalCount::next: 1 => 2 #2", NUMBERED),
    excused(PASS, "Stage2::pass_entries: index < last => true", NO_ENTRIES),
    excused(PASS, "Stage2::pass_entries: index < last => index <= last", NO_ENTRIES),
    excused(MAP_RANGE, "Stage2::map_some: below == Level::L3 => false", PAGE_FITS),
    excused(MAP_RANGE, "Stage2::map_group_of: G::GROUPS => true", "tables without groups refuse to map one"),
    excused(
        MAP_RANGE,
        "Stage2::fill_run: G::GROUPS => true",
        "a group of tables without groups is one entry, so the run is filled entry by entry, without the hint",
    ),
    excused(SEQUENCE, "SequenceCount::count_withdrawal: 1 => 2", NAME),
    excused(RESIZE, "LiveSplits::note: 1 => 2", NOT_ZERO),
    excused(
        RESIZE,
        "Stage2::replace_block: now != filled => true",
        "the table is refilled with the entries that it already has",
    ),
    excused(
        RESIZE,
        "Stage2::is_whole_block: child.level == Level::L3 => true",
        "the entries of other tables lead to tables, whose pages no block maps",
    ),
    excused(
        RESIZE,
        "Stage2::is_whole_block: child.counts.live() == child.table.len() as u64 => true",
        "the check of all entries finds the hole, too",
    ),
    excused(MAP, "Stage2::map_with: 1 => 2", PAUSE),
    excused(SPLIT, "Stage2::split_block: 1 => 2", PAUSE),
    excused(LOOK_UP, "Stage2::find: 1 => 2", PAUSE),
    excused(LOOK_UP, "Stage2::look_at: 1 => 2", PAUSE),
    excused(WALK, "Walk::entry: 1 => 2", PAUSE),
    excused(TABLE_LOCK, "table_lock::PAUSES: 128 => its lowest bit clear", PAUSE),
    excused(TABLE_LOCK, "table_lock::PAUSES: 128 => a bit more", PAUSE),
    excused(
        DESCRIPTOR,
        "Descriptor::has_memory_of: (self.0 ^ other.0) & Descriptor::MEMORY => (self.0 ^ other.0) | Descriptor::MEMORY",
        OTHER_TYPE,
    ),
    excused(DESCRIPTOR, "Descriptor::has_memory_of: self.0 ^ other.0 => self.0 | other.0", OTHER_TYPE),
    excused(DESCRIPTOR, "Descriptor::has_memory_of: 0 => 1", OTHER_TYPE),
    excused(MAP, "Stage2::fill_entry: !old.has_memory_of(new) => true", OTHER_TYPE),
    excused(METADATA, "TableMetadata::OTHER_MEMORY: 1 << 2 => a bit more", "bit 3 of a link is unused, like bit 2"),
    excused(METADATA, "TableMetadata::new: 0 => 1 #2", "the first use of the metadata sets its link"),
    excused(STAGE2, "Stage2::under: 0 => 1 #2", "no block replaces a root, so its claim is never read"),
    excused(UNMAP, "Stage2::unmap_page: location.level != Level::L3 => true", LONG_WAY),
    excused(UNMAP, "Stage2::unmap_page: 1 => 2", LONG_WAY),
    excused(UNMAP, "Stage2::unmap_page: R::WATCHES => true", "each leaf is passed to a closure that does nothing"),
    excused(
        UNLINKED,
        "Stage2::free_table: false => true",
        "the caller gets leaves that it did not ask for, and ignores them",
    ),
    excused(UNLINKED, "Stage2::free_table: wanted => true", PASSED_OVER),
    excused(
        UNLINKED,
        "Stage2::free_table: self.platform().metadata(pa).last().hardware_tracked() > 0 => self.platform().metadata(pa).last().hardware_tracked() >= 0",
        PASSED_OVER,
    ),
    excused(UNLINKED, "Stage2::free_table: cleans => true", CLEANED_ALONE),
    excused(CACHE, "NonCacheable::note: memory == Memory::NonCacheable => true", CLEANED_ALONE),
    excused(CACHE, "NonCacheable::note: 1 => 2", NOT_ZERO),
    excused(HOLES, "Holes::clean: !self.hole.is_empty() => true", "an empty hole has no cache lines"),
    excused(HOLES, "Holes::leaf: start != self.hole.end => true", "cleaning a hole in parts has the same effect"),
    excused(HOLES, "Holes::leaf: found.is_leaf(entry.level) => true", NO_LEAF),
    excused(DEFERRED_FREE, "DeferredFree::give_to: self.0.load(Ordering::Relaxed) != 0 => true", LOOK),
    excused(DEFERRED_FREE, "DeferredFree::give_to: 0 => 1", LOOK),
    excused(TABLES_BELOW, "Stage2::lock_quiet: self.platform().metadata(table).last().busy() > 0 => false", LOOK),
    excused(TABLES_BELOW, "Stage2::lock_quiet: 0 => 1", LOOK),
    excused(TABLES_BELOW, "Stage2::hold_below: above.counts.tables() == 0 => false", HOLDS_NONE),
    excused(TABLES_BELOW, "HeldBelow::drop: self.count > 0 => true", HOLDS_NONE),
    excused(TABLES_BELOW, "HeldBelow::drop: self.count > 0 => self.count >= 0", HOLDS_NONE),
    excused(FLUSH, "Flushed::free: self.unlinked.is_empty() => false", EMPTY_CHAIN),
    excused(FLUSH, "Flushed::drop: !self.unlinked.is_empty() => true", EMPTY_CHAIN),
    excused(
        FLUSH,
        "Flushed::free_unlinked: R::WATCHES => true",
        "the two watchers differ by type, and neither watches",
    ),
    excused(
        FLUSH,
        "Pending::drop: self.removed.is_some() => true",
        "a completed change has nothing left to flush, count or free",
    ),
    excused(
        FLUSH,
        "Pending::flush_all: !self.changed.is_empty() => true",
        "the change is already empty, and the traced claim covers no address",
    ),
    excused(COALESCE, "Stage2::coalesce_to: other_memory => true", OTHERS_ALONE),
    excused(COALESCE, "Stage2::coalesce_to: false => true", OTHERS_ALONE),
    excused(COALESCE, "Stage2::claim: false => true", OTHERS_ALONE),
    excused(COALESCE, "Stage2::look_for: false => true", OTHERS_ALONE),
    excused(COALESCE, "Stage2::look_for: leaf => true #2", OTHERS_ALONE),
    excused(COALESCE, "Stage2::look_for: !same => true", OTHERS_ALONE),
    excused(COALESCE, "Stage2::look_for: leaf => true", NO_LEAF),
    excused(COALESCE, "Stage2::claim: metadata.link() & TableMetadata::CLAIMED != 0 => false", LOOK),
    excused(
        COALESCE,
        "Stage2::coalesce_to: !maintenance.is_needed() => false",
        "the CPU then claims the table, and finds nothing to clean",
    ),
    excused(
        METADATA,
        "TableMetadata::CLAIMED: 1 => a bit more",
        "bit 1 of a linked table's link is unused, like bit 0",
    ),
    excused(COALESCE, "Stage2::coalesce_to: FREE_FIRST => false", BASELINE),
    excused(COALESCE, "Stage2::coalesce_to: CLEANED => false", BASELINE),
    excused(FRAME_MAP, "FrameMap::take: count > self.free() => false", "the search finds no run that is not free"),
    excused(COALESCE, "Stage2::coalesce_to: !FREE_FIRST => true", BASELINE),
    excused(
        COALESCE,
        "Stage2::coalesce_to: G::LARGEST == Level::L0 => true",
        "a block of level 0 is refused before, where there is none",
    ),
    excused(
        FRAME_MAP,
        "FrameMap::give: run.pa() - self.run.pa() < self.run.size() => run.pa() - self.run.pa() <= self.run.size()",
        "a run that starts at the end is larger than the 0 bytes that are left",
    ),
    excused(
        SPLIT,
        "Stage2::split_block: busy.old != block => true",
        "the tables are refilled with the entries that they already have",
    ),
    excused(SPLIT, "Stage2::may_hold_blocks: level < Level::L2 => level <= Level::L2", MAY_HOLD),
    excused(SPLIT, "Stage2::may_hold_blocks: counts.leaves() > 0 => counts.leaves() >= 0", MAY_HOLD),
    excused(SPLIT, "Stage2::may_hold_blocks: counts.busy() > 0 => counts.busy() >= 0", MAY_HOLD),
    excused(SPLIT, "Stage2::next_block_in: self.may_hold_blocks(entry, below) => true", MAY_HOLD),
    excused(TABLE, "Cell::unrecorded: old.is_hardware_tracked() => true", TRACE),
    excused(TABLE, "Cell::unrecorded: old.is_hardware_tracked() => false", TRACE),
    excused(TABLE, "Cell::update: new == old => false", SAME_VALUE),
    excused(ADAPTIVE, "Cold::looked: 0 => 1", "COLD is more than 1"),
    excused(
        ADAPTIVE,
        "Cold::looked: longest >= COLD => true",
        "the 64-page words are checked one by one, with the same result",
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
        "if bits are left, the summary bit is set again, and only the log's owner reads it",
    ),
    excused(BITS, "Bits::set_above: above.load(Ordering::Relaxed) & bit == 0 => true", "the bit is already set"),
    excused(BITS, "bits::inside: left < WORD => left <= WORD", "both bounds give all 64 bits"),
    excused(
        CLEAR,
        "Held::clearing: false => true",
        "an empty run that restarts equals one that continues at the first page",
    ),
    excused(
        CLEAR,
        "Clearing::word: taken == inside => false",
        "the mask of a full word protects all of its pages, too",
    ),
    excused(
        CLEAR,
        "Clearing::split_before: first < self.split => false",
        "a chunk that is already split has no blocks",
    ),
    excused(DIRTY_FAULT, "GuestMemory::note_writes: slot.tracking.running().is_some() => true", STOPPED),
    excused(DIRTY_FAULT, "GuestMemory::relax_logged: slot.tracking.running().is_some() => true", STOPPED),
    excused(DIRTY_FAULT, "GuestMemory::relax_logged: then.sets_dbm_around() => true", SETS_DBM),
    excused(DIRTY_FAULT, "GuestMemory::undo_tracked: self.swap.is_some() => true", NO_COPY),
    excused(
        DIRTY_LOG,
        "Tracking::run: 1 => 2 #3",
        "the number of hardware-tracked logs is only compared for equality, and still rises",
    ),
    excused(
        DIRTY_LOG,
        "Running::sets_dbm_around: self.0 & Self::SETS_DBM_AROUND => self.0 | Self::SETS_DBM_AROUND",
        SETS_DBM,
    ),
    excused(DIRTY_LOG, "Running::sets_dbm_around: 0 => 1", SETS_DBM),
    excused(DIRTY_LOG, "Tracking::run: 0 => 1", "every tracker is in Tracker::ALL"),
    excused(DIRTY_LOG, "Log::new: 0 => 1", START_NUMBER),
    excused(DIRTY_LOG, "Tracking::run: 1 => 2", START_NUMBER),
    excused(DIRTY_LOG, "Tracking::run: 8 => 9", START_NUMBER),
    excused(GET, "Held::take_all: !dirty.has_room() => true", ROOM),
    excused(GET, "Held::report: !dirty.has_room() => true", ROOM),
    excused(GET, "Held::report: !dirty.has_room() => false", ROOM),
    excused(GET, "Held::report: !dirty.has_room() => dirty.has_room()", ROOM),
    excused(GET, "Held::report: 1 => 2", ROOM),
    excused(GET, "Held::take_all: 1 => 2", ROOM),
    excused(
        GET,
        "Held::end_records: tracked.take(word, u64::MAX) & self.sections_in(word) => tracked.take(word, u64::MAX) | self.sections_in(word)",
        NOT_TRACKED,
    ),
    excused(
        GET,
        "Held::look_at_tracked: tracked.word(word) & self.sections_in(word) => tracked.word(word) | self.sections_in(word)",
        NOT_TRACKED,
    ),
    excused(GET, "Held::look_at_tracked: cold != 0 => true", "an empty mask has no 64-page words"),
    excused(OPTIONS, "LogOptions::check: 512 => 513", "513 is not a power of two"),
    excused(
        MEMORY_FAULT,
        "GuestMemory::fault: fault.access == AccessKind::Write => false",
        "a write reaches allow_write through allow, one call later",
    ),
    excused(MEMORY_FAULT, "GuestMemory::map_logged: slot.writable => true", LOGGED),
    excused(MEMORY_FAULT, "GuestMemory::map_logged: slot.writable => true #2", LOGGED),
    excused(FRAMES, "Frames::take: count < PAGES => count <= PAGES", ANY_MAP),
    excused(
        FRAMES,
        "Range::new: size.div_ceil(HUGE_PAGE) as usize + 1 => size.div_ceil(HUGE_PAGE) as usize - 1",
        CAPACITY,
    ),
    excused(FRAMES, "Range::new: 1 => 2", CAPACITY),
    excused(FRAMES, "Range::new: 0 => 1", ANY_MAP),
    excused(
        FRAMES,
        "Range::take_from_broken: self.first_free += self.maps[self.first_free..].iter().take_while(|map| map.free() == 0).count() => ()",
        ANY_MAP,
    ),
    excused(FRAMES, "Range::take_from_broken: 0 => 1", ANY_MAP),
    excused(FRAMES, "Range::take_whole: count > PAGES => true", ANY_MAP),
    excused(FRAMES, "Range::take_whole: count > PAGES => count >= PAGES", ANY_MAP),
    excused(FRAMES, "Range::give: self.first_free.min(at) => self.first_free.max(at)", ANY_MAP),
    excused(FRAMES, "Range::give: self.maps[at].free() == PAGES => true", ANY_MAP),
    excused(FRAMES_SHARED, "Share::add_tables: 1 => 2", CAPACITY),
    excused(
        MEMORY_CLEAR,
        "GuestMemory::clear_huge_page: forgotten == Forgotten::All => false",
        "pages that are forgotten have no content to clear: more work, same result",
    ),
    excused(GUEST, "GuestMemory::unmap: self.swap.is_some() => true", NO_COPY),
    excused(
        RAM,
        "BackedPage::make_page_ready: G::SIZE == FRAME => false",
        "the page is zeroed as a range of one frame, with the same result",
    ),
    excused(
        RAM,
        "BackedPage::make_piece_ready: ready != 0 => true",
        "the pages are zeroed one by one, with the same result",
    ),
    excused(RAM, "BackedPage::make_huge_page_ready: 8 => 9", "2 MiB have 512 pages, so first / 64 is below 8"),
    excused(RAM, "BackedPage::make_piece_ready: 8 => 9", "2 MiB have 512 pages, so first / 64 is below 8"),
    excused(RAM, "BackedPage::make_page_ready: 8 => 9", "2 MiB have 512 pages, so page / 64 is below 8"),
    excused(SLOTS, "Slots::add: 1 => 2", "slot numbers are only compared for equality"),
    excused(SLOTS, "Slots::remove: 1 => 2", "the slots' generation is only compared for equality, and still rises"),
    excused(
        SLOTS,
        "Slots::from: slot.range.end <= ipa => slot.range.end < ipa",
        "a slot that ends there has no page from there on",
    ),
    excused(
        SLOTS,
        "Slots::place_of: other.range.start < start => other.range.start <= start",
        "a slot with the same start is found as a neighbour either way",
    ),
    // Asynchronous page faults.
    excused(AREA, "Area::announce: 0 => 1", "each byte is overwritten before the announcement is written"),
    excused(ARRIVALS, "Arrivals::take: self.hints.load(Ordering::Relaxed) == 0 => false", LOOK),
    excused(ARRIVALS, "Arrivals::cancel: !was_pending => true", SAME_VALUE),
    excused(
        REQUESTS,
        "Requests::cancel: request.state == State::InFlight => true",
        "the word of a slot whose arrival was taken is free, and is then overwritten with the value that it already has",
    ),
    excused(
        REQUESTS,
        "Requests::open: 0 => 1",
        "only the numbers of announced requests are read, and the announcement sets them",
    ),
    excused(ADAPTIVE, "Cold::new: 0 => 1 #2", "each round sets the credit before it reads it"),
    // Pages that leave.
    excused(AGES, "Ages::set_slots: 1 => 2", CAPACITY),
    excused(
        AGES,
        "ages::PART: 64 * PAGES as usize => a bit more",
        "what is allocated at once is more, and nothing else",
    ),
    excused(AGES, "ages::position: 64 => 65", FOUND_ALONE),
    excused(AGES, "ages::position: false => true", FOUND_ALONE),
    excused(CLOCK, "Clock::new: 0 => 1", ALIGNED_DOWN),
    excused(CLOCK, "Clock::next: 0 => 1", ALIGNED_DOWN),
    excused(CLOCK, "Clock::next: 0 => 1 #2", ALIGNED_DOWN),
    excused(STREAMS, "Streams::new: 0 => 1", "a stream of no pages goes on nowhere"),
    excused(SWAP_FAULT, "GuestMemory::map_single: slot.writable => true", LOGGED),
    excused(
        SWAP_FAULT,
        "GuestMemory::map_single: slot.writable => true #2",
        "a write to a slot that is read-only ends before",
    ),
    excused(
        GENERATIONS,
        "Generations::judge: huge_page < range.end => huge_page <= range.end",
        "the range of pages there is empty",
    ),
    excused(
        GENERATIONS,
        "Generations::judge: !is_blank => true",
        "pages of which nothing is known, and that have no frame, stay so",
    ),
    excused(
        GENERATIONS,
        "Generations::new: 0 => 1",
        "only the differences between numbers of departures are read, and the first round comes before any page leaves",
    ),
    excused(
        GENERATIONS,
        "Generations::choose: age.class() == Class::Protected => age.class() != Class::Protected",
        "the two hands begin at the same page, and are then exchanged everywhere",
    ),
    excused(
        GENERATIONS,
        "OldestProtected::gives_way_to: 0 => 1",
        "no page is younger than the youngest by more than one round, nor than those of the round before",
    ),
    excused(PEEK, "GuestMemory::end_peeks: result.is_ok() => true", "no peek returns the bytes of a read that failed"),
    excused(PEEK, "peek::empty: 0 => 1", "the bytes are filled before a peek returns them"),
    excused(PEEKS, "Peeks::add: 1 => 2", CAPACITY),
    excused(PEEKS, "Peeks::add: 1 => 2 #2", NAME),
    excused(PINS, "Pins::pin: 1 => 2 #2", CAPACITY),
    excused(POKES, "Pokes::add: 1 => 2", CAPACITY),
    excused(POKES, "Pokes::add: 1 => 2 #2", NAME),
    excused(WAITERS, "Waiting::new: false => true #2", "the CPU that serves first looks once more"),
    excused(WAITERS, "Waiting::insert: 1 => 2 #3", NAME),
    excused(WAITERS, "Waiting::queue_peek: 1 => 2", NAME),
    // Migration.
    excused(HELLO, "Hello::refusals: 0 => 1", "no page of a hello that was checked has one byte, nor none"),
    excused(HELLO, "Hello::check: 1 => 2 #4", "one byte is no multiple of a page"),
    excused(MESSAGE, "message::text: 0 => 1", "a character fits, and an empty text has the same end without any"),
    excused(MESSAGE, "message::text: 0 => 1 #2", "a character has at most four bytes, so an end is found"),
    excused(ORDER, "Order::new: 0 => 1 #2", "a section sets it before a part reads it"),
    excused(ORDER, "Order::new: 0 => 1 #3", "a section sets it before a part reads it"),
    excused(ORDER, "Order::resume: 0 => 1 #2", "after a resumption, only whether it is set is read"),
    excused(ORDER, "Order::resume: 0 => 1 #3", "after a resumption, only whether it is set is read"),
    excused(PAGE, "Packer::pack: 0 => 1", "only what the compression has written is sent"),
    excused(RECORD, "record::interpret: 0 => 1", "a page fills the bytes, or is refused"),
    excused(STREAM_SLOTS, "Slots::begin: self.count > 0 => true", "a round without pages has no bits to clear"),
    excused(
        STREAM_SLOTS,
        "Slots::begin: self.count > 0 => self.count >= 0",
        "a round without pages has no bits to clear",
    ),
    excused(POSTCOPY_SOURCE, "Source::new: 0 => 1 #3", "pages that are on their way on another link are none at first"),
    excused(POSTCOPY_SOURCE, "Source::resume: 1 => 2", NAME),
    excused(MIGRATION_AHEAD, "Ahead::new: 0 => 1", "pages that are on their way on another link are none at first"),
    excused(PRECOPY_LANE, "Lane::new: 0 => 1", "each round sets it before it counts its pages"),
    excused(MIGRATION_GUEST, "GuestRam::zero: 0 => 1", "the read fills the bytes"),
    excused(
        MIGRATION_GUEST,
        "GuestRam::zero: bytes.iter().any(|&byte| byte != 0) => true",
        "the page is overwritten with the zeroes that it already has",
    ),
    excused(JOIN, "Seen::new: 0 => 1", "each page has a bit of its own, wherever the first one is"),
    excused(JOIN, "Seen::new: any => true", NOTED_TWICE),
    excused(JOIN, "Seen::note: 0 => 1", "the reader refuses pages of memslots that it does not know"),
    excused(RECEIVE, "Receive::receive: lanes.len() > 1 => lanes.len() >= 1", NOTED_TWICE),
    excused(RECEIVE_LANE, "Lane::new: 0 => 1", "a round's begin sets it before its end reads it"),
    excused(RECEIVE_LANE, "Lane::new: false => true", "a round's begin sets it before its end reads it"),
    excused(RECEIVE_LANE, "Lane::number: 0 => 1", "a stream without a head is refused before its number is read"),
    excused(
        RECEIVE_LANE,
        "Lane::read: number == 1 => true",
        "the streams then wait for each other once more, and nothing has come meanwhile",
    ),
    excused(
        SEALED,
        "SealedWriter::write: count == FULL => false",
        "a full frame is copied, and then sent in the same way",
    ),
    excused(SEALED, "SealedReader::receive: 0 => 1", FILLED),
    excused(SEALED, "sealed::send: 0 => 1", FILLED),
    excused(SEALED, "sealed::receive: 0 => 1", FILLED),
    excused(
        SEALED,
        "sealed::sealed: frame[HEAD..].as_ptr().align_offset(LINE).min(LINE) => frame[HEAD..].as_ptr().align_offset(LINE).max(LINE)",
        "where the ciphertext begins affects only the time",
    ),
    excused(EXTENTS, "Extents::cut: **end > limit => **end >= limit", "an extent that ends there loses no sector"),
    excused(FILE_STORE, "file_store::size: 0 => 1", "the system reports the size of each file that a test can open"),
    excused(SERVE, "FileStore::write_cluster: requests.len() * PAGE => requests.len() / PAGE", CAPACITY),
    excused(SERVE, "FileStore::write_cluster: 0 => 1", "each page overwrites the whole buffer"),
    excused(PACKED, "packed::pack: 0 => 1", "the block overwrites these bytes, and those behind it are truncated"),
    excused(PACKED, "packed::unpack: 0 => 1", "a page is returned only if all of it was overwritten"),
    excused(PLACES, "Places::new: 0 => 1 #2", PLACE_NUMBER),
    excused(PLACES, "Places::add: 1 => 2", PLACE_NUMBER),
    excused(EL2, "mdcr::TPMCR: 1 << 5 => a bit more", "bit 6 is TPM, which is set with it"),
    excused(EL2, "hcrx::TCR2EN: 1 << 14 => a bit more", "bit 15 is SCTLR2EN, which is always set"),
    excused(EL2, "mpam2::TRAP_MPAM1: 1 << 48 => a bit more", "bit 49 is TRAP_MPAM0, which is always set"),
    excused(EL2, "el2::mdcr: 0x1f => 0x3f", "bit 5 is TPMCR, which is set with it"),
    excused(MASKED, "Looks::none: 0 => 1", FIRST_LOOK),
    excused(MASKED, "Looks::none: 0 => 1 #2", FIRST_LOOK),
    excused(
        MMIO,
        "from_syndrome::STAGE_1_WALK: 1 << 7 => a bit more",
        "bit 8 is MAINTENANCE, which is in the same mask",
    ),
    excused(
        MMIO,
        "from_syndrome::WRITE: 1 << 6 => a bit more",
        "bit 7 is STAGE_1_WALK, which is clear in each access that is decoded",
    ),
    excused(SERIAL_PORT, "serial_port::RESET_READS: 1 << 16 => a bit more", PAUSE),
    excused(SERIAL_PORT, "serial_port::reset: 0 => 1 #2", PAUSE),
    excused(SERIAL_PORT, "SerialPort::poll: 0 => 1 #3", WHOLE_COPY),
    excused(SERIAL_PORT, "serial_port::negotiate: 0 => 1", "bit 0 is none of the wanted features"),
    excused(SERIAL_QUEUE, "Queue::take: 0 => 1 #2", WHOLE_COPY),
    excused(SERIAL_QUEUE, "Queue::lend: 0 => 1 #2", "without the flag NEXT, a device ignores the field"),
    excused(SERIAL_QUEUE, "Queue::want_interrupts: self.interrupts != wanted => true", SAME_VALUE),
    excused(SWITCH, "LastVcpu::is_other: other => true", SAME_VALUE),
    excused(SWITCH, "Switch::new: 0 => 1", "no guest has VMID 0, so the VTTBR_EL2 of each differs from both"),
    excused(STATE, "State::from_records: 0 => 1", EACH_RECORD),
    excused(STATE, "State::from_records: 0 => 1 #2", EACH_RECORD),
    excused(SWITCH_TABLE, "table::encoding: 0 => 1", "the bit is shifted out of the 16 bits"),
    // One virtual machine without its CPU.
    excused(BALANCE, "rate::SCALE: 1 << 20 => a bit more", "the scale only limits how far a rate is rounded"),
    excused(CONSOLE, "Console::new: false => true", "a session begins with a grant, which clears it"),
    excused(CONSOLE, "console::NEVER: u64::MAX => its lowest bit clear", "no byte has that number either"),
    excused(CONSOLE, "console::NEVER: u64::MAX => a bit more", ALL_BITS),
    excused(MEMORY_STORE, "memory_store::NEVER: u64::MAX => its lowest bit clear", "no transfer ends that late either"),
    excused(MEMORY_STORE, "memory_store::NEVER: u64::MAX => a bit more", ALL_BITS),
    excused(MEMORY_STORE, "MemoryStore::end_next: first > now => false", LOOK),
    excused(SCHEDULER_GROUP, "Group::new: 0 => 1 #2", "only the differences between times of a group's clock are read"),
    // Maps, passes, splits and unmaps.
    excused(MAP, "Stage2::map_to: !CacheMaintenance::new(self.features(), attributes).is_needed() => false", LONG_WAY),
    excused(MAP, "Stage2::map_to: location.entry == Descriptor::INVALID => true", LOOK),
    excused(
        MAP,
        "Stage2::map_to: location.entry == Descriptor::INVALID => location.entry != Descriptor::INVALID",
        LOOK,
    ),
    excused(MAP, "Stage2::fill_entry: !maintenance.is_needed() => false", BY_BUSY),
    excused(MAP, "Stage2::fill_entry: location.level == Level::L3 => false", BY_BUSY),
    excused(
        MAP_RANGE,
        "Stage2::fill_run: count as u64 * page => count as u64 / page",
        "the filled pages are found mapped one by one: more work, same result",
    ),
    excused(PASS, "Stage2::pass_table: level == Level::L3 => false", ENTRY_BY_ENTRY),
    excused(PASS, "Stage2::pass_table: entry.is_vacant() => false", VACANT),
    excused(PASS, "Stage2::pass_table: G::ENTRIES > MOST_ENTRIES => true", ONE_VISIT),
    excused(PASS, "Stage2::pass_table: G::ENTRIES > MOST_ENTRIES => G::ENTRIES >= MOST_ENTRIES", ONE_VISIT),
    excused(PASS, "Stage2::pass_entries: 1 => 2 #3", WHOLE_PAGES),
    excused(PASS, "Masked::entries: G::GROUPS => true", NO_MORE_PAGES),
    excused(PASS, "Masked::entries: G::GROUPS => true #2", NO_MORE_PAGES),
    excused(PASS, "Stage2::pass_entries: level < Level::L3 => true", NO_TABLE),
    excused(PASS, "Stage2::pass_entries: level < Level::L3 => level <= Level::L3", NO_TABLE),
    excused(
        PASS,
        "Stage2::pass_entries: V::wants(locked.counts) => true",
        "a visitor changes no entry that it does not want",
    ),
    excused(TABLE_LOCK, "TableMetadata::lock_slowly: self.state.load(Ordering::Relaxed) & LOCKED != 0 => false", LOOK),
    excused(SPLIT, "Stage2::pages_to_split: 1 => 2", WHOLE_PAGES),
    excused(SPLIT, "Stage2::next_block_in: below < Level::L3 => true", MAY_HOLD),
    excused(SPLIT, "Stage2::next_block_in: below < Level::L3 => below <= Level::L3", MAY_HOLD),
    excused(SPLIT, "Stage2::refill: 0 => 1", "a table under construction has only tables or only leaves"),
    excused(UNMAP, "Unmap::unlink: if_empty => false", LOOK),
    excused(UNMAP, "Unmap::unlink: counts.is_some_and(|counts| counts.live() > 0 || counts.busy() > 0) => false", LOOK),
    excused(UNMAP, "Unmap::unlink: counts.live() > 0 => false", LOOK),
    excused(UNMAP, "Unmap::unlink: 0 => 1", LOOK),
    excused(UNMAP, "Unmap::unlink: counts.busy() > 0 => false", LOOK),
    excused(UNMAP, "Unmap::unlink: 0 => 1 #2", LOOK),
    excused(UNMAP, "Unmap::leaves: 1 => 2 #2", WHOLE_PAGES),
    excused(UNMAP, "Unmap::take_reported: range.start < range.end => true", NO_ADDRESS),
    excused(UNMAP, "Unmap::take_reported: range.start < range.end => range.start <= range.end", NO_ADDRESS),
    excused(GROUP, "group::whole_groups: !G::GROUPS => false", NO_GROUPS),
    excused(GROUP, "group::has_groups: G::GROUPS => true", NO_GROUPS),
    excused(GROUP, "Stage2::without_groups: G::GROUPS => true", NO_GROUPS),
    excused(GROUP, "Stage2::next_groups: 1 => 2 #2", WHOLE_PAGES),
    excused(MAP_GROUP, "Stage2::map_group_to: old.is_vacant() => true", VACANT),
    excused(MAP_GROUP, "Stage2::map_group_to: 1 => 2", PAUSE),
    excused(MAP_GROUP, "Stage2::fill_group: !cell.read().is_hardware_tracked() => false", ATOMIC),
    excused(SPLIT, "Stage2::split: G::GROUPS => true", NO_GROUPS),
    excused(SPLIT, "Stage2::next_to_split: !G::GROUPS => false", NO_GROUPS),
    excused(TABLE, "Table::entry: index < self.entries.len() => true", BEYOND),
    excused(TABLE, "Table::entry: index < self.entries.len() => index <= self.entries.len()", BEYOND),
    excused(TABLE, "Table::entry: 0 => 1", BEYOND),
    excused(TABLE, "Table::fill: G::IS_PLAIN => false", ONE_AFTER_THE_OTHER),
    excused(TABLE, "Table::fill: first.advances_plainly(count as u64 * step) => false", ONE_AFTER_THE_OTHER),
    excused(TABLES_BELOW, "Stage2::wait_below: locked.counts.tables() > 0 => true", HOLDS_NONE),
    excused(TABLES_BELOW, "Stage2::wait_below: locked.counts.tables() > 0 => locked.counts.tables() >= 0", HOLDS_NONE),
    excused(SPLIT, "Stage2::split_block: G::LARGEST == Level::L0 => true", "no leaf is at level 0 then"),
    excused(UNMAP, "Unmap::leaves: 1 => 2 #4", "only the start of these entries is used"),
    excused(VMIDS, "Vmids::new: 0 => 1 #2", SERIAL_NUMBER),
    excused(VMIDS, "vmids::SERIAL: 16 => a bit more", SERIAL_NUMBER),
    excused(VMIDS, "vmids::LOOKS: 64 => a bit more", PAUSE),
    excused(VMIDS, "Vmids::use_or_give: 0 => 1", PAUSE),
    excused(VMIDS, "Vmids::use_or_give: 1 => 2", PAUSE),
    excused(VMIDS, "Vmids::use_or_give: 1 => 2 #2", PAUSE),
    excused(
        GEOMETRY,
        "Geometry::may_have_leaves: matches!(G::FORMAT, Format::Lpa) => true",
        "the field has the level that the constant has",
    ),
];

const SERIAL_NUMBER: &str = "serial numbers are only compared for equality, and 47 bits last for years, too";
const BEYOND: &str = "an assertion before it ends each test that has an index beyond the table";
const ONE_AFTER_THE_OTHER: &str = "each leaf is then made from the one before, with the same result";
const NO_GROUPS: &str = "tables of a type without groups have no entry with the hint, so the check only saves time";
const SEVERAL_LEVELS: &str = "both masks have more than one level";
const EIGHT_BITS: &str = "the general path counts the eight bits, with the same result";
const LAST_CHECK: &str = "one more check of the sequence count, after the last entry, is redundant";
const SAME_VALUE: &str = "the word is overwritten with the value that it already has";
const EMPTY_CHAIN: &str = "an empty chain has no tables";
const BY_BUSY: &str = "the path through a busy entry makes the same entry";
const ENTRY_BY_ENTRY: &str = "the pass checks the entries one by one, and hands over the same ones";
const VACANT: &str = "a vacant entry is checked under the lock, with the same result";
const ONE_VISIT: &str = "one visit reaches the end of a table of 512 entries, or the end of the range";
const NO_MORE_PAGES: &str = "without groups, a visit has no pages before the mask's first or after its last";
const NOT_ZERO: &str = "every value other than 0 has the same meaning";
const WHOLE_PAGES: &str = "the addresses are page-aligned, so an end one byte lower is in the same page";
const NO_TABLE: &str = "no entry of level 3 is a table";
const NO_ADDRESS: &str = "an invalidation without addresses takes time and changes nothing";
const PASS: &str = "crates/stage2/src/pass.rs";

const EQUAL: &str = "if two numbers are equal, either of them is the smaller one";
const SAME_ROW: &str = "the row is checked entry by entry, with the same result";
const COHERENT: &str = "two places check this feature, and one check is enough";
const VALID: &str = "bit 0 is VALID, which is always set in such an entry";

const NO_LEAVES: &str = "a table without leaves has no work";
const ONE_BY_ONE: &str = "leaves without DBM are then changed one by one, with the same result";
const BELOW_WRITE: &str = "bit 0 is shifted out";
const ATOMIC: &str = "an exchange has the effect of the store";
const PAUSE: &str = "the length of a wait affects only the time";
const LONG_WAY: &str = "the slow path gives the result of the fast path";
const OTHER_TYPE: &str = "a leaf with the same address and type is never replaced";
const WIDTH: &str = "the width of accesses to more than one word affects only the time";
const LOOK: &str = "the check before the lock or the atomic access only saves time";
const HOLDS_NONE: &str = "if there are no tables below, none is locked or unlocked";
const PASSED_OVER: &str = "a caller ignores leaves that it did not ask for";
const CLEANED_ALONE: &str = "the leaves are checked one by one, and only those that need cache maintenance get it";
const OTHERS_ALONE: &str = "the leaves are checked one by one, and only those of another type are cleaned";
const NO_LEAF: &str = "an entry that is not a leaf never has the memory bits of a block that needs cleaning";
const BASELINE: &str = "the mutant changes a baseline for benches; the engine has only one order";
const MAY_HOLD: &str = "the walk reads a table without blocks, and finds none";
const TRACE: &str = "the word is only for traces";
const TAKE_NOTHING: &str = "a word without such a bit does not change";
const STOPPED: &str = "a start clears or fills the log";
const SETS_DBM: &str = "trackers that never set DBM do nothing there either";
const ROOM: &str = "room is also made for each word as it is added";
const NOT_TRACKED: &str = "a 64-page word without DBM has no records";
const NO_COPY: &str = "without a page store, no page has a copy that ends";
const START_NUMBER: &str = "start numbers are only compared for equality";
const LOGGED: &str = "a slot with a log is writable";
const ANY_MAP: &str = "the first map that is searched affects only the time: a search of all maps follows";
const CAPACITY: &str = "a vector grows by itself";
const VM_IS_SET: &str = "bit 0 is VM, which is always set";

const NOTED_TWICE: &str =
    "the reader of one stream, or the first round, has found the same before, so this only takes memory";
const FILLED: &str = "each byte is overwritten before it is read";
const FOUND_ALONE: &str = "the search in the block finds the first page, wherever before it it begins";
const ALIGNED_DOWN: &str = "leaving aligns the address down to its page";
const ALL_BITS: &str = "the value already has all bits";
const NAME: &str = "the numbers have to differ and to rise, and no more";

const FIRST_LOOK: &str = "the first look of each exit sets the value before it is read";
const WHOLE_COPY: &str = "a copy from the shared memory overwrites each byte";
const EACH_RECORD: &str = "records replace PC and x0, or the state is refused";

const MASKED: &str = "crates/hypervisor/src/masked.rs";
const MMIO: &str = "crates/hypervisor/src/mmio.rs";
const SERIAL_PORT: &str = "crates/hypervisor/src/serial_port/mod.rs";
const SERIAL_QUEUE: &str = "crates/hypervisor/src/serial_port/queue.rs";
const SWITCH: &str = "crates/hypervisor/src/switch/cpu.rs";
const STATE: &str = "crates/hypervisor/src/switch/state.rs";
const SWITCH_TABLE: &str = "crates/hypervisor/src/switch/table.rs";
const REGISTERS: &str = "crates/hypervisor/src/registers/mod.rs";
const STAGE1: &str = "crates/hypervisor/src/stage1.rs";
const TRANSLATE: &str = "crates/hypervisor/src/translate.rs";
const CPUS: &str = "crates/hypervisor/src/cpus.rs";
const DBM: &str = "crates/stage2/src/dbm.rs";
const PROTECT: &str = "crates/stage2/src/protect.rs";
const LOCKLESS_WALK: &str = "crates/stage2/src/lockless_walk.rs";
const TABLES_BELOW: &str = "crates/stage2/src/tables_below.rs";
const COALESCE: &str = "crates/stage2/src/coalesce.rs";
const LOCK: &str = "crates/stage2/src/lock.rs";
const MAP: &str = "crates/stage2/src/map.rs";
const SPLIT: &str = "crates/stage2/src/split.rs";
const STAGE2: &str = "crates/stage2/src/stage2.rs";
const LOOK_UP: &str = "crates/stage2/src/look_up.rs";
const TABLE_LOCK: &str = "crates/stage2/src/table_lock.rs";
const WALK: &str = "crates/stage2/src/walk.rs";
const METADATA: &str = "crates/stage2/src/metadata.rs";
const UNMAP: &str = "crates/stage2/src/unmap.rs";
const UNLINKED: &str = "crates/stage2/src/unlinked.rs";
const HOLES: &str = "crates/stage2/src/holes.rs";
const DEFERRED_FREE: &str = "crates/stage2/src/deferred_free.rs";
const FLUSH: &str = "crates/stage2/src/flush.rs";
const PLATFORM: &str = "crates/stage2/src/platform.rs";
const REMOVAL: &str = "crates/stage2/src/removal.rs";
const UNWATCHED: &str = "a removal that nothing watches reports no leaf, so nothing is opened with its number";
const NUMBERED: &str = "the numbers of removals have to differ, and no more";
const PLACE_NUMBER: &str = "the numbers of places have to differ, and no more";
const NO_ENTRIES: &str = "a visitor that gets no entries does nothing";
const PAGE_FITS: &str = "a page fits wherever the address is aligned to the table's span";
const CONTENT: &str = "crates/stage2/src/content.rs";
const FRAME: &str = "crates/stage2/src/frame.rs";
const FRAME_MAP: &str = "crates/stage2/src/frame_map.rs";
const VMIDS: &str = "crates/stage2/src/vmids.rs";
const GROUP: &str = "crates/stage2/src/group.rs";
const MAP_GROUP: &str = "crates/stage2/src/map_group.rs";
const RESIZE: &str = "crates/stage2/src/resize.rs";
const SEQUENCE: &str = "crates/stage2/src/sequence.rs";
const MAP_RANGE: &str = "crates/stage2/src/map_range.rs";
const TABLE: &str = "crates/stage2/src/table.rs";
const AREA: &str = "crates/memory/src/async_fault/area.rs";
const ARRIVALS: &str = "crates/memory/src/async_fault/arrivals.rs";
const REQUESTS: &str = "crates/memory/src/async_fault/requests.rs";
const AGES: &str = "crates/memory/src/swap/ages.rs";
const CLOCK: &str = "crates/memory/src/swap/clock.rs";
const SWAP_FAULT: &str = "crates/memory/src/swap/fault.rs";
const GENERATIONS: &str = "crates/memory/src/swap/generations.rs";
const PEEK: &str = "crates/memory/src/swap/peek.rs";
const PEEKS: &str = "crates/memory/src/swap/peeks.rs";
const PINS: &str = "crates/memory/src/swap/pins.rs";
const POKES: &str = "crates/memory/src/swap/pokes.rs";
const STREAMS: &str = "crates/memory/src/swap/streams.rs";
const WAITERS: &str = "crates/memory/src/swap/waiters.rs";
const HELLO: &str = "crates/migration/src/stream/hello.rs";
const MESSAGE: &str = "crates/migration/src/stream/message.rs";
const ORDER: &str = "crates/migration/src/stream/order.rs";
const PAGE: &str = "crates/migration/src/stream/page.rs";
const RECORD: &str = "crates/migration/src/stream/record.rs";
const STREAM_SLOTS: &str = "crates/migration/src/stream/slots.rs";
const POSTCOPY_SOURCE: &str = "crates/migration/src/postcopy/source.rs";
const MIGRATION_AHEAD: &str = "crates/migration/src/ram/ahead.rs";
const MIGRATION_GUEST: &str = "crates/migration/src/ram/guest.rs";
const PRECOPY_LANE: &str = "crates/migration/src/precopy/lane.rs";
const JOIN: &str = "crates/migration/src/receive/join.rs";
const RECEIVE: &str = "crates/migration/src/receive/mod.rs";
const RECEIVE_LANE: &str = "crates/migration/src/receive/lane.rs";
const SEALED: &str = "crates/migration/src/sealed.rs";
const EXTENTS: &str = "crates/machine/src/file_store/extents.rs";
const FILE_STORE: &str = "crates/machine/src/file_store/mod.rs";
const SERVE: &str = "crates/machine/src/file_store/serve.rs";
const PACKED: &str = "crates/machine/src/file_store/packed.rs";
const PLACES: &str = "crates/machine/src/file_store/places.rs";
const ADAPTIVE: &str = "crates/memory/src/dirty/adaptive.rs";
const BITS: &str = "crates/memory/src/dirty/bits.rs";
const CLEAR: &str = "crates/memory/src/dirty/clear.rs";
const DIRTY_FAULT: &str = "crates/memory/src/dirty/fault.rs";
const DIRTY_LOG: &str = "crates/memory/src/dirty/log.rs";
const GET: &str = "crates/memory/src/dirty/get.rs";
const OPTIONS: &str = "crates/memory/src/dirty/options.rs";
const GUEST: &str = "crates/memory/src/guest.rs";
const MEMORY_CLEAR: &str = "crates/memory/src/clear.rs";
const MEMORY_FAULT: &str = "crates/memory/src/fault.rs";
const FRAMES_SHARED: &str = "crates/memory/src/shared.rs";
const FRAMES: &str = "crates/memory/src/frames.rs";
const RAM: &str = "crates/memory/src/ram.rs";
const SLOTS: &str = "crates/memory/src/slots.rs";
const BALANCE: &str = "crates/vmm/src/balance.rs";
const CONSOLE: &str = "crates/vmm/src/console.rs";
const MEMORY_STORE: &str = "crates/vmm/src/memory_store.rs";
const SCHEDULER_GROUP: &str = "crates/vmm/src/scheduler/group.rs";
const EL2: &str = "crates/hypervisor/src/registers/el2.rs";
const CACHE: &str = "crates/stage2/src/cache.rs";
const CONTEXT: &str = "crates/hypervisor/src/context.rs";
const DESCRIPTOR: &str = "crates/stage2/src/descriptor.rs";
const ENCODING: &str = "crates/stage2/src/encoding.rs";
const FEATURES: &str = "crates/stage2/src/features.rs";
const GEOMETRY: &str = "crates/stage2/src/geometry.rs";
const INJECT: &str = "crates/hypervisor/src/inject.rs";
const TLB: &str = "crates/stage2/src/tlb.rs";
const AGE: &str = "crates/stage2/src/age.rs";
/// The label of the check that reads a whole row at once.
const GLANCE: &str = "Clean::entries: cells.iter().fold(0, |all, cell| all | cell.load(Ordering::Relaxed)) & Descriptor::WRITE \
                      => cells.iter().fold(0, |all, cell| all | cell.load(Ordering::Relaxed)) | Descriptor::WRITE";

const fn excused(file: &'static str, label: &'static str, reason: &'static str) -> Excused {
    Excused { file, label, reason }
}
