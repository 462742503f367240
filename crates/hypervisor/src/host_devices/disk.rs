// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The driver of a disk of the machine, with several requests in flight.
//!
//! Queue and transport are those of the crate `virtio-drivers`. Its own driver of disks waits for each flush in a loop, and
//! EL2 never waits for a device while guests run. So the requests are made here.
//!
//! # The life of a request
//!
//! * **R1** [`Disk::begin`] puts the request into a free slot, and gives its buffer to the device.
//! * **R2** [`Disk::notify`] notifies the device, after any number of R1.
//! * **R3** The device does the request, and interrupts.
//! * **R4** [`Disk::ended`] returns the request with its buffer, and the slot is free.
//!
//! # Invariants
//!
//! * EL2 makes no reference to a request's buffer between R1 and R4, and frees none.
//! * Each call does a bounded amount of work, and never waits for the device, except [`Disk::new`].
//! * The device is trusted with memory: it writes only where it is asked to. What it says is checked. If it returns a token
//!   of no request, for instance, it has broken the rules: it is reset, and every request fails, now and later. Nothing
//!   panics.

use alloc::boxed::Box;
use core::ptr::NonNull;

use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::{DeviceStatus, DeviceType, Transport};
use virtio_drivers::{BufferDirection, Hal, PAGE_SIZE};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{Immutable, IntoBytes};

use super::negotiate::{Unusable, negotiate, reset};

/// Requests in flight at most.
pub const SLOTS: usize = 20;
/// Bytes of a sector.
pub const SECTOR: usize = 512;
/// Bytes of a serial number.
pub const ID: usize = 20;

/// A request has at most three descriptors.
const QUEUE_SIZE: usize = (3 * SLOTS).next_power_of_two();
/// The only queue.
const QUEUE: u16 = 0;
/// Looks at a size that changes meanwhile.
const LOOKS: u32 = 16;

/// A request.
#[derive(Debug)]
pub struct Request<T> {
    /// What the caller knows it by.
    pub tag: T,
    /// What to do.
    pub work: Work,
    /// How many bytes of the buffer: a multiple of [`SECTOR`] that is not 0; 0 if it has no data.
    pub length: usize,
    /// At least `length` bytes.
    pub buffer: Box<[u8]>,
}

/// What a disk is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Read from this sector on.
    Read(u64),
    /// Write from this sector on.
    Write(u64),
    /// Make stable what has ended.
    Flush,
    /// These sectors are no longer needed.
    Discard(Range),
    /// Make these sectors zero. Their place on the disk may be given up if the second field is set.
    Zero(Range, bool),
    /// Read the serial number.
    Identify,
}

/// Sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first.
    pub sector: u64,
    /// How many, not 0.
    pub sectors: u32,
}

/// The most sectors of one request without data; 0 if the disk has no such requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeMax {
    /// Of a discard.
    pub discard: u32,
    /// Of zeroes.
    pub zero: u32,
}

/// The driver of a disk.
pub struct Disk<H: Hal, T: Transport, G> {
    // It goes first: its drop resets the device, and then the device has no buffer any more.
    transport: T,
    queue: VirtQueue<H, QUEUE_SIZE>,
    slots: Box<[Slot<G>; SLOTS]>,
    /// One for each slot, in a page.
    controls: NonNull<Control>,
    /// The slot of each token in the queue.
    tokens: [Option<u8>; QUEUE_SIZE],
    features: u64,
    sectors: u64,
    range_max: RangeMax,
    id: [u8; ID],
    has_failed: bool,
}

// SAFETY: the page of `controls` belongs to this value. Everything else can be sent by itself.
unsafe impl<H: Hal, T: Transport + Send, G: Send> Send for Disk<H, T, G> {}

struct Slot<G> {
    request: Option<Request<G>>,
    /// The device has the request.
    is_flying: bool,
}

/// What the device has of a request beside its buffer.
#[repr(C)]
struct Control {
    header: Header,
    range: Segment,
    status: [u8; 1],
}

const _: () = assert!(SLOTS * size_of::<Control>() <= PAGE_SIZE);

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Header {
    kind: U32,
    reserved: U32,
    sector: U64,
}

