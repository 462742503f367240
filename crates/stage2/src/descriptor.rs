// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One entry of a translation table: 64 bits that are invalid, a table, or a leaf (Arm ARM DDI 0487K.a, D8.3).
//!
//! Module `encoding` has the fields of a leaf.

use core::fmt;
use core::marker::PhantomData;

use crate::encoding::{access_of, allowing_more, decode, encode, memory_bits, permissions, place};
use crate::granule::Format;
use crate::{Access, Attributes, Features, Granule, Kib4, Level, Memory, Pa};

/// The bits of a translation table entry, in the format of a granule.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Descriptor<G: Granule = Kib4>(u64, PhantomData<G>);

/// The fields that have the same place in every format.
impl Descriptor {
    /// The entry is valid.
    pub(crate) const VALID: u64 = 1 << 0;
    /// Set in an entry for a table, and for a page at level 3. Clear in an entry for a block.
    pub(crate) const TABLE_OR_PAGE: u64 = 1 << 1;
    pub(crate) const MEMORY_SHIFT: u32 = 2;
    pub(crate) const MEMORY: u64 = 0xf << Self::MEMORY_SHIFT;
    /// S2AP\[0\].
    pub(crate) const READ: u64 = 1 << 6;
    /// S2AP\[1\]. Hardware may set it if [`DIRTY_BY_HARDWARE`](Self::DIRTY_BY_HARDWARE) is set.
    pub(crate) const WRITE: u64 = 1 << 7;
    pub(crate) const SHAREABILITY_SHIFT: u32 = 8;
    pub(crate) const SHAREABILITY: u64 = 3 << Self::SHAREABILITY_SHIFT;
    /// The access flag.
    pub(crate) const ACCESSED: u64 = 1 << 10;
    /// DBM.
    pub(crate) const DIRTY_BY_HARDWARE: u64 = 1 << 51;
    /// The contiguous hint.
    pub(crate) const CONTIGUOUS: u64 = 1 << 52;
    pub(crate) const EXECUTE_NEVER_SHIFT: u32 = 53;
    pub(crate) const EXECUTE_NEVER: u64 = 3 << Self::EXECUTE_NEVER_SHIFT;
    pub(crate) const SOFTWARE_SHIFT: u32 = 55;
    pub(crate) const SOFTWARE: u64 = 0xf << Self::SOFTWARE_SHIFT;
    /// The guest's permissions. A change of these bits alone needs no break-before-make.
    pub(crate) const PERMISSIONS: u64 = Self::READ | Self::WRITE | Self::EXECUTE_NEVER;
}

impl<G: Granule> Descriptor<G> {
    /// The entry that maps nothing.
    pub const INVALID: Self = Self::from_raw(0);

    /// The bits of the output address, or of the next table's.
    pub(crate) const ADDRESS: u64 = match G::FORMAT {
        Format::Bits48 => 0x0000_ffff_ffff_ffff & !(G::SIZE - 1),
        Format::Lpa2 => 0x0003_ffff_ffff_ffff & !(G::SIZE - 1) | Self::TOP_LPA2,
        Format::Lpa => 0x0000_ffff_ffff_f000,
    };
    /// Address bits 51 and 50 with FEAT_LPA2. They take the place of the shareability.
    pub(crate) const TOP_LPA2: u64 = 3 << 8;
    /// Address bits 51 to 48 with the 64 KiB granule. They are zero without FEAT_LPA.
    pub(crate) const TOP_LPA: u64 = 0xf << 12;

