// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves the walker's contract: which entries are visited, in what order, how often, and what a visit may change.

mod platform;

use platform::window::ByAddress as _;
use platform::{GIB, Guest, KIB_4, MIB_2, PLAIN, frame, table};
use twofold_stage2::walk::{Entry, Visitor};
use twofold_stage2::{
    Access, Attributes, Error, Features, Ipa, IpaRange, Level, Levels, Pa, TablePage, TableSource, Unwatched,
};

const FEATURES: Features = PLAIN.with_forced_write_back(true);
const RAM: Attributes = Attributes::ram(Access::READ_WRITE);
/// Level 1 is the root.
const IPA_BITS: u32 = 40;
const BASE: Ipa = Ipa::new(GIB);

const NO_LEVEL: u8 = 0;
const L1: u8 = 1 << 1;
const L2: u8 = 1 << 2;
const L3: u8 = 1 << 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Visit {
    Leaf(u8, Ipa),
    Before(u8, Ipa),
    After(u8, Ipa),
}
use Visit::{After, Before, Leaf};

#[derive(Debug, PartialEq, Eq)]
enum Stop {
    Walk(Error),
    Visitor,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Walk(error)
    }
}

/// Records all visits. `act` sees each visit first, and may end the walk.
struct Record<F, const SKIP: u8> {
    visits: Vec<Visit>,
    act: F,
}

impl<F: FnMut(Visit) -> Result<(), Stop>, const SKIP: u8> Record<F, SKIP> {
    fn visit(&mut self, visit: Visit) -> Result<(), Stop> {
        self.visits.push(visit);
        (self.act)(visit)
    }
}

impl<F: FnMut(Visit) -> Result<(), Stop>, const SKIP: u8> Visitor for Record<F, SKIP> {
    const TABLE_BEFORE: bool = true;
    const TABLE_AFTER: bool = true;
    const SKIP: Levels = levels(SKIP);
    type Error = Stop;

    fn leaf(&mut self, entry: &Entry) -> Result<(), Stop> {
        self.visit(Leaf(entry.level.raw(), entry.ipa))
    }

    fn table_before(&mut self, entry: &Entry) -> Result<(), Stop> {
        self.visit(Before(entry.level.raw(), entry.ipa))
    }

    fn table_after(&mut self, entry: &Entry) -> Result<(), Stop> {
        self.visit(After(entry.level.raw(), entry.ipa))
    }
}

const fn levels(bits: u8) -> Levels {
    let (mut levels, mut raw) = (Levels::NONE, 0);
    while let Some(level) = Level::new(raw) {
        if bits >> raw & 1 == 1 {
            levels = levels.with(level);
        }
        raw += 1;
    }
    levels
}

fn guest() -> Guest {
    Guest::new(FEATURES, IPA_BITS)
}

fn map(guest: &mut Guest, ipa: Ipa, pa: Pa, level: Level) {
    assert!(guest.stage2.map(ipa, pa, level, &RAM, &mut guest.pool).is_ok());
}

fn walk<const SKIP: u8>(guest: &Guest, range: IpaRange) -> Vec<Visit> {
    let (result, visits) = walk_with::<SKIP>(guest, range, |_| Ok(()));
    assert_eq!(result, Ok(()));
    visits
}

fn walk_with<const SKIP: u8>(
    guest: &Guest,
    range: IpaRange,
    act: impl FnMut(Visit) -> Result<(), Stop>,
) -> (Result<(), Stop>, Vec<Visit>) {
    let mut record = Record::<_, SKIP> { visits: Vec::new(), act };
    let result = guest.stage2.walk(range, &mut record);
    (result, record.visits)
}

fn range(start: Ipa, size: u64) -> IpaRange {
    start..start + size
}

fn pages(start: Ipa, count: u64) -> impl Iterator<Item = Visit> {
    (0..count).map(move |page| Leaf(3, start + page * KIB_4))
}

/// An entry of the level 2 table, which is the first page that a guest takes.
fn entry(index: u64) -> Pa {
    table(0) + index * 8
}

