// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Owner records of disk images: which host's run has the guest of a disk (`docs/migration.md`, the commit).
//!
//! The content of a disk does not travel with its guest, so memory and disk belong together at one moment alone. The record is
//! a file beside the image, `IMAGE.owner`, with an [`Ownership`]. It is there from the first time that a guest that writes
//! to the image has left a machine. From then on:
//!
//! * W1: a run that boots a guest with the image [takes](take) it, if it is this host's, with the next epoch. So what the
//!   guest's memory was elsewhere is old then.
//! * W2: a guest that leaves is [offered](offer): the run's own ownership, with the next epoch, is in the record, and at the
//!   end of the stream.
//! * W3: a run that has all of the guest [accepts](accept) it, before the guest's first instruction there: if each record
//!   holds what the stream says, it gets this run and the next epoch.
//! * W4: a run to which a guest has moved live [holds](hold) its images, because its QEMU did not lock them: it started while
//!   another one had them. W1 refuses an image that a run of this host holds.
//!
//! **A guest goes on from a stream once.** W3 changes the record, and by W1 and W2 so does all else that lets a guest write to
//! the image. Epochs rise, so no content comes back.
//!
//! Each of the three locks the records of all images of the guest, looks at all, and only then writes. A record is less
//! than a sector, which is written as a whole. What an NBD server serves has no record: the server decides which client writes.

use std::fs::{self, File, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;

use thiserror::Error;
use twofold_migration::commit::{Owner, Ownership};

use crate::devices::HostDevices;
use crate::interactive::note;

/// Why a disk's guest cannot be taken.
#[derive(Debug, Error)]
pub enum OwnerError {
    /// The record cannot be used.
    #[error("cannot use the disk's owner record {path}: {why}")]
    File {
        /// The record.
        path: PathBuf,
        /// The system's error.
        why: io::Error,
    },
    /// It is no record.
    #[error("{0} is no owner record of a disk; if the disk's guest runs nowhere, remove it")]
    Malformed(PathBuf),
    /// Another host has the guest.
    #[error(
        "the guest of the disk {} belongs to host {:016x} (epoch {}), and this is host {:016x}; if that host has lost it, remove {}",
        image.display(), found.owner.host, found.epoch, here, path_of(image).display()
    )]
    OtherHost {
        /// The disk's image.
        image: PathBuf,
        /// What the record holds.
        found: Ownership,
        /// This host.
        here: u64,
    },
    /// The guest was taken since.
    #[error(
        "the guest has gone on with the disk {} since (epoch {}, and the file is of epoch {}): its memory here is old",
        image.display(), found.epoch, offered.epoch
    )]
    Passed {
        /// The disk's image.
        image: PathBuf,
        /// What the record holds.
        found: Ownership,
        /// What was offered.
        offered: Ownership,
    },
    /// A run of this host has it.
    #[error("a run has the guest of the disk {}: it has moved there", .0.display())]
    Held(PathBuf),
    /// The lock that keeps other runs of this host from it is not there.
    #[error("cannot hold {}: {why}; start no other guest with the disk {} here", held_path_of(image).display(), image.display())]
    NotHeld {
        /// The disk's image.
        image: PathBuf,
        /// The system's error.
        why: io::Error,
    },
    /// There is no record.
    #[error("there is no owner record {} beside the disk: it is not the disk that the guest had", path_of(.0).display())]
    None(PathBuf),
}

/// This start of this program, on this host.
#[must_use]
pub fn this() -> Owner {
    static THIS: OnceLock<Owner> = OnceLock::new();
    *THIS.get_or_init(|| Owner { host: host(), incarnation: RandomState::new().hash_one(()) })
}

/// W1.
///
/// # Errors
///
/// [`OwnerError`]: no record has changed.
pub fn take(devices: &HostDevices) -> Result<(), OwnerError> {
    take_as(devices, this())
}

/// W2. `None`: the guest writes to no image.
///
/// # Errors
///
/// [`OwnerError`]: no record has changed.
pub fn offer(devices: &HostDevices) -> Result<Option<Ownership>, OwnerError> {
    offer_as(devices, this())
}

/// W3.
///
/// # Errors
///
/// [`OwnerError`]: no record has changed.
pub fn accept(devices: &HostDevices, offered: Ownership) -> Result<(), OwnerError> {
    accept_as(devices, offered, this())
}

