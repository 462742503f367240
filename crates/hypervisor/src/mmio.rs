// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One access of a guest to a device, decoded from the syndrome of its data abort.
//!
//! The rule for an access that the syndrome does not describe (ISV is clear: a pair, a write-back form, an atomic, a
//! vector register, a walk of the guest's own tables): the guest gets a synchronous external abort. EL2 never reads the
//! guest's instruction, because another vCPU may change it between the abort and the read.

use twofold_devices::Width;

/// A load or store of one general register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The width of the access.
    pub width: Width,
    /// Whether the access is a store.
    pub is_write: bool,
    /// The general register; 31 is the zero register.
    register: usize,
    /// A load extends the sign.
    extends_sign: bool,
    /// The register is an X register, not a W register.
    is_64_bit: bool,
}

/// A load, or a store with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A load.
    Read,
    /// A store of this value.
    Write(u64),
}

/// The order of the bytes of a guest's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Little-endian, as all devices are.
    Little,
    /// Big-endian: the guest's bytes are swapped.
    Big,
}

impl Order {
    /// The order of an access from the exception level in `pstate` (SPSR_EL2) with this SCTLR_EL1.
    #[must_use]
    pub const fn of(pstate: u64, sctlr_el1: u64) -> Self {
        const EE: u64 = 1 << 25;
        const E0E: u64 = 1 << 24;
        const AARCH32: u64 = 1 << 4;
        const AARCH32_BIG: u64 = 1 << 9;
        let is_big = match (pstate & AARCH32 != 0, pstate >> 2 & 3) {
            (true, _) => pstate & AARCH32_BIG != 0,
            (_, 0) => sctlr_el1 & E0E != 0,
            _ => sctlr_el1 & EE != 0,
        };
        if is_big { Self::Big } else { Self::Little }
    }
}

impl Access {
    /// Decodes `syndrome`, ESR_EL2 of a data abort from a lower level. `None` if it does not describe the access (Arm ARM
    /// DDI 0487K.a, D23.2, ESR_EL2, ISS encoding of a data abort).
    #[must_use]
    pub const fn from_syndrome(syndrome: u64) -> Option<Self> {
        const DATA_ABORT: u64 = 0x24;
        const ISV: u64 = 1 << 24;
        const SSE: u64 = 1 << 21;
        const SF: u64 = 1 << 15;
        const MAINTENANCE: u64 = 1 << 8;
        const STAGE_1_WALK: u64 = 1 << 7;
        const WRITE: u64 = 1 << 6;
        if syndrome >> 26 & 0x3f != DATA_ABORT || syndrome & (ISV | MAINTENANCE | STAGE_1_WALK) != ISV {
            return None;
        }
        Some(Self {
            width: Width::from_sas(syndrome >> 22),
            is_write: syndrome & WRITE != 0,
            register: (syndrome >> 16 & 31) as usize,
            extends_sign: syndrome & SSE != 0,
            is_64_bit: syndrome & SF != 0,
        })
    }

    /// The value that a store writes, of the width of the access.
    #[must_use]
    pub fn stored(&self, x: &[u64; 31], order: Order) -> u64 {
        let value = x.get(self.register).copied().unwrap_or(0);
        self.ordered(value & self.width.mask(), order)
    }

    /// Completes a load that read `value`: extends it, and writes the register.
    pub fn load(&self, x: &mut [u64; 31], value: u64, order: Order) {
        let Some(register) = x.get_mut(self.register) else { return };
        let value = self.ordered(value & self.width.mask(), order);
        let unused = 64 - 8 * self.width.bytes();
        let value = if self.extends_sign { ((value << unused) as i64 >> unused) as u64 } else { value };
        *register = if self.is_64_bit { value } else { value & u64::from(u32::MAX) };
    }

    fn ordered(&self, value: u64, order: Order) -> u64 {
        match order {
            Order::Little => value,
            Order::Big => value.swap_bytes() >> (64 - 8 * self.width.bytes()),
        }
    }
}
