// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Disks and networks of the guests, and the machine's devices behind them.
//!
//! A guest sees virtio devices of the hypervisor's. Behind a disk that is a file is a disk of the machine, which the
//! hypervisor finds by its serial number; behind a network that reaches the outside is a card of the machine, which it
//! finds by its address. [`HostDevices`] says which these are, for QEMU, and `disk` and `net` say so for the bundle.
//! Parts of one file, or of what one server serves, are parts of one disk of the machine.
//! Invariant: both are made from the same settings by the same rule, so they agree.
//!
//! Two QEMUs on one image: QEMU locks the image, and the second one does not start, unless both only read. An NBD server
//! serves as many as it likes.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf, absolute};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use twofold_abi::bundle::{self, SECTOR};

use crate::guest::GuestSettings;
use crate::swap;

/// The virtio devices of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    /// A virtio console, beside the UART.
    pub has_console: bool,
    /// A source of random bytes.
    pub has_random: bool,
    /// A memory balloon, by which the guest also reports memory that it does not use.
    pub has_balloon: bool,
    /// Its disks, at most [`DISKS_MAX`](bundle::DISKS_MAX).
    pub disks: Vec<Disk>,
    /// The network of each of its cards, at most [`NETS_MAX`](bundle::NETS_MAX).
    pub nets: Vec<Network>,
}

/// A disk of a guest.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct Disk {
    /// What it keeps.
    pub backing: Backing,
    /// The part of it that is this disk. A disk in memory is whole.
    pub part: Part,
    /// The guest may not write.
    pub is_read_only: bool,
}

/// A part of what a disk keeps, in bytes. Both are multiples of [`SECTOR`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Where it starts.
    pub offset: u64,
    /// Its size, not 0. `None`: it goes to the end.
    pub size: Option<u64>,
}

/// What a disk keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backing {
    /// A raw image.
    File(PathBuf),
    /// What an NBD server at this Unix socket serves. It decides who may write, so two machines can have it.
    Server(PathBuf),
    /// This number of bytes of the machine's memory, a multiple of [`SECTOR`] that is not 0. They begin as zeros, and are
    /// lost at the end.
    Memory(u64),
}

/// A network. Cards with equal ones reach each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Network {
    /// The guests among themselves.
    Inner,
    /// And the outside by QEMU's user network, which ends TCP inside QEMU.
    User {
        /// Ports of the host that lead into it, as QEMU's `hostfwd` takes them (`tcp:127.0.0.1:8022-10.0.2.15:22`).
        forwards: Vec<String>,
    },
    /// And a switch outside of QEMU, at this Unix socket.
    Switch(PathBuf),
}

/// The machine's devices that stand behind those of the guests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostDevices {
    /// The disks.
    pub disks: Vec<HostDisk>,
    /// The network cards.
    pub cards: Vec<HostCard>,
    /// Whether the machine starts while another one has the images that a guest writes to: the guest comes from there, and
    /// does nothing here before it has stopped there. Then this QEMU does not lock them.
    #[serde(skip)]
    pub are_taken_over: bool,
}

/// A disk of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostDisk {
    /// Its serial number.
    pub serial: String,
    /// Where it is: [`Backing::File`] or [`Backing::Server`].
    pub backing: Backing,
    /// The guests' disks on it.
    pub parts: Vec<HostPart>,
}

/// A guest's disk on a disk of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPart {
    /// Where.
    pub part: Part,
    /// The guest may not write.
    pub is_read_only: bool,
}

/// A network card of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCard {
    /// Its address.
    pub mac: [u8; 6],
    /// What it leads to: [`Network::User`] or [`Network::Switch`].
    pub network: Network,
}

/// Why a device of the machine cannot be there.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// A disk.
    #[error("`{option}{}`: {why}", path.display())]
    Disk {
        /// The option that names it, and what it has before the path.
        option: &'static str,
        /// The file, or the server's socket.
        path: PathBuf,
        /// The reason.
        why: WhyNot,
    },
    /// A guest that comes from elsewhere has another number of disks.
    #[error("the guest has {has} disks, and --disk is given for {given}; give one for each, in their order")]
    Disks {
        /// Disks of the guest.
        has: usize,
        /// Disks that were given.
        given: usize,
    },
    /// A disk of a guest that comes from elsewhere cannot be this one.
    #[error(
        "--disk: the guest's disk {number} had another `offset`, `size` or `ro`, or is in memory here; give it as it was"
    )]
    OtherDisk {
        /// The disk's place, from 1.
        number: usize,
    },
    /// A guest that comes from elsewhere has another number of cards.
    #[error("the guest has {has} network cards, and --net is given for {given}; give one for each, in their order")]
    Cards {
        /// Cards of the guest.
        has: usize,
        /// Networks that were given.
        given: usize,
    },
    /// A card of a guest that comes from elsewhere cannot have this network.
    #[error(
        "--net: the guest's card {card} had another kind of network: `inner` stays `inner`, a card with an outside needs one, \
         and cards that were on one network stay on one"
    )]
    OtherNetwork {
        /// The card's place, from 1.
        card: usize,
    },
    /// A switch.
    #[error(
        "`--net switch:{}`: {why}; start `twofold switch --listen {}` first, or give the socket of one that runs",
        path.display(), path.display()
    )]
    NoSwitch {
        /// The switch's socket.
        path: PathBuf,
        /// The system's error.
        why: io::Error,
    },
}

