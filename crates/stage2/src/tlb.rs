// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TLB maintenance: operands, and the sequence around them.
//!
//! After an entry was downgraded or removed, nothing that it gave access to is reused before these steps are complete
//! (Arm ARM DDI 0487K.a, D8.16):
//!
//! 1. `DSB ISHST`: table walks see the changed entry.
//! 2. TLBI of the stage-2 entries, by IPA or by range.
//! 3. `DSB ISH`: step 2 is complete, so no walk can combine a stage-1 entry with the old stage-2 entry any more.
//! 4. `TLBI VMALLE1IS`: the combined stage-1-and-2 entries, which a TLBI by IPA does not remove.
//! 5. `DSB ISH`, `ISB`.
//!
//! If the whole VMID is invalidated, `VMALLS12E1IS` replaces steps 2 to 4.
//!
//! A change that grants access is invalidated on this CPU only. An old entry on another CPU causes at most one more
//! fault, whose handler invalidates there.

use crate::granule::Format;
use crate::platform::{Domain, Platform, Tlbi};
use crate::primitive;
use crate::{Granule, Ipa, IpaRange, Level, Stage2};

/// The changed entries: the addresses from the first to the last, and what the entries were.
///
/// Its fields are whole words, since it is moved often.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Changed {
    start: Ipa,
    /// If it is not above `start`, nothing was changed.
    end: Ipa,
    /// Bit `n` is set if level `n` leaves were changed.
    levels: u64,
    /// Whether tables were removed too, so that walk entries must be invalidated.
    tables: bool,
}

impl Changed {
    /// Leaves of one level.
    #[inline(always)]
    pub(crate) fn leaves_of(range: IpaRange, level: Level) -> Self {
        Self { start: range.start, end: range.end, levels: 1 << level.raw(), tables: false }
    }

    /// Leaves of any level.
    pub(crate) fn anything_in(range: IpaRange) -> Self {
        Self { start: range.start, end: range.end, levels: 0xf, tables: false }
    }

    /// Adds leaves of one level. An empty range adds nothing.
    #[inline(always)]
    pub(crate) fn leaves(&mut self, range: IpaRange, level: Level) {
        self.join(Self::leaves_of(range, level));
    }

    /// Adds a removed table.
    pub(crate) fn table(&mut self, range: IpaRange) {
        self.join(Self { start: range.start, end: range.end, levels: 0, tables: true });
    }

    /// Adds another change.
    #[inline(always)]
    pub(crate) fn join(&mut self, other: Self) {
        if self.is_empty() {
            *self = other;
        } else if !other.is_empty() {
            self.start = self.start.min(other.start);
            self.end = self.end.max(other.end);
            self.levels |= other.levels;
            self.tables |= other.tables;
        }
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    /// The scope to invalidate.
    pub(crate) fn scope(&self) -> Scope {
        let one = self.levels.is_power_of_two() && !self.tables;
        let level = if one { Level::new(self.levels.trailing_zeros() as u8) } else { None };
        Scope { range: self.start..self.end, level, tables: self.tables }
    }
}

/// The addresses to invalidate.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    pub(crate) range: IpaRange,
    /// The level of the leaves, if they are all of one level and no table was removed.
    pub(crate) level: Option<Level>,
    /// Whether tables were removed too, so that walk entries must be invalidated.
    pub(crate) tables: bool,
}

/// The changed entries of a table, from the first to the last, counted from the first entry of the visit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    start: usize,
    end: usize,
}

impl Span {
    #[inline(always)]
    pub(crate) fn add(&mut self, at: usize) {
        self.add_mask(at, 1);
    }

    /// Adds the entries whose bits in `mask` are set: bit 0 is entry `at`. Calls come in ascending order, and `mask` is
    /// not 0.
    #[inline(always)]
    pub(crate) fn add_mask(&mut self, at: usize, mask: u32) {
        if self.end == 0 {
            self.start = at + mask.trailing_zeros() as usize;
        }
        self.end = at + mask.ilog2() as usize + 1;
    }

