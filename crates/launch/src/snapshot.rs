// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A snapshot: a stopped guest in a file, with all that starts it again (`docs/migration.md`, the stream).
//!
//! The file's hello has the guest's vCPUs and memory. Its first section is the guest's bundle, by itself: the settings, and
//! the images that a reset needs. The second one has the devices of the host behind the guest's, as JSON. Then come its pages,
//! and then the sections that the hypervisor made.
//!
//! Invariant: a file that was not finished is no snapshot, and neither is one that was changed; the error says where. A
//! snapshot is written beside its place, and gets its name when it is whole.

use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use embedded_io::ErrorKind;
use thiserror::Error;
use twofold_abi::bundle::{self, ALIGN, Header, NAME_MAX, flags};
use twofold_abi::channel::{Command, GuestState, PAGE_SIZE};
use twofold_abi::section::Head;
use twofold_abi::virt::{self, MAX_CPUS};
use twofold_migration::commit::Ownership;
use twofold_migration::stream::{
    Capabilities, Compression, Hello, Name, ReadError, Reader, Record, Slot, WriteError, Writer,
};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::bundle::Bundle;
use crate::devices::{DeviceError, Disk, HostDevices, Network};
use crate::guest::MEMORY_MAX;
use crate::owner::{self, OwnerError};
use crate::sample::Known;
use crate::saved::{SavedError, SavedGuest, sections};
use crate::session::{Answer, Session, SessionError};
use crate::swap;

/// The machine model of our guests, in the hello.
pub(crate) const MODEL: &str = "twofold-virt-1";
/// The section with the guest's bundle.
pub(crate) const BUNDLE: &str = "bundle";
/// The section with what is behind the guest's devices.
pub(crate) const HOST: &str = "host";
/// The section with the owner of the images that the guest writes to, in a stream to another host.
pub(crate) const OWNER: &str = "owner";
/// More is no guest's bundle.
const BUNDLE_MAX: u64 = 4 << 30;

/// Why there is no snapshot, or it is not restored.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// The hypervisor refuses, or has ended.
    #[error(transparent)]
    Saved(#[from] SavedError),
    /// There is no answer.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The file cannot be used.
    #[error("cannot use {path}: {why}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        why: io::Error,
    },
    /// It cannot be written.
    #[error("cannot write {path}: {why}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        why: WriteError,
    },
    /// It is no snapshot, or is damaged.
    #[error("{path} is no whole snapshot of a guest: {why}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Where, and why.
        why: ReadError,
    },
    /// It is a stream, and not one of a snapshot.
    #[error("{path} is no snapshot that this version can start: {why}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The guest did not go on.
    #[error("the guest was restored, and cannot go on: {0}")]
    NotStarted(String),
    /// It writes to a disk, so it cannot be in two places.
    #[error(
        "the guest writes to the disk {0}, which would not fit its memory in the file once the guest goes on here: have it end \
         here (`twofold snapshot --end`, `suspend` in the monitor)"
    )]
    Writes(PathBuf),
    /// The guest of a disk is elsewhere.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// The guest is in the file, and did not end.
    #[error("the guest is in the file, and did not end here: {0}")]
    NotEnded(String),
    /// The guest did not stop.
    #[error("the guest cannot be stopped: {0}")]
    NotStopped(String),
}

/// What becomes of a guest that is in a file.
pub enum After<'a> {
    /// It goes on, too.
    GoesOn,
    /// It ends, right after this was called with the file's size: its machine may end with it.
    Ends(&'a mut dyn FnMut(u64)),
}

