// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables of each granule, in one piece: each operation reaches every entry of a table, however large tables are, and the
//! largest blocks are split, coalesced and removed.

use std::ops::ControlFlow;

use twofold_machine::program::Instructions;
use twofold_stage2::{
    Access, Attributes, Broken, Coalesced, Contiguous, Error, Features, Granule, Ipa, IpaRange, Kib4, Kib4Lpa2, Kib16,
    Kib16Lpa2, Kib64, Leaf, Level, Mapped, Marked, Memory, Pa, Shareability, Split, Unwatched,
};

use crate::window::ByAddress as _;
use crate::world::{GIB, MODERN, World};

const LARGE: Features = MODERN.with_pa_bits(52);
/// Far beyond 48 bits.
const HIGH: Pa = Pa::new(0xd << 48);

/// The pages that are checked: all of them would take long.
fn sample<G: Granule>(range: &IpaRange) -> impl Iterator<Item = Ipa> + use<G> {
    let (start, pages) = (range.start, (range.end - range.start) / G::SIZE);
    (0..pages)
        .filter(|page| page % 61 == 0 || page % 512 < 2 || page % 512 == 511)
        .map(move |page| start + page * G::SIZE)
}

/// The number of pages that the masks select.
fn marked(marks: &[Marked]) -> u64 {
    marks.iter().map(|marked| u64::from(marked.mask.count_ones())).sum()
}

/// Each pass over two whole tables of pages, of which the last page is one.
fn whole_tables<G: Granule>(base: Pa, features: Features) {
    let huge_page = G::default().span(Level::L2);
    let world = World::<G>::of_granule(features, 1, 1, base, 3 * huge_page.max(16 << 20));
    let ended = world.machine.alone(|cpu| {
        let (tables, mut pages) = (world.tables(0, 1, 40), &world.pages);
        let range = Ipa::new(2 * huge_page)..Ipa::new(4 * huge_page);
        let count = 2 * G::ENTRIES as u64;
        let all = |what: &str, holds: &dyn Fn(Leaf<G>) -> bool| {
            for ipa in sample::<G>(&range) {
                let leaf = tables.look_up(ipa).unwrap_or_else(|| panic!("{what}: {ipa} is not mapped"));
                assert!(leaf.level == Level::L3 && holds(leaf), "{what}: {leaf:?}");
                assert_eq!(leaf.descriptor.address() - world.frame(0), ipa - range.start, "{what}");
            }
        };
        let writable = |leaf: Leaf<G>| leaf.descriptor.is_writable();
        let attributes = Attributes::ram(Access::READ_WRITE);
        tables.map_range(range.clone(), world.frame(0), Level::L3, &attributes, &mut pages).unwrap();
        all("map_range", &writable);
        assert_eq!(tables.count_leaves(range.clone()).unwrap()[3], count);

        let _ = tables.write_protect(range.clone()).unwrap().complete();
        all("write_protect", &|leaf| !writable(leaf));
        let mut marks = Vec::new();
        tables.age(range.clone(), &mut |mark| marks.push(mark)).unwrap();
        assert_eq!(marked(&marks), count, "age");
        all("age", &|leaf| !leaf.descriptor.is_accessed());

        let _ = tables.set_dbm_clean(range.clone()).unwrap().complete();
        all("set_dbm_clean", &|leaf| leaf.descriptor.is_hardware_tracked());
        cpu.load(tables.vttbr());
        let mut guest = cpu.enter(tables.vttbr(), tables.vtcr(), 0);
        let written: Vec<_> = sample::<G>(&range).step_by(7).collect();
        // Before it was tracked, the page was write-protected, and the TLB may hold that.
        tables.invalidate_all();
        written.iter().for_each(|ipa| guest.store(ipa.raw(), 1).unwrap());
        let mut marks = Vec::new();
        tables.dirty(range.clone(), &mut |mark| marks.push(mark)).unwrap();
        assert_eq!(marked(&marks), written.len() as u64, "dirty");
        let mut marks = Vec::new();
        let _ = tables.clean(range.clone(), &mut |mark| marks.push(mark)).unwrap().complete();
        assert_eq!(marked(&marks), written.len() as u64, "clean");
        all("clean", &|leaf| !writable(leaf));
        let _ = tables.clear_dbm(range.clone()).unwrap().complete();
        all("clear_dbm", &|leaf| !leaf.descriptor.is_hardware_tracked());
        let _ = tables.protect(range.clone(), Access::NONE, &mut pages).unwrap().complete();
        all("protect", &|leaf| leaf.descriptor.access() == Access::NONE);
        let last = range.end.raw() - G::SIZE;
        let _ = tables.relax(Ipa::new(last), Access::READ_WRITE).unwrap();
        guest.forget_fault();
        guest.store(last, 2).unwrap();

        // Pages into blocks, and back.
        for (ipa, pa) in [(range.start, world.frame(0)), (range.start + huge_page, world.frame(huge_page))] {
            let coalesced = tables.coalesce(ipa, pa, Level::L2, &attributes, &mut pages, &mut |_| ());
            assert_eq!(coalesced, Ok(Coalesced::Done { tables: 1 }));
        }
        guest.forget_fault();
        assert_eq!(guest.load(last), Ok(2));
        let split = tables.split(range.clone(), 1 << 30, &mut pages, |_, _| ControlFlow::Continue(()));
        assert_eq!(split, Ok(Split { blocks: 2, done: range.end, stopped: None }));
        all("split", &writable);
        assert_eq!(guest.load(last), Ok(2));

        let mut removed = 0;
        let pending = tables.unmap(range.clone(), &mut pages, |_: Broken<G>| removed += 1).unwrap();
        // Two tables of pages, and those above them but the root.
        let above = 2 - u64::from(tables.geometry().root_level().raw());
        assert_eq!(pending.complete().free(&mut pages).tables(), 2 + above);
        assert_eq!(removed, count, "unmap");
        assert_eq!(tables.audit(), Ok(0));
        guest.forget_fault();
        assert!(guest.load(last).is_err());
        cpu.load(0);
        tables.destroy(&mut pages, Unwatched);
    });
    ended.unwrap_or_else(|breach| panic!("{:?}: {breach}", G::default()));
    assert_eq!(world.pages.out(), 0);
}