#[test]
fn invalid_entries_are_visited_as_leaves() {
    let guest = guest();
    assert_eq!(walk::<NO_LEVEL>(&guest, range(BASE, 3 * GIB)), [0, 1, 2].map(|gib| Leaf(1, BASE + gib * GIB)));
}

#[test]
fn tables_are_visited_before_and_after_what_is_in_them() {
    let mut guest = guest();
    map(&mut guest, BASE, frame(0), Level::L3);
    let visits = walk::<NO_LEVEL>(&guest, range(BASE, 2 * GIB));
    let expected = [Before(1, BASE), Before(2, BASE)]
        .into_iter()
        .chain(pages(BASE, 512))
        .chain([After(2, BASE)])
        .chain((1..512).map(|index| Leaf(2, BASE + index * MIB_2)))
        .chain([After(1, BASE), Leaf(1, BASE + GIB)]);
    assert_eq!(visits, expected.collect::<Vec<_>>());
}

#[test]
fn a_range_is_clipped_inside_the_tables_at_both_ends() {
    let mut guest = guest();
    map(&mut guest, BASE, frame(0), Level::L3);
    map(&mut guest, BASE + MIB_2, frame(0), Level::L3);
    let (start, end) = (BASE + 509 * KIB_4, BASE + MIB_2 + 2 * KIB_4);
    let expected = [Before(1, BASE), Before(2, BASE)]
        .into_iter()
        .chain(pages(start, 3))
        .chain([After(2, BASE), Before(2, BASE + MIB_2)])
        .chain(pages(BASE + MIB_2, 2))
        .chain([After(2, BASE + MIB_2), After(1, BASE)]);
    assert_eq!(walk::<NO_LEVEL>(&guest, start..end), expected.collect::<Vec<_>>());
}

/// The visit has the whole block, with the block's own address.
#[test]
fn a_block_across_the_ends_is_visited_once() {
    let mut guest = guest();
    map(&mut guest, BASE, frame(0), Level::L2);
    let inside = range(BASE + 3 * KIB_4, KIB_4);
    assert_eq!(walk::<NO_LEVEL>(&guest, inside), [Before(1, BASE), Leaf(2, BASE), After(1, BASE)]);
    let across = BASE + 3 * KIB_4..BASE + MIB_2 + KIB_4;
    let expected = [Before(1, BASE), Leaf(2, BASE), Leaf(2, BASE + MIB_2), After(1, BASE)];
    assert_eq!(walk::<NO_LEVEL>(&guest, across), expected);
}

#[test]
fn concatenated_tables_are_walked_as_one() {
    let guest = guest();
    let across = Ipa::new(511 * GIB)..Ipa::new(513 * GIB);
    assert_eq!(walk::<NO_LEVEL>(&guest, across), [511, 512].map(|gib| Leaf(1, Ipa::new(gib * GIB))));
    for (bits, entries) in [(32, 2048), (36, 64), (43, 8192), (44, 32), (48, 512)] {
        let guest = Guest::new(FEATURES, bits);
        let all = Ipa::new(0)..Ipa::new(1 << bits);
        assert_eq!(walk::<NO_LEVEL>(&guest, all).len(), entries, "{bits} bits");
    }
}

#[test]
fn the_table_above_a_skipped_level_is_visited_before_and_after() {
    let mut guest = guest();
    map(&mut guest, BASE, frame(0), Level::L3);
    map(&mut guest, BASE + MIB_2, frame(0), Level::L2);
    // The range starts inside the first table. The next visit is after the whole table.
    let visits = walk::<L3>(&guest, BASE + 5 * KIB_4..BASE + 2 * MIB_2);
    let expected = [Before(1, BASE), Before(2, BASE), After(2, BASE), Leaf(2, BASE + MIB_2), After(1, BASE)];
    assert_eq!(visits, expected);
    let expected = [Before(1, BASE), After(1, BASE), Leaf(1, BASE + GIB)];
    assert_eq!(walk::<L2>(&guest, BASE + 5 * KIB_4..BASE + GIB + KIB_4), expected);
}