/// Writes guest number `guest` into a file. `bundle` is what started it. A guest that runs is stopped for this.
/// Returns the number of bytes.
///
/// # Errors
///
/// [`SnapshotError`]. The guest is as before, and the file is not there, unless the error says so.
pub fn write(
    session: &Session,
    guest: u16,
    bundle: &Bundle,
    path: &Path,
    after: After<'_>,
) -> Result<u64, SnapshotError> {
    let unusable = |why| SnapshotError::File { path: bundle.path.clone(), why };
    let alone = alone(&bundle.path, guest).map_err(unusable)?;
    let record = record(&alone).ok_or_else(|| content(&bundle.path, "the guest's own bundle is none"))?;
    let host = bundle.devices.only(&record).map_err(unusable)?;
    let ends = matches!(after, After::Ends(_));
    if let Some(disk) = host.written().filter(|_| !ends) {
        return Err(SnapshotError::Writes(disk.to_owned()));
    }
    let runs = session.state(guest) == Some(GuestState::Running);
    if runs && let Some(refusal) = session.ask(Some(guest), Command::Stop)?.refusal {
        return Err(SnapshotError::NotStopped(refusal.text));
    }
    let started = Started { alone: &alone, record: &record, host: &host, ends };
    let written = write_stopped(session, guest, &started, path);
    if let (Ok(size), After::Ends(ends)) = (&written, after) {
        ends(*size);
        return match session.ask(Some(guest), Command::Quit) {
            Ok(Answer { refusal: Some(refusal), .. }) => Err(SnapshotError::NotEnded(refusal.text)),
            // The machine may have ended with it.
            _ => written,
        };
    }
    if runs {
        session.ask(Some(guest), Command::Continue)?;
    }
    written
}

/// What a guest was started with: its bundle by itself, its record there, and what is behind its devices.
struct Started<'a> {
    alone: &'a [u8],
    record: &'a bundle::Guest,
    host: &'a HostDevices,
    /// It ends here when it is in the file.
    ends: bool,
}

fn write_stopped(session: &Session, guest: u16, started: &Started<'_>, path: &Path) -> Result<u64, SnapshotError> {
    let Started { record, .. } = started;
    let saved = SavedGuest::save(session, guest, record.memory.get(), record.firmware_size.get() > 0)?;
    let partial = path.with_added_extension("partial");
    let unusable = |why| SnapshotError::File { path: partial.clone(), why };
    // It has all of the guest's memory, keys included.
    let created = || File::options().write(true).create_new(true).mode(0o600).open(&partial);
    let file = match created() {
        // Of a run that was killed.
        Err(why) if why.kind() == io::ErrorKind::AlreadyExists => {
            std::fs::remove_file(&partial).and_then(|()| created())
        }
        file => file,
    };
    let file = file.map_err(unusable)?;
    let written = stream(&saved, started, Stream(BufWriter::new(file)))
        .map_err(|why| match why {
            Unwritten::Stream(why) => SnapshotError::Write { path: path.to_owned(), why },
            Unwritten::Owner(why) => why.into(),
        })
        .and_then(|bytes| std::fs::rename(&partial, path).map(|()| bytes).map_err(unusable));
    if written.is_err() {
        // The error that matters is the one above.
        let _ = std::fs::remove_file(&partial);
    }
    written
}

