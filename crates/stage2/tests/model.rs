// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves, for random operations on tables of every shape, that the tables say what a plain model says, for whom
//! reads them as hardware does; that no TLB is left with what they do not say any more; that an operation which found
//! no table page has done no harm and can be repeated; and that every page comes back in the end.
//!
//! 32 cases a shape, or `PROPTEST_CASES`. A failure prints its smallest case and the seed, which `PROPTEST_RNG_SEED`
//! takes to see it again. Failures are not kept in files.

mod platform;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

use platform::mmu::{Leaf, Scan};
use platform::tlb::RemoteTlb;
use platform::{GIB, Guest, KIB_4, MIB_2, PLAIN, VMID};
use twofold_stage2::{
    Access, Attributes, Error, Execute, Features, Ipa, Level, Mapped, Memory, Pa, Relaxed, Shareability,
};

const MOST_OPERATIONS: usize = 60;
const TABLE_PAGES: u64 = 256;
const WRITABLE: u64 = 1 << 7;
/// Another guest's VTTBR.
const OTHER: u64 = 0x0033_0000_4567_8000;

#[derive(Clone, Debug)]
enum Action {
    Map {
        level: u8,
        elsewhere: bool,
        attributes: Attributes,
    },
    Unmap,
    Protect(Access),
    Relax(Access),
    Clean,
    /// A vCPU writes, and hardware records it.
    HardwareWrites,
}

#[derive(Clone, Debug)]
struct Operation {
    action: Action,
    /// Which of three places in the IPA space, and the offset from there.
    place: (usize, u64),
    /// For a range.
    size: u64,
    /// How many table pages there are.
    pages: usize,
    /// Whether the guest's VTTBR is loaded.
    loaded: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Page {
    pa: Pa,
    attributes: Attributes,
}

/// What each page is. Between two neighbouring keys no operation ever draws a line, so one entry stands for all pages
/// up to the next: the page at its key, and those behind it with the frames behind.
struct Model {
    pages: BTreeMap<u64, Option<Page>>,
    end: u64,
}

#[test]
fn ipa_32_with_a_root_of_4_tables_at_level_2() {
    agree(32);
}

#[test]
fn ipa_36_with_a_small_root_at_level_1() {
    agree(36);
}

#[test]
fn ipa_40_with_a_root_of_2_tables_at_level_1() {
    agree(40);
}

#[test]
fn ipa_43_with_a_root_of_16_tables_at_level_1() {
    agree(43);
}

#[test]
fn ipa_44_with_a_small_root_at_level_0() {
    agree(44);
}

#[test]
fn ipa_48_with_a_full_root_at_level_0() {
    agree(48);
}

fn agree(ipa_bits: u32) {
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { ProptestConfig::default().cases } else { 32 };
    let seed = match ProptestConfig::default().rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => RandomState::new().hash_one(0),
    };
    let config = ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let scenario = (any_features(), prop::collection::vec(any_operation(), 1..=MOST_OPERATIONS));
    let outcome = TestRunner::new(config).run(&scenario, |(features, mut operations)| {
        operations.iter_mut().for_each(|operation| operation.fit(&features));
        run(features, ipa_bits, &operations);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("PROPTEST_RNG_SEED={seed}: {error}");
    }
}

fn run(features: Features, ipa_bits: u32, operations: &[Operation]) {
    let mut guest = Guest::with_pages(features, ipa_bits, TABLE_PAGES);
    let mut model = Model::new(1 << ipa_bits, operations);
    let mut scan = guest.scan();
    for operation in operations {
        guest.machine.load(if operation.loaded { guest.stage2.vttbr() } else { OTHER });
        guest.pool.limit = operation.pages;
        if observed(&mut guest, &mut model, &mut scan, operation).is_err() {
            guest.pool.limit = usize::MAX;
            observed(&mut guest, &mut model, &mut scan, operation).expect("there are pages now");
        }
    }
    let (Guest { stage2, mut pool, .. }, mapped) = (guest, model.mapped(0..model.end));
    let mut removed = 0;
    assert!(stage2.destroy(&mut pool, &mut |leaf| removed += platform::mmu::span(leaf.level.raw())).is_ok());
    assert_eq!((removed, pool.out), (mapped, BTreeSet::new()));
}

/// No page: nothing else can be wrong with an operation here that the model does not know of.
#[derive(Debug)]
struct Dry;

/// Does it in both worlds, under the eyes of another CPU's TLB, and compares. `scan` is what the tables say.
fn observed(guest: &mut Guest, model: &mut Model, scan: &mut Scan, operation: &Operation) -> Result<(), Dry> {
    let before = std::mem::take(scan);
    let tlb = Rc::new(RefCell::new(RemoteTlb::new(VMID, before.clone())));
    let other_cpu = tlb.clone();
    guest.machine.set_hook(move |event, vttbr| other_cpu.borrow_mut().observe(event, vttbr));
    let loaded = guest.machine.loaded();

    let outcome = operation.apply(guest, model, &before);

    let after = guest.scan();
    tlb.borrow().check(&after);
    model.check(guest, &after);
    assert_eq!(after.links.iter().map(|link| link.table).collect::<BTreeSet<_>>(), guest.pool.out);
    assert_eq!(guest.machine.loaded(), loaded);
    guest.events();
    *scan = after;
    outcome
}

impl Operation {
    /// Asks for no more than entries of such a CPU can say.
    fn fit(&mut self, features: &Features) {
        if let Action::Map { attributes: Attributes { access, .. }, .. }
        | Action::Protect(access)
        | Action::Relax(access) = &mut self.action
            && access.check(features).is_err()
        {
            access.execute = Execute::NEVER;
        }
    }

