// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which sections hardware records: decided by what writes cost so far.
//!
//! A write that faults costs a fault. A section of 64 pages whose writes hardware records costs a look at its entries in each
//! round, written or not, which is a small part of a fault; and ending the records takes an atomic access an entry. So, as
//! with skis that are rented until renting has cost what buying does:
//!
//! * a fault arms its section;
//! * so many faults in a round in the same table's 2 MiB ([`TABLE`]), or in the 32 MiB around ([`GROUP`]), arm all of that: by
//!   then the faults have cost what arming does;
//! * a section that was clean for so many rounds in a row ([`COLD`]) that looking at it has cost what ending does is ended.
//!
//! What is armed stays so when it is cleared, and no round flushes but where records end. So where everything is written
//! often this is [`Tracker::Hardware`](super::Tracker::Hardware), where hardly anything is it is
//! [`Tracker::Manual`](super::Tracker::Manual), and the last round, for which the guest waits, looks at what is hot alone.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

use twofold_stage2::primitive::{Ordering, Word};

use super::options::SECTION;

/// Faults in a round after which a table's 2 MiB are armed.
const TABLE: u64 = 2;
/// Faults in a round after which the 32 MiB around are armed.
const GROUP: u64 = 32;
/// Rounds without a write after which a section's records end.
const COLD: u8 = 16;

const TABLE_PAGES: u64 = 512;
const GROUP_PAGES: u64 = 16 * TABLE_PAGES;

/// How many faults there were, and where. Counted by whoever faults: a count that is lost is of no importance.
pub(super) struct Heat {
    tables: Box<[Word]>,
    groups: Box<[Word]>,
    round: Word,
}

/// For how many rounds in a row each section was clean.
pub(super) struct Cold(Box<[u8]>);

impl Heat {
    /// For so many pages. `None` where there is no memory for it.
    pub(super) fn new(pages: u64) -> Option<Self> {
        Some(Self {
            tables: counts(pages / TABLE_PAGES + 1)?,
            groups: counts(pages / GROUP_PAGES + 1)?,
            round: Word::default(),
        })
    }

    /// A write to `page` has faulted: the pages that hardware is to record from now on, which may be more than there are.
    pub(super) fn fault(&self, page: u64) -> Range<u64> {
        let round = self.round.load(Ordering::Relaxed);
        let group = count(&self.groups[(page / GROUP_PAGES) as usize], round);
        let table = count(&self.tables[(page / TABLE_PAGES) as usize], round);
        let pages = if group == GROUP {
            GROUP_PAGES
        } else if table == TABLE {
            TABLE_PAGES
        } else {
            SECTION
        };
        let first = page / pages * pages;
        first..first + pages
    }

    /// A new round begins.
    pub(super) fn next_round(&self) {
        self.round.store(self.round.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

/// Counts one, in this round; the number of the round is beside the count.
fn count(cell: &Word, round: u64) -> u64 {
    let old = cell.load(Ordering::Relaxed);
    let new = if old >> 32 == round & u64::from(u32::MAX) { old + 1 } else { round << 32 | 1 };
    cell.store(new, Ordering::Relaxed);
    new & u64::from(u32::MAX)
}

fn counts(count: u64) -> Option<Box<[Word]>> {
    let mut words = Vec::new();
    words.try_reserve_exact(count as usize).ok()?;
    words.resize_with(count as usize, Word::default);
    Some(words.into_boxed_slice())
}

impl Cold {
    /// For so many pages. `None` where there is no memory for it.
    pub(super) fn new(pages: u64) -> Option<Self> {
        let sections = pages.div_ceil(SECTION) as usize;
        let mut rounds = Vec::new();
        rounds.try_reserve_exact(sections).ok()?;
        rounds.resize(sections, 0);
        Some(Self(rounds.into_boxed_slice()))
    }

    /// Nothing was looked at yet.
    pub(super) fn forget(&mut self) {
        self.0.fill(0);
    }

    /// A section was looked at. Whether it has been clean for long enough.
    pub(super) fn looked(&mut self, section: u64, dirty: bool) -> bool {
        let rounds = &mut self.0[section as usize];
        *rounds = if dirty { 0 } else { *rounds + 1 };
        let is_cold = *rounds >= COLD;
        if is_cold {
            *rounds = 0;
        }
        is_cold
    }
}