#[derive(Debug, Error)]
enum Unwritten {
    #[error(transparent)]
    Stream(#[from] WriteError),
    #[error(transparent)]
    Owner(#[from] OwnerError),
}

/// Writes the stream, and returns its size in bytes.
fn stream(
    saved: &SavedGuest,
    &Started { alone, record, host, ends }: &Started<'_>,
    sink: Stream<BufWriter<File>>,
) -> Result<u64, Unwritten> {
    let slots = slots(record);
    let mut writer = Writer::new(sink, Compression::Lz4);
    writer.hello(&Hello {
        migration: core::array::from_fn(|_| random() as u8),
        stream: 0,
        streams: 1,
        model: name(MODEL),
        page_shift: PAGE_SIZE.trailing_zeros() as u8,
        ipa_bits: 40,
        vcpus: record.cpus.get(),
        memory: slots.iter().map(|slot| slot.pages).sum::<u64>() * PAGE_SIZE as u64,
        features: Vec::new(),
    })?;
    writer.slots(&slots)?;
    writer.section(name(BUNDLE), 0, 1, alone)?;
    // Strings and numbers: nothing that JSON lacks.
    writer.section(name(HOST), 0, 1, &serde_json::to_vec(host).unwrap_or_default())?;
    writer.round(true)?;
    for slot in &slots {
        let mut zeroes = 0;
        for page in 0..slot.pages {
            match saved.pages.get(&((slot.first + page) as u32)) {
                Some(bytes) => {
                    if zeroes > 0 {
                        writer.zero_pages(slot.number, page - u64::from(zeroes), zeroes)?;
                    }
                    zeroes = 0;
                    writer.page(slot.number, page, bytes)?;
                }
                None => zeroes += 1,
            }
        }
        if zeroes > 0 {
            writer.zero_pages(slot.number, slot.pages - u64::from(zeroes), zeroes)?;
        }
    }
    writer.end_round()?;
    for section in sections(&saved.sections) {
        let Some((head, content, _)) = Head::split(section) else { continue };
        let Some(name) = Name::from_bytes(head.name) else { continue };
        writer.section(name, head.instance.get(), head.version.get(), content)?;
    }
    // A guest that writes to no image shares nothing with another one, so nothing else has to know its owner.
    let offered = if ends { owner::offer(host)? } else { None };
    writer.end(offered.unwrap_or(Ownership { owner: owner::this(), epoch: 0 }))?;
    writer.flush()?;
    Ok(writer.bytes())
}

/// A snapshot that is being read: up to its pages.
pub struct Snapshot {
    path: PathBuf,
    reader: Reader<Stream<BufReader<File>>>,
    slots: Vec<Slot>,
    bundle: Vec<u8>,
    record: bundle::Guest,
    /// What is behind the guest's devices.
    pub devices: HostDevices,
    /// Its guest.
    pub guest: Known,
    /// Bytes of the machine's memory that it takes.
    pub memory: u64,
}

impl Snapshot {
    /// Opens a file, and reads it up to the guest's pages.
    ///
    /// # Errors
    ///
    /// It is no snapshot, or none that this version can start.
    pub fn open(path: &Path) -> Result<Self, SnapshotError> {
        let file = File::open(path).map_err(|why| SnapshotError::File { path: path.to_owned(), why })?;
        let here = Capabilities {
            model: name(MODEL),
            page_shift: PAGE_SIZE.trailing_zeros() as u8,
            ipa_bits: 48,
            vcpus: MAX_CPUS,
            memory: MEMORY_MAX + virt::FLASH_SIZE + virt::STOLEN_TIME_SIZE,
            features: Vec::new(),
        };
        let mut reader = Reader::new(Stream(BufReader::new(file)), here);
        let (mut slots, mut contents) = (Vec::new(), [Vec::new(), Vec::new()]);
        let mut sections = [BUNDLE, HOST].into_iter().zip(&mut contents);
        let mut section = None;
        loop {
            match next(&mut reader, path)? {
                Record::Slots(found) => slots = found.to_vec(),
                Record::Section { name: found, size, .. } => match sections.next() {
                    Some((expected, to)) if found == name(expected) && size <= BUNDLE_MAX => section = Some(to),
                    _ => return Err(content(path, &format!("a section {found} before the pages"))),
                },
                Record::Part(bytes) => {
                    if let Some(section) = &mut section {
                        section.extend_from_slice(bytes);
                    }
                }
                Record::Round { .. } => break,
                Record::Hello(_) => {}
                other => return Err(content(path, &format!("{other:?} before the pages"))),
            }
        }
        let [bundle, host] = contents;
        let devices = serde_json::from_slice(&host);
        let devices = devices.map_err(|why| content(path, &format!("what is behind its devices: {why}")))?;
        let record = record(&bundle).ok_or_else(|| content(path, "the guest's bundle is none"))?;
        if slots != self::slots(&record) {
            return Err(content(path, "its memory is not that of the guest's bundle"));
        }
        let used = record.name.iter().position(|byte| *byte == 0).unwrap_or(NAME_MAX);
        let name = String::from_utf8_lossy(&record.name[..used]).into_owned();
        let guest = Known { name, memory: record.memory.get(), cpus: record.cpus.get() };
        let beside = slots.iter().map(|slot| slot.pages).sum::<u64>() * PAGE_SIZE as u64 - record.memory.get();
        let own = swap::machine_memory_of(&record.swap, record.memory.get(), false);
        let memory = own + beside + record.test_size.get();
        Ok(Self { path: path.to_owned(), reader, slots, bundle, record, devices, guest, memory })
    }

    /// Gives the guest's disks other places than they had: there are the same contents now.
    ///
    /// # Errors
    ///
    /// The guest's disks do not fit these.
    pub fn set_disks(&mut self, disks: &[Disk]) -> Result<(), DeviceError> {
        self.devices.set_disks(&self.record, disks)
    }

    /// Gives the guest's cards other networks than they had.
    ///
    /// # Errors
    ///
    /// The guest's cards do not fit these.
    pub fn set_networks(&mut self, networks: &[Network]) -> Result<(), DeviceError> {
        self.devices.set_networks(&self.record, networks)
    }

    /// Writes the bundle with which the guest is made: it comes from elsewhere.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write_bundle(&self, path: &Path) -> io::Result<u64> {
        let mut bytes = self.bundle.clone();
        if let Ok((header, _)) = Header::mut_from_prefix(&mut bytes) {
            header.flags |= flags::INCOMING;
        }
        std::fs::write(path, &bytes)?;
        Ok(bytes.len() as u64)
    }

    /// Restores the guest, which was made from the bundle, and lets it go on.
    ///
    /// # Errors
    ///
    /// [`SnapshotError`]. The guest has not run.
    pub fn restore(mut self, session: &Session) -> Result<(), SnapshotError> {
        // All of it is whole: only now the guest gets any of it.
        let (saved, offered) = self.rest()?;
        saved.restore(session, 0)?;
        owner::accept(&self.devices, offered)?;
        match session.ask(Some(0), Command::Continue)?.refusal {
            None => Ok(()),
            Some(refusal) => Err(SnapshotError::NotStarted(refusal.text)),
        }
    }

    /// Reads the guest's pages and sections, to the end of the file: whose the guest was then.
    fn rest(&mut self) -> Result<(SavedGuest, Ownership), SnapshotError> {
        let mut saved = SavedGuest::default();
        loop {
            match next(&mut self.reader, &self.path)? {
                Record::Page { slot, page, bytes } => {
                    let found = self.slots.iter().find(|found| found.number == slot);
                    let at = found.map(|found| (found.first + page) as u32);
                    saved.pages.extend(at.map(|at| (at, bytes.to_vec())));
                }
                Record::Section { name, instance, version, size } => {
                    let (instance, version, size) = (instance.into(), version.into(), size.into());
                    let head = Head { name: name.bytes(), instance, version, size };
                    saved.sections.extend_from_slice(head.as_bytes());
                }
                Record::Part(bytes) => saved.sections.extend_from_slice(bytes),
                Record::ZeroPages { .. } | Record::RoundEnd { .. } => {}
                Record::End(offered) => return Ok((saved, offered)),
                other => return Err(content(&self.path, &format!("{other:?} in a stopped guest"))),
            }
        }
    }
}

fn next<'r>(reader: &'r mut Reader<Stream<BufReader<File>>>, path: &Path) -> Result<Record<'r>, SnapshotError> {
    let read = |why| SnapshotError::Read { path: path.to_owned(), why };
    reader.next().map_err(read)?.ok_or_else(|| content(path, "it is cut"))
}

