// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The 64 bytes that a vCPU shares with the hypervisor, in the guest's RAM. `docs/async-page-fault.md` has the layout.
//!
//! **Invariant.** The area is accessed only on its vCPU's CPU while that vCPU is not in the guest. So its guest never
//! sees a part of an announcement. Other vCPUs have no business there.

use twofold_abi::async_fault::area::{ANNOUNCEMENT_SIZE, LEVEL, NOT_PRESENT, PC, READY, SEQUENCE, SIZE};
use twofold_stage2::Ipa;

/// The guest's RAM, as far as areas need it.
pub trait AreaMemory {
    /// Where bytes of guest RAM are: a translation that is found once and kept.
    type Place: Copy;

    /// Changes whenever a memslot comes or goes. A place is valid as long as this does not change.
    fn generation(&self) -> u64;

    /// The place of `size` bytes at `ipa`, which do not cross a page. `None` if they are not RAM that the guest may
    /// write.
    fn place(&self, ipa: Ipa, size: u64) -> Option<Self::Place>;

    /// Reads the u32 at `offset`.
    ///
    /// # Errors
    ///
    /// [`Absent`] if the page has left. This call does not wait for it.
    fn read(&self, place: Self::Place, offset: usize) -> Result<u32, Absent>;

    /// Writes bytes at `offset`, and marks the page in a running dirty log after that.
    ///
    /// # Errors
    ///
    /// [`Absent`] if the page has left: nothing was written. This call does not wait for it.
    fn write(&self, place: Self::Place, offset: usize, bytes: &[u8]) -> Result<(), Absent>;
}

/// The page is not in memory. Come back when it has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absent {
    /// The start of what has to arrive.
    pub page: Ipa,
}

/// Why the area could not be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unreachable {
    Absent(Absent),
    /// No slot has RAM there now.
    NotRam,
}

impl From<Absent> for Unreachable {
    fn from(absent: Absent) -> Self {
        Self::Absent(absent)
    }
}

/// The area of one vCPU, with its cached translation.
pub(super) struct Area<M: AreaMemory> {
    ipa: Ipa,
    cached: Option<(u64, M::Place)>,
}

/// The announcement of an absent page to the guest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Announcement {
    pub token: u32,
    pub user: bool,
    pub pc: u64,
    pub sequence: u64,
}

impl<M: AreaMemory> Area<M> {
    /// An area at this address, or `None` if no area can be there.
    pub fn new(ipa: Ipa, memory: &M) -> Option<Self> {
        let mut area = Self { ipa, cached: None };
        (ipa.is_aligned(SIZE) && area.place(memory).is_ok()).then_some(area)
    }

    pub fn ipa(&self) -> Ipa {
        self.ipa
    }

    /// The cached translation, found anew if slots have changed since.
    fn place(&mut self, memory: &M) -> Result<M::Place, Unreachable> {
        let generation = memory.generation();
        match self.cached {
            Some((cached, place)) if cached == generation => Ok(place),
            _ => {
                let place = memory.place(self.ipa, SIZE).ok_or(Unreachable::NotRam)?;
                self.cached = Some((generation, place));
                Ok(place)
            }
        }
    }

    /// Writes an announcement, unless the guest has not consumed the one before. Returns whether it was written.
    pub fn announce(&mut self, memory: &M, announcement: &Announcement) -> Result<bool, Unreachable> {
        let place = self.place(memory)?;
        if memory.read(place, NOT_PRESENT)? != twofold_abi::async_fault::NO_TOKEN {
            return Ok(false);
        }
        let Announcement { token, user, pc, sequence } = *announcement;
        let mut bytes = [0; ANNOUNCEMENT_SIZE];
        bytes[NOT_PRESENT..LEVEL].copy_from_slice(&token.to_le_bytes());
        bytes[LEVEL..PC].copy_from_slice(&u32::from(!user).to_le_bytes());
        bytes[PC..SEQUENCE].copy_from_slice(&pc.to_le_bytes());
        bytes[SEQUENCE..].copy_from_slice(&sequence.to_le_bytes());
        memory.write(place, NOT_PRESENT, &bytes)?;
        Ok(true)
    }

    /// Writes a token whose page is present. The guest has acknowledged the one before.
    pub fn ready(&mut self, memory: &M, token: u32) -> Result<(), Unreachable> {
        let place = self.place(memory)?;
        Ok(memory.write(place, READY, &token.to_le_bytes())?)
    }
}
