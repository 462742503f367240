// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The whole state, as bytes, and back.
//!
//! All numbers are little-endian. The length follows from the numbers of vCPUs and SPIs.
//!
//! | bytes | |
//! |---|---|
//! | 4 | "VGIC" |
//! | 2 | the version, 1 |
//! | 2 | the number of vCPUs |
//! | 2 | the number of SPIs |
//! | 2 | `GICD_CTLR`'s enables: bit 0 of group 0, bit 1 of group 1 |
//! | 180 a vCPU | affinity (4), `GICR_WAKER.ProcessorSleep` (4), `ICH_VMCR_EL2` (8), the active priorities of group 0 and 1 with bit n for priority 2n (16 each), its SGIs and PPIs: a bank |
//! | 260 for 32 SPIs | a bank, and 32 routes (4 each: Aff3.Aff2.Aff1.Aff0) |
//!
//! A bank (132 bytes) has, for 32 interrupts, nine words with one bit for each (enabled, group 1, edge, line, pending
//! latch, active, acknowledged and not ended, of group 1 when it was acknowledged, the linked physical interrupt is
//! held), and three rows with one byte for each: priority, priority when it was acknowledged, and the vCPU that
//! acknowledged it (`0xff`: none). What the hardware's list registers held is part of this: a vCPU that is not loaded has
//! nothing in them.

use thiserror::Error;

use super::bank::{Bank, NONE, PRIORITY_BITS};
use super::interface::{MachineControl, SavedInterface};
use super::intid::{Intid, VcpuId, bits};
use super::{Vgic, intid};

const MAGIC: [u8; 4] = *b"VGIC";
const VERSION: u16 = 1;
const HEADER: usize = 12;
const BANK: usize = 9 * 4 + 3 * 32;
const VCPU: usize = 4 + 4 + 8 + 16 + 16 + BANK;
const SHARED: usize = BANK + 32 * 4;

/// Why a state is not given, or not taken.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateError {
    /// The vCPU's list registers are in hardware.
    #[error("{0} is loaded on a CPU")]
    Loaded(VcpuId),
    /// The bytes are too few or too many.
    #[error("the state of an interrupt controller has {length} bytes, and not {expected}")]
    Length {
        /// The bytes there are.
        length: usize,
        /// The bytes there should be.
        expected: usize,
    },
    /// It is not a state of this kind and version.
    #[error("these bytes are not the state of an interrupt controller, version {VERSION}")]
    Version,
    /// It is of a machine with another number of vCPUs or SPIs.
    #[error("the state is of {vcpus} vCPUs and {spis} SPIs")]
    Shape {
        /// Its vCPUs.
        vcpus: u16,
        /// Its SPIs.
        spis: u16,
    },
    /// `GICD_CTLR` has bits that it lacks.
    #[error("the distributor's control is {0:#x}")]
    Control(u16),
    /// The vCPU has another affinity here.
    #[error("the affinity of {vcpu} is {affinity:#x}")]
    Affinity {
        /// The vCPU.
        vcpu: VcpuId,
        /// What the state says.
        affinity: u32,
    },
    /// `GICR_WAKER` has bits that it lacks.
    #[error("the sleep state of {vcpu} is {value:#x}")]
    Waker {
        /// The vCPU.
        vcpu: VcpuId,
        /// What the state says.
        value: u32,
    },
    /// `ICH_VMCR_EL2` has bits that it lacks.
    #[error("the virtual machine control register of {vcpu} is {value:#x}")]
    MachineControl {
        /// The vCPU.
        vcpu: VcpuId,
        /// What the state says.
        value: u64,
    },
    /// A private interrupt cannot be in this state.
    #[error("interrupt {intid} of {vcpu}: {impossible}")]
    Private {
        /// The vCPU.
        vcpu: VcpuId,
        /// The interrupt.
        intid: u32,
        /// What it cannot be.
        impossible: Impossible,
    },
    /// An SPI cannot be in this state.
    #[error("interrupt {intid}: {impossible}")]
    Shared {
        /// The interrupt.
        intid: u32,
        /// What it cannot be.
        impossible: Impossible,
    },
}