    /// The addresses of the entries: leaves of `1 << shift` bytes, of which entry 0 maps `first`.
    #[inline(always)]
    pub(crate) fn addresses(self, first: Ipa, shift: u32) -> IpaRange {
        first + ((self.start as u64) << shift)..first + ((self.end as u64) << shift)
    }
}

/// TLB maintenance for one guest's tables.
pub(crate) struct Tlb<'a, P: Platform, G: Granule>(pub(crate) &'a Stage2<P, G>);

/// The most leaves that are invalidated one by one, without FEAT_TLBIRANGE. For more leaves, the broadcasts cost more
/// than the guest's TLB refills.
const MOST_SINGLES: u64 = 64;
/// The most pages that are invalidated by range, with FEAT_TLBIRANGE: 8 GiB, what one operand of the largest scale
/// covers.
const MOST_RANGED_PAGES: u64 = 32 << 16;

impl<P: Platform, G: Granule> Tlb<'_, P, G> {
    /// Invalidates the entries of `scope` on all CPUs, by address, or by VMID if that is less work.
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn invalidate(&self, scope: &Scope) {
        primitive::step!(());
        self.invalidate_scope(scope);
    }

    fn invalidate_scope(&self, scope: &Scope) {
        let granule = self.0.geometry().granule();
        let step = scope.level.map_or(granule.size(), |level| granule.span(level));
        let level = self.known(scope.level);
        let singles = (scope.range.end - scope.range.start) / step;
        let pages = (scope.range.end - scope.range.start) >> granule.shift();
        let p = self.0.platform();
        let has_ranges = self.0.features().tlbi_range;
        let one_by_one = singles == 1 || (!has_ranges && singles <= MOST_SINGLES);
        let by_range = has_ranges && pages <= MOST_RANGED_PAGES;
        if !(one_by_one || by_range) {
            return self.invalidate_vmid();
        }
        self.by_ipa(|| {
            if one_by_one {
                let operation = if scope.tables { Tlbi::Ipas2E1Is } else { Tlbi::Ipas2Le1Is };
                let mut operand = single_operand(scope.range.start, self.hint(level), granule);
                for _ in 0..singles {
                    primitive::tlbi(p, operation, operand);
                    // The operand holds the address in units of 4 KiB.
                    operand += step >> 12;
                }
                return;
            }
            let ranged = if scope.tables { Tlbi::Ripas2E1Is } else { Tlbi::Ripas2Le1Is };
            for part in range_parts(scope.range.start, pages, granule) {
                match part {
                    Part::Single(ipa) => self.single(ipa, level, scope.tables),
                    Part::Range { start, scale, num } => {
                        primitive::tlbi(p, ranged, range_operand(start, scale, num, level, granule));
                    }
                }
            }
        });
    }

    /// Invalidates all entries of this VMID on all CPUs.
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn invalidate_vmid(&self) {
        primitive::step!(());
        self.whole_vmid();
    }

    fn whole_vmid(&self) {
        self.as_current_vmid(|| {
            primitive::dsb(self.0.platform(), Domain::IshSt);
            primitive::tlbi(self.0.platform(), Tlbi::VmallS12E1Is, 0);
            primitive::dsb(self.0.platform(), Domain::Ish);
            primitive::isb(self.0.platform());
        });
    }

    /// Invalidates the leaf at `ipa` on this CPU, after it was granted more access. Without a level, also the walk
    /// entries that lead to `ipa`.
    #[cfg_attr(feature = "checked", track_caller)]
    pub(crate) fn invalidate_local(&self, ipa: Ipa, level: Option<Level>) {
        primitive::step!(());
        self.leaf_on_this_cpu(ipa, level);
    }

    fn leaf_on_this_cpu(&self, ipa: Ipa, level: Option<Level>) {
        let level = self.known(level);
        self.as_current_vmid(|| {
            let p = self.0.platform();
            primitive::dsb(p, Domain::NshSt);
            primitive::tlbi(p, Tlbi::Ipas2E1, single_operand(ipa, self.hint(level), G::default()));
            primitive::dsb(p, Domain::Nsh);
            primitive::tlbi(p, Tlbi::VmallE1, 0);
            primitive::dsb(p, Domain::Nsh);
            primitive::isb(p);
        });
    }

    /// Invalidates the stage-1 and combined entries of this VMID on this CPU.
    pub(crate) fn invalidate_stage1_local(&self) {
        self.as_current_vmid(|| {
            primitive::tlbi(self.0.platform(), Tlbi::VmallE1, 0);
            primitive::dsb(self.0.platform(), Domain::Nsh);
            primitive::isb(self.0.platform());
        });
    }

    /// Steps 1 to 5 around the invalidations by IPA in `stage2`.
    fn by_ipa(&self, stage2: impl FnOnce()) {
        self.as_current_vmid(|| {
            let p = self.0.platform();
            primitive::dsb(p, Domain::IshSt);
            stage2();
            primitive::dsb(p, Domain::Ish);
            primitive::tlbi(p, Tlbi::VmallE1Is, 0);
            primitive::dsb(p, Domain::Ish);
            primitive::isb(p);
        });
    }

    fn single(&self, ipa: Ipa, level: Option<Level>, tables: bool) {
        let operation = if tables { Tlbi::Ipas2E1Is } else { Tlbi::Ipas2Le1Is };
        primitive::tlbi(self.0.platform(), operation, single_operand(ipa, self.hint(level), G::default()));
    }

    /// The level of a changed leaf, if TLBs hold that leaf at its own level only. They may hold a block that was split
    /// (module `resize`), and a hint would miss it.
    fn known(&self, level: Option<Level>) -> Option<Level> {
        level.filter(|_| !self.0.live_splits.are_noted())
    }

    /// The level hint that may be given. FEAT_TTL has one for level 0 only with FEAT_LPA2, without which no leaf is there.
    fn hint(&self, level: Option<Level>) -> Option<Level> {
        level.filter(|_| self.0.features().tlbi_level_hint)
    }

    /// Runs `body` with this guest's VMID in `VTTBR_EL2`, since a TLBI applies to the VMID there. Then restores the
    /// register. A guest whose VMID was given to another one has no entry in any TLB.
    fn as_current_vmid(&self, body: impl FnOnce()) {
        let Some(in_use) = self.0.vmid_to_flush() else { return };
        let saved = self.0.platform().vttbr();
        if saved == in_use.vttbr() {
            body();
        } else {
            primitive::load_vttbr(self.0.platform(), in_use.vttbr());
            primitive::isb(self.0.platform());
            body();
            primitive::load_vttbr(self.0.platform(), saved);
            primitive::isb(self.0.platform());
        }
        self.0.release_vmid(in_use);
    }
}

