// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chooses the pages that leave, by when they were last accessed.
//!
//! Time passes in *rounds*. The pages whose last access was in the same round are one generation, and the oldest
//! generation leaves first.
//!
//! # A round
//!
//! * R1: every page is one round older.
//! * R2: collect and clear the access flags of the guest's RAM ([`Stage2::age`](twofold_stage2::Stage2::age)). The pages
//!   that have one set are of the youngest generation.
//! * R3: look which pages have frames. Judge those that have come since the last round.
//! * R4: one flush. Ageing invalidates no TLB. A CPU that holds an entry sets no flag, so without the flush a page that
//!   is accessed all the time would look old.
//!
//! Where hardware has no access flags, the first access after R2 faults, and the fault sets the flag. The rest is the same.
//!
//! # Probation
//!
//! A page that has just come was accessed once, and so was each page of a scan. If such pages were the youngest
//! generation, a scan would push out all others. So a page that comes is on *probation*: it leaves before the protected pages.
//! It is protected once it was accessed in a second round. All pages of the first round are protected, and all that come as
//! long as less than half of the pages in memory are.
//!
//! A page that is used seldom would always leave before that. So a page that comes back is protected at once if its
//! last access, before it left, was more recent than the last access of the oldest protected page, by more than one round. Each
//! such page takes the place of one that was not used for longer. In a loop over more pages than there are frames, all pages are
//! equally old, so none takes another's place, and those that are protected stay: a queue would have none of them when
//! its turn comes.
//!
//! # Cost
//!
//! `cargo bench -p twofold-machine --bench swap` prints the cost of a round for each page, by what is mapped. R2 locks
//! one table at a time, and R3 one slot's backing for the 512 states of one huge page at a time, so faults wait for no
//! more than that. Beside it, a page costs five bytes on the heap of each 128 MiB that were touched. Faults do
//! nothing for it, with or without a store.

use twofold_stage2::{Granule, Ipa, IpaRange, Platform};

use super::ages::{Age, Ages, At, Class, OLDEST};
use super::clock::{Clock, Relief};
use super::leave::{WriteOutError, WrittenOut};
use super::refaults::{Refaults, WorkingSet};
use crate::frames::HUGE_PAGE;
use crate::guest::GuestMemory;
use crate::slots::Content;

/// A round follows when this part of the pages in memory has left. More rounds tell more generations apart and find
/// new pages sooner, but give a page on probation less time to be used again.
const SHARE: u64 = 16;
/// The least number of pages for that.
const LEAST: u64 = 8;

/// A guest's pages by the rounds since they were last accessed. One write-out task owns it.
pub struct Generations {
    ages: Ages,
    /// The slots' generation for which `ages` was made.
    slots: Option<u64>,
    /// Where the last search has ended, on probation and among the protected.
    hands: [At; 2],
    /// Pages that have left, and how many of them before the last round.
    departures: u64,
    departures_before: u64,
    rounds: u64,
    refaults: Refaults,
    /// For pages for which there is no memory on the heap.
    clock: Clock,
}

impl Default for Generations {
    fn default() -> Self {
        Self::new()
    }
}

impl Generations {
    /// Nothing is known yet.
    pub const fn new() -> Self {
        Self {
            ages: Ages::new(),
            slots: None,
            hands: [At::FIRST; 2],
            departures: 0,
            departures_before: 0,
            rounds: 0,
            refaults: Refaults::NONE,
            clock: Clock::new(),
        }
    }

    /// Ends a round (R1 to R4). [`make_room`](Self::make_room) does so by itself when pages leave. Call it at a steady
    /// interval too, if the [working set](Self::working_set) is of interest.
    pub fn round<P: Platform, G: Granule>(&mut self, memory: &GuestMemory<P, G>) {
        self.set_slots(memory);
        self.ages.pass_round();
        self.collect(memory);
        self.judge(memory);
        memory.stage2.invalidate_all();
        self.departures_before = self.departures;
        self.rounds += 1;
    }