fn content(path: &Path, why: &str) -> SnapshotError {
    SnapshotError::Content { path: path.to_owned(), why: why.to_owned() }
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).expect("the names here are names")
}

/// A random number, for what only has to differ.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The memslots of a guest: flash, stolen time and RAM.
pub(crate) fn slots(record: &bundle::Guest) -> Vec<Slot> {
    let flash = if record.firmware_size.get() > 0 { virt::FLASH_SIZE } else { 0 };
    let all = [
        (virt::FLASH_BASE, flash),
        (virt::STOLEN_TIME_BASE, virt::STOLEN_TIME_SIZE),
        (virt::RAM_BASE, record.memory.get()),
    ];
    let pages = |bytes: u64| bytes / PAGE_SIZE as u64;
    let slot = |(number, (base, size)): (u16, (u64, u64))| {
        (size > 0).then(|| Slot { number, read_only: false, first: pages(base), pages: pages(size) })
    };
    (0..).zip(all).filter_map(slot).collect()
}

/// The record of the guest in a bundle that has one guest.
pub(crate) fn record(bundle: &[u8]) -> Option<bundle::Guest> {
    let (header, rest) = Header::read_from_prefix(bundle).ok()?;
    let (record, _) = bundle::Guest::read_from_prefix(rest).ok()?;
    (header.magic == bundle::MAGIC && header.guests.get() == 1).then_some(record)
}

