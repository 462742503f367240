// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The thread of a file store: it writes and reads clusters, and completes their requests.
//!
//! Invariant: every request is completed, each by the result of its own page. If a cluster fails, its pages are tried
//! one by one.

use std::io;
use std::os::unix::fs::FileExt;

use twofold_memory::swap::{Completions, Place, ReadRequest, StoreError, WriteRequest};

use super::extents::{Extent, SECTOR};
use super::options::FileStoreError;
use super::packed::{Form, PAGE, pack, unpack};
use super::places::Stored;
use super::{FileStore, Work, size};

/// The system's number where it has none.
const UNKNOWN: i32 = -1;
const NO_SPACE: i32 = 28;

/// A page that is about to be written.
struct Packed {
    request: WriteRequest,
    form: Form,
    /// Its bytes in the cluster's.
    bytes: std::ops::Range<usize>,
    /// Empty if there is no room for it.
    extents: Vec<Extent>,
}

impl FileStore {
    /// Does what the store is asked for, on this thread, until it is [closed](Self::close) and nothing is left to do.
    /// Any number of threads may do so. `memory` is the guest's memory to which the store is attached.
    pub fn serve(&self, memory: &dyn Completions) {
        while let Some(work) = self.next_work() {
            match work {
                Work::Write(requests) => self.write_cluster(memory, requests),
                Work::Read(requests) => self.read_cluster(memory, requests),
            }
        }
    }

    /// Writes pages, by one call for each row in the file that there is room for.
    fn write_cluster(&self, memory: &dyn Completions, requests: Vec<WriteRequest>) {
        let (mut bytes, mut packed, mut page) =
            (Vec::with_capacity(requests.len() * PAGE), Vec::new(), Box::new([0; PAGE]));
        for request in requests {
            let start = bytes.len();
            memory.copy_out(&request, &mut page);
            let form = pack(&page, self.options.compress, &mut bytes);
            packed.push(Packed { request, form, bytes: start..bytes.len(), extents: Vec::new() });
        }
        let forms: Vec<_> = packed.iter().map(|page| (page.request.place(), page.form)).collect();
        let taken = self.lock().places.take(&forms);
        packed.iter_mut().zip(taken).for_each(|(page, extents)| page.extents = extents.unwrap_or_default());
        // Pages in one row of the file are written by one call.
        let continues = |one: &Packed, next: &Packed| match (&one.extents[..], &next.extents[..]) {
            ([one], [next]) => one.end == next.start,
            _ => false,
        };
        while !packed.is_empty() {
            let count = 1 + packed.windows(2).take_while(|pair| continues(&pair[0], &pair[1])).count();
            let row: Vec<_> = packed.drain(..count).collect();
            let is_written = match &row[..] {
                [first, .., last] => {
                    self.write_at(&bytes[first.bytes.start..last.bytes.end], first.extents[0].start).is_ok()
                }
                _ => false,
            };
            for page in row {
                match if is_written { Ok(()) } else { self.write_alone(&page, &bytes) } {
                    Ok(()) => self.end_write(memory, page),
                    Err(code) => self.fail_write(memory, page, code),
                }
            }
        }
    }

