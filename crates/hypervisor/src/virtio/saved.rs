// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of a guest's virtio devices as sections, and back ([`crate::vm::saved`]).
//!
//! | section | instance | content |
//! |---|---|---|
//! | `virtio` | a transport | as the model of `twofold_devices` has it: registers, queues, chains that the device has taken |
//! | `disk` | a transport | what the disk is for its guest ([`saved::Disk`]) |
//! | `card` | a transport | what the card is for its guest ([`saved::Card`]) |
//! | `balloon` | a piece of [`PIECE`] words, if one is not 0 | the pages in the balloon: a bit for each page of RAM |
//!
//! A device's far end is not part of it. Frames that wait for a card are the network's, which may drop frames: they are not in
//! a buffer of the guest. A restored card announces itself ([`Card::announce`](super::card::Card::announce)).
//!
//! # Requests of disks
//!
//! A disk's content stays where it is, so a disk in memory is refused. A request that has begun and that the guest does not
//! have back is in the model's state, and begins anew when the guest goes on. In steps:
//!
//! * Q1: the guest is stopped: the I/O task takes no turn, so nothing begins at the machine's disk.
//! * Q2: the save waits until the machine's disk works on nothing of the guest's ([`VirtioDevices::is_idle`]).
//! * Q3: the state is written. What has ended at the disk stays untaken (D4), so nothing of the guest's memory changes.
//! * Q4: the restored guest's poll begins the requests of the state.
//!
//! **None is lost**: each is in the state until the guest has it back. **None is done late**: by Q2 the disk has ended all that was
//! begun before Q4 begins it again. A write that was done before Q3 is written once more with the same data, while the guest
//! still waits for it: no other request could have depended on it, and the guest sees one completion.
//!
//! Invariant: every device is polled after its restore, before the guest runs: what its driver has queued is found then.

use alloc::vec;
use alloc::vec::Vec;

use twofold_devices::StateError;
use twofold_devices::virtio::{Balloon, Block, Console, Net, Rng};
use twofold_vmm::saved::{self, Section};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

use super::{Kind, VirtioDevices, interrupt};
use crate::gic::guest::GuestGic;
use crate::vm::saved::Unrestored;

/// Words of the balloon's bits in a section: those of 1 GiB.
const PIECE: usize = 4096;

