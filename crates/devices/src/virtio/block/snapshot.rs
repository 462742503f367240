// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk's part of a state.
//!
//! All numbers are little-endian.
//!
//! | bytes | |
//! |---|---|
//! | 8 | the disk's sectors |
//! | 8 | the serial number of the next request |
//! | 1 each | a slot's phase: 0 free, 1 waiting or begun, 2 done |
//! | | for each slot that is not free: |
//! | 8 | its serial number |
//! | 1 | the operation: 1 read, 2 write, 3 flush, 4 discard, 5 zeroes, 6 identify; 0: it failed its checks |
//! | 1 | bit 0: durable; bit 1: may unmap |
//! | 1 | the status, if it is done |
//! | 1 | 0 |
//! | 4, 8 | how many sectors, and the first |
//! | | its chain (see `virtio/snapshot.rs`) |
//!
//! A request that is done keeps nothing of its operation but whether it is `identify`.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::chain::Chain;
use super::super::state::{Reader, Writer, refuse};
use super::request::{RANGE_MAX, feature, outcome};
use super::slot::{Phase, Slot};
use super::{Operation, REQUESTS, SECTOR};
use crate::state::StateError;

/// The most bytes of this part.
pub(super) const STATE_MAX: usize = 16 + REQUESTS + REQUESTS * (size_of::<Row>() + Chain::STATE_MAX);

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Row {
    serial: U64,
    operation: u8,
    flags: u8,
    status: u8,
    reserved: u8,
    sectors: U32,
    sector: U64,
}

const FREE: u8 = 0;
const WAITS: u8 = 1;
const DONE: u8 = 2;

const FAILED: u8 = 0;
const READ: u8 = 1;
const WRITE: u8 = 2;
const FLUSH: u8 = 3;
const DISCARD: u8 = 4;
const ZEROES: u8 = 5;
const IDENTIFY: u8 = 6;

const DURABLE: u8 = 1;
const MAY_UNMAP: u8 = 2;

pub(super) fn save(sectors: u64, serial: u64, slots: &[Slot; REQUESTS], to: &mut Writer<'_>) -> Result<(), StateError> {
    to.put(&U64::new(sectors))?;
    to.put(&U64::new(serial))?;
    to.put(&slots.each_ref().map(|slot| match slot.phase {
        Phase::Free | Phase::Orphan => FREE,
        Phase::Waits(_) | Phase::Begun(_) => WAITS,
        Phase::Done { .. } => DONE,
    }))?;
    for slot in slots {
        let row = match slot.phase {
            Phase::Free | Phase::Orphan => continue,
            Phase::Waits(operation) | Phase::Begun(operation) => Row::of(operation),
            Phase::Done { status, identify } => {
                Row { status, operation: if identify { IDENTIFY } else { FAILED }, ..Row::default() }
            }
        };
        to.put(&Row { serial: slot.serial.into(), ..row })?;
        slot.chain.save(to)?;
    }
    Ok(())
}

/// Fills slots that are free, but for orphans. Returns the disk's sectors, and the next serial number.
pub(super) fn load(
    slots: &mut [Slot; REQUESTS],
    from: &mut Reader<'_>,
    accepted: u64,
) -> Result<(u64, u64), StateError> {
    let sectors: U64 = from.take()?;
    let serial: U64 = from.take()?;
    let phases: [u8; REQUESTS] = from.take()?;
    for (slot, phase) in slots.iter_mut().zip(phases) {
        if phase == FREE {
            continue;
        }
        let row: Row = from.take()?;
        let chain = Chain::load(from)?;
        refuse([
            (phase > DONE, "a request that neither waits nor is done"),
            (row.serial.get() >= serial.get(), "a request from the future"),
            (chain.readable() < Operation::OUTPUT_AT, "a request without a header"),
            (chain.writable() == 0, "a request without a status byte"),
            (slot.phase != Phase::Free, "a request in the slot of an orphan"),
        ])?;
        *slot = Slot { phase: row.phase(phase, &chain, accepted)?, serial: row.serial.get(), chain };
    }
    Ok((sectors.get(), serial.get()))
}

impl Row {
    fn of(operation: Operation) -> Self {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let (operation, flags, sector, sectors) = match operation {
            Operation::Read { sector, sectors } => (READ, 0, sector, sectors),
            Operation::Write { sector, sectors, is_durable } => (WRITE, flag(is_durable, DURABLE), sector, sectors),
            Operation::Flush => (FLUSH, 0, 0, 0),
            Operation::Discard { sector, sectors } => (DISCARD, 0, sector, sectors),
            Operation::WriteZeroes { sector, sectors, may_unmap, is_durable } => {
                (ZEROES, flag(is_durable, DURABLE) | flag(may_unmap, MAY_UNMAP), sector, sectors)
            }
        };
        Self { operation, flags, sector: sector.into(), sectors: sectors.into(), ..Self::default() }
    }

    /// The phase of a request. Only the rows that [`save`] writes have one.
    fn phase(&self, phase: u8, chain: &Chain, accepted: u64) -> Result<Phase, StateError> {
        let bad = |why| Err(StateError::Impossible(why));
        let (sector, sectors) = (self.sector.get(), self.sectors.get());
        if phase == DONE {
            let identify = self.operation == IDENTIFY;
            let rest = Self { serial: self.serial, operation: self.operation, status: self.status, ..Self::default() };
            return if self.as_bytes() != rest.as_bytes() || !identify && self.operation != FAILED {
                bad("a request that is done, and has more to do")
            } else if self.status > outcome::UNSUPPORTED || identify && self.status != outcome::OK {
                bad("a status that the device does not give")
            } else if identify && chain.writable() != 21 {
                bad("a serial number of another length")
            } else {
                Ok(Phase::Done { status: self.status, identify })
            };
        }
        let is_durable = accepted & feature::FLUSH == 0;
        let may_unmap = self.flags & MAY_UNMAP != 0;
        let operation = match self.operation {
            READ => Operation::Read { sector, sectors },
            WRITE => Operation::Write { sector, sectors, is_durable },
            FLUSH => Operation::Flush,
            DISCARD => Operation::Discard { sector, sectors },
            ZEROES => Operation::WriteZeroes { sector, sectors, may_unmap, is_durable },
            _ => return bad("an operation that is none"),
        };
        let again = Self { serial: self.serial, ..Self::of(operation) };
        if self.as_bytes() != again.as_bytes() {
            return bad("an operation with more than it has");
        }
        let bytes = |sectors: u32| sectors.checked_mul(SECTOR as u32);
        let (output, input) = match operation {
            Operation::Read { .. } => (Some(0), bytes(sectors)),
            Operation::Write { .. } => (bytes(sectors), Some(0)),
            Operation::Flush => (chain.readable().checked_sub(Operation::OUTPUT_AT), Some(0)),
            Operation::Discard { .. } | Operation::WriteZeroes { .. } => (Some(16), Some(0)),
        };
        let fits = output.and_then(|bytes| bytes.checked_add(Operation::OUTPUT_AT)) == Some(chain.readable())
            && input.and_then(|bytes| bytes.checked_add(1)) == Some(chain.writable());
        let is_range = matches!(operation, Operation::Discard { .. } | Operation::WriteZeroes { .. });
        let is_sized = operation == Operation::Flush || sectors > 0 && sector.checked_add(sectors.into()).is_some();
        if !fits || !is_sized || is_range && sectors > RANGE_MAX {
            return bad("an operation that its chain does not fit");
        }
        Ok(Phase::Waits(operation))
    }
}
