// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `busy=ROUNDS`: has several requests of each disk in flight all the time: each round writes all of the disk with a content of
//! its own, and then reads it. The guest may be somewhere else meanwhile. A write that is lost, or that is done once more after
//! another one of its sector, shows as another content.

use twofold_abi::virt::VIRTIO_COUNT;
use virtio_drivers::Error;
use virtio_drivers::device::blk::{BlkReq, BlkResp, SECTOR_SIZE, VirtIOBlk};
use virtio_drivers::transport::mmio::MmioTransport;
use virtio_drivers::transport::{DeviceType, Transport};

use super::disk::{check, fill};
use super::dma::{self, Dma};
use super::{Failure, transport};
use crate::memory::Memory;
use crate::uart::println;

/// Requests in flight.
const REQUESTS: usize = 4;
/// Sectors of a request: more than one transfer of the machine's.
const SECTORS: usize = 40;
/// Its bytes.
const SIZE: usize = SECTORS * SECTOR_SIZE;

type Disk = VirtIOBlk<Dma, MmioTransport<'static>>;

pub fn run(memory: &Memory, rounds: u64) -> Result<(), Failure> {
    dma::begin(memory)?;
    for place in 0..VIRTIO_COUNT {
        match transport(place)? {
            Some(transport) if transport.device_type() == DeviceType::Block => use_disk(place, transport, rounds)?,
            _ => {}
        }
    }
    println!("guest check: ok");
    Ok(())
}

fn use_disk(place: usize, transport: MmioTransport<'static>, rounds: u64) -> Result<(), Failure> {
    let mut disk = Disk::new(transport).map_err(|why| Failure::Driver(place, why))?;
    let buffer = dma::pages((REQUESTS * SIZE).div_ceil(4096)).ok_or(Failure::NoMemory)?;
    let groups = disk.capacity() as usize / SECTORS / REQUESTS;
    for round in 0..rounds {
        println!("busy: round {round}");
        let round = round as u8;
        for is_write in [true, false] {
            for first in (0..groups).map(|group| group * REQUESTS * SECTORS) {
                match is_write {
                    true => fill(buffer, first, round),
                    false => buffer.fill(0),
                }
                all(&mut disk, first, buffer, is_write).map_err(|why| Failure::Driver(place, why))?;
                if !is_write {
                    check(place, &buffer[..REQUESTS * SIZE], first, round)?;
                }
            }
        }
    }
    println!("busy: {rounds} rounds of {} sectors", groups * REQUESTS * SECTORS);
    Ok(())
}

/// Makes all requests of a group, and waits for them in the order in which they end.
fn all(disk: &mut Disk, first: usize, buffer: &mut [u8], is_write: bool) -> Result<(), Error> {
    let mut requests: [(BlkReq, BlkResp, u16); REQUESTS] = Default::default();
    for (number, (request, response, token)) in requests.iter_mut().enumerate() {
        let (sector, part) = (first + number * SECTORS, &mut buffer[number * SIZE..][..SIZE]);
        // SAFETY: what is passed stays where it is until the loop below has ended it, and nothing else uses it until then.
        *token = unsafe {
            match is_write {
                true => disk.write_blocks_nb(sector, request, part, response),
                false => disk.read_blocks_nb(sector, request, part, response),
            }
        }?;
    }
    for _ in 0..REQUESTS {
        let ended = loop {
            if let Some(token) = disk.peek_used() {
                break token;
            }
        };
        let found = requests.iter_mut().enumerate().find(|(_, (.., token))| *token == ended);
        let Some((number, (request, response, token))) = found else { return Err(Error::WrongToken) };
        let part = &mut buffer[number * SIZE..][..SIZE];
        // SAFETY: this is what was passed with this token.
        unsafe {
            match is_write {
                true => disk.complete_write_blocks(*token, request, part, response),
                false => disk.complete_read_blocks(*token, request, part, response),
            }
        }?;
    }
    Ok(())
}
