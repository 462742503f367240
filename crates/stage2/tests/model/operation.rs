// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operations, run on the engine and on the model, and the results that the engine must return.

use std::ops::{ControlFlow, Range};

use super::platform::window::ByAddress as _;
use super::*;
use twofold_stage2::{Coalesced, Marked, Split, Stopped};

#[derive(Clone, Debug)]
pub enum Action {
    Map {
        level: u8,
        elsewhere: bool,
        attributes: Attributes,
    },
    /// A large coalesce runs only where nothing is mapped, or over blocks.
    MapRange {
        largest: u8,
        large: bool,
        elsewhere: bool,
        attributes: Attributes,
    },
    Unmap,
    Protect(Access),
    WriteProtect,
    WriteProtectMask(u64),
    Relax(Access),
    MakeYoung,
    Age,
    Clean,
    SetDbm,
    SetDbmClean,
    SetDbmCleanMask(u64),
    ClearDbm,
    /// Collects the dirty pages, and the writable ones.
    Look,
    RelaxPage(Access),
    /// Splits in chunks of this many bytes.
    Split(u64),
    Coalesce {
        level: u8,
        attributes: Attributes,
    },
    /// A vCPU writes, and hardware records the write.
    HardwareWrites,
    /// A vCPU reads, and hardware sets the access flag.
    HardwareAccesses,
}

#[derive(Clone, Debug)]
pub struct Operation {
    pub action: Action,
    /// One of three places in the IPA space, and the offset from it.
    pub place: (usize, u64),
    /// The size of a range.
    pub size: u64,
    /// The number of table pages in the pool.
    pub pages: usize,
    /// Whether the guest's `VTTBR_EL2` is loaded.
    pub loaded: bool,
}

/// The source is empty. That is the only failure here that the model does not predict.
#[derive(Debug)]
pub struct Dry;

/// The most pages that a split gets: the tables are read as a whole after each operation.
const MOST_SPLIT_PAGES: usize = 40;

impl Operation {
    /// Limits the attributes to what entries of such a CPU can encode.
    pub fn fit(&mut self, features: &Features) {
        if let Action::Map { attributes: Attributes { access, .. }, .. }
        | Action::MapRange { attributes: Attributes { access, .. }, .. }
        | Action::Coalesce { attributes: Attributes { access, .. }, .. }
        | Action::Protect(access)
        | Action::Relax(access)
        | Action::RelaxPage(access) = &mut self.action
            && access.check(features).is_err()
        {
            access.execute = Execute::NEVER;
        }
    }

    fn start(&self, end: u64) -> u64 {
        // The first place is the start of the IPA space, the second its end. The third crosses into another level 1
        // table, if there is more than one.
        let third = if end > 512 * GIB { 511 * GIB } else { GIB };
        let start = [0, end - 2 * GIB, third][self.place.0] + self.place.1;
        match self.action {
            Action::Map { level, .. } | Action::Coalesce { level, .. } => start & !(span(level) - 1),
            Action::MapRange { large: true, .. } => start & !(MIB_2 - 1),
            _ => start,
        }
    }

    fn range(&self, end: u64) -> Range<u64> {
        let start = self.start(end);
        let size = match self.action {
            Action::Map { level, .. } | Action::Coalesce { level, .. } => span(level),
            Action::MapRange { large: true, .. } => GIB + MIB_2,
            Action::MapRange { large: false, .. } => self.size.min(3 * MIB_2 / 2),
            Action::WriteProtectMask(_) | Action::SetDbmCleanMask(_) => 64 * KIB_4,
            Action::Relax(_) | Action::RelaxPage(_) => KIB_4,
            Action::MakeYoung | Action::HardwareWrites | Action::HardwareAccesses => KIB_4,
            _ => self.size,
        };
        start..start.saturating_add(size).min(end)
    }

    /// The addresses where the operation may make a difference between the pages before and after.
    pub fn lines(&self, end: u64) -> Vec<u64> {
        let range = self.range(end);
        let mut lines = vec![range.start, range.end];
        if let Action::WriteProtectMask(mask) | Action::SetDbmCleanMask(mask) = self.action {
            lines.extend(runs(range.start, mask).flat_map(|run| [run.start, run.end]).filter(|at| *at <= end));
        }
        lines
    }

