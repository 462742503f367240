// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The owner record of a guest that moves, in a file that both sides can reach: the arbiter of the commit
//! (`docs/migration.md`).
//!
//! The source makes the file for a guest that has none. The file has two rows, and a change goes into the row that does not
//! hold the present content.
//!
//! Invariants: the file is read and written under its lock, so two requests are one after the other. A row counts if its
//! checksum is right, and of two that do, the later epoch does. A change is on the disk before it is answered. So a host
//! that fails at any moment leaves the content before or after.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use twofold_migration::commit::{Owner, Ownership, Request, arbitrate};
use xxhash_rust::xxh3::xxh3_64;

/// The owner record of a guest.
#[derive(Clone, Debug)]
pub struct Record(PathBuf);

impl Record {
    /// The record in this file.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns what the record holds, or makes it, for a guest that `owner` has.
    ///
    /// # Errors
    ///
    /// The file cannot be read or written.
    pub fn open(&self, owner: Owner) -> io::Result<Ownership> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&self.0)?;
        file.lock()?;
        if file.metadata()?.len() > 0 {
            return Ok(read(&file)?.1);
        }
        let first = Ownership { owner, epoch: 0 };
        file.write_all_at(&[row(&first), [0; ROW]].concat(), 0)?;
        file.sync_all()?;
        // The file's name, too.
        let directory = self.0.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(directory)?.sync_all()?;
        Ok(first)
    }

    /// Asks the arbiter; returns what the record then holds.
    ///
    /// # Errors
    ///
    /// The file cannot be read or written. A request to take the guest may have been done or not.
    pub fn ask(&self, request: Request) -> io::Result<Ownership> {
        let file = OpenOptions::new().read(true).write(true).open(&self.0)?;
        file.lock()?;
        let (place, before) = read(&file)?;
        let mut now = before;
        let answer = arbitrate(&mut now, request);
        if now != before {
            file.write_all_at(&row(&now), (1 - place) * ROW as u64)?;
            file.sync_data()?;
        }
        // Closing the file gives the lock back.
        Ok(answer)
    }
}

impl Record {
    /// As [`ask`](Self::ask) for a side of the commit: an error is no answer, and is kept in `error`.
    pub(super) fn answer(&self, request: Request, error: &mut Option<String>) -> Option<Ownership> {
        let asked = self.ask(request);
        *error = asked.as_ref().err().map(|why| format!("{}: {why}", self.0.display()));
        asked.ok()
    }
}

/// The place of the row that counts, and its content.
fn read(file: &File) -> io::Result<(u64, Ownership)> {
    let rows = (0..2).filter_map(|place| {
        let mut bytes = [0; ROW];
        file.read_exact_at(&mut bytes, place * ROW as u64).ok()?;
        Some((place, ownership(&bytes)?))
    });
    let last = rows.max_by_key(|(_, owned)| owned.epoch);
    last.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is no owner record"))
}

fn row(owned: &Ownership) -> [u8; ROW] {
    let mut row = [0; ROW];
    row[..MAGIC.len()].copy_from_slice(&MAGIC);
    for (at, word) in (8..).step_by(8).zip([owned.owner.host, owned.owner.incarnation, owned.epoch]) {
        row[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    let sum = xxh3_64(&row[..ROW - 8]);
    row[ROW - 8..].copy_from_slice(&sum.to_le_bytes());
    row
}

fn ownership(bytes: &[u8; ROW]) -> Option<Ownership> {
    let (words, _) = bytes.as_chunks::<8>();
    let &[magic, host, incarnation, epoch, _] = words else { return None };
    let [host, incarnation, epoch] = [host, incarnation, epoch].map(u64::from_le_bytes);
    let owned = Ownership { owner: Owner { host, incarnation }, epoch };
    (magic == MAGIC && row(&owned) == *bytes).then_some(owned)
}

const MAGIC: [u8; 8] = *b"TWOFOWN1";
/// Bytes of a row: the magic, three numbers and their checksum.
const ROW: usize = 40;

#[cfg(test)]
mod tests {
    use std::{fs, thread};

    use super::*;

    const FIRST: Owner = Owner { host: 7, incarnation: 1 };

    #[test]
    fn one_of_two_that_take_the_guest_wins() {
        let directory = tempfile::tempdir().unwrap();
        let record = Record::new(&directory.path().join("owner"));
        assert!(record.ask(Request::Read).is_err());
        let first = record.open(FIRST).unwrap();
        assert_eq!(record.open(Owner { host: 8, incarnation: 1 }).unwrap(), first);
        for round in 0..50 {
            let from = record.ask(Request::Read).unwrap();
            let take = |host| record.ask(Request::Take { from, by: Owner { host, incarnation: round } }).unwrap();
            let [one, other] = thread::scope(|scope| {
                [0, 1].map(|host| scope.spawn(move || take(host))).map(|thread| thread.join().unwrap())
            });
            assert_eq!((one, one.epoch), (other, from.epoch + 1));
            // A request that is repeated or late changes nothing.
            assert_eq!(take(5), one);
        }
    }

    #[test]
    fn a_change_that_was_cut_leaves_what_was_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("owner");
        let record = Record::new(&path);
        let mut from = record.open(FIRST).unwrap();
        for _ in 0..4 {
            let before = fs::read(&path).unwrap();
            let now = record.ask(Request::Take { from, by: FIRST }).unwrap();
            let after = fs::read(&path).unwrap();
            for cut in 0..=after.len() {
                fs::write(&path, [&after[..cut], &before[cut..]].concat()).unwrap();
                let found = record.ask(Request::Read).unwrap();
                assert!(found == from || found == now, "{found:?} after {cut} bytes");
            }
            from = now;
        }
        fs::write(&path, "something else").unwrap();
        assert!(record.open(FIRST).unwrap_err().to_string().contains("no owner record"));
    }
}
