// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest was started with, as it travels before its memory: its bundle by itself, and what is behind its devices.

use std::fs;
use std::io;
use std::path::Path;

use twofold_abi::bundle::{self, Header, NAME_MAX, flags};
use twofold_migration::Section;
use twofold_migration::stream::{Hello, Slot};
use zerocopy::FromBytes;

use super::memory::SHIFT;
use crate::bundle::Bundle;
use crate::devices::{DeviceError, HostDevices, Network};
use crate::sample::Known;
use crate::snapshot::{self, BUNDLE, HOST, MODEL, name, random};
use crate::swap;

/// What a guest was started with.
#[derive(Debug)]
pub struct Carried {
    bundle: Vec<u8>,
    record: bundle::Guest,
    /// What is behind its devices.
    pub devices: HostDevices,
    /// Whether pages of its RAM come after it has begun.
    pub postcopy: bool,
}

impl Carried {
    /// Of guest number `guest` of a bundle.
    ///
    /// # Errors
    ///
    /// The bundle cannot be read.
    pub fn of(bundle: &Bundle, guest: u16) -> io::Result<Self> {
        let alone = snapshot::alone(&bundle.path, guest)?;
        let record = snapshot::record(&alone).ok_or(io::ErrorKind::InvalidData)?;
        let devices = bundle.devices.only(&record)?;
        Ok(Self { bundle: alone, record, devices, postcopy: false })
    }

    /// From the sections that [`sections`](Self::sections) makes.
    ///
    /// # Errors
    ///
    /// The bytes are not such sections.
    pub fn from_sections(bundle: Vec<u8>, host: &[u8]) -> Result<Self, String> {
        let record = snapshot::record(&bundle).ok_or("the guest's bundle is none")?;
        let devices =
            serde_json::from_slice(host).map_err(|why| format!("what is behind the guest's devices: {why}"))?;
        Ok(Self { bundle, record, devices, postcopy: false })
    }

    /// The sections that travel before the pages.
    ///
    /// # Errors
    ///
    /// A file name is not UTF-8.
    pub fn sections(&self) -> Result<Vec<Section>, String> {
        let host = serde_json::to_vec(&self.devices).map_err(|why| why.to_string())?;
        let section = |text, bytes| Section { name: name(text), instance: 0, version: 1, bytes };
        Ok(vec![section(BUNDLE, self.bundle.clone()), section(HOST, host)])
    }

    /// Gives the guest's cards other networks than they had.
    ///
    /// # Errors
    ///
    /// The guest's cards do not fit these.
    pub fn set_networks(&mut self, networks: &[Network]) -> Result<(), DeviceError> {
        self.devices.set_networks(&self.record, networks)
    }

    /// Its memslots.
    #[must_use]
    pub fn slots(&self) -> Vec<Slot> {
        snapshot::slots(&self.record)
    }

    /// What a stream of it begins with.
    #[must_use]
    pub fn hello(&self) -> Hello {
        Hello {
            migration: core::array::from_fn(|_| random() as u8),
            stream: 0,
            streams: 1,
            model: name(MODEL),
            page_shift: SHIFT,
            ipa_bits: 40,
            vcpus: self.record.cpus.get(),
            memory: self.slots().iter().map(|slot| slot.pages << SHIFT).sum(),
            features: Vec::new(),
        }
    }

    /// The guest as a user knows it.
    #[must_use]
    pub fn known(&self) -> Known {
        let used = self.record.name.iter().position(|byte| *byte == 0).unwrap_or(NAME_MAX);
        let name = String::from_utf8_lossy(&self.record.name[..used]).into_owned();
        Known { name, memory: self.record.memory.get(), cpus: self.record.cpus.get() }
    }

    /// Bytes of the machine's memory that it takes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        let beside = self.hello().memory - self.record.memory.get();
        let own = swap::machine_memory_of(&self.record.swap, self.record.memory.get(), self.postcopy);
        own.saturating_add(beside).saturating_add(self.record.test_size.get())
    }

    /// Writes the bundle with which the guest is made elsewhere.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<Bundle> {
        let mut bytes = self.bundle.clone();
        if let Ok((header, _)) = Header::mut_from_prefix(&mut bytes) {
            header.flags |= flags::INCOMING;
            if self.postcopy {
                header.flags |= flags::POSTCOPY;
            }
        }
        fs::write(path, &bytes)?;
        Ok(Bundle {
            path: path.to_owned(),
            size: bytes.len() as u64,
            names: vec![self.known().name],
            devices: self.devices.clone(),
        })
    }
}