    /// Writes out `count` pages, or as many as can leave. It stops after a page if an interrupt is pending.
    ///
    /// # Errors
    ///
    /// The last error of a page, if none could leave: the write-out task then calls
    /// [`fail_waiting`](GuestMemory::fail_waiting), and tries again when the store is mended.
    pub fn make_room<P: Platform, G: Granule>(
        &mut self,
        memory: &GuestMemory<P, G>,
        count: u64,
    ) -> Result<Relief, WriteOutError> {
        let mut relief = Relief::default();
        let mut refused = None;
        // A round may find pages that have come, or that are not used any more. One that was never accessed is chosen
        // after a second.
        let mut looks = 2;
        self.set_slots(memory);
        while relief.pages() < count {
            let Some(at) = self.choose(memory, &mut looks) else { break };
            let age = self.ages.get(at);
            let now = match memory.write_out(self.ages.ipa(at)) {
                Ok(written @ (WrittenOut::Freed | WrittenOut::Started)) => {
                    relief.freed += u64::from(written == WrittenOut::Freed);
                    relief.started += u64::from(written == WrittenOut::Started);
                    self.leaves(at);
                    age.with(Class::Away)
                }
                Ok(WrittenOut::Needed) => Age::new(Class::Protected, 0),
                Ok(WrittenOut::NotPresent) => age.with(Class::Away),
                Ok(WrittenOut::Pinned) => age.with(Class::Undecided),
                // An interrupt that is pending ends the loop below.
                Ok(WrittenOut::Interrupted) => age,
                Err(error) => {
                    refused = Some(error);
                    age.with(Class::Undecided)
                }
            };
            self.ages.set(at, now);
            if relief.stops(memory, count) {
                break;
            }
        }
        if self.ages.is_partial && !relief.is_interrupted {
            match self.clock.make_room(memory, count - relief.pages()) {
                Ok(more) => {
                    relief.freed += more.freed;
                    relief.started += more.started;
                    relief.is_interrupted = more.is_interrupted;
                }
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) if relief == Relief::default() => Err(error),
            _ => Ok(relief),
        }
    }

    /// The pages that were accessed in the last `rounds` rounds, 63 at most.
    pub fn working_set(&self, rounds: u8) -> WorkingSet {
        let in_memory = self.ages.accessed(&[Class::Probation, Class::Protected, Class::Undecided], rounds);
        WorkingSet { accessed: in_memory + self.ages.accessed(&[Class::Away], rounds), in_memory }
    }

    /// The pages that were accessed again after they had left.
    pub fn refaults(&self) -> &Refaults {
        &self.refaults
    }

    /// How many rounds there were.
    pub fn rounds(&self) -> u64 {
        self.rounds
    }

    fn set_slots<P: Platform, G: Granule>(&mut self, memory: &GuestMemory<P, G>) {
        let generation = memory.slots.generation();
        if self.slots != Some(generation) || self.ages.is_partial {
            self.ages.set_slots(memory.slots.ram_ranges());
            self.slots = Some(generation);
        }
    }

    /// R2. A page that was not known to be in memory is judged by R3, with the age that it had.
    fn collect<P: Platform, G: Granule>(&mut self, memory: &GuestMemory<P, G>) {
        let granule = memory.stage2.geometry().granule();
        let ages = &mut self.ages;
        for slot in 0.. {
            let Some(range) = ages.range(slot) else { break };
            let aged = memory.stage2.age(range.clone(), &mut |young| {
                let span = granule.span(young.level);
                for leaf in young.leaves(span) {
                    let end = (leaf + span).min(range.end);
                    let mut page = leaf.max(range.start);
                    while page < end {
                        let at = ages.at(slot, page);
                        let old = ages.get(at);
                        let now = match old.class() {
                            Class::Away => old.with(Class::Undecided),
                            _ => Age::new(Class::Protected, 0),
                        };
                        ages.set(at, now);
                        page = page + G::SIZE;
                    }
                }
            });
            debug_assert!(aged.is_ok(), "a slot is whole pages of the IPA space: {aged:?}");
        }
    }

