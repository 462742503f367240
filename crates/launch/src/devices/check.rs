// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether the machine's devices can be there: files of disks, servers, switches.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use thiserror::Error;
use twofold_abi::bundle::SECTOR;

use super::{Backing, HostDevices, HostDisk, HostPart, Network};
use crate::swap;

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
}

impl HostDisk {
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
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::records::uplink;
    use std::path::Path;

    use super::super::{HostCard, Part};
    use super::*;
    use crate::guest::tests::GuestFiles;

    pub(in super::super) const WHOLE: Part = Part { offset: 0, size: None };

    pub(in super::super) fn host_disk(file: PathBuf, parts: &[(Part, bool)]) -> HostDisk {
        let parts = parts.iter().map(|(part, is_read_only)| HostPart { part: *part, is_read_only: *is_read_only });
        HostDisk { serial: "twofold-0-0".to_owned(), backing: Backing::File(file), parts: parts.collect() }
    }

    pub(in super::super) fn server(socket: &Path) -> HostDisk {
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
}