    /// The entry with these bits.
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw, PhantomData)
    }

    /// The bits.
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// An entry that points to the table at `table`.
    pub const fn table(table: Pa) -> Self {
        Self::from_raw(place::<G>(table) | Descriptor::TABLE_OR_PAGE | Descriptor::VALID)
    }

    /// A page (level 3) or block (levels 1 and 2) that maps `output`. `output` must be aligned for `level`.
    #[inline(always)] // a call costs a first touch 10 %
    pub const fn leaf(output: Pa, level: Level, attributes: &Attributes, features: &Features) -> Self {
        let page = if level.raw() == 3 { Descriptor::TABLE_OR_PAGE } else { 0 };
        Self::from_raw(place::<G>(output) | encode::<G>(attributes, features) | page | Descriptor::VALID)
    }

    /// Whether the entry is valid, so that hardware uses it.
    pub const fn is_valid(self) -> bool {
        self.0 & Descriptor::VALID != 0
    }

    /// Whether the entry, in a table of `level`, points to a table. At level 3 the same bits are a page.
    pub const fn is_table(self, level: Level) -> bool {
        level.raw() < 3
            && self.0 & (Descriptor::TABLE_OR_PAGE | Descriptor::VALID) == Descriptor::TABLE_OR_PAGE | Descriptor::VALID
    }

    /// Whether the entry, in a table of `level`, maps memory.
    pub const fn is_leaf(self, level: Level) -> bool {
        self.is_valid() && !self.is_table(level)
    }

    /// The output address of a leaf, or the address of a table.
    pub const fn address(self) -> Pa {
        Pa::new(match G::FORMAT {
            Format::Bits48 => self.0 & Self::ADDRESS,
            Format::Lpa2 => self.0 & Self::ADDRESS & !Self::TOP_LPA2 | (self.0 & Self::TOP_LPA2) << (50 - 8),
            Format::Lpa => self.0 & Self::ADDRESS & !Self::TOP_LPA | (self.0 & Self::TOP_LPA) << (48 - 12),
        })
    }

    /// The attributes of a leaf.
    pub const fn attributes(self, features: &Features) -> Attributes {
        decode::<G>(self.0, features)
    }

    /// The permissions of a leaf. This needs no [`Features`]: the engine's encodings for a CPU without FEAT_XNX mean
    /// the same on a CPU with it.
    #[inline(always)]
    pub const fn access(self) -> Access {
        access_of(self.0)
    }

    /// The same leaf with other permissions.
    #[inline(always)]
    pub const fn with_access(self, access: Access, features: &Features) -> Self {
        Self::from_raw((self.0 & !Descriptor::PERMISSIONS) | permissions(access, features))
    }

    /// The same leaf, which also allows `access`.
    #[inline(always)]
    pub const fn with_more(self, access: Access, features: &Features) -> Self {
        Self::from_raw(allowing_more(self.0, access, features))
    }

    /// Whether a leaf has write permission now (S2AP\[1\]). A clean leaf with DBM has not: hardware grants it on the
    /// first write.
    pub const fn is_writable(self) -> bool {
        self.0 & Descriptor::WRITE != 0
    }

    /// Whether the access flag is set.
    pub const fn is_accessed(self) -> bool {
        self.0 & Descriptor::ACCESSED != 0
    }

    /// The same leaf with its access flag set.
    pub const fn with_accessed(self) -> Self {
        Self::from_raw(self.0 | Descriptor::ACCESSED)
    }

    /// Whether the leaf is hardware-tracked: it is valid and DBM is set, so hardware may write to the entry to record a
    /// guest's write. Hardware does so only if `VTCR_EL2.HD` is set.
    pub const fn is_hardware_tracked(self) -> bool {
        let both = Descriptor::VALID | Descriptor::DIRTY_BY_HARDWARE;
        self.0 & both == both
    }

    /// The same leaf with DBM set.
    pub(crate) const fn with_dirty_by_hardware(self) -> Self {
        Self::from_raw(self.0 | Descriptor::DIRTY_BY_HARDWARE)
    }

    /// Whether hardware recorded a write: DBM and S2AP\[1\] are both set.
    pub const fn is_hardware_dirty(self) -> bool {
        let both = Descriptor::DIRTY_BY_HARDWARE | Descriptor::WRITE;
        self.0 & both == both
    }

    /// Whether the leaf belongs to a contiguous group ([`Contiguous`](crate::Contiguous)).
    pub const fn is_contiguous(self) -> bool {
        let both = Descriptor::VALID | Descriptor::CONTIGUOUS;
        G::GROUPS && self.0 & both == both
    }

    /// The same leaf with the contiguous hint.
    pub(crate) const fn with_contiguous(self) -> Self {
        Self::from_raw(self.0 | Descriptor::CONTIGUOUS)
    }

    /// Whether a leaf of a group was broken, and keeps its content until it is made again (module `group`).
    pub(crate) const fn is_broken_of_group(self) -> bool {
        let both = Descriptor::VALID | Descriptor::CONTIGUOUS;
        G::GROUPS && self.0 & both == Descriptor::CONTIGUOUS
    }

    /// A busy entry: invalid for hardware, and reserved for the CPU that is changing it.
    pub(crate) const BUSY: Self = Self::from_raw(Descriptor::TABLE_OR_PAGE);

    /// Whether the entry is busy.
    #[inline(always)]
    pub(crate) const fn is_busy(self) -> bool {
        self.0 == Self::BUSY.0 || self.is_broken_of_group()
    }

    /// A stale entry: it was removed, and the flush of that may not be complete. A CPU that maps here flushes first. So
    /// an invalidation lies between break and make, even if different CPUs do them (Arm ARM DDI 0487K.a, D8.16.1).
    pub(crate) const STALE: Self = Self::from_raw(1 << 2);

    /// A stale entry of a removal that is counted until it is flushed (`Stage2::pending_removals`). A CPU that maps here
    /// flushes only while one is.
    pub(crate) const STALE_COUNTED: Self = Self::from_raw(1 << 2 | 1 << 3);

    /// Whether the entry maps nothing and is not busy. It may be stale.
    #[inline(always)]
    pub(crate) const fn is_vacant(self) -> bool {
        self.0 & !Self::STALE_COUNTED.0 == 0
    }

    /// The same entry without these bits.
    pub(crate) const fn without(self, bits: u64) -> Self {
        Self::from_raw(self.0 & !bits)
    }

    /// The bits of memory type and shareability. With FEAT_LPA2 all entries have the shareability of `VTCR_EL2.SH0`.
    pub(crate) const fn memory_bits(self) -> u64 {
        let shareability = if matches!(G::FORMAT, Format::Lpa2) { 0 } else { Descriptor::SHAREABILITY };
        self.0 & (Descriptor::MEMORY | shareability)
    }

    /// Whether a leaf is normal cacheable memory.
    pub(crate) const fn is_normal_memory(self, features: &Features) -> bool {
        self.is_of(Memory::Normal, features)
    }

    /// Whether the leaf's memory has to be cleaned when the leaf is removed (module `cache`): the guest's accesses may
    /// go past the caches, and the caches may hold lines of the memory.
    pub(crate) const fn leaves_lines(self, features: &Features) -> bool {
        self.is_of(Memory::NonCacheable, features)
            || !features.forced_write_back && self.is_of(Memory::Normal, features)
    }

    /// The [memory types](Self::memory_type) of leaves that [leave lines](Self::leaves_lines), for a search of many leaves.
    pub(crate) const fn types_that_leave_lines(features: &Features) -> [u64; 2] {
        let other = if features.forced_write_back { Memory::NonCacheable } else { Memory::Normal };
        [
            memory_bits(Memory::NonCacheable, features) << Descriptor::MEMORY_SHIFT,
            memory_bits(other, features) << Descriptor::MEMORY_SHIFT,
        ]
    }

    /// The bits of the memory type.
    pub(crate) const fn memory_type(self) -> u64 {
        self.0 & Descriptor::MEMORY
    }

    const fn is_of(self, memory: Memory, features: &Features) -> bool {
        self.0 & Descriptor::MEMORY == memory_bits(memory, features) << Descriptor::MEMORY_SHIFT
    }

    /// Whether this leaf maps the same output address as `other`, as the same kind of memory. What it allows may differ.
    pub(crate) const fn maps_as(self, other: Self) -> bool {
        let bits = Self::ADDRESS | Descriptor::MEMORY | Descriptor::SHAREABILITY;
        (self.0 ^ other.0) & (bits | Descriptor::TABLE_OR_PAGE | Descriptor::VALID) == 0
    }

    /// Whether both have the same memory type.
    pub(crate) const fn has_memory_of(self, other: Self) -> bool {
        (self.0 ^ other.0) & Descriptor::MEMORY == 0
    }

    /// Whether the two differ only by what hardware records: the access flag, and with DBM also S2AP\[1\].
    pub(crate) const fn differs_by_records_only(self, other: Self) -> bool {
        let records =
            if self.is_hardware_tracked() { Descriptor::ACCESSED | Descriptor::WRITE } else { Descriptor::ACCESSED };
        (self.0 ^ other.0) & !records == 0
    }

    /// The first of the leaves of `level` that together map what this block maps.
    pub(crate) const fn part(self, level: Level) -> Self {
        Self::from_raw(if level.raw() == 3 { self.0 | Descriptor::TABLE_OR_PAGE } else { self.0 })
    }

    /// The same leaf for an output address that is `bytes` higher.
    #[inline(always)]
    pub(crate) const fn advanced(self, bytes: u64) -> Self {
        if G::IS_PLAIN {
            return Self::from_raw(self.0.wrapping_add(bytes));
        }
        // An address may grow out of one part of its field into the other.
        let output = Pa::new(self.address().raw().wrapping_add(bytes));
        Self::from_raw(self.0 & !Self::ADDRESS | place::<G>(output))
    }

    /// Whether the output address may grow by up to `bytes` within the lower part of its field: then the descriptor grows by
    /// as much.
    pub(crate) const fn advances_plainly(self, bytes: u64) -> bool {
        let lower = match G::FORMAT {
            Format::Bits48 | Format::Lpa => 48,
            Format::Lpa2 => 50,
        };
        (self.address().raw() % (1 << lower)).saturating_add(bytes) <= 1 << lower
    }
}