#[test]
fn skipping_the_root_visits_nothing() {
    let mut guest = guest();
    map(&mut guest, BASE, frame(0), Level::L3);
    assert_eq!(walk::<L1>(&guest, range(BASE, GIB)), []);
    // The walk reaches nothing below a skipped level. Above it nothing changes.
    let expected = [Before(1, BASE), After(1, BASE)];
    assert_eq!(walk::<{ L2 | L3 }>(&guest, range(BASE, GIB)), expected);
}

/// Bras 2026: 262,144 visits become 513.
#[test]
fn a_gibibyte_of_pages_is_513_tables_with_the_pages_skipped() {
    let mut guest = Guest::with_pages(FEATURES, IPA_BITS, 513);
    for at in (0..GIB).step_by(MIB_2 as usize) {
        map(&mut guest, BASE + at, frame(at), Level::L2);
        // Other memory, so that the block is replaced by pages.
        map(&mut guest, BASE + at, frame(GIB), Level::L3);
    }
    let count = |visits: Vec<Visit>| {
        let leaves = visits.iter().filter(|visit| matches!(visit, Leaf(3, _))).count();
        let before = visits.iter().filter(|visit| matches!(visit, Before(..))).count();
        let after = visits.iter().filter(|visit| matches!(visit, After(..))).count();
        assert_eq!(visits.len(), leaves + before + after);
        (leaves, before, after)
    };
    assert_eq!(count(walk::<NO_LEVEL>(&guest, range(BASE, GIB))), (512 * 512, 513, 513));
    assert_eq!(count(walk::<L3>(&guest, range(BASE, GIB))), (0, 513, 513));
    assert_eq!(count(walk::<L2>(&guest, range(BASE, GIB))), (0, 1, 1));
}

#[test]
fn visits_that_are_not_asked_for_do_not_come() {
    struct Tables(usize);
    impl Visitor for Tables {
        const LEAF: bool = false;
        const TABLE_BEFORE: bool = true;
        type Error = Error;
        fn leaf(&mut self, entry: &Entry) -> Result<(), Error> {
            panic!("{:?}", entry.range());
        }
        fn table_before(&mut self, _: &Entry) -> Result<(), Error> {
            self.0 += 1;
            Ok(())
        }
        fn table_after(&mut self, entry: &Entry) -> Result<(), Error> {
            panic!("{:?}", entry.range());
        }
    }
    let mut guest = guest();
    map(&mut guest, BASE, frame(0), Level::L3);
    let mut tables = Tables(0);
    assert_eq!(guest.stage2.walk(range(BASE, GIB), &mut tables), Ok(()));
    assert_eq!(tables.0, 2);
}

/// The visit before a table can also be left out alone.
#[test]
fn a_visit_before_that_is_not_asked_for_does_not_come() {
    struct Leaves(usize);
    impl Visitor for Leaves {
        type Error = Error;
        fn leaf(&mut self, _: &Entry) -> Result<(), Error> {
            self.0 += 1;
            Ok(())
        }
        fn table_before(&mut self, entry: &Entry) -> Result<(), Error> {
            panic!("{:?}", entry.range());
        }
    }
    let mut guest = guest();
    map(&mut guest, BASE, frame(0), Level::L3);
    let mut leaves = Leaves(0);
    assert_eq!(guest.stage2.walk(range(BASE, GIB), &mut leaves), Ok(()));
    assert_eq!(leaves.0, 512 + 511);
}

/// The table is treated as if its level were skipped: its visit after still comes.
#[test]
fn a_table_that_is_passed_over_is_not_entered() {
    struct Over(Ipa, Vec<Visit>);
    impl Visitor for Over {
        const TABLE_AFTER: bool = true;
        type Error = Error;
        fn leaf(&mut self, entry: &Entry) -> Result<(), Error> {
            self.1.push(Leaf(entry.level.raw(), entry.ipa));
            Ok(())
        }
        fn passes_over(&self, entry: &Entry) -> bool {
            entry.level == Level::L2 && entry.ipa == self.0
        }
        fn table_after(&mut self, entry: &Entry) -> Result<(), Error> {
            self.1.push(After(entry.level.raw(), entry.ipa));
            Ok(())
        }
    }
    let mut guest = guest();
    map(&mut guest, BASE, frame(0), Level::L3);
    map(&mut guest, BASE + MIB_2, frame(0), Level::L3);
    let mut over = Over(BASE, Vec::new());
    assert_eq!(guest.stage2.walk(range(BASE, 2 * MIB_2), &mut over), Ok(()));
    let expected = [After(2, BASE)].into_iter().chain(pages(BASE + MIB_2, 512));
    assert_eq!(over.1, expected.chain([After(2, BASE + MIB_2), After(1, BASE)]).collect::<Vec<_>>());
}

