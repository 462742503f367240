// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Disks and network cards of several guests: what fits together, and which networks they make.

use alloc::vec::Vec;

use twofold_abi::bundle::{self, NETWORKS_MAX, devices, disk};

use super::{Guest, HUGE_PAGE, Why};
use crate::switch::{Plug, Switch};

/// Checks a guest's disks and cards against each other and those of the guests `before`.
pub(super) fn check(guest: &Guest<'_>, before: &[Guest<'_>]) -> Result<(), Why> {
    let guests = || before.iter().chain(core::iter::once(guest));
    for (place, net) in guest.config.nets.iter().enumerate() {
        let number = place + 1;
        let is_this = |other: &bundle::Net| core::ptr::eq(other, net);
        for other in guests() {
            for card in other.config.nets.iter().take_while(|card| !is_this(card)) {
                if card.mac == net.mac {
                    return Err(Why::SameMac { number, other: other.name });
                }
                if card.network == net.network && card.uplink != net.uplink {
                    return Err(Why::Uplink { number, other: other.name });
                }
            }
        }
    }
    for (place, disk) in guest.config.disks.iter().enumerate() {
        for other in guests() {
            let earlier = other.config.disks.iter().take_while(|earlier| !core::ptr::eq(*earlier, disk));
            if earlier.into_iter().any(|earlier| collide(earlier, disk)) {
                return Err(Why::SharedDisk { number: place + 1, other: other.name });
            }
        }
    }
    Ok(())
}

/// Whether two disks have sectors of the machine's in common, and one of them may be written.
fn collide(one: &bundle::Disk, other: &bundle::Disk) -> bool {
    let is_host = |disk: &bundle::Disk| disk.kind.get() == disk::HOST;
    let is_writable = |disk: &bundle::Disk| disk.flags.get() & disk::READ_ONLY == 0;
    let sectors = |disk: &bundle::Disk| {
        let start = disk.start.get();
        let end = if disk.sectors.get() == 0 { u64::MAX } else { start.saturating_add(disk.sectors.get()) };
        start..end
    };
    let (first, second) = (sectors(one), sectors(other));
    is_host(one)
        && is_host(other)
        && one.id == other.id
        && (is_writable(one) || is_writable(other))
        && first.start < second.end
        && second.start < first.end
}

/// The huge pages of a disk, if it is in memory.
pub(super) fn pages_in_memory(disk: &bundle::Disk) -> u64 {
    match disk.kind.get() {
        disk::MEMORY => disk.sectors.get().div_ceil(HUGE_PAGE / bundle::SECTOR),
        _ => 0,
    }
}

/// What is plugged into a network: the cards in the order of guests and of their cards, then an uplink, with the address of
/// the machine's card, if it has one.
#[must_use]
pub fn plugs(guests: &[Guest<'_>], network: u32) -> (Vec<Plug>, Option<[u8; 6]>) {
    let cards = guests.iter().flat_map(|guest| guest.config.nets).filter(|net| net.network.get() == network);
    let mut plugs: Vec<_> = cards.clone().map(|net| Plug::Card(net.mac)).collect();
    let uplink = cards.map(|net| net.uplink).find(|uplink| *uplink != [0; 6]);
    plugs.extend(uplink.map(|_| Plug::Uplink));
    (plugs, uplink)
}

/// Bytes of EL2's heap that a disk on a disk of the machine takes at most: its requests, and the buffers of its transfers.
pub const HOST_DISK_MEMORY: u64 = 256 << 10;
/// Bytes of EL2's heap that any other virtio device takes at most, beside its network.
pub const DEVICE_MEMORY: u64 = 64 << 10;

/// Bytes of EL2's heap in which a balloon keeps the pages that it has: a bit for each page.
fn balloon_memory(guest: &Guest<'_>) -> u64 {
    let has_one = guest.config.devices & devices::BALLOON != 0;
    if has_one { guest.config.memory.div_ceil(8 * 4096) } else { 0 }
}

/// Bytes of EL2's heap that all virtio devices of these guests and their networks take at most.
#[must_use]
pub fn device_memory(guests: &[Guest<'_>]) -> u64 {
    let ports = (0..NETWORKS_MAX).map(|network| plugs(guests, network).0.len());
    let networks: u64 = ports.filter(|ports| *ports > 0).map(|ports| Switch::memory(ports) as u64).sum();
    let of_guest = |guest: &Guest<'_>| {
        let hosts = guest.config.disks.iter().filter(|disk| disk.kind.get() == disk::HOST).count() as u64;
        let others = guest.config.virtio_devices() as u64 - hosts;
        hosts * HOST_DISK_MEMORY + others * DEVICE_MEMORY + balloon_memory(guest)
    };
    networks + guests.iter().map(of_guest).sum::<u64>()
}
