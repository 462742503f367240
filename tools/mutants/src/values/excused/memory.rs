// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mutants of `crates/memory`.

use super::{CAPACITY, LOOK, NAME, SAME_VALUE};
use crate::mutation::Excused;

pub(super) const EXCUSED: &[Excused] = &[
    Excused {
        file: "crates/memory/src/async_fault/area.rs",
        mutants: &[("Area::announce: 0 => 1", "each byte is overwritten before the announcement is written")],
    },
    Excused {
        file: "crates/memory/src/async_fault/arrivals.rs",
        mutants: &[
            ("Arrivals::take: self.hints.load(Ordering::Relaxed) == 0 => false", LOOK),
            ("Arrivals::cancel: !was_pending => true", SAME_VALUE),
        ],
    },
    Excused {
        file: "crates/memory/src/async_fault/requests.rs",
        mutants: &[
            (
                "Requests::cancel: request.state == State::InFlight => true",
                "the word of a slot whose arrival was taken is free, and is then overwritten with the value that it already has",
            ),
            (
                "Requests::open: 0 => 1",
                "only the numbers of announced requests are read, and the announcement sets them",
            ),
        ],
    },
    Excused {
        file: "crates/memory/src/clear.rs",
        mutants: &[(
            "GuestMemory::clear_huge_page: forgotten == Forgotten::All => false",
            "pages that are forgotten have no content to clear: more work, same result",
        )],
    },
    Excused {
        file: "crates/memory/src/dirty/adaptive.rs",
        mutants: &[
            ("Cold::looked: 0 => 1", "COLD is more than 1"),
            ("Cold::looked: longest >= COLD => true", "the 64-page words are checked one by one, with the same result"),
            ("Cold::new: 0 => 1 #2", "each round sets the credit before it reads it"),
        ],
    },
    Excused {
        file: "crates/memory/src/dirty/bits.rs",
        mutants: &[
            ("Bits::take: cell.load(Ordering::Relaxed) & mask == 0 => false", TAKE_NOTHING),
            ("Bits::take: cell.load(Ordering::Relaxed) & mask => cell.load(Ordering::Relaxed) | mask", TAKE_NOTHING),
            (
                "Bits::take: old & !mask == 0 => true",
                "if bits are left, the summary bit is set again, and only the log's owner reads it",
            ),
            ("Bits::set_above: above.load(Ordering::Relaxed) & bit == 0 => true", "the bit is already set"),
            ("bits::inside: left < WORD => left <= WORD", "both bounds give all 64 bits"),
        ],
    },
    Excused {
        file: "crates/memory/src/dirty/clear.rs",
        mutants: &[
            ("Held::clearing: false => true", "an empty run that restarts equals one that continues at the first page"),
            ("Clearing::word: taken == inside => false", "the mask of a full word protects all of its pages, too"),
            ("Clearing::split_before: first < self.split => false", "a chunk that is already split has no blocks"),
        ],
    },
    Excused {
        file: "crates/memory/src/dirty/fault.rs",
        mutants: &[
            ("GuestMemory::note_writes: slot.tracking.running().is_some() => true", STOPPED),
            ("GuestMemory::relax_logged: slot.tracking.running().is_some() => true", STOPPED),
            ("GuestMemory::relax_logged: then.sets_dbm_around() => true", SETS_DBM),
            ("GuestMemory::undo_tracked: self.swap.is_some() => true", NO_COPY),
        ],
    },
    Excused {
        file: "crates/memory/src/dirty/get.rs",
        mutants: &[
            ("Held::take_all: !dirty.has_room() => true", ROOM),
            ("Held::report: !dirty.has_room() => true", ROOM),
            ("Held::report: !dirty.has_room() => false", ROOM),
            ("Held::report: !dirty.has_room() => dirty.has_room()", ROOM),
            ("Held::report: 1 => 2", ROOM),
            ("Held::take_all: 1 => 2", ROOM),
            (
                "Held::end_records: tracked.take(word, u64::MAX) & self.sections_in(word) => tracked.take(word, u64::MAX) | self.sections_in(word)",
                NOT_TRACKED,
            ),
            (
                "Held::look_at_tracked: tracked.word(word) & self.sections_in(word) => tracked.word(word) | self.sections_in(word)",
                NOT_TRACKED,
            ),
            ("Held::look_at_tracked: cold != 0 => true", "an empty mask has no 64-page words"),
        ],
    },
    Excused {
        file: "crates/memory/src/dirty/log.rs",
        mutants: &[
            (
                "Tracking::run: 1 => 2 #3",
                "the number of hardware-tracked logs is only compared for equality, and still rises",
            ),
            ("Running::sets_dbm_around: self.0 & Self::SETS_DBM_AROUND => self.0 | Self::SETS_DBM_AROUND", SETS_DBM),
            ("Running::sets_dbm_around: 0 => 1", SETS_DBM),
            ("Tracking::run: 0 => 1", "every tracker is in Tracker::ALL"),
            ("Log::new: 0 => 1", START_NUMBER),
            ("Tracking::run: 1 => 2", START_NUMBER),
            ("Tracking::run: 8 => 9", START_NUMBER),
        ],
    },
    Excused {
        file: "crates/memory/src/dirty/options.rs",
        mutants: &[("LogOptions::check: 512 => 513", "513 is not a power of two")],
    },
    Excused {
        file: "crates/memory/src/fault.rs",
        mutants: &[
            (
                "GuestMemory::fault: fault.access == AccessKind::Write => false",
                "a write reaches allow_write through allow, one call later",
            ),
            ("GuestMemory::map_logged: slot.writable => true", LOGGED),
            ("GuestMemory::map_logged: slot.writable => true #2", LOGGED),
        ],
    },
    Excused {
        file: "crates/memory/src/frames.rs",
        mutants: &[
            ("Frames::take: count < PAGES => count <= PAGES", ANY_MAP),
            ("Range::new: size.div_ceil(HUGE_PAGE) as usize + 1 => size.div_ceil(HUGE_PAGE) as usize - 1", CAPACITY),
            ("Range::new: 1 => 2", CAPACITY),
            ("Range::new: 0 => 1", ANY_MAP),
            (
                "Range::take_from_broken: self.first_free += self.maps[self.first_free..].iter().take_while(|map| map.free() == 0).count() => ()",
                ANY_MAP,
            ),
            ("Range::take_from_broken: 0 => 1", ANY_MAP),
            ("Range::take_whole: count > PAGES => true", ANY_MAP),
            ("Range::take_whole: count > PAGES => count >= PAGES", ANY_MAP),
            ("Range::give: self.first_free.min(at) => self.first_free.max(at)", ANY_MAP),
            ("Range::give: self.maps[at].free() == PAGES => true", ANY_MAP),
        ],
    },
    Excused {
        file: "crates/memory/src/guest.rs",
        mutants: &[
            ("GuestMemory::unmap: self.swap.is_some() => true", NO_COPY),
            ("GuestMemory::read_in_page: 0 => 1 #2", "each caller sets what was done, or does not look at it"),
        ],
    },
    Excused {
        file: "crates/memory/src/ram.rs",
        mutants: &[
            (
                "BackedPage::make_page_ready: G::SIZE == FRAME => false",
                "the page is zeroed as a range of one frame, with the same result",
            ),
            (
                "BackedPage::make_piece_ready: ready != 0 => true",
                "the pages are zeroed one by one, with the same result",
            ),
            ("BackedPage::make_huge_page_ready: 8 => 9", "2 MiB have 512 pages, so first / 64 is below 8"),
            ("BackedPage::make_piece_ready: 8 => 9", "2 MiB have 512 pages, so first / 64 is below 8"),
            ("BackedPage::make_page_ready: 8 => 9", "2 MiB have 512 pages, so page / 64 is below 8"),
        ],
    },
    Excused { file: "crates/memory/src/shared.rs", mutants: &[("Share::add_tables: 1 => 2", CAPACITY)] },
    Excused {
        file: "crates/memory/src/slots.rs",
        mutants: &[
            ("Slots::default: 0 => 1", "every value of the hint is safe: the search checks the slot there"),
            ("Slots::default: 0 => 1 #2", "slot numbers are only compared for equality"),
            ("Slots::default: 0 => 1 #3", "the slots' generation is only compared for equality"),
            ("Slots::add: 1 => 2", "slot numbers are only compared for equality"),
            ("Slots::remove: 1 => 2", "the slots' generation is only compared for equality, and still rises"),
            (
                "Slots::from: slot.range.end <= ipa => slot.range.end < ipa",
                "a slot that ends there has no page from there on",
            ),
            (
                "Slots::place_of: other.range.start < start => other.range.start <= start",
                "a slot with the same start is found as a neighbour either way",
            ),
        ],
    },
    Excused {
        file: "crates/memory/src/swap/ages.rs",
        mutants: &[
            ("Ages::set_slots: 1 => 2", CAPACITY),
            ("ages::PART: 64 * PAGES as usize => a bit more", "what is allocated at once is more, and nothing else"),
            ("ages::position: 64 => 65", FOUND_ALONE),
            ("ages::position: false => true", FOUND_ALONE),
        ],
    },
    Excused {
        file: "crates/memory/src/swap/arrive.rs",
        mutants: &[
            (
                "GuestMemory::begin_at_once: !swap.waiting.lock(platform).add_at_once(page, waiter) => true",
                "the page comes in its turn, by more locks and with the same result",
            ),
            (
                "GuestMemory::serve: waiting.oldest_wanting().is_none() => false",
                "the loop looks again, finds none, and ends",
            ),
        ],
    },
    Excused {
        file: "crates/memory/src/swap/clock.rs",
        mutants: &[
            ("Clock::new: 0 => 1", ALIGNED_DOWN),
            ("Clock::next: 0 => 1", ALIGNED_DOWN),
            ("Clock::next: 0 => 1 #2", ALIGNED_DOWN),
        ],
    },
    Excused {
        file: "crates/memory/src/swap/fault.rs",
        mutants: &[
            ("GuestMemory::map_single: slot.writable => true", LOGGED),
            ("GuestMemory::map_single: slot.writable => true #2", "a write to a slot that is read-only ends before"),
        ],
    },
    Excused {
        file: "crates/memory/src/swap/generations.rs",
        mutants: &[
            (
                "Generations::judge: huge_page < range.end => huge_page <= range.end",
                "the range of pages there is empty",
            ),
            (
                "Generations::judge: !is_blank => true",
                "pages of which nothing is known, and that have no frame, stay so",
            ),
            (
                "Generations::new: 0 => 1",
                "only the differences between numbers of departures are read, and the first round comes before any page leaves",
            ),
            (
                "Generations::choose: age.class() == Class::Protected => age.class() != Class::Protected",
                "the two hands begin at the same page, and are then exchanged everywhere",
            ),
            (
                "OldestProtected::gives_way_to: 0 => 1",
                "no page is younger than the youngest by more than one round, nor than those of the round before",
            ),
            (
                "Generations::make_room: self.ages.is_partial => true",
                "the clock then asks the pages that have refused to leave once more, with the same answers",
            ),
        ],
    },
    Excused {
        file: "crates/memory/src/swap/give_up.rs",
        mutants: &[(
            "GuestMemory::give_up_pages: platform.interrupt_is_pending() => true",
            "the caller goes on with the next page, with the same result",
        )],
    },
    Excused {
        file: "crates/memory/src/swap/limit.rs",
        mutants: &[
            ("GuestMemory::wants_frames: !self.frames_are_wanted(swap) => false", LOOKS_AGAIN),
            ("GuestMemory::frames_are_wanted: waiting.wanting() > 0 => waiting.wanting() >= 0", LOOKS_AGAIN),
            (
                "GuestMemory::frames_are_wanted: room < swap.options.headroom.div_ceil(2) => room <= swap.options.headroom.div_ceil(2)",
                LOOKS_AGAIN,
            ),
        ],
    },
    Excused {
        file: "crates/memory/src/swap/peek.rs",
        mutants: &[
            ("GuestMemory::end_peeks: result.is_ok() => true", "no peek returns the bytes of a read that failed"),
            ("peek::empty: 0 => 1", "the bytes are filled before a peek returns them"),
        ],
    },
    Excused {
        file: "crates/memory/src/swap/peeks.rs",
        mutants: &[("Peeks::add: 1 => 2", CAPACITY), ("Peeks::add: 1 => 2 #2", NAME)],
    },
    Excused { file: "crates/memory/src/swap/pins.rs", mutants: &[("Pins::pin: 1 => 2 #2", CAPACITY)] },
    Excused {
        file: "crates/memory/src/swap/pokes.rs",
        mutants: &[("Pokes::add: 1 => 2", CAPACITY), ("Pokes::add: 1 => 2 #2", NAME)],
    },
    Excused {
        file: "crates/memory/src/swap/single.rs",
        mutants: &[(
            "Singles::are_zero: matches!(self.0.last(), Some(Page::Zero)) => true",
            "the search of all pages finds the same",
        )],
    },
    Excused {
        file: "crates/memory/src/swap/state.rs",
        mutants: &[
            ("Swap::give_back: spare.len() < SPARE => true", ONE_MORE),
            ("Swap::give_back: spare.len() < SPARE => spare.len() <= SPARE", ONE_MORE),
        ],
    },
    Excused {
        file: "crates/memory/src/swap/store.rs",
        mutants: &[
            (
                "PageStore::reads_at_once: false => true",
                "the read at once that follows refuses, and the page is asked for",
            ),
            ("PageStore::read_at_once: false => true", "no caller asks a store for this that does not read at once"),
        ],
    },
    Excused {
        file: "crates/memory/src/swap/streams.rs",
        mutants: &[("Streams::new: 0 => 1", "a stream of no pages goes on nowhere")],
    },
    Excused {
        file: "crates/memory/src/swap/waiters.rs",
        mutants: &[
            ("Waiting::new: 0 => 1 #4", NAME),
            ("Waiting::new: false => true #2", "the CPU that serves first looks once more"),
            ("Waiting::has: self.count > 0 => true", FINDS_NONE),
            ("Waiting::has: self.count > 0 => self.count >= 0", FINDS_NONE),
            ("Waiting::oldest_wanting: self.wants_nothing() => false", FINDS_NONE),
            ("Waiting::take_if: self.count == 0 => false", FINDS_NONE),
            ("Waiting::wanting: self.wants_nothing() => false", FINDS_NONE),
            ("Waiting::take_alone: !self.wants_nothing() => true", GENERAL_WAY),
            ("Waiting::take_alone: found.replace((at, entry.waiter)).is_some() => true", GENERAL_WAY),
            ("Waiting::insert: 1 => 2 #3", NAME),
            ("Waiting::queue_peek: 1 => 2", NAME),
        ],
    },
];

const TAKE_NOTHING: &str = "a word without such a bit does not change";
const STOPPED: &str = "a start clears or fills the log";
const SETS_DBM: &str = "trackers that never set DBM do nothing there either";
const ROOM: &str = "room is also made for each word as it is added";
const NOT_TRACKED: &str = "a 64-page word without DBM has no records";
const NO_COPY: &str = "without a page store, no page has a copy that ends";
const START_NUMBER: &str = "start numbers are only compared for equality";
const LOGGED: &str = "a slot with a log is writable";
const ANY_MAP: &str = "the first map that is searched affects only the time: a search of all maps follows";
const FOUND_ALONE: &str = "the search in the block finds the first page, wherever before it it begins";
const FINDS_NONE: &str = "the search finds none";
const GENERAL_WAY: &str = "the read ends in the general way, with the same result";
const ONE_MORE: &str =
    "states come back to a full list only if it was refilled within the call, and the list then has one more";
const LOOKS_AGAIN: &str = "what follows looks again, with the same result";
const ALIGNED_DOWN: &str = "leaving aligns the address down to its page";