/// The operand of a TLBI by IPA (`TLBI IPAS2E1IS`; Arm ARM DDI 0487K.a, C5.5).
///
/// IPA\[47:12\] is in bits 35 to 0, for any granule, and IPA\[51:48\] in bits 39 to 36. With a level hint, TTL is in bits 47
/// to 44: the granule (0b01 for 4 KiB, 0b10 for 16 KiB, 0b11 for 64 KiB), then the level.
pub const fn single_operand<G: Granule>(ipa: Ipa, hint: Option<Level>, granule: G) -> u64 {
    let _ = granule;
    let ttl = match hint {
        Some(level) => tg::<G>() << 2 | level.raw() as u64,
        None => 0,
    };
    let most = if matches!(G::FORMAT, Format::Bits48) { 0xf_ffff_ffff } else { 0xff_ffff_ffff };
    ttl << 44 | (ipa.raw() >> 12) & most
}

/// The operand of a TLBI by range (`TLBI RIPAS2E1IS`; Arm ARM DDI 0487K.a, C5.5), for `(num + 1) << (5 * scale + 1)`
/// pages from `start`.
///
/// BaseADDR, in units of the granule, is in bits 36 to 0; TTL in 38 to 37; NUM in 43 to 39; SCALE in 45 to 44; TG in 47
/// to 46. With FEAT_LPA2 the unit is 64 KiB, so `start` is aligned to that.
pub const fn range_operand<G: Granule>(start: Ipa, scale: u32, num: u32, hint: Option<Level>, granule: G) -> u64 {
    let _ = granule;
    let ttl = match hint {
        Some(level) => level.raw() as u64,
        None => 0,
    };
    let base = start.raw() >> base_shift::<G>();
    tg::<G>() << 46 | (scale as u64) << 44 | (num as u64) << 39 | ttl << 37 | base
}

