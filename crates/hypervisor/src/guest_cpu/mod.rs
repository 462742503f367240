// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The CPU that a guest sees.
//!
//! HCR_EL2.TID3 traps the guest's reads of its ID registers. The answers come from one [`table`], applied to what all
//! the guest's CPUs have in common: so a guest finds the same features on every CPU, and after a move.
//!
//! Invariants: a feature that the answers announce works, on every CPU of the guest. A feature that they do not announce
//! is UNDEFINED where the architecture has a trap for it (see [`registers::el2`](crate::registers::el2)), and
//! `docs/guest-cpu.md` names those that have none. All other encodings of the ID space read as zero.

pub mod table;

use table::{Field, IdRegister, Rule, TABLE};
use twofold_vmm::agreement::Unfit;

use crate::registers::access::Access;

/// The registers of [`TABLE`], in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdValues([u64; TABLE.len()]);

impl IdValues {
    /// The ID registers of this CPU. On a CPU that is older than a register, its encoding reads as zero.
    pub fn read() -> Self {
        Self(core::array::from_fn(|at| (TABLE[at].read)()))
    }

    /// The same registers with one field of 4 bits set, for tests of CPUs that do not exist.
    #[must_use]
    pub fn with(mut self, register: &str, low: u32, value: u64) -> Self {
        for (row, bits) in TABLE.iter().zip(&mut self.0).filter(|(row, _)| row.name == register) {
            let _ = row;
            *bits = *bits & !(0xf << low) | value << low;
        }
        self
    }
}

/// The ID registers that a guest sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestCpu(IdValues);

/// A field of an ID register that the guest has seen, and that a CPU cannot keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The register.
    pub register: &'static str,
    /// The field.
    pub field: &'static str,
}

impl GuestCpu {
    /// What a guest sees on CPUs like this one.
    pub fn new(cpu: &IdValues) -> Self {
        Self(combine(|field, register| field.rule.shown(field.of(cpu.0[register]))))
    }

    /// What a guest sees that may also run on this CPU.
    #[must_use]
    pub fn and(&self, cpu: &IdValues) -> Self {
        let (shown, other) = (self.0.0, Self::new(cpu).0.0);
        Self(combine(|field, register| field.rule.common(field.of(shown[register]), field.of(other[register]))))
    }

    /// Whether a guest that has seen this may run on a CPU: no field of what it has seen is more than that CPU has.
    pub fn check(&self, cpu: &IdValues) -> Result<(), Lost> {
        let with = self.and(cpu);
        for (at, IdRegister { name, fields, .. }) in TABLE.iter().enumerate() {
            let lost = fields.iter().find(|field| field.of(with.0.0[at]) != field.of(self.0.0[at]));
            if let Some(Field { name: field, .. }) = lost {
                return Err(Lost { register: name, field });
            }
        }
        Ok(())
    }

    /// As [`check`](Self::check), for CPU `cpu` with these ID registers.
    pub fn check_cpu(&self, cpu: usize, ids: &IdValues) -> Result<(), Unfit> {
        self.check(ids).map_err(|Lost { register, field }| Unfit::Less { cpu, register, field })
    }

    /// The value of the ID register with this CRm and op2; zero if the architecture has none there.
    pub fn get(&self, place: [u64; 2]) -> u64 {
        TABLE.iter().position(|row| row.place == place).map_or(0, |at| self.0.0[at])
    }

    /// All registers: CRm, op2 and value.
    pub fn all(&self) -> impl Iterator<Item = ([u64; 2], u64)> {
        TABLE.iter().zip(self.0.0).map(|(row, value)| (row.place, value))
    }

    /// The name of the register with this CRm and op2.
    #[must_use]
    pub fn name([crm, op2]: [u64; 2]) -> &'static str {
        TABLE.iter().find(|row| row.place == [crm, op2]).map_or("an ID register that is unknown here", |row| row.name)
    }

    /// Whether RNDR exists: ID_AA64ISAR0_EL1.RNDR.
    #[must_use]
    pub fn has_random(&self) -> bool {
        self.get([6, 0]) >> 60 != 0
    }

    /// Answers a trapped read of an ID register. Returns `false` if the access is none. The caller skips the
    /// instruction.
    #[inline(never)]
    pub fn answer(&self, access: &Access, x: &mut [u64; 31]) -> bool {
        let [3, 0, 0, crm @ 1..=7, op2] = access.encoding else { return false };
        if !access.is_read {
            return false;
        }
        if let Some(register) = x.get_mut(access.rt) {
            *register = self.get([crm, op2]);
        }
        true
    }
}

impl Rule {
    /// The value of two CPUs together.
    fn common(self, one: u64, other: u64) -> u64 {
        match self {
            Self::UpTo(_) => one.min(other),
            Self::SignedUpTo(_) => bits(signed(one).min(signed(other))),
            Self::Weakness(_) => one.max(other),
            Self::Hidden(value) => value,
        }
    }

    /// What a guest sees of CPUs that have this value together.
    fn shown(self, common: u64) -> u64 {
        match self {
            Self::UpTo(most) | Self::Weakness(most) => common.min(most),
            Self::SignedUpTo(most) => bits(signed(common).min(signed(most))),
            Self::Hidden(value) => value,
        }
    }
}

impl Field {
    fn of(&self, register: u64) -> u64 {
        register >> self.low & 0xf
    }
}

/// Makes the registers from the values of their fields.
fn combine(value: impl Fn(&Field, usize) -> u64) -> IdValues {
    IdValues(core::array::from_fn(|at| {
        TABLE[at].fields.iter().fold(0, |bits, field| bits | value(field, at) << field.low)
    }))
}

/// A field of 4 bits as a signed number.
const fn signed(field: u64) -> i64 {
    (field << 60) as i64 >> 60
}

/// The field that holds this number.
const fn bits(signed: i64) -> u64 {
    signed as u64 & 0xf
}
