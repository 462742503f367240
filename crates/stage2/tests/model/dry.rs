// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every way to run out of table pages: each operation that takes pages runs with each smaller number of them.
//! Afterwards
//!
//! * the tables translate each address as before the operation, or as after it;
//! * no page is lost;
//! * the same call, with enough pages, ends as if it had never failed.

use std::ops::ControlFlow;

use super::*;
use crate::platform::window::ByAddress as _;
use twofold_stage2::Unwatched;

const BASE: Ipa = Ipa::new(4 * GIB);
const RAM: Attributes = Attributes::ram(Access::READ_WRITE);
const FEATURES: Features = PLAIN.with_data_line(MIB_2).with_instruction_line(MIB_2);

type Attempt = fn(&mut Guest) -> Result<(), Error>;

fn block(guest: &mut Guest, level: Level) {
    assert_eq!(guest.stage2.map(BASE, platform::frame(0), level, &RAM, &mut guest.pool), Ok(Mapped::New));
}

/// Lets the source run dry at each of the pages that `attempt` takes.
#[track_caller]
fn runs_dry(ipa_bits: u32, prepare: fn(&mut Guest), expected_pages: usize, attempt: Attempt) {
    let prepared = || {
        let mut guest = Guest::with_pages(FEATURES, ipa_bits, 600);
        prepare(&mut guest);
        guest
    };
    let mut guest = prepared();
    let (before, pages) = (guest.scan(), guest.pool.out.len());
    guest.pool.limit = 1000;
    assert_eq!(attempt(&mut guest), Ok(()));
    let (after, taken) = (guest.scan(), 1000 - guest.pool.limit);
    assert_eq!((taken, guest.pool.out.len()), (expected_pages, pages + expected_pages));

    // Of 513 pages, all but a few behave alike.
    for limit in (0..taken).filter(|limit| *limit < 6 || *limit == 257 || limit + 1 == taken) {
        let mut guest = prepared();
        guest.pool.limit = limit;
        assert!(matches!(attempt(&mut guest), Err(Error::NoTablePage { .. })), "with {limit} pages");
        let now = guest.scan();
        assert_eq!(now.links.iter().map(|link| link.table).collect::<BTreeSet<_>>(), guest.pool.out);
        let step = 1 + after.leaves.len() / 5000;
        for leaf in before.leaves.iter().chain(after.leaves.iter().step_by(step)) {
            for ipa in [leaf.ipa, Ipa::new(leaf.end().raw() - KIB_4)] {
                let says = |scan: &Scan| {
                    let index = scan.leaves.partition_point(|leaf| leaf.end() <= ipa);
                    let found = scan.leaves.get(index).filter(|leaf| leaf.ipa <= ipa);
                    found.map(|leaf| (leaf.output(ipa), leaf.raw & !0x0000_ffff_ffff_f002))
                };
                assert!([says(&before), says(&after)].contains(&says(&now)), "{ipa} with {limit} pages");
            }
        }
        guest.pool.limit = usize::MAX;
        assert_eq!(attempt(&mut guest), Ok(()));
        let again = guest.scan();
        let content = |scan: &Scan| scan.leaves.iter().map(|leaf| (leaf.ipa, leaf.level, leaf.raw)).collect::<Vec<_>>();
        assert!(content(&again) == content(&after), "with {limit} pages at first");
        let Guest { stage2, mut pool, .. } = guest;
        let _root = stage2.destroy(&mut pool, Unwatched);
        assert_eq!(pool.out, BTreeSet::new());
    }
}

fn map(guest: &mut Guest, offset: u64, to: u64, level: Level) -> Result<(), Error> {
    guest.stage2.map(BASE + offset, platform::frame(to), level, &RAM, &mut guest.pool).map(|_| ())
}

fn map_range(guest: &mut Guest, offset: u64, size: u64, largest: Level) -> Result<(), Error> {
    let range = BASE + offset..BASE + (offset + size);
    guest.stage2.map_range(range, platform::frame(offset), largest, &RAM, &mut guest.pool)
}

