// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The store of a post-copy target: absent pages are at the source, and come over the link.
//!
//! | step | a vCPU that needs an absent page | the thread that reads the link |
//! |---|---|---|
//! | F1 | The memory asks the store for it ([`PageStore::read`]). | A page comes. |
//! | F2 | Under the lock: if the page has come, F4. Else the request is kept, and the source is asked. | Under the lock: the page is kept, and its request is taken if there is one. |
//! | F3 | | With a request: F4. Without one, the memory is asked to bring the page, which leads to F1. |
//! | F4 | The frame is filled, copied for the judge, and then given to the guest. Under the lock: the page is not absent any more. | the same |
//!
//! Both sides do F2 under one lock, so a page that has come and a request for it always meet. Each request is completed
//! once: it is taken out of the list to complete it.
//!
//! Invariant: the copy for the judge is taken from the guest's frame after it was filled and before any vCPU can reach it.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use anyhow::Context;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use twofold_machine::arena::Arena;
use twofold_machine::fast::FastPlatform;
use twofold_memory::GuestMemory;
use twofold_memory::swap::{Completions, PageStore, Place, ReadRequest, StoreError, Waiter, WriteRequest};
use twofold_migration::postcopy::{FetchError, Incoming, Need, Target};
use twofold_migration::stream::{Slot, Writer};
use twofold_stage2::{Ipa, Pa};

use super::link::{Receiver, Sender};
use super::settings::PAGE;

type Bytes = Box<[u8; PAGE as usize]>;

/// The pages at the source.
pub struct PeerStore {
    state: Mutex<State>,
    bell: Condvar,
    arena: OnceLock<Arc<Arena>>,
    /// The content of each absent page as the guest got it, at its page's offset in the first memslot.
    copies: File,
}

#[derive(Default)]
struct State {
    /// Requests for pages that have not come.
    reads: BTreeMap<Place, ReadRequest>,
    /// Pages that have come, and are not in memory yet.
    came: BTreeMap<Place, Bytes>,
    link: Option<Link>,
    /// The link is cut, or a copy could not be written.
    failed: Option<String>,
}

struct Link {
    target: Target,
    answers: Writer<Sender>,
}

/// The place of a page, by the index of its memslot.
pub fn place_of(slot: usize, page: u64) -> Place {
    Place::new((slot as u64) << SLOT | page)
}

const SLOT: u32 = 48;

fn page_of(place: Place) -> (usize, u64) {
    ((place.raw() >> SLOT) as usize, place.raw() & ((1 << SLOT) - 1))
}

impl PeerStore {
    /// A store without a link yet.
    ///
    /// # Errors
    ///
    /// The file for the copies cannot be made.
    pub fn new(slots: &[Slot]) -> anyhow::Result<Arc<Self>> {
        let pages = slots.first().map_or(0, |slot| slot.pages);
        let copies = memfd_create("twofold-copies", MemfdFlags::CLOEXEC)?;
        ftruncate(&copies, pages * PAGE)?;
        let (state, bell, arena) = (Mutex::default(), Condvar::new(), OnceLock::new());
        Ok(Arc::new(Self { state, bell, arena, copies: copies.into() }))
    }

    /// The memory whose frames are filled.
    pub fn watch(&self, arena: &Arc<Arena>) {
        // Set once, when the guest is made.
        let _ = self.arena.set(Arc::clone(arena));
    }

