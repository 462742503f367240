// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A real-time clock: Arm's PrimeCell PL031 (Arm DDI 0224C).
//!
//! The embedder passes wall time in with each access, in seconds since 1970. The clock follows it, also while the guest
//! is stopped or moves: its counter is wall time plus an offset, which the guest sets by LR.
//!
//! Invariant: RIS is set once the counter has passed MR, at the latest when the guest looks. A guest that waits for the
//! interrupt is woken in time if the embedder calls [`Pl031::advance`] when [`Pl031::due`] says.
//!
//! # Where this model decides
//!
//! * The clock runs from power-up, as one with a battery, and as QEMU's: CR reads as 1, and a write changes nothing.
//! * The counter matches when it *becomes* MR: time passes MR, or the guest writes MR or LR so that they are equal.
//!   Acknowledged by ICR in that same second, it does not match again.
//! * If wall time is set back, the counter goes back with it. What it passes then a second time matches a second time.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::access::Width;
use crate::line::InterruptLine;
use crate::primecell;
use crate::state::StateError;

/// A real-time clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pl031 {
    /// The counter is wall time plus this, modulo 2^32.
    offset: u32,
    matched_at: u32,
    load: u32,
    masked_in: bool,
    raw: bool,
    /// The wall time up to which matches are known.
    seen: u64,
}

impl Pl031 {
    /// A clock that shows wall time, which is `now`.
    #[must_use]
    pub fn new(now: u64) -> Self {
        Self { offset: 0, matched_at: 0, load: 0, masked_in: false, raw: false, seen: now }
    }

    /// The guest reads.
    pub fn read(&mut self, offset: u64, width: Width, now: u64, line: &mut impl InterruptLine) -> u64 {
        self.advance(now, line);
        primecell::read(offset, width, |register| match register {
            register::DR => self.counter(),
            register::MR => self.matched_at,
            register::LR => self.load,
            register::CR => 1,
            register::IMSC => self.masked_in.into(),
            register::RIS => self.raw.into(),
            register::MIS => self.interrupt().into(),
            _ => primecell::id(PERIPHERAL, register),
        })
    }

    /// The guest writes.
    pub fn write(&mut self, offset: u64, width: Width, value: u64, now: u64, line: &mut impl InterruptLine) {
        self.advance(now, line);
        primecell::write(offset, width, value, |register, value| match register {
            register::MR => {
                self.matched_at = value;
                self.raw |= self.counter() == value;
            }
            register::LR => {
                self.load = value;
                self.offset = value.wrapping_sub(self.seen as u32);
                self.raw |= self.counter() == self.matched_at;
            }
            register::IMSC => self.masked_in = value & 1 != 0,
            register::ICR => self.raw &= value & 1 == 0,
            _ => {}
        });
        line.set(self.interrupt());
    }

    /// Time has passed: raises the interrupt if the counter has matched since the last call or access.
    pub fn advance(&mut self, now: u64, line: &mut impl InterruptLine) {
        self.raw |= match now.checked_sub(self.seen) {
            Some(elapsed) => self.distance() <= elapsed,
            None => (now as u32).wrapping_add(self.offset) == self.matched_at,
        };
        self.seen = now;
        line.set(self.interrupt());
    }

    /// The wall time at which the interrupt is next raised, if time and nothing else raises it. The embedder calls
    /// [`advance`](Self::advance) then. It asks again after each access, and when wall time was set.
    #[must_use]
    pub fn due(&self) -> Option<u64> {
        if self.raw || !self.masked_in {
            return None;
        }
        self.seen.checked_add(self.distance())
    }

    /// The level of the line (RTCINTR).
    #[must_use]
    pub fn interrupt(&self) -> bool {
        self.raw && self.masked_in
    }

    fn counter(&self) -> u32 {
        (self.seen as u32).wrapping_add(self.offset)
    }

    /// Seconds until the counter becomes MR: 1 to 2^32.
    fn distance(&self) -> u64 {
        u64::from(self.matched_at.wrapping_sub(self.counter()).wrapping_sub(1)) + 1
    }
}

/// The state, all numbers little-endian:
///
/// | offset | type | content |
/// |---|---|---|
/// | 0 | u16 | version: 1 |
/// | 2 | u8 | IMSC |
/// | 3 | u8 | RIS |
/// | 4 | u32 | MR |
/// | 8 | u32 | LR |
/// | 12 | u32 | the counter less wall time, modulo 2^32 |
/// | 16 | u64 | the wall time up to which RIS is known |
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Row {
    version: U16,
    mask: u8,
    raw: u8,
    matched_at: U32,
    load: U32,
    offset: U32,
    seen: U64,
}

const VERSION: u16 = 1;

impl Pl031 {
    /// Bytes of a state.
    pub const STATE_SIZE: usize = size_of::<Row>();

    /// The whole state: version 1 (u16), IMSC (u8), RIS (u8), MR, LR, the counter less wall time (u32 each), and the
    /// wall time up to which RIS is known (u64); little-endian.
    #[must_use]
    pub fn state(&self) -> [u8; Self::STATE_SIZE] {
        zerocopy::transmute!(Row {
            version: VERSION.into(),
            mask: self.masked_in.into(),
            raw: self.raw.into(),
            matched_at: self.matched_at.into(),
            load: self.load.into(),
            offset: self.offset.into(),
            seen: self.seen.into(),
        })
    }

    /// The clock that had this state. It matches at the next access what it has passed since. The embedder then sets
    /// the line to [`interrupt`](Self::interrupt).
    pub fn from_state(bytes: &[u8]) -> Result<Self, StateError> {
        let length = StateError::Length { found: bytes.len(), wanted: Self::STATE_SIZE };
        let row = Row::read_from_bytes(bytes).map_err(|_| length)?;
        if row.version != VERSION {
            return Err(StateError::Version(row.version.get()));
        }
        if row.mask > 1 || row.raw > 1 {
            return Err(StateError::Impossible("reserved bits of IMSC or RIS"));
        }
        Ok(Self {
            offset: row.offset.get(),
            matched_at: row.matched_at.get(),
            load: row.load.get(),
            masked_in: row.mask != 0,
            raw: row.raw != 0,
            seen: row.seen.get(),
        })
    }
}

/// PeriphID0 to PeriphID3: part 0x031, designed by Arm.
const PERIPHERAL: [u8; 4] = [0x31, 0x10, 0x04, 0x00];

mod register {
    pub(super) const DR: u64 = 0x00;
    pub(super) const MR: u64 = 0x04;
    pub(super) const LR: u64 = 0x08;
    pub(super) const CR: u64 = 0x0c;
    pub(super) const IMSC: u64 = 0x10;
    pub(super) const RIS: u64 = 0x14;
    pub(super) const MIS: u64 = 0x18;
    pub(super) const ICR: u64 = 0x1c;
}