/// W3, without a change: whether the guest could be accepted now.
///
/// # Errors
///
/// [`OwnerError`]
pub fn is_offered(devices: &HostDevices, offered: Ownership) -> Result<(), OwnerError> {
    offered_records(devices, offered).map(drop)
}

/// W4: holds the images until this process ends. If the run that the guest left holds one, a thread waits for that run's end.
///
/// # Errors
///
/// [`OwnerError::NotHeld`]: this image is not held, nor those after it.
pub fn hold(devices: &HostDevices) -> Result<(), OwnerError> {
    for image in devices.written_files() {
        let failed = |why| OwnerError::NotHeld { image: image.clone(), why };
        let held = File::options().write(true).create(true).truncate(false).open(held_path_of(&image));
        let file = held.map_err(failed)?;
        match file.try_lock() {
            // The system closes it, and so unlocks it, when the process ends.
            Ok(()) => std::mem::forget(file),
            Err(TryLockError::WouldBlock) => {
                thread::spawn(move || match file.lock() {
                    Ok(()) => std::mem::forget(file),
                    Err(why) => note(&OwnerError::NotHeld { image, why }.to_string()),
                });
            }
            Err(TryLockError::Error(why)) => return Err(failed(why)),
        }
    }
    Ok(())
}

/// An ownership as it travels with its guest.
#[must_use]
pub fn to_bytes(ownership: Ownership) -> Vec<u8> {
    text(ownership).into_bytes()
}

/// The ownership that [`to_bytes`] made.
#[must_use]
pub fn from_bytes(bytes: &[u8]) -> Option<Ownership> {
    read(bytes)
}

fn take_as(devices: &HostDevices, by: Owner) -> Result<(), OwnerError> {
    for image in devices.written_files() {
        let held = File::open(held_path_of(&image)).is_ok_and(|file| file.try_lock().is_err());
        if held {
            return Err(OwnerError::Held(image));
        }
    }
    let records = Record::all(devices, false)?;
    for Record { image, found, .. } in &records {
        if let Some(found) = *found
            && found.owner.host != by.host
        {
            return Err(OwnerError::OtherHost { image: image.clone(), found, here: by.host });
        }
    }
    records.iter().try_for_each(|record| record.found.map_or(Ok(()), |found| record.put(found.taken_by(by))))
}

fn offer_as(devices: &HostDevices, by: Owner) -> Result<Option<Ownership>, OwnerError> {
    let records = Record::all(devices, true)?;
    for Record { image, found, .. } in &records {
        if let Some(found) = *found
            && found.owner != by
        {
            return Err(OwnerError::OtherHost { image: image.clone(), found, here: by.host });
        }
    }
    let epoch = records.iter().map(|record| record.found.map_or(0, |found| found.epoch + 1)).max();
    let Some(epoch) = epoch else { return Ok(None) };
    let offered = Ownership { owner: by, epoch };
    records.iter().try_for_each(|record| record.put(offered))?;
    Ok(Some(offered))
}

fn accept_as(devices: &HostDevices, offered: Ownership, by: Owner) -> Result<(), OwnerError> {
    let records = offered_records(devices, offered)?;
    records.iter().try_for_each(|record| record.put(offered.taken_by(by)))
}

fn offered_records(devices: &HostDevices, offered: Ownership) -> Result<Vec<Record>, OwnerError> {
    let records = Record::all(devices, false)?;
    for Record { image, found, .. } in &records {
        match *found {
            None => return Err(OwnerError::None(image.clone())),
            Some(found) if found != offered => {
                return Err(OwnerError::Passed { image: image.clone(), found, offered });
            }
            Some(_) => {}
        }
    }
    Ok(records)
}

/// The record of an image, locked until this value goes.
struct Record {
    image: PathBuf,
    path: PathBuf,
    /// `None`: there is no file.
    file: Option<File>,
    /// `None`: there is no record yet.
    found: Option<Ownership>,
}

impl Record {
    /// Those of all images that a guest writes to, in an order that is the same for all.
    fn all(devices: &HostDevices, creates: bool) -> Result<Vec<Self>, OwnerError> {
        let mut images: Vec<_> = devices.written_files().map(|path| path.canonicalize().unwrap_or(path)).collect();
        images.sort();
        images.dedup();
        images.into_iter().map(|image| Self::open(image, creates)).collect()
    }

