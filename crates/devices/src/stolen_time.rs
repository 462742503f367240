// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stolen time (Arm DEN0057A): for how long a vCPU could have run and had no CPU.
//!
//! The embedder reports when a vCPU gets a CPU ([`StolenTime::enter`]), and what it does without one ([`Off`]). Only
//! [`Off::Runnable`] is stolen time: waits for pages, devices and interrupts are not, nor is the time in which the guest
//! is stopped or moves.
//!
//! The guest asks for its structure by a hypercall. From then on, each entry writes the sum to it.
//!
//! # Invariants
//!
//! * What the guest reads never decreases, except by its own writes.
//! * Whenever the vCPU runs, the structure has the whole sum, unless its page was absent at entry. A later entry then
//!   writes the sum that holds then. So nothing is queued, and the latest value wins.
//!
//! Time is in ticks of the embedder's counter, and becomes nanoseconds when it is written, so no rounding adds up.
//!
//! Another vCPU may read the structure at any time. So [`GuestRam::write`] must write eight aligned bytes by one store.

use core::num::NonZeroU64;

use twofold_abi::pv_time::{self, structure};
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ram::{GuestRam, RamError};
use crate::state::StateError;

/// What a vCPU does that has no CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Off {
    /// It could run. This is stolen.
    Runnable,
    /// It waits for a page that is in a store.
    WaitsForPage,
    /// It waits for a device of the embedder.
    WaitsForDevice,
    /// It executed WFI, or the guest suspended it.
    Idle,
    /// The guest has not started it or has turned it off, or the whole guest is stopped.
    Stopped,
}

/// The stolen time of one vCPU.
#[derive(Clone, Debug)]
pub struct StolenTime {
    area: u64,
    frequency: NonZeroU64,
    /// `None`: it has a CPU, and executes the guest, or EL2 on its behalf.
    off: Option<Off>,
    /// When it began to do that.
    since: u64,
    /// Ticks that were stolen here, in stretches that are over.
    ticks: u64,
    /// Nanoseconds that were stolen before the state was taken back.
    before: u64,
    asked: bool,
    /// The last value in the guest's structure.
    written: Option<u64>,
}

/// An address at which no structure can be: a multiple of 64 and below 2^52 is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no structure of stolen time can be at {0:#x}")]
pub struct BadAddress(pub u64);

impl StolenTime {
    /// A vCPU that is stopped, whose structure will be at `area`. Its counter has `frequency` ticks a second.
    pub fn new(area: u64, frequency: NonZeroU64) -> Result<Self, BadAddress> {
        if !area.is_multiple_of(structure::SIZE) || area >> IPA_BITS_MAX != 0 {
            return Err(BadAddress(area));
        }
        let off = Some(Off::Stopped);
        Ok(Self { area, frequency, off, since: 0, ticks: 0, before: 0, asked: false, written: None })
    }

    /// From `now` on, the vCPU has no CPU and does this. It may have had none before.
    pub fn leave(&mut self, off: Off, now: u64) {
        self.change(Some(off), now);
    }

    /// The vCPU runs from `now` on. If time was stolen, or a page was absent before, the guest's structure is written.
    ///
    /// An error is for the embedder's information: the structure keeps its old value, and the next call tries again.
    #[inline]
    pub fn enter(&mut self, now: u64, ram: &impl GuestRam) -> Result<(), RamError> {
        // A vCPU that goes on after an exit: nothing was stolen, and nothing is to be written.
        if self.off.is_none() && (self.written.is_some() || !self.asked) {
            return Ok(());
        }
        self.change(None, now);
        if self.asked { self.publish(ram) } else { Ok(()) }
    }

