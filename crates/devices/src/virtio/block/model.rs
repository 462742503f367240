// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The polls that move requests through their slots, and the disk's configuration.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{Immutable, IntoBytes};

use super::super::chain::SEGMENTS;
use super::super::device::Model;
use super::super::next::{Next, Stop};
use super::super::queue::Queue;
use super::super::state::{Reader, Writer};
use super::request::{RANGE_MAX, Request, feature, outcome};
use super::slot::{Phase, Slot};
use super::{DataError, Disk, DiskConfig, DiskError, Operation, REQUESTS, SECTOR, Stale, Tag, snapshot};
use crate::ram::GuestRam;
use crate::state::StateError;

/// Chains that one poll takes.
const BUDGET: usize = 16;

/// The model behind the registers.
#[derive(Clone, Debug)]
pub struct BlockModel {
    disk: DiskConfig,
    /// The serial number of the next request.
    serial: u64,
    slots: [Slot; REQUESTS],
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Config {
    capacity: U64,
    size_max: U32,
    seg_max: U32,
    geometry: [u8; 4],
    blk_size: U32,
    topology: [u8; 8],
    writeback: u8,
    unused: u8,
    queues: U16,
    discard_sectors: U32,
    discard_segments: U32,
    discard_alignment: U32,
    zeroes_sectors: U32,
    zeroes_segments: U32,
    zeroes_may_unmap: u8,
    unused_end: [u8; 3],
}

impl BlockModel {
    pub(super) const fn new(disk: DiskConfig) -> Self {
        Self { disk, serial: 0, slots: [Slot::FREE; REQUESTS] }
    }

    pub(super) fn poll(
        &mut self,
        queue: &mut Queue,
        features: u64,
        ram: &impl GuestRam,
        disk: &mut impl Disk,
    ) -> Result<Next, Stop> {
        // A request that waits for a page does not hold up the others.
        let mut absent = None;
        for slot in &mut self.slots {
            keep_absent(slot.give_back(self.disk.id, queue, ram), &mut absent)?;
        }
        let next = self.begin(queue, features, ram, disk, &mut absent)?;
        Ok(match absent {
            Some(address) if next == Next::Idle => Next::Absent(address),
            _ => next,
        })
    }

    /// Begins what waits, then what the guest asks for.
    fn begin(
        &mut self,
        queue: &mut Queue,
        features: u64,
        ram: &impl GuestRam,
        disk: &mut impl Disk,
        absent: &mut Option<u64>,
    ) -> Result<Next, Stop> {
        if self.slots.iter().any(|slot| slot.phase == Phase::Orphan) {
            return Ok(Next::Idle);
        }
        for (number, slot) in self.slots.iter_mut().enumerate() {
            if slot.begin(number, disk).is_err() {
                return Ok(Next::Idle);
            }
        }
        for step in 0..BUDGET {
            if step > 0 && ram.should_pause() {
                return Ok(Next::Again);
            }
            if !queue.is_notified {
                return Ok(Next::Idle);
            }
            let mut slots = self.slots.iter_mut().enumerate();
            let Some((number, slot)) = slots.find(|(_, slot)| slot.phase == Phase::Free) else {
                return Ok(Next::Idle);
            };
            if !queue.take(0, ram, features, &mut slot.chain)? {
                queue.rest(0, ram, features)?;
                continue;
            }
            let request = Request::read_from(&slot.chain, ram, self.disk, features)?;
            queue.advance();
            slot.serial = self.serial;
            self.serial += 1;
            slot.phase = match request {
                Request::Disk(operation) => Phase::Waits(operation),
                Request::Identify => Phase::Done { status: outcome::OK, identify: true },
                Request::Fails(status) => Phase::Done { status, identify: false },
            };
            keep_absent(slot.give_back(self.disk.id, queue, ram), absent)?;
            if slot.begin(number, disk).is_err() {
                return Ok(Next::Idle);
            }
        }
        Ok(Next::Again)
    }

    pub(super) fn fetch(&self, tag: Tag, ram: &impl GuestRam, offset: u32, bytes: &mut [u8]) -> Result<(), DataError> {
        let (slot, operation) = self.begun(tag)?;
        inside(operation.output(), offset, bytes.len())?;
        Ok(slot.chain.read(ram, Operation::OUTPUT_AT + offset, bytes)?)
    }

