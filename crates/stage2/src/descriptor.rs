// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One entry of a translation table: 64 bits that are nothing, a table, or a leaf (Arm ARM D8.3).
//!
//! Reading attributes back is the inverse of writing them, for the same [`Features`].

use core::fmt;

use crate::{Features, Level, Pa};

/// The bits of a translation table entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Descriptor(u64);

/// What a leaf lets the guest do and how memory behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Memory type.
    pub memory: Memory,
    /// What the guest may do.
    pub access: Access,
    /// The access flag; where it is clear, the first access faults unless hardware sets it.
    pub accessed: bool,
    /// Dirty bit modifier: a write to an entry that may not be written makes hardware grant and record it
    /// (FEAT_HAFDBS, `VTCR_EL2.HD`). Without `access.write` this is the state "writable, clean".
    pub dirty_by_hardware: bool,
    /// Four bits that hardware ignores, for the owner of the mapping. Only the low four are kept.
    pub software: u8,
}

/// The permissions of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Loads.
    pub read: bool,
    /// Stores.
    pub write: bool,
    /// Instruction fetches, at EL0 and at EL1.
    pub execute: bool,
}

impl Access {
    /// Nothing.
    pub const NONE: Self = Self { read: false, write: false, execute: false };
    /// Loads.
    pub const READ: Self = Self { read: true, ..Self::NONE };
    /// Loads and stores.
    pub const READ_WRITE: Self = Self { write: true, ..Self::READ };
    /// All.
    pub const ALL: Self = Self { execute: true, ..Self::READ_WRITE };

    /// Whether everything that `other` allows is allowed.
    pub const fn covers(self, other: Self) -> bool {
        (self.read || !other.read) && (self.write || !other.write) && (self.execute || !other.execute)
    }

    /// What both allow.
    pub const fn intersection(self, other: Self) -> Self {
        Self { read: self.read && other.read, write: self.write && other.write, execute: self.execute && other.execute }
    }

    /// What either allows.
    pub const fn union(self, other: Self) -> Self {
        Self { read: self.read || other.read, write: self.write || other.write, execute: self.execute || other.execute }
    }
}

/// The memory type of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Normal, write-back cacheable, inner shareable: RAM.
    Normal,
    /// Normal, not cacheable.
    NonCacheable,
    /// Device-nGnRE: registers.
    Device,
}

impl Attributes {
    /// RAM with this access, flagged as accessed.
    pub const fn ram(access: Access) -> Self {
        Self { memory: Memory::Normal, access, accessed: true, dirty_by_hardware: false, software: 0 }
    }

    /// Device registers, loads and stores, never executable.
    pub const fn device() -> Self {
        Self {
            memory: Memory::Device,
            access: Access::READ_WRITE,
            accessed: true,
            dirty_by_hardware: false,
            software: 0,
        }
    }
}

impl Descriptor {
    /// The entry that maps nothing.
    pub const INVALID: Self = Self(0);

    pub(crate) const VALID: u64 = 1 << 0;
    /// Set in a table's entry, and in a page's at level 3; clear in a block's.
    const TABLE_OR_PAGE: u64 = 1 << 1;
    const MEMORY_SHIFT: u32 = 2;
    const MEMORY: u64 = 0xf << Self::MEMORY_SHIFT;
    const READ: u64 = 1 << 6;
    pub(crate) const WRITE: u64 = 1 << 7;
    const INNER_SHAREABLE: u64 = 3 << 8;
    pub(crate) const ACCESSED: u64 = 1 << 10;
    pub(crate) const DIRTY_BY_HARDWARE: u64 = 1 << 51;
    /// XN\[1\]: without FEAT_XNX the only bit there is; with it, and XN\[0\] clear, it denies both levels.
    const EXECUTE_NEVER: u64 = 1 << 54;
    const SOFTWARE_SHIFT: u32 = 55;
    const SOFTWARE: u64 = 0xf << Self::SOFTWARE_SHIFT;
    /// Output address or next table, bits 47 to 12.
    const ADDRESS: u64 = 0x0000_ffff_ffff_f000;
    /// The bits that say what a guest may do; a change of these alone needs no break.
    const PERMISSIONS: u64 = Self::READ | Self::WRITE | Self::EXECUTE_NEVER;

    /// The entry with these bits.
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The bits.
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// An entry that points to the table at `table`.
    pub const fn table(table: Pa) -> Self {
        Self((table.raw() & Self::ADDRESS) | Self::TABLE_OR_PAGE | Self::VALID)
    }

