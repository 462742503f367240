// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Contiguous groups in one piece: what makes them, what changes them as a whole, and what clears their hint.

use std::cell::RefCell;
use std::ops::ControlFlow;

use twofold_machine::program::Instructions;
use twofold_machine::strict::{CpuHandle, Hosted};
use twofold_stage2::{
    Access, Attributes, Broken, Coalesced, Contiguous, Error, Features, Granule, Grouped, Ipa, IpaRange, Kib4,
    Kib4Lpa2, Kib16, Kib16Lpa2, Kib64, Level, Marked, Pa, Relaxed, Stage2, Unwatched, group_length,
};

use crate::window::{ByAddress as _, window};
use crate::world::{GIB, MODERN, PLAIN, Pages, World};

const LARGE: Features = MODERN.with_pa_bits(52);
const LIVE: Features = MODERN.with_bbm(2).with_no_conflict_abort(true);
const HIGH: Pa = Pa::new(0xd << 48);
const READ_WRITE: Attributes = Attributes::ram(Access::READ_WRITE);

/// A tree with four groups of pages from an address on, in tables that hold more.
struct Tree<'a, G: Granule> {
    cpu: &'a CpuHandle,
    world: &'a World<G>,
    tables: Stage2<Hosted, G>,
    range: IpaRange,
    /// The leaves in which hardware had recorded a write, when they were joined.
    written: RefCell<Vec<Ipa>>,
}

/// The number of groups in the range.
const GROUPS: u64 = 4;

