// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lent memory is withdrawn while other CPUs map it by grants that were made before (module `withdraw`). When all have
//! ended, none of it is mapped.

use std::sync::Arc;

use super::guest::{BLOCK, FWB, Guest, PAGE, RAM, READ, home, range};
use super::machine::{Machine, Pages, Watch};
use super::model;
use crate::withdraw::Sample;
use crate::{Attributes, Coalesced, Donated, Error, Features, Ipa, Lent, Level, Mapped, Memory, Unwatched};

/// What another CPU does. A mapper uses the sample of a grant of the lent memory.
type Other = fn(&Guest, Sample, &mut Pages) -> Result<(), Error>;

const DEVICE: Attributes = Attributes { memory: Memory::Device, ..READ };

/// The memory of these guest addresses, lent to the guest.
fn lend(guest: &Guest, start: u64, size: u64) -> Lent {
    // SAFETY: nothing accesses this memory: no instruction of the machine has an effect.
    let run = unsafe { Donated::new(home(Ipa::new(start)), size) }.into_run();
    guest.stage2.lend(run, Ipa::new(start), range(start, size))
}

/// Withdraws the `size` bytes at `start` while the other CPUs act. In the end none of them is mapped.
fn withdraw<const N: usize>(
    (preemptions, levels, features): (usize, u32, Features),
    before: fn(&Guest, &mut Pages),
    (start, size): (u64, u64),
    others: [Other; N],
) {
    model(preemptions, move || {
        let guest = Guest::on(Machine::new(12, Watch::Nothing), features, levels);
        let mut own = guest.pages(0..5);
        before(&guest, &mut own);
        let lent = lend(&guest, start, size);
        let sample = guest.stage2.grant(&lent, Ipa::new(start), size).expect("a grant").sample;
        let guest = Arc::new(guest);
        let others = others.into_iter().enumerate().map(|(number, other)| {
            let (guest, mut pages) = (guest.clone(), guest.pages(5 + number * 3..8 + number * 3));
            loom::thread::spawn(move || {
                let outcome = other(&guest, sample, &mut pages);
                let is_expected =
                    matches!(outcome, Ok(()) | Err(Error::Withdrawn { .. } | Error::TableInTheWay { .. }));
                assert!(is_expected, "{outcome:?}");
                pages
            })
        });
        let others: Vec<_> = others.collect();
        let withdrawal = guest.stage2.withdraw(lent, &mut own, Unwatched).expect("withdrawn");
        let (run, _) = withdrawal.reclaim(&mut own);
        assert_eq!((run.pa(), run.size()), (home(Ipa::new(start)), size));
        let mut pools = vec![own];
        pools.extend(others.into_iter().map(|other| other.join().expect("no panic")));
        pools.push(guest.pages(5 + N * 3..11));
        let mapped = guest.check(&pools);
        assert!(mapped.range(start..start + size).next().is_none(), "mapped after it was withdrawn: {mapped:x?}");
    });
}

fn nothing(_: &Guest, _: &mut Pages) {}

fn one(guest: &Guest, pages: &mut Pages) {
    guest.map(PAGE, Level::L3, pages);
}

fn both(guest: &Guest, pages: &mut Pages) {
    guest.map(0, Level::L3, pages);
    guest.map(PAGE, Level::L3, pages);
}

fn block(guest: &Guest, pages: &mut Pages) {
    guest.map(0, Level::L2, pages);
}

fn maps(guest: &Guest, sample: Sample, attributes: &Attributes, level: Level, pages: &mut Pages) -> Result<(), Error> {
    let ipa = Ipa::new(0);
    guest.stage2.map_to(ipa, home(ipa), sample, level, attributes, pages).map(|_: Mapped| ())
}

const MAP: Other = |guest, sample, pages| maps(guest, sample, &RAM, Level::L3, pages);
const MAP_BLOCK: Other = |guest, sample, pages| maps(guest, sample, &RAM, Level::L2, pages);
/// Maps by a busy entry where another leaf is, and with a note in the table's metadata.
const MAP_DEVICE: Other = |guest, sample, pages| maps(guest, sample, &DEVICE, Level::L3, pages);
const MAP_RANGE: Other =
    |guest, sample, pages| guest.stage2.map_range_to(range(0, PAGE), home(Ipa::new(0)), sample, Level::L3, &RAM, pages);