    fn open(image: PathBuf, creates: bool) -> Result<Self, OwnerError> {
        let path = path_of(&image);
        let fails = |why| OwnerError::File { path: path.clone(), why };
        let file = match File::options().read(true).write(true).create(creates).truncate(false).open(&path) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { image, path, file: None, found: None });
            }
            file => file.map_err(fails)?,
        };
        file.lock().map_err(fails)?;
        let mut bytes = vec![0; TEXT_MAX];
        let length = file.read_at(&mut bytes, 0).map_err(fails)?;
        let found = match length {
            0 => None,
            length => Some(read(&bytes[..length]).ok_or_else(|| OwnerError::Malformed(path.clone()))?),
        };
        Ok(Self { image, path, file: Some(file), found })
    }

    fn put(&self, ownership: Ownership) -> Result<(), OwnerError> {
        let Some(file) = &self.file else { return Ok(()) };
        let put = || -> io::Result<()> {
            file.write_all_at(text(ownership).as_bytes(), 0)?;
            file.sync_all()?;
            // A new file is there after a crash only if its directory is.
            File::open(self.path.parent().unwrap_or(Path::new("/")))?.sync_all()
        };
        put().map_err(|why| OwnerError::File { path: self.path.clone(), why })
    }
}

/// The record's file.
fn path_of(image: &Path) -> PathBuf {
    image.with_added_extension("owner")
}

/// The file that a run of this host locks while it has the guest of an image that its QEMU does not lock (W4).
fn held_path_of(image: &Path) -> PathBuf {
    image.with_added_extension("held")
}

/// The most bytes that are read of a record: more than it has.
const TEXT_MAX: usize = 256;
const HEAD: &str = "twofold owner record 1";

/// A record's content, which always has the same length.
fn text(Ownership { owner: Owner { host, incarnation }, epoch }: Ownership) -> String {
    format!("{HEAD}\nhost {host:016x}\nincarnation {incarnation:016x}\nepoch {epoch:016x}\n")
}

fn read(bytes: &[u8]) -> Option<Ownership> {
    let mut lines = core::str::from_utf8(bytes).ok()?.lines();
    let mut number = |name: &str| u64::from_str_radix(lines.next()?.strip_prefix(name)?.strip_prefix(' ')?, 16).ok();
    let mut head = bytes.split(|byte| *byte == b'\n');
    if head.next()? != HEAD.as_bytes() {
        return None;
    }
    number("");
    let (host, incarnation, epoch) = (number("host")?, number("incarnation")?, number("epoch")?);
    // The last number is none, so that there is a next one.
    let found = Ownership { owner: Owner { host, incarnation }, epoch: Some(epoch).filter(|epoch| *epoch < u64::MAX)? };
    (text(found).as_bytes() == bytes).then_some(found)
}