/// Runs `body` with such a tree on a machine with these features, and another CPU that holds its entries.
fn with_tree<G: Granule>(features: Features, base: Pa, body: impl Fn(&Tree<'_, G>, &Pages<G>) + Sync) {
    let huge_page = G::default().span(Level::L2).max(16 << 20);
    let world = World::<G>::of_granule(features, 1, 1, base, 3 * huge_page);
    let ended = world.machine.alone(|cpu| {
        let tables = world.tables(0, 1, 40);
        let start = Ipa::new(2 * huge_page);
        let range = start..start + GROUPS * size::<G>();
        tables.map_range(range.clone(), world.frame(0), Level::L3, &READ_WRITE, &mut &world.pages).unwrap();
        cpu.load(tables.vttbr());
        let tree = Tree { cpu, world: &world, tables, range, written: RefCell::default() };
        assert_eq!(tree.grouped(), GROUPS, "map_range makes groups");
        body(&tree, &world.pages);
        tree.tables.audit().unwrap();
        cpu.load(0);
        tree.tables.destroy(&mut &world.pages, Unwatched);
    });
    ended.unwrap_or_else(|breach| panic!("{:?}: {breach}", G::default()));
    assert_eq!(world.pages.out(), 0);
}

/// `body` with each granule, with and without a break where the hint goes.
fn with_each(body: impl Fn(&dyn Groups) + Sync) {
    fn with<G: Granule>(features: Features, base: Pa, body: &(dyn Fn(&dyn Groups) + Sync)) {
        with_tree::<G>(features, base, |tree, _| body(tree));
    }
    with::<Contiguous<Kib4>>(MODERN, Pa::new(GIB), &body);
    with::<Contiguous<Kib4>>(PLAIN, Pa::new(GIB), &body);
    with::<Contiguous<Kib4>>(LIVE, Pa::new(GIB), &body);
    with::<Contiguous<Kib4Lpa2>>(LARGE, HIGH, &body);
    with::<Contiguous<Kib16>>(MODERN, Pa::new(GIB), &body);
    with::<Contiguous<Kib16Lpa2>>(LARGE, HIGH, &body);
    with::<Contiguous<Kib64>>(LARGE, HIGH, &body);
    with::<Contiguous<Kib64>>(LIVE, Pa::new(GIB), &body);
}

/// The bytes of a group of pages.
fn size<G: Granule>() -> u64 {
    group_length::<G>(Level::L3) as u64 * G::SIZE
}

/// A [`Tree`] of any granule.
trait Groups {
    fn page(&self) -> u64;
    fn size(&self) -> u64;
    fn length(&self) -> u64 {
        self.size() / self.page()
    }
    fn range(&self) -> IpaRange;
    /// The number of whole groups. Fails if a group is not whole.
    fn grouped(&self) -> u64;
    /// Whether each page of a range is writable; `None` if a page is not mapped, or they differ.
    fn writable(&self, range: IpaRange) -> Option<bool>;
    fn unmap(&self, range: IpaRange) -> u64;
    fn map_range(&self, range: IpaRange);
    fn map_group(&self, ipa: Ipa, frame: u64, attributes: &Attributes) -> Result<&'static str, Error>;
    fn protect(&self, range: IpaRange, keep: Access);
    fn write_protect(&self, range: IpaRange);
    fn relax(&self, ipa: Ipa, access: Access) -> Relaxed;
    fn relax_page(&self, ipa: Ipa, access: Access) -> Relaxed;
    fn age(&self, range: IpaRange) -> u64;
    fn set_dbm_clean(&self, range: IpaRange);
    fn split(&self, range: IpaRange, chunk: u64) -> (u64, u64);
    fn load(&self, ipa: Ipa);
    fn store(&self, ipa: Ipa);
    /// What `map_group` has reported since the last call.
    fn written(&self) -> Vec<Ipa>;
    fn invalidations(&self) -> u64;
    fn is_live(&self) -> bool;
}

impl<G: Granule> Groups for Tree<'_, G> {
    fn page(&self) -> u64 {
        G::SIZE
    }

    fn size(&self) -> u64 {
        size::<G>()
    }

    fn range(&self) -> IpaRange {
        self.range.clone()
    }

    fn grouped(&self) -> u64 {
        let mut groups = 0;
        for group in 0..GROUPS {
            let start = self.range.start + group * self.size();
            let leaves = (0..self.length()).map(|page| self.tables.look_up(start + page * G::SIZE));
            let contiguous = leaves.filter(|leaf| leaf.is_some_and(|leaf| leaf.descriptor.is_contiguous())).count();
            assert!(
                contiguous == 0 || contiguous as u64 == self.length(),
                "{contiguous} leaves of the group at {start}"
            );
            groups += u64::from(contiguous != 0);
        }
        groups
    }

    fn writable(&self, range: IpaRange) -> Option<bool> {
        let pages = (range.end - range.start) / G::SIZE;
        let mut each = (0..pages).map(|page| {
            let leaf = self.tables.look_up(range.start + page * G::SIZE)?;
            let expected = self.world.frame(0) + (range.start - self.range.start) + page * G::SIZE;
            assert_eq!((leaf.level, leaf.pa()), (Level::L3, expected));
            Some(leaf.descriptor.is_writable())
        });
        let first = each.next()??;
        each.all(|writable| writable == Some(first)).then_some(first)
    }

    fn unmap(&self, range: IpaRange) -> u64 {
        let mut removed = 0;
        let pages = &mut &self.world.pages;
        let before = self.cpu.knowledge();
        let flushed = self.tables.unmap(range.clone(), pages, |_: Broken<G>| removed += 1).unwrap().complete();
        self.cpu.expect_flushed(self.tables.vttbr(), &range, &before, twofold_machine::strict::Withdrawn::Everything);
        flushed.free(pages);
        removed
    }

    fn map_range(&self, range: IpaRange) {
        let pa = self.world.frame(0) + (range.start - self.range.start);
        self.tables.map_range(range, pa, Level::L3, &READ_WRITE, &mut &self.world.pages).unwrap();
    }

    fn map_group(&self, ipa: Ipa, frame: u64, attributes: &Attributes) -> Result<&'static str, Error> {
        let window = window(self.world.frame(0) + frame * G::SIZE, self.size());
        let grant = self.tables.open(window, ipa);
        let mut note = |at: Ipa| self.written.borrow_mut().push(at);
        Ok(match grant.map_group(Level::L3, attributes, &mut &self.world.pages, &mut note)? {
            Grouped::New => "new",
            Grouped::Joined => "joined",
            Grouped::Already(_) => "already",
        })
    }

    fn protect(&self, range: IpaRange, keep: Access) {
        let _ = self.tables.protect(range, keep, &mut &self.world.pages).unwrap().complete();
    }

    fn write_protect(&self, range: IpaRange) {
        let seen = self.cpu.knowledge();
        let _ = self.tables.write_protect(range.clone()).unwrap().complete();
        let writes = twofold_machine::strict::Withdrawn::Writes;
        self.cpu.expect_flushed(self.tables.vttbr(), &range, &seen, writes);
    }

    fn relax(&self, ipa: Ipa, access: Access) -> Relaxed {
        self.tables.relax(ipa, access).unwrap()
    }

    fn relax_page(&self, ipa: Ipa, access: Access) -> Relaxed {
        self.tables.relax_page(ipa, access).unwrap()
    }

    fn age(&self, range: IpaRange) -> u64 {
        let mut marks: Vec<Marked> = Vec::new();
        self.tables.age(range, &mut |marked| marks.push(marked)).unwrap();
        marks.iter().map(|marked| u64::from(marked.mask.count_ones())).sum()
    }

    fn set_dbm_clean(&self, range: IpaRange) {
        let _ = self.tables.set_dbm_clean(range).unwrap().complete();
    }

    fn split(&self, range: IpaRange, chunk: u64) -> (u64, u64) {
        let mut chunks = 0;
        let split = self.tables.split(range, chunk, &mut &self.world.pages, |_, _| {
            chunks += 1;
            ControlFlow::Continue(())
        });
        (split.unwrap().blocks, chunks)
    }

    fn load(&self, ipa: Ipa) {
        // To clear access flags needs no flush, and by the old entries hardware sets none.
        self.tables.invalidate_all();
        self.cpu.enter(self.tables.vttbr(), self.tables.vtcr(), 0).load(ipa.raw()).unwrap();
    }

    fn store(&self, ipa: Ipa) {
        self.cpu.enter(self.tables.vttbr(), self.tables.vtcr(), 0).store(ipa.raw(), 1).unwrap();
    }

    fn written(&self) -> Vec<Ipa> {
        self.written.take()
    }

    fn invalidations(&self) -> u64 {
        self.cpu.invalidations()
    }

    fn is_live(&self) -> bool {
        self.world.features.bbm == 2
    }
}

