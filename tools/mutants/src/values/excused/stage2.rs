// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mutants of `crates/stage2`.

use super::{LOOK, NAME, PAUSE, SAME_VALUE};
use crate::mutation::Excused;

pub(super) const EXCUSED: &[Excused] = &[
    Excused {
        file: "crates/stage2/src/age.rs",
        mutants: &[
            ("Found::default: 0 => 1 #2", "each pass sets the shift before it adds a leaf"),
            ("age::age_row: young != 0 => true", "a row without an access flag is stored unchanged"),
            ("Found::add: mask == 0 => false", "a mask without bits adds no leaf"),
            ("Found::complete_groups: !G::GROUPS => false", "no entry of a tree without groups is contiguous"),
            (GLANCE, SAME_ROW),
            ("Clean::entries: 0 => 1", SAME_ROW),
            ("Clean::entries: writable == 0 => false", SAME_ROW),
            ("Clean::entries: 0 => 1 #2", SAME_ROW),
            ("Age::wants: counts.leaves() > 0 => counts.leaves() >= 0", NO_LEAVES),
        ],
    },
    Excused {
        file: "crates/stage2/src/cache.rs",
        mutants: &[
            ("CacheMaintenance::new: !features.instruction_cache_coherent => true", COHERENT),
            ("cache::before_execute: features.instruction_cache_coherent => false", COHERENT),
            ("NonCacheable::note: memory == Memory::NonCacheable => true", CLEANED_ALONE),
            ("NonCacheable::note: 1 => 2", NOT_ZERO),
        ],
    },
    Excused {
        file: "crates/stage2/src/coalesce.rs",
        mutants: &[
            ("Stage2::claim: 1 => 2", PAUSE),
            ("Stage2::coalesce_to: other_memory => true", OTHERS_ALONE),
            ("Stage2::coalesce_to: false => true", OTHERS_ALONE),
            ("Stage2::claim: false => true", OTHERS_ALONE),
            ("Stage2::look_for: false => true", OTHERS_ALONE),
            ("Stage2::look_for: leaf => true #2", OTHERS_ALONE),
            ("Stage2::look_for: !same => true", OTHERS_ALONE),
            ("Stage2::look_for: leaf => true", NO_LEAF),
            ("Stage2::claim: metadata.link() & TableMetadata::CLAIMED != 0 => false", LOOK),
            (
                "Stage2::coalesce_to: !maintenance.is_needed() => false",
                "the CPU then claims the table, and finds nothing to clean",
            ),
            ("Stage2::coalesce_to: FREE_FIRST => false", BASELINE),
            ("Stage2::coalesce_to: CLEANED => false", BASELINE),
            ("Stage2::coalesce_to: !FREE_FIRST => true", BASELINE),
            (
                "Stage2::coalesce_to: G::LARGEST == Level::L0 => true",
                "a block of level 0 is refused before, where there is none",
            ),
        ],
    },
    Excused {
        file: "crates/stage2/src/content.rs",
        mutants: &[
            ("content::write_words: size_of_val(words) == bytes.len() => false", WIDTH),
            ("content::write_words: size_of_val(halves) == bytes.len() => false", WIDTH),
            ("content::read_words: size_of_val(words) == length => false", WIDTH),
            ("content::read_words: size_of_val(halves) == length => false", WIDTH),
        ],
    },
    Excused {
        file: "crates/stage2/src/dbm.rs",
        mutants: &[
            ("SetDbmClean::wants: counts.leaves() > 0 => counts.leaves() >= 0", NO_LEAVES),
            ("SetDbm::entries: locked.counts.hardware_tracked() == 0 => false", ONE_BY_ONE),
            ("dbm::set_dbm_in_cells: CLEAN => true", "callers use the span only if an entry was made clean"),
            ("dbm::set_dbm_in_row: 0 => 1", BELOW_WRITE),
            ("dbm::written_in: 0 => 1 #4", BELOW_WRITE),
            ("dbm::written_in: 0 => 1", SAME_ROW),
            ("dbm::written_in: any & Descriptor::WRITE == 0 => false", SAME_ROW),
            ("dbm::written_in: any & Descriptor::WRITE => any | Descriptor::WRITE", SAME_ROW),
            ("dbm::written_in: 0 => 1 #2", SAME_ROW),
        ],
    },
    Excused {
        file: "crates/stage2/src/deferred_free.rs",
        mutants: &[
            ("DeferredFree::give_to: self.0.load(Ordering::Relaxed) != 0 => true", LOOK),
            ("DeferredFree::give_to: 0 => 1", LOOK),
        ],
    },
    Excused {
        file: "crates/stage2/src/descriptor.rs",
        mutants: &[
            ("Descriptor::leaf: 0 => 1", VALID),
            ("Descriptor::advanced: G::IS_PLAIN => false", LONG_WAY),
            (
                "Descriptor::has_memory_of: (self.0 ^ other.0) & Descriptor::MEMORY => (self.0 ^ other.0) | Descriptor::MEMORY",
                OTHER_TYPE,
            ),
            ("Descriptor::has_memory_of: self.0 ^ other.0 => self.0 | other.0", OTHER_TYPE),
            ("Descriptor::has_memory_of: 0 => 1", OTHER_TYPE),
        ],
    },
    Excused {
        file: "crates/stage2/src/encoding.rs",
        mutants: &[
            ("encoding::data_bits: 0 => 1", VALID),
            ("encoding::data_bits: 0 => 1 #2", VALID),
            ("encoding::encode: 0 => 1", VALID),
            ("encoding::encode: 0 => 1 #2", VALID),
            ("encoding::encode: 0 => 1 #3", VALID),
        ],
    },
    Excused {
        file: "crates/stage2/src/features.rs",
        mutants: &[
            ("features::least: a < b => a <= b", EQUAL),
            ("Features::check: 2048 => 2049", "2049 is no power of two"),
        ],
    },
    Excused {
        file: "crates/stage2/src/flush.rs",
        mutants: &[
            ("Flushed::free: self.unlinked.is_empty() => false", EMPTY_CHAIN),
            ("Flushed::drop: !self.unlinked.is_empty() => true", EMPTY_CHAIN),
            ("Flushed::free_unlinked: R::WATCHES => true", "the two watchers differ by type, and neither watches"),
            (
                "Pending::flush_all: !self.changed.is_empty() => true",
                "the change is already empty, and the traced claim covers no address",
            ),
        ],
    },
    Excused {
        file: "crates/stage2/src/frame.rs",
        mutants: &[("Run::into_table: G::SHIFT == Kib4::SHIFT => false", "every run is aligned to 4 KiB")],
    },
    Excused {
        file: "crates/stage2/src/frame_map.rs",
        mutants: &[
            ("FrameMap::take: count > self.free() => false", "the search finds no run that is not free"),
            (
                "FrameMap::give: run.pa() - self.run.pa() < self.run.size() => run.pa() - self.run.pa() <= self.run.size()",
                "a run that starts at the end is larger than the 0 bytes that are left",
            ),
        ],
    },
    Excused {
        file: "crates/stage2/src/geometry.rs",
        mutants: &[
            ("Geometry::new: pa_bits > at_level_2 => pa_bits >= at_level_2", EQUAL),
            (
                "Geometry::largest_block: self.largest_block.raw() > self.root_level.raw() => self.largest_block.raw() >= self.root_level.raw()",
                EQUAL,
            ),
            (
                "Geometry::may_have_leaves: matches!(G::FORMAT, Format::Lpa) => true",
                "the field has the level that the constant has",
            ),
        ],
    },
    Excused {
        file: "crates/stage2/src/granule.rs",
        mutants: &[("granule::pa_bits: features.pa_bits < held => features.pa_bits <= held", EQUAL)],
    },
    Excused {
        file: "crates/stage2/src/group.rs",
        mutants: &[
            ("group::whole_groups: !G::GROUPS => false", NO_GROUPS),
            ("group::has_groups: G::GROUPS => true", NO_GROUPS),
            ("Stage2::without_groups: G::GROUPS => true", NO_GROUPS),
            ("Stage2::next_groups: 1 => 2 #2", WHOLE_PAGES),
        ],
    },
    Excused {
        file: "crates/stage2/src/holes.rs",
        mutants: &[
            ("Holes::clean: !self.hole.is_empty() => true", "an empty hole has no cache lines"),
            ("Holes::leaf: start != self.hole.end => true", "cleaning a hole in parts has the same effect"),
            ("Holes::leaf: found.is_leaf(entry.level) => true", NO_LEAF),
        ],
    },
    Excused { file: "crates/stage2/src/lock.rs", mutants: &[("Lock::lock_slowly_unless: 1 => 2", PAUSE)] },
    Excused {
        file: "crates/stage2/src/lockless_walk.rs",
        mutants: &[
            ("Stage2::lockless_walk_from: at < level => at <= level #2", LAST_CHECK),
            ("Stage2::lockless_walk_from: at < level => true #2", LAST_CHECK),
            ("Locked::take: old.is_hardware_tracked() => true", ATOMIC),
            ("Locked::make_busy: old.is_hardware_tracked() => true", ATOMIC),
            ("Locked::change_cell: new != old => true", SAME_VALUE),
            ("Locked::quiet: 1 => 2", PAUSE),
            ("Locked::make_busy: 1 => 2", PAUSE),
        ],
    },
    Excused {
        file: "crates/stage2/src/look_up.rs",
        mutants: &[("Stage2::find: 1 => 2", PAUSE), ("Stage2::look_at: 1 => 2", PAUSE)],
    },
    Excused {
        file: "crates/stage2/src/map.rs",
        mutants: &[
            ("Stage2::map_with: 1 => 2", PAUSE),
            ("Stage2::fill_entry: !was_there => true", "what was there is flushed, whatever else is"),
            ("Stage2::fill_entry: !old.has_memory_of(new) => true", OTHER_TYPE),
            ("Stage2::map_to: !CacheMaintenance::new(self.features(), attributes).is_needed() => false", LONG_WAY),
            ("Stage2::map_to: location.entry == Descriptor::INVALID => true", LOOK),
            ("Stage2::map_to: location.entry == Descriptor::INVALID => location.entry != Descriptor::INVALID", LOOK),
            ("Stage2::fill_entry: !maintenance.is_needed() => false", BY_BUSY),
            ("Stage2::fill_entry: location.level == Level::L3 => false", BY_BUSY),
        ],
    },
    Excused {
        file: "crates/stage2/src/map_group.rs",
        mutants: &[
            ("Stage2::map_group_to: old.is_vacant() => true", VACANT),
            ("Stage2::map_group_to: 1 => 2", PAUSE),
            ("Stage2::fill_group: !cell.read().is_hardware_tracked() => false", ATOMIC),
        ],
    },
    Excused {
        file: "crates/stage2/src/map_range.rs",
        mutants: &[
            (
                "Stage2::map_some: below == Level::L3 => false",
                "a page fits wherever the address is aligned to the table's span",
            ),
            ("Stage2::map_group_of: G::GROUPS => true", "tables without groups refuse to map one"),
            (
                "Stage2::fill_run: G::GROUPS => true",
                "a group of tables without groups is one entry, so the run is filled entry by entry, without the hint",
            ),
            (
                "Stage2::fill_run: count as u64 * page => count as u64 / page",
                "the filled pages are found mapped one by one: more work, same result",
            ),
        ],
    },
    Excused {
        file: "crates/stage2/src/metadata.rs",
        mutants: &[
            ("TableMetadata::OTHER_MEMORY: 1 << 2 => a bit more", "bit 3 of a link is unused, like bit 2"),
            ("TableMetadata::new: 0 => 1 #2", "the first use of the metadata sets its link"),
            ("TableMetadata::CLAIMED: 1 => a bit more", "bit 1 of a linked table's link is unused, like bit 0"),
        ],
    },
    Excused {
        file: "crates/stage2/src/pass.rs",
        mutants: &[
            ("Stage2::pass_entries: index < last => true", NO_ENTRIES),
            ("Stage2::pass_entries: index < last => index <= last", NO_ENTRIES),
            (
                "Stage2::pass_table: level == Level::L3 => false",
                "the pass checks the entries one by one, and hands over the same ones",
            ),
            ("Stage2::pass_table: entry.is_vacant() => false", VACANT),
            ("Stage2::pass_table: G::ENTRIES > MOST_ENTRIES => true", ONE_VISIT),
            ("Stage2::pass_table: G::ENTRIES > MOST_ENTRIES => G::ENTRIES >= MOST_ENTRIES", ONE_VISIT),
            ("Stage2::pass_entries: 1 => 2 #3", WHOLE_PAGES),
            ("Masked::entries: G::GROUPS => true", NO_MORE_PAGES),
            ("Masked::entries: G::GROUPS => true #2", NO_MORE_PAGES),
            ("Stage2::pass_entries: level < Level::L3 => true", NO_TABLE),
            ("Stage2::pass_entries: level < Level::L3 => level <= Level::L3", NO_TABLE),
            (
                "Stage2::pass_entries: V::wants(locked.counts) => true",
                "a visitor changes no entry that it does not want",
            ),
        ],
    },
    Excused { file: "crates/stage2/src/platform.rs", mutants: &[("Platform::pause: 0 => 1", PAUSE)] },
    Excused {
        file: "crates/stage2/src/protect.rs",
        mutants: &[
            ("Protect::wants: counts.leaves() > 0 => counts.leaves() >= 0", NO_LEAVES),
            ("WriteProtect::entries: locked.counts.hardware_tracked() > 0 => true", ONE_BY_ONE),
            (
                "WriteProtect::entries: locked.counts.hardware_tracked() > 0 => locked.counts.hardware_tracked() >= 0",
                ONE_BY_ONE,
            ),
            ("protect::write_protect_row: 0 => 1", BELOW_WRITE),
            ("protect::write_protect_row: writable != 0 => true", SAME_ROW),
            ("protect::write_protect_row: 0 => 1 #2", SAME_ROW),
            ("protect::write_protect_cells: writable == 0xff => false", EIGHT_BITS),
            ("protect::write_protect_cells: 0xff => 0x1ff", EIGHT_BITS),
            ("protect::write_protect_cells: !rest.is_empty() => true", "an empty slice has no work"),
        ],
    },
    Excused {
        file: "crates/stage2/src/removal.rs",
        mutants: &[
            ("RemovalCount::next: !R::WATCHES => false", UNWATCHED),
            ("RemovalCount::next: 0 => 1", UNWATCHED),
            ("RemovalCount::next: 0 => 1 #2", UNWATCHED),
            ("RemovalCount::next: 1 => 2", NUMBERED),
            ("RemovalCount::next: 1 => 2 #2", NUMBERED),
        ],
    },
    Excused {
        file: "crates/stage2/src/resize.rs",
        mutants: &[
            ("LiveSplits::note: 1 => 2", NOT_ZERO),
            (
                "Stage2::replace_block: now != filled => true",
                "the table is refilled with the entries that it already has",
            ),
            (
                "Stage2::is_whole_block: child.level == Level::L3 => true",
                "the entries of other tables lead to tables, whose pages no block maps",
            ),
            (
                "Stage2::is_whole_block: child.counts.live() == child.table.len() as u64 => true",
                "the check of all entries finds the hole, too",
            ),
        ],
    },
    Excused { file: "crates/stage2/src/sequence.rs", mutants: &[("SequenceCount::count_withdrawal: 1 => 2", NAME)] },
    Excused {
        file: "crates/stage2/src/split.rs",
        mutants: &[
            ("Stage2::split_block: 1 => 2", PAUSE),
            (
                "Stage2::split_block: busy.old != block => true",
                "the tables are refilled with the entries that they already have",
            ),
            ("Stage2::may_hold_blocks: level < Level::L2 => level <= Level::L2", MAY_HOLD),
            ("Stage2::may_hold_blocks: counts.leaves() > 0 => counts.leaves() >= 0", MAY_HOLD),
            ("Stage2::may_hold_blocks: counts.busy() > 0 => counts.busy() >= 0", MAY_HOLD),
            ("Stage2::next_block_in: self.may_hold_blocks(entry, below) => true", MAY_HOLD),
            ("Stage2::pages_to_split: 1 => 2", WHOLE_PAGES),
            ("Stage2::next_block_in: below < Level::L3 => true", MAY_HOLD),
            ("Stage2::next_block_in: below < Level::L3 => below <= Level::L3", MAY_HOLD),
            ("Stage2::refill: 0 => 1", "a table under construction has only tables or only leaves"),
            ("Stage2::next_to_split: !G::GROUPS => false", NO_GROUPS),
            ("Stage2::split_block: G::LARGEST == Level::L0 => true", "no leaf is at level 0 then"),
        ],
    },
    Excused {
        file: "crates/stage2/src/stage2.rs",
        mutants: &[("Stage2::under: 0 => 1 #3", "no block replaces a root, so its claim is never read")],
    },
    Excused {
        file: "crates/stage2/src/table.rs",
        mutants: &[
            ("Cell::unrecorded: old.is_hardware_tracked() => true", TRACE),
            ("Cell::unrecorded: old.is_hardware_tracked() => false", TRACE),
            ("Cell::update: new == old => false", SAME_VALUE),
            ("Table::entry: index < self.entries.len() => true", BEYOND),
            ("Table::entry: index < self.entries.len() => index <= self.entries.len()", BEYOND),
            ("Table::entry: 0 => 1", BEYOND),
            ("Table::fill: G::IS_PLAIN => false", ONE_AFTER_THE_OTHER),
            ("Table::fill: first.advances_plainly(count as u64 * step) => false", ONE_AFTER_THE_OTHER),
        ],
    },
    Excused {
        file: "crates/stage2/src/table_lock.rs",
        mutants: &[
            ("table_lock::PAUSES: 128 => its lowest bit clear", PAUSE),
            ("table_lock::PAUSES: 128 => a bit more", PAUSE),
            ("TableMetadata::lock_slowly: self.state.load(Ordering::Relaxed) & LOCKED != 0 => false", LOOK),
        ],
    },
    Excused {
        file: "crates/stage2/src/tables_below.rs",
        mutants: &[
            ("Stage2::lock_quiet: 1 => 2", PAUSE),
            ("Stage2::lock_quiet: self.platform().metadata(table).last().busy() > 0 => false", LOOK),
            ("Stage2::lock_quiet: 0 => 1", LOOK),
            ("Stage2::hold_below: above.counts.tables() == 0 => false", HOLDS_NONE),
            ("HeldBelow::drop: self.count > 0 => true", HOLDS_NONE),
            ("HeldBelow::drop: self.count > 0 => self.count >= 0", HOLDS_NONE),
            ("Stage2::wait_below: locked.counts.tables() > 0 => true", HOLDS_NONE),
            ("Stage2::wait_below: locked.counts.tables() > 0 => locked.counts.tables() >= 0", HOLDS_NONE),
        ],
    },
    Excused {
        file: "crates/stage2/src/tlb.rs",
        mutants: &[
            ("Changed::anything_in: 0xf => 0xe", SEVERAL_LEVELS),
            ("Changed::anything_in: 0xf => 0x1f", SEVERAL_LEVELS),
            ("Changed::table: 0 => 1", "the level is ignored if a table is removed"),
        ],
    },
    Excused {
        file: "crates/stage2/src/unlinked.rs",
        mutants: &[
            ("Stage2::free_table: false => true", "the caller gets leaves that it did not ask for, and ignores them"),
            ("Stage2::free_table: wanted => true", PASSED_OVER),
            (
                "Stage2::free_table: self.platform().metadata(pa).last().hardware_tracked() > 0 => self.platform().metadata(pa).last().hardware_tracked() >= 0",
                PASSED_OVER,
            ),
            ("Stage2::free_table: cleans => true", CLEANED_ALONE),
        ],
    },
    Excused {
        file: "crates/stage2/src/unmap.rs",
        mutants: &[
            ("Stage2::unmap_page: location.level != Level::L3 => true", LONG_WAY),
            ("Stage2::unmap_page: 1 => 2", LONG_WAY),
            ("Stage2::unmap_page: R::WATCHES => true", "each leaf is passed to a closure that does nothing"),
            ("Unmap::unlink: if_empty => false", LOOK),
            ("Unmap::unlink: counts.is_some_and(|counts| counts.live() > 0 || counts.busy() > 0) => false", LOOK),
            ("Unmap::unlink: counts.live() > 0 => false", LOOK),
            ("Unmap::unlink: 0 => 1", LOOK),
            ("Unmap::unlink: counts.busy() > 0 => false", LOOK),
            ("Unmap::unlink: 0 => 1 #2", LOOK),
            ("Unmap::leaves: 1 => 2 #2", WHOLE_PAGES),
            ("Unmap::take_reported: range.start < range.end => true", NO_ADDRESS),
            ("Unmap::take_reported: range.start < range.end => range.start <= range.end", NO_ADDRESS),
            ("Unmap::leaves: 1 => 2 #4", "only the start of these entries is used"),
        ],
    },
    Excused {
        file: "crates/stage2/src/vmids.rs",
        mutants: &[
            ("Vmids::new: 0 => 1", SERIAL_NUMBER),
            ("vmids::SERIAL: 16 => a bit more", SERIAL_NUMBER),
            ("vmids::LOOKS: 64 => a bit more", PAUSE),
            ("Vmids::use_or_give: 0 => 1", PAUSE),
            ("Vmids::use_or_give: 1 => 2", PAUSE),
            ("Vmids::use_or_give: 1 => 2 #2", PAUSE),
        ],
    },
    Excused { file: "crates/stage2/src/walk.rs", mutants: &[("Walk::entry: 1 => 2", PAUSE)] },
];

