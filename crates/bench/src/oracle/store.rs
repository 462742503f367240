// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The page store of the judged guest: a file, whose answers come late and out of order, and some of which fail.
//!
//! While the oracle runs, pages leave by their age and at random, and writers that need an absent page wait for it
//! outside the gate ([`crew`](super::crew)), so holding all writers waits for no store.
//!
//! Invariants:
//!
//! * A page begins to leave only in [`Shelf::relieve`] and [`Shelf::send_away`]. While all writers are held, only the
//!   collector's thread calls these. So a frame that the judge has found stays that page's while the judge reads it.
//! * Each request of the guest's memory is answered, also after the run is over.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use twofold_machine::fast::FastPlatform;
use twofold_machine::file_store::{FileStore, FileStoreCounts, FileStoreOptions};
use twofold_memory::GuestMemory;
use twofold_memory::async_fault::Arrival;
use twofold_memory::swap::{
    Completions, Failure, Generations, NotBegun, Notify, Peeked, Place, ReadRequest, StoreError, SwapOptions, Unasked,
    Waiter, WriteRequest, WrittenOut,
};
use twofold_oracle::{Page, Random};
use twofold_stage2::Ipa;

use super::guest::{PAGE, PAGES, VCPUS};

/// How a guest's store behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorePlan {
    /// The most bytes of the guest in memory.
    pub limit: u64,
    /// One request in this many fails.
    pub fails: u64,
}

/// A guest's store, and what its pages did.
pub struct Shelf {
    file: Arc<FileStore>,
    reports: Arc<Reports>,
    plan: StorePlan,
    ages: Mutex<Generations>,
    left: AtomicU64,
    failed: AtomicU64,
    compared: AtomicU64,
}

/// What the store and the guest's pages did in a run.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// Pages that left memory.
    pub left: u64,
    /// Pages that writers waited for, and that came back.
    pub brought: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Comparisons of pages that were not in memory.
    pub compared: u64,
    /// What the file did, for the judge too.
    pub file: FileStoreCounts,
}

/// Threads that serve the file, so that requests overtake each other.
pub const SERVERS: usize = 2;
/// Frames that the write-out task keeps free.
const HEADROOM: u64 = 16;
/// An answer in this many is late, by this much at most.
const LATE: u64 = 64;
const DELAY: u64 = 200;

impl Shelf {
    /// Attaches a store in a new file to a guest's memory, and limits the memory.
    pub fn attach(
        memory: &mut GuestMemory<FastPlatform>,
        plan: StorePlan,
        random: &mut Random,
    ) -> anyhow::Result<Self> {
        // Room for a copy of each page, and for pages that leave before their old place is discarded.
        let options = FileStoreOptions { compress: random.once_in(2), ..FileStoreOptions::new(2 * PAGES) };
        let (file, reports) = (Arc::new(FileStore::new(tempfile::tempfile()?, &options)?), Arc::default());
        let options = SwapOptions { vcpus: VCPUS as u32, others: VCPUS as u32 + 1, headroom: HEADROOM };
        memory.attach_store(Box::new(Arc::clone(&file)), Box::new(Arc::clone(&reports)), &options)?;
        memory.set_limit(plan.limit / PAGE)?;
        let (left, failed, compared) = Default::default();
        Ok(Self { file, reports, plan, ages: Mutex::new(Generations::new()), left, failed, compared })
    }

    /// Serves the file, until the run is over and nothing is left to do.
    pub fn serve(&self, memory: &GuestMemory<FastPlatform>, random: Random) {
        self.file.serve(&Unreliable { memory, shelf: self, random: RefCell::new(random) });
    }

    /// Waits until a page is in memory, or the run is over. `waiter` is one writer's own number.
    pub fn bring(&self, memory: &GuestMemory<FastPlatform>, page: Ipa, waiter: u64) -> anyhow::Result<()> {
        loop {
            memory.bring(page, Waiter::Other(waiter))?;
            match self.reports.wait_for(waiter) {
                Some(Arrival::Present) | None => return Ok(()),
                // The store is mended at once.
                Some(Arrival::Failed) => {}
            }
        }
    }

    /// Has as many pages leave as there are frames wanted.
    pub fn relieve(&self, memory: &GuestMemory<FastPlatform>) {
        let wanted = memory.wants_frames();
        if wanted == 0 {
            return;
        }
        match lock(&self.ages).make_room(memory, wanted) {
            Ok(relief) => drop(self.left.fetch_add(relief.freed + relief.started, Ordering::Relaxed)),
            // No page could leave: those that wait ask again.
            Err(_) => drop(memory.fail_waiting()),
        }
    }

