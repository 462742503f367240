// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The stages of a pass, each as a migration does it, and as the library that it uses does it alone over the same bytes.
//!
//! | stage | as a migration does it | alone |
//! |---|---|---|
//! | read | each page out of the guest's memory (`GuestRam::read`) | each page by `copy_from_slice` |
//! | scan | the stream's writer without compression, to nowhere: find zero pages, checksum, records | XXH3 of each page |
//! | read and scan | a stopped guest saved without compression to nowhere: both by the driver | both of these |
//! | send | a stopped guest saved through a buffer to a socket, less the same to nowhere | the same bytes to the socket in calls as large |
//! | compress | the stream's writer with lz4, pages that are not zero: zero test, lz4, checksum, records | lz4 of these pages |
//! | encrypt | the stream's records through a sealed link to nowhere | ChaCha20-Poly1305 of the same bytes in frames |

use std::hint::black_box;

use anyhow::Context;
use chacha20poly1305::aead::AeadInPlace;
use chacha20poly1305::{ChaCha20Poly1305, KeyInit, Nonce};
use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};
use twofold_migration::commit::{Owner, Ownership};
use twofold_migration::ram::SourceRam;
use twofold_migration::sealed::SealedWriter;
use twofold_migration::snapshot::{Stopped, save};
use twofold_migration::stream::{Compression, Writer};
use xxhash_rust::xxh3::xxh3_64;

use super::guest::{Guest, PAGE};
use super::link::{Nowhere, Opened, Recorded, Socket, sealed};
use crate::clock::Moment;
use crate::experiment::host_clock::Threads;

/// A stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Pages come out of the guest's memory.
    Read,
    /// Zero pages are found, and the others get a checksum.
    Scan,
    /// Both, as the driver does them.
    Pass,
    /// Records go through a socket.
    Send,
    /// Pages are compressed.
    Compress,
    /// Records are encrypted and authenticated.
    Encrypt,
}

impl Stage {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Read, Self::Scan, Self::Pass, Self::Send, Self::Compress, Self::Encrypt];

    /// The stage's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Scan => "scan",
            Self::Pass => "read and scan",
            Self::Send => "send",
            Self::Compress => "compress",
            Self::Encrypt => "encrypt",
        }
    }
}

/// What both sides of a comparison need for a part of the guest.
pub struct Stages<'g> {
    guest: &'g Guest,
    part: usize,
    /// The part's bytes.
    bytes: Vec<u8>,
    /// The pages that are not zero, by their number.
    content: Vec<usize>,
    /// The stream's records of the part.
    records: Recorded,
    page: Vec<u8>,
    packed: Vec<u8>,
    table: CompressTable,
    socket: Option<Socket>,
    sealed: SealedWriter<Opened>,
    cipher: ChaCha20Poly1305,
    frame: Vec<u8>,
    frames: u64,
}

impl<'g> Stages<'g> {
    /// Makes sockets, buffers and keys.
    ///
    /// # Errors
    ///
    /// The system has no socket or no random numbers.
    pub fn new(guest: &'g Guest, part: u64) -> anyhow::Result<Self> {
        Ok(Self {
            guest,
            part: 0,
            bytes: vec![0; part as usize],
            content: Vec::new(),
            records: Recorded::default(),
            page: vec![0; PAGE],
            packed: vec![0; get_maximum_output_size(PAGE)],
            table: CompressTable::small(),
            socket: Some(Socket::new()?),
            sealed: sealed()?,
            cipher: ChaCha20Poly1305::new(&[7; 32].into()),
            frame: vec![0; FRAME],
            frames: 0,
        })
    }

    /// Goes to a part.
    ///
    /// # Errors
    ///
    /// There is no such part.
    pub fn go_to(&mut self, part: usize) -> anyhow::Result<()> {
        self.part = part;
        self.guest.copy(part, &mut self.bytes)?;
        let pages = self.bytes.as_chunks::<PAGE>().0.iter().enumerate();
        self.content = pages.filter(|(_, page)| page.iter().any(|byte| *byte != 0)).map(|(number, _)| number).collect();
        let mut records = std::mem::take(&mut self.records);
        records.clear();
        self.save(&mut records)?;
        self.records = records;
        Ok(())
    }