const SERIAL_NUMBER: &str = "serial numbers are only compared for equality, and 47 bits last for years, too";
const BEYOND: &str = "an assertion before it ends each test that has an index beyond the table";
const ONE_AFTER_THE_OTHER: &str = "each leaf is then made from the one before, with the same result";
const NO_GROUPS: &str = "tables of a type without groups have no entry with the hint, so the check only saves time";
const SEVERAL_LEVELS: &str = "both masks have more than one level";
const EIGHT_BITS: &str = "the general path counts the eight bits, with the same result";
const LAST_CHECK: &str = "one more check of the sequence count, after the last entry, is redundant";
const EMPTY_CHAIN: &str = "an empty chain has no tables";
const BY_BUSY: &str = "the path through a busy entry makes the same entry";
const VACANT: &str = "a vacant entry is checked under the lock, with the same result";
const ONE_VISIT: &str = "one visit reaches the end of a table of 512 entries, or the end of the range";
const NO_MORE_PAGES: &str = "without groups, a visit has no pages before the mask's first or after its last";
const NOT_ZERO: &str = "every value other than 0 has the same meaning";
const WHOLE_PAGES: &str = "the addresses are page-aligned, so an end one byte lower is in the same page";
const NO_TABLE: &str = "no entry of level 3 is a table";
const NO_ADDRESS: &str = "an invalidation without addresses takes time and changes nothing";
const EQUAL: &str = "if two numbers are equal, either of them is the smaller one";
const SAME_ROW: &str = "the row is checked entry by entry, with the same result";
const COHERENT: &str = "two places check this feature, and one check is enough";
const VALID: &str = "bit 0 is VALID, which is always set in such an entry";
const NO_LEAVES: &str = "a table without leaves has no work";
const ONE_BY_ONE: &str = "leaves without DBM are then changed one by one, with the same result";
const BELOW_WRITE: &str = "bit 0 is shifted out";
const ATOMIC: &str = "an exchange has the effect of the store";
const LONG_WAY: &str = "the slow path gives the result of the fast path";
const OTHER_TYPE: &str = "a leaf with the same address and type is never replaced";
const WIDTH: &str = "the width of accesses to more than one word affects only the time";
const HOLDS_NONE: &str = "if there are no tables below, none is locked or unlocked";
const PASSED_OVER: &str = "a caller ignores leaves that it did not ask for";
const CLEANED_ALONE: &str = "the leaves are checked one by one, and only those that need cache maintenance get it";
const OTHERS_ALONE: &str = "the leaves are checked one by one, and only those of another type are cleaned";
const NO_LEAF: &str = "an entry that is not a leaf never has the memory bits of a block that needs cleaning";
const BASELINE: &str = "the mutant changes a baseline for benches; the engine has only one order";
const MAY_HOLD: &str = "the walk reads a table without blocks, and finds none";
const TRACE: &str = "the word is only for traces";
const UNWATCHED: &str = "a removal that nothing watches reports no leaf, so nothing is opened with its number";
const NUMBERED: &str = "the numbers of removals have to differ, and no more";
const NO_ENTRIES: &str = "a visitor that gets no entries does nothing";
/// The label of the check that reads a whole row at once.
const GLANCE: &str = "Clean::entries: cells.iter().fold(0, |all, cell| all | cell.load(Ordering::Relaxed)) & Descriptor::WRITE \
                      => cells.iter().fold(0, |all, cell| all | cell.load(Ordering::Relaxed)) | Descriptor::WRITE";