/// What an interrupt cannot be.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Impossible {
    /// A priority has bits that are not implemented.
    #[error("its priority has bits that are not implemented")]
    Priority,
    /// An SGI is level-sensitive, or a linked PPI edge-triggered.
    #[error("its trigger cannot be configured so")]
    Trigger,
    /// An SGI has a line.
    #[error("an SGI has no line")]
    Line,
    /// It holds a physical interrupt without being linked to one, or without being pending or active.
    #[error("it holds a physical interrupt")]
    Held,
    /// It was acknowledged by a vCPU that cannot have done so.
    #[error("the vCPU that acknowledged it does not exist, or does not have it")]
    Handler,
    /// Something remains of an acknowledge, which was ended.
    #[error("it was not acknowledged, and has a group, priority or vCPU of an acknowledge")]
    Unacknowledged,
}

impl Vgic {
    /// The length of the state.
    #[must_use]
    pub fn state_len(&self) -> usize {
        HEADER + self.vcpus.len() * VCPU + self.spis.len() * SHARED
    }

    /// Writes the whole state, including each vCPU's interface, to `bytes`, which are [`state_len`](Self::state_len).
    /// No vCPU is loaded.
    pub fn save(&self, bytes: &mut [u8]) -> Result<(), StateError> {
        self.check_idle(bytes.len())?;
        let mut out = Writer(bytes);
        out.put(&MAGIC);
        out.put(&VERSION.to_le_bytes());
        out.put(&(self.vcpus.len() as u16).to_le_bytes());
        out.put(&(self.spis.len() as u16 * intid::BANK).to_le_bytes());
        out.put(&(self.control as u16).to_le_bytes());
        for state in &self.vcpus {
            out.word(state.affinity);
            out.word(state.asleep.into());
            out.put(&state.saved.machine_control.to_le_bytes());
            for active in state.saved.active_priorities {
                out.put(&active.to_le_bytes());
            }
            out.bank(&state.private);
        }
        for shared in &self.spis {
            out.bank(&shared.bank);
            for route in shared.route {
                out.word(route);
            }
        }
        Ok(())
    }

    /// Takes back what [`save`](Self::save) wrote, here or on another machine, into an interrupt controller of the same
    /// [`Config`](super::Config). No vCPU is loaded. If it is refused, nothing changes.
    pub fn restore(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        self.check_idle(bytes.len())?;
        self.pass(bytes, false)?;
        self.pass(bytes, true)?;
        self.reroute();
        Ok(())
    }

    fn check_idle(&self, length: usize) -> Result<(), StateError> {
        if let Some(loaded) = self.vcpus.iter().position(|state| state.loaded) {
            return Err(StateError::Loaded(VcpuId::from_index(loaded)));
        }
        let expected = self.state_len();
        if length == expected { Ok(()) } else { Err(StateError::Length { length, expected }) }
    }

    /// Reads a state: the first time to check it, the second to take it.
    fn pass(&mut self, bytes: &[u8], take: bool) -> Result<(), StateError> {
        let mut reader = Reader(bytes);
        if reader.array() != MAGIC || reader.half() != VERSION {
            return Err(StateError::Version);
        }
        let (vcpus, spis, control) = (reader.half(), reader.half(), reader.half());
        if (usize::from(vcpus), usize::from(spis)) != (self.vcpus.len(), self.spis.len() * 32) {
            return Err(StateError::Shape { vcpus, spis });
        }
        if control > 3 {
            return Err(StateError::Control(control));
        }
        for (index, state) in self.vcpus.iter_mut().enumerate() {
            let vcpu = VcpuId::from_index(index);
            let (affinity, asleep) = (reader.word(), reader.word());
            if affinity != state.affinity {
                return Err(StateError::Affinity { vcpu, affinity });
            }
            if asleep > 1 {
                return Err(StateError::Waker { vcpu, value: asleep });
            }
            let machine_control = u64::from_le_bytes(reader.array());
            if machine_control & !MachineControl::DEFINED != 0 {
                return Err(StateError::MachineControl { vcpu, value: machine_control });
            }
            let active_priorities = [(); 2].map(|()| u128::from_le_bytes(reader.array()));
            let bank = reader.bank(state.private.linked);
            check_private(&bank, vcpu).map_err(|(intid, impossible)| StateError::Private {
                vcpu,
                intid,
                impossible,
            })?;
            if take {
                state.asleep = asleep == 1;
                state.saved = SavedInterface { machine_control, active_priorities };
                state.private = bank;
                state.slots.outside = true;
            }
        }
        for (n, shared) in self.spis.iter_mut().enumerate() {
            let bank = reader.bank(0);
            check_shared(&bank, n, self.vcpus.len())
                .map_err(|(intid, impossible)| StateError::Shared { intid, impossible })?;
            let route = [(); 32].map(|()| reader.word());
            if take {
                (shared.bank, shared.route) = (bank, route);
            }
        }
        if take {
            self.control = control.into();
        }
        Ok(())
    }
}

