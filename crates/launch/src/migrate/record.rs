// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The owner record of a guest that moves, in a file that both sides can reach: the arbiter of the commit
//! (`docs/migration.md`).
//!
//! The source makes the file for a guest that has none. The file has two rows, and a change goes into the row that does not
//! hold the present content. The rows name the guest, too: the two guests of a source that move at once have one owner, so by
//! owner and epoch alone a target could take the one by the record of the other.
//!
//! Invariants: the file is read and written under its lock, so two requests are one after the other. A row counts if its
//! checksum is right, and of two that do, the later epoch does. A change is on the disk before it is answered, unless both sides
//! are on one host. So a host that fails at any moment leaves the content before or after.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use thiserror::Error;
use twofold_abi::bundle::NAME_MAX;
use twofold_migration::commit::{Owner, Ownership, Request, arbitrate};
use xxhash_rust::xxh3::xxh3_64;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The owner record of a guest.
#[derive(Clone, Debug)]
pub struct Record {
    path: PathBuf,
    patience: Duration,
    /// Whether a change is on the disk before it is answered.
    is_durable: bool,
}

/// Why a record is none of this guest.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The file cannot be used.
    #[error("cannot use the owner record {path}: {why}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        why: io::Error,
    },
    /// It is another guest's.
    #[error(
        "the owner record {path} is that of the guest {theirs}, and this is {ours}; give each guest one of its own"
    )]
    OtherGuest {
        /// The file.
        path: PathBuf,
        /// The record's guest.
        theirs: String,
        /// The guest that moves.
        ours: String,
    },
}

impl Record {
    /// The record in this file.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), patience: PATIENCE, is_durable: true }
    }

    /// The same for two sides on one host, which end with it: nothing waits for a disk.
    #[must_use]
    pub fn on_one_host(path: &Path) -> Self {
        Self { is_durable: false, ..Self::new(path) }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns what the record holds, or makes it, for a guest of this name that `owner` has.
    ///
    /// # Errors
    ///
    /// [`RecordError`].
    pub fn open(&self, owner: Owner, guest: &str) -> Result<Ownership, RecordError> {
        let found = self.found_or_made(owner, guest).map_err(|why| self.unusable(why))?;
        self.is_of(&found, guest)?;
        Ok(found.owned())
    }

    /// Whether the record is there, and is that of a guest of this name.
    ///
    /// # Errors
    ///
    /// [`RecordError`].
    pub fn check(&self, guest: &str) -> Result<(), RecordError> {
        let found = || -> io::Result<Row> {
            let file = self.file(false)?;
            Ok(read(&file)?.1)
        };
        self.is_of(&found().map_err(|why| self.unusable(why))?, guest)
    }

    /// Asks the arbiter; returns what the record then holds. The guest is taken only if `may`, which is called under the lock.
    ///
    /// # Errors
    ///
    /// The file cannot be read or written. A request to take the guest may have been done or not.
    pub fn ask(&self, request: Request, may: impl Fn() -> bool) -> io::Result<Ownership> {
        let file = self.file(false)?;
        let (place, before) = read(&file)?;
        let mut now = before.owned();
        let answer = arbitrate(&mut now, request);
        if now != before.owned() {
            if !may() {
                return Err(io::Error::other("this side cannot run the guest any more, and has not taken it"));
            }
            file.write_all_at(Row::new(now, before.guest).as_bytes(), (1 - place) * ROW as u64)?;
            if self.is_durable {
                file.sync_data()?;
            }
        }
        // Closing the file gives the lock back.
        Ok(answer)
    }

    fn found_or_made(&self, owner: Owner, guest: &str) -> io::Result<Row> {
        let file = self.file(true)?;
        if file.metadata()?.len() > 0 {
            return Ok(read(&file)?.1);
        }
        let mut name = [0; NAME_MAX + 1];
        name.iter_mut().zip(guest.bytes()).for_each(|(to, byte)| *to = byte);
        let first = Row::new(Ownership { owner, epoch: 0 }, name);
        file.write_all_at(&[first.as_bytes(), &[0; ROW]].concat(), 0)?;
        if !self.is_durable {
            return Ok(first);
        }
        file.sync_all()?;
        // The file's name, too.
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(directory)?.sync_all()?;
        Ok(first)
    }

    /// The file, locked.
    fn file(&self, creates: bool) -> io::Result<File> {
        let file = OpenOptions::new().read(true).write(true).create(creates).truncate(false).open(&self.path)?;
        file.lock()?;
        Ok(file)
    }

    fn is_of(&self, found: &Row, guest: &str) -> Result<(), RecordError> {
        let theirs = found.guest();
        if theirs == guest {
            return Ok(());
        }
        Err(RecordError::OtherGuest { path: self.path.clone(), theirs, ours: guest.to_owned() })
    }

    fn unusable(&self, why: io::Error) -> RecordError {
        RecordError::File { path: self.path.clone(), why }
    }

    /// As [`ask`](Self::ask) for a side of the commit. An error is no answer, and is kept in `error`. A file system may block
    /// for as long as its server is gone: then `blocked` learns of it, again and again, and this side still waits, because
    /// what it has asked for may yet be done.
    pub(super) fn answer(
        &self,
        request: Request,
        error: &mut Option<String>,
        may: &(dyn Fn() -> bool + Sync),
        blocked: &mut dyn FnMut(&str),
    ) -> Option<Ownership> {
        let asked = thread::scope(|scope| {
            let (sender, answers) = mpsc::channel();
            let asks = scope.spawn(move || {
                // The other end waits for this.
                let _ = sender.send(self.ask(request, may));
            });
            let mut waited = Duration::ZERO;
            loop {
                match answers.recv_timeout(self.patience) {
                    Ok(asked) => break asked,
                    Err(RecvTimeoutError::Timeout) => {
                        waited += self.patience;
                        let path = self.path.display();
                        blocked(&format!(
                            "{path}: its file system or a lock on it has blocked for {} s",
                            waited.as_secs()
                        ));
                    }
                    Err(RecvTimeoutError::Disconnected) => {
                        let panic = asks.join().err().unwrap_or_else(|| Box::new("the thread sent nothing"));
                        std::panic::resume_unwind(panic)
                    }
                }
            }
        });
        *error = asked.as_ref().err().map(|why| format!("{}: {why}", self.path.display()));
        asked.ok()
    }
}

