// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of a vCPU that does not run: plain data, which a migration carries.
//!
//! Outside of this machine a state is a sequence of [`Record`]s: a number for the register, and a value. A system
//! register has the number of its encoding, so the numbers never change and a new register needs no new format.
//!
//! Invariant: [`State::from_records`] accepts a state only if a guest could have come to it here by itself. An unknown
//! register, one that this CPU lacks, a value that only EL2 could have set, a register that is missing or there twice:
//! each is an error with the register's name, and no state is made.

use thiserror::Error;

use super::has::Has;
use super::simd::{self, Vectors};
use super::table::{COUNT, Place, Registers, TABLE, find};
use crate::context::Context;

/// A vCPU's registers. Those of the table are first, where pairs of them can be loaded and stored.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct State {
    /// The registers of [`TABLE`].
    pub(super) registers: Registers,
    /// The general registers, PC and PSTATE.
    pub context: Context,
    /// V0 to V31.
    pub vectors: Vectors,
}

/// One register of a state outside of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The register: an encoding, or one of the numbers from [`GENERAL`] on.
    pub register: u32,
    /// Its value, or half of it.
    pub value: u64,
}

/// The numbers of x0 to x30, followed by those of PC and PSTATE.
pub const GENERAL: u32 = 1 << 16;
/// The numbers of V0 to V31: two for each, the lower half first.
pub const VECTORS: u32 = 2 << 16;

const PC: u32 = GENERAL + 31;
const PSTATE: u32 = GENERAL + 32;

