// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of a guest's virtio devices as sections, and back ([`crate::vm::saved`]).
//!
//! | section | instance | content |
//! |---|---|---|
//! | `virtio` | a transport | as the model of `twofold_devices` has it |
//! | `balloon` | a piece of [`PIECE`] words, if one is not 0 | the pages in the balloon: a bit for each page of RAM |
//!
//! A device's far end is not part of it: disks and network cards, which have one, are refused.
//!
//! Invariant: every device is polled after its restore, before the guest runs: what its driver has queued is found then.

use alloc::vec;
use alloc::vec::Vec;

use twofold_devices::StateError;
use twofold_devices::virtio::{Balloon, Console, Rng};
use twofold_vmm::saved::Section;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

use super::{Kind, VirtioDevices, interrupt};
use crate::gic::guest::GuestGic;

/// Words of the balloon's bits in a section: those of 1 GiB.
const PIECE: usize = 4096;

impl VirtioDevices {
    /// What the guest has that cannot be saved.
    pub(crate) fn unsaved(&self) -> Option<&'static str> {
        self.slots.iter().find_map(|slot| match slot.device.lock().kind {
            Kind::Disk(_) => Some("a disk"),
            Kind::Card(_) => Some("a network card"),
            Kind::Console(_) | Kind::Random(_) | Kind::Balloon(_) => None,
        })
    }

    /// Appends the sections of the devices. The guest is stopped, and has none that is [unsaved](Self::unsaved).
    pub(crate) fn save(&self, to: &mut Vec<u8>) -> Result<(), StateError> {
        for (instance, slot) in (0..).zip(&self.slots) {
            let mut room = vec![0; Balloon::STATE_MAX.max(Console::STATE_MAX).max(Rng::STATE_MAX)];
            let device = slot.device.lock();
            let bytes = match &device.kind {
                Kind::Console(console) => console.state(&mut room)?,
                Kind::Random(random) => random.state(&mut room)?,
                Kind::Balloon(balloon) => balloon.device.state(&mut room)?,
                Kind::Disk(_) | Kind::Card(_) => continue,
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

    /// Takes the state of a device. `None`: there is none with this number.
    pub(crate) fn restore(&self, transport: u32, bytes: &[u8], gic: &GuestGic) -> Option<Result<(), StateError>> {
        let slot = self.slots.get(transport as usize)?;
        let mut device = slot.device.lock();
        let level = match &mut device.kind {
            Kind::Console(console) => taken(console.as_mut(), |old| old.clone().with_state(bytes), Console::interrupt),
            Kind::Random(random) => taken(random, |old| old.clone().with_state(bytes), Rng::interrupt),
            Kind::Balloon(balloon) => {
                taken(&mut balloon.device, |old| old.clone().with_state(bytes), Balloon::interrupt)
            }
            Kind::Disk(_) | Kind::Card(_) => return None,
        };
        Some(level.map(|level| {
            device.level = level;
            gic.set_shared(None, interrupt(transport as usize), level);
            slot.waker.note();
        }))
    }

    /// Takes a piece of the pages in the balloon. `None`: there is no balloon.
    pub(crate) fn restore_balloon(&self, piece: u32, bytes: &[u8]) -> Option<Result<(), StateError>> {
        self.slots.iter().find_map(|slot| match &mut slot.device.lock().kind {
            Kind::Balloon(balloon) => {
                Some(<[U64]>::ref_from_bytes(bytes).map_or(Err(StateError::Impossible("a part of a word")), |words| {
                    let at = piece as usize * PIECE;
                    let place = balloon.bits_mut().get_mut(at..at.saturating_add(words.len()));
                    let place = place.ok_or(StateError::Impossible("pages that the guest does not have"))?;
                    place.iter_mut().zip(words).for_each(|(place, word)| *place = word.get());
                    Ok(())
                }))
            }
            _ => None,
        })
    }
}

/// Replaces a device by the one that has a state, and returns the level of its line.
fn taken<D>(
    device: &mut D,
    with_state: impl FnOnce(&D) -> Result<D, StateError>,
    level: impl FnOnce(&D) -> bool,
) -> Result<bool, StateError> {
    *device = with_state(device)?;
    Ok(level(device))
}