    /// The guest's call `function` with the argument `x1`: x0, or `None` if it is another interface's call.
    ///
    /// The first call for the structure begins the count. A further one changes nothing: a vCPU that was turned off and
    /// on again goes on counting.
    pub fn call(&mut self, function: u32, x1: u64, ram: &impl GuestRam) -> Option<i64> {
        match function {
            pv_time::FEATURES => {
                let known = x1 == pv_time::FEATURES.into() || x1 == pv_time::STOLEN_TIME.into();
                Some(if known { pv_time::SUCCESS } else { pv_time::NOT_SUPPORTED })
            }
            pv_time::STOLEN_TIME => Some(match self.publish(ram) {
                // Fresh RAM is zeros, which is a structure without stolen time, so the guest need not wait for the page.
                Ok(()) | Err(RamError::Absent(_)) => {
                    self.asked = true;
                    self.area as i64
                }
                Err(RamError::NotRam(_) | RamError::ReadOnly(_)) => pv_time::NOT_SUPPORTED,
            }),
            _ => None,
        }
    }

    /// Nanoseconds that were stolen until `now`.
    #[must_use]
    pub fn stolen(&self, now: u64) -> u64 {
        let mut until = self.clone();
        until.change(self.off, now);
        until.nanoseconds()
    }

    /// Nanoseconds that were stolen in stretches that are over.
    fn nanoseconds(&self) -> u64 {
        let nanoseconds = u128::from(self.ticks) * 1_000_000_000 / u128::from(self.frequency.get());
        self.before.saturating_add(nanoseconds.try_into().unwrap_or(u64::MAX))
    }

    fn change(&mut self, off: Option<Off>, now: u64) {
        if self.off == Some(Off::Runnable) && self.asked {
            self.ticks = self.ticks.saturating_add(now.saturating_sub(self.since));
        }
        (self.off, self.since) = (off, now);
    }

    fn publish(&mut self, ram: &impl GuestRam) -> Result<(), RamError> {
        let stolen = self.nanoseconds();
        if self.written == Some(stolen) {
            return Ok(());
        }
        // On an error, the next call writes the whole structure.
        if self.written.take().is_none() {
            let mut rest = [0; (structure::SIZE - structure::STOLEN) as usize];
            rest[..8].copy_from_slice(&stolen.to_le_bytes());
            ram.write(self.area + structure::REVISION, &[0; 8])?;
            ram.write(self.area + structure::STOLEN, &rest)?;
        } else {
            ram.write(self.area + structure::STOLEN, &stolen.to_le_bytes())?;
        }
        self.written = Some(stolen);
        Ok(())
    }
}

/// The most bits of an IPA without FEAT_D128.
const IPA_BITS_MAX: u32 = 52;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Row {
    version: U16,
    asked: u8,
    reserved: [u8; 5],
    area: U64,
    stolen: U64,
}

const VERSION: u16 = 1;

impl StolenTime {
    /// Bytes of a state.
    pub const STATE_SIZE: usize = size_of::<Row>();

    /// The state at `now`: version 1 (u16), 1 if the guest has asked for its structure (u8), five bytes of 0, the
    /// structure's address (u64), nanoseconds stolen (u64); little-endian.
    #[must_use]
    pub fn state(&self, now: u64) -> [u8; Self::STATE_SIZE] {
        zerocopy::transmute!(Row {
            version: VERSION.into(),
            asked: self.asked.into(),
            reserved: [0; 5],
            area: self.area.into(),
            stolen: self.stolen(now).into(),
        })
    }

    /// The vCPU that had this state, stopped. The next entry writes its structure.
    pub fn from_state(bytes: &[u8], frequency: NonZeroU64) -> Result<Self, StateError> {
        let length = StateError::Length { found: bytes.len(), wanted: Self::STATE_SIZE };
        let row = Row::read_from_bytes(bytes).map_err(|_| length)?;
        if row.version != VERSION {
            return Err(StateError::Version(row.version.get()));
        }
        let bad = StateError::Impossible("an address at which no structure can be");
        let vcpu = Self::new(row.area.get(), frequency).map_err(|_| bad)?;
        for (impossible, why) in [
            (row.asked > 1 || row.reserved != [0; 5], "reserved bits"),
            (row.asked == 0 && row.stolen != 0, "time that was stolen before the guest asked"),
        ] {
            if impossible {
                return Err(StateError::Impossible(why));
            }
        }
        Ok(Self { asked: row.asked == 1, before: row.stolen.get(), ..vcpu })
    }
}
