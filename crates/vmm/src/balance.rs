// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How guests whose pages leave share one amount of resident memory: what a guest does not need, another has.
//!
//! Each guest has a *share* of its own (`--resident`), and a *limit*, which begins as its share. All shares together are what
//! there is. At each look, part of one guest's limit may go to another:
//!
//! - R1. The *taker* is a guest that has used its limit up. One that is below its share comes first, then the one that has read the
//!   most pages from its store since the last look, for its size.
//! - R2. A guest that has not used its limit up gives what is free.
//! - R3. A guest above its share gives to a taker below its own. So a guest that needs its share gets it back.
//! - R4. A guest above its share gives to a taker that has read more than twice as many pages for its size.
//! - R5. Any guest gives if it has read at most one page for each [`IDLE`] of its limit: its pages are old.
//! - R6. A guest gives a sixteenth of its limit at a time at most, by R3 and R4 no more than it has above its share, and never goes below
//!   its least.
//! - R7. The taker gets what no guest has, which is what has left the giver by now; the rest at a later look.
//!
//! **Invariant:** if the sum of all `max(limit, taken)` was at most what there is before, it is so afterwards. So a guest that is
//! below its limit finds a frame.
//!
//! In R3 to R5 the giver is the guest that has read the fewest pages for its size, and the taker has read some.

/// A guest, at a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The pages that it has of its own.
    pub share: u64,
    /// The least that its limit can be.
    pub least: u64,
    /// The most that its limit can be.
    pub most: u64,
    /// Its limit now.
    pub limit: u64,
    /// The pages that it has now.
    pub taken: u64,
    /// The pages that its write-out task keeps free.
    pub headroom: u64,
    /// The pages that it has read from its store since the last look.
    pub reads: u64,
}

/// R5: a guest whose pages are old reads one page for this many of its limit, or fewer.
pub const IDLE: u64 = 1024;
/// R6.
const STEP: u64 = 16;

/// Sets the limits anew.
pub fn balance(guests: &mut [Need]) {
    let Some(taker) = taker(guests) else { return };
    if let Some((giver, pages)) = giver(guests, taker) {
        guests[giver].limit -= pages;
    }
    // R7.
    let free = there_is(guests).saturating_sub(in_use(guests));
    let guest = &mut guests[taker];
    guest.limit += free.min(guest.most.saturating_sub(guest.limit));
}

/// The pages of all guests together.
fn there_is(guests: &[Need]) -> u64 {
    guests.iter().map(|guest| guest.share).sum()
}

/// What the guests have, and may take.
fn in_use(guests: &[Need]) -> u64 {
    guests.iter().map(|guest| guest.limit.max(guest.taken)).sum()
}

/// R1.
fn taker(guests: &[Need]) -> Option<usize> {
    let wants = |guest: &Need| guest.taken + guest.headroom >= guest.limit && guest.limit < guest.most;
    let all = guests.iter().enumerate().filter(|(_, guest)| wants(guest));
    all.max_by_key(|(_, guest)| (guest.reads > 0 && guest.limit < guest.share, guest.rate())).map(|(index, _)| index)
}

/// R2 to R6: the guest that gives, and how many pages.
fn giver(guests: &[Need], taker: usize) -> Option<(usize, u64)> {
    let taking = guests[taker];
    let others = || guests.iter().enumerate().filter(move |(index, _)| *index != taker);
    let step = |guest: &Need| (guest.limit / STEP).max(1).min(guest.limit.saturating_sub(guest.least));
    // R2. Twice the headroom stays, so that the guest itself does not count as one that has used its limit up.
    let spare = |guest: &Need| guest.limit.saturating_sub(guest.taken + 2 * guest.headroom).min(step(guest));
    let most_spare = others().map(|(index, guest)| (index, spare(guest))).max_by_key(|(_, pages)| *pages);
    if let Some(found) = most_spare.filter(|(_, pages)| *pages > 0) {
        return Some(found);
    }
    if taking.reads == 0 {
        return None;
    }
    // R5, or else R3 and R4, by which a guest keeps its share.
    let gives = |guest: &Need| {
        let above = guest.limit.saturating_sub(guest.share);
        let is_behind = taking.limit < taking.share || guest.rate().saturating_mul(2) < taking.rate();
        match guest.reads <= guest.limit / IDLE {
            true => step(guest),
            false if is_behind => step(guest).min(above),
            false => 0,
        }
    };
    let giving = others().map(|(index, guest)| (index, gives(guest), guest.rate())).filter(|(_, pages, _)| *pages > 0);
    giving.min_by_key(|(_, _, rate)| *rate).map(|(index, pages, _)| (index, pages))
}