    /// The path by which other processes open the copies.
    pub fn copies_file(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.copies.as_raw_fd()).into()
    }

    /// Fetches all absent pages. Returns the answers' stream when the last has come.
    ///
    /// # Errors
    ///
    /// The link is cut.
    pub fn fetch(
        &self,
        memory: &GuestMemory<FastPlatform>,
        (target, mut incoming): (Target, Incoming<Receiver>),
        answers: Writer<Sender>,
        waiter: u64,
    ) -> anyhow::Result<Writer<Sender>> {
        let slots: Vec<_> = target.slots().to_vec();
        let mut left = target.absent().count();
        self.attach(Link { target, answers })?;
        while left > 0 {
            let came = incoming.next()?;
            for page in came.page..came.page + u64::from(came.count) {
                let mut bytes: Bytes = Box::new([0; PAGE as usize]);
                if let Some(content) = came.bytes {
                    bytes.copy_from_slice(content);
                }
                if self.came(memory, (came.slot, page), bytes) {
                    left -= 1;
                    // A vCPU may have asked for it meanwhile, and then this finds it.
                    memory.bring(Ipa::new((slots[came.slot].first + page) * PAGE), Waiter::Other(waiter))?;
                }
            }
        }
        // A page that came last may be on its way into memory by a vCPU's thread.
        let mut state = self.lock();
        loop {
            if let Some(why) = &state.failed {
                anyhow::bail!("{why}");
            }
            match &state.link {
                Some(link) if !link.target.absent().is_empty() => {
                    state = self.bell.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                _ => break,
            }
        }
        Ok(state.link.take().context("the link is gone")?.answers)
    }

    /// Ends all requests: the link is cut. The guest stands still then.
    pub fn cut(&self, memory: &GuestMemory<FastPlatform>, why: &anyhow::Error) {
        let reads = {
            let mut state = self.lock();
            state.failed.get_or_insert_with(|| format!("{why:#}"));
            std::mem::take(&mut state.reads)
        };
        reads.into_values().for_each(|request| memory.complete_read(request, Err(StoreError::Ended)));
    }

    /// The link is there: asks for the pages that vCPUs wait for already.
    fn attach(&self, mut link: Link) -> Result<(), FetchError> {
        let mut state = self.lock();
        state.reads.keys().try_for_each(|place| link.ask(*place))?;
        state.link = Some(link);
        Ok(())
    }

    /// F2 and F3 of a page that has come. Returns whether it was absent.
    fn came(&self, memory: &GuestMemory<FastPlatform>, (slot, page): (usize, u64), bytes: Bytes) -> bool {
        let place = place_of(slot, page);
        let request = {
            let mut state = self.lock();
            let wants = state.link.as_ref().is_some_and(|link| link.target.wants(slot, page));
            if !wants || state.came.contains_key(&place) {
                return false;
            }
            match state.reads.remove(&place) {
                Some(request) => request,
                None => {
                    state.came.insert(place, bytes);
                    return true;
                }
            }
        };
        self.fill(memory, request, &bytes);
        true
    }

    /// F4.
    fn fill(&self, memory: &dyn Completions, request: ReadRequest, bytes: &Bytes) {
        let (slot, page) = page_of(request.place());
        memory.copy_in(&request, bytes);
        let copied = self.copy(request.frame().pa(), page);
        memory.complete_read(request, Ok(()));
        let mut state = self.lock();
        if let Err(error) = copied {
            state.failed.get_or_insert_with(|| format!("{error:#}"));
        }
        if let Some(link) = &mut state.link {
            link.target.stored(slot, page);
        }
        drop(state);
        self.bell.notify_all();
    }

    /// Copies a frame for the judge.
    fn copy(&self, frame: Pa, page: u64) -> anyhow::Result<()> {
        let words = self.arena.get().and_then(|arena| arena.words(frame, PAGE / 8));
        let words = words.with_context(|| format!("the frame at {frame} is not in the machine's memory"))?;
        let bytes: Vec<_> = words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
        Ok(self.copies.write_all_at(&bytes, page * PAGE)?)
    }

    /// The state is valid at any time, so a poisoned lock is harmless.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    fn ask(&mut self, place: Place) -> Result<(), FetchError> {
        let (slot, page) = page_of(place);
        if self.target.need(slot, page) == Need::Ask {
            let number = self.target.slots()[slot].number;
            self.answers.request(true, number, page, 1)?;
        }
        Ok(())
    }
}

impl PageStore for PeerStore {
    /// No page leaves.
    fn place(&self, _: Ipa) -> Option<Place> {
        None
    }

    fn write(&self, memory: &dyn Completions, request: WriteRequest) {
        memory.complete_write(request, Err(StoreError::Ended));
    }

    /// F2 of a page that is needed.
    fn read(&self, memory: &dyn Completions, request: ReadRequest) {
        let place = request.place();
        let bytes = {
            let mut state = self.lock();
            match state.came.remove(&place) {
                Some(bytes) => bytes,
                None if state.failed.is_some() => {
                    drop(state);
                    return memory.complete_read(request, Err(StoreError::Ended));
                }
                None => {
                    let State { link, failed, .. } = &mut *state;
                    if let Some(Err(error)) = link.as_mut().map(|link| link.ask(place)) {
                        // The thread that reads the link finds it cut too.
                        failed.get_or_insert_with(|| error.to_string());
                    }
                    state.reads.insert(place, request);
                    return;
                }
            }
        };
        self.fill(memory, request, &bytes);
    }

    fn discard(&self, _: Place) {}
}
