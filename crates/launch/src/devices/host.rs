// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine's devices that stand behind those of the guests.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf, absolute};

use serde::{Deserialize, Serialize};
use twofold_abi::bundle;

use super::records::{Record, is_id, networks, serial, uplink};
use super::{Backing, DeviceError, Disk, Network, Part};
use crate::guest::GuestSettings;
use crate::swap;

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

impl HostDevices {
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
}

impl HostDisk {
    /// Nothing writes to it.
    pub(super) fn is_read_only(&self) -> bool {
        self.parts.iter().all(|part| part.is_read_only)
    }

    /// A guest keeps something there. What a store has of its pages is the guest's memory, which travels.
    pub(super) fn is_written(&self) -> bool {
        !self.is_read_only() && !swap::is_store(&self.serial)
    }

    /// Where it is; nothing, of one in memory.
    pub(super) fn path(&self) -> &Path {
        match &self.backing {
            Backing::File(path) | Backing::Server(path) => path,
            Backing::Memory(_) => Path::new(""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::records::net;
    use super::*;
    use crate::guest::tests::GuestFiles;

    const WHOLE: Part = Part { offset: 0, size: None };

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
        (0..2).for_each(|number| record.disk[number] = super::super::records::disk(&guests, 1, number));
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
}