/// The bundle of one guest of a bundle, by itself.
pub(crate) fn alone(bundle: &Path, guest: u16) -> io::Result<Vec<u8>> {
    let file = File::open(bundle)?;
    let mut header = Header::new_zeroed();
    file.read_exact_at(header.as_mut_bytes(), 0)?;
    let mut record = bundle::Guest::new_zeroed();
    file.read_exact_at(
        record.as_mut_bytes(),
        (size_of::<Header>() + usize::from(guest) * size_of::<bundle::Guest>()) as u64,
    )?;
    header.guests = 1.into();
    // One that has been restored itself comes from elsewhere again only when it is restored again.
    header.flags &= !flags::INCOMING;
    let mut contents = Vec::new();
    let mut end = (size_of::<Header>() + size_of::<bundle::Guest>()) as u64;
    let bundle::Guest {
        kernel_offset, kernel_size, initrd_offset, initrd_size, firmware_offset, firmware_size, ..
    } = &mut record;
    for (offset, size) in [(kernel_offset, kernel_size), (initrd_offset, initrd_size), (firmware_offset, firmware_size)]
    {
        let mut part = vec![0; size.get() as usize];
        file.read_exact_at(&mut part, offset.get())?;
        end = end.next_multiple_of(ALIGN);
        *offset = end.into();
        end += size.get();
        contents.push((offset.get(), part));
    }
    let mut bytes = [header.as_bytes(), record.as_bytes()].concat();
    for (offset, part) in contents {
        bytes.resize(offset as usize, 0);
        bytes.extend(part);
    }
    bytes.resize(bytes.len().next_multiple_of(ALIGN as usize), 0);
    Ok(bytes)
}

/// A file with the traits of a stream.
struct Stream<F>(F);

impl<F> embedded_io::ErrorType for Stream<F> {
    type Error = ErrorKind;
}

impl<F: Read> embedded_io::Read for Stream<F> {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize, ErrorKind> {
        self.0.read(bytes).map_err(|_| ErrorKind::Other)
    }
}