/// The data of a discard or of zeroes.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Segment {
    sector: U64,
    sectors: U32,
    flags: U32,
}

/// A segment's flag: its place may be given up.
const UNMAP: u32 = 1;

mod feature {
    pub(super) const READ_ONLY: u64 = 1 << 5;
    pub(super) const BLOCK_SIZE: u64 = 1 << 6;
    pub(super) const FLUSH: u64 = 1 << 9;
    pub(super) const DISCARD: u64 = 1 << 13;
    pub(super) const WRITE_ZEROES: u64 = 1 << 14;
    pub(super) const WANTED: u64 = READ_ONLY | BLOCK_SIZE | FLUSH | DISCARD | WRITE_ZEROES;
}

/// Offsets in the configuration space (VIRTIO 1.2, 5.2.4).
mod config {
    pub(super) const CAPACITY: usize = 0;
    pub(super) const BLOCK_SIZE: usize = 20;
    pub(super) const DISCARD_SECTORS: usize = 36;
    pub(super) const ZERO_SECTORS: usize = 48;
}

/// Kinds of requests (VIRTIO 1.2, 5.2.6).
mod kind {
    pub(super) const IN: u32 = 0;
    pub(super) const OUT: u32 = 1;
    pub(super) const FLUSH: u32 = 4;
    pub(super) const GET_ID: u32 = 8;
    pub(super) const DISCARD: u32 = 11;
    pub(super) const WRITE_ZEROES: u32 = 13;
}

/// The status of a request that was done.
const OK: u8 = 0;
/// The status of a request that has none yet.
const NONE: u8 = 0xff;

impl<H: Hal, T: Transport, G: Default> Disk<H, T, G> {
    /// Sets the device up and asks for its serial number. `waits` is called while there is no answer. It returns false when
    /// the device has had enough time.
    ///
    /// # Errors
    ///
    /// [`Unusable`].
    pub fn new(mut transport: T, waits: impl FnMut() -> bool) -> Result<Self, Unusable> {
        let features = negotiate(&mut transport, DeviceType::Block, feature::WANTED)?;
        if features & feature::BLOCK_SIZE != 0 {
            match transport.read_config_space::<u32>(config::BLOCK_SIZE)? {
                512 => {}
                other => return Err(Unusable::BlockSize(other)),
            }
        }
        let sectors = capacity(&transport)?;
        let limit = |feature, offset| match features & feature {
            0 => Ok(0),
            _ => transport.read_config_space::<u32>(offset),
        };
        let range_max = RangeMax {
            discard: limit(feature::DISCARD, config::DISCARD_SECTORS)?,
            zero: limit(feature::WRITE_ZEROES, config::ZERO_SECTORS)?,
        };
        // Neither indirect descriptors, which take memory of the heap, nor the event index.
        let queue = VirtQueue::new(&mut transport, QUEUE, false, false)?;
        let controls = match H::dma_alloc(1, BufferDirection::Both) {
            (0, _) => return Err(virtio_drivers::Error::DmaError.into()),
            (_, page) => page.cast(),
        };
        transport.finish_init();
        let (slots, tokens) =
            (Box::new([const { Slot { request: None, is_flying: false } }; SLOTS]), [None; QUEUE_SIZE]);
        let (id, has_failed) = ([0; ID], false);
        let mut disk = Self { transport, queue, slots, controls, tokens, features, sectors, range_max, id, has_failed };
        disk.identify(waits)?;
        Ok(disk)
    }

    fn identify(&mut self, mut waits: impl FnMut() -> bool) -> Result<(), Unusable> {
        let buffer = alloc::vec![0; ID].into_boxed_slice();
        let request = Request { tag: G::default(), work: Work::Identify, length: ID, buffer };
        if self.begin(request).is_err() {
            return Err(Unusable::Broken);
        }
        self.notify();
        loop {
            match self.ended() {
                Some((_, false)) if self.has_failed => return Err(Unusable::Broken),
                Some((request, true)) => {
                    self.id.copy_from_slice(&request.buffer);
                    return Ok(());
                }
                // A disk need not have a serial number.
                Some((_, false)) => return Ok(()),
                None if waits() => core::hint::spin_loop(),
                None => return Err(Unusable::Silent),
            }
        }
    }
}

