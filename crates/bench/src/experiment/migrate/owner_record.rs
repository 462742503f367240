// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The arbiter of the moves: the owner record, in a file that both processes can reach.
//!
//! Invariant: the record is read and written while its file is locked, so two requests are one after the other. It is
//! written by one call of the kernel, within one page, so a process that ends at any moment has written all of it or
//! nothing. A host that ends takes both sides with it, so nothing waits for a disk.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use twofold_migration::commit::{Owner, Ownership, Request, arbitrate};

/// The owner record of the guest.
#[derive(Clone, Debug)]
pub struct OwnerRecord(PathBuf);

impl OwnerRecord {
    /// The record in this directory.
    pub fn new(directory: &Path) -> Self {
        Self(directory.join("owner"))
    }

    /// Makes the record.
    ///
    /// # Errors
    ///
    /// The directory cannot be written.
    pub fn make(&self, owned: Ownership) -> io::Result<()> {
        fs::write(&self.0, bytes(&owned))
    }

    /// Asks the arbiter; returns what the record then holds.
    ///
    /// # Errors
    ///
    /// The file cannot be read or written. A request to take the guest may have been done or not.
    pub fn ask(&self, request: Request) -> io::Result<Ownership> {
        let record = OpenOptions::new().read(true).write(true).open(&self.0)?;
        record.lock()?;
        let before = read(&record)?;
        let mut now = before;
        let answer = arbitrate(&mut now, request);
        if now != before {
            record.write_all_at(&bytes(&now), 0)?;
        }
        // Closing the file gives the lock back.
        Ok(answer)
    }
}

fn read(record: &File) -> io::Result<Ownership> {
    let strange = || io::Error::new(io::ErrorKind::InvalidData, "the owner record does not have 24 bytes");
    let mut bytes = [0; SIZE];
    if record.metadata()?.len() != SIZE as u64 {
        return Err(strange());
    }
    record.read_exact_at(&mut bytes, 0)?;
    let (words, _) = bytes.as_chunks::<8>();
    let &[host, incarnation, epoch] = words else { return Err(strange()) };
    let [host, incarnation, epoch] = [host, incarnation, epoch].map(u64::from_le_bytes);
    Ok(Ownership { owner: Owner { host, incarnation }, epoch })
}

fn bytes(owned: &Ownership) -> Vec<u8> {
    [owned.owner.host, owned.owner.incarnation, owned.epoch].map(u64::to_le_bytes).concat()
}

/// Bytes of the record.
const SIZE: usize = 24;

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn one_of_two_that_take_the_guest_wins() {
        let directory = tempfile::tempdir().unwrap();
        let record = OwnerRecord::new(directory.path());
        let first = Ownership { owner: Owner { host: 0, incarnation: 7 }, epoch: 1 };
        record.make(first).unwrap();
        assert_eq!(record.ask(Request::Read).unwrap(), first);
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
    fn a_file_that_is_no_record_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let record = OwnerRecord::new(directory.path());
        assert!(record.ask(Request::Read).is_err());
        record.make(Ownership { owner: Owner { host: 0, incarnation: 7 }, epoch: 1 }).unwrap();
        fs::write(&record.0, [0; 23]).unwrap();
        assert!(record.ask(Request::Read).unwrap_err().to_string().contains("24 bytes"));
    }
}
