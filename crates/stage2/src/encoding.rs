// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The fields of a leaf, encoded and decoded (Arm ARM DDI 0487K.a, D8.3, D8.4 and D8.6).
//!
//! Invariant: what is decoded is what was encoded, for the same [`Features`] and an access that they can encode
//! ([`Access::check`]).

use crate::granule::Format;
use crate::{Access, Attributes, Descriptor, Execute, Features, Granule, Memory, Pa, Shareability};

/// The attributes of a leaf, as bits.
#[inline(always)] // a call costs a first touch 15 %
pub(crate) const fn encode<G: Granule>(a: &Attributes, features: &Features) -> u64 {
    memory_bits(a.memory, features) << Descriptor::MEMORY_SHIFT
        | permissions(a.access, features)
        | (if matches!(G::FORMAT, Format::Lpa2) {
            0
        } else {
            (a.shareability as u64) << Descriptor::SHAREABILITY_SHIFT
        })
        | (if a.accessed { Descriptor::ACCESSED } else { 0 })
        | (if a.dirty_by_hardware { Descriptor::DIRTY_BY_HARDWARE } else { 0 })
        | (a.software as u64 & 0xf) << Descriptor::SOFTWARE_SHIFT
}

/// The attributes of the leaf with these bits.
pub(crate) const fn decode<G: Granule>(raw: u64, features: &Features) -> Attributes {
    let memory = (raw & Descriptor::MEMORY) >> Descriptor::MEMORY_SHIFT;
    Attributes {
        // An encoding that the engine never writes is read as the type that promises least.
        memory: if memory == memory_bits(Memory::Normal, features) {
            Memory::Normal
        } else if memory == memory_bits(Memory::NonCacheable, features) {
            Memory::NonCacheable
        } else {
            Memory::Device
        },
        shareability: match (raw & Descriptor::SHAREABILITY) >> Descriptor::SHAREABILITY_SHIFT {
            _ if matches!(G::FORMAT, Format::Lpa2) => Shareability::InnerShareable,
            0b00 => Shareability::NonShareable,
            0b11 => Shareability::InnerShareable,
            // 0b01 is reserved. It is read as the widest, so that no coherency is lost if it is written again.
            _ => Shareability::OuterShareable,
        },
        access: Descriptor::<G>::from_raw(raw).access(),
        accessed: Descriptor::<G>::from_raw(raw).is_accessed(),
        dirty_by_hardware: raw & Descriptor::DIRTY_BY_HARDWARE != 0,
        software: ((raw & Descriptor::SOFTWARE) >> Descriptor::SOFTWARE_SHIFT) as u8,
    }
}

/// An address in its place in a descriptor.
#[inline(always)]
pub(crate) const fn place<G: Granule>(address: Pa) -> u64 {
    let raw = address.raw();
    match G::FORMAT {
        Format::Bits48 => raw & Descriptor::<G>::ADDRESS,
        Format::Lpa2 => {
            raw & Descriptor::<G>::ADDRESS & !Descriptor::<G>::TOP_LPA2 | raw >> (50 - 8) & Descriptor::<G>::TOP_LPA2
        }
        Format::Lpa => {
            raw & Descriptor::<G>::ADDRESS & !Descriptor::<G>::TOP_LPA | raw >> (48 - 12) & Descriptor::<G>::TOP_LPA
        }
    }
}

/// The permissions of a leaf with these bits.
pub(crate) const fn access_of(raw: u64) -> Access {
    Access {
        read: raw & Descriptor::READ != 0,
        write: raw & Descriptor::WRITE != 0,
        execute: match (raw & Descriptor::EXECUTE_NEVER) >> Descriptor::EXECUTE_NEVER_SHIFT {
            0b00 => Execute::ALWAYS,
            0b01 => Execute::EL0,
            0b11 => Execute::EL1,
            _ => Execute::NEVER,
        },
    }
}

/// The bits of the leaf `raw` that also allows `access`.
pub(crate) const fn allowing_more(raw: u64, access: Access, features: &Features) -> u64 {
    let data = raw | data_bits(access);
    // The two cases of faults need no decoding; the rest is the general case.
    match access.execute {
        Execute::NEVER => data,
        Execute::ALWAYS => data & !Descriptor::EXECUTE_NEVER,
        _ => (raw & !Descriptor::PERMISSIONS) | permissions(access_of(raw).union(access), features),
    }
}

/// S2AP and XN.
pub(crate) const fn permissions(access: Access, features: &Features) -> u64 {
    data_bits(access) | execute_bits(access.execute, features) << Descriptor::EXECUTE_NEVER_SHIFT
}

/// MemAttr\[3:0\] (Arm ARM DDI 0487K.a, D8.6). With FEAT_S2FWB bit 3 is zero, and 0b110 forces write-back.
pub(crate) const fn memory_bits(memory: Memory, features: &Features) -> u64 {
    match memory {
        Memory::Normal if features.forced_write_back => 0b0110,
        Memory::Normal => 0b1111,
        Memory::NonCacheable => 0b0101,
        Memory::Device => 0b0001,
    }
}

/// S2AP.
const fn data_bits(access: Access) -> u64 {
    (if access.read { Descriptor::READ } else { 0 }) | (if access.write { Descriptor::WRITE } else { 0 })
}

/// XN\[1:0\] (Arm ARM DDI 0487K.a, D8.4). Without FEAT_XNX bit 0 is RES0, and bit 1 denies both levels. So execution at
/// one level only becomes execution at neither, which never allows more than was asked for. [`Access::check`] reports
/// that case.
const fn execute_bits(execute: Execute, features: &Features) -> u64 {
    match execute {
        Execute::ALWAYS => 0b00,
        Execute::EL0 if features.execute_per_el => 0b01,
        Execute::EL1 if features.execute_per_el => 0b11,
        _ => 0b10,
    }
}