/// Why a file is no disk.
#[derive(Debug, Error)]
pub enum WhyNot {
    /// The system refuses.
    #[error("{0}; give a raw image, and add `,ro` if it cannot be written")]
    Unusable(#[from] io::Error),
    /// The system refuses a store for pages.
    #[error("{0}; give a raw image that can be written")]
    UnusableStore(io::Error),
    /// It is a directory or the like.
    #[error("it is no file; give a raw image")]
    NoFile,
    /// There is no socket.
    #[error("no NBD server listens there; start one first, at this path of a Unix socket")]
    NoServer,
    /// Its size.
    #[error("it has {0} bytes; a disk has a multiple of {SECTOR}, and at least one sector")]
    Size(u64),
    /// The numbers of a part.
    #[error("`offset` and `size` are multiples of {SECTOR} bytes, and the size is not 0")]
    Part,
    /// The part ends behind the end.
    #[error("the part ends at byte {end}, and the file has {size}; give a smaller `offset` or `size`")]
    Short {
        /// The end of the part; its start, if it goes to the end of the file.
        end: u64,
        /// The file's bytes.
        size: u64,
    },
    /// Disks have bytes in common, and one of them is written.
    #[error(
        "two disks have this file, or parts of it that overlap; give each one of its own (`offset=` and `size=` take a \
         part), or add `,ro` to both"
    )]
    Twice,
    /// A store for pages, and a disk or another guest's pages, are the same file or server.
    #[error("a disk of a guest, or another guest's pages, are there too; give the pages a place of their own")]
    StoreTwice,
}

impl HostDevices {
    /// Checks the files of the disks, and whether switches listen.
    ///
    /// # Errors
    ///
    /// The first that cannot be used, with the reason.
    pub fn check(&self) -> Result<(), DeviceError> {
        for (number, disk) in self.disks.iter().enumerate() {
            let fails = |why| DeviceError::Disk { option: disk.option(), path: disk.path().to_owned(), why };
            disk.check().map_err(fails)?;
            // Guests' disks of one file are one disk of the machine. What is left is a store for pages.
            if self.disks[..number].iter().any(|other| other.is_same_place(disk)) {
                return Err(fails(WhyNot::StoreTwice));
            }
        }
        for card in &self.cards {
            if let Network::Switch(path) = &card.network {
                UnixStream::connect(path).map_err(|why| DeviceError::NoSwitch { path: path.clone(), why })?;
            }
        }
        Ok(())
    }

    /// Those of one guest, by its record in a bundle that these are for. Paths are absolute, so that they mean the same elsewhere.
    ///
    /// # Errors
    ///
    /// There is no working directory.
    pub fn only(&self, guest: &bundle::Guest) -> io::Result<Self> {
        let nets = guest.net.iter().take(guest.nets.get() as usize);
        let uplinks: Vec<_> = nets.map(|net| net.uplink).collect();
        let cards = self.cards.iter().filter(|card| uplinks.contains(&card.mac)).map(|HostCard { mac, network }| {
            let network = match network {
                Network::Switch(path) => Network::Switch(absolute(path)?),
                other => other.clone(),
            };
            Ok(HostCard { mac: *mac, network })
        });
        let disks = guest.disk.iter().take(guest.disks.get() as usize).filter_map(|record| {
            let disk = self.disks.iter().find(|disk| record.has_id(&disk.serial))?;
            Some((record, disk))
        });
        let mut own: Vec<HostDisk> = Vec::new();
        for (record, disk) in disks {
            let part = HostPart { part: Part::of(record), is_read_only: record.is_read_only() };
            match own.iter_mut().find(|own| own.serial == disk.serial) {
                Some(shared) => shared.parts.push(part),
                None => {
                    let backing = disk.backing.absolute()?;
                    own.push(HostDisk { serial: disk.serial.clone(), backing, parts: vec![part] });
                }
            }
        }
        let store = self.disks.iter().find(|disk| is_id(&guest.swap.disk, &disk.serial));
        own.extend(
            store
                .map(|store| Ok::<_, io::Error>(HostDisk { backing: store.backing.absolute()?, ..store.clone() }))
                .transpose()?,
        );
        Ok(Self { disks: own, cards: cards.collect::<io::Result<_>>()?, are_taken_over: false })
    }

