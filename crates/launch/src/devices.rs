// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Disks and networks of the guests, and the machine's devices behind them.
//!
//! A guest sees virtio devices of the hypervisor's. Behind a disk that is a file is a disk of the machine, which the
//! hypervisor finds by its serial number; behind a network that reaches the outside is a card of the machine, which it
//! finds by its address. [`HostDevices`] says which these are, for QEMU, and `disk` and `net` say so for the bundle.
//! Invariant: both are made from the same settings by the same rule, so they agree.
//!
//! Two QEMUs on one image: QEMU locks the image, and the second one does not start, unless both only read. An NBD server
//! serves as many as it likes.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use thiserror::Error;
use twofold_abi::bundle::{self, SECTOR};

use crate::guest::GuestSettings;

/// The virtio devices of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    /// A virtio console, beside the UART.
    pub has_console: bool,
    /// A source of random bytes.
    pub has_random: bool,
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
    /// The guest may not write.
    pub is_read_only: bool,
}

/// What a disk keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostDevices {
    /// The disks.
    pub disks: Vec<HostDisk>,
    /// The network cards.
    pub cards: Vec<HostCard>,
}

/// A disk of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDisk {
    /// Its serial number.
    pub serial: String,
    /// Where it is: [`Backing::File`] or [`Backing::Server`].
    pub backing: Backing,
    /// Nothing writes to it.
    pub is_read_only: bool,
}

/// A network card of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCard {
    /// Its address.
    pub mac: [u8; 6],
    /// What it leads to: [`Network::User`] or [`Network::Switch`].
    pub network: Network,
}

/// Why a disk cannot be used.
#[derive(Debug, Error)]
#[error("`--disk {}`: {why}", path.display())]
pub struct DiskError {
    /// The file, or the server's socket.
    pub path: PathBuf,
    /// The reason.
    pub why: WhyNot,
}

/// Why a file is no disk.
#[derive(Debug, Error)]
pub enum WhyNot {
    /// The system refuses.
    #[error("{0}; give a raw image, and add `,ro` if it cannot be written")]
    Unusable(#[from] io::Error),
    /// It is a directory or the like.
    #[error("it is no file; give a raw image")]
    NoFile,
    /// There is no socket.
    #[error("no NBD server listens there; start one first, at this path of a Unix socket")]
    NoServer,
    /// Its size.
    #[error("it has {0} bytes; a disk has a multiple of {SECTOR}, and at least one sector")]
    Size(u64),
    /// It is the file of another disk, and one of them is written.
    #[error("two disks have this file; give each one of its own, or add `,ro` to both")]
    Twice,
}

impl HostDevices {
    /// Checks the files of the disks.
    ///
    /// # Errors
    ///
    /// The first that cannot be used, with the reason.
    pub fn check(&self) -> Result<(), DiskError> {
        for (number, disk) in self.disks.iter().enumerate() {
            disk.check(&self.disks[..number]).map_err(|why| DiskError { path: disk.path().to_owned(), why })?;
        }
        Ok(())
    }

