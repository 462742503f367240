// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The store of a post-copy target, as the judge sees it: the source's pages ([`Peer`]), each copied on its way in.
//!
//! [`Judged`] is between the memory and the peer in both directions: the memory asks it, and the peer fills the memory by
//! it. Each call is passed on.
//!
//! Invariant: a page is copied from the guest's frame after it was filled, and before it is given to the guest: no vCPU can
//! reach it before. A page of zeroes has no frame; its copy is zeroes.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver as Bell, Sender as Rope};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, bail};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use twofold_machine::arena::Arena;
use twofold_machine::fast::{FastMachine, FastPlatform};
use twofold_memory::GuestMemory;
use twofold_memory::swap::{Completions, NotBegun, PageStore, Place, ReadRequest, StoreError, Unasked, WriteRequest};
use twofold_migration::PageSet;
use twofold_migration::postcopy::{Incoming, Peer, TargetState};
use twofold_migration::stream::{Slot, Writer};
use twofold_stage2::{Ipa, Pa};

use super::link::{Receiver, Sender};
use super::settings::PAGE;

/// The pages at the source, each copied when it comes.
pub struct Judged {
    peer: Peer<FastPlatform>,
    arena: Arc<Arena>,
    /// The first memslot: the guest has no other.
    slot: Slot,
    /// The content of each page as the guest got it, at the page's offset in the memslot.
    file: File,
    copies: Mutex<Copies>,
    /// Rung when the source is to be asked for pages; `false` ends that.
    rope: Rope<bool>,
    bell: Mutex<Bell<bool>>,
}

/// What was copied.
struct Copies {
    pages: PageSet,
    failed: Option<String>,
}

/// A guest's memory that has its pages from a store with a judge.
struct Filled<'a> {
    memory: &'a dyn Completions,
    judged: &'a Judged,
}

impl Judged {
    /// The store of a guest on this machine, without a link yet.
    ///
    /// # Errors
    ///
    /// The file for the copies cannot be made; or there is no memslot.
    pub fn new(machine: &Arc<FastMachine>, slots: &[Slot]) -> anyhow::Result<Arc<Self>> {
        let slot = *slots.first().context("the guest has no memslots")?;
        let file = memfd_create("twofold-copies", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, slot.pages * PAGE)?;
        let (rope, bell) = mpsc::channel();
        let rings = rope.clone();
        let asks = Box::new(move || {
            // The other end is here, too, so there is one.
            let _ = rings.send(true);
        });
        Ok(Arc::new(Self {
            peer: Peer::new(FastPlatform(Arc::clone(machine)), slots, asks),
            arena: Arc::clone(machine.arena()),
            slot,
            file: file.into(),
            copies: Mutex::new(Copies { pages: PageSet::none(slots), failed: None }),
            rope,
            bell: Mutex::new(bell),
        }))
    }

    /// The peer.
    pub fn peer(&self) -> &Peer<FastPlatform> {
        &self.peer
    }

    /// The path by which other processes open the copies.
    pub fn copies_file(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }

    /// The pages that were copied.
    pub fn copied(&self) -> PageSet {
        self.lock().pages.clone()
    }

    /// Fetches all absent pages. Returns the answers' stream when the last is in memory.
    ///
    /// # Errors
    ///
    /// The link is cut, and what waits for a page knows it; or a page could not be copied.
    pub fn fetch(
        &self,
        memory: &GuestMemory<FastPlatform>,
        mut incoming: Incoming<Receiver>,
        mut answers: Writer<Sender>,
    ) -> anyhow::Result<Writer<Sender>> {
        let memory = Filled { memory, judged: self };
        let answers = thread::scope(|scope| {
            let asks = scope.spawn(|| -> anyhow::Result<_> {
                let bell = self.bell.lock().unwrap_or_else(PoisonError::into_inner);
                while bell.recv()? {
                    // All pages come in the end, asked for or not: the thread that reads them goes on.
                    self.peer.ask(&mut answers).context("the source cannot be asked for pages")?;
                }
                Ok(answers)
            });
            let mut came = Ok(());
            while came.is_ok() && self.peer.state() != TargetState::Complete {
                if self.peer.has_all() {
                    // A vCPU's thread stores the last page.
                    thread::yield_now();
                } else {
                    came = self.peer.receive(&memory, &mut incoming);
                }
            }
            let _ = self.rope.send(false);
            let answers = asks.join().unwrap_or_else(|_| bail!("a thread has panicked"));
            came?;
            answers
        })?;
        match &self.lock().failed {
            Some(why) => bail!("a page was not copied: {why}"),
            None => Ok(answers),
        }
    }

    /// Notes a page's copy.
    fn note(&self, page: Ipa, copied: anyhow::Result<()>) {
        let mut copies = self.lock();
        match copied {
            Ok(()) => {
                copies.pages.insert(0, self.number(page));
            }
            Err(error) => {
                copies.failed.get_or_insert_with(|| format!("{error:#}"));
            }
        }
    }

    /// Copies a frame.
    fn copy(&self, page: Ipa, frame: Pa) -> anyhow::Result<()> {
        let words = self.arena.words(frame, PAGE / 8);
        let words = words.with_context(|| format!("the frame at {frame} is not in the machine's memory"))?;
        let bytes: Vec<_> = words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
        Ok(self.file.write_all_at(&bytes, self.number(page) * PAGE)?)
    }

    /// A page's number in the memslot.
    fn number(&self, page: Ipa) -> u64 {
        page.raw() / PAGE - self.slot.first
    }

    /// The state is valid at any time, so a poisoned lock is harmless.
    fn lock(&self) -> MutexGuard<'_, Copies> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PageStore for Judged {
    fn place(&self, page: Ipa) -> Option<Place> {
        self.peer.place(page)
    }

    fn write(&self, memory: &dyn Completions, request: WriteRequest) {
        self.peer.write(memory, request);
    }

    fn read(&self, memory: &dyn Completions, request: ReadRequest) {
        self.peer.read(&Filled { memory, judged: self }, request);
    }

    fn discard(&self, place: Place) {
        self.peer.discard(place);
    }

    fn keeps_what_is_read(&self, place: Place) -> bool {
        self.peer.keeps_what_is_read(place)
    }
}

impl Completions for Filled<'_> {
    fn copy_out(&self, request: &WriteRequest, bytes: &mut [u8; 4096]) {
        self.memory.copy_out(request, bytes);
    }

    fn copy_in(&self, request: &ReadRequest, bytes: &[u8; 4096]) {
        self.memory.copy_in(request, bytes);
    }

    fn begin_read(&self, page: Ipa, place: Place, content: Unasked) -> Result<ReadRequest, NotBegun> {
        self.memory.begin_read(page, place, content)
    }

    fn make_zero(&self, page: Ipa, place: Place) -> Result<(), NotBegun> {
        self.memory.make_zero(page, place).inspect(|()| self.judged.note(page, Ok(())))
    }

    fn complete_write(&self, request: WriteRequest, result: Result<(), StoreError>) {
        self.memory.complete_write(request, result);
    }

    fn complete_read(&self, request: ReadRequest, result: Result<(), StoreError>) {
        if result.is_ok() {
            self.judged.note(request.page(), self.judged.copy(request.page(), request.frame().pa()));
        }
        self.memory.complete_read(request, result);
    }
}
