// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A page store in a file: pages are written and read in clusters by threads that the embedder lends.
//!
//! Memory writes pages out one by one. The store gathers them in the order of their addresses, and writes a cluster by
//! one call, in one row of the file. When a guest reads sequentially, the store reads the neighbours of a page by the
//! same call ([`begin_read`](twofold_memory::GuestMemory::begin_read)). Pages of zeroes never get here, and a page that
//! was not changed keeps its place and is not written again: `memory` sees to both.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use twofold_machine::file_store::{FileStore, FileStoreOptions};
//! # fn example<P: twofold_stage2::Platform + Sync>(mut memory: twofold_memory::GuestMemory<P>, file: std::fs::File,
//! #     notify: Box<dyn twofold_memory::swap::Notify>, options: twofold_memory::swap::SwapOptions)
//! #     -> Result<(), Box<dyn std::error::Error>> {
//! let store = Arc::new(FileStore::new(file, &FileStoreOptions::new(1 << 20))?);
//! memory.attach_store(Box::new(Arc::clone(&store)), notify, &options)?;
//! // On a thread of its own, until the store is closed:
//! store.serve(&memory);
//! # Ok(()) }
//! ```
//!
//! # What can go wrong
//!
//! Each failure fails the request that it is about, so `memory` reports it and loses nothing.
//! [`FileStore::take_errors`] says more: which place, where in the file, and the system's number. A file that was cut,
//! or that holds something else than was written, is noticed: each page has a checksum. A file system that has less
//! room than was promised makes the store as small as it is; then it is full.
//!
//! Invariant: no lock of the store is held while it calls `memory`, or the system.

mod extents;
mod options;
mod packed;
mod places;
mod serve;

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::ops::Bound;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::fs::{FallocateFlags, fallocate};
use twofold_memory::swap::{Completions, PageStore, Place, ReadRequest, StoreError, Streams, Unasked, WriteRequest};
use twofold_stage2::Ipa;

pub use options::{FileStoreCounts, FileStoreError, FileStoreOptions};
use packed::PAGE;
use places::Places;

/// Errors that are kept.
const ERRORS: usize = 64;

/// A page store in a file, for one guest.
#[derive(Debug)]
pub struct FileStore {
    file: File,
    options: FileStoreOptions,
    state: Mutex<State>,
    /// There is work, or the store is closed.
    work: Condvar,
}

#[derive(Debug)]
struct State {
    places: Places,
    /// By their pages, so that neighbours are written together in whatever order they come.
    writes: BTreeMap<Ipa, WriteRequest>,
    /// The page that was written last. Writes go around in the order of their addresses, so that each has its turn.
    last: Ipa,
    /// Each with the pages that are read ahead with it.
    reads: VecDeque<Vec<ReadRequest>>,
    streams: Streams,
    errors: VecDeque<FileStoreError>,
    counts: FileStoreCounts,
    is_closed: bool,
}

/// What a thread does next.
enum Work {
    Write(Vec<WriteRequest>),
    Read(Vec<ReadRequest>),
}

impl FileStore {
    /// An empty store in this file, which is open for reading and writing. What the file holds is overwritten.
    ///
    /// # Errors
    ///
    /// [`FileStoreError::Empty`].
    pub fn new(file: File, options: &FileStoreOptions) -> Result<Self, FileStoreError> {
        let &FileStoreOptions { pages, cluster, read_ahead, .. } = options;
        if pages == 0 || cluster == 0 || read_ahead == 0 {
            return Err(FileStoreError::Empty { pages, cluster, read_ahead });
        }
        let state = State {
            places: Places::new(pages),
            writes: BTreeMap::new(),
            last: Ipa::new(u64::MAX),
            reads: VecDeque::new(),
            streams: Streams::default(),
            errors: VecDeque::new(),
            counts: FileStoreCounts::default(),
            is_closed: false,
        };
        Ok(Self { file, options: *options, state: Mutex::new(state), work: Condvar::new() })
    }