    /// R3.
    fn judge<P: Platform, G: Granule>(&mut self, memory: &GuestMemory<P, G>) {
        let half = if self.rounds == 0 { u64::MAX } else { memory.frames().data().0 / 2 };
        let mut oldest = OldestProtected::new(&self.ages, half);
        for slot in 0.. {
            let Some(range) = self.ages.range(slot) else { break };
            let mut huge_page = range.start.align_down(HUGE_PAGE);
            while huge_page < range.end {
                let frames = memory.with_frames(huge_page.max(range.start));
                let first = self.ages.at(slot, huge_page);
                let is_blank = frames.is_none() && self.ages.is_blank(first);
                let pages = huge_page.max(range.start)..(huge_page + HUGE_PAGE).min(range.end);
                if !is_blank {
                    self.judge_pages::<G>(slot, pages, frames.unwrap_or_default(), &mut oldest);
                }
                huge_page = huge_page + HUGE_PAGE;
            }
        }
    }

    fn judge_pages<G: Granule>(
        &mut self,
        slot: usize,
        pages: IpaRange,
        frames: [u64; 8],
        oldest: &mut OldestProtected,
    ) {
        let mut page = pages.start;
        while page < pages.end {
            let at = self.ages.at(slot, page);
            let number = (page.raw() % HUGE_PAGE / G::SIZE) as usize;
            let has_frame = frames[number / 64] >> (number % 64) & 1 == 1;
            let old = self.ages.get(at);
            match (old.class(), has_frame) {
                (Class::Undecided, true) => self.came(at, old.rounds(), oldest),
                // It was not accessed: it came just now, was read ahead, or is a part of a huge page that is not used.
                // It has one round.
                (Class::Away, true) => self.ages.set(at, Age::new(Class::Undecided, OLDEST)),
                (Class::Away, false) | (Class::Probation | Class::Protected, true) => {}
                (_, false) => self.ages.set(at, old.with(Class::Away)),
            }
            page = page + G::SIZE;
        }
    }

    /// A page has come and was accessed; before that, it was accessed this many rounds ago.
    fn came(&mut self, at: At, rounds: u8, oldest: &mut OldestProtected) {
        if let Some(left) = self.ages.take_left(at) {
            self.refaults.add((self.departures as u32).wrapping_sub(left).saturating_add(1));
        }
        let is_protected = oldest.has_room() || oldest.gives_way_to(rounds);
        self.ages.set(at, Age::new(if is_protected { Class::Protected } else { Class::Probation }, 0));
    }

    fn leaves(&mut self, at: At) {
        self.departures += 1;
        // 0 is for pages that have not left.
        self.ages.set_left(at, (self.departures as u32).max(1));
    }

    /// The next page to leave. A page that was accessed since the last round is not: it is young, and only the next
    /// round would show it. If there is none, or only the youngest generation is left, a round follows, if there are `looks` left.
    fn choose<P: Platform, G: Granule>(&mut self, memory: &GuestMemory<P, G>, looks: &mut u32) -> Option<At> {
        loop {
            let left = self.departures - self.departures_before;
            let in_memory = self.ages.in_memory();
            let is_due = left > (in_memory / SHARE).max(LEAST);
            let undecided = self.ages.in_class(Class::Undecided);
            let may_find = *looks > 0 && (left >= in_memory / SHARE / SHARE || undecided > in_memory / SHARE);
            let age = match (self.ages.oldest(Class::Probation), self.ages.oldest(Class::Protected)) {
                (Some(age), _) => age,
                (None, Some(age)) if !is_due && (age.rounds() > 0 || !may_find) => age,
                (None, None) if *looks == 0 => return None,
                (None, _) => {
                    *looks = looks.saturating_sub(1);
                    self.round(memory);
                    continue;
                }
            };
            let hand = &mut self.hands[usize::from(age.class() == Class::Protected)];
            let at = self.ages.find(age, *hand)?;
            *hand = at.next();
            if age.rounds() == 0 || !memory.was_accessed(self.ages.ipa(at)) {
                return Some(at);
            }
            self.ages.set(at, Age::new(Class::Protected, 0));
        }
    }
}