/// The host's number: of systemd's machine id, or else of its name.
fn host() -> u64 {
    let id = fs::read_to_string("/etc/machine-id").or_else(|_| fs::read_to_string("/proc/sys/kernel/hostname"));
    let id = id.unwrap_or_default();
    // FNV-1a: the same on each start.
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    id.trim().bytes().fold(0xcbf2_9ce4_8422_2325, hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::{Backing, HostDisk, HostPart, Part};

    fn disks(directory: &Path, names: &[&str]) -> HostDevices {
        let disk = |name: &&str| {
            let (is_read_only, path) = (name.starts_with("read"), directory.join(name));
            fs::write(&path, [0; 512]).unwrap();
            let part = HostPart { part: Part::default(), is_read_only };
            HostDisk { serial: (*name).to_owned(), backing: Backing::File(path), parts: vec![part] }
        };
        HostDevices { disks: names.iter().map(disk).collect(), cards: Vec::new(), ..HostDevices::default() }
    }

    fn owner(host: u64, incarnation: u64) -> Owner {
        Owner { host, incarnation }
    }

    #[test]
    fn a_guest_goes_on_from_a_stream_once() {
        let directory = tempfile::tempdir().unwrap();
        let devices = disks(directory.path(), &["b", "a", "read"]);
        let (one, two) = (owner(1, 10), owner(2, 20));
        // A disk whose guest has never left has no record.
        take_as(&devices, one).unwrap();
        assert!(!directory.path().join("a.owner").exists());
        let offered = offer_as(&devices, one).unwrap().unwrap();
        assert_eq!(offered, Ownership { owner: one, epoch: 0 });
        assert!(!directory.path().join("read.owner").exists());
        accept_as(&devices, offered, two).unwrap();
        for by in [one, two, owner(2, 21)] {
            let error = accept_as(&devices, offered, by).unwrap_err().to_string();
            assert!(error.contains("has gone on with the disk") && error.contains("epoch 1"), "{error}");
        }
        // The first host has it no more, and the second one has.
        for refused in [take_as(&devices, one), offer_as(&devices, one).map(drop)] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("belongs to host 0000000000000002 (epoch 1)"), "{error}");
        }
        assert_eq!(offer_as(&devices, two).unwrap(), Some(Ownership { owner: two, epoch: 2 }));
    }

    /// As a guest that has moved while it ran: it was looked at first, and its images are held where it runs.
    #[test]
    fn an_image_that_a_run_holds_boots_nowhere_else() {
        let directory = tempfile::tempdir().unwrap();
        let devices = disks(directory.path(), &["a", "read"]);
        let (one, two) = (owner(1, 10), owner(1, 20));
        let offered = offer_as(&devices, one).unwrap().unwrap();
        assert_eq!(from_bytes(&to_bytes(offered)), Some(offered));
        is_offered(&devices, offered).unwrap();
        assert!(matches!(is_offered(&devices, offered.taken_by(two)), Err(OwnerError::Passed { .. })));
        accept_as(&devices, offered, two).unwrap();
        take_as(&devices, one).unwrap();
        let held = held_path_of(&directory.path().join("a"));
        // The run that it left holds it. When that ends, a thread takes it.
        let left = File::create(&held).unwrap();
        left.lock().unwrap();
        hold(&devices).unwrap();
        drop(left);
        while File::open(&held).is_ok_and(|file| file.try_lock().is_ok()) {
            thread::yield_now();
        }
        let error = take_as(&devices, one).unwrap_err().to_string();
        assert!(error.contains("a run has the guest of the disk"), "{error}");
        assert!(!held_path_of(&directory.path().join("read")).exists());
        let none = directory.path().join("none");
        fs::create_dir(&none).unwrap();
        let elsewhere = disks(&none, &["a"]);
        fs::remove_dir_all(&none).unwrap();
        let error = hold(&elsewhere).unwrap_err().to_string();
        assert!(error.contains("none/a.held: No such file") && error.contains("start no other guest"), "{error}");
    }

    #[test]
    fn a_boot_makes_what_was_offered_old() {
        let directory = tempfile::tempdir().unwrap();
        let devices = disks(directory.path(), &["a", "b"]);
        let offered = offer_as(&devices, owner(1, 10)).unwrap().unwrap();
        // The host's next run has only one of the disks.
        take_as(
            &HostDevices { disks: devices.disks[1..].to_vec(), cards: Vec::new(), ..HostDevices::default() },
            owner(1, 11),
        )
        .unwrap();
        assert!(matches!(accept_as(&devices, offered, owner(2, 20)), Err(OwnerError::Passed { .. })));
        // No record has changed.
        let found: Vec<_> = Record::all(&devices, false).unwrap().iter().map(|record| record.found.unwrap()).collect();
        assert_eq!(found, [offered, offered.taken_by(owner(1, 11))]);
        // Together again, with an epoch that neither had.
        take_as(&devices, owner(1, 12)).unwrap();
        assert_eq!(offer_as(&devices, owner(1, 12)).unwrap().unwrap().epoch, 3);
    }

    #[test]
    fn what_is_no_record_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let devices = disks(directory.path(), &["a"]);
        let offered = Ownership { owner: owner(1, 10), epoch: 4 };
        let error = accept_as(&devices, offered, owner(2, 20)).unwrap_err().to_string();
        assert!(error.contains("a.owner beside the disk"), "{error}");
        let path = directory.path().join("a.owner");
        let good = text(offered);
        fs::write(&path, &good).unwrap();
        assert!(accept_as(&devices, offered, owner(2, 20)).is_ok());
        for at in (0..good.len()).step_by(3) {
            let mut bad = good.clone().into_bytes();
            bad[at] = b'?';
            for bytes in [&bad[..], &good.as_bytes()[..at.max(1)], &[good.as_bytes(), b"x"].concat()] {
                fs::write(&path, bytes).unwrap();
                assert!(matches!(take_as(&devices, owner(1, 10)), Err(OwnerError::Malformed(_))), "{at}");
            }
        }
    }

    #[test]
    fn this_program_is_one_owner() {
        assert_eq!(this(), this());
        assert_eq!(read(text(Ownership { owner: this(), epoch: 7 }).as_bytes()).map(|found| found.epoch), Some(7));
        assert_eq!(read(text(Ownership { owner: this(), epoch: u64::MAX }).as_bytes()), None);
    }
}