    /// The images that a guest writes to.
    pub fn written_files(&self) -> impl Iterator<Item = PathBuf> {
        self.disks.iter().filter(|disk| disk.is_written()).filter_map(|disk| match &disk.backing {
            Backing::File(path) => Some(path.clone()),
            Backing::Server(_) | Backing::Memory(_) => None,
        })
    }

    /// Whether each image that a guest writes to holds what it wrote, for whichever host reads it next.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn sync(&self) -> io::Result<()> {
        self.written_files().try_for_each(|path| File::open(path)?.sync_all())
    }

    /// An image that one of these guests writes to, and that other guests among `all` have, too.
    #[must_use]
    pub fn shared_with(&self, all: &Self) -> Option<&Path> {
        let parts =
            |disk: &HostDisk| all.disks.iter().find(|other| other.serial == disk.serial).map(|disk| disk.parts.len());
        let own = self.disks.iter().filter(|disk| disk.is_written());
        own.filter(|disk| parts(disk).is_some_and(|parts| parts > disk.parts.len())).map(HostDisk::path).next()
    }

    /// A disk that a guest writes to.
    #[must_use]
    pub fn written(&self) -> Option<&Path> {
        self.disks.iter().find(|disk| disk.is_written()).map(HostDisk::path)
    }

    /// Gives the disks of a guest with this record other places, in their order: where the same contents are now.
    ///
    /// # Errors
    ///
    /// These are not as many disks, or other parts of theirs, or they are read-only where the guest's were not.
    pub fn set_disks(&mut self, guest: &bundle::Guest, disks: &[Disk]) -> Result<(), DeviceError> {
        let has = guest.disks.get() as usize;
        if has != disks.len() {
            return Err(DeviceError::Disks { has, given: disks.len() });
        }
        for ((number, record), given) in (1..).zip(&guest.disk).zip(disks) {
            let is_like = matches!(given.backing, Backing::File(_) | Backing::Server(_))
                && given.part == Part::of(record)
                && given.is_read_only == record.is_read_only();
            if !is_like {
                return Err(DeviceError::OtherDisk { number });
            }
        }
        for (record, given) in guest.disk.iter().zip(disks) {
            for disk in self.disks.iter_mut().filter(|disk| record.has_id(&disk.serial)) {
                disk.backing = given.backing.clone();
            }
        }
        Ok(())
    }

    /// Gives the cards of a guest with this record other networks, in their order.
    ///
    /// # Errors
    ///
    /// These are not the networks of as many cards, or a card would be without an outside, or with one that it did not have.
    pub fn set_networks(&mut self, guest: &bundle::Guest, networks: &[Network]) -> Result<(), DeviceError> {
        let cards = guest.nets.get() as usize;
        if cards != networks.len() {
            return Err(DeviceError::Cards { has: cards, given: networks.len() });
        }
        let mut set: Vec<([u8; 6], &Network)> = Vec::new();
        for ((card, record), network) in (1..).zip(&guest.net).zip(networks) {
            let had_outside = record.uplink != [0; 6];
            let other = set.iter().find(|(uplink, _)| had_outside && *uplink == record.uplink);
            if had_outside != (*network != Network::Inner) || other.is_some_and(|(_, other)| *other != network) {
                return Err(DeviceError::OtherNetwork { card });
            }
            set.push((record.uplink, network));
        }
        for card in &mut self.cards {
            if let Some((_, network)) = set.iter().find(|(uplink, _)| *uplink == card.mac) {
                card.network = (*network).clone();
            }
        }
        Ok(())
    }

    /// QEMU's arguments, each an option with its value.
    pub fn add(&self, add: &mut impl FnMut(&str, OsString)) {
        for (number, disk) in self.disks.iter().enumerate() {
            let HostDisk { serial, backing, .. } = disk;
            let access = if disk.is_read_only() { "on" } else { "off" };
            let place = match backing {
                Backing::Server(_) => "file.driver=nbd,file.server.type=unix,file.server.path=",
                _ if self.are_taken_over && disk.is_written() => "file.driver=file,file.locking=off,file.filename=",
                _ => "file.driver=file,file.filename=",
            };
            let head = format!("driver=raw,node-name=disk{number},read-only={access},discard=unmap,{place}");
            add("-blockdev", joined(&head, disk.path()));
            // By default QEMU stops the machine, so all guests, if the host's disk is full.
            let errors = "rerror=report,werror=report";
            add("-device", format!("virtio-blk-device,drive=disk{number},serial={serial},{errors}").into());
        }
        for (number, HostCard { mac, network }) in self.cards.iter().enumerate() {
            match network {
                // No card stands behind it.
                Network::Inner => continue,
                Network::User { forwards } => {
                    let forwards: String = forwards.iter().map(|forward| format!(",hostfwd={forward}")).collect();
                    add("-netdev", format!("user,id=net{number}{forwards}").into());
                }
                Network::Switch(path) => {
                    let head = format!("stream,id=net{number},server=off,addr.type=unix,addr.path=");
                    add("-netdev", joined(&head, path));
                }
            }
            let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
            add("-device", format!("virtio-net-device,netdev=net{number},mac={mac}").into());
        }
    }

    /// The machine's devices for these guests.
    #[must_use]
    pub fn of(guests: &[GuestSettings]) -> Self {
        let mut all = Self::default();
        for (guest, settings) in guests.iter().enumerate() {
            for (number, disk) in settings.devices.disks.iter().enumerate() {
                if matches!(disk.backing, Backing::Memory(_)) {
                    continue;
                }
                let serial = serial(guests, guest, number);
                let part = HostPart { part: disk.part, is_read_only: disk.is_read_only };
                match all.disks.iter_mut().find(|other| other.serial == serial) {
                    Some(shared) => shared.parts.push(part),
                    None => all.disks.push(HostDisk { serial, backing: disk.backing.clone(), parts: vec![part] }),
                }
            }
        }
        for (guest, settings) in guests.iter().enumerate() {
            if let Some(backing) = settings.swap.as_ref().and_then(|swap| swap.store.backing()) {
                let whole = HostPart { part: Part::default(), is_read_only: false };
                all.disks.push(HostDisk { serial: swap::serial(guest), backing, parts: vec![whole] });
            }
        }
        for (number, network) in (0..).zip(networks(guests)) {
            if *network != Network::Inner {
                all.cards.push(HostCard { mac: uplink(number), network: network.clone() });
            }
        }
        all
    }
}