/// An unlink anywhere makes the walk start again from the root. It continues where it was, and visits nothing twice.
#[test]
fn a_walk_that_comes_down_again_goes_on_where_it_was() {
    #[derive(Default)]
    struct Own(Vec<TablePage>);
    impl TableSource for Own {
        fn take(&mut self) -> Option<TablePage> {
            self.0.pop()
        }
        fn give(&mut self, page: TablePage) {
            self.0.push(page);
        }
    }
    let expected = [Before(1, BASE), Before(2, BASE)]
        .into_iter()
        .chain(pages(BASE, 512))
        .chain([After(2, BASE), Leaf(2, BASE + MIB_2), After(1, BASE)])
        .collect::<Vec<_>>();
    for at in [Before(1, BASE), Before(2, BASE), Leaf(3, BASE + KIB_4), Leaf(2, BASE + MIB_2)] {
        let mut guest = guest();
        map(&mut guest, BASE, frame(0), Level::L3);
        map(&mut guest, BASE + GIB, frame(0), Level::L3);
        let (stage2, mut own) = (&guest.stage2, Own::default());
        let (result, visits) = walk_with::<NO_LEVEL>(&guest, range(BASE, 2 * MIB_2), |visit| {
            if visit == at {
                stage2.unmap(range(BASE + GIB, GIB), &mut own, Unwatched).unwrap().complete().free(&mut own);
            }
            Ok(())
        });
        assert_eq!((result, own.0.len()), (Ok(()), 2));
        assert_eq!(visits, expected, "a table goes at {at:?}");
    }
}

/// As a visitor that splits does.
#[test]
fn a_table_that_a_leaf_visit_installed_is_entered() {
    let mut guest = guest();
    map(&mut guest, BASE, frame(0), Level::L3);
    let (machine, free) = (guest.machine.clone(), table(9));
    (0..512).for_each(|index| machine.write(free + index * 8, 0));
    let second = BASE + MIB_2;
    let (result, visits) = walk_with::<NO_LEVEL>(&guest, range(second, 2 * MIB_2), |visit| {
        if visit == Leaf(2, second) {
            machine.write(entry(1), free.raw() | 3);
        }
        Ok(())
    });
    assert_eq!(result, Ok(()));
    let expected = [Before(1, BASE), Leaf(2, second)].into_iter().chain(pages(second, 512)).chain([
        After(2, second),
        Leaf(2, BASE + 2 * MIB_2),
        After(1, BASE),
    ]);
    assert_eq!(visits, expected.collect::<Vec<_>>());
}

/// As a visitor that coalesces does: the walk neither enters nor visits a table that the visitor freed.
#[test]
fn a_table_that_a_visit_before_replaced_is_not_entered() {
    let block = RAM_BLOCK | frame(0).raw();
    for replacement in [0, block] {
        let mut guest = guest();
        map(&mut guest, BASE, frame(0), Level::L3);
        let machine = guest.machine.clone();
        let (result, visits) = walk_with::<NO_LEVEL>(&guest, range(BASE, 2 * MIB_2), |visit| {
            if visit == Before(2, BASE) {
                machine.write(entry(0), replacement);
            }
            Ok(())
        });
        assert_eq!(result, Ok(()));
        assert_eq!(visits, [Before(1, BASE), Before(2, BASE), Leaf(2, BASE + MIB_2), After(1, BASE)]);
    }
}

/// A block: valid, accessed, inner shareable, write-back, read and write.
const RAM_BLOCK: u64 = 0b01 | 0b0110 << 2 | 0b11 << 6 | 0b11 << 8 | 1 << 10;

