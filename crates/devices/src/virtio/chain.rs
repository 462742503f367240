// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A chain of descriptors: read from the guest's memory once, checked, and kept.
//!
//! Invariants of a [`Chain`], whatever the guest's memory holds:
//!
//! * It has 1 to [`SEGMENTS`] segments, those that the device reads first.
//! * No segment is empty or ends behind the last address, and all together have less than 4 GiB. So no sum overflows.
//!
//! A chain says nothing of the memory behind its addresses: each access asks [`GuestRam`], which knows the memslots.
//!
//! # Why a guest that changes a chain gains nothing
//!
//! Each descriptor is copied by one [`GuestRam::read`], an indirect table by one for all of it. All checks and all
//! later accesses use the copy. If a page is absent, the copy is forgotten and the next attempt starts from the ring's
//! entry, so no chain is made of two attempts.

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::layout::Descriptor;
use super::next::{Fault, Stop};
use crate::ram::{GuestRam, RamError};

/// The most segments of a chain, and of descriptors in a queue: a driver may make no chain longer than that.
pub const SEGMENTS: usize = 64;

/// A piece of the guest's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Segment {
    pub address: u64,
    pub length: u32,
}

/// A chain of buffers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    head: u16,
    readable: u8,
    count: u8,
    addresses: [u64; SEGMENTS],
    lengths: [u32; SEGMENTS],
}

/// The table that a chain begins in.
#[derive(Clone, Copy)]
pub(super) struct Table {
    pub address: u64,
    pub count: u16,
    pub has_indirect: bool,
}

impl Chain {
    /// No chain, as a place for one.
    pub const EMPTY: Self = Self { head: 0, readable: 0, count: 0, addresses: [0; SEGMENTS], lengths: [0; SEGMENTS] };

    /// Reads the chain that begins at descriptor `head` of `table`.
    pub fn read_from(&mut self, ram: &impl GuestRam, table: Table, head: u16) -> Result<(), Stop> {
        (self.head, self.readable, self.count) = (head, 0, 0);
        let mut index = head;
        for _ in 0..table.count {
            if index >= table.count {
                return Err(Fault::NoDescriptor { index, count: table.count }.into());
            }
            let mut descriptor = Descriptor::new_zeroed();
            ram.read(table.address + u64::from(index) * Descriptor::SIZE as u64, descriptor.as_mut_bytes())?;
            let flags = descriptor.flags.get();
            if flags & Descriptor::INDIRECT != 0 {
                if !table.has_indirect || flags & Descriptor::NEXT != 0 {
                    return Err(Fault::Indirect.into());
                }
                self.read_indirect(ram, descriptor)?;
                return self.check();
            }
            self.push(descriptor)?;
            if flags & Descriptor::NEXT == 0 {
                return self.check();
            }
            index = descriptor.next.get();
        }
        Err(Fault::Long(table.count).into())
    }

    /// Makes a chain of segments that were kept. `None` if no guest's chain can have them.
    pub fn from_segments(head: u16, readable: u8, segments: impl Iterator<Item = Segment>) -> Option<Self> {
        let mut chain = Self { head, ..Self::EMPTY };
        for segment in segments {
            chain.push_segment(segment, chain.count >= readable).ok()?;
        }
        chain.check().ok()?;
        (chain.readable == readable).then_some(chain)
    }

    /// There is no chain here any more.
    pub fn clear(&mut self) {
        (self.head, self.readable, self.count) = (0, 0, 0);
    }

    /// Is there no chain here?
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The number by which the driver knows the chain.
    pub const fn head(&self) -> u16 {
        self.head
    }

    /// How many segments the device reads. They are the first ones.
    pub const fn readable_segments(&self) -> u8 {
        self.readable
    }