    /// QEMU's arguments.
    pub(crate) fn add(&self, add: &mut impl FnMut(&str, OsString)) {
        for (number, disk) in self.disks.iter().enumerate() {
            let HostDisk { serial, backing, is_read_only } = disk;
            let access = if *is_read_only { "on" } else { "off" };
            let place = match backing {
                Backing::Server(_) => "file.driver=nbd,file.server.type=unix,file.server.path=",
                _ => "file.driver=file,file.filename=",
            };
            let head = format!("driver=raw,node-name=disk{number},read-only={access},discard=unmap,{place}");
            add("-blockdev", joined(&head, disk.path()));
            add("-device", format!("virtio-blk-device,drive=disk{number},serial={serial}").into());
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
                if !matches!(disk.backing, Backing::Memory(_)) {
                    let serial = serial(guest, number);
                    all.disks.push(HostDisk { serial, backing: disk.backing.clone(), is_read_only: disk.is_read_only });
                }
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
    fn path(&self) -> &Path {
        match &self.backing {
            Backing::File(path) | Backing::Server(path) => path,
            Backing::Memory(_) => Path::new(""),
        }
    }

    fn check(&self, others: &[Self]) -> Result<(), WhyNot> {
        if let Backing::Server(path) = &self.backing {
            let is_there = path.metadata().is_ok_and(|metadata| metadata.file_type().is_socket());
            return if is_there { Ok(()) } else { Err(WhyNot::NoServer) };
        }
        let file = File::options().read(true).write(!self.is_read_only).open(self.path())?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(WhyNot::NoFile);
        }
        if metadata.len() == 0 || !metadata.len().is_multiple_of(SECTOR) {
            return Err(WhyNot::Size(metadata.len()));
        }
        let path = self.path().canonicalize()?;
        for other in others {
            if !(self.is_read_only && other.is_read_only) && other.path().canonicalize()? == path {
                return Err(WhyNot::Twice);
            }
        }
        Ok(())
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
pub(crate) fn disk(guest: usize, number: usize, disk: &Disk) -> bundle::Disk {
    let serial = serial(guest, number);
    let mut id = [0; bundle::disk::ID_MAX];
    id[..serial.len()].copy_from_slice(serial.as_bytes());
    let (kind, sectors) = match disk.backing {
        Backing::File(_) | Backing::Server(_) => (bundle::disk::HOST, 0),
        Backing::Memory(bytes) => (bundle::disk::MEMORY, bytes / SECTOR),
    };
    let flags = if disk.is_read_only { bundle::disk::READ_ONLY } else { 0 };
    bundle::Disk { kind: kind.into(), flags: flags.into(), id, start: 0.into(), sectors: sectors.into() }
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

fn serial(guest: usize, number: usize) -> String {
    format!("twofold-{guest}-{number}")
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

    fn host_disk(file: PathBuf, is_read_only: bool) -> HostDisk {
        HostDisk { serial: "twofold-0-0".to_owned(), backing: Backing::File(file), is_read_only }
    }

    fn server(socket: &Path) -> HostDisk {
        HostDisk { backing: Backing::Server(socket.to_owned()), ..host_disk(PathBuf::new(), false) }
    }

    #[test]
    fn files_that_are_no_disks_are_refused() {
        let files = GuestFiles::new();
        let (good, odd, empty) =
            (files.write("good", &[0; 1024]), files.write("odd", &[0; 1000]), files.write("e", &[]));
        let why = |disks: &[HostDisk]| {
            let devices = HostDevices { disks: disks.to_vec(), cards: Vec::new() };
            devices.check().err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(why(&[host_disk(good.clone(), false)]), "");
        assert_eq!(why(&[host_disk(good.clone(), true), host_disk(good.clone(), true)]), "");
        for (disks, expected) in [
            (vec![host_disk(files.path("none"), false)], "none`: No such file"),
            (vec![host_disk(files.path(""), true)], "it is no file"),
            (vec![host_disk(odd, false)], "odd`: it has 1000 bytes"),
            (vec![host_disk(empty, false)], "it has 0 bytes"),
            (vec![host_disk(good.clone(), true), host_disk(files.path("./good"), false)], "two disks have this file"),
            (vec![server(&good)], "good`: no NBD server listens there"),
            (vec![server(&files.path("none"))], "no NBD server listens there"),
        ] {
            assert!(why(&disks).contains(expected), "{}", why(&disks));
        }
        let socket = files.path("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(why(&[server(&socket), host_disk(good, false)]), "");
    }

    #[test]
    fn qemu_is_given_each_device() {
        let disk = host_disk("a,b.img".into(), true);
        let forwards = vec!["tcp:127.0.0.1:8022-:22".to_owned()];
        let cards = [(uplink(0), Network::User { forwards }), (uplink(3), Network::Switch("s,w".into()))];
        let cards = cards.map(|(mac, network)| HostCard { mac, network }).to_vec();
        let mut all = Vec::new();
        HostDevices { disks: vec![disk, server(Path::new("s,1"))], cards }
            .add(&mut |option, value| all.push(format!("{option} {}", value.to_str().unwrap())));
        assert_eq!(
            all,
            [
                "-blockdev driver=raw,node-name=disk0,read-only=on,discard=unmap,file.driver=file,file.filename=a,,b.img",
                "-device virtio-blk-device,drive=disk0,serial=twofold-0-0",
                "-blockdev driver=raw,node-name=disk1,read-only=off,discard=unmap,file.driver=nbd,file.server.type=unix,\
                 file.server.path=s,,1",
                "-device virtio-blk-device,drive=disk1,serial=twofold-0-0",
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
        let file = |name: &str| Disk { backing: Backing::File(files.path(name)), is_read_only: false };
        let user = Network::User { forwards: Vec::new() };
        guests[0].devices.disks = vec![file("a")];
        guests[0].devices.nets = vec![Network::Inner, user.clone()];
        guests[1].devices.disks = vec![Disk { backing: Backing::Memory(1 << 20), is_read_only: true }, file("b")];
        guests[1].devices.nets = vec![user.clone()];
        let host = HostDevices::of(&guests);
        let serials: Vec<_> = host.disks.iter().map(|disk| disk.serial.as_str()).collect();
        assert_eq!(serials, ["twofold-0-0", "twofold-1-1"]);
        let record = disk(1, 1, &guests[1].devices.disks[1]);
        assert_eq!(record.id[..11], *b"twofold-1-1");
        assert_eq!(disk(1, 0, &guests[1].devices.disks[0]).sectors.get(), 2048);
        assert_eq!(host.cards, [HostCard { mac: uplink(1), network: user.clone() }]);
        let cards = [net(&guests, 0, 0, &Network::Inner), net(&guests, 0, 1, &user), net(&guests, 1, 0, &user)];
        assert_eq!(cards.map(|card| card.network.get()), [0, 1, 1]);
        assert_eq!(cards.map(|card| card.uplink), [[0; 6], uplink(1), uplink(1)]);
        assert!(cards[0].mac != cards[1].mac && cards[1].mac != cards[2].mac);
    }
}
