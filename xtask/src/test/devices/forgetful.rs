// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk's store that forgets, when the power is cut, all that was not flushed.
//!
//! Invariant: what [`Store::cut`] leaves is exactly what each finished flush and each write with forced unit access covers.
//! So a driver, a device model or a hypervisor that loses a flush on the way loses data here, and not on a disk that happens
//! to be kind.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The contents of a disk.
#[derive(Debug)]
pub struct Store {
    /// What the disk begins with. It is never written.
    base: File,
    size: u64,
    /// Pages that survive a cut, by their numbers.
    durable: BTreeMap<u64, Page>,
    /// Pages that do not. They hide the durable ones.
    volatile: BTreeMap<u64, Page>,
    /// How often the store was flushed.
    flushes: u64,
}

type Page = Box<[u8; PAGE]>;

const PAGE: usize = 4096;

impl Store {
    /// A store that begins with the contents of a file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let base = File::open(path)?;
        let size = base.metadata()?.len();
        Ok(Self { base, size, durable: BTreeMap::new(), volatile: BTreeMap::new(), flushes: 0 })
    }

    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// How often the store was flushed.
    pub fn flushes(&self) -> u64 {
        self.flushes
    }

    /// Whether a cut would lose something now.
    pub fn has_volatile(&self) -> bool {
        !self.volatile.is_empty()
    }

    /// Reads `bytes` from `position`.
    pub fn read(&self, position: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.check(position, bytes.len() as u64)?;
        let mut done = 0;
        for (number, within, length) in pieces(position, bytes.len() as u64) {
            let piece = &mut bytes[done..done + length];
            match self.volatile.get(&number).or_else(|| self.durable.get(&number)) {
                Some(page) => piece.copy_from_slice(&page[within..within + length]),
                None => self.base.read_exact_at(piece, number * PAGE as u64 + within as u64)?,
            }
            done += length;
        }
        Ok(())
    }

    /// Writes `bytes` at `position`. A cut forgets them, unless a flush comes before it, or `is_forced` is set.
    pub fn write(&mut self, position: u64, bytes: &[u8], is_forced: bool) -> io::Result<()> {
        self.check(position, bytes.len() as u64)?;
        let mut done = 0;
        for (number, within, length) in pieces(position, bytes.len() as u64) {
            let mut page = match self.volatile.remove(&number) {
                Some(page) => page,
                None => self.page(number)?,
            };
            page[within..within + length].copy_from_slice(&bytes[done..done + length]);
            let pages = if is_forced { &mut self.durable } else { &mut self.volatile };
            pages.insert(number, page);
            done += length;
        }
        Ok(())
    }

    /// Makes all that was written durable.
    pub fn flush(&mut self) {
        self.durable.append(&mut self.volatile);
        self.flushes += 1;
    }

    /// The power is cut: forgets what is not durable.
    pub fn cut(&mut self) {
        self.volatile.clear();
    }

    fn page(&self, number: u64) -> io::Result<Page> {
        let mut page = Box::new([0; PAGE]);
        let start = number * PAGE as u64;
        let length = (self.size - start).min(PAGE as u64);
        self.read(start, &mut page[..length as usize])?;
        Ok(page)
    }

    fn check(&self, position: u64, length: u64) -> io::Result<()> {
        let is_inside = position.checked_add(length).is_some_and(|end| end <= self.size);
        if is_inside { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }
}

/// Splits a range at pages: the number of each page, and the place and length within it.
fn pieces(position: u64, length: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let page = PAGE as u64;
    let mut at = position;
    std::iter::from_fn(move || {
        let left = position + length - at;
        let piece = (page - at % page).min(left);
        let this = (at / page, (at % page) as usize, piece as usize);
        at += piece;
        (left > 0).then_some(this)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn store(bytes: &[u8]) -> Store {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        Store::open(file.path()).unwrap()
    }

    fn all(store: &Store) -> Vec<u8> {
        let mut bytes = vec![0; store.size() as usize];
        store.read(0, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_cut_forgets_what_was_written_after_the_flush() {
        let mut store = store(&[b'0'; 3 * PAGE + 512]);
        store.write(4000, &[b'1'; 200], false).unwrap();
        store.flush();
        store.write(4090, &[b'2'; 2 * PAGE], false).unwrap();
        assert!(all(&store)[4090..4090 + 2 * PAGE].iter().all(|byte| *byte == b'2'));
        store.cut();
        let left = all(&store);
        assert!(left[4000..4200].iter().all(|byte| *byte == b'1'));
        assert!(left[..4000].iter().chain(&left[4200..]).all(|byte| *byte == b'0'));
    }

    #[test]
    fn a_forced_write_needs_no_flush() {
        let mut store = store(&[0; 2 * PAGE]);
        store.write(0, &[1; 512], false).unwrap();
        store.write(PAGE as u64, &[2; 512], true).unwrap();
        assert!(store.has_volatile());
        store.cut();
        assert!(!store.has_volatile());
        assert_eq!((all(&store)[0], all(&store)[PAGE]), (0, 2));
    }

    #[test]
    fn nothing_is_outside() {
        let mut store = store(&[0; PAGE]);
        assert!(store.write(PAGE as u64 - 1, &[0; 2], false).is_err());
        assert!(store.read(u64::MAX, &mut [0; 2]).is_err());
        assert!(store.read(PAGE as u64, &mut []).is_ok());
    }
}