    fn start(&self, end: u64) -> u64 {
        // The first place is where spaces begin; the second is where they end; the third crosses a table of level 1
        // where there is more than one.
        let third = if end > 512 * GIB { 511 * GIB } else { GIB };
        let start = [0, end - 2 * GIB, third][self.place.0] + self.place.1;
        match self.action {
            Action::Map { level, .. } => start & !(platform::mmu::span(level) - 1),
            _ => start,
        }
    }

    fn range(&self, end: u64) -> std::ops::Range<u64> {
        let start = self.start(end);
        let size = match self.action {
            Action::Map { level, .. } => platform::mmu::span(level),
            Action::Unmap | Action::Protect(_) | Action::Clean => self.size,
            Action::Relax(_) | Action::HardwareWrites => KIB_4,
        };
        start..start.saturating_add(size).min(end)
    }

    fn apply(&self, guest: &mut Guest, model: &mut Model, before: &Scan) -> Result<(), Dry> {
        let range = self.range(model.end);
        let (ipas, ipa) = (Ipa::new(range.start)..Ipa::new(range.end), Ipa::new(range.start));
        match self.action {
            Action::Map { level, elsewhere, ref attributes } => {
                let pa = platform::frame(range.start % (16 * GIB) + if elsewhere { 16 * GIB } else { 0 });
                return map(guest, model, ipa, pa, level, attributes);
            }
            Action::Unmap => {
                let expected = model.mapped(range.clone());
                let mut removed = 0;
                let mut tell = |leaf: twofold_stage2::Leaf| {
                    let size = platform::mmu::span(leaf.level.raw());
                    assert!(leaf.ipa >= ipas.start && leaf.ipa + size <= ipas.end, "{leaf:?} is outside");
                    assert_eq!(model.at(leaf.ipa).unwrap().pa, leaf.descriptor.address());
                    removed += size;
                };
                let outcome = guest.stage2.unmap(ipas.clone(), &mut guest.pool, &mut tell);
                let (pending, detached) = outcome.map_err(dry)?;
                let flushed = pending.complete();
                detached.free(flushed, &mut guest.pool);
                assert_eq!(removed, expected);
                model.update(range, |page| *page = None);
            }
            Action::Protect(access) => {
                let _ = guest.stage2.protect(ipas, access, &mut guest.pool).map_err(dry)?.complete();
                model.update_mapped(range, |attributes| {
                    attributes.access = access;
                    attributes.dirty_by_hardware &= access.write;
                });
            }
            Action::Relax(access) => relax(guest, model, before, ipa, access),
            Action::Clean => {
                let mut told = Vec::new();
                let _ = guest.stage2.clean(ipas.clone(), &mut |leaf| told.push(leaf.ipa)).unwrap().complete();
                let touched = before.leaves.iter().filter(|leaf| leaf.ipa < ipas.end && leaf.end() > ipas.start);
                let touched: Vec<&Leaf> = touched.collect();
                let dirty = touched.iter().filter(|leaf| is_dirty(&model.at(leaf.ipa).unwrap().attributes));
                assert_eq!(told, dirty.map(|leaf| leaf.ipa).collect::<Vec<_>>());
                // Blocks across the ends are cleaned as a whole.
                let start = touched.first().map_or(ipas.start, |leaf| leaf.ipa.min(ipas.start));
                let end = touched.last().map_or(ipas.end, |leaf| leaf.end().max(ipas.end));
                model.update_mapped(start.raw()..end.raw(), |attributes| {
                    attributes.access.write &= !is_dirty(attributes);
                });
            }
            Action::HardwareWrites => {
                let marks = |leaf: &Leaf| leaf.dirty_by_hardware() && leaf.accessed();
                if let Some(leaf) = guest.walk(ipa).filter(marks) {
                    guest.machine.hardware_sets(leaf.entry, WRITABLE);
                    model.update_mapped(span_of(&leaf), |attributes| attributes.access.write = true);
                }
            }
        }
        Ok(())
    }
}

fn map(guest: &mut Guest, model: &mut Model, ipa: Ipa, pa: Pa, level: u8, new: &Attributes) -> Result<(), Dry> {
    let found = guest.mmu().translate(&|pa| guest.machine.read(pa), ipa);
    let refuses = guest.stage2.geometry().root_level().raw() > level;
    let table = found.map_or_else(|at| at, |leaf| leaf.level) > level;
    let outcome = guest.stage2.map(ipa, pa, Level::new(level).unwrap(), new, &mut guest.pool);
    match outcome {
        Err(Error::NoTablePage { .. }) => return Err(Dry),
        Err(Error::NoLeafAtLevel { .. }) => assert!(refuses),
        Err(Error::TableInTheWay { .. }) => assert!(table && !refuses),
        Err(error) => panic!("{error}"),
        Ok(outcome) => {
            assert!(!refuses && !table);
            match (outcome, model.at(ipa)) {
                (Mapped::Already(_), Some(old)) => {
                    assert_eq!((old.pa, old.attributes.memory), (pa, new.memory));
                    return Ok(());
                }
                (Mapped::Replaced(leaf), Some(old)) => {
                    assert!((old.pa, old.attributes.memory) != (pa, new.memory));
                    assert_eq!((leaf.address(), leaf.attributes(guest.stage2.features())), (old.pa, old.attributes));
                }
                (Mapped::New, None) => {}
                other => panic!("{other:?}"),
            }
            let start = ipa.raw();
            let size = platform::mmu::span(level);
            for (at, page) in model.pages.range_mut(start..start + size) {
                *page = Some(Page { pa: pa + (at - start), attributes: *new });
            }
        }
    }
    Ok(())
}

fn relax(guest: &mut Guest, model: &mut Model, before: &Scan, ipa: Ipa, access: Access) {
    let outcome = guest.stage2.relax(ipa, access);
    let Some(old) = model.at(ipa) else { return assert_eq!(outcome, Err(Error::NotMapped { ipa })) };
    let already = old.attributes.access.covers(access) && old.attributes.accessed;
    assert_eq!(outcome, Ok(if already { Relaxed::Already } else { Relaxed::Widened }));
    let leaf = before.leaves.iter().find(|leaf| leaf.ipa <= ipa && ipa < leaf.end()).unwrap();
    model.update_mapped(span_of(leaf), |attributes| {
        attributes.access = attributes.access.union(access);
        attributes.accessed = true;
    });
}

/// The only way to fail that a range has.
fn dry(error: Error) -> Dry {
    assert!(matches!(error, Error::NoTablePage { .. }), "{error}");
    Dry
}

fn is_dirty(attributes: &Attributes) -> bool {
    attributes.dirty_by_hardware && attributes.access.write
}

fn span_of(leaf: &Leaf) -> std::ops::Range<u64> {
    leaf.ipa.raw()..leaf.end().raw()
}

impl Model {
    /// Lines are drawn at the ends of ranges, and at the ends of the blocks that these are in.
    fn new(end: u64, operations: &[Operation]) -> Self {
        let mut pages = BTreeMap::from([(0, None)]);
        for operation in operations {
            let range = operation.range(end);
            for at in [range.start, range.end] {
                for size in [KIB_4, MIB_2, GIB] {
                    pages.extend([(at & !(size - 1), None), (at.next_multiple_of(size), None)]);
                }
            }
        }
        pages.retain(|at, _| *at < end);
        Self { pages, end }
    }