    /// Has a page leave without need, or ends a round of ageing.
    pub fn send_away(&self, memory: &GuestMemory<FastPlatform>, start: Ipa, random: &mut Random) {
        if random.once_in(64) {
            lock(&self.ages).round(memory);
            return;
        }
        let away = memory.write_out(start + random.below(PAGES) * PAGE);
        if let Ok(WrittenOut::Freed | WrittenOut::Started) = away {
            self.left.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a page that was not in memory and was read, if that is to compare it.
    pub fn note_compared(&self, is_compared: bool) {
        self.compared.fetch_add(u64::from(is_compared), Ordering::Relaxed);
    }

    /// Reads pages where they are, all at the same time.
    pub fn peek(&self, memory: &GuestMemory<FastPlatform>, start: Ipa, pages: &[u64]) -> Vec<Box<Page>> {
        let peek = |page| memory.peek(start + page * PAGE).expect("the guest has a store, and RAM there");
        let mut read: Vec<_> = pages.iter().map(|page| (Some(peek(*page)), Box::new([0; PAGE as usize]))).collect();
        loop {
            for (peek, bytes) in &mut read {
                if peek.as_mut().is_some_and(|peek| peek.look(bytes) == Peeked::Read) {
                    *peek = None;
                }
            }
            if read.iter().all(|(peek, _)| peek.is_none()) {
                return read.into_iter().map(|(_, bytes)| bytes).collect();
            }
            self.relieve(memory);
            thread::yield_now();
        }
    }

    /// Whether the memory is within its limit.
    pub fn is_within_limit(&self, memory: &GuestMemory<FastPlatform>) -> bool {
        let used = memory.frame_use();
        used.data <= used.limit
    }

    /// The run is over: no writer waits any longer, and the file is served to its end.
    pub fn end(&self) {
        self.reports.end();
        self.file.close();
    }

    /// What the pages did.
    pub fn moved(&self) -> Moved {
        let brought = lock(&self.reports.state).brought;
        let [left, failed, compared] =
            [&self.left, &self.failed, &self.compared].map(|count| count.load(Ordering::Relaxed));
        Moved { left, brought, failed, compared, file: self.file.counts() }
    }
}

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { left, brought, failed, compared, file } = self;
        let (read, ahead, written) = (file.pages_read, file.pages_ahead, file.pages_written);
        write!(
            f,
            "{left} pages left, {brought} came back for a writer and {ahead} were read ahead, {compared} were compared \
             while absent; the file wrote {written} and read {read}, {failed} requests failed"
        )
    }
}

/// What the guest's memory reports.
#[derive(Default)]
struct Reports {
    state: Mutex<Reported>,
    bell: Condvar,
}

#[derive(Default)]
struct Reported {
    arrived: BTreeMap<u64, Arrival>,
    brought: u64,
    is_over: bool,
}

impl Reports {
    /// Waits for a writer's page. `None`: the run is over.
    fn wait_for(&self, waiter: u64) -> Option<Arrival> {
        let mut state = lock(&self.state);
        loop {
            if state.is_over {
                return None;
            }
            if let Some(arrival) = state.arrived.remove(&waiter) {
                state.brought += u64::from(arrival == Arrival::Present);
                return Some(arrival);
            }
            state = self.bell.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn end(&self) {
        lock(&self.state).is_over = true;
        self.bell.notify_all();
    }
}

impl Notify for Reports {
    fn arrived(&self, waiter: Waiter, arrival: Arrival) {
        let Waiter::Other(number) = waiter else { unreachable!("no vCPU waits with a ticket") };
        lock(&self.state).arrived.insert(number, arrival);
        self.bell.notify_all();
    }

    /// [`Unreliable`] counts them.
    fn failed(&self, _: &Failure) {}

    /// The write-out task looks by itself.
    fn frames_wanted(&self) {}
}

/// The guest's memory as the file sees it: some answers are late, and some of those that were good are failures.
struct Unreliable<'a> {
    memory: &'a GuestMemory<FastPlatform>,
    shelf: &'a Shelf,
    random: RefCell<Random>,
}

impl Unreliable<'_> {
    fn answer(&self, result: Result<(), StoreError>) -> Result<(), StoreError> {
        let random = &mut *self.random.borrow_mut();
        if random.once_in(LATE) {
            thread::sleep(Duration::from_micros(random.below(DELAY)));
        }
        let result = if random.once_in(self.shelf.plan.fails) { Err(StoreError::Device { code: 5 }) } else { result };
        self.shelf.failed.fetch_add(u64::from(result.is_err()), Ordering::Relaxed);
        result
    }
}

impl Completions for Unreliable<'_> {
    fn copy_out(&self, request: &WriteRequest, bytes: &mut Page) {
        self.memory.copy_out(request, bytes);
    }

    fn copy_in(&self, request: &ReadRequest, bytes: &Page) {
        self.memory.copy_in(request, bytes);
    }

    fn begin_read(&self, page: Ipa, place: Place, content: Unasked) -> Result<ReadRequest, NotBegun> {
        self.memory.begin_read(page, place, content)
    }

    fn make_zero(&self, page: Ipa, place: Place) -> Result<(), NotBegun> {
        self.memory.make_zero(page, place)
    }

    fn complete_write(&self, request: WriteRequest, result: Result<(), StoreError>) {
        self.memory.complete_write(request, self.answer(result));
    }

    fn complete_read(&self, request: ReadRequest, result: Result<(), StoreError>) {
        self.memory.complete_read(request, self.answer(result));
    }
}

/// The data behind these locks is valid at any time, so a poisoned lock is harmless.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
