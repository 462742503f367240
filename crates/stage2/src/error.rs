// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The errors of all operations, with the address, the level and the cause.
//!
//! An operation that returns an error leaves valid tables, and can be repeated.

use crate::{Ipa, Level, Pa};

/// Why an operation on translation tables was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Stage 2 of the CPU does not have this granule, or not with FEAT_LPA2 (ID_AA64MMFR0_EL1, TGran4_2, TGran16_2 and
    /// TGran64_2).
    #[error("stage 2 of this CPU does not have the granule of {granule} (ID_AA64MMFR0_EL1)")]
    Granule {
        /// The granule.
        granule: &'static str,
    },
    /// The IPA space has more bits than addresses in descriptors of this granule.
    #[error(
        "an IPA space of {ipa_bits} bits does not fit the granule of {granule}: more than 48 need one with FEAT_LPA2"
    )]
    IpaBitsOfGranule {
        /// The size that was asked for, in bits.
        ipa_bits: u32,
        /// The granule.
        granule: &'static str,
    },
    /// The format of descriptors with FEAT_LPA2 has no shareability: all leaves have that of `VTCR_EL2.SH0`, inner
    /// shareable.
    #[error("with FEAT_LPA2 every leaf is inner shareable")]
    ShareabilityOfLpa2,
    /// The IPA space must have at least 32 bits, and no more than the CPU's physical addresses
    /// (ID_AA64MMFR0_EL1.PARange).
    #[error("an IPA space of {ipa_bits} bits: it has at least 32, and at most {most} on this CPU")]
    IpaBits {
        /// The size that was asked for, in bits.
        ipa_bits: u32,
        /// The most bits that this CPU translates with this granule.
        most: u32,
    },
    /// The geometry was made from the features of another CPU, which has more bits of physical address.
    #[error("the geometry has {bits} bits of physical address, and the CPU {most}: make both from the same features")]
    GeometryOfOtherCpu {
        /// The bits of the geometry.
        bits: u32,
        /// Those of the features.
        most: u32,
    },
    /// The VMID does not fit the CPU's width.
    #[error("VMID {vmid} does not fit in {bits} bits")]
    Vmid {
        /// The VMID that was asked for.
        vmid: u16,
        /// The number of bits that the CPU has.
        bits: u32,
    },
    /// CPUs use all VMIDs that trees share ([`Vmids`](crate::Vmids)).
    #[error("all of the {slots} VMIDs to share are in use: each CPU needs two")]
    NoVmid {
        /// The number of VMIDs.
        slots: usize,
    },
    /// There is no slot for a VMID, or the platform has no VMIDs for trees to share ([`Platform::vmids`](crate::Platform::vmids)).
    #[error("there are no VMIDs to share: the platform has no `Vmids`, or these have no slot")]
    NoSharedVmids,
    /// A feature has a value that the architecture does not have (Arm ARM DDI 0487K.a, D23.2): the engine would clean or zero
    /// too little.
    #[error(
        "no CPU has a `{feature}` of {value}: sizes are powers of two, `DC ZVA` zeroes at most 2048 bytes, VMIDs have at most 16 bits, and FEAT_BBM has levels 0 to 2"
    )]
    Feature {
        /// The field of [`Features`](crate::Features).
        feature: &'static str,
        /// Its value.
        value: u64,
    },
    /// The root table is not aligned to its size, or too small.
    #[error("the root at {root} must be {size} bytes, aligned to its size")]
    Root {
        /// Its first byte.
        root: Pa,
        /// The size it must have, in bytes.
        size: u64,
    },
    /// An address is not aligned to the granule, or to the block to be mapped.
    #[error("{address:#x} is not a multiple of {size:#x}")]
    Misaligned {
        /// The IPA or the PA.
        address: u64,
        /// The alignment that it must have, in bytes.
        size: u64,
    },
    /// Blocks are split in chunks of a power of two, at least a page.
    #[error("a chunk of {size:#x} bytes is no power of two of at least {least:#x}")]
    Chunk {
        /// The size that was asked for, in bytes.
        size: u64,
        /// The size of a page in bytes.
        least: u64,
    },
    /// A range is empty, or ends before it starts.
    #[error("the range {start} to {end} is empty")]
    EmptyRange {
        /// Its first byte.
        start: Ipa,
        /// The byte after its last one.
        end: Ipa,
    },
    /// The address is outside the IPA space.
    #[error("{ipa} is outside the IPA space of {bits} bits")]
    OutsideIpa {
        /// The first address that is outside.
        ipa: Ipa,
        /// The size of the space.
        bits: u32,
    },
    /// The output address is wider than the CPU's physical addresses.
    #[error("{pa} is outside the physical address space of {bits} bits")]
    OutsidePa {
        /// The output address.
        pa: Pa,
        /// The size of the space.
        bits: u32,
    },
    /// Execution was to be allowed at EL0 or EL1 alone, which needs FEAT_XNX.
    #[error("this CPU cannot allow execution at EL0 or EL1 alone (no FEAT_XNX): allow it at both or at neither")]
    ExecuteNeedsXnx,
    /// No leaf exists at that level.
    #[error("level {level} has no leaf with this granule")]
    NoLeafAtLevel {
        /// The level that was asked for.
        level: Level,
    },
    /// A table of smaller mappings is where the block should go. Unmap the range first, or coalesce.
    #[error("a table of smaller mappings is where the level {level} block at {ipa} should go")]
    TableInTheWay {
        /// The block's address.
        ipa: Ipa,
        /// The block's level.
        level: Level,
    },
    /// A block is where a page was asked for. Split it first.
    #[error("a level {level} block maps {ipa}, where a page is needed")]
    BlockInTheWay {
        /// The address.
        ipa: Ipa,
        /// The block's level.
        level: Level,
    },
    /// Leaves of that level make no contiguous groups, or the IPA space is smaller than a group.
    #[error("leaves of level {level} make no contiguous groups with this granule and IPA space")]
    NoGroupAtLevel {
        /// The level that was asked for.
        level: Level,
    },
    /// Hardware was to record writes in a contiguous group: it may record a write in any leaf of the group.
    #[error("a contiguous group cannot have DBM: hardware may record a write in any of its leaves")]
    GroupWithDbm,
    /// Other memory is mapped where a contiguous group should go.
    #[error("the leaf at {ipa} maps other memory than the contiguous group of level {level} would")]
    NotOneGroup {
        /// The address of the leaf.
        ipa: Ipa,
        /// The group's level.
        level: Level,
    },
    /// Hardware was to record writes, which needs FEAT_HAFDBS with dirty state.
    #[error("this CPU records no writes in its tables (FEAT_HAFDBS without dirty state)")]
    NoDirtyState,
    /// The source of table pages is empty. The changes up to here stay. Repeat the operation with more pages.
    #[error("no table page for level {level} at {ipa}")]
    NoTablePage {
        /// The address that needed the page.
        ipa: Ipa,
        /// The level of the missing table.
        level: Level,
    },
    /// The grant is for other memory, addresses or tables.
    #[error("{size:#x} bytes at {ipa} are not granted: lend memory for them, or open a window")]
    NotGranted {
        /// The first address.
        ipa: Ipa,
        /// The number of bytes that were to be mapped.
        size: u64,
    },
    /// Lent memory was withdrawn since the grant was made. It may be this memory. Nothing was changed at this address.
    /// Get the memory's place and the grant again.
    #[error("the memory for {ipa} may have been withdrawn since it was granted: get the grant again")]
    Withdrawn {
        /// The first address that was not mapped.
        ipa: Ipa,
    },
    /// Nothing is mapped there.
    #[error("{ipa} is not mapped")]
    NotMapped {
        /// The address.
        ipa: Ipa,
    },
}