impl<G: Granule> fmt::Debug for Descriptor<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Descriptor({:#x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Contiguous, Execute, Kib4Lpa2, Kib16, Kib16Lpa2, Kib64, Shareability};

    fn any_access() -> impl Strategy<Value = Access> {
        any::<(bool, bool, bool, bool)>().prop_map(|(read, write, el0, el1)| Access {
            read,
            write,
            execute: Execute { el0, el1 },
        })
    }

    fn any_attributes() -> impl Strategy<Value = Attributes> {
        let memory = prop_oneof![Just(Memory::Normal), Just(Memory::NonCacheable), Just(Memory::Device)];
        let shareability = prop_oneof![
            Just(Shareability::NonShareable),
            Just(Shareability::OuterShareable),
            Just(Shareability::InnerShareable),
        ];
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

    fn any_features() -> impl Strategy<Value = Features> {
        any::<(bool, bool)>().prop_map(|(forced_write_back, execute_per_el)| Features {
            forced_write_back,
            execute_per_el,
            ..Features::NONE
        })
    }

    /// The access that a leaf on a CPU with these features allows if it is encoded from `access`.
    fn sayable(access: Access, features: &Features) -> Access {
        match access.check(features) {
            Ok(()) => access,
            Err(_) => Access { execute: Execute::NEVER, ..access },
        }
    }

    proptest! {
        #[test]
        fn reading_is_the_inverse_of_writing(
            attributes in any_attributes(), features in any_features(), page in 0u64..1 << 36, level in 1u8..=3,
        ) {
            let level = Level::new(level).unwrap();
            let pa = Pa::new(page << 12);
            let leaf = <Descriptor>::leaf(pa, level, &attributes, &features);
            prop_assert!(leaf.is_leaf(level) && !leaf.is_table(level));
            prop_assert_eq!(leaf.address(), pa);
            let access = sayable(attributes.access, &features);
            prop_assert_eq!(leaf.attributes(&features), Attributes { access, ..attributes });
        }

        #[test]
        fn changing_access_changes_nothing_else(
            attributes in any_attributes(), access in any_access(), features in any_features(),
        ) {
            let leaf = <Descriptor>::leaf(Pa::new(0x1000), Level::L3, &attributes, &features);
            let changed = leaf.with_access(access, &features);
            let access = sayable(access, &features);
            prop_assert_eq!(changed.attributes(&features), Attributes { access, ..attributes });
            prop_assert_eq!((changed.raw() ^ leaf.raw()) & !Descriptor::PERMISSIONS, 0);
        }

        #[test]
        fn more_access_is_the_union(
            attributes in any_attributes(), more in any_access(), features in any_features(),
        ) {
            let leaf = <Descriptor>::leaf(Pa::new(0x1000), Level::L3, &attributes, &features);
            let expected = leaf.with_access(leaf.access().union(more), &features);
            prop_assert_eq!(leaf.with_more(more, &features), expected);
            prop_assert!(leaf.access().union(more).covers(expected.access()));
        }

        #[test]
        fn one_bit_is_asked_for_and_changed(raw: u64) {
            let entry = <Descriptor>::from_raw(raw);
            prop_assert_eq!(entry.is_writable(), raw >> 7 & 1 == 1);
            prop_assert_eq!(entry.is_accessed(), raw >> 10 & 1 == 1);
            prop_assert_eq!(entry.with_accessed().raw(), raw | 1 << 10);
            prop_assert_eq!(entry.is_hardware_tracked(), raw & 1 == 1 && raw >> 51 & 1 == 1);
            prop_assert_eq!(entry.is_hardware_dirty(), raw >> 7 & 1 == 1 && raw >> 51 & 1 == 1);
            prop_assert_eq!(entry.memory_bits(), raw & 0x33c, "MemAttr and SH");
            prop_assert_eq!(Descriptor::<Kib4Lpa2>::from_raw(raw).memory_bits(), raw & 0x3c, "MemAttr alone");
        }
    }

    /// Written by hand from Arm ARM DDI 0487K.a, D8.3, so that a wrong constant is found.
    #[test]
    fn bits_as_the_manual_has_them() {
        let plain = Features::NONE;
        let fwb = Features { forced_write_back: true, ..plain };
        let all = Attributes::ram(Access::ALL);
        let pa = Pa::new(0x8060_0000);
        assert_eq!(<Descriptor>::leaf(pa, Level::L3, &all, &plain).raw(), 0x0000_0000_8060_07ff);
        assert_eq!(<Descriptor>::leaf(pa, Level::L2, &all, &plain).raw(), 0x0000_0000_8060_07fd);
        assert_eq!(<Descriptor>::leaf(pa, Level::L2, &all, &fwb).raw(), 0x0000_0000_8060_07d9);
        let no_execute = Attributes::ram(Access::READ);
        assert_eq!(<Descriptor>::leaf(pa, Level::L3, &no_execute, &fwb).raw(), 0x0040_0000_8060_075b);
        assert_eq!(<Descriptor>::leaf(pa, Level::L3, &Attributes::device(), &fwb).raw(), 0x0040_0000_8060_07c7);
        let dbm = Attributes { dirty_by_hardware: true, software: 0b1001, ..no_execute };
        assert_eq!(<Descriptor>::leaf(pa, Level::L3, &dbm, &fwb).raw(), 0x04c8_0000_8060_075b);
        let software = Attributes { software: 0xff, ..all };
        assert_eq!(<Descriptor>::leaf(pa, Level::L3, &software, &fwb).raw(), 0x0780_0000_8060_07db, "four bits");
        assert_eq!(<Descriptor>::table(pa).raw(), 0x8060_0003);
        assert_eq!(<Descriptor>::types_that_leave_lines(&plain), [0b0101 << 2, 0b1111 << 2]);
        assert_eq!(<Descriptor>::types_that_leave_lines(&fwb), [0b0101 << 2; 2], "cacheable memory leaves none");
    }

    /// Bit 52 is ignored in tables without groups. In tables with them, it marks the leaves of a group, and without VALID a
    /// leaf that a CPU is changing.
    #[test]
    fn the_contiguous_hint_counts_only_in_tables_with_groups() {
        fn seen<G: Granule>(raw: u64) -> [bool; 3] {
            let entry = Descriptor::<G>::from_raw(raw);
            [entry.is_contiguous(), entry.is_broken_of_group(), entry.is_busy()]
        }
        let (grouped, broken) = (0x0010_0000_8060_07ff, 0x0010_0000_8060_07fe);
        assert_eq!([grouped, broken].map(seen::<Contiguous>), [[true, false, false], [false, true, true]]);
        assert_eq!([grouped, broken].map(seen::<Kib4>), [[false; 3]; 2]);
        assert_eq!(seen::<Contiguous>(0x8060_07ff), [false; 3], "a leaf of its own");
    }

    /// Arm ARM DDI 0487K.a, D8.3: with FEAT_LPA2, bits 9 and 8 are address bits 51 and 50. With the 64 KiB granule, bits 15
    /// to 12 are address bits 51 to 48.
    #[test]
    fn addresses_of_52_bits_as_the_manual_has_them() {
        let (features, all) = (Features::NONE, Attributes::ram(Access::ALL));
        let pa = Pa::new(0x000e_4567_8000_0000);
        let lpa2 = Descriptor::<Kib4Lpa2>::leaf(pa, Level::L3, &all, &features);
        assert_eq!((lpa2.raw(), lpa2.address()), (0x0002_4567_8000_07ff, pa));
        assert_eq!(Descriptor::<Kib16Lpa2>::table(pa).raw(), 0x0002_4567_8000_0303);
        let low = Descriptor::<Kib16Lpa2>::leaf(Pa::new(0x8000_0000), Level::L3, &all, &features);
        assert_eq!((low.raw(), low.address().raw()), (0x8000_04ff, 0x8000_0000), "no shareability");
        assert_eq!(low.attributes(&features), all);
        let lpa = Descriptor::<Kib64>::leaf(pa, Level::L3, &all, &features);
        assert_eq!((lpa.raw(), lpa.address()), (0x0000_4567_8000_e7ff, pa));
        assert_eq!(Descriptor::<Kib64>::table(pa).raw(), 0x0000_4567_8000_e003);
        // A plain addition carries into bit 48, or bit 50, of the address at the end of the last page below it.
        for multiple in 1..=3 {
            let lpa = Descriptor::<Kib64>::leaf(Pa::new((multiple << 48) - (64 << 10)), Level::L3, &all, &features);
            assert_eq!([1, 2].map(|pages| lpa.advances_plainly(pages << 16)), [true, false]);
            let lpa2 = Descriptor::<Kib4Lpa2>::leaf(Pa::new((multiple << 50) - (4 << 10)), Level::L3, &all, &features);
            assert_eq!([1, 2].map(|pages| lpa2.advances_plainly(pages << 12)), [true, false]);
        }
        assert_eq!(Descriptor::<Kib16>::from_raw(u64::MAX).address().raw(), 0x0000_ffff_ffff_c000);
    }

    proptest! {
        /// An address is found again, and the other fields keep out of its bits.
        #[test]
        fn addresses_of_every_format(page: u64, bytes in 0u64..1 << 40, attributes in any_attributes()) {
            fn check<G: Granule>(raw: u64, bytes: u64, bits: u32, attributes: &Attributes) -> Result<(), TestCaseError> {
                let page = |raw: u64| Pa::new(raw & ((1 << bits) - 1) & !(G::SIZE - 1));
                let (pa, step) = (page(raw), bytes & !(G::SIZE - 1));
                let leaf = Descriptor::<G>::leaf(pa, Level::L3, attributes, &Features::NONE);
                prop_assert_eq!(leaf.address(), pa);
                prop_assert_eq!(Descriptor::<G>::table(pa).address(), pa);
                let shareability = match G::FORMAT {
                    Format::Lpa2 => Shareability::InnerShareable,
                    _ => attributes.shareability,
                };
                let read = leaf.attributes(&Features::NONE);
                prop_assert_eq!((read.memory, read.shareability), (attributes.memory, shareability));
                if pa.raw() + step < 1 << bits {
                    let advanced = Descriptor::<G>::leaf(pa + step, Level::L3, attributes, &Features::NONE);
                    prop_assert_eq!(leaf.advanced(step), advanced);
                    if leaf.advances_plainly(step + 1) {
                        prop_assert_eq!(leaf.raw() + step, advanced.raw());
                    }
                }
                Ok(())
            }
            check::<Kib4>(page, bytes, 48, &attributes)?;
            check::<Kib4Lpa2>(page, bytes, 52, &attributes)?;
            check::<Kib16>(page, bytes, 48, &attributes)?;
            check::<Kib16Lpa2>(page, bytes, 52, &attributes)?;
            check::<Kib64>(page, bytes, 52, &attributes)?;
            // Just below where an address grows out of one part of its field into the other.
            check::<Kib4Lpa2>((1 << 50) - 4096, bytes, 52, &attributes)?;
            check::<Kib64>((1 << 48) - 65536, bytes, 52, &attributes)?;
        }
    }

    /// XN is bits 54 and 53.
    #[test]
    fn execute_never_as_the_manual_has_it() {
        let plain = Features::NONE;
        let xnx = Features { execute_per_el: true, ..plain };
        for (execute, raw, raw_without) in [
            (Execute::ALWAYS, 0x0000_0000_8060_07ff, 0x0000_0000_8060_07ff),
            (Execute::EL0, 0x0020_0000_8060_07ff, 0x0040_0000_8060_07ff),
            (Execute::NEVER, 0x0040_0000_8060_07ff, 0x0040_0000_8060_07ff),
            (Execute::EL1, 0x0060_0000_8060_07ff, 0x0040_0000_8060_07ff),
        ] {
            let attributes = Attributes::ram(Access { execute, ..Access::READ_WRITE });
            let leaf = |features| <Descriptor>::leaf(Pa::new(0x8060_0000), Level::L3, &attributes, features);
            assert_eq!(leaf(&xnx).raw(), raw, "{execute:?}");
            assert_eq!(leaf(&plain).raw(), raw_without, "{execute:?}");
            assert_eq!(leaf(&xnx).access(), attributes.access);
        }
    }

    /// SH is bits 9 and 8; 0b01 is reserved.
    #[test]
    fn shareability_as_the_manual_has_it() {
        let ram = Attributes::ram(Access::ALL);
        for (shareability, raw) in [
            (Shareability::NonShareable, 0x4ff),
            (Shareability::OuterShareable, 0x6ff),
            (Shareability::InnerShareable, 0x7ff),
        ] {
            let attributes = Attributes { shareability, ..ram };
            assert_eq!(<Descriptor>::leaf(Pa::new(0), Level::L3, &attributes, &Features::NONE).raw(), raw);
        }
        let reserved = <Descriptor>::from_raw(0x5ff).attributes(&Features::NONE);
        assert_eq!(reserved, Attributes { shareability: Shareability::OuterShareable, ..ram });
    }

    /// The 16 values of MemAttr: the engine's own encodings are read back, and all others are read as Device.
    #[test]
    fn a_memory_type_that_is_not_written_reads_as_device() {
        for (forced_write_back, normal) in [(false, 0b1111), (true, 0b0110)] {
            let features = Features { forced_write_back, ..Features::NONE };
            for bits in 0..16 {
                let expected = match bits {
                    0b0101 => Memory::NonCacheable,
                    bits if bits == normal => Memory::Normal,
                    _ => Memory::Device,
                };
                let read = <Descriptor>::from_raw(0x703 | bits << 2).attributes(&features).memory;
                assert_eq!(read, expected, "MemAttr {bits:#06b}, FWB {forced_write_back}");
            }
        }
    }

    #[test]
    fn no_bit_is_in_two_fields() {
        let fields = [
            (Descriptor::VALID, 1),
            (Descriptor::TABLE_OR_PAGE, 1),
            (Descriptor::MEMORY, 4),
            (Descriptor::READ, 1),
            (Descriptor::WRITE, 1),
            (Descriptor::SHAREABILITY, 2),
            (Descriptor::ACCESSED, 1),
            (<Descriptor>::ADDRESS, 36),
            (Descriptor::DIRTY_BY_HARDWARE, 1),
            (Descriptor::EXECUTE_NEVER, 2),
            (Descriptor::SOFTWARE, 4),
        ];
        assert!(fields.iter().all(|(mask, bits)| mask.count_ones() == *bits));
        // Bits in no field: 63 to 59, 52 (contiguous), 50 to 48, 11.
        assert_eq!(fields.iter().fold(0, |all, (mask, _)| all ^ mask), !0xf817_0000_0000_0800);
        assert_eq!(fields.iter().fold(0, |all, (mask, _)| all | mask), !0xf817_0000_0000_0800);
    }

    /// Bits beside a field do not change its value.
    #[test]
    fn fields_keep_apart_from_their_neighbours() {
        let all = <Descriptor>::from_raw(u64::MAX);
        assert_eq!(all.address(), Pa::new(0x0000_ffff_ffff_f000));
        assert_eq!(all.attributes(&Features::NONE).software, 0xf);
    }

    /// Hardware sets the access flag of any leaf, and S2AP[1] of a leaf with DBM.
    #[test]
    fn records_are_what_hardware_sets() {
        let leaf = |raw: u64| <Descriptor>::from_raw(0x4000_0043 | raw);
        let tracked = 1 << 51;
        assert!(leaf(0).differs_by_records_only(leaf(0)));
        assert!(leaf(0).differs_by_records_only(leaf(1 << 10)));
        assert!(!leaf(0).differs_by_records_only(leaf(1 << 7)));
        assert!(leaf(tracked).differs_by_records_only(leaf(tracked | 1 << 10 | 1 << 7)));
        assert!(!leaf(tracked).differs_by_records_only(leaf(tracked | 1 << 12)));
    }

    #[test]
    fn a_table_encoding_at_level_3_is_a_page() {
        let entry = <Descriptor>::table(Pa::new(0x1000));
        assert!(entry.is_table(Level::L2) && !entry.is_leaf(Level::L2));
        assert!(!entry.is_table(Level::L3) && entry.is_leaf(Level::L3));
    }
}