    /// A page (level 3) or block (levels 1 and 2) that maps `output`, which has to be aligned for `level`.
    #[inline]
    pub const fn leaf(output: Pa, level: Level, attributes: &Attributes, features: &Features) -> Self {
        let page = if level.raw() == 3 { Self::TABLE_OR_PAGE } else { 0 };
        Self((output.raw() & Self::ADDRESS) | encode(attributes, features) | page | Self::VALID)
    }

    /// Whether hardware looks at the entry at all.
    pub const fn is_valid(self) -> bool {
        self.0 & Self::VALID != 0
    }

    /// Whether the entry, found at `level`, points to a table. At level 3 the same bits are a page.
    pub const fn is_table(self, level: Level) -> bool {
        level.raw() < 3 && self.0 & (Self::TABLE_OR_PAGE | Self::VALID) == Self::TABLE_OR_PAGE | Self::VALID
    }

    /// Whether the entry, found at `level`, maps memory.
    pub const fn is_leaf(self, level: Level) -> bool {
        self.is_valid() && !self.is_table(level)
    }

    /// The output address of a leaf, or the address of the table.
    pub const fn address(self) -> Pa {
        Pa::new(self.0 & Self::ADDRESS)
    }

    /// The attributes of a leaf.
    pub const fn attributes(self, features: &Features) -> Attributes {
        decode(self.0, features)
    }

    /// What a leaf lets the guest do.
    pub const fn access(self) -> Access {
        Access {
            read: self.0 & Self::READ != 0,
            write: self.0 & Self::WRITE != 0,
            execute: self.0 & Self::EXECUTE_NEVER == 0,
        }
    }

    /// The same leaf with another access.
    pub const fn with_access(self, access: Access) -> Self {
        Self((self.0 & !Self::PERMISSIONS) | permissions(access))
    }

    /// The same leaf with its access flag set.
    pub const fn with_accessed(self) -> Self {
        Self(self.0 | Self::ACCESSED)
    }

    /// Whether hardware recorded a write: DBM is set and the entry has become writable.
    pub const fn is_hardware_dirty(self) -> bool {
        let both = Self::DIRTY_BY_HARDWARE | Self::WRITE;
        self.0 & both == both
    }

    /// An entry that somebody is changing: invalid for hardware, and nobody else's to change.
    pub(crate) const BUSY: Self = Self(Self::TABLE_OR_PAGE);

    /// Whether hardware records writes in this leaf.
    pub(crate) const fn is_armed(self) -> bool {
        let both = Self::DIRTY_BY_HARDWARE | Self::VALID;
        self.0 & both == both
    }

    /// The same entry without these bits.
    pub(crate) const fn without(self, bits: u64) -> Self {
        Self(self.0 & !bits)
    }

    /// The bits that say which type of memory it is.
    pub(crate) const fn memory_bits(self) -> u64 {
        self.0 & Self::MEMORY
    }

    /// Whether the two differ by nothing but what hardware records: accesses, and writes where it is to.
    pub(crate) const fn differs_by_records_only(self, other: Self) -> bool {
        let records = if self.is_armed() { Self::ACCESSED | Self::WRITE } else { Self::ACCESSED };
        (self.0 ^ other.0) & !records == 0
    }

    /// The first leaf of `level` of those that map what this block maps.
    pub(crate) const fn part(self, level: Level) -> Self {
        Self(if level.raw() == 3 { self.0 | Self::TABLE_OR_PAGE } else { self.0 })
    }