    /// All segments.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = Segment> + '_ {
        let pairs = self.addresses.iter().zip(&self.lengths).take(self.count.into());
        pairs.map(|(&address, &length)| Segment { address, length })
    }

    /// Bytes that the device may read.
    pub fn readable(&self) -> u32 {
        self.segments().take(self.readable.into()).map(|segment| segment.length).sum()
    }

    /// Bytes that the device may write.
    pub fn writable(&self) -> u32 {
        self.segments().skip(self.readable.into()).map(|segment| segment.length).sum()
    }

    /// What the device may write from its byte `offset` on, up to the end of the segment; `None` behind the last byte.
    pub fn writable_at(&self, offset: u32) -> Option<Segment> {
        let mut before = offset;
        self.segments().skip(self.readable.into()).find_map(|Segment { address, length }| {
            let Some(left) = length.checked_sub(before).filter(|left| *left > 0) else {
                before -= length;
                return None;
            };
            Some(Segment { address: address + u64::from(before), length: left })
        })
    }

    /// Copies what the device may read, from its byte `offset` on. The caller has checked that there are as many bytes.
    pub fn read(&self, ram: &impl GuestRam, offset: u32, bytes: &mut [u8]) -> Result<(), RamError> {
        let mut left = bytes;
        for (address, length) in pieces(self.segments().take(self.readable.into()), offset, left.len()) {
            let (now, later) = left.split_at_mut(length);
            ram.read(address, now)?;
            left = later;
        }
        debug_assert!(left.is_empty(), "the caller has compared with readable()");
        Ok(())
    }

    /// Writes to what the device may write, from its byte `offset` on. The caller has checked that there are as many
    /// bytes.
    pub fn write(&self, ram: &impl GuestRam, offset: u32, bytes: &[u8]) -> Result<(), RamError> {
        let mut left = bytes;
        for (address, length) in pieces(self.segments().skip(self.readable.into()), offset, left.len()) {
            let (now, later) = left.split_at(length);
            ram.write(address, now)?;
            left = later;
        }
        debug_assert!(left.is_empty(), "the caller has compared with writable()");
        Ok(())
    }

    /// Reads the rest of the chain from an indirect table.
    fn read_indirect(&mut self, ram: &impl GuestRam, table: Descriptor) -> Result<(), Stop> {
        let (address, length) = (table.address.get(), table.length.get());
        let mut bytes = [0; SEGMENTS * Descriptor::SIZE];
        let Some(bytes) = bytes
            .get_mut(..length as usize)
            .filter(|bytes| !bytes.is_empty() && bytes.len().is_multiple_of(Descriptor::SIZE))
        else {
            return Err(Fault::Table(length).into());
        };
        if address.checked_add(length.into()).is_none() {
            return Err(Fault::Buffer { address, length }.into());
        }
        ram.read(address, bytes)?;
        let count = (bytes.len() / Descriptor::SIZE) as u16;
        let mut index = 0;
        for _ in 0..count {
            let at = usize::from(index) * Descriptor::SIZE;
            let descriptor = bytes.get(at..).and_then(|rest| Descriptor::read_from_prefix(rest).ok());
            let Some((descriptor, _)) = descriptor else { return Err(Fault::NoDescriptor { index, count }.into()) };
            let flags = descriptor.flags.get();
            if flags & Descriptor::INDIRECT != 0 {
                return Err(Fault::Indirect.into());
            }
            self.push(descriptor)?;
            if flags & Descriptor::NEXT == 0 {
                return Ok(());
            }
            index = descriptor.next.get();
        }
        Err(Fault::Long(count).into())
    }

    fn push(&mut self, descriptor: Descriptor) -> Result<(), Fault> {
        let segment = Segment { address: descriptor.address.get(), length: descriptor.length.get() };
        self.push_segment(segment, descriptor.flags.get() & Descriptor::WRITE != 0)
    }

    fn push_segment(&mut self, segment: Segment, is_writable: bool) -> Result<(), Fault> {
        let Segment { address, length } = segment;
        if length == 0 || address.checked_add(length.into()).is_none() {
            return Err(Fault::Buffer { address, length });
        }
        if !is_writable && self.readable != self.count {
            return Err(Fault::Order);
        }
        let at = usize::from(self.count);
        let (Some(place), Some(place_length)) = (self.addresses.get_mut(at), self.lengths.get_mut(at)) else {
            return Err(Fault::Long(SEGMENTS as u16));
        };
        (*place, *place_length) = (address, length);
        self.count += 1;
        self.readable += u8::from(!is_writable);
        Ok(())
    }

    fn check(&self) -> Result<(), Stop> {
        let bytes: u64 = self.segments().map(|segment| u64::from(segment.length)).sum();
        if bytes > u32::MAX.into() { Err(Fault::Huge.into()) } else { Ok(()) }
    }
}

/// The addresses and lengths of `length` bytes from byte `offset` of `segments` on.
fn pieces(segments: impl Iterator<Item = Segment>, offset: u32, length: usize) -> impl Iterator<Item = (u64, usize)> {
    let (mut skip, mut left) = (offset, length);
    segments.filter_map(move |segment| {
        let before = skip.min(segment.length);
        skip -= before;
        let now = left.min((segment.length - before) as usize);
        left -= now;
        (now > 0).then_some((segment.address + u64::from(before), now))
    })
}
