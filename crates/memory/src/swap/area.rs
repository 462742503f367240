// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's memory, as the areas of asynchronous page faults see it.

use twofold_stage2::{Granule, Ipa, Platform};

use crate::async_fault::{Absent, AreaMemory};
use crate::guest::{Error, GuestMemory};

/// Where an area is: an address, and the index of its slot while the generation of slots is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AreaPlace {
    ipa: Ipa,
    slot: usize,
}

impl<P: Platform, G: Granule> AreaMemory for GuestMemory<P, G> {
    type Place = AreaPlace;

    fn generation(&self) -> u64 {
        self.slots.generation()
    }

    fn place(&self, ipa: Ipa, size: u64) -> Option<AreaPlace> {
        let slot = self.slots.index_of(ipa)?;
        let memslot = self.slots.at(slot)?;
        let fits = ipa.checked_add(size)? <= ipa.align_down(G::SIZE).checked_add(G::SIZE)?;
        (fits && memslot.writable && !memslot.is_device()).then_some(AreaPlace { ipa, slot })
    }

    fn read(&self, place: AreaPlace, offset: usize) -> Result<u32, Absent> {
        let mut bytes = [0; 4];
        if let Some(slot) = self.slots.at(place.slot) {
            self.read_in_page(slot, place.ipa + offset as u64, &mut bytes)
                .map_err(|error| absent::<G>(error, place))?;
        }
        Ok(u32::from_le_bytes(bytes))
    }

    fn write(&self, place: AreaPlace, offset: usize, bytes: &[u8]) -> Result<(), Absent> {
        let Some(slot) = self.slots.at(place.slot) else { return Ok(()) };
        self.write_in_page(slot, place.ipa + offset as u64, bytes).map_err(|error| absent::<G>(error, place))
    }
}

/// Without frames for it, a page that was never touched is as good as absent.
fn absent<G: Granule>(error: Error, place: AreaPlace) -> Absent {
    match error {
        Error::Absent { page, .. } => Absent { page },
        _ => Absent { page: place.ipa.align_down(G::SIZE) },
    }
}