impl<H: Hal, T: Transport, G> Disk<H, T, G> {
    /// Its serial number, padded with zeros; zeros if it has none.
    #[must_use]
    pub fn id(&self) -> [u8; ID] {
        self.id
    }

    /// Its size, in sectors.
    #[must_use]
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// How large discards and zeroes may be.
    #[must_use]
    pub fn range_max(&self) -> RangeMax {
        self.range_max
    }

    /// Whether it cannot be written.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.features & feature::READ_ONLY != 0
    }

    /// R1.
    ///
    /// # Errors
    ///
    /// No slot is free: the request comes back.
    pub fn begin(&mut self, request: Request<G>) -> Result<(), Request<G>> {
        let Some(number) = self.slots.iter().position(|slot| slot.request.is_none()) else { return Err(request) };
        let is_possible = self.can(&request);
        let slot = &mut self.slots[number];
        let request = slot.request.insert(request);
        if self.has_failed || !is_possible {
            return Ok(());
        }
        // SAFETY: the page has a block for each slot, and the device does not have this one.
        let control = unsafe { self.controls.add(number).as_mut() };
        *control = Control { header: header(request.work), range: segment(request.work), status: [NONE] };
        let (header, range, status) = (control.header.as_bytes(), control.range.as_bytes(), &mut control.status);
        let data = &mut request.buffer[..request.length];
        // SAFETY: block and buffer stay at their places until R4, and `is_flying` keeps this module from making references to
        // them. On an error the device got nothing.
        let added = unsafe {
            match request.work {
                Work::Read(_) | Work::Identify => self.queue.add(&[header], &mut [data, status]),
                Work::Write(_) => self.queue.add(&[header, data], &mut [status]),
                Work::Discard(_) | Work::Zero(..) => self.queue.add(&[header, range], &mut [status]),
                Work::Flush => self.queue.add(&[header], &mut [status]),
            }
        };
        match added.ok().and_then(|token| self.tokens.get_mut(usize::from(token))) {
            Some(entry) => {
                *entry = Some(number as u8);
                slot.is_flying = true;
            }
            // The queue has descriptors for all slots.
            None => self.fail(),
        }
        Ok(())
    }

    /// R2.
    pub fn notify(&mut self) {
        if !self.has_failed && self.queue.should_notify() {
            self.transport.notify(QUEUE);
        }
    }

    /// R4: a request that has ended, and whether the device has done it.
    pub fn ended(&mut self) -> Option<(Request<G>, bool)> {
        if !self.has_failed
            && let Some(token) = self.queue.peek_used()
        {
            let number = self.tokens.get_mut(usize::from(token)).and_then(Option::take);
            match number.and_then(|number| self.take(number.into(), token)) {
                Some(ended) => return Some(ended),
                None => self.fail(),
            }
        }
        // What the device did not get, or does not have any more.
        let slot = self.slots.iter_mut().find(|slot| slot.request.is_some() && !slot.is_flying)?;
        let request = slot.request.take()?;
        // Without a cache, everything that has ended is stable.
        let is_done = request.work == Work::Flush && self.features & feature::FLUSH == 0 && !self.has_failed;
        Some((request, is_done))
    }

    /// Looks at the disk's size once more, and at whether the device has given up. Returns whether the size has changed.
    pub fn look_again(&mut self) -> bool {
        if !self.has_failed && self.transport.get_status().contains(DeviceStatus::DEVICE_NEEDS_RESET) {
            self.fail();
        }
        // A size that does not stand still has another interrupt.
        let Ok(sectors) = capacity(&self.transport) else { return false };
        core::mem::replace(&mut self.sectors, sectors) != sectors
    }

    /// Whether the device can be asked for this.
    fn can(&self, request: &Request<G>) -> bool {
        let fits = request.length != 0 && request.length <= request.buffer.len();
        match request.work {
            Work::Identify => fits,
            Work::Flush => self.features & feature::FLUSH != 0,
            Work::Write(_) | Work::Discard(_) | Work::Zero(..) if self.is_read_only() => false,
            Work::Discard(range) => self.has(range, self.range_max.discard),
            Work::Zero(range, _) => self.has(range, self.range_max.zero),
            Work::Read(sector) | Work::Write(sector) => {
                let end = sector.checked_add((request.length / SECTOR) as u64);
                fits && request.length.is_multiple_of(SECTOR) && end.is_some_and(|end| end <= self.sectors)
            }
        }
    }

    fn has(&self, Range { sector, sectors }: Range, most: u32) -> bool {
        let end = sector.checked_add(sectors.into());
        (1..=most).contains(&sectors) && end.is_some_and(|end| end <= self.sectors)
    }

    /// Takes the request with this token from the queue. `None`: the device broke the rules.
    fn take(&mut self, number: usize, token: u16) -> Option<(Request<G>, bool)> {
        let slot = self.slots.get_mut(number).filter(|slot| slot.is_flying)?;
        let mut request = slot.request.take()?;
        // SAFETY: the page has a block for each slot, and the device is done with this one.
        let control = unsafe { self.controls.add(number).as_mut() };
        let (header, range, status) = (control.header.as_bytes(), control.range.as_bytes(), &mut control.status);
        let data = &mut request.buffer[..request.length];
        // SAFETY: the buffers are those of R1, and the device is done with them.
        let popped = unsafe {
            match request.work {
                Work::Read(_) | Work::Identify => self.queue.pop_used(token, &[header], &mut [data, status]),
                Work::Write(_) => self.queue.pop_used(token, &[header, data], &mut [status]),
                Work::Discard(_) | Work::Zero(..) => self.queue.pop_used(token, &[header, range], &mut [status]),
                Work::Flush => self.queue.pop_used(token, &[header], &mut [status]),
            }
        };
        slot.is_flying = false;
        let is_done = popped.is_ok() && control.status == [OK];
        Some((request, is_done))
    }

    /// The device broke the rules. It is reset, and all requests fail.
    fn fail(&mut self) {
        self.has_failed = true;
        // A device that is not reset may still write to the buffers: they stay where they are, and are lost.
        if reset(&mut self.transport).is_ok() {
            self.slots.iter_mut().for_each(|slot| slot.is_flying = false);
        }
    }
}