impl HostDisk {
    /// Nothing writes to it.
    fn is_read_only(&self) -> bool {
        self.parts.iter().all(|part| part.is_read_only)
    }

    /// A guest keeps something there. What a store has of its pages is the guest's memory, which travels.
    fn is_written(&self) -> bool {
        !self.is_read_only() && !swap::is_store(&self.serial)
    }

    fn path(&self) -> &Path {
        match &self.backing {
            Backing::File(path) | Backing::Server(path) => path,
            Backing::Memory(_) => Path::new(""),
        }
    }

    /// The option that names it, up to the path.
    fn option(&self) -> &'static str {
        let is_server = matches!(self.backing, Backing::Server(_));
        match (swap::is_store(&self.serial), is_server) {
            (true, false) => "--swap ",
            (true, true) => "--swap nbd:",
            (false, false) => "--disk ",
            (false, true) => "--disk nbd:",
        }
    }

    fn is_same_place(&self, other: &Self) -> bool {
        let place = |disk: &Self| disk.path().canonicalize().unwrap_or_else(|_| disk.path().to_owned());
        place(self) == place(other)
    }

    fn check(&self) -> Result<(), WhyNot> {
        for (number, HostPart { part, is_read_only }) in self.parts.iter().enumerate() {
            if !part.is_possible() {
                return Err(WhyNot::Part);
            }
            let is_shared = |other: &HostPart| !(*is_read_only && other.is_read_only) && part.overlaps(&other.part);
            if self.parts[..number].iter().any(is_shared) {
                return Err(WhyNot::Twice);
            }
        }
        if let Backing::Server(path) = &self.backing {
            let is_there = path.metadata().is_ok_and(|metadata| metadata.file_type().is_socket());
            // Only the hypervisor learns the size of what it serves.
            return if is_there { Ok(()) } else { Err(WhyNot::NoServer) };
        }
        let file = File::options().read(true).write(!self.is_read_only()).open(self.path());
        let file = file.map_err(if swap::is_store(&self.serial) { WhyNot::UnusableStore } else { WhyNot::Unusable })?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(WhyNot::NoFile);
        }
        let size = metadata.len();
        if size == 0 || !size.is_multiple_of(SECTOR) {
            return Err(WhyNot::Size(size));
        }
        match self.parts.iter().map(|part| part.part.least_end()).find(|end| *end > size) {
            Some(end) => Err(WhyNot::Short { end, size }),
            None => Ok(()),
        }
    }
}

impl Part {
    fn of(record: &bundle::Disk) -> Self {
        let size = Some(record.sectors.get() * SECTOR).filter(|size| *size != 0);
        Self { offset: record.start.get() * SECTOR, size }
    }