const MAP_TABLE: Other = |guest, sample, pages| {
    guest.stage2.map_range_to(range(0, BLOCK), home(Ipa::new(0)), sample, Level::L3, &RAM, pages)
};
const COALESCE: Other = |guest, sample, pages| {
    let to = (Ipa::new(0), home(Ipa::new(0)));
    let coalesced = guest.stage2.coalesce_to::<false, false>(to, sample, Level::L2, &RAM, pages, &mut |_| ());
    coalesced.map(|_: Coalesced| ())
};
const COALESCE_LARGE: Other = |guest, sample, pages| {
    let to = (Ipa::new(0), home(Ipa::new(0)));
    let coalesced = guest.stage2.coalesce_to::<false, false>(to, sample, Level::L1, &RAM, pages, &mut |_| ());
    coalesced.map(|_: Coalesced| ())
};
/// Links the table of the lent page, by a mapping of another page.
const LINK: Other = |guest, _, pages| {
    guest.map_in_window(PAGE, Level::L3, pages);
    Ok(())
};
/// Unlinks the table of the lent page.
const UNLINK: Other = |guest, _, pages| {
    guest.unmap_quietly(PAGE, PAGE, pages);
    Ok(())
};
const SPLIT: Other = |guest, _, pages| {
    guest.split(0, BLOCK, pages);
    Ok(())
};

/// The entry is empty when the withdrawal begins, in a table that stays.
#[test]
fn from_an_empty_entry() {
    for map in [MAP, MAP_DEVICE, MAP_RANGE] {
        withdraw((2, 2, FWB), one, (0, PAGE), [map]);
    }
    withdraw((1, 2, Features::NONE), one, (0, PAGE), [MAP]);
}

/// The mapper links the table that is missing.
#[test]
fn where_no_table_is() {
    for map in [MAP, MAP_DEVICE, MAP_RANGE] {
        withdraw((2, 2, FWB), nothing, (0, PAGE), [map]);
    }
    withdraw((1, 3, FWB), nothing, (0, PAGE), [MAP]);
}

/// A third CPU links the missing table, or unlinks the table that is there.
#[test]
fn while_a_third_cpu_changes_the_table() {
    withdraw((1, 2, FWB), nothing, (0, PAGE), [MAP, LINK]);
    withdraw((1, 2, FWB), one, (0, PAGE), [MAP, UNLINK]);
}

/// The lent memory is mapped when the withdrawal begins.
#[test]
fn while_it_is_mapped() {
    for map in [MAP, MAP_DEVICE] {
        withdraw((2, 2, FWB), both, (0, PAGE), [map]);
    }
    withdraw((2, 2, FWB), block, (0, PAGE), [SPLIT]);
    withdraw((2, 2, FWB), block, (0, BLOCK), [SPLIT]);
}

/// A whole table is lent, and becomes a block, or the other way round.
#[test]
fn while_it_is_coalesced() {
    for other in [COALESCE, MAP_TABLE, MAP_BLOCK] {
        withdraw((2, 2, FWB), nothing, (0, BLOCK), [other]);
    }
    for other in [COALESCE, MAP_TABLE] {
        withdraw((2, 2, FWB), both, (0, BLOCK), [other]);
        withdraw((1, 3, FWB), both, (0, BLOCK), [other]);
    }
}

/// One page leaves, while a CPU makes a block of it and its neighbours, by a grant of all of them: the lent run was cut
/// after that grant.
#[test]
fn from_a_table_that_is_coalesced() {
    for other in [COALESCE, MAP_BLOCK, MAP_TABLE] {
        withdraw((2, 2, FWB), both, (0, PAGE), [other]);
        withdraw((2, 2, FWB), nothing, (PAGE, PAGE), [other]);
    }
    withdraw((1, 2, FWB), both, (0, PAGE), [COALESCE, UNLINK]);
    withdraw((1, 2, FWB), one, (0, PAGE), [MAP_BLOCK, UNLINK]);
    // The page's table is two below the entry that becomes a block.
    withdraw((1, 3, FWB), both, (0, PAGE), [COALESCE_LARGE]);
}

/// Another run is withdrawn while a CPU cleans for a block: the claim of the table is given up.
#[test]
fn from_elsewhere_while_a_table_is_claimed() {
    withdraw((2, 2, Features::NONE), both, (BLOCK, PAGE), [COALESCE]);
}
