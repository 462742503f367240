// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One request: what its header says, and the checks that come before a disk sees it.
//!
//! Invariant: an [`Operation`] is inside the disk, changes nothing of a read-only disk, and its chain has exactly its
//! data: for a read or a write, `sectors` sectors.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::chain::Chain;
use super::super::next::{Fault, Stop};
use super::{DiskConfig, SECTOR};
use crate::ram::{GuestRam, RamError};

/// The name of a request between device and disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag {
    pub(super) slot: u8,
    pub(super) serial: u64,
}

/// What a disk is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read sectors, and [store](super::Block::store) them.
    Read {
        /// The first.
        sector: u64,
        /// How many.
        sectors: u32,
    },
    /// [Fetch](super::Block::fetch) sectors, and write them.
    Write {
        /// The first.
        sector: u64,
        /// How many.
        sectors: u32,
        /// It is complete only when it is stable: the driver sends no flushes.
        is_durable: bool,
    },
    /// Make stable what was complete before.
    Flush,
    /// The content of sectors is no longer needed. They may then read as anything.
    Discard {
        /// The first.
        sector: u64,
        /// How many.
        sectors: u32,
    },
    /// Sectors become zero.
    WriteZeroes {
        /// The first.
        sector: u64,
        /// How many.
        sectors: u32,
        /// Their place on the disk may be given up.
        may_unmap: bool,
        /// As for a write.
        is_durable: bool,
    },
}

/// What a chain asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Work for the disk.
    Disk(Operation),
    /// The disk's serial number.
    Identify,
    /// It fails, with this status.
    Fails(u8),
}

/// Status bytes.
pub(super) mod outcome {
    pub const OK: u8 = 0;
    pub const IO_ERROR: u8 = 1;
    pub const UNSUPPORTED: u8 = 2;
}

/// Features of a disk.
pub(super) mod feature {
    pub const SEG_MAX: u64 = 1 << 2;
    pub const RO: u64 = 1 << 5;
    pub const BLK_SIZE: u64 = 1 << 6;
    pub const FLUSH: u64 = 1 << 9;
    pub const DISCARD: u64 = 1 << 13;
    pub const WRITE_ZEROES: u64 = 1 << 14;
}

/// The most sectors of one discard or of zeroes: 2 GiB.
pub(super) const RANGE_MAX: u32 = 1 << 22;
/// Bytes of a serial number.
const ID: u32 = 20;
const HEADER: u32 = size_of::<Header>() as u32;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    kind: U32,
    reserved: U32,
    sector: U64,
}

/// The data of a discard or of zeroes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Range {
    sector: U64,
    sectors: U32,
    flags: U32,
}

mod kind {
    pub(super) const IN: u32 = 0;
    pub(super) const OUT: u32 = 1;
    pub(super) const FLUSH: u32 = 4;
    pub(super) const GET_ID: u32 = 8;
    pub(super) const DISCARD: u32 = 11;
    pub(super) const WRITE_ZEROES: u32 = 13;
}

/// A range's flag: the place may be given up.
const UNMAP: u32 = 1;

impl Request {
    /// Reads what `chain` asks for. The driver accepted `features`.
    pub fn read_from(chain: &Chain, ram: &impl GuestRam, disk: DiskConfig, features: u64) -> Result<Self, Stop> {
        let (readable, writable) = (chain.readable(), chain.writable());
        if readable < HEADER || writable == 0 {
            return Err(Fault::Short { readable, writable }.into());
        }
        match Self::parse(chain, ram, disk, features) {
            Ok(request) => Ok(request),
            Err(RamError::Absent(address)) => Err(Stop::Absent(address)),
            // The status byte is elsewhere, so the guest can learn that this request failed.
            Err(RamError::NotRam(_) | RamError::ReadOnly(_)) => Ok(Self::Fails(outcome::IO_ERROR)),
        }
    }

    fn parse(chain: &Chain, ram: &impl GuestRam, disk: DiskConfig, features: u64) -> Result<Self, RamError> {
        let mut header = Header::new_zeroed();
        chain.read(ram, 0, header.as_mut_bytes())?;
        let (output, input) = (chain.readable() - HEADER, chain.writable() - 1);
        let sector = header.sector.get();
        let has = |feature: u64| features & feature != 0;
        let inside = |sector: u64, sectors: u32| {
            sectors > 0 && sector.checked_add(sectors.into()).is_some_and(|end| end <= disk.sectors)
        };
        let is_durable = !has(feature::FLUSH);
        let operation = match header.kind.get() {
            kind::IN if output == 0 => whole(input)
                .filter(|&sectors| inside(sector, sectors))
                .map(|sectors| Operation::Read { sector, sectors }),
            kind::OUT if input == 0 && !disk.is_read_only => {
                let sectors = whole(output).filter(|&sectors| inside(sector, sectors));
                sectors.map(|sectors| Operation::Write { sector, sectors, is_durable })
            }
            kind::FLUSH if has(feature::FLUSH) => (input == 0).then_some(Operation::Flush),
            kind::GET_ID if input == ID => return Ok(Self::Identify),
            kind @ (kind::DISCARD | kind::WRITE_ZEROES)
                if has(if kind == kind::DISCARD { feature::DISCARD } else { feature::WRITE_ZEROES }) =>
            {
                if output as usize != size_of::<Range>() || input != 0 || disk.is_read_only {
                    return Ok(Self::Fails(outcome::IO_ERROR));
                }
                let mut range = Range::new_zeroed();
                chain.read(ram, HEADER, range.as_mut_bytes())?;
                let (sector, sectors, flags) = (range.sector.get(), range.sectors.get(), range.flags.get());
                if flags & !(if kind == kind::DISCARD { 0 } else { UNMAP }) != 0 {
                    return Ok(Self::Fails(outcome::UNSUPPORTED));
                }
                let operation = if kind == kind::DISCARD {
                    Operation::Discard { sector, sectors }
                } else {
                    Operation::WriteZeroes { sector, sectors, may_unmap: flags & UNMAP != 0, is_durable }
                };
                (sectors <= RANGE_MAX && inside(sector, sectors)).then_some(operation)
            }
            kind::IN | kind::OUT | kind::GET_ID => None,
            _ => return Ok(Self::Fails(outcome::UNSUPPORTED)),
        };
        Ok(operation.map_or(Self::Fails(outcome::IO_ERROR), Self::Disk))
    }
}

impl Operation {
    /// How many bytes the disk fetches.
    pub(super) const fn output(self) -> u32 {
        match self {
            Self::Write { sectors, .. } => sectors * SECTOR as u32,
            _ => 0,
        }
    }

    /// How many bytes the disk stores.
    pub(super) const fn input(self) -> u32 {
        match self {
            Self::Read { sectors, .. } => sectors * SECTOR as u32,
            _ => 0,
        }
    }

    /// Where the data of a write begins in its chain.
    pub(super) const OUTPUT_AT: u32 = HEADER;
}

/// The number of sectors in this many bytes, if it is a whole one.
fn whole(bytes: u32) -> Option<u32> {
    bytes.is_multiple_of(SECTOR as u32).then_some(bytes / SECTOR as u32)
}