    pub(super) fn store(&self, tag: Tag, ram: &impl GuestRam, offset: u32, bytes: &[u8]) -> Result<(), DataError> {
        let (slot, operation) = self.begun(tag)?;
        inside(operation.input(), offset, bytes.len())?;
        Ok(slot.chain.write(ram, offset, bytes)?)
    }

    pub(super) fn complete(&mut self, tag: Tag, result: Result<(), DiskError>) -> Result<(), Stale> {
        let slot = self.slots.get_mut(usize::from(tag.slot)).filter(|slot| slot.serial == tag.serial).ok_or(Stale)?;
        slot.phase = match slot.phase {
            Phase::Begun(_) => {
                let status = if result.is_ok() { outcome::OK } else { outcome::IO_ERROR };
                Phase::Done { status, identify: false }
            }
            Phase::Orphan => Phase::Free,
            Phase::Free | Phase::Waits(_) | Phase::Done { .. } => return Err(Stale),
        };
        Ok(())
    }

    pub(super) fn resize(&mut self, sectors: u64) {
        self.disk.sectors = sectors;
    }

    fn begun(&self, tag: Tag) -> Result<(&Slot, Operation), DataError> {
        let slot = self.slots.get(usize::from(tag.slot)).filter(|slot| slot.serial == tag.serial);
        match slot.map(|slot| (slot, slot.phase)) {
            Some((slot, Phase::Begun(operation))) => Ok((slot, operation)),
            _ => Err(DataError::Stale),
        }
    }
}

impl Model for BlockModel {
    const DEVICE: u32 = 2;
    const QUEUES: usize = 1;
    const STATE_MAX: usize = snapshot::STATE_MAX;

    fn features(&self) -> u64 {
        let changes = if self.disk.is_read_only { feature::RO } else { feature::DISCARD | feature::WRITE_ZEROES };
        feature::SEG_MAX | feature::BLK_SIZE | feature::FLUSH | changes
    }

    fn config(&self, offset: u64) -> u8 {
        let config = Config {
            capacity: self.disk.sectors.into(),
            size_max: 0.into(),
            // Besides header and status.
            seg_max: (SEGMENTS as u32 - 2).into(),
            geometry: [0; 4],
            blk_size: (SECTOR as u32).into(),
            topology: [0; 8],
            writeback: 1,
            unused: 0,
            queues: 1.into(),
            discard_sectors: RANGE_MAX.into(),
            discard_segments: 1.into(),
            discard_alignment: 1.into(),
            zeroes_sectors: RANGE_MAX.into(),
            zeroes_segments: 1.into(),
            zeroes_may_unmap: 1,
            unused_end: [0; 3],
        };
        usize::try_from(offset).ok().and_then(|at| config.as_bytes().get(at).copied()).unwrap_or(0)
    }

    fn abandon(&mut self, _: usize) {
        for slot in &mut self.slots {
            slot.phase = match slot.phase {
                Phase::Begun(_) | Phase::Orphan => Phase::Orphan,
                Phase::Free | Phase::Waits(_) | Phase::Done { .. } => Phase::Free,
            };
        }
    }

    fn held(&self, queue: usize) -> usize {
        let held = self.slots.iter().filter(|slot| !matches!(slot.phase, Phase::Free | Phase::Orphan)).count();
        if queue == 0 { held } else { 0 }
    }

    fn save(&self, to: &mut Writer<'_>) -> Result<(), StateError> {
        snapshot::save(self.disk.sectors, self.serial, &self.slots, to)
    }

    fn load(&mut self, from: &mut Reader<'_>, accepted: u64) -> Result<(), StateError> {
        let (sectors, serial) = snapshot::load(&mut self.slots, from, accepted)?;
        self.disk.sectors = sectors;
        // A serial number may not be used twice, not even by a device that has orphans of its own.
        self.serial = self.serial.max(serial);
        Ok(())
    }
}

/// Are there `length` bytes at `offset` of `size`?
fn inside(size: u32, offset: u32, length: usize) -> Result<(), DataError> {
    let end = u64::from(offset).checked_add(length as u64);
    if end.is_some_and(|end| end <= size.into()) { Ok(()) } else { Err(DataError::Beyond) }
}

/// Notes the first absent page, and lets the work go on.
fn keep_absent(result: Result<(), Stop>, absent: &mut Option<u64>) -> Result<(), Stop> {
    match result {
        Err(Stop::Absent(address)) => {
            absent.get_or_insert(address);
            Ok(())
        }
        other => other,
    }
}