/// The granule in TG, and in the upper half of TTL.
const fn tg<G: Granule>() -> u64 {
    match G::SHIFT {
        12 => 0b01,
        14 => 0b10,
        _ => 0b11,
    }
}

/// log2 of the unit of BaseADDR.
const fn base_shift<G: Granule>() -> u32 {
    if matches!(G::FORMAT, Format::Lpa2) { 16 } else { G::SHIFT }
}

/// One TLBI of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Single(Ipa),
    Range { start: Ipa, scale: u32, num: u32 },
}

/// Cuts `pages` from `start` into operands, the largest scale first. A single page that is left gets its own operand. With
/// FEAT_LPA2, so does each page before the first multiple of 64 KiB.
fn range_parts<G: Granule>(start: Ipa, pages: u64, granule: G) -> impl Iterator<Item = Part> {
    let (mut at, mut left) = (start, pages);
    core::iter::from_fn(move || {
        let part_pages;
        let part;
        if left == 0 {
            return None;
        } else if left == 1 || !at.is_aligned(1 << base_shift::<G>()) {
            (part, part_pages) = (Part::Single(at), 1);
        } else {
            let scale = ((left.ilog2() - 1) / 5).min(3);
            let units = (left >> (5 * scale + 1)).min(32);
            part = Part::Range { start: at, scale, num: units as u32 - 1 };
            part_pages = units << (5 * scale + 1);
        }
        at = at + (part_pages << granule.shift());
        left -= part_pages;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Kib4, Kib4Lpa2, Kib16, Kib16Lpa2, Kib64};

    fn span(start: u64, end: u64) -> IpaRange {
        Ipa::new(start << 12)..Ipa::new(end << 12)
    }

    /// A joined change covers what each change needs, in either order, whichever of the two ends later.
    #[test]
    fn joined_changes_need_what_each_needs() {
        let page = Changed::leaves_of(span(8, 9), Level::L3);
        let block = Changed::leaves_of(span(0, 512), Level::L2);
        let mut table = Changed::default();
        table.table(span(512, 1024));
        for (a, b, range, level, tables) in [
            (page, page, span(8, 9), Some(Level::L3), false),
            (page, block, span(0, 512), None, false),
            (page, table, span(8, 1024), None, true),
            (page, Changed::default(), span(8, 9), Some(Level::L3), false),
            (page, Changed::leaves_of(span(20, 20), Level::L1), span(8, 9), Some(Level::L3), false),
            (Changed::anything_in(span(1, 2)), block, span(0, 512), None, false),
        ] {
            for (mut one, other) in [(a, b), (b, a)] {
                one.join(other);
                let scope = one.scope();
                assert_eq!((scope.range, scope.level, scope.tables), (range.clone(), level, tables));
            }
        }
        assert!(Changed::default().is_empty() && !page.is_empty());
    }

    #[test]
    fn a_span_is_from_the_first_entry_to_the_last() {
        let mut entries = Span::default();
        entries.add_mask(8, 0b0110_1000);
        entries.add(40);
        entries.add_mask(48, 0b11);
        assert_eq!(entries.addresses(Ipa::new(0x10_0000), 12), Ipa::new(0x10_b000)..Ipa::new(0x13_2000));
        assert!(Span::default().addresses(Ipa::new(0x10_0000), 12).is_empty());
    }

    /// The start and the number of pages that a CPU takes a range operand for, written from the manual and not from the
    /// encoder.
    fn decode_range(operand: u64) -> (u64, u64) {
        assert_eq!(operand >> 46 & 3, 1, "TG: 4 KiB");
        let base = (operand & ((1 << 37) - 1)) << 12;
        let (num, scale) = (operand >> 39 & 0x1f, operand >> 44 & 3);
        (base, (num + 1) << (5 * scale + 1))
    }

    proptest! {
        #[test]
        fn a_single_operand_holds_ipa_and_hint(page in 0u64..1 << 36, level in 1u8..=3) {
            let ipa = Ipa::new(page << 12);
            prop_assert_eq!(single_operand(ipa, None, Kib4), page);
            let hinted = single_operand(ipa, Level::new(level), Kib4);
            prop_assert_eq!(hinted & ((1 << 36) - 1), page);
            prop_assert_eq!(hinted >> 44, 0b0100 | u64::from(level));
            prop_assert_eq!(hinted >> 36 & 0xff, 0);
        }

        #[test]
        fn range_parts_cover_each_page_once(start in 0u64..1 << 30, pages in 1u64..=MOST_RANGED_PAGES) {
            let mut next = start << 12;
            for part in range_parts(Ipa::new(start << 12), pages, Kib4) {
                let (base, count) = match part {
                    Part::Single(ipa) => (ipa.raw(), 1),
                    Part::Range { start, scale, num } => {
                        decode_range(range_operand(start, scale, num, None, Kib4))
                    }
                };
                prop_assert_eq!(base, next);
                next = base + (count << 12);
            }
            prop_assert_eq!(next, (start + pages) << 12);
        }

        #[test]
        fn a_range_takes_few_operands(pages in 1u64..=MOST_RANGED_PAGES) {
            prop_assert!(range_parts(Ipa::new(0), pages, Kib4).count() <= 5);
        }
    }

    /// NUM has five bits, so an operand of the largest scale covers 32 units and no more.
    #[test]
    fn more_pages_than_one_operand_covers_take_two() {
        let start = Ipa::new(1 << 40);
        let parts = range_parts(start, MOST_RANGED_PAGES + (1 << 16), Kib4);
        let second = start + (MOST_RANGED_PAGES << 12);
        assert!(parts.eq([Part::Range { start, scale: 3, num: 31 }, Part::Range { start: second, scale: 3, num: 0 }]));
    }

    /// A wrong level hint would leave entries of another level in TLBs.
    #[test]
    fn changes_that_are_joined_go_by_the_levels_of_all_of_them_in_any_order() {
        let at = |index: u64| Ipa::new(index << 21)..Ipa::new((index + 1) << 21);
        let page = Changed::leaves_of(Ipa::new(1 << 21)..Ipa::new((1 << 21) + (1 << 12)), Level::L3);
        let (block, below) = (Changed::leaves_of(at(5), Level::L2), Changed::leaves_of(at(0), Level::L2));
        let mut table = Changed::default();
        table.table(at(3));
        let level = |changes: &[Changed]| {
            let mut all = Changed::default();
            changes.iter().for_each(|change| all.join(*change));
            let Scope { range, level, tables } = all.scope();
            (range.start.raw() >> 21, range.end.raw() >> 21, level, tables)
        };
        assert_eq!(level(&[block, below]), (0, 6, Some(Level::L2), false));
        for changes in [[page, block], [block, page]] {
            assert_eq!(level(&changes), (1, 6, None, false));
        }
        for changes in [[page, below], [below, page]] {
            assert_eq!(level(&changes), (0, 1, None, false), "the last page ends in the block's neighbour");
        }
        for changes in [[block, table], [table, block], [block, Changed::default()], [Changed::default(), table]] {
            assert_eq!(level(&changes).3, changes.iter().any(|change| change.tables));
        }
    }

    /// Arm ARM DDI 0487K.a, C5.5: TTL and TG name the granule. With FEAT_LPA2 BaseADDR is in units of 64 KiB.
    #[test]
    fn operands_of_every_granule() {
        let at = Ipa::new(0x000e_4567_8000_0000);
        assert_eq!(single_operand(at, Some(Level::L3), Kib64), 0xf0e4_5678_0000);
        assert_eq!(single_operand(at, Some(Level::L2), Kib16Lpa2), 0xa0e4_5678_0000);
        assert_eq!(single_operand(at, Some(Level::L0), Kib4Lpa2), 0x40e4_5678_0000);
        assert_eq!(single_operand(Ipa::new(0x001f_ffff_ffff_ffff), None, Kib4Lpa2), 0xff_ffff_ffff, "52 bits");
        assert_eq!(single_operand(Ipa::new(0x4000_4000), Some(Level::L3), Kib16), 0xb000_0004_0004);
        assert_eq!(range_operand(Ipa::new(0x4000_4000), 1, 7, Some(Level::L3), Kib16), 0x93e0_0001_0001);
        assert_eq!(range_operand(Ipa::new(0x4001_0000), 0, 0, None, Kib64), 0xc000_0000_4001);
        assert_eq!(range_operand(Ipa::new(0x4001_0000), 0, 0, None, Kib16Lpa2), 0x8000_0000_4001);
        assert_eq!(range_operand(Ipa::new(0x4001_0000), 0, 0, None, Kib4Lpa2), 0x4000_0000_4001);
    }

    /// With FEAT_LPA2, the pages before the first multiple of 64 KiB get operands of their own.
    #[test]
    fn a_range_with_lpa2_starts_at_64_kib() {
        let parts = |start: u64, pages| range_parts(Ipa::new(start), pages, Kib16Lpa2).collect::<Vec<_>>();
        let single = |at: u64| Part::Single(Ipa::new(at));
        let range = |start: u64, scale, num| Part::Range { start: Ipa::new(start), scale, num };
        assert_eq!(parts(0x1_8000, 7), [single(0x1_8000), single(0x1_c000), range(0x2_0000, 0, 1), single(0x3_0000)]);
        assert_eq!(parts(0x1_8000, 2), [single(0x1_8000), single(0x1_c000)]);
        assert_eq!(parts(0x2_0000, 67), [range(0x2_0000, 1, 0), range(0x12_0000, 0, 0), single(0x12_8000)]);
    }

    proptest! {
        #[test]
        fn parts_cover_each_page_once_with_lpa2(start in 0u64..1 << 30, pages in 1u64..=MOST_RANGED_PAGES) {
            let mut next = start << 12;
            for part in range_parts(Ipa::new(start << 12), pages, Kib4Lpa2) {
                let (base, count) = match part {
                    Part::Single(ipa) => (ipa.raw(), 1),
                    Part::Range { start, scale, num } => (start.raw(), u64::from(num + 1) << (5 * scale + 1)),
                };
                prop_assert_eq!(base, next);
                prop_assert!(count == 1 || base.is_multiple_of(64 << 10), "{:#x}", base);
                next = base + (count << 12);
            }
            prop_assert_eq!(next, (start + pages) << 12);
        }
    }

    #[test]
    fn operands_spelled_out() {
        assert_eq!(single_operand(Ipa::new(0x4020_1000), None, Kib4), 0x4_0201);
        assert_eq!(single_operand(Ipa::new(0x4020_0000), Some(Level::L2), Kib4), 0x0000_6000_0004_0200);
        assert_eq!(single_operand(Ipa::new(0x4020_1000), Some(Level::L3), Kib4), 0x0000_7000_0004_0201);
        // Bits above the 48 of an IPA do not belong to the page.
        assert_eq!(single_operand(Ipa::new(0xffff_0000_4020_1000), None, Kib4), 0x4_0201);
        // 512 pages from 0x40000000: scale 1, num 7, level 3.
        let operand = range_operand(Ipa::new(0x4000_0000), 1, 7, Some(Level::L3), Kib4);
        assert_eq!(operand, 1 << 46 | 1 << 44 | 7 << 39 | 3 << 37 | 0x4_0000);
        assert_eq!(decode_range(operand), (0x4000_0000, 512));
    }
}