#[test]
fn each_pass_reaches_all_of_a_table() {
    whole_tables::<Kib4>(Pa::new(GIB), MODERN);
    whole_tables::<Kib4Lpa2>(HIGH, LARGE);
    whole_tables::<Kib16>(Pa::new(GIB), MODERN);
    whole_tables::<Kib16Lpa2>(HIGH, LARGE);
    whole_tables::<Kib64>(HIGH, LARGE);
    whole_tables::<Contiguous<Kib4>>(Pa::new(GIB), MODERN);
    whole_tables::<Contiguous<Kib16>>(Pa::new(GIB), MODERN);
    whole_tables::<Contiguous<Kib64>>(HIGH, LARGE);
}

/// The bits of an address from 48 on, or 50, are elsewhere in a descriptor: a row of leaves that crosses such an address is not
/// a row of equal steps.
#[test]
fn rows_of_leaves_cross_the_parts_of_an_address() {
    fn crosses<G: Granule>(bits: u32) {
        const PAGES: u64 = 16;
        let huge_page = G::default().span(Level::L2).max(16 << 20);
        let world = World::<G>::of_granule(LARGE, 1, 1, Pa::new((1 << bits) - GIB), GIB + huge_page);
        let ended = world.machine.alone(|_| {
            let (tables, mut pages) = (world.tables(0, 1, 40), &world.pages);
            let start = Ipa::new(2 * huge_page);
            let first = world.frame((1 << bits) - world.frame(0).raw() - PAGES / 2 * G::SIZE);
            let attributes = Attributes::ram(Access::READ_WRITE);
            tables.map_range(start..start + PAGES * G::SIZE, first, Level::L3, &attributes, &mut pages).unwrap();
            for page in 0..PAGES {
                let leaf = tables.look_up(start + page * G::SIZE).expect("a page");
                assert_eq!(leaf.descriptor.address(), first + page * G::SIZE);
                assert_eq!(leaf.descriptor.attributes(&LARGE), attributes);
            }
            tables.destroy(&mut pages, Unwatched);
        });
        ended.unwrap_or_else(|breach| panic!("{breach}"));
    }
    crosses::<Kib64>(48);
    crosses::<Kib16Lpa2>(50);
    crosses::<Kib4Lpa2>(50);
    crosses::<Contiguous<Kib64>>(48);
    crosses::<Contiguous<Kib16Lpa2>>(50);
    crosses::<Contiguous<Kib4Lpa2>>(50);
}