#[test]
fn a_part_that_is_unmapped_leaves_the_rest_without_the_hint() {
    with_each(|tree| {
        let (start, page, size) = (tree.range().start, tree.page(), tree.size());
        assert_eq!(tree.unmap(start + page..start + 3 * page), 2);
        assert_eq!(tree.grouped(), GROUPS - 1);
        assert_eq!(tree.writable(start + page..start + 3 * page), None);
        assert_eq!(tree.writable(start + 3 * page..start + size), Some(true));
        // From the middle of one group to the middle of the next, which are whole before.
        assert_eq!(tree.unmap(start + 2 * size - page..start + 2 * size + page), 2);
        assert_eq!(tree.grouped(), GROUPS - 3);
        assert_eq!(tree.writable(start + size..start + 2 * size - page), Some(true));
        // A whole group.
        assert_eq!(tree.unmap(start + 3 * size..start + 4 * size), tree.length());
        assert_eq!(tree.grouped(), 0);
        // A group is made where its first page is missing. Where only others are, leaves stay as they are.
        tree.map_range(tree.range());
        assert_eq!((tree.grouped(), tree.writable(tree.range())), (2, Some(true)));
    });
}

#[test]
fn protect_is_exact_and_write_protect_takes_whole_groups() {
    with_each(|tree| {
        let (start, page, size) = (tree.range().start, tree.page(), tree.size());
        tree.protect(start + page..start + size, Access::READ);
        assert_eq!((tree.grouped(), tree.writable(start..start + page)), (GROUPS - 1, Some(true)));
        assert_eq!(tree.writable(start + page..start + size), Some(false));
        tree.protect(start + size..start + 2 * size, Access::READ);
        assert_eq!((tree.grouped(), tree.writable(start + size..start + 2 * size)), (GROUPS - 1, Some(false)));
        tree.write_protect(start + 3 * size - page..start + 3 * size + page);
        assert_eq!((tree.grouped(), tree.writable(start + 2 * size..start + 4 * size)), (GROUPS - 1, Some(false)));
    });
}

#[test]
fn relax_widens_a_group_and_relax_page_clears_its_hint() {
    with_each(|tree| {
        let (start, page, size) = (tree.range().start, tree.page(), tree.size());
        tree.write_protect(tree.range());
        assert_eq!((tree.grouped(), tree.writable(tree.range())), (GROUPS, Some(false)));
        assert_eq!(tree.relax(start + page, Access::READ_WRITE), Relaxed::Widened);
        assert_eq!((tree.grouped(), tree.writable(start..start + size)), (GROUPS, Some(true)));
        assert_eq!(tree.relax(start + 2 * page, Access::READ_WRITE), Relaxed::Already);
        assert_eq!(tree.relax(start, Access::ALL), Relaxed::Widened, "execution too");
        assert_eq!(tree.grouped(), GROUPS);

        let other = start + size;
        assert_eq!(tree.relax_page(other + page, Access::READ), Relaxed::Already, "a read needs no more");
        assert_eq!(tree.grouped(), GROUPS);
        assert_eq!(tree.relax_page(other + page, Access::READ_WRITE), Relaxed::Widened);
        assert_eq!((tree.grouped(), tree.writable(other + page..other + 2 * page)), (GROUPS - 1, Some(true)));
        assert_eq!(tree.writable(other + 2 * page..other + size), Some(false));
    });
}