type Checked = Result<(), (u32, Impossible)>;

fn check_private(bank: &Bank, vcpu: VcpuId) -> Checked {
    let no = |mask: u32, impossible| refuse(mask, 0, impossible);
    no(!bank.edge & 0xffff | bank.edge & bank.linked, Impossible::Trigger)?;
    no(bank.line & 0xffff, Impossible::Line)?;
    check(bank, 0, |handler| handler == vcpu.byte())
}

fn check_shared(bank: &Bank, n: usize, vcpus: usize) -> Checked {
    check(bank, n + 1, |handler| usize::from(handler) < vcpus)
}

fn check(bank: &Bank, n: usize, may_handle: impl Fn(u8) -> bool) -> Checked {
    let no = |mask: u32, impossible| refuse(mask, n, impossible);
    let held = bank.held & !bank.linked | bank.held & !(bank.line | bank.active);
    no(held, Impossible::Held)?;
    no(where_any(|index| bank.priority[index] & !PRIORITY_BITS != 0), Impossible::Priority)?;
    let handled = bank.acknowledged;
    no(handled & where_any(|index| !may_handle(bank.handler[index])), Impossible::Handler)?;
    no(handled & where_any(|index| bank.acknowledged_priority[index] & !PRIORITY_BITS != 0), Impossible::Priority)?;
    let rest = where_any(|index| bank.handler[index] != NONE || bank.acknowledged_priority[index] != 0);
    no(!handled & (rest | bank.acknowledged_group1), Impossible::Unacknowledged)
}

/// The interrupts of a bank with a property.
fn where_any(property: impl Fn(usize) -> bool) -> u32 {
    (0..32).filter(|&index| property(index)).fold(0, |mask, index| mask | 1 << index)
}

fn refuse(mask: u32, n: usize, impossible: Impossible) -> Checked {
    bits(mask).next().map_or(Ok(()), |index| Err((Intid::from_parts(n, index).raw(), impossible)))
}

/// The rest of the room.
struct Writer<'a>(&'a mut [u8]);

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        // The caller has checked the length of the whole.
        if let Some((room, rest)) = core::mem::take(&mut self.0).split_at_mut_checked(bytes.len()) {
            room.copy_from_slice(bytes);
            self.0 = rest;
        }
    }

    fn word(&mut self, word: u32) {
        self.put(&word.to_le_bytes());
    }

    fn bank(&mut self, bank: &Bank) {
        let handled = bank.acknowledged;
        self.word(bank.enabled);
        self.word(bank.group1);
        self.word(bank.edge);
        self.word(bank.line);
        self.word(bank.latch);
        self.word(bank.active);
        self.word(handled);
        self.word(handled & bank.acknowledged_group1);
        self.word(bank.held);
        self.put(&bank.priority);
        for index in 0..32 {
            self.put(&[if handled >> index & 1 == 1 { bank.acknowledged_priority[index] } else { 0 }]);
        }
        for index in 0..32 {
            self.put(&[if handled >> index & 1 == 1 { bank.handler[index] } else { NONE }]);
        }
    }
}

/// The rest of the bytes.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        // The caller has checked the length of the whole.
        let Some((bytes, rest)) = self.0.split_first_chunk() else { return [0; N] };
        self.0 = rest;
        *bytes
    }

    fn half(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    fn bank(&mut self, linked: u32) -> Bank {
        let mut bank = Bank::new(0);
        bank.enabled = self.word();
        bank.group1 = self.word();
        bank.edge = self.word();
        bank.line = self.word();
        bank.latch = self.word();
        bank.active = self.word();
        bank.acknowledged = self.word();
        bank.acknowledged_group1 = self.word();
        bank.held = self.word();
        bank.priority = self.array();
        bank.acknowledged_priority = self.array();
        bank.handler = self.array();
        bank.linked = linked;
        bank
    }
}