/// A block of `level` at the end of the IPA space is split by one level, and removed. The machine has no such memory, so no
/// guest reaches it.
fn giant<G: Granule>(ipa_bits: u32, level: Level, features: Features) {
    let (size, part) = (G::default().span(level), G::default().span(level.below().unwrap()));
    let world = World::<G>::of_granule(features, 1, 1, Pa::new(GIB), 64 << 20);
    let ended = world.machine.alone(|cpu| {
        let (tables, mut pages) = (world.tables(0, 1, ipa_bits), &world.pages);
        cpu.load(tables.vttbr());
        let attributes = Attributes::ram(Access::READ_WRITE);
        let (start, pa) = (Ipa::new((1 << ipa_bits) - size), Pa::new((1 << features.pa_bits) - 2 * size));
        assert_eq!(tables.geometry().largest_block(), level);
        assert_eq!(tables.map(start, pa, level, &attributes, &mut pages), Ok(Mapped::New));
        let found =
            |ipa: Ipa| tables.look_up(ipa).map(|leaf| (leaf.level, leaf.descriptor.address() + (ipa - leaf.ipa)));
        let inside = start + (size - part);
        assert_eq!(found(inside), Some((level, pa + (size - part))));
        // Unmapping a part splits the block, as far as the part needs.
        let page = inside..inside + G::SIZE;
        tables.unmap(page.clone(), &mut pages, Unwatched).unwrap().complete().free(&mut pages);
        assert_eq!(found(inside), None);
        if part > G::SIZE {
            assert_eq!(found(inside + G::SIZE), Some((Level::L3, pa + (size - part) + G::SIZE)));
        }
        assert_eq!(found(start), Some((level.below().unwrap(), pa)));
        let coalesced = tables.coalesce(start, pa, level, &attributes, &mut pages, &mut |_| ());
        if level == Level::L0 {
            assert_eq!(coalesced, Err(Error::TableInTheWay { ipa: start, level }));
        } else {
            let tables = if level == Level::L2 { 1 } else { 2 };
            assert_eq!(coalesced, Ok(Coalesced::Done { tables }));
            assert_eq!(found(inside), Some((level, pa + (size - part))));
        }
        let all = start..start + size;
        tables.unmap(all, &mut pages, Unwatched).unwrap().complete().free(&mut pages);
        assert_eq!((found(start), found(inside), tables.audit()), (None, None, Ok(0)));
        cpu.load(0);
        tables.destroy(&mut pages, Unwatched);
    });
    ended.unwrap_or_else(|breach| panic!("{:?}: {breach}", G::default()));
    assert_eq!(world.pages.out(), 0);
}

#[test]
fn the_largest_blocks_come_and_go() {
    giant::<Kib4>(48, Level::L1, MODERN);
    giant::<Kib4Lpa2>(52, Level::L0, LARGE);
    giant::<Kib16>(48, Level::L2, MODERN);
    giant::<Kib16Lpa2>(52, Level::L1, LARGE);
    giant::<Kib64>(48, Level::L2, MODERN);
    giant::<Kib64>(52, Level::L1, LARGE);
    giant::<Contiguous<Kib4>>(48, Level::L1, MODERN);
    giant::<Contiguous<Kib64>>(52, Level::L1, LARGE);
}

/// What a geometry does not have is refused before anything is changed.
#[test]
fn leaves_that_the_geometry_does_not_have_are_refused() {
    fn refused<G: Granule>(ipa_bits: u32, level: Level) {
        let world = World::<G>::of_granule(MODERN, 1, 1, Pa::new(GIB), 64 << 20);
        let ended = world.machine.alone(|_| {
            let (tables, mut pages) = (world.tables(0, 1, ipa_bits), &world.pages);
            let ram = Attributes::ram(Access::READ);
            let mapped = tables.map(Ipa::new(0), Pa::new(0), level, &ram, &mut pages);
            assert_eq!(mapped, Err(Error::NoLeafAtLevel { level }), "{:?}", G::default());
            let odd = tables.map(Ipa::new(0), Pa::new(4096), Level::L3, &ram, &mut pages);
            let is_odd = G::SIZE > 4096;
            assert_eq!(odd.is_err(), is_odd, "{:?}", G::default());
            tables.destroy(&mut pages, Unwatched);
        });
        ended.unwrap_or_else(|breach| panic!("{breach}"));
    }
    refused::<Kib4>(48, Level::L0);
    refused::<Kib4>(32, Level::L1);
    refused::<Kib4Lpa2>(40, Level::L0);
    refused::<Kib16>(48, Level::L1);
    refused::<Kib16Lpa2>(36, Level::L1);
    refused::<Kib64>(48, Level::L1);
}

/// With FEAT_LPA2 a descriptor has no shareability.
#[test]
fn shareability_that_lpa2_does_not_have_is_refused() {
    let world = World::<Kib16Lpa2>::of_granule(MODERN, 1, 1, Pa::new(GIB), 64 << 20);
    let ended = world.machine.alone(|_| {
        let (tables, mut pages) = (world.tables(0, 1, 40), &world.pages);
        for shareability in [Shareability::NonShareable, Shareability::OuterShareable] {
            let attributes = Attributes { shareability, ..Attributes::ram(Access::READ) };
            let (at, to) = (Ipa::new(0), Pa::new(0));
            let mapped = tables.map(at, to, Level::L3, &attributes, &mut pages);
            assert_eq!(mapped, Err(Error::ShareabilityOfLpa2));
            let range = tables.map_range(at..at + 16384, to, Level::L3, &attributes, &mut pages);
            assert_eq!(range, Err(Error::ShareabilityOfLpa2));
            let coalesced = tables.coalesce(at, to, Level::L2, &attributes, &mut pages, &mut |_| ());
            assert_eq!(coalesced, Err(Error::ShareabilityOfLpa2));
        }
        let device = Attributes { memory: Memory::Device, ..Attributes::ram(Access::READ) };
        assert_eq!(tables.map(Ipa::new(0), Pa::new(0), Level::L3, &device, &mut pages), Ok(Mapped::New));
        tables.destroy(&mut pages, Unwatched);
    });
    ended.unwrap_or_else(|breach| panic!("{breach}"));
}