    fn is_possible(&self) -> bool {
        self.offset.is_multiple_of(SECTOR) && self.size.is_none_or(|size| size != 0 && size.is_multiple_of(SECTOR))
    }

    /// The byte behind it; without a size, behind its first sector.
    fn least_end(&self) -> u64 {
        self.offset.saturating_add(self.size.unwrap_or(SECTOR))
    }

    fn overlaps(&self, other: &Self) -> bool {
        let end = |part: &Self| part.size.map_or(u64::MAX, |size| part.offset.saturating_add(size));
        self.offset < end(other) && other.offset < end(self)
    }
}

/// Whether a padded serial number is this one.
fn is_id(id: &[u8], serial: &str) -> bool {
    id.split(|byte| *byte == 0).next() == Some(serial.as_bytes())
}

trait Record {
    fn has_id(&self, serial: &str) -> bool;
    fn is_read_only(&self) -> bool;
}

impl Record for bundle::Disk {
    /// Whether this serial number is the disk's, and no disk in memory is meant.
    fn has_id(&self, serial: &str) -> bool {
        self.kind.get() == bundle::disk::HOST && is_id(&self.id, serial)
    }

    fn is_read_only(&self) -> bool {
        self.flags.get() & bundle::disk::READ_ONLY != 0
    }
}

/// An argument of QEMU that ends in a path. QEMU ends a value at a comma that is not doubled.
fn joined(head: &str, path: &Path) -> OsString {
    let mut argument = OsString::from(head);
    for (number, part) in path.as_os_str().as_bytes().split(|byte| *byte == b',').enumerate() {
        if number > 0 {
            argument.push(",,");
        }
        argument.push(<OsStr as OsStrExt>::from_bytes(part));
    }
    argument
}

/// The record of a guest's disk.
pub(crate) fn disk(guests: &[GuestSettings], guest: usize, number: usize) -> bundle::Disk {
    let disk = &guests[guest].devices.disks[number];
    let serial = serial(guests, guest, number);
    let mut id = [0; bundle::disk::ID_MAX];
    id[..serial.len()].copy_from_slice(serial.as_bytes());
    let Part { offset, size } = disk.part;
    let (kind, start, sectors) = match disk.backing {
        Backing::File(_) | Backing::Server(_) => (bundle::disk::HOST, offset / SECTOR, size.unwrap_or(0) / SECTOR),
        Backing::Memory(bytes) => (bundle::disk::MEMORY, 0, bytes / SECTOR),
    };
    let flags = if disk.is_read_only { bundle::disk::READ_ONLY } else { 0 };
    bundle::Disk { kind: kind.into(), flags: flags.into(), id, start: start.into(), sectors: sectors.into() }
}

/// The record of a guest's network card.
pub(crate) fn net(guests: &[GuestSettings], guest: usize, number: usize, network: &Network) -> bundle::Net {
    let place = networks(guests).iter().position(|other| *other == network).unwrap_or_default();
    let has_uplink = *network != Network::Inner;
    bundle::Net {
        network: (place as u32).into(),
        mac: mac(guest as u8, number as u8),
        uplink: if has_uplink { uplink(place as u8) } else { [0; 6] },
    }
}

/// The networks, each once, in the order of their numbers.
pub(crate) fn networks(guests: &[GuestSettings]) -> Vec<&Network> {
    let mut all = Vec::new();
    for network in guests.iter().flat_map(|guest| &guest.devices.nets) {
        if !all.contains(&network) {
            all.push(network);
        }
    }
    all
}

/// The serial number of a guest's disk: that of the first one with the same file or server.
fn serial(guests: &[GuestSettings], guest: usize, number: usize) -> String {
    let backing = &guests[guest].devices.disks[number].backing;
    let mut places = guests.iter().enumerate().flat_map(|(guest, settings)| {
        settings.devices.disks.iter().enumerate().map(move |(number, disk)| (guest, number, &disk.backing))
    });
    let first = places.find(|(_, _, other)| backing.is_same(other));
    let (guest, number) = first.map_or((guest, number), |(guest, number, _)| (guest, number));
    format!("twofold-{guest}-{number}")
}

impl Backing {
    /// The same from any working directory.
    fn absolute(&self) -> io::Result<Self> {
        Ok(match self {
            Self::File(path) => Self::File(absolute(path)?),
            Self::Server(path) => Self::Server(absolute(path)?),
            Self::Memory(bytes) => Self::Memory(*bytes),
        })
    }