    fn write_alone(&self, page: &Packed, bytes: &[u8]) -> Result<(), i32> {
        if page.extents.is_empty() {
            return Err(NO_SPACE);
        }
        let mut from = page.bytes.start;
        for extent in &page.extents {
            let end = from + ((extent.end - extent.start) * SECTOR) as usize;
            self.write_at(&bytes[from..end], extent.start)?;
            from = end;
        }
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], sector: u64) -> Result<(), i32> {
        self.file.write_all_at(bytes, sector * SECTOR).map_err(|error| error.raw_os_error().unwrap_or(UNKNOWN))?;
        let mut state = self.lock();
        state.counts.writes += 1;
        state.counts.bytes_written += bytes.len() as u64;
        Ok(())
    }

    fn end_write(&self, memory: &dyn Completions, page: Packed) {
        let Packed { request, form, extents, .. } = page;
        {
            let mut state = self.lock();
            state.counts.pages_written += 1;
            state.places.store(request.place(), Stored { extents, form });
        }
        memory.complete_write(request, Ok(()));
    }

    /// The page stays in memory, and its place will be discarded.
    fn fail_write(&self, memory: &dyn Completions, page: Packed, code: i32) {
        let Packed { request, extents, .. } = page;
        {
            let mut state = self.lock();
            let (place, offset) = (request.place(), extents.first().map(|extent| extent.start * SECTOR));
            state.places.give(place, extents);
            let error = match offset {
                Some(offset) if code != NO_SPACE => FileStoreError::Write { place, offset, code },
                _ => FileStoreError::Smaller { promised: self.options.pages, found: state.places.cut(), code },
            };
            state.note(error);
        }
        memory.complete_write(request, Err(StoreError::Device { code }));
    }

    /// Reads pages: the first was asked for, and is completed first.
    fn read_cluster(&self, memory: &dyn Completions, requests: Vec<ReadRequest>) {
        let places: Vec<_> = requests.iter().map(ReadRequest::place).collect();
        let rows = {
            let mut state = self.lock();
            state.counts.pages_read += 1;
            state.counts.pages_ahead += requests.len() as u64 - 1;
            let stored = places.iter().map(|place| state.places.find(*place).cloned());
            rows(stored.zip(requests).collect())
        };
        for row in rows {
            self.read_row(memory, row);
        }
    }

    /// Reads pages that are in one row of the file.
    fn read_row(&self, memory: &dyn Completions, row: Vec<(Option<Stored>, ReadRequest)>) {
        let start = row.first().and_then(|(stored, _)| Some(stored.as_ref()?.extents.first()?.start));
        let sectors: u64 = row.iter().flat_map(|(stored, _)| stored).map(|stored| stored.form.sectors()).sum();
        let mut bytes = vec![0; (sectors * SECTOR) as usize];
        let mut is_read = false;
        if row.len() > 1
            && let Some(start) = start
        {
            is_read = self.file.read_exact_at(&mut bytes, start * SECTOR).is_ok();
            self.lock().counts.reads += 1;
        }
        let mut from = 0;
        for (stored, request) in row {
            let Some(stored) = stored else {
                // Never so: a place is read only after it was written, and is not discarded meanwhile.
                memory.complete_read(request, Err(StoreError::Damaged));
                continue;
            };
            let end = from + (stored.form.sectors() * SECTOR) as usize;
            let page = if is_read {
                self.unpack(&bytes[from..end], &stored, request.place())
            } else {
                self.read_alone(&stored, request.place())
            };
            from = end;
            match page {
                Ok(page) => {
                    memory.copy_in(&request, &page);
                    memory.complete_read(request, Ok(()));
                }
                Err(error) => memory.complete_read(request, Err(error)),
            }
        }
    }

    fn read_alone(&self, stored: &Stored, place: Place) -> Result<Box<[u8; PAGE]>, StoreError> {
        let mut bytes = vec![0; (stored.form.sectors() * SECTOR) as usize];
        let mut from = 0;
        for extent in &stored.extents {
            let end = from + ((extent.end - extent.start) * SECTOR) as usize;
            let offset = extent.start * SECTOR;
            let read = self.file.read_exact_at(&mut bytes[from..end], offset);
            self.lock().counts.reads += 1;
            let (error, cause) = match read {
                Ok(()) => {
                    from = end;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    let (wanted, end) = (extent.end * SECTOR, size(&self.file));
                    (FileStoreError::Short { place, wanted, end }, StoreError::Damaged)
                }
                Err(error) => {
                    let code = error.raw_os_error().unwrap_or(UNKNOWN);
                    (FileStoreError::Read { place, offset, code }, StoreError::Device { code })
                }
            };
            self.lock().note(error);
            return Err(cause);
        }
        self.unpack(&bytes, stored, place)
    }

    fn unpack(&self, bytes: &[u8], stored: &Stored, place: Place) -> Result<Box<[u8; PAGE]>, StoreError> {
        unpack(bytes, stored.form).ok_or_else(|| {
            self.lock().note(FileStoreError::Damaged { place, offset: stored.offset() });
            StoreError::Damaged
        })
    }
}

/// Splits pages into rows: each continues in the file where the one before it ends. The first page's row is the first.
fn rows<T>(pages: Vec<(Option<Stored>, T)>) -> Vec<Vec<(Option<Stored>, T)>> {
    let mut rows: Vec<Vec<(Option<Stored>, T)>> = Vec::new();
    let mut end = None;
    for page in pages {
        let extents = page.0.as_ref().map_or(&[][..], |stored| &stored.extents);
        let (starts, ends) = match extents {
            [one] => (Some(one.start), Some(one.end)),
            _ => (None, None),
        };
        match rows.last_mut() {
            Some(row) if end.is_some() && end == starts => row.push(page),
            _ => rows.push(vec![page]),
        }
        end = ends;
    }
    rows
}