impl<F: Write> embedded_io::Write for Stream<F> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        self.0.write(bytes).map_err(|why| {
            if why.kind() == io::ErrorKind::StorageFull { ErrorKind::OutOfMemory } else { ErrorKind::Other }
        })
    }

    fn flush(&mut self) -> Result<(), ErrorKind> {
        self.0.flush().map_err(|_| ErrorKind::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::tests::GuestFiles;

    /// Two guests, of which the second is saved.
    fn saved(directory: &Path) -> (PathBuf, SavedGuest, Vec<u8>) {
        let files = GuestFiles::new();
        let user = Network::User { forwards: vec!["tcp::8022-:22".to_owned()] };
        let devices = crate::Devices { nets: vec![user], ..crate::Devices::default() };
        let [one, two] = ["one", "two"].map(|name| crate::GuestSettings { name: name.to_owned(), ..files.guest() });
        let two = crate::GuestSettings { devices, ..two };
        let bundle = Bundle::write(&[one, two], &directory.join("guest.bundle")).unwrap();
        let mut sections = Vec::new();
        for (name, content) in [(&b"time"[..], &[1_u8; 16][..]), (&b"gic"[..], &[])] {
            let mut head = [0; size_of::<Head>()];
            head[..name.len()].copy_from_slice(name);
            (head[28], head[32]) = (1, content.len() as u8);
            sections.extend(head);
            sections.extend(content);
        }
        let page = |byte: u8| vec![byte; PAGE_SIZE];
        let pages = [(0x4_0000, page(1)), (0x4_0001, page(2)), (0x4_7fff, page(3)), (0x90a0, page(4))].into();
        let alone = alone(&bundle.path, 1).unwrap();
        let record = record(&alone).unwrap();
        let host = bundle.devices.only(&record).unwrap();
        let started = Started { alone: &alone, record: &record, host: &host, ends: false };
        let path = directory.join("two.snapshot");
        let sink = Stream(BufWriter::new(File::create(&path).unwrap()));
        stream(&SavedGuest { sections: sections.clone(), pages }, &started, sink).unwrap();
        let pages = [(0x4_0000, page(1)), (0x4_0001, page(2)), (0x4_7fff, page(3)), (0x90a0, page(4))].into();
        (path, SavedGuest { sections, pages }, alone)
    }

    #[test]
    fn a_guest_is_read_as_it_was_written_with_its_bundle_alone() {
        let directory = tempfile::tempdir().unwrap();
        let (path, saved, alone) = saved(directory.path());
        let mut snapshot = Snapshot::open(&path).unwrap();
        assert_eq!(snapshot.guest, Known { name: "two".to_owned(), memory: 128 << 20, cpus: 2 });
        let user = Network::User { forwards: vec!["tcp::8022-:22".to_owned()] };
        assert_eq!(snapshot.devices.cards.iter().map(|card| &card.network).collect::<Vec<_>>(), [&user]);
        let bundle = directory.path().join("new.bundle");
        assert_eq!(snapshot.write_bundle(&bundle).unwrap(), alone.len() as u64);
        let written = std::fs::read(&bundle).unwrap();
        let (header, _) = Header::read_from_prefix(&written).unwrap();
        assert_eq!((header.flags.get(), header.guests.get()), (flags::COUNT | flags::INCOMING, 1));
        assert_eq!(snapshot.rest().unwrap().0, saved);
        // The images are those of the guest.
        let record = record(&written).unwrap();
        let kernel = &written[record.kernel_offset.get() as usize..][..record.kernel_size.get() as usize];
        assert_eq!(&kernel[0x38..0x3c], b"ARM\x64");
        let initrd = &written[record.initrd_offset.get() as usize..][..record.initrd_size.get() as usize];
        assert_eq!((&initrd[..6], initrd.len()), (&b"070701"[..], 0x567));
    }

    #[test]
    fn a_file_of_another_machine_model_is_refused_by_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("other.snapshot");
        let mut writer = Writer::new(Stream(BufWriter::new(File::create(&path).unwrap())), Compression::Lz4);
        let hello = Hello {
            migration: [1; 16],
            stream: 0,
            streams: 1,
            model: name("twofold-virt-9"),
            page_shift: PAGE_SIZE.trailing_zeros() as u8,
            ipa_bits: 40,
            vcpus: 2,
            memory: 64 << 20,
            features: Vec::new(),
        };
        writer.hello(&hello).unwrap();
        writer.flush().unwrap();
        let why = Snapshot::open(&path).err().unwrap().to_string();
        assert!(why.contains("the guest's machine is twofold-virt-9, and this target builds twofold-virt-1"), "{why}");
        assert!(why.contains("other.snapshot"), "{why}");
    }

    #[test]
    fn a_file_that_is_cut_or_changed_anywhere_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let (path, ..) = saved(directory.path());
        let bytes = std::fs::read(&path).unwrap();
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            Snapshot::open(&path).and_then(|mut snapshot| snapshot.rest())
        };
        assert!(read(&bytes).is_ok());
        for at in (0..bytes.len()).step_by(97) {
            assert!(read(&bytes[..at]).is_err(), "cut at {at}");
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            // A page that was changed and unpacks to the same page is the same.
            assert!(read(&changed).is_err(), "changed at {at}");
        }
    }
}