/// Lets each visit in turn return an error: no later visit comes.
#[test]
fn an_error_wins_over_everything() {
    let mut guest = guest();
    map(&mut guest, BASE, frame(0), Level::L3);
    let all = walk::<NO_LEVEL>(&guest, range(BASE, 2 * MIB_2));
    assert_eq!(all.len(), 2 + 512 + 1 + 1 + 1);
    for (index, stop) in all.iter().enumerate() {
        let (result, visits) = walk_with::<NO_LEVEL>(&guest, range(BASE, 2 * MIB_2), |visit| {
            if visit == *stop { Err(Stop::Visitor) } else { Ok(()) }
        });
        assert_eq!((result, &visits[..]), (Err(Stop::Visitor), &all[..=index]));
    }
    // A skipped child does not hide the error.
    let (result, visits) = walk_with::<L3>(&guest, range(BASE, MIB_2), |visit| match visit {
        After(2, _) => Err(Stop::Visitor),
        _ => Ok(()),
    });
    assert_eq!((result, visits), (Err(Stop::Visitor), vec![Before(1, BASE), Before(2, BASE), After(2, BASE)]));
}

#[test]
fn a_range_that_is_no_range_visits_nothing() {
    let guest = guest();
    let end = Ipa::new(1 << IPA_BITS);
    for (wrong, error) in [
        (BASE..BASE, Error::EmptyRange { start: BASE, end: BASE }),
        (BASE + 1..BASE + KIB_4, Error::Misaligned { address: GIB + 1, size: KIB_4 }),
        (BASE..BASE + 1, Error::Misaligned { address: GIB + 1, size: KIB_4 }),
        (BASE..end + KIB_4, Error::OutsideIpa { ipa: end, bits: IPA_BITS }),
    ] {
        assert_eq!(walk_with::<NO_LEVEL>(&guest, wrong, |_| Ok(())), (Err(Stop::Walk(error)), vec![]));
    }
}

#[test]
fn leaves_are_listed_over_holes() {
    let mut guest = guest();
    let leaves = [
        (BASE + KIB_4, frame(0), Level::L3),
        (BASE + 511 * KIB_4, frame(KIB_4), Level::L3),
        (BASE + 3 * GIB + MIB_2, frame(MIB_2), Level::L2),
    ];
    leaves.iter().for_each(|(ipa, pa, level)| map(&mut guest, *ipa, *pa, *level));
    let listed = guest.stage2.leaves(range(Ipa::new(0), 1 << IPA_BITS)).unwrap();
    assert_eq!(listed.map(|leaf| (leaf.ipa, leaf.pa(), leaf.level)).collect::<Vec<_>>(), leaves);
}

#[test]
fn leaves_are_counted_by_level() {
    let mut guest = guest();
    map(&mut guest, BASE, frame(0), Level::L3);
    map(&mut guest, BASE + 511 * KIB_4, frame(511 * KIB_4), Level::L3);
    map(&mut guest, BASE + MIB_2, frame(MIB_2), Level::L2);
    map(&mut guest, BASE + (GIB - MIB_2), frame(0), Level::L2);
    map(&mut guest, BASE + GIB, frame(0), Level::L1);
    let count = |start: u64, size: u64| guest.stage2.count_leaves(range(Ipa::new(start), size));
    let base = BASE.raw();
    for (start, size, expected) in [
        (0, 1 << IPA_BITS, [0, 1, 2, 2]),
        (base, MIB_2, [0, 0, 0, 2]),
        // The table counts as a whole, and so does a block.
        (base + KIB_4, KIB_4, [0, 0, 0, 2]),
        (base + MIB_2 + KIB_4, KIB_4, [0, 0, 1, 0]),
        (base, 2 * MIB_2, [0, 0, 1, 2]),
        (base + 2 * MIB_2, GIB - 2 * MIB_2, [0, 0, 1, 0]),
        (base + 2 * MIB_2, GIB - MIB_2, [0, 1, 1, 0]),
        (base + 2 * GIB, GIB, [0; 4]),
    ] {
        assert_eq!(count(start, size), Ok(expected), "{start:#x}, {size:#x}");
    }
    assert!(matches!(count(base + 1, KIB_4), Err(Error::Misaligned { .. })));
    assert!(matches!(count(1 << IPA_BITS, KIB_4), Err(Error::OutsideIpa { .. })));
}