    /// The page at `ipa`.
    fn at(&self, ipa: Ipa) -> Option<Page> {
        let (start, page) = self.pages.range(..=ipa.raw()).next_back().unwrap();
        page.map(|page| Page { pa: page.pa + (ipa.raw() - start), ..page })
    }

    fn update(&mut self, range: std::ops::Range<u64>, change: impl Fn(&mut Option<Page>)) {
        assert!(
            self.pages.contains_key(&range.start) && (range.end == self.end || self.pages.contains_key(&range.end))
        );
        self.pages.range_mut(range).for_each(|(_, page)| change(page));
    }

    fn update_mapped(&mut self, range: std::ops::Range<u64>, change: impl Fn(&mut Attributes)) {
        self.update(range, |page| {
            if let Some(page) = page {
                change(&mut page.attributes);
            }
        });
    }

    /// How many bytes are mapped in `range`.
    fn mapped(&self, range: std::ops::Range<u64>) -> u64 {
        let ends = self.pages.keys().skip(1).copied().chain([self.end]);
        let spans = self.pages.iter().zip(ends);
        spans
            .filter(|((start, page), _)| range.contains(start) && page.is_some())
            .map(|((start, _), end)| end - start)
            .sum()
    }

    /// That the tables say this, neither more nor less, and that the engine reads them likewise.
    fn check(&self, guest: &Guest, tables: &Scan) {
        let features = guest.stage2.features();
        let mut pages = self.pages.iter().map(|(at, page)| (Ipa::new(*at), *page)).peekable();
        let mut last = pages.next().unwrap();
        for leaf in &tables.leaves {
            let says = |(start, page): (Ipa, Option<Page>)| {
                let page = page.unwrap_or_else(|| panic!("{leaf:x?}, but {start} is not mapped"));
                assert_eq!(leaf.pa() + start.raw(), page.pa + leaf.ipa.raw(), "{start} is elsewhere, {leaf:x?}");
                assert_eq!(attributes(leaf, features), page.attributes, "{start} in {leaf:x?}");
            };
            while let Some(next) = pages.next_if(|(at, _)| *at <= leaf.ipa) {
                last = next;
            }
            says(last);
            while let Some(next) = pages.next_if(|(at, _)| *at < leaf.end()) {
                last = next;
                says(last);
            }
        }
        assert_eq!(tables.leaves.iter().map(Leaf::span).sum::<u64>(), self.mapped(0..self.end));
        for ipa in self.pages.keys().map(|at| Ipa::new(*at)) {
            let found = guest.stage2.look_up(ipa).map(|leaf| (leaf.ipa, leaf.level.raw(), leaf.descriptor.raw()));
            assert_eq!(found, guest.walk(ipa).map(|leaf| (leaf.ipa, leaf.level, leaf.raw)));
        }
    }
}

fn attributes(leaf: &Leaf, features: &Features) -> Attributes {
    assert!(features.execute_per_el || leaf.raw >> 53 & 1 == 0, "XN[0] of {leaf:x?} is reserved without FEAT_XNX");
    Attributes {
        memory: leaf.memory(features.forced_write_back),
        shareability: leaf.shareability(),
        access: leaf.access(),
        accessed: leaf.accessed(),
        dirty_by_hardware: leaf.dirty_by_hardware(),
        software: leaf.software(),
    }
}

fn any_features() -> impl Strategy<Value = Features> {
    let bits = any::<(bool, bool, bool, bool, bool)>();
    bits.prop_map(|(tlbi_range, tlbi_level_hint, forced_write_back, execute_per_el, zero)| Features {
        tlbi_range,
        tlbi_level_hint,
        forced_write_back,
        execute_per_el,
        zero_block: if zero { 64 } else { 0 },
        // Caches are not looked at here: a 1 GiB block is not to take its millions of lines.
        data_line: MIB_2,
        instruction_line: MIB_2,
        ..PLAIN
    })
}

fn any_operation() -> impl Strategy<Value = Operation> {
    let action = prop_oneof![
        6 => (1u8..=3, any::<bool>(), any_attributes()).prop_map(|(level, elsewhere, attributes)| {
            Action::Map { level, elsewhere, attributes }
        }),
        2 => Just(Action::Unmap),
        2 => any_access().prop_map(Action::Protect),
        2 => any_access().prop_map(Action::Relax),
        1 => Just(Action::Clean),
        2 => Just(Action::HardwareWrites),
    ];
    let size = prop::sample::select(vec![
        KIB_4,
        2 * KIB_4,
        511 * KIB_4,
        MIB_2,
        MIB_2 + KIB_4,
        3 * MIB_2,
        GIB,
        GIB + KIB_4,
        2 * GIB,
        u64::MAX,
    ]);
    let offset = (0..2u64, prop::sample::select(vec![0, 1, 2, 511u64]), prop::sample::select(vec![0, 1, 2, 511u64]));
    let place = (0..3usize, offset.prop_map(|(gib, mib_2, page)| gib * GIB + mib_2 * MIB_2 + page * KIB_4));
    let pages = prop_oneof![3 => Just(usize::MAX), 2 => 0..4usize];
    (action, place, size, pages, any::<bool>()).prop_map(|(action, place, size, pages, loaded)| Operation {
        action,
        place,
        size,
        pages,
        loaded,
    })
}

fn any_access() -> impl Strategy<Value = Access> {
    any::<(bool, bool, bool, bool)>().prop_map(|(read, write, el0, el1)| Access {
        read,
        write,
        execute: Execute { el0, el1 },
    })
}

fn any_attributes() -> impl Strategy<Value = Attributes> {
    let memory = prop_oneof![3 => Just(Memory::Normal), 1 => Just(Memory::NonCacheable)];
    let shareability = prop_oneof![3 => Just(Shareability::InnerShareable), 1 => Just(Shareability::OuterShareable)];
    (memory, shareability, any_access(), any::<(bool, bool)>(), 0u8..16).prop_map(
        |(memory, shareability, access, (accessed, dirty_by_hardware), software)| Attributes {
            memory,
            shareability,
            access,
            accessed,
            dirty_by_hardware,
            software,
        },
    )
}
