// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `balloon=SIZE`: fills `SIZE` bytes of RAM, puts them into the balloon, takes them out, and reports them as free. What was
//! given up reads as zero, and holds what is written there afterwards.

use core::ops::Range;

use twofold_abi::virt::VIRTIO_COUNT;
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::mmio::MmioTransport;
use virtio_drivers::transport::{DeviceStatus, DeviceType, Transport};

use super::dma::{self, Dma};
use super::{Failure, transport};
use crate::memory::{self, Memory, PAGE};
use crate::uart::println;

type Queue = VirtQueue<Dma, SIZE>;

/// Entries of a queue.
const SIZE: usize = 16;
const INFLATE: u16 = 0;
const DEFLATE: u16 = 1;
const REPORT: u16 = 2;
/// MUST_TELL_HOST, PAGE_REPORTING, VERSION_1.
const FEATURES: u64 = 1 << 0 | 1 << 5 | 1 << 32;
/// The unit in which memory is reported.
const HUGE_PAGE: u64 = 2 << 20;
/// Page numbers in one buffer.
const NUMBERS: usize = 256;

/// Uses the balloon, which has to be there.
pub fn run(memory: &Memory, size: u64) -> Result<(), Failure> {
    dma::begin(memory)?;
    let largest = memory.free().max_by_key(|range| range.end - range.start).ok_or(Failure::NoMemory)?;
    let end = largest.end / HUGE_PAGE * HUGE_PAGE;
    let pages = end.checked_sub(size).filter(|start| *start > largest.start + HUGE_PAGE).ok_or(Failure::NoMemory)?..end;
    for place in 0..VIRTIO_COUNT {
        match transport(place)? {
            Some(transport) if transport.device_type() == DeviceType::MemoryBalloon => {
                return balloon(place, transport, &pages);
            }
            _ => {}
        }
    }
    Err(Failure::NoBalloon)
}

fn balloon(place: usize, mut transport: MmioTransport<'static>, pages: &Range<u64>) -> Result<(), Failure> {
    let failed = |why| Failure::Driver(place, why);
    let mut status = DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER;
    transport.set_status(DeviceStatus::empty());
    transport.set_status(status);
    let features = transport.read_device_features() & FEATURES;
    transport.write_driver_features(features);
    status |= DeviceStatus::FEATURES_OK;
    transport.set_status(status);
    let mut queue = |number| Queue::new(&mut transport, number, false, false).map_err(failed);
    let (mut inflate, mut deflate, mut report) = (queue(INFLATE)?, queue(DEFLATE)?, queue(REPORT)?);
    transport.set_status(status | DeviceStatus::DRIVER_OK);

    fill(pages, 1);
    pass(pages, |numbers| inflate.add_notify_wait_pop(&[numbers], &mut [], &mut transport)).map_err(failed)?;
    pass(pages, |numbers| deflate.add_notify_wait_pop(&[numbers], &mut [], &mut transport)).map_err(failed)?;
    are(pages, 0)?;
    fill(pages, 2);
    are(pages, 2)?;
    for start in pages.clone().step_by(HUGE_PAGE as usize) {
        let first = core::ptr::with_exposed_provenance_mut::<u8>(start as usize);
        // SAFETY: free RAM, which nothing else uses.
        let bytes = unsafe { core::slice::from_raw_parts_mut(first, HUGE_PAGE as usize) };
        report.add_notify_wait_pop(&[], &mut [bytes], &mut transport).map_err(failed)?;
    }
    are(pages, 0)?;
    println!("virtio: {} pages were given up twice", (pages.end - pages.start) / PAGE);
    println!("guest check: ok");
    Ok(())
}

/// Passes the numbers of all pages on.
fn pass(pages: &Range<u64>, mut on: impl FnMut(&[u8]) -> virtio_drivers::Result<u32>) -> virtio_drivers::Result<()> {
    let mut numbers = [0; 4 * NUMBERS];
    for first in pages.clone().step_by(NUMBERS * PAGE as usize) {
        let last = pages.end.min(first + NUMBERS as u64 * PAGE);
        let mut count = 0;
        for (page, number) in (first..last).step_by(PAGE as usize).zip(numbers.chunks_exact_mut(4)) {
            number.copy_from_slice(&((page / PAGE) as u32).to_le_bytes());
            count += 1;
        }
        on(&numbers[..4 * count])?;
    }
    Ok(())
}

/// Writes a word of each page, by the page and `round`.
fn fill(pages: &Range<u64>, round: u64) {
    for page in pages.clone().step_by(PAGE as usize) {
        // SAFETY: a word of free RAM.
        unsafe { memory::write(page, page + round) };
    }
}

/// Checks these words. Those of round 0 are zero.
fn are(pages: &Range<u64>, round: u64) -> Result<(), Failure> {
    for page in pages.clone().step_by(PAGE as usize) {
        let expected = if round == 0 { 0 } else { page + round };
        // SAFETY: a word of free RAM.
        let found = unsafe { memory::read(page) };
        if found != expected {
            return Err(Failure::Page(page, found));
        }
    }
    Ok(())
}
