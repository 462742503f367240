// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several streams as one: they are of one migration, they end each round together, and each page is counted once.
//!
//! Each stream's reader checks its own order. What it cannot see is checked here: that no stream is missing or comes
//! twice, that no page of a round is in two streams, and that the first round has each page. So a guest whose streams
//! have all come to their ends is whole.

use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use super::error::JoinError;
use super::phase::Phase;
use crate::commit::Ownership;
use crate::pages::PageSet;
use crate::stream::{Hello, Slot};

/// Checks the heads of all streams, which are in the order of their numbers.
pub(super) fn heads(heads: &[(&Hello, &[Slot])]) -> Result<(), JoinError> {
    let Some(&(first, slots)) = heads.first() else { return Err(JoinError::Streams { came: 0, said: 0 }) };
    if heads.len() != usize::from(first.streams) {
        return Err(JoinError::Streams { came: heads.len(), said: first.streams });
    }
    for (wanted, &(hello, others)) in heads.iter().enumerate() {
        let (wanted, found) = (wanted as u16, hello.stream);
        if found != wanted {
            return Err(JoinError::Number { wanted, found });
        }
        let same = Hello { stream: 0, ..hello.clone() } == Hello { stream: 0, ..first.clone() };
        let what = [
            (hello.migration == first.migration, "migration's id"),
            (same, "guest"),
            (others == slots, "list of memslots"),
        ];
        if let Some((_, what)) = what.into_iter().find(|(good, _)| !good) {
            return Err(JoinError::Differs { stream: found, what });
        }
    }
    Ok(())
}

/// What all streams have come to.
pub(super) enum Joined {
    /// All have begun the first round.
    Begun,
    /// All have ended a round.
    Round,
    /// All have ended, with the same offer.
    End(Ownership),
}

/// Checks that all streams have come to the same place. There is at least one. `all` are the pages that the first round
/// has, if it has all.
pub(super) fn phases(phases: &[Phase], all: Option<u64>) -> Result<Joined, JoinError> {
    let (first, mut came) = (phases[0], 0);
    for (stream, phase) in phases.iter().enumerate() {
        let stream = stream as u16;
        match (*phase, first) {
            (Phase::Round { number, stopped, pages }, Phase::Round { number: wanted, stopped: last, .. })
                if (number, stopped) == (wanted, last) =>
            {
                came += pages;
            }
            (Phase::Begun, Phase::Begun) => {}
            (Phase::End(from), Phase::End(wanted)) if from == wanted => {}
            (Phase::End(_), Phase::End(_)) => return Err(JoinError::Differs { stream, what: "owner record" }),
            (found, wanted) => {
                return Err(JoinError::Apart { stream, found: found.name(), wanted: wanted.name() });
            }
        }
    }
    match (first, all) {
        (Phase::Round { number: 1, .. }, Some(all)) if came != all => Err(JoinError::FirstRound { came, all }),
        (Phase::Begun, _) => Ok(Joined::Begun),
        (Phase::Round { .. }, _) => Ok(Joined::Round),
        (Phase::End(from), _) => Ok(Joined::End(from)),
    }
}

/// The pages that a round has had in any stream: with one stream, its reader counts them. And the pages that any round
/// has had: without absent pages, the first round has all.
pub(super) struct Seen {
    /// Where each memslot's bits start.
    starts: Vec<u64>,
    round: Vec<AtomicU64>,
    ever: Vec<AtomicU64>,
}

impl Seen {
    pub fn new(slots: &[Slot], several: bool, absent: bool) -> Self {
        let mut all = 0;
        let start = |slot: &Slot| {
            let start = all;
            all += slot.pages;
            start
        };
        let starts = slots.iter().map(start).collect();
        let bits = |any: bool| {
            let mut bits = vec![];
            bits.resize_with(if any { all.div_ceil(64) as usize } else { 0 }, AtomicU64::default);
            bits
        };
        Self { starts, round: bits(several), ever: bits(absent) }
    }

    /// Begins a round.
    pub fn begin(&mut self) {
        self.round.iter_mut().for_each(|word| *word.get_mut() = 0);
    }

    /// Notes a page; returns whether no stream had it.
    pub fn note(&self, slot: usize, page: u64) -> bool {
        let bit = self.starts.get(slot).map_or(0, |start| start + page);
        // Relaxed: the bit orders nothing. One of two streams with the same page sees the other's bit.
        let set = |bits: &[AtomicU64]| {
            bits.get((bit / 64) as usize).is_none_or(|word| {
                let mask = 1 << (bit % 64);
                word.fetch_or(mask, Ordering::Relaxed) & mask == 0
            })
        };
        set(&self.ever);
        set(&self.round)
    }

    /// Returns an error if a page never came, and is not absent either.
    pub fn never_came(&mut self, slots: &[Slot], absent: &PageSet) -> Result<(), JoinError> {
        if self.ever.is_empty() {
            return Ok(());
        }
        for (index, slot) in slots.iter().enumerate() {
            for page in 0..slot.pages {
                let bit = self.starts[index] + page;
                let came = *self.ever[(bit / 64) as usize].get_mut() >> (bit % 64) & 1 == 1;
                if !came && !absent.contains(index, page) {
                    return Err(JoinError::NeverCame { slot: slot.number, page });
                }
            }
        }
        Ok(())
    }
}