/// Why a state from outside is refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum StateError {
    /// No register has this number.
    #[error("the state has an unknown register {0:#x}")]
    Unknown(u32),
    /// This CPU lacks the register.
    #[error("the state has {0}, which this CPU lacks")]
    Absent(&'static str),
    /// The value has bits that no guest can set.
    #[error("the state has {name}={value:#x}, and no guest can set the bits {bits:#x}")]
    Impossible {
        /// The register.
        name: &'static str,
        /// Its value.
        value: u64,
        /// The bits.
        bits: u64,
    },
    /// The register is there twice.
    #[error("the state has {0} twice")]
    Twice(&'static str),
    /// The register is not there.
    #[error("the state lacks {0}")]
    Missing(&'static str),
}

impl State {
    /// A vCPU that starts at `pc` with `x0`, by the rules of PSCI CPU_ON and of the Linux boot protocol: MMU and caches
    /// off, no timer, no breakpoint, the OS lock locked as after a reset.
    pub fn new(pc: u64, x0: u64) -> Self {
        let mut state = Self { context: Context::new(pc, x0), registers: [0; COUNT], vectors: Vectors::default() };
        state.registers[Place::SCTLR_EL1 as usize] = MMU_OFF;
        state.registers[Place::OSLAR_EL1 as usize] = 1;
        state.registers[Place::ICC_SRE_EL1 as usize] = SYSTEM_REGISTERS;
        state
    }

    /// The value of the register with this encoding; `None` if it is not in the table.
    pub fn get(&self, encoding: u16) -> Option<u64> {
        Some(self.registers[find(encoding)?])
    }

    /// Sets the register with this encoding, for debuggers; returns whether it is in the table.
    pub fn set(&mut self, encoding: u16, value: u64) -> bool {
        find(encoding).map(|at| self.registers[at] = value).is_some()
    }

    /// Control and compare value of the virtual and of the physical timer.
    pub fn timers(&self) -> [(u64, u64); 2] {
        let of = |control: Place, compare: Place| (self.registers[control as usize], self.registers[compare as usize]);
        [of(Place::CNTV_CTL_EL0, Place::CNTV_CVAL_EL0), of(Place::CNTP_CTL_EL0, Place::CNTP_CVAL_EL0)]
    }

    /// Calls `each` with the registers that a CPU with `has` has.
    pub fn records(&self, has: Has, mut each: impl FnMut(Record)) {
        for (register, value) in (GENERAL..).zip(self.context.x) {
            each(Record { register, value });
        }
        each(Record { register: PC, value: self.context.pc });
        each(Record { register: PSTATE, value: self.context.pstate });
        for (row, value) in TABLE.iter().zip(self.registers).filter(|(row, _)| has.has(row.group)) {
            each(Record { register: row.encoding.into(), value: value & row.allowed });
        }
        for (register, vector) in (VECTORS..).step_by(2).zip(self.vectors.0) {
            each(Record { register, value: vector as u64 });
            each(Record { register: register + 1, value: (vector >> 64) as u64 });
        }
    }

    /// The state that [`records`](Self::records) gave, for a CPU with `has`.
    ///
    /// # Errors
    ///
    /// See [`StateError`].
    pub fn from_records(has: Has, records: impl IntoIterator<Item = Record>) -> Result<Self, StateError> {
        let mut state = Self::new(0, 0);
        let mut seen = [false; LAST];
        for Record { register, value } in records {
            let slot = Slot::of(register).ok_or(StateError::Unknown(register))?;
            let (name, allowed) = (slot.name(), slot.allowed());
            if !slot.exists(has) {
                return Err(StateError::Absent(name));
            }
            let mut bits = value & !allowed;
            if slot == Slot::Pstate && !MODES.contains(&(value & MODE)) {
                bits |= value & MODE;
            }
            if bits != 0 {
                return Err(StateError::Impossible { name, value, bits });
            }
            if core::mem::replace(&mut seen[slot.number()], true) {
                return Err(StateError::Twice(name));
            }
            match slot {
                Slot::General(n) => state.context.x[n] = value,
                Slot::Pc => state.context.pc = value,
                Slot::Pstate => state.context.pstate = value,
                Slot::System(n) => state.registers[n] = value,
                Slot::Vector(n, 0) => state.vectors.0[n] |= u128::from(value),
                Slot::Vector(n, _) => state.vectors.0[n] |= u128::from(value) << 64,
            }
        }
        match Slot::all().find(|slot| slot.exists(has) && !seen[slot.number()]) {
            Some(missing) => Err(StateError::Missing(missing.name())),
            None => Ok(state),
        }
    }
}

/// SCTLR_EL1 at a start: MMU and caches off, little-endian, RES1 bits.
const MMU_OFF: u64 = 0x30d0_0800;
/// ICC_SRE_EL1: the interface is used by system registers, and no interrupt bypasses it.
const SYSTEM_REGISTERS: u64 = 7;

/// PSTATE.M, with the bit that means AArch32.
const MODE: u64 = 0x1f;
/// EL0, EL1 with SP_EL0, EL1 with SP_EL1. EL2 would be an escape; AArch32 is hidden from guests.
const MODES: [u64; 3] = [0b0000, 0b0100, 0b0101];
/// M, DAIF, BTYPE, SSBS, IL, SS, PAN, UAO, DIT, TCO and NZCV.
const PSTATE_BITS: u64 = 0xf3f0_1fcf | 0x10;

/// The place of a record in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    General(usize),
    Pc,
    Pstate,
    System(usize),
    /// A vector register, and which half.
    Vector(usize, usize),
}

/// The number of places.
const LAST: usize = 33 + COUNT + 64;

impl Slot {
    fn all() -> impl Iterator<Item = Self> {
        let vectors = (0..64).map(|half| Self::Vector(half / 2, half % 2));
        (0..31).map(Self::General).chain([Self::Pc, Self::Pstate]).chain((0..COUNT).map(Self::System)).chain(vectors)
    }

    fn of(register: u32) -> Option<Self> {
        match register {
            GENERAL..PC => Some(Self::General((register - GENERAL) as usize)),
            PC => Some(Self::Pc),
            PSTATE => Some(Self::Pstate),
            VECTORS.. if register - VECTORS < 64 => {
                let half = (register - VECTORS) as usize;
                Some(Self::Vector(half / 2, half % 2))
            }
            _ => find(u16::try_from(register).ok()?).map(Self::System),
        }
    }

    fn number(self) -> usize {
        match self {
            Self::General(n) => n,
            Self::Pc => 31,
            Self::Pstate => 32,
            Self::System(n) => 33 + n,
            Self::Vector(n, half) => 33 + COUNT + 2 * n + half,
        }
    }

    fn exists(self, has: Has) -> bool {
        !matches!(self, Self::System(n) if !has.has(TABLE[n].group))
    }

    fn allowed(self) -> u64 {
        match self {
            Self::System(n) => TABLE[n].allowed,
            Self::Pstate => PSTATE_BITS,
            Self::General(_) | Self::Pc | Self::Vector(..) => u64::MAX,
        }
    }

    fn name(self) -> &'static str {
        const GENERAL: [&str; 31] = [
            "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15",
            "x16", "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x29", "x30",
        ];
        match self {
            Self::General(n) => GENERAL[n],
            Self::Pc => "PC",
            Self::Pstate => "PSTATE",
            Self::System(n) => TABLE[n].name,
            Self::Vector(n, _) => simd::NAMES[n],
        }
    }
}