impl<H: Hal, T: Transport, G> Drop for Disk<H, T, G> {
    fn drop(&mut self) {
        // What a device still has that is not reset is never freed.
        if reset(&mut self.transport).is_err() {
            self.slots.iter_mut().filter(|slot| slot.is_flying).for_each(|slot| core::mem::forget(slot.request.take()));
            return;
        }
        // SAFETY: it was allocated by `new`, and the device has nothing any more.
        unsafe { H::dma_dealloc(self.controls.as_ptr().expose_provenance() as u64, self.controls.cast(), 1) };
    }
}

fn header(work: Work) -> Header {
    let (kind, sector) = match work {
        Work::Read(sector) => (kind::IN, sector),
        Work::Write(sector) => (kind::OUT, sector),
        Work::Flush => (kind::FLUSH, 0),
        // The segment has the sectors.
        Work::Discard(_) => (kind::DISCARD, 0),
        Work::Zero(..) => (kind::WRITE_ZEROES, 0),
        Work::Identify => (kind::GET_ID, 0),
    };
    Header { kind: kind.into(), reserved: 0.into(), sector: sector.into() }
}

fn segment(work: Work) -> Segment {
    let (Range { sector, sectors }, flags) = match work {
        Work::Discard(range) => (range, 0),
        Work::Zero(range, may_unmap) => (range, if may_unmap { UNMAP } else { 0 }),
        _ => (Range { sector: 0, sectors: 0 }, 0),
    };
    Segment { sector: sector.into(), sectors: sectors.into(), flags: flags.into() }
}

/// The size of the disk, in sectors.
fn capacity(transport: &impl Transport) -> Result<u64, Unusable> {
    let read = |offset| transport.read_config_space::<u32>(offset).map(u64::from);
    for _ in 0..LOOKS {
        let generation = transport.read_config_generation();
        let sectors = read(config::CAPACITY)? | read(config::CAPACITY + 4)? << 32;
        if transport.read_config_generation() == generation {
            return Ok(sectors);
        }
    }
    Err(Unusable::Size)
}