impl Need {
    /// The pages that it has read, for its size.
    fn rate(&self) -> u64 {
        const SCALE: u64 = 1 << 20;
        self.reads.saturating_mul(SCALE) / self.limit.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest that has used its share up.
    fn guest(share: u64, reads: u64) -> Need {
        Need { share, least: 64, most: 8 * share, limit: share, taken: share, headroom: 16, reads }
    }

    /// Many looks. Before each, all pages above a limit have left, and each guest has taken what it has ever used, as far as its
    /// limit allows.
    fn settle(guests: &mut [Need], used: &[u64], reads: impl Fn(usize, u64) -> u64) {
        for _ in 0..1000 {
            for (index, one) in guests.iter_mut().enumerate() {
                one.taken = one.limit.min(used[index]);
                one.reads = reads(index, one.limit);
            }
            balance(guests);
            assert!(in_use(guests) <= there_is(guests), "{guests:?}");
            assert!(guests.iter().all(|one| (one.least..=one.most).contains(&one.limit)), "{guests:?}");
        }
    }

    /// What a guest with this working set reads.
    fn misses(working_set: u64, limit: u64) -> u64 {
        working_set.saturating_sub(limit)
    }

    #[test]
    fn what_an_idle_guest_has_goes_to_one_that_reads() {
        let mut guests = [guest(1024, 0), guest(1024, 0)];
        settle(&mut guests, &[4096; 2], |index, limit| if index == 0 { 0 } else { misses(1800, limit) });
        assert!(guests[1].limit >= 1800 && guests[0].limit <= 248, "{guests:?}");
        // The idle guest begins to work, and gets its share back.
        settle(&mut guests, &[4096; 2], |index, limit| misses(if index == 0 { 1024 } else { 1800 }, limit));
        assert!(guests[0].limit >= 1000, "{guests:?}");
    }

    #[test]
    fn memory_that_was_never_taken_goes_to_one_that_has_read_nothing_yet() {
        let mut guests = [Need { taken: 100, ..guest(1024, 0) }, guest(1024, 0)];
        settle(&mut guests, &[100, 4096], |_, _| 0);
        assert!(guests[1].limit > 1800, "{guests:?}");
        assert!(guests[0].limit >= 100 + 32, "{guests:?}");
    }

    #[test]
    fn guests_that_need_the_same_keep_their_shares() {
        let mut guests = [guest(1024, 0), guest(1024, 0), guest(512, 0)];
        settle(&mut guests, &[4096; 3], |_, limit| misses(4096, limit));
        assert_eq!(guests.map(|one| one.limit), [1024, 1024, 512]);
    }

    #[test]
    fn a_guest_does_not_lose_what_it_uses_of_its_share() {
        let mut guests = [guest(1024, 0), guest(1024, 0)];
        settle(&mut guests, &[4096; 2], |index, limit| if index == 0 { misses(900, limit) } else { 8000 });
        // Beside what it uses, at most a step has gone too far, and comes back.
        assert!((900 - 900 / STEP..=900 + 900 / STEP).contains(&guests[0].limit), "{guests:?}");
    }

    #[test]
    fn a_taker_gets_only_what_has_left() {
        let mut guests = [Need { limit: 1024, taken: 1024, ..guest(1024, 0) }, guest(1024, 500)];
        balance(&mut guests);
        assert_eq!((guests[0].limit, guests[1].limit), (1024 - 64, 1024), "nothing has left yet");
        guests[0].taken = 1000;
        balance(&mut guests);
        assert_eq!(guests[1].limit, 1024 + 24);
    }

    /// The limits after one look.
    fn limits<const N: usize>(mut guests: [Need; N]) -> [u64; N] {
        balance(&mut guests);
        guests.map(|one| one.limit)
    }

    #[test]
    fn a_guest_that_has_all_but_its_headroom_takes_and_none_with_more() {
        let gives = Need { limit: 512, taken: 0, ..guest(1024, 0) };
        assert_eq!(limits([Need { taken: 1024 - 16, ..guest(1024, 0) }, gives]), [1024 + 512 + 32, 512 - 32]);
        assert_eq!(limits([Need { taken: 1024 - 17, ..guest(1024, 0) }, gives]), [1024, 512]);
    }

    #[test]
    fn a_guest_with_the_most_that_it_can_have_does_not_hold_up_another() {
        let full = Need { most: 1024, ..guest(1024, 500) };
        assert_eq!(limits([full, guest(1024, 10), Need { taken: 0, ..guest(1024, 0) }]), [1024, 1024 + 64, 1024 - 64]);
    }

    #[test]
    fn a_guest_below_its_share_that_has_read_a_page_comes_first() {
        let below = Need { limit: 512, taken: 512, ..guest(1024, 1) };
        let above = Need { limit: 1536, taken: 1536, ..guest(1024, 5000) };
        assert_eq!(limits([below, above]), [512, 1536 - 96]);
    }

    #[test]
    fn reads_count_for_the_size_of_a_guest() {
        let gives = Need { taken: 0, ..guest(1024, 0) };
        assert_eq!(limits([guest(512, 100), guest(2048, 150), gives]), [512 + 64, 2048, 1024 - 64]);
        let tiny = |share, reads| Need { most: 100, ..guest(share, reads) };
        assert_eq!(limits([tiny(1, 3), tiny(2, 4), gives]), [1 + 64, 2, 1024 - 64]);
    }

    #[test]
    fn what_is_free_beside_twice_the_headroom_is_given() {
        for spare in [1, 10] {
            let gives = Need { taken: 1024 - 32 - spare, ..guest(1024, 0) };
            assert_eq!(limits([guest(1024, 0), gives]), [1024 + spare, 1024 - spare]);
        }
    }

    #[test]
    fn a_guest_with_fewer_than_sixteen_pages_gives_one() {
        let gives = Need { least: 0, taken: 0, headroom: 0, ..guest(8, 0) };
        assert_eq!(limits([guest(1024, 0), gives]), [1025, 7]);
    }

    #[test]
    fn a_guest_is_idle_up_to_a_read_for_1024_pages() {
        assert_eq!(limits([guest(1024, 3), guest(2048, 2)]), [1024, 2048 - 128]);
        assert_eq!(limits([guest(1024, 3), guest(2048, 3)]), [1024, 2048]);
    }

    #[test]
    fn a_guest_above_its_share_gives_to_one_that_reads_more_than_twice_as_much() {
        let above = Need { limit: 1536, taken: 1536, ..guest(1024, 1536) };
        for (reads, left) in [(2048, 1536), (2049, 1536 - 96)] {
            assert_eq!(limits([guest(1024, reads), above]), [1024, left], "{reads}");
        }
    }

    #[test]
    fn a_guest_that_gives_nothing_does_not_hide_one_that_gives() {
        for above in [1, 10] {
            let takes = Need { limit: 1024 - above, taken: 1024, ..guest(1024, 1000) };
            let gives = Need { limit: 1024 + above, taken: 1024 + above, ..guest(1024, 100) };
            assert_eq!(limits([takes, guest(1024, 2), gives]), [1024 - above, 1024, 1024]);
        }
    }

    #[test]
    fn one_guest_has_no_one_to_take_from() {
        let mut guests = [guest(1024, 500)];
        balance(&mut guests);
        assert_eq!(guests[0].limit, 1024);
        balance(&mut []);
    }
}
