// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The whole state of a device, as bytes, and back.
//!
//! All numbers are little-endian.
//!
//! | bytes | |
//! |---|---|
//! | 2 | version: 1 |
//! | 2 | the kind of device, as in DeviceID |
//! | 1 | Status |
//! | 1 | InterruptStatus |
//! | 2 | 0 |
//! | 8 | the features that the driver accepted |
//! | 4 each | DeviceFeaturesSel, DriverFeaturesSel, QueueSel, ConfigGeneration |
//! | 40 each | three queues; one that the device lacks is 0 |
//! | | the model's part, described in its file |
//!
//! A queue:
//!
//! | bytes | |
//! |---|---|
//! | 2 | size |
//! | 1 | bit 0: ready; 1: notified, and not at rest; 2: `avail_event` was written; 3: a chain is owed |
//! | 1 | 0 |
//! | 2 each | the available index that comes next, the used index, `avail_event` (or 0) |
//! | 2, 4 | the owed chain's head, and the bytes written to it (or 0) |
//! | 8 each | addresses of descriptors, of the driver's ring and the device's |
//!
//! A chain that a model holds:
//!
//! | bytes | |
//! |---|---|
//! | 2 | the number of its first descriptor |
//! | 1, 1 | segments that the device reads, all segments |
//! | 12 each | a segment: address (8), length (4) |

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::chain::{Chain, SEGMENTS, Segment};
use super::layout::{feature, interrupt, status};
use super::queue::{Queue, SIZE_MAX, Used};
use super::state::{Reader, Writer, refuse};
use super::transport::{Identity, QUEUES, Transport};
use crate::state::StateError;