    /// The bytes that a stage goes over.
    pub fn size(&self, stage: Stage) -> u64 {
        let bytes = match stage {
            Stage::Read | Stage::Scan | Stage::Pass => self.bytes.len(),
            Stage::Compress => self.content.len() * PAGE,
            Stage::Send | Stage::Encrypt => self.records.bytes.len(),
        };
        bytes as u64
    }

    /// Does a stage as a migration does it. Returns its nanoseconds of CPU time.
    ///
    /// # Errors
    ///
    /// A socket failed.
    pub fn ours(&mut self, stage: Stage) -> anyhow::Result<f64> {
        let begin = Moment::now();
        match stage {
            Stage::Read => {
                let ram = self.guest.ram(self.part)?;
                for page in 0..(self.bytes.len() / PAGE) as u64 {
                    // The guest has no page store, so each page is read at once.
                    let _ = ram.read(0, page, &mut self.page)?;
                    black_box(&self.page);
                }
            }
            Stage::Scan => self.write(Compression::Off, 0..self.bytes.len() / PAGE)?,
            Stage::Pass => self.save(&mut Nowhere)?,
            Stage::Send => {
                self.save(&mut Nowhere)?;
                let without = begin.elapsed();
                let begin = Moment::now();
                let mut socket = std::mem::take(&mut self.socket).context("no socket")?;
                self.save(&mut socket)?;
                self.socket = Some(socket);
                // What a disturbed run without the socket took is no reason for less than nothing.
                return Ok((begin.elapsed() - without).max(1.0));
            }
            Stage::Compress => self.write(Compression::Lz4, self.content.iter().copied())?,
            Stage::Encrypt => self.records.replay(&mut self.sealed)?,
        }
        Ok(begin.elapsed())
    }

    /// Does a stage by the library alone. Returns its nanoseconds of CPU time.
    ///
    /// # Errors
    ///
    /// A socket failed.
    pub fn alone(&mut self, stage: Stage) -> anyhow::Result<f64> {
        let begin = Moment::now();
        let pages = self.bytes.as_chunks::<PAGE>().0;
        match stage {
            Stage::Read => {
                for page in pages {
                    self.page.copy_from_slice(page);
                    black_box(&self.page);
                }
            }
            Stage::Scan => {
                for page in pages {
                    black_box(xxh3_64(page));
                }
            }
            Stage::Pass => {
                for page in pages {
                    self.page.copy_from_slice(page);
                    black_box(xxh3_64(&self.page));
                }
            }
            Stage::Send => self.socket.as_mut().context("no socket")?.write_plain(&self.records.bytes)?,
            Stage::Compress => {
                for page in &self.content {
                    let size = compress_into_with_table(&pages[*page], &mut self.packed, &mut self.table);
                    black_box(size.context("lz4 failed")?);
                }
            }
            Stage::Encrypt => {
                for bytes in self.records.bytes.chunks(FRAME) {
                    let frame = &mut self.frame[..bytes.len()];
                    // In place, as the cipher works.
                    frame.copy_from_slice(bytes);
                    let mut nonce = [0; 12];
                    nonce[4..].copy_from_slice(&self.frames.to_le_bytes());
                    self.frames += 1;
                    let tag = self.cipher.encrypt_in_place_detached(&Nonce::from(nonce), &[], frame);
                    black_box(tag.ok().context("the cipher failed")?);
                }
            }
        }
        Ok(begin.elapsed())
    }

    fn save(&self, sink: &mut impl embedded_io::Write) -> anyhow::Result<()> {
        let (hello, _) = self.guest.hello(self.part)?;
        let stopped = Stopped { ram: &self.guest.ram(self.part)?, hello, images: &[], state: &[], owned: OWNED };
        save(&stopped, sink, Compression::Off, &Threads)?;
        Ok(())
    }

    /// Writes pages to a stream that goes nowhere.
    fn write(&self, compression: Compression, numbers: impl Iterator<Item = usize>) -> anyhow::Result<()> {
        let (hello, slot) = self.guest.hello(self.part)?;
        let mut writer = Writer::new(Nowhere, compression);
        writer.hello(&hello)?;
        writer.slots(&[slot])?;
        writer.round(true)?;
        let pages = self.bytes.as_chunks::<PAGE>().0;
        for number in numbers {
            writer.page(slot.number, number as u64, &pages[number])?;
        }
        Ok(())
    }
}

const OWNED: Ownership = Ownership { owner: Owner { host: 1, incarnation: 1 }, epoch: 1 };
/// The most bytes of a frame of a sealed link.
const FRAME: usize = 65_535 - 16;
