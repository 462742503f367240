// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the bundle says of a guest's disks and cards, and by what the hypervisor finds those of the machine.

use twofold_abi::bundle::{self, SECTOR};

use super::{Backing, Network, Part};
use crate::guest::GuestSettings;

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
pub(super) fn serial(guests: &[GuestSettings], guest: usize, number: usize) -> String {
    let backing = &guests[guest].devices.disks[number].backing;
    let mut places = guests.iter().enumerate().flat_map(|(guest, settings)| {
        settings.devices.disks.iter().enumerate().map(move |(number, disk)| (guest, number, &disk.backing))
    });
    let first = places.find(|(_, _, other)| backing.is_same(other));
    let (guest, number) = first.map_or((guest, number), |(guest, number, _)| (guest, number));
    format!("twofold-{guest}-{number}")
}

/// What a record of a disk says.
pub(super) trait Record {
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

impl Part {
    /// The part that the record names.
    pub(super) fn of(record: &bundle::Disk) -> Self {
        let size = Some(record.sectors.get() * SECTOR).filter(|size| *size != 0);
        Self { offset: record.start.get() * SECTOR, size }
    }
}

/// Whether a padded serial number is this one.
pub(super) fn is_id(id: &[u8], serial: &str) -> bool {
    id.split(|byte| *byte == 0).next() == Some(serial.as_bytes())
}

/// Addresses that are administered locally: the second bit of the first byte.
fn mac(guest: u8, number: u8) -> [u8; 6] {
    [0x02, b't', b'f', 0, guest, number]
}

/// The address of the card that leads out of a network.
pub(super) fn uplink(network: u8) -> [u8; 6] {
    [0x02, b't', b'f', 1, 0, network]
}

#[cfg(test)]
mod tests {
    use super::super::{Disk, HostCard, HostDevices};
    use super::*;
    use crate::guest::tests::GuestFiles;

    const WHOLE: Part = Part { offset: 0, size: None };

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