    /// The same leaf for the memory `bytes` further on.
    pub(crate) const fn advanced(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

/// MemAttr\[3:0\] (Arm ARM D8.6). With FEAT_S2FWB bit 3 is zero, and 0b110 forces write-back.
const fn memory_bits(memory: Memory, features: &Features) -> u64 {
    match memory {
        Memory::Normal if features.forced_write_back => 0b0110,
        Memory::Normal => 0b1111,
        Memory::NonCacheable => 0b0101,
        Memory::Device => 0b0001,
    }
}

const fn permissions(access: Access) -> u64 {
    (if access.read { Descriptor::READ } else { 0 })
        | (if access.write { Descriptor::WRITE } else { 0 })
        | (if access.execute { 0 } else { Descriptor::EXECUTE_NEVER })
}

const fn encode(a: &Attributes, features: &Features) -> u64 {
    memory_bits(a.memory, features) << Descriptor::MEMORY_SHIFT
        | permissions(a.access)
        | Descriptor::INNER_SHAREABLE
        | (if a.accessed { Descriptor::ACCESSED } else { 0 })
        | (if a.dirty_by_hardware { Descriptor::DIRTY_BY_HARDWARE } else { 0 })
        | (a.software as u64 & 0xf) << Descriptor::SOFTWARE_SHIFT
}

const fn decode(raw: u64, features: &Features) -> Attributes {
    let memory = (raw & Descriptor::MEMORY) >> Descriptor::MEMORY_SHIFT;
    Attributes {
        memory: if memory == memory_bits(Memory::Normal, features) {
            Memory::Normal
        } else if memory == memory_bits(Memory::NonCacheable, features) {
            Memory::NonCacheable
        } else {
            Memory::Device
        },
        access: Descriptor(raw).access(),
        accessed: raw & Descriptor::ACCESSED != 0,
        dirty_by_hardware: raw & Descriptor::DIRTY_BY_HARDWARE != 0,
        software: ((raw & Descriptor::SOFTWARE) >> Descriptor::SOFTWARE_SHIFT) as u8,
    }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Descriptor({:#x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_attributes() -> impl Strategy<Value = Attributes> {
        let memory = prop_oneof![Just(Memory::Normal), Just(Memory::NonCacheable), Just(Memory::Device)];
        let bits = any::<(bool, bool, bool, bool, bool)>();
        (memory, bits, 0u8..16).prop_map(|(memory, (read, write, execute, accessed, dbm), software)| {
            let access = Access { read, write, execute };
            Attributes { memory, access, accessed, dirty_by_hardware: dbm, software }
        })
    }

    proptest! {
        #[test]
        fn reading_is_the_inverse_of_writing(
            attributes in any_attributes(), fwb: bool, page in 0u64..1 << 36, level in 1u8..=3,
        ) {
            let features = Features { forced_write_back: fwb, ..Features::NONE };
            let level = Level::new(level).unwrap();
            let pa = Pa::new(page << 12);
            let leaf = Descriptor::leaf(pa, level, &attributes, &features);
            prop_assert!(leaf.is_leaf(level) && !leaf.is_table(level));
            prop_assert_eq!(leaf.address(), pa);
            prop_assert_eq!(leaf.attributes(&features), attributes);
        }

        #[test]
        fn changing_access_changes_nothing_else(attributes in any_attributes(), read: bool, write: bool, execute: bool) {
            let features = Features::NONE;
            let access = Access { read, write, execute };
            let leaf = Descriptor::leaf(Pa::new(0x1000), Level::L3, &attributes, &features).with_access(access);
            prop_assert_eq!(leaf.attributes(&features), Attributes { access, ..attributes });
        }
    }

    /// Spelled out by hand from Arm ARM D8.3, so that a slip in the constants shows.
    #[test]
    fn bits_as_the_manual_has_them() {
        let plain = Features::NONE;
        let fwb = Features { forced_write_back: true, ..plain };
        let all = Attributes::ram(Access::ALL);
        let pa = Pa::new(0x8060_0000);
        assert_eq!(Descriptor::leaf(pa, Level::L3, &all, &plain).raw(), 0x0000_0000_8060_07ff);
        assert_eq!(Descriptor::leaf(pa, Level::L2, &all, &plain).raw(), 0x0000_0000_8060_07fd);
        assert_eq!(Descriptor::leaf(pa, Level::L2, &all, &fwb).raw(), 0x0000_0000_8060_07d9);
        let no_execute = Attributes::ram(Access::READ);
        assert_eq!(Descriptor::leaf(pa, Level::L3, &no_execute, &fwb).raw(), 0x0040_0000_8060_075b);
        assert_eq!(Descriptor::leaf(pa, Level::L3, &Attributes::device(), &fwb).raw(), 0x0040_0000_8060_07c7);
        let dbm = Attributes { dirty_by_hardware: true, software: 0b1001, ..no_execute };
        assert_eq!(Descriptor::leaf(pa, Level::L3, &dbm, &fwb).raw(), 0x04c8_0000_8060_075b);
        assert_eq!(Descriptor::table(pa).raw(), 0x8060_0003);
    }

    #[test]
    fn a_table_encoding_at_level_3_is_a_page() {
        let entry = Descriptor::table(Pa::new(0x1000));
        assert!(entry.is_table(Level::L2) && !entry.is_leaf(Level::L2));
        assert!(!entry.is_table(Level::L3) && entry.is_leaf(Level::L3));
    }
}