const VERSION: u16 = 1;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Row {
    version: U16,
    device: U16,
    status: u8,
    interrupt: u8,
    reserved: U16,
    features: U64,
    device_features_select: U32,
    driver_features_select: U32,
    queue_select: U32,
    generation: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct QueueRow {
    size: U16,
    flags: u8,
    reserved: u8,
    next: U16,
    used: U16,
    asked: U16,
    head: U16,
    written: U32,
    descriptors: U64,
    driver: U64,
    device: U64,
}

const READY: u8 = 1;
const NOTIFIED: u8 = 2;
const ASKED: u8 = 4;
const OWED: u8 = 8;

impl Transport {
    pub const STATE_SIZE: usize = size_of::<Row>() + QUEUES * size_of::<QueueRow>();

    pub const fn needs_reset(&self) -> bool {
        self.status & status::NEEDS_RESET != 0
    }

    pub fn save(&self, device: u32, to: &mut Writer<'_>) -> Result<(), StateError> {
        to.put(&Row {
            version: VERSION.into(),
            device: (device as u16).into(),
            status: self.status,
            interrupt: self.interrupt,
            reserved: 0.into(),
            features: self.features.into(),
            device_features_select: self.device_features_select.into(),
            driver_features_select: self.driver_features_select.into(),
            queue_select: self.queue_select.into(),
            generation: self.generation.into(),
        })?;
        self.queues.iter().try_for_each(|queue| to.put(&queue.row()))
    }

    pub fn load(of: Identity, from: &mut Reader<'_>) -> Result<Self, StateError> {
        let row: Row = from.take()?;
        if row.version != VERSION {
            return Err(StateError::Version(row.version.get()));
        }
        let mut transport = Self {
            features: row.features.get(),
            device_features_select: row.device_features_select.get(),
            driver_features_select: row.driver_features_select.get(),
            queue_select: row.queue_select.get(),
            status: row.status,
            interrupt: row.interrupt,
            generation: row.generation.get(),
            queues: Self::new().queues,
        };
        for (number, queue) in transport.queues.iter_mut().enumerate() {
            *queue = Queue::load(from.take()?, number < of.queues, row.status, row.features.get())?;
        }
        let has = |bit: u8| row.status & bit != 0;
        let acceptable = row.features.get() & !of.offered == 0 && row.features.get() & feature::VERSION_1 != 0;
        refuse([
            (u32::from(row.device) != of.device, "another kind of device"),
            (row.reserved != 0, "a reserved byte"),
            (row.status & !(status::BY_DRIVER | status::NEEDS_RESET) != 0, "reserved bits of Status"),
            (row.interrupt & !interrupt::ALL != 0, "reserved bits of InterruptStatus"),
            (has(status::FEATURES_OK) && !acceptable, "features that are not offered"),
            (has(status::DRIVER_OK) && !has(status::FEATURES_OK), "DRIVER_OK without FEATURES_OK"),
            (row.interrupt != 0 && !has(status::DRIVER_OK), "an interrupt before DRIVER_OK"),
        ])?;
        Ok(transport)
    }
}

impl Queue {
    fn row(&self) -> QueueRow {
        let flags = [(self.is_ready, READY), (self.is_notified, NOTIFIED), (self.asked.is_some(), ASKED)];
        let flags = flags.into_iter().chain([(self.owed.is_some(), OWED)]);
        QueueRow {
            size: self.size.into(),
            flags: flags.map(|(set, flag)| if set { flag } else { 0 }).sum(),
            reserved: 0,
            next: self.next.into(),
            used: self.used.into(),
            asked: self.asked.unwrap_or(0).into(),
            head: self.owed.map_or(0, |used| used.head).into(),
            written: self.owed.map_or(0, |used| used.written).into(),
            descriptors: self.descriptors.into(),
            driver: self.driver.into(),
            device: self.device.into(),
        }
    }

    fn load(row: QueueRow, exists: bool, status: u8, features: u64) -> Result<Self, StateError> {
        let has = |flag: u8| row.flags & flag != 0;
        let owed = Used { head: row.head.get(), written: row.written.get() };
        let queue = Self {
            size: row.size.get(),
            is_ready: has(READY),
            descriptors: row.descriptors.get(),
            driver: row.driver.get(),
            device: row.device.get(),
            is_notified: has(NOTIFIED),
            next: row.next.get(),
            used: row.used.get(),
            asked: has(ASKED).then_some(row.asked.get()),
            owed: has(OWED).then_some(owed),
        };
        let progress = queue.next != 0 || queue.used != 0 || has(ASKED) || has(OWED);
        refuse([
            (!exists && row.as_bytes().iter().any(|byte| *byte != 0), "a queue that the device lacks"),
            (row.flags & !(READY | NOTIFIED | ASKED | OWED) != 0 || row.reserved != 0, "reserved bits of a queue"),
            (queue.is_ready && !queue.is_possible(), "a queue with an impossible size or address"),
            (!queue.is_ready && (progress || queue.is_notified), "work of a queue that is not ready"),
            (progress && status & status::DRIVER_OK == 0, "work of a queue before DRIVER_OK"),
            (!has(ASKED) && row.asked != 0, "an avail_event that was not written"),
            (has(ASKED) && features & feature::EVENT_IDX == 0, "an avail_event without its feature"),
            (!has(OWED) && (row.head != 0 || row.written != 0), "an owed chain that is none"),
            (has(OWED) && row.head.get() >= queue.size, "a head that the queue lacks"),
        ])?;
        Ok(queue)
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ChainRow {
    head: U16,
    readable: u8,
    count: u8,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SegmentRow {
    address: U64,
    length: U32,
}

impl Chain {
    /// The most bytes of a chain.
    pub const STATE_MAX: usize = size_of::<ChainRow>() + SEGMENTS * size_of::<SegmentRow>();

    pub fn save(&self, to: &mut Writer<'_>) -> Result<(), StateError> {
        let segments = self.segments();
        let head = if segments.len() == 0 { 0 } else { self.head() };
        to.put(&ChainRow { head: head.into(), readable: self.readable_segments(), count: segments.len() as u8 })?;
        for Segment { address, length } in segments {
            to.put(&SegmentRow { address: address.into(), length: length.into() })?;
        }
        Ok(())
    }

    pub fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        let row: ChainRow = from.take()?;
        let head = row.head.get();
        refuse([
            (row.count == 0 && (head != 0 || row.readable != 0), "a chain without segments that is not empty"),
            (head >= SIZE_MAX, "a chain's first descriptor that no queue has"),
        ])?;
        let mut segments = [Segment::default(); SEGMENTS];
        let bad = StateError::Impossible("a chain that no driver can make");
        let segments = segments.get_mut(..row.count.into()).ok_or(bad)?;
        for segment in &mut *segments {
            let row: SegmentRow = from.take()?;
            *segment = Segment { address: row.address.get(), length: row.length.get() };
        }
        Self::from_segments(head, row.readable, segments.iter().copied()).ok_or(bad)
    }
}
