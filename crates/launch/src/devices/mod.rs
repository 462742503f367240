// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Disks and networks of the guests, and the machine's devices behind them.
//!
//! | file | contents |
//! |---|---|
//! | this one | what a guest has, as its settings say it |
//! | `host` | what the machine has for it |
//! | `check` | whether those can be there |
//! | `records` | what the bundle says of both |
//! | `qemu` | what QEMU is given |
//!
//! A guest sees virtio devices of the hypervisor's. Behind a disk that is a file is a disk of the machine, which the
//! hypervisor finds by its serial number; behind a network that reaches the outside is a card of the machine, which it
//! finds by its address. [`HostDevices`] says which these are, for QEMU, and `disk` and `net` say so for the bundle.
//! Parts of one file, or of what one server serves, are parts of one disk of the machine.
//! Invariant: both are made from the same settings by the same rule, so they agree.
//!
//! Two QEMUs on one image: QEMU locks the image, and the second one does not start, unless both only read. An NBD server
//! serves as many as it likes.

use std::io;
use std::path::{Path, PathBuf, absolute};

use serde::{Deserialize, Serialize};
use twofold_abi::bundle::SECTOR;

mod check;
mod host;
mod qemu;
mod records;

pub use check::{DeviceError, WhyNot};
pub use host::{HostCard, HostDevices, HostDisk, HostPart};
pub(crate) use records::{disk, net, networks};

/// The virtio devices of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    /// A virtio console, beside the UART.
    pub has_console: bool,
    /// A source of random bytes.
    pub has_random: bool,
    /// A memory balloon, by which the guest also reports memory that it does not use.
    pub has_balloon: bool,
    /// Its disks, at most [`DISKS_MAX`](twofold_abi::bundle::DISKS_MAX).
    pub disks: Vec<Disk>,
    /// The network of each of its cards, at most [`NETS_MAX`](twofold_abi::bundle::NETS_MAX).
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

impl Part {
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