    /// The same, with the room in the file system taken now. Without this, a file system that fills up meanwhile makes
    /// the store smaller than promised.
    ///
    /// # Errors
    ///
    /// [`FileStoreError::Smaller`] with the pages that there is room for; [`FileStoreError::Empty`].
    pub fn reserve(file: File, options: &FileStoreOptions) -> Result<Self, FileStoreError> {
        let store = Self::new(file, options)?;
        let bytes = options.pages.saturating_mul(PAGE as u64);
        fallocate(&store.file, FallocateFlags::empty(), 0, bytes).map_err(|error| FileStoreError::Smaller {
            promised: options.pages,
            found: size(&store.file) / PAGE as u64,
            code: error.raw_os_error(),
        })?;
        Ok(store)
    }

    /// Ends [`serve`](Self::serve) on each thread, when what was asked for is done. Requests that come later fail.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.work.notify_all();
    }

    /// What the store did so far.
    pub fn counts(&self) -> FileStoreCounts {
        let state = self.lock();
        FileStoreCounts { places: state.places.count(), bytes_used: state.places.bytes_used(), ..state.counts }
    }

    /// The last 64 errors since the last call. [`FileStoreCounts::errors`] counts all.
    pub fn take_errors(&self) -> Vec<FileStoreError> {
        std::mem::take(&mut self.lock().errors).into()
    }

    /// Waits for work. Reads come first: a vCPU waits for each. Writes that are fewer than a cluster wait for more, but
    /// no longer than the options say. `None`: the store is closed, and nothing is left.
    fn next_work(&self) -> Option<Work> {
        let mut state = self.lock();
        let mut since = None;
        loop {
            if let Some(requests) = state.reads.pop_front() {
                return Some(Work::Read(requests));
            }
            if state.writes.is_empty() {
                if state.is_closed {
                    return None;
                }
                since = None;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let left = self.options.gather.saturating_sub(since.get_or_insert_with(Instant::now).elapsed());
            if state.writes.len() >= self.options.cluster || state.is_closed || left.is_zero() {
                return Some(Work::Write(state.take_writes(self.options.cluster)));
            }
            state = self.work.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The data behind the lock is valid at any time, so a poisoned lock is harmless.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes the writes of the next pages.
    fn take_writes(&mut self, count: usize) -> Vec<WriteRequest> {
        let behind = (Bound::Excluded(self.last), Bound::Unbounded);
        let later = self.writes.range(behind).chain(self.writes.range(..=self.last));
        let mut pages: Vec<_> = later.map(|(page, _)| *page).take(count).collect();
        self.last = pages.last().copied().unwrap_or(self.last);
        pages.sort();
        pages.iter().filter_map(|page| self.writes.remove(page)).collect()
    }

    fn note(&mut self, error: FileStoreError) {
        self.counts.errors += 1;
        if self.errors.len() == ERRORS {
            self.errors.pop_front();
        }
        self.errors.push_back(error);
    }
}

/// The file's size, for errors. 0 if the system does not report it.
fn size(file: &File) -> u64 {
    file.metadata().map_or(0, |metadata| metadata.len())
}

impl PageStore for FileStore {
    fn place(&self, page: Ipa) -> Option<Place> {
        let mut state = self.lock();
        let place = state.places.add(page);
        if place.is_none() {
            let (pages, used) = state.places.room();
            state.note(FileStoreError::Full { page, used, pages });
        }
        place
    }

    fn write(&self, memory: &dyn Completions, request: WriteRequest) {
        {
            let mut state = self.lock();
            if !state.is_closed {
                state.writes.insert(request.page(), request);
                self.work.notify_one();
                return;
            }
        }
        memory.complete_write(request, Err(StoreError::Ended));
    }

    fn read(&self, memory: &dyn Completions, request: ReadRequest) {
        let neighbours = {
            let mut state = self.lock();
            let most = self.options.read_ahead.min(self.options.cluster);
            let window = state.streams.window(request.page(), most as u64);
            state.places.behind(request.page(), window - 1)
        };
        let mut requests = vec![request];
        let ahead = |(page, place)| memory.begin_read(page, place, Unasked::Ahead).ok();
        requests.extend(neighbours.into_iter().filter_map(ahead));
        {
            let mut state = self.lock();
            if !state.is_closed {
                state.reads.push_back(requests);
                self.work.notify_one();
                return;
            }
        }
        requests.into_iter().for_each(|request| memory.complete_read(request, Err(StoreError::Ended)));
    }

    fn discard(&self, place: Place) {
        self.lock().places.remove(place);
    }
}
