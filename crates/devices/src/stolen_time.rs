// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stolen time (Arm DEN0057A): for how long a vCPU could have run and had no CPU. Waits for interrupts, pages and devices
//! are not stolen, nor is the time in which the vCPU is off, or the guest is stopped or moves.
//!
//! The embedder's scheduler counts it, for each vCPU and in ticks, because it alone knows when a vCPU became able to run
//! and when it got a CPU. Each call passes that *count*, which never decreases. This model knows which part of it the
//! guest is to see, and where: the guest asks for its structure by a hypercall ([`StolenTime::ask`]). From then on each
//! turn on a CPU begins with [`StolenTime::enter`], which writes the sum to the structure.
//!
//! A guest that is stopped: [`StolenTime::skip`] when it goes on, before the vCPU's next turn. What the embedder counted
//! meanwhile, for a vCPU that was in a queue, is not stolen. What it counted before is, after [`StolenTime::add`] at the
//! stop.
//!
//! # Invariants
//!
//! * What the guest reads never decreases, except by its own writes.
//! * Whenever the vCPU runs, the structure has the whole sum, unless its page was absent when the turn began. A later
//!   turn then writes the sum that holds then. So nothing is queued, and the latest value wins.
//!
//! Ticks become nanoseconds when they are written, so no rounding adds up.
//!
//! Another vCPU may read the structure at any time. So [`GuestRam::write`] must write eight aligned bytes by one store.

use core::num::NonZeroU64;

use twofold_abi::pv_time::structure;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ram::{GuestRam, RamError};
use crate::state::StateError;

/// The stolen time of one vCPU.
#[derive(Clone, Debug)]
pub struct StolenTime {
    area: u64,
    frequency: NonZeroU64,
    asked: bool,
    /// The embedder's count up to which `ticks` has what was stolen.
    counted: u64,
    /// Ticks that were stolen here.
    ticks: u64,
    /// Nanoseconds that were stolen before the state was taken back.
    before: u64,
    /// The last value in the guest's structure.
    written: Option<u64>,
}

/// An address at which no structure can be: a multiple of 64 and below 2^52 is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no structure of stolen time can be at {0:#x}")]
pub struct BadAddress(pub u64);

impl StolenTime {
    /// A vCPU whose structure will be at `area`, and whose guest has not asked for it. The embedder counts `frequency`
    /// ticks a second.
    pub fn new(area: u64, frequency: NonZeroU64) -> Result<Self, BadAddress> {
        if !area.is_multiple_of(structure::SIZE) || area >> IPA_BITS_MAX != 0 {
            return Err(BadAddress(area));
        }
        Ok(Self { area, frequency, asked: false, counted: 0, ticks: 0, before: 0, written: None })
    }

    /// Whether the guest has asked for its structure. Without that, no other call is needed.
    #[must_use]
    #[inline(always)]
    pub fn is_asked(&self) -> bool {
        self.asked
    }

    /// A turn of the vCPU on a CPU begins. If time was stolen since the last one, or the page was absent then, the guest's
    /// structure is written.
    ///
    /// An error is for the embedder's information: the structure keeps its old value, and the next turn tries again.
    pub fn enter(&mut self, count: u64, ram: &impl GuestRam) -> Result<(), RamError> {
        self.add(count);
        if self.asked { self.publish(ram) } else { Ok(()) }
    }

    /// The guest asks for its structure (PV_TIME_ST). Returns its address; `None` if there is no RAM.
    ///
    /// The first call begins the count. A further one only writes the structure anew: a vCPU that was turned off and on
    /// again goes on counting.
    pub fn ask(&mut self, count: u64, ram: &impl GuestRam) -> Option<u64> {
        self.add(count);
        self.written = None;
        match self.publish(ram) {
            // Fresh RAM is zeros, which is a structure without stolen time, so the guest need not wait for the page.
            Ok(()) | Err(RamError::Absent(_)) => {
                self.asked = true;
                Some(self.area)
            }
            Err(RamError::NotRam(_) | RamError::ReadOnly(_)) => None,
        }
    }

    /// What the embedder has counted since the last call was stolen, if the guest had asked.
    pub fn add(&mut self, count: u64) {
        if self.asked {
            self.ticks = self.ticks.saturating_add(count.saturating_sub(self.counted));
        }
        self.skip(count);
    }

    /// What the embedder has counted since the last call was not stolen.
    pub fn skip(&mut self, count: u64) {
        self.counted = self.counted.max(count);
    }

    /// The guest begins anew: it has not asked, and nothing was stolen.
    pub fn reset(&mut self) {
        (self.asked, self.ticks, self.before, self.written) = (false, 0, 0, None);
    }

    /// Nanoseconds that were stolen, up to the count of the last call.
    #[must_use]
    pub fn stolen(&self) -> u64 {
        let nanoseconds = u128::from(self.ticks) * 1_000_000_000 / u128::from(self.frequency.get());
        self.before.saturating_add(nanoseconds.try_into().unwrap_or(u64::MAX))
    }

    fn publish(&mut self, ram: &impl GuestRam) -> Result<(), RamError> {
        let stolen = self.stolen();
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

    /// The state, up to the count of the last call: version 1 (u16), 1 if the guest has asked for its structure (u8), five bytes of 0, the
    /// structure's address (u64), nanoseconds stolen (u64); little-endian.
    #[must_use]
    pub fn state(&self) -> [u8; Self::STATE_SIZE] {
        zerocopy::transmute!(Row {
            version: VERSION.into(),
            asked: self.asked.into(),
            reserved: [0; 5],
            area: self.area.into(),
            stolen: self.stolen().into(),
        })
    }

    /// The vCPU that had this state, for an embedder that has counted to `count`. The next turn writes its structure.
    pub fn from_state(bytes: &[u8], frequency: NonZeroU64, count: u64) -> Result<Self, StateError> {
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
        Ok(Self { asked: row.asked == 1, counted: count, before: row.stolen.get(), ..vcpu })
    }
}