/// A split that runs dry is no error to the engine; here it counts as one.
fn split(guest: &mut Guest, size: u64, chunk: u64) -> Result<(), Error> {
    let between = |_: &mut platform::Pool, _| ControlFlow::Continue(());
    let split = guest.stage2.split(BASE..BASE + size, chunk, &mut guest.pool, between)?;
    match split.stopped {
        None => Ok(()),
        Some(_) => Err(Error::NoTablePage { ipa: split.done, level: Level::L3 }),
    }
}

#[test]
fn a_page_in_an_empty_tree() {
    runs_dry(48, |_| (), 3, |guest| map(guest, 0, 0, Level::L3));
    runs_dry(40, |_| (), 2, |guest| map(guest, 0, 0, Level::L3));
}

#[test]
fn a_page_over_a_block() {
    runs_dry(40, |guest| block(guest, Level::L1), 2, |guest| map(guest, 5 * MIB_2, GIB, Level::L3));
    runs_dry(40, |guest| block(guest, Level::L2), 1, |guest| map(guest, 5 * KIB_4, GIB, Level::L3));
}

#[test]
fn a_range_of_pages_over_nothing_and_blocks() {
    runs_dry(48, |_| (), 2 + 4, |guest| map_range(guest, MIB_2 - KIB_4, 2 * MIB_2 + 3 * KIB_4, Level::L3));
    runs_dry(44, |_| (), 2 + 2, |guest| map_range(guest, MIB_2 - KIB_4, 3 * MIB_2 + 3 * KIB_4, Level::L2));
    let over: Attempt = |guest| {
        let range = BASE + (MIB_2 - KIB_4)..BASE + (MIB_2 + KIB_4);
        guest.stage2.map_range(range, platform::frame(GIB), Level::L3, &RAM, &mut guest.pool)
    };
    runs_dry(40, |guest| block(guest, Level::L1), 3, over);
}

#[test]
fn a_part_of_a_block_unmapped_or_protected() {
    let unmap: Attempt = |guest| {
        let range = BASE + (MIB_2 - KIB_4)..BASE + (2 * MIB_2 + KIB_4);
        guest.stage2.unmap(range, &mut guest.pool, Unwatched)?.complete().free(&mut guest.pool);
        Ok(())
    };
    runs_dry(40, |guest| block(guest, Level::L1), 3, unmap);
    runs_dry(
        40,
        |guest| block(guest, Level::L1),
        3,
        |guest| {
            let range = BASE + (MIB_2 - KIB_4)..BASE + (2 * MIB_2 + KIB_4);
            let _ = guest.stage2.protect(range, Access::READ, &mut guest.pool)?.complete();
            Ok(())
        },
    );
}

#[test]
fn blocks_split_at_once_and_in_chunks() {
    let blocks = |guest: &mut Guest| (0..5).for_each(|at| map(guest, at * MIB_2, at * MIB_2, Level::L2).unwrap());
    runs_dry(40, blocks, 5, |guest| split(guest, GIB, GIB));
    runs_dry(40, blocks, 5, |guest| split(guest, GIB, MIB_2));
    runs_dry(40, blocks, 5, |guest| split(guest, GIB, KIB_4));
    runs_dry(48, |guest| block(guest, Level::L1), 513, |guest| split(guest, GIB, GIB));
    runs_dry(40, |guest| block(guest, Level::L1), 513, |guest| split(guest, GIB, MIB_2));
    runs_dry(40, |guest| block(guest, Level::L1), 3, |guest| split(guest, 2 * MIB_2, KIB_4));
}

#[test]
fn a_block_where_no_table_leads_to() {
    runs_dry(
        48,
        |_| (),
        2,
        |guest| {
            let (block, pool) = (platform::frame(0), &mut guest.pool);
            guest.stage2.coalesce(BASE, block, Level::L2, &RAM, pool, &mut |leaf| panic!("{leaf:?}")).map(|_| ())
        },
    );
}