impl VirtioDevices {
    /// What the guest has that cannot be saved.
    pub(crate) fn unsaved(&self) -> Option<&'static str> {
        self.slots.iter().find_map(|slot| match &slot.device.lock().kind {
            Kind::Disk(disk) if !disk.is_shared() => Some("a disk in memory"),
            Kind::Disk(_) | Kind::Card(_) | Kind::Console(_) | Kind::Random(_) | Kind::Balloon(_) => None,
        })
    }

    /// Q2.
    pub(crate) fn is_idle(&self) -> bool {
        self.slots.iter().all(|slot| match &slot.device.lock().kind {
            Kind::Disk(disk) => disk.is_idle(),
            Kind::Card(_) | Kind::Console(_) | Kind::Random(_) | Kind::Balloon(_) => true,
        })
    }

    /// Appends the sections of the devices. The guest is stopped, and has none that is [unsaved](Self::unsaved). They
    /// [are idle](Self::is_idle).
    pub(crate) fn save(&self, to: &mut Vec<u8>) -> Result<(), StateError> {
        for (instance, slot) in (0..).zip(&self.slots) {
            let mut room = vec![0; MODEL_MAX];
            let device = slot.device.lock();
            let bytes = match &device.kind {
                Kind::Card(card) => {
                    Section { name: "card", instance, bytes: &card.identity().bytes() }.write(to);
                    card.net.state(&mut room)?
                }
                Kind::Console(console) => console.state(&mut room)?,
                Kind::Random(random) => random.state(&mut room)?,
                Kind::Balloon(balloon) => balloon.device.state(&mut room)?,
                Kind::Disk(disk) => {
                    Section { name: "disk", instance, bytes: &disk.identity().bytes() }.write(to);
                    disk.block.state(&mut room)?
                }
            };
            Section { name: "virtio", instance, bytes }.write(to);
            if let Kind::Balloon(balloon) = &device.kind {
                for (piece, words) in (0..).zip(balloon.bits().chunks(PIECE)) {
                    if words.iter().any(|word| *word != 0) {
                        let words: Vec<_> = words.iter().map(|word| U64::from(*word)).collect();
                        Section { name: "balloon", instance: piece, bytes: words.as_bytes() }.write(to);
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes a section. `None`: it is of no device that the guest has.
    pub(crate) fn restore(&self, section: &Section<'_>, gic: &GuestGic) -> Option<Result<(), Unrestored>> {
        let Section { name, instance, bytes } = *section;
        match name {
            "virtio" => self.restore_model(instance, bytes, gic),
            "card" => {
                let device = self.slots.get(instance as usize)?.device.lock();
                let Kind::Card(card) = &device.kind else { return None };
                let there = saved::Card::read(bytes).map_err(Unrestored::from);
                Some(
                    there.and_then(|there| {
                        there.check(&card.identity()).map_err(|why| Unrestored::Other(instance, why))
                    }),
                )
            }
            "disk" => {
                let device = self.slots.get(instance as usize)?.device.lock();
                let Kind::Disk(disk) = &device.kind else { return None };
                let there = saved::Disk::read(bytes).map_err(Unrestored::from);
                Some(
                    there.and_then(|there| {
                        there.check(&disk.identity()).map_err(|why| Unrestored::Other(instance, why))
                    }),
                )
            }
            "balloon" => self.restore_balloon(instance, bytes),
            _ => None,
        }
    }

    fn restore_model(&self, transport: u32, bytes: &[u8], gic: &GuestGic) -> Option<Result<(), Unrestored>> {
        let slot = self.slots.get(transport as usize)?;
        let mut device = slot.device.lock();
        let level = match &mut device.kind {
            Kind::Card(card) => {
                taken(&mut card.net, |old| old.clone().with_state(bytes), Net::interrupt).inspect(|_| card.announce())
            }
            Kind::Console(console) => taken(console.as_mut(), |old| old.clone().with_state(bytes), Console::interrupt),
            Kind::Random(random) => taken(random, |old| old.clone().with_state(bytes), Rng::interrupt),
            Kind::Balloon(balloon) => {
                taken(&mut balloon.device, |old| old.clone().with_state(bytes), Balloon::interrupt)
            }
            Kind::Disk(disk) => disk.block.restore(bytes).map(|()| disk.block.interrupt()),
        };
        Some(level.map_err(Unrestored::from).map(|level| {
            device.level = level;
            gic.set_shared(None, interrupt(transport as usize), level);
            slot.waker.note();
        }))
    }

    /// Takes a piece of the pages in the balloon. `None`: there is no balloon.
    fn restore_balloon(&self, piece: u32, bytes: &[u8]) -> Option<Result<(), Unrestored>> {
        let impossible = |why| Unrestored::from(StateError::Impossible(why));
        self.slots.iter().find_map(|slot| match &mut slot.device.lock().kind {
            Kind::Balloon(balloon) => {
                Some(<[U64]>::ref_from_bytes(bytes).map_or(Err(impossible("a part of a word")), |words| {
                    let at = piece as usize * PIECE;
                    let place = balloon.bits_mut().get_mut(at..at.saturating_add(words.len()));
                    let place = place.ok_or(impossible("pages that the guest does not have"))?;
                    place.iter_mut().zip(words).for_each(|(place, word)| *place = word.get());
                    Ok(())
                }))
            }
            _ => None,
        })
    }
}

/// The most bytes of the state of a model.
const MODEL_MAX: usize = {
    let all = [Block::STATE_MAX, Net::STATE_MAX, Balloon::STATE_MAX, Console::STATE_MAX, Rng::STATE_MAX];
    let (mut most, mut at) = (0, 0);
    while at < all.len() {
        if all[at] > most {
            most = all[at];
        }
        at += 1;
    }
    most
};

/// Replaces a device by the one that has a state, and returns the level of its line.
fn taken<D>(
    device: &mut D,
    with_state: impl FnOnce(&D) -> Result<D, StateError>,
    level: impl FnOnce(&D) -> bool,
) -> Result<bool, StateError> {
    *device = with_state(device)?;
    Ok(level(device))
}