/// Hardware sets the access flag of any leaf of a group.
#[test]
fn a_group_ages_as_a_whole() {
    with_each(|tree| {
        let (start, page, size) = (tree.range().start, tree.page(), tree.size());
        assert_eq!(tree.age(tree.range()), GROUPS * tree.length());
        assert_eq!(tree.age(tree.range()), 0);
        tree.load(start + size + page);
        assert_eq!(tree.age(tree.range()), tree.length());
        tree.load(start + 2 * size);
        assert_eq!(tree.age(start + 3 * size - page..start + 3 * size), tree.length(), "from any page of it");
        assert_eq!(tree.grouped(), GROUPS);
    });
}

#[test]
fn a_page_with_dbm_is_in_no_group() {
    with_each(|tree| {
        let (start, page, size) = (tree.range().start, tree.page(), tree.size());
        tree.set_dbm_clean(start + size..start + size + page);
        assert_eq!((tree.grouped(), tree.writable(start + size..start + size + page)), (GROUPS - 1, Some(false)));
        assert_eq!(tree.writable(start + size + page..start + 2 * size), Some(true));
        tree.set_dbm_clean(tree.range());
        assert_eq!((tree.grouped(), tree.writable(tree.range())), (0, Some(false)));
        let tracked = Attributes { dirty_by_hardware: true, ..READ_WRITE };
        assert_eq!(tree.map_group(start, 0, &tracked), Err(Error::GroupWithDbm));
        // They are joined, and hardware's records are reported.
        let last = start + size - page;
        tree.store(start + page);
        tree.store(last);
        assert_eq!(tree.map_group(start, 0, &READ_WRITE), Ok("joined"));
        assert_eq!((tree.grouped(), tree.written()), (1, vec![start + page, last]));
        assert_eq!(tree.map_group(start, 0, &READ_WRITE), Ok("already"));
        // No record is lost by `map_range`, which reports none.
        tree.store(start + size + page);
        tree.unmap(start + size..start + size + page);
        tree.map_range(start + size..start + 2 * size);
        assert_eq!(tree.grouped(), 1);
        assert_eq!(tree.writable(start + size + page..start + size + 2 * page), Some(true), "the record is there");
    });
}

/// One flush for all groups of a table, or none where FEAT_BBM allows it.
#[test]
fn split_clears_the_hint_of_a_range() {
    with_each(|tree| {
        let (start, page, size) = (tree.range().start, tree.page(), tree.size());
        let before = tree.invalidations();
        assert_eq!(tree.split(start..start + page, 1 << 30), (1, 1), "a group that reaches beyond the range");
        let one = tree.invalidations() - before;
        assert_eq!(one == 0, tree.is_live());
        assert_eq!(tree.grouped(), GROUPS - 1);
        assert_eq!(tree.split(tree.range(), size), (GROUPS - 1, GROUPS - 1), "in chunks of a group");
        assert_eq!((tree.grouped(), tree.writable(tree.range())), (0, Some(true)));
        assert_eq!(tree.split(tree.range(), 1 << 30), (0, 0), "nothing is left");
    });
}