/// The protected pages, the oldest of which gives way to a page that comes back.
struct OldestProtected {
    counts: [u64; OLDEST as usize + 1],
    oldest: u8,
    /// How many more are protected until half of the pages in memory are.
    room: u64,
}

impl OldestProtected {
    fn new(ages: &Ages, half: u64) -> Self {
        let counts = core::array::from_fn(|rounds| ages.count(Age::new(Class::Protected, rounds as u8)));
        let room = half.saturating_sub(counts.iter().sum());
        Self { counts, oldest: OLDEST, room }
    }

    /// Whether another page may be protected without any giving way.
    fn has_room(&mut self) -> bool {
        let has_room = self.room > 0;
        self.room -= u64::from(has_room);
        has_room
    }

    /// Whether one of them was accessed longer ago than this, by more than one round. It gives way then.
    fn gives_way_to(&mut self, rounds: u8) -> bool {
        while self.oldest > 0 && self.counts[self.oldest as usize] == 0 {
            self.oldest -= 1;
        }
        let gives_way = rounds.saturating_add(1) < self.oldest;
        if gives_way {
            self.counts[self.oldest as usize] -= 1;
        }
        gives_way
    }
}

impl<P: Platform, G: Granule> GuestMemory<P, G> {
    /// Whether the access flag of the leaf at `page` is set: of a page or of a block.
    fn was_accessed(&self, page: Ipa) -> bool {
        self.stage2.look_up(page).is_some_and(|leaf| leaf.descriptor.is_accessed())
    }

    /// Which pages of the huge page at `ipa` have a frame and no I/O in flight: a bit for each. `None` if it was never
    /// touched.
    fn with_frames(&self, ipa: Ipa) -> Option<[u64; 8]> {
        match &self.slots.find(ipa)?.content {
            Content::Ram(ram) => ram.lock(self.stage2.platform()).with_frames(ipa),
            Content::Preallocated(_) | Content::Device(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::FRAME;

    /// Protected pages, by the rounds since their last access.
    fn protected(rounds: &[u8]) -> Ages {
        let mut ages = Ages::new();
        ages.set_slots(core::iter::once(Ipa::new(0)..Ipa::new(HUGE_PAGE)));
        for (page, rounds) in rounds.iter().enumerate() {
            ages.set(ages.at(0, Ipa::new(page as u64 * FRAME)), Age::new(Class::Protected, *rounds));
        }
        ages
    }

    #[test]
    fn there_is_room_until_half_are_protected() {
        let mut oldest = OldestProtected::new(&protected(&[0, 3, OLDEST]), 5);
        assert_eq!([(); 3].map(|()| oldest.has_room()), [true, true, false]);
        let mut none = OldestProtected::new(&protected(&[0, 3]), 1);
        assert!(!none.has_room());
    }

    /// The oldest of those that are left, and only if it is older by more than one round.
    #[test]
    fn each_old_page_gives_way_once() {
        let mut oldest = OldestProtected::new(&protected(&[OLDEST, 6, 6, 2, 0]), 0);
        assert!(!oldest.gives_way_to(OLDEST - 1));
        assert!(oldest.gives_way_to(OLDEST - 2));
        let six = [5, 4, 0, 4].map(|rounds| oldest.gives_way_to(rounds));
        assert_eq!(six, [false, true, true, false]);
        assert_eq!([1, 0, 0].map(|rounds| oldest.gives_way_to(rounds)), [false, true, false]);
        let mut none = OldestProtected::new(&Ages::new(), 0);
        assert!(!none.gives_way_to(0));
    }
}
