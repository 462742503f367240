// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPUs that coalesce one table at the same time: one of them claims it, and cleans what the block needs (Wang 2021:
//! clean on map).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::guest::{BLOCK, FWB, Guest, LARGE, PAGE, RAM, READ};
use super::machine::{Machine, Pages, Watch};
use super::{Operation, meet, model};
use crate::platform::Platform as _;
use crate::{Attributes, Features, Ipa, Level, Memory, Pa, TableMetadata, TablePage, TableSource};

const NO_FWB: Features = Features { forced_write_back: false, ..FWB };

/// A table with one of its two pages mapped. That page was cleaned when it was mapped.
fn page() -> (Guest, [Pages; 2]) {
    let guest = Guest::on(Machine::new(10, Watch::Cleaning), NO_FWB, 2);
    let (mut first, second) = (guest.pages(0..5), guest.pages(5..9));
    guest.map(0, Level::L3, &mut first);
    (guest, [first, second])
}

#[test]
fn what_is_not_mapped_is_cleaned_once() {
    let coalesce: Operation = |guest, pages| guest.coalesce(0, Level::L2, &RAM, pages);
    meet(2, page, [coalesce, coalesce], |guest, pools| {
        assert_eq!(guest.check(pools).len(), 2);
        let cleaned = guest.machine().0.cleaned.as_ref().expect("counted").load(Ordering::Relaxed);
        assert_eq!(cleaned as u64, 2 * PAGE, "each page is cleaned by one CPU");
    });
}

/// A guest with a table of `level` at its start that is claimed, and that table's address.
fn claimed(leaves: &[u64], level: Level) -> (Guest, Pa, Pages) {
    let guest = Guest::new(5 - u32::from(level.raw()), 7);
    let mut pages = guest.pages(0..7);
    leaves.iter().for_each(|at| guest.map(*at, Level::L3, &mut pages));
    let table = guest.machine().read(guest.machine().donated().start(), 0).address();
    guest.machine().metadata(table).set_link(TableMetadata::CLAIMED);
    (guest, table, pages)
}

/// Gives up the claim of the table that a block of `level` was to replace, while another CPU does `other`.
fn gives_up_and(level: Level, guest: fn() -> (Guest, Pa, Pages), other: Operation) {
    model(2, move || {
        let (guest, table, mut pages) = guest();
        let guest = Arc::new(guest);
        let there = guest.clone();
        let other = loom::thread::spawn(move || {
            other(&there, &mut pages);
            pages
        });
        guest.stage2.give_up_claim(Ipa::new(0), level, table);
        guest.check(&[other.join().expect("no panic")]);
    });
}

/// The flags of a table share a word: a claim that is given up takes no other flag with it.
#[test]
fn a_claim_is_given_up_while_other_memory_is_noted() {
    let guest = || claimed(&[0], Level::L3);
    gives_up_and(Level::L2, guest, |guest, pages| {
        guest.map_as(PAGE, Level::L3, &Attributes { memory: Memory::Device, ..READ }, pages);
    });
}

/// In a table that was unlinked, the word has the address and the level of the next one. Here that is the table of the page
/// at `BLOCK`, which is freed after the tables behind it, and after the table that led to it.
#[test]
fn a_claim_is_given_up_when_its_table_was_unlinked() {
    let guest = || claimed(&[BLOCK, LARGE], Level::L2);
    gives_up_and(Level::L1, guest, |guest, pages| guest.unmap_quietly(BLOCK, LARGE, &mut Slow(pages)));
}

/// Pages that take time to be given back, in which other CPUs go on.
struct Slow<'a>(&'a mut Pages);

impl TableSource for Slow<'_> {
    fn take(&mut self) -> Option<TablePage> {
        self.0.take()
    }

    fn give(&mut self, page: TablePage) {
        self.0.give(page);
        loom::thread::yield_now();
    }
}