/// What a side says that is in doubt: what it means, and how it ends.
#[must_use]
pub fn in_doubt(why: &str) -> String {
    format!(
        "the guest stands still here, and the owner record does not say which side has it ({why}). Make that file usable again, \
         with the content that it had: then the side that it names goes on, and the other one ends the guest. Do not write it, \
         and do not make another one"
    )
}

/// The place of the row that counts, and its content.
fn read(file: &File) -> io::Result<(u64, Row)> {
    let rows = (0..2).filter_map(|place| {
        let mut row = Row::default();
        file.read_exact_at(row.as_mut_bytes(), place * ROW as u64).ok()?;
        row.is_good().then_some((place, row))
    });
    let last = rows.max_by_key(|(_, row)| row.epoch.get());
    last.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is no owner record"))
}

/// A row of the file.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Row {
    magic: [u8; 8],
    host: U64,
    incarnation: U64,
    epoch: U64,
    /// Padded with zeroes.
    guest: [u8; NAME_MAX + 1],
    /// Of all before it.
    sum: U64,
}

impl Row {
    fn new(Ownership { owner, epoch }: Ownership, guest: [u8; NAME_MAX + 1]) -> Self {
        let (host, incarnation) = (owner.host.into(), owner.incarnation.into());
        let mut row = Self { magic: MAGIC, host, incarnation, epoch: epoch.into(), guest, sum: U64::ZERO };
        row.sum = row.checksum();
        row
    }

    fn checksum(&self) -> U64 {
        xxh3_64(&self.as_bytes()[..ROW - size_of::<U64>()]).into()
    }

    fn is_good(&self) -> bool {
        self.magic == MAGIC && self.sum == self.checksum()
    }

    fn owned(&self) -> Ownership {
        let owner = Owner { host: self.host.get(), incarnation: self.incarnation.get() };
        Ownership { owner, epoch: self.epoch.get() }
    }

    fn guest(&self) -> String {
        let used = self.guest.iter().position(|byte| *byte == 0).unwrap_or(self.guest.len());
        String::from_utf8_lossy(&self.guest[..used]).into_owned()
    }
}