    pub fn apply(&self, guest: &mut Guest, model: &mut Model, before: &Scan) -> Result<(), Dry> {
        let range = self.range(model.end);
        let (ipas, ipa) = (Ipa::new(range.start)..Ipa::new(range.end), Ipa::new(range.start));
        let home = range.start % (16 * GIB);
        let frame = |elsewhere| platform::frame(home + if elsewhere { 16 * GIB } else { 0 });
        match self.action {
            Action::Map { level, elsewhere, ref attributes } => {
                return map(guest, model, ipa, frame(elsewhere), level, attributes);
            }
            Action::MapRange { largest, large, elsewhere, ref attributes } => {
                if !large || model.mapped(range.clone()) == 0 {
                    let largest = if large { 1 } else { largest };
                    return map_range(guest, model, range, frame(elsewhere), largest, attributes);
                }
            }
            Action::Unmap => {
                let mut reported = Vec::new();
                let removed = |leaf| reported.push(leaf);
                let pending = guest.stage2.unmap(ipas.clone(), &mut guest.pool, removed).map_err(dry)?;
                let freed = pending.complete().free(&mut guest.pool);
                let mut reported: Vec<_> =
                    reported.iter().filter_map(|leaf: &twofold_stage2::Broken| leaf.open(&freed)).collect();
                check_removed(model, guest.stage2.features(), range.clone(), &mut reported);
                model.update(range, |_, page| *page = None);
            }
            Action::Protect(keep) => {
                let _ = guest.stage2.protect(ipas, keep, &mut guest.pool).map_err(dry)?.complete();
                model.update_mapped(range, |attributes| {
                    attributes.access = attributes.access.intersection(keep);
                    attributes.dirty_by_hardware &= keep.write;
                });
            }
            Action::WriteProtect => {
                let _ = guest.stage2.write_protect(ipas.clone()).unwrap().complete();
                model.update_mapped(whole(before, &ipas), forbid_writes);
            }
            Action::WriteProtectMask(mask) => write_protect_mask(guest, model, before, ipa, mask),
            Action::Relax(access) => relaxed(guest.stage2.relax(ipa, access), model, before, ipa, access),
            Action::MakeYoung => make_young(guest, model, before, ipa),
            Action::Age => {
                let young = marked(before, &ipas, |leaf| leaf.accessed());
                let mut reported = Vec::new();
                guest.stage2.age(ipas.clone(), &mut |marked| report(&mut reported, marked)).unwrap();
                assert_eq!((reported, guest.events()), (young, vec![]));
                model.update_mapped(whole(before, &ipas), |attributes| attributes.accessed = false);
            }
            Action::Clean => {
                let dirty = marked(before, &ipas, |leaf| leaf.dirty_by_hardware() && leaf.access().write);
                let mut reported = Vec::new();
                let _ =
                    guest.stage2.clean(ipas.clone(), &mut |marked| report(&mut reported, marked)).unwrap().complete();
                assert_eq!(reported, dirty);
                model.update_mapped(whole(before, &ipas), |attributes| {
                    attributes.access.write &= !is_dirty(attributes);
                });
            }
            Action::SetDbm => set_dbm(guest, model, before, &ipas),
            Action::SetDbmClean => set_dbm_clean(guest, model, before, &ipas),
            Action::SetDbmCleanMask(mask) => set_dbm_clean_mask(guest, model, before, ipa, mask),
            Action::ClearDbm => {
                let _ = guest.stage2.clear_dbm(ipas.clone()).unwrap().complete();
                model.update_mapped(whole(before, &ipas), |attributes| attributes.dirty_by_hardware = false);
            }
            Action::Look => {
                let [mut dirty, mut written] = [vec![], vec![]];
                guest.stage2.dirty(ipas.clone(), &mut |marked| report(&mut dirty, marked)).unwrap();
                guest.stage2.written(ipas.clone(), &mut |marked| report(&mut written, marked)).unwrap();
                let is_dirty = |leaf: &Leaf| leaf.dirty_by_hardware() && leaf.access().write;
                assert_eq!(dirty, marked(before, &ipas, is_dirty));
                assert_eq!(written, marked(before, &ipas, |leaf| leaf.access().write));
                assert_eq!(guest.events(), []);
            }
            Action::RelaxPage(access) => match guest.walk(ipa).filter(|leaf| leaf.level < 3) {
                Some(block) => {
                    let in_the_way = Error::BlockInTheWay { ipa: block.ipa, level: Level::new(block.level).unwrap() };
                    assert_eq!(guest.stage2.relax_page(ipa, access), Err(in_the_way));
                }
                None => relaxed(guest.stage2.relax_page(ipa, access), model, before, ipa, access),
            },
            Action::Split(chunk) => return split(guest, before, ipas, chunk, self.pages),
            Action::Coalesce { level, ref attributes } => {
                return coalesce(guest, model, before, ipa, level, attributes);
            }
            Action::HardwareWrites => {
                let marks = |leaf: &Leaf| leaf.dirty_by_hardware() && leaf.accessed();
                if let Some(leaf) = guest.walk(ipa).filter(marks) {
                    guest.machine.hardware_sets(leaf.entry, WRITABLE);
                    model.update_mapped(span_of(&leaf), |attributes| attributes.access.write = true);
                }
            }
            Action::HardwareAccesses => {
                if let Some(leaf) = guest.walk(ipa) {
                    guest.machine.hardware_sets(leaf.entry, ACCESSED);
                    model.update_mapped(span_of(&leaf), |attributes| attributes.accessed = true);
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
            mapped(guest.stage2.features(), model, outcome, ipa, pa, level, new);
        }
    }
    Ok(())
}

/// Checks the result of mapping a leaf, and applies it to the model.
fn mapped(features: &Features, model: &mut Model, outcome: Mapped, ipa: Ipa, pa: Pa, level: u8, new: &Attributes) {
    match (outcome, model.at(ipa)) {
        (Mapped::Already(_), Some(old)) => {
            assert!(old.is_mapped_as(pa, new));
            return;
        }
        (Mapped::Replaced(leaf), Some(old)) => {
            assert!(!old.is_mapped_as(pa, new));
            assert_eq!((leaf.address(), leaf.attributes(features)), (old.pa, old.attributes));
        }
        (Mapped::New, None) => {}
        other => panic!("{other:?}"),
    }
    let start = ipa.raw();
    model.update(start..start + span(level), |at, page| *page = Some(Page { pa: pa + (at - start), attributes: *new }));
}

fn map_range(
    guest: &mut Guest,
    model: &mut Model,
    range: Range<u64>,
    pa: Pa,
    largest: u8,
    new: &Attributes,
) -> Result<(), Dry> {
    let ipas = Ipa::new(range.start)..Ipa::new(range.end);
    let largest = Level::new(largest).unwrap();
    let outcome = guest.stage2.map_range(ipas, pa, largest, new, &mut guest.pool);
    let start = range.start;
    let replaced = |at: u64, page: Option<Page>| {
        let pa = pa + (at - start);
        page.is_none_or(|old| !old.is_mapped_as(pa, new)).then_some(Page { pa, attributes: *new })
    };
    // What was mapped before the pages ran out stays, from the start on. The model does not know how far that went.
    let fwb = guest.stage2.features().forced_write_back;
    let is_done = |at: u64, new: &Page| {
        let leaf = guest.walk(Ipa::new(at));
        let says = leaf.map(|leaf| (leaf.output(Ipa::new(at)), leaf.memory(fwb), leaf.shareability()));
        outcome.is_ok() || says == Some((new.pa, new.attributes.memory, new.attributes.shareability))
    };
    model.update(range, |at, page| {
        if let Some(new) = replaced(at, *page).filter(|new| is_done(at, new)) {
            *page = Some(new);
        }
    });
    outcome.map_err(dry)
}

/// Checks that each page that was mapped in the range was reported once, with its last value.
fn check_removed(model: &Model, features: &Features, range: Range<u64>, reported: &mut [twofold_stage2::Leaf]) {
    reported.sort_by_key(|leaf| leaf.ipa);
    let mut end = range.start;
    for leaf in &*reported {
        assert!(leaf.ipa.raw() >= end, "{leaf:?} is outside, or reported twice");
        end = leaf.ipa.raw() + span(leaf.level.raw());
        let page = model.at(leaf.ipa).unwrap_or_else(|| panic!("{leaf:?} was not mapped"));
        assert_eq!((leaf.descriptor.address(), leaf.descriptor.attributes(features)), (page.pa, page.attributes));
    }
    assert!(end <= range.end, "the report ends at {end:#x}");
    assert_eq!(reported.iter().map(|leaf| span(leaf.level.raw())).sum::<u64>(), model.mapped(range));
}

fn write_protect_mask(guest: &Guest, model: &mut Model, before: &Scan, first: Ipa, mask: u64) {
    let end = model.end;
    let outcome = guest.stage2.write_protect_mask(first, mask).map(|pending| drop(pending.complete()));
    // The empty mask selects nothing, but its address must be valid.
    let outside = runs(first.raw(), mask).any(|run| run.end > end);
    assert_eq!(outcome.is_err(), outside, "{outcome:?}");
    for run in runs(first.raw(), mask).filter(|_| !outside) {
        let run = Ipa::new(run.start)..Ipa::new(run.end);
        model.update_mapped(whole(before, &run), forbid_writes);
    }
}

/// The addresses of the selected pages, in runs.
fn runs(first: u64, mask: u64) -> impl Iterator<Item = Range<u64>> {
    let bit = move |number: u32| number < 64 && mask >> number & 1 == 1;
    let starts = (0..64).filter(move |number| bit(*number) && (*number == 0 || !bit(number - 1)));
    starts.map(move |start| {
        let end = (start..=64).find(|number| !bit(*number)).unwrap();
        first + u64::from(start) * KIB_4..first + u64::from(end) * KIB_4
    })
}

fn set_dbm(guest: &Guest, model: &mut Model, before: &Scan, range: &Range<Ipa>) {
    let Some(pages) = pages(model, before, range) else { return };
    let outcome = guest.stage2.set_dbm(range.clone());
    assert_eq!(guest.events(), [], "a TLB that holds less is no harm");
    if !is_hardware_tracked(guest, outcome) {
        return;
    }
    for page in pages {
        model.update_mapped(page, |attributes| attributes.dirty_by_hardware = true);
    }
}

fn set_dbm_clean(guest: &Guest, model: &mut Model, before: &Scan, range: &Range<Ipa>) {
    let Some(pages) = pages(model, before, range) else { return };
    let outcome = guest.stage2.set_dbm_clean(range.clone()).map(|pending| drop(pending.complete()));
    if is_hardware_tracked(guest, outcome) {
        has_become_clean(model, before, range, pages);
    }
}

fn set_dbm_clean_mask(guest: &Guest, model: &mut Model, before: &Scan, first: Ipa, mask: u64) {
    let end = model.end;
    let outside = runs(first.raw(), mask).any(|run| run.end > end);
    let ranges: Vec<_> = runs(first.raw(), mask).map(|run| Ipa::new(run.start)..Ipa::new(run.end)).collect();
    let parts = |range| if outside { Some(vec![]) } else { pages(model, before, range) };
    let Some(parts) = ranges.iter().map(parts).collect::<Option<Vec<_>>>() else { return };
    let outcome = guest.stage2.set_dbm_clean_mask(first, mask).map(|pending| drop(pending.complete()));
    if !guest.stage2.features().hardware_dirty_state || outside {
        return assert!(outcome.is_err());
    }
    assert_eq!(outcome, Ok(()));
    ranges.iter().zip(parts).for_each(|(range, pages)| has_become_clean(model, before, range, pages));
}

/// Hardware tracking (DBM) is set on pages only; a block is write-protected as a whole.
fn has_become_clean(model: &mut Model, before: &Scan, range: &Range<Ipa>, pages: Vec<Range<u64>>) {
    model.update_mapped(whole(before, range), forbid_writes);
    for page in pages {
        model.update_mapped(page, |attributes| attributes.dirty_by_hardware = true);
    }
}

/// Whether DBM was set: never on a CPU without hardware dirty state.
fn is_hardware_tracked(guest: &Guest, outcome: Result<(), Error>) -> bool {
    let records = guest.stage2.features().hardware_dirty_state;
    assert_eq!(outcome, if records { Ok(()) } else { Err(Error::NoDirtyState) });
    records
}

/// The ranges between the model's keys where pages are mapped. `None` if a block and pages are between two keys, as
/// after a split that ran dry.
fn pages(model: &Model, before: &Scan, range: &Range<Ipa>) -> Option<Vec<Range<u64>>> {
    let lines = model.pages.range(range.start.raw()..range.end.raw()).map(|(at, _)| *at);
    let ends = lines.clone().skip(1).chain([range.end.raw()]);
    let mut found = Vec::new();
    for (start, end) in lines.zip(ends) {
        let (pages, blocks): (Vec<_>, Vec<_>) =
            touched(before, &(Ipa::new(start)..Ipa::new(end))).partition(|leaf| leaf.level == 3);
        match (pages.is_empty(), blocks.is_empty()) {
            (false, false) => return None,
            (false, true) => found.push(start..end),
            (true, _) => {}
        }
    }
    Some(found)
}

/// Checks the result of granting access to a leaf, and applies it to the model.
fn relaxed(outcome: Result<Relaxed, Error>, model: &mut Model, before: &Scan, ipa: Ipa, access: Access) {
    let Some(old) = model.at(ipa) else { return assert_eq!(outcome, Err(Error::NotMapped { ipa })) };
    let already = old.attributes.access.covers(access) && old.attributes.accessed;
    assert_eq!(outcome, Ok(if already { Relaxed::Already } else { Relaxed::Widened }));
    model.update_mapped(leaf_of(before, ipa), |attributes| {
        attributes.access = attributes.access.union(access);
        attributes.accessed = true;
    });
}

fn make_young(guest: &Guest, model: &mut Model, before: &Scan, ipa: Ipa) {
    let outcome = guest.stage2.make_young(ipa);
    assert_eq!(guest.events(), [], "an entry without access flag is in no TLB");
    let Some(old) = model.at(ipa) else { return assert_eq!(outcome, Err(Error::NotMapped { ipa })) };
    assert_eq!(outcome, Ok(!old.attributes.accessed));
    model.update_mapped(leaf_of(before, ipa), |attributes| attributes.accessed = true);
}

fn split(guest: &mut Guest, before: &Scan, range: Range<Ipa>, chunk: u64, pages: usize) -> Result<(), Dry> {
    // A chunk takes time even if nothing is mapped in it.
    let chunk = chunk.max(((range.end - range.start) >> 12).next_power_of_two());
    // One page for each level 2 block, counting those that a level 1 block becomes.
    let parts = |leaf: Leaf| {
        let (start, end) = (leaf.ipa.max(range.start), leaf.end().min(range.end));
        1 + if leaf.level == 1 { (end.raw().div_ceil(MIB_2) - start.raw() / MIB_2) as usize } else { 0 }
    };
    let needed: usize = touched(before, &range).filter(|leaf| leaf.level < 3).map(parts).sum();
    let most = if needed <= MOST_SPLIT_PAGES { needed } else { 10 };
    guest.pool.limit = guest.pool.limit.min(most);
    let start = guest.pool.out.len();
    let (mut last, mut most_taken) = (start, 0);
    let between = |pool: &mut platform::Pool, most: usize| {
        let taken = pool.out.len() - last;
        assert!(taken <= most_taken, "{taken} pages were taken, {most_taken} were announced");
        (last, most_taken) = (pool.out.len(), most);
        ControlFlow::Continue(())
    };
    let Split { blocks, done, stopped } = guest.stage2.split(range.clone(), chunk, &mut guest.pool, between).unwrap();

    let after = guest.scan();
    let left = touched(&after, &range).find(|leaf| leaf.level < 3);
    assert_eq!(blocks as usize, guest.pool.out.len() - start, "none was replaced by more than one table");
    assert!(done >= range.start && left.is_none_or(|left| left.end() > done), "{done}: {left:x?}");
    match stopped {
        None => assert_eq!((left, done, blocks), (None, range.end, needed as u64)),
        Some(Stopped::Dry) => {
            assert!(left.is_some() && guest.pool.limit == 0);
            if needed <= MOST_SPLIT_PAGES {
                assert!(pages < needed, "there were as many pages as it takes");
                return Err(Dry);
            }
        }
        Some(Stopped::Asked) => panic!("the callback did not break off"),
    }
    Ok(())
}

fn coalesce(
    guest: &mut Guest,
    model: &mut Model,
    before: &Scan,
    ipa: Ipa,
    level: u8,
    new: &Attributes,
) -> Result<(), Dry> {
    let range = ipa.raw()..ipa.raw() + span(level);
    // The frames that are mapped must be those of the block.
    let mut bases =
        model.pages.range(range.clone()).filter_map(|(at, page)| Some((*page)?.pa.raw() - (at - ipa.raw())));
    let pa = bases.next().map_or(platform::frame(ipa.raw() % (16 * GIB)), Pa::new);
    if !pa.is_aligned(span(level)) || !bases.all(|base| base == pa.raw()) {
        return Ok(());
    }
    let mut reported = Vec::new();
    let dirty = &mut |leaf: twofold_stage2::Leaf| reported.push((leaf.ipa, leaf.level.raw(), leaf.descriptor.raw()));
    let block = Level::new(level).unwrap();
    let outcome = guest.stage2.coalesce(ipa, pa, block, new, &mut guest.pool, dirty);
    let inside = |at: Ipa| range.contains(&at.raw());
    let is_table = before.links.iter().any(|link| (link.ipa, link.level) == (ipa, level));
    match outcome {
        Ok(Coalesced::Done { tables }) => {
            assert!(is_table);
            let gone = before.links.iter().filter(|link| inside(link.ipa) && link.level >= level).count();
            assert_eq!(tables, gone as u64);
            let dirty = before.leaves.iter().filter(|leaf| inside(leaf.ipa));
            let dirty = dirty.filter(|leaf| leaf.dirty_by_hardware() && leaf.access().write);
            reported.sort();
            assert_eq!(reported, dirty.map(|leaf| (leaf.ipa, leaf.level, leaf.raw)).collect::<Vec<_>>());
            let start = range.start;
            model.update(range, |at, page| *page = Some(Page { pa: pa + (at - start), attributes: *new }));
        }
        Ok(Coalesced::Mapped(outcome)) => {
            assert!(!is_table && reported.is_empty());
            mapped(guest.stage2.features(), model, outcome, ipa, pa, level, new);
        }
        Err(Error::NoTablePage { .. }) => return Err(Dry),
        Err(Error::NoLeafAtLevel { .. }) => assert!(guest.stage2.geometry().root_level() > block),
        Err(error) => panic!("{error}"),
    }
    Ok(())
}

/// The only error that a range operation may return.
fn dry(error: Error) -> Dry {
    assert!(matches!(error, Error::NoTablePage { .. }), "{error}");
    Dry
}

fn forbid_writes(attributes: &mut Attributes) {
    attributes.access.write = false;
    attributes.dirty_by_hardware = false;
}

fn is_dirty(attributes: &Attributes) -> bool {
    attributes.dirty_by_hardware && attributes.access.write
}

fn span(level: u8) -> u64 {
    platform::mmu::span(level)
}

fn span_of(leaf: &Leaf) -> Range<u64> {
    leaf.ipa.raw()..leaf.end().raw()
}

fn leaf_of(scan: &Scan, ipa: Ipa) -> Range<u64> {
    span_of(scan.leaves.iter().find(|leaf| leaf.ipa <= ipa && ipa < leaf.end()).unwrap())
}

fn touched(scan: &Scan, range: &Range<Ipa>) -> impl Iterator<Item = Leaf> + use<> {
    let (start, end) = (range.start, range.end);
    let leaves: Vec<Leaf> = scan.leaves.iter().filter(|leaf| leaf.ipa < end && leaf.end() > start).copied().collect();
    leaves.into_iter()
}

/// The range, extended by the blocks that cross its ends.
fn whole(scan: &Scan, range: &Range<Ipa>) -> Range<u64> {
    let start = touched(scan, range).next().map_or(range.start, |leaf| leaf.ipa.min(range.start));
    let end = touched(scan, range).last().map_or(range.end, |leaf| leaf.end().max(range.end));
    start.raw()..end.raw()
}

fn marked(scan: &Scan, range: &Range<Ipa>, is_marked: impl Fn(&Leaf) -> bool) -> Vec<(Ipa, u8)> {
    touched(scan, range).filter(|leaf| is_marked(leaf)).map(|leaf| (leaf.ipa, leaf.level)).collect()
}

fn report(reported: &mut Vec<(Ipa, u8)>, marked: Marked) {
    let level = marked.level.raw();
    assert!(marked.mask != 0);
    reported.extend(marked.leaves(span(level)).map(|ipa| (ipa, level)));
}