    /// Whether both are the same file or server. Disks in memory have nothing in common.
    fn is_same(&self, other: &Self) -> bool {
        let place = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        match (self, other) {
            (Self::File(one), Self::File(other)) | (Self::Server(one), Self::Server(other)) => {
                place(one) == place(other)
            }
            _ => core::ptr::eq(self, other),
        }
    }
}

/// Addresses that are administered locally: the second bit of the first byte.
fn mac(guest: u8, number: u8) -> [u8; 6] {
    [0x02, b't', b'f', 0, guest, number]
}

fn uplink(network: u8) -> [u8; 6] {
    [0x02, b't', b'f', 1, 0, network]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::tests::GuestFiles;

    const WHOLE: Part = Part { offset: 0, size: None };

    fn host_disk(file: PathBuf, parts: &[(Part, bool)]) -> HostDisk {
        let parts = parts.iter().map(|(part, is_read_only)| HostPart { part: *part, is_read_only: *is_read_only });
        HostDisk { serial: "twofold-0-0".to_owned(), backing: Backing::File(file), parts: parts.collect() }
    }

    fn server(socket: &Path) -> HostDisk {
        HostDisk { backing: Backing::Server(socket.to_owned()), ..host_disk(PathBuf::new(), &[(WHOLE, false)]) }
    }

    fn why(disk: HostDisk) -> String {
        let devices = HostDevices { disks: vec![disk], cards: Vec::new(), ..HostDevices::default() };
        devices.check().err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn files_that_are_no_disks_are_refused() {
        let files = GuestFiles::new();
        let (good, odd, empty) =
            (files.write("good", &[0; 1024]), files.write("odd", &[0; 1000]), files.write("e", &[]));
        assert_eq!(why(host_disk(good.clone(), &[(WHOLE, false)])), "");
        assert_eq!(why(host_disk(good.clone(), &[(WHOLE, true), (WHOLE, true)])), "");
        for (disk, expected) in [
            (host_disk(files.path("none"), &[(WHOLE, false)]), "none`: No such file"),
            (host_disk(files.path(""), &[(WHOLE, true)]), "it is no file"),
            (host_disk(odd, &[(WHOLE, false)]), "odd`: it has 1000 bytes"),
            (host_disk(empty, &[(WHOLE, false)]), "it has 0 bytes"),
            (host_disk(good.clone(), &[(WHOLE, true), (WHOLE, false)]), "two disks have this file"),
            (server(&good), "good`: no NBD server listens there"),
            (server(&files.path("none")), "no NBD server listens there"),
        ] {
            assert!(why(disk).contains(expected), "{expected}");
        }
        let store = |disk| HostDisk { serial: swap::serial(0), ..disk };
        assert!(why(store(server(&files.path("none")))).starts_with("`--swap nbd:/"));
        assert!(why(server(&files.path("none"))).starts_with("`--disk nbd:/"));
        // A file that cannot be written can be a guest's disk, and no store.
        let none = why(store(host_disk(files.path("none"), &[(WHOLE, false)])));
        assert!(none.starts_with("`--swap /") && none.ends_with("; give a raw image that can be written"), "{none}");
        let socket = files.path("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(why(server(&socket)), "");
    }

    #[test]
    fn a_store_shares_its_file_with_nothing() {
        let files = GuestFiles::new();
        let file = files.write("pages", &[0; 1024]);
        // Also under another name, and beside a disk that is only read.
        let other = files.path("").join(".").join("pages");
        let disk = |number: usize, path: &Path, is_read_only| HostDisk {
            serial: swap::serial(number),
            ..host_disk(path.to_owned(), &[(WHOLE, is_read_only)])
        };
        for first in [disk(0, &other, false), host_disk(other.clone(), &[(WHOLE, true)])] {
            let devices =
                HostDevices { disks: vec![first, disk(1, &file, false)], cards: Vec::new(), ..HostDevices::default() };
            let error = devices.check().unwrap_err().to_string();
            assert!(error.starts_with("`--swap /") && error.contains("give the pages a place of their own"), "{error}");
        }
    }

    #[test]
    fn parts_are_inside_and_apart_unless_all_only_read() {
        let files = GuestFiles::new();
        let file = files.write("disk", &[0; 4096]);
        let part = |offset, size| Part { offset, size };
        let of = |parts: &[(Part, bool)]| why(host_disk(file.clone(), parts));
        assert_eq!(of(&[(part(512, Some(512)), false), (part(1024, None), false), (part(0, Some(512)), true)]), "");
        assert_eq!(of(&[(part(3584, None), false), (part(0, Some(3584)), false)]), "");
        assert_eq!(of(&[(part(0, None), true), (part(512, Some(512)), true)]), "");
        for (parts, expected) in [
            (&[(part(256, None), false)][..], "multiples of 512 bytes"),
            (&[(part(0, Some(100)), false)], "multiples of 512 bytes"),
            (&[(part(0, Some(0)), false)], "the size is not 0"),
            (&[(part(512, Some(4096)), false)], "the part ends at byte 4608, and the file has 4096"),
            (&[(part(4096, None), false)], "ends at byte 4608"),
            (&[(part(u64::MAX - 511, Some(1024)), false)], "and the file has 4096"),
            (&[(part(0, Some(1024)), false), (part(512, Some(512)), false)], "parts of it that overlap"),
            (&[(part(512, Some(512)), false), (part(0, Some(1024)), true)], "parts of it that overlap"),
            (&[(part(3584, Some(512)), false), (part(0, None), true)], "parts of it that overlap"),
        ] {
            assert!(of(parts).contains(expected), "{expected}: {}", of(parts));
        }
    }

    #[test]
    fn a_guest_takes_its_own_networks_along_and_may_have_others() {
        let files = GuestFiles::new();
        let mut guests = vec![files.guest(), files.guest()];
        let switch = |name: &str| Network::Switch(name.into());
        guests[0].devices.nets = vec![switch("/run/a")];
        guests[1].devices.nets = vec![switch("b"), Network::Inner, switch("b")];
        let all = HostDevices::of(&guests);
        let mut record = <bundle::Guest as zerocopy::FromZeros>::new_zeroed();
        record.nets = 3.into();
        for (number, network) in guests[1].devices.nets.iter().enumerate() {
            record.net[number] = net(&guests, 1, number, network);
        }
        let mut own = all.only(&record).unwrap();
        let here = std::env::current_dir().unwrap();
        assert_eq!(own.cards, [HostCard { mac: uplink(1), network: Network::Switch(here.join("b")) }]);
        own.set_networks(&record, &[switch("/c"), Network::Inner, switch("/c")]).unwrap();
        assert_eq!(own.cards[0].network, switch("/c"));
        for (networks, why) in [
            (vec![switch("/c")], "has 3 network cards, and --net is given for 1"),
            (vec![switch("/c"), Network::Inner, switch("/d")], "card 3 had another kind"),
            (vec![switch("/c"), switch("/c"), switch("/c")], "card 2 had another kind"),
            (vec![Network::Inner; 3], "card 1 had another kind"),
        ] {
            let error = own.set_networks(&record, &networks).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(own.cards[0].network, switch("/c"));
    }

    #[test]
    fn a_guest_takes_its_own_disks_along_and_may_have_them_elsewhere() {
        let files = GuestFiles::new();
        let disk = |name: &str, part, is_read_only| Disk { backing: Backing::File(name.into()), part, is_read_only };
        let half = Part { offset: 512, size: Some(512) };
        let mut guests = vec![files.guest(), files.guest()];
        guests[0].devices.disks = vec![disk("/a", WHOLE, true)];
        guests[1].devices.disks = vec![disk("/b", half, false), disk("/a", WHOLE, true)];
        let mut record = <bundle::Guest as zerocopy::FromZeros>::new_zeroed();
        record.disks = 2.into();
        (0..2).for_each(|number| record.disk[number] = super::disk(&guests, 1, number));
        guests[1].swap =
            Some(swap::Swap { resident: 64 << 20, store: swap::Store::File("/pages".into()), mode: swap::Mode::Off });
        record.swap = swap::record(guests[1].swap.as_ref(), 1);
        let mut own = HostDevices::of(&guests).only(&record).unwrap();
        assert_eq!(own.disks.pop().map(|disk| disk.path().to_owned()), Some("/pages".into()));
        let places = |own: &HostDevices| own.disks.iter().map(|disk| disk.path().to_owned()).collect::<Vec<_>>();
        assert_eq!(places(&own), [Path::new("/b"), Path::new("/a")]);
        assert_eq!(own.disks[0].parts, [HostPart { part: half, is_read_only: false }]);
        assert_eq!((own.written(), own.written_files().count()), (Some(Path::new("/b")), 1));
        own.set_disks(&record, &[disk("/c", half, false), disk("/d", WHOLE, true)]).unwrap();
        assert_eq!(places(&own), [Path::new("/c"), Path::new("/d")]);
        let memory = Disk { backing: Backing::Memory(512), part: WHOLE, is_read_only: true };
        for (disks, why) in [
            (vec![disk("/c", half, false)], "has 2 disks, and --disk is given for 1"),
            (vec![disk("/c", WHOLE, false), disk("/d", WHOLE, true)], "disk 1 had another"),
            (vec![disk("/c", half, false), disk("/d", WHOLE, false)], "disk 2 had another"),
            (vec![disk("/c", half, false), memory], "disk 2 had another"),
        ] {
            let error = own.set_disks(&record, &disks).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_switch_has_to_listen() {
        let files = GuestFiles::new();
        let socket = files.path("switch");
        let card = HostCard { mac: uplink(0), network: Network::Switch(socket.clone()) };
        let devices = HostDevices { disks: Vec::new(), cards: vec![card], ..HostDevices::default() };
        let error = devices.check().unwrap_err().to_string();
        let socket_name = socket.display();
        assert!(error.starts_with(&format!("`--net switch:{socket_name}`: No such file")), "{error}");
        assert!(error.contains(&format!("start `twofold switch --listen {socket_name}` first")), "{error}");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(devices.check().is_ok());
        drop(listener);
        // The socket is there, and nothing listens.
        assert!(devices.check().unwrap_err().to_string().contains("onnection refused"));
    }

    #[test]
    fn qemu_is_given_each_device() {
        let disk = host_disk("a,b.img".into(), &[(WHOLE, true)]);
        let forwards = vec!["tcp:127.0.0.1:8022-:22".to_owned()];
        let cards = [(uplink(0), Network::User { forwards }), (uplink(3), Network::Switch("s,w".into()))];
        let cards = cards.map(|(mac, network)| HostCard { mac, network }).to_vec();
        let mut all = Vec::new();
        // Another QEMU has the image that is written, and only that one.
        let taken = vec![host_disk("b.img".into(), &[(WHOLE, false)]), disk.clone(), server(Path::new("s,1"))];
        let mut locks = Vec::new();
        HostDevices { disks: taken, are_taken_over: true, ..HostDevices::default() }.add(&mut |_, value| {
            locks.push(
                value.to_str().unwrap().contains("read-only=off")
                    == value.to_str().unwrap().contains("file.locking=off,file.filename=b.img"),
            )
        });
        assert_eq!(locks, [true, true, true, true, false, true], "an NBD server has no lock");
        HostDevices { disks: vec![disk, server(Path::new("s,1"))], cards, ..HostDevices::default() }
            .add(&mut |option, value| all.push(format!("{option} {}", value.to_str().unwrap())));
        assert_eq!(
            all,
            [
                "-blockdev driver=raw,node-name=disk0,read-only=on,discard=unmap,file.driver=file,file.filename=a,,b.img",
                "-device virtio-blk-device,drive=disk0,serial=twofold-0-0,rerror=report,werror=report",
                "-blockdev driver=raw,node-name=disk1,read-only=off,discard=unmap,file.driver=nbd,file.server.type=unix,\
                 file.server.path=s,,1",
                "-device virtio-blk-device,drive=disk1,serial=twofold-0-0,rerror=report,werror=report",
                "-netdev user,id=net0,hostfwd=tcp:127.0.0.1:8022-:22",
                "-device virtio-net-device,netdev=net0,mac=02:74:66:01:00:00",
                "-netdev stream,id=net1,server=off,addr.type=unix,addr.path=s,,w",
                "-device virtio-net-device,netdev=net1,mac=02:74:66:01:00:03",
            ]
        );
    }

    #[test]
    fn the_bundle_and_the_machine_agree() {
        let files = GuestFiles::new();
        let mut guests = vec![files.guest(), files.guest()];
        let file = |name: &str| Disk { backing: Backing::File(files.path(name)), part: WHOLE, is_read_only: false };
        let user = Network::User { forwards: Vec::new() };
        guests[0].devices.disks = vec![file("a")];
        guests[0].devices.nets = vec![Network::Inner, user.clone()];
        let memory = Disk { backing: Backing::Memory(1 << 20), part: WHOLE, is_read_only: true };
        guests[1].devices.disks = vec![memory, file("b")];
        guests[1].devices.nets = vec![user.clone()];
        let host = HostDevices::of(&guests);
        let serials: Vec<_> = host.disks.iter().map(|disk| disk.serial.as_str()).collect();
        assert_eq!(serials, ["twofold-0-0", "twofold-1-1"]);
        let record = disk(&guests, 1, 1);
        assert_eq!(record.id[..11], *b"twofold-1-1");
        assert_eq!(disk(&guests, 1, 0).sectors.get(), 2048);
        assert_eq!(host.cards, [HostCard { mac: uplink(1), network: user.clone() }]);
        let cards = [net(&guests, 0, 0, &Network::Inner), net(&guests, 0, 1, &user), net(&guests, 1, 0, &user)];
        assert_eq!(cards.map(|card| card.network.get()), [0, 1, 1]);
        assert_eq!(cards.map(|card| card.uplink), [[0; 6], uplink(1), uplink(1)]);
        assert!(cards[0].mac != cards[1].mac && cards[1].mac != cards[2].mac);
    }
}