#[test]
fn leaves_are_joined_and_other_memory_is_refused() {
    with_each(|tree| {
        let (start, page, size) = (tree.range().start, tree.page(), tree.size());
        assert_eq!(tree.map_group(start, 0, &READ_WRITE), Ok("already"));
        assert_eq!(tree.map_group(start, 0, &Attributes::ram(Access::ALL)), Ok("joined"), "it allows more");
        tree.split(tree.range(), 1 << 30);
        assert_eq!(tree.map_group(start, 0, &READ_WRITE), Ok("joined"));
        // Holes are filled, stale or not.
        tree.unmap(start + page..start + 2 * page);
        assert_eq!(tree.grouped(), 0);
        assert_eq!(tree.map_group(start, 0, &READ_WRITE), Ok("joined"));
        tree.unmap(start..start + size);
        assert_eq!(tree.map_group(start, 0, &READ_WRITE), Ok("new"));
        assert_eq!((tree.grouped(), tree.writable(start..start + size)), (1, Some(true)));

        let odd = tree.length() / 2;
        assert_eq!(tree.map_group(start, odd, &READ_WRITE).map_err(|error| error.to_string().is_empty()), Err(false));
        let misaligned = Err(Error::Misaligned { address: (start + page).raw(), size });
        assert_eq!(tree.map_group(start + page, 0, &READ_WRITE), misaligned);
        let other = Err(Error::NotOneGroup { ipa: start, level: Level::L3 });
        assert_eq!(tree.map_group(start, tree.length(), &READ_WRITE), other);
        assert_eq!((tree.grouped(), tree.writable(start..start + size)), (1, Some(true)), "nothing was changed");
    });
}

/// Blocks of level 2 in groups: a part of one block is unmapped, a block replaces a table beside a group.
#[test]
fn blocks_make_groups_too() {
    fn with<G: Granule>(features: Features) {
        let span = G::default().span(Level::L2);
        let group = group_length::<G>(Level::L2) as u64 * span;
        // No guest reaches the memory, so the machine need not have it.
        let world = World::<G>::of_granule(features, 1, 1, Pa::new(GIB), 64 << 20);
        let ended = world.machine.alone(|cpu| {
            let (tables, mut pages) = (world.tables(0, 1, 40), &world.pages);
            cpu.load(tables.vttbr());
            let (start, pa) = (Ipa::new(2 * group), Pa::new(4 * group));
            let grouped = |at: Ipa| tables.look_up(at).map(|leaf| (leaf.level, leaf.descriptor.is_contiguous()));
            tables.map_range(start..start + 2 * group, pa, Level::L2, &READ_WRITE, &mut pages).unwrap();
            assert_eq!(grouped(start), Some((Level::L2, true)));
            let inside = start + (group - span);
            let page = inside..inside + G::SIZE;
            tables.unmap(page, &mut pages, Unwatched).unwrap().complete().free(&mut pages);
            assert_eq!((grouped(start), grouped(inside)), (Some((Level::L2, false)), None));
            assert_eq!(grouped(inside + G::SIZE), Some((Level::L3, false)));
            assert_eq!(grouped(start + group), Some((Level::L2, true)));
            let output = pa + (group - span);
            let coalesced = tables.coalesce(inside, output, Level::L2, &READ_WRITE, &mut pages, &mut |_| ());
            assert_eq!(coalesced, Ok(Coalesced::Done { tables: 1 }));
            let joined =
                tables.open(window(pa, group), start).map_group(Level::L2, &READ_WRITE, &mut pages, &mut |_| ());
            assert_eq!((joined, grouped(start)), (Ok(Grouped::Joined), Some((Level::L2, true))));
            tables.audit().unwrap();
            cpu.load(0);
            tables.destroy(&mut pages, Unwatched);
        });
        ended.unwrap_or_else(|breach| panic!("{:?}: {breach}", G::default()));
        assert_eq!(world.pages.out(), 0);
    }
    for features in [MODERN, LIVE] {
        with::<Contiguous<Kib4>>(features);
        with::<Contiguous<Kib16>>(features);
        with::<Contiguous<Kib64>>(features);
    }
}

/// What a type or a geometry does not have is refused.
#[test]
fn groups_that_there_are_not_are_refused() {
    fn refused<G: Granule>(ipa_bits: u32, level: Level) {
        let world = World::<G>::of_granule(MODERN, 1, 1, Pa::new(GIB), 64 << 20);
        let ended = world.machine.alone(|_| {
            let (tables, mut pages) = (world.tables(0, 1, ipa_bits), &world.pages);
            let grant = tables.open(window(Pa::new(0), 1 << 40), Ipa::new(0));
            let mapped = grant.map_group(level, &READ_WRITE, &mut pages, &mut |_| ());
            assert_eq!(mapped, Err(Error::NoGroupAtLevel { level }), "{:?}", G::default());
            tables.destroy(&mut pages, Unwatched);
        });
        ended.unwrap_or_else(|breach| panic!("{breach}"));
    }
    refused::<Kib4>(40, Level::L3);
    refused::<Contiguous<Kib16Lpa2>>(48, Level::L1);
    refused::<Contiguous<Kib64>>(33, Level::L2);
}