const MAGIC: [u8; 8] = *b"TWOFOWN2";
/// Bytes of a row.
const ROW: usize = size_of::<Row>();
/// How long the file may block before a side says so.
const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const FIRST: Owner = Owner { host: 7, incarnation: 1 };

    #[test]
    fn one_of_two_that_take_the_guest_wins() {
        let directory = tempfile::tempdir().unwrap();
        let record = Record::new(&directory.path().join("owner"));
        assert!(record.ask(Request::Read, || true).is_err());
        let first = record.open(FIRST, "web").unwrap();
        assert_eq!(record.open(Owner { host: 8, incarnation: 1 }, "web").unwrap(), first);
        for round in 0..50 {
            let from = record.ask(Request::Read, || true).unwrap();
            let take =
                |host| record.ask(Request::Take { from, by: Owner { host, incarnation: round } }, || true).unwrap();
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
        let mut from = record.open(FIRST, "web").unwrap();
        for _ in 0..4 {
            let before = fs::read(&path).unwrap();
            let now = record.ask(Request::Take { from, by: FIRST }, || true).unwrap();
            let after = fs::read(&path).unwrap();
            for cut in 0..=after.len() {
                fs::write(&path, [&after[..cut], &before[cut..]].concat()).unwrap();
                let found = record.ask(Request::Read, || true).unwrap();
                assert!(found == from || found == now, "{found:?} after {cut} bytes");
            }
            from = now;
        }
        fs::write(&path, "something else").unwrap();
        assert!(record.open(FIRST, "web").unwrap_err().to_string().contains("no owner record"));
    }

    #[test]
    fn a_record_is_one_guests() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("owner");
        let record = Record::new(&path);
        let error = record.check("web").unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot use the owner record {}: ", path.display())), "{error}");
        assert!(!path.exists());
        let mut from = record.open(FIRST, "web").unwrap();
        for _ in 0..3 {
            record.check("web").unwrap();
            for refused in [record.check("db"), record.open(FIRST, "db").map(drop), record.check("we")] {
                let error = refused.unwrap_err().to_string();
                assert!(error.contains("is that of the guest web, and this is "), "{error}");
            }
            from = record.ask(Request::Take { from, by: Owner { host: 8, incarnation: 2 } }, || true).unwrap();
        }
        // As long as any.
        let record = Record::new(&directory.path().join("other"));
        record.open(FIRST, "a-name-of-fifte").unwrap();
        record.check("a-name-of-fifte").unwrap();
    }

    #[test]
    fn a_side_that_cannot_run_takes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let record = Record::new(&directory.path().join("owner"));
        let from = record.open(FIRST, "web").unwrap();
        let by = Owner { host: 8, incarnation: 1 };
        let error = record.ask(Request::Take { from, by }, || false).unwrap_err().to_string();
        assert!(error.contains("cannot run the guest any more"), "{error}");
        assert_eq!(record.ask(Request::Read, || false).unwrap(), from);
        let now = record.ask(Request::Take { from, by }, || true).unwrap();
        // Another side has it already: that is an answer.
        assert_eq!(record.ask(Request::Take { from, by: FIRST }, || false).unwrap(), now);
    }

    #[test]
    fn a_file_that_blocks_is_said_and_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let mut record = Record::new(&directory.path().join("owner"));
        record.patience = Duration::from_millis(1);
        let from = record.open(FIRST, "web").unwrap();
        let mut lock = Some(record.file(false).unwrap());
        let (said, mut error) = (AtomicU32::new(0), None);
        let request = Request::Take { from, by: FIRST };
        let now = record.answer(request, &mut error, &|| true, &mut |why| {
            assert!(why.contains("has blocked for"), "{why}");
            if said.fetch_add(1, Ordering::Relaxed) == 2 {
                lock = None;
            }
        });
        assert_eq!((now, error), (Some(from.taken_by(FIRST)), None));
        assert!(said.into_inner() >= 3);
        fs::remove_file(record.path()).unwrap();
        // An answer is none that is late.
        record.patience = Duration::from_secs(3600);
        let mut error = None;
        assert_eq!(record.answer(request, &mut error, &|| true, &mut |why| panic!("{why}")), None);
        assert!(error.unwrap().contains("owner: "));
    }
}
