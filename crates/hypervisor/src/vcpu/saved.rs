// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A vCPU's state as sections, and back ([`crate::vm::saved`]).
//!
//! | section | content |
//! |---|---|
//! | `registers` | [`Record`]s: the number of the register (u32), its value (u64) |
//! | `timer` | CNTP_CVAL_EL0 and CNTP_CTL_EL0 (u64 each), where the physical timer is emulated |
//! | `async-fault` | of a guest that was started with a store: as [`saved`] has it |
//! | `stolen-time` | as `twofold_devices` has it |
//!
//! Invariant: a section that is refused changes nothing.

use alloc::vec::Vec;

use twofold_vmm::power;
use twofold_vmm::saved::{self, Section, SectionError};

use super::state::{Power, Vcpu};
use crate::switch::{Has, Record, State, StateError};
use crate::timer::PhysicalTimer;
use crate::vm::Vm;

/// Why a vCPU does not take a section.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VcpuError {
    #[error(transparent)]
    Section(#[from] SectionError),
    #[error(transparent)]
    Registers(#[from] StateError),
    #[error(transparent)]
    AsyncFault(#[from] twofold_memory::async_fault::Refused),
    #[error(transparent)]
    StolenTime(#[from] twofold_devices::StateError),
}

/// Bytes of a record.
const RECORD: usize = 12;

impl Vcpu {
    /// Appends the sections of this vCPU, which is number `index`. Its guest is stopped.
    pub(crate) fn save(&self, index: u32, to: &mut Vec<u8>) {
        let mut put = |name, bytes: &[u8]| Section { name, instance: index, bytes }.write(to);
        let mut records = Vec::new();
        self.registers.records(Has::read(), |Record { register, value }| {
            records.extend_from_slice(&register.to_le_bytes());
            records.extend_from_slice(&value.to_le_bytes());
        });
        put("registers", &records);
        let timer = [self.own.timers.physical.compare(), self.own.timers.physical.control()].map(u64::to_le_bytes);
        put("timer", timer.as_flattened());
        if let Some(snapshot) = self.own.pages.as_ref().and_then(|pages| pages.snapshot()) {
            put("async-fault", &saved::async_fault_bytes(&snapshot));
        }
        if let Some(stolen) = self.own.stolen.state() {
            put("stolen-time", &stolen);
        }
    }

    /// Takes a section that [`save`](Self::save) wrote. `None`: no section of a vCPU has this name.
    pub(crate) fn restore(&mut self, section: &Section<'_>, vm: &Vm) -> Option<Result<(), VcpuError>> {
        Some(match section.name {
            "registers" => records(section.bytes)
                .and_then(|records| Ok(State::from_records(Has::read(), records)?))
                .map(|registers| self.registers = registers),
            "timer" => timer(section.bytes).map(|timer| self.own.timers.physical = timer),
            "async-fault" => {
                let (pages, swap) = (self.own.pages.as_mut()?, vm.swap()?);
                let snapshot = saved::read_async_fault(section.bytes).map_err(VcpuError::from);
                snapshot.and_then(|snapshot| Ok(pages.restore(swap.mode(), vm.memory(), &snapshot)?))
            }
            "stolen-time" => self.own.stolen.restore(section.bytes).map_err(VcpuError::from),
            _ => return None,
        })
    }

    /// The power state of a vCPU that comes from elsewhere is this.
    pub(crate) fn set_power(&mut self, state: power::State) {
        self.own.power = match state {
            power::State::Off | power::State::OnPending(_) => Power::Off,
            power::State::On | power::State::Suspended => Power::Arrived,
        };
    }
}

fn records(bytes: &[u8]) -> Result<impl Iterator<Item = Record>, VcpuError> {
    let (records, rest) = bytes.as_chunks::<RECORD>();
    if !rest.is_empty() {
        let wanted = bytes.len().next_multiple_of(RECORD) as u64;
        return Err(SectionError::Length { wanted, found: bytes.len() as u64 }.into());
    }
    Ok(records.iter().map(|record| {
        let (mut register, mut value) = ([0; 4], [0; 8]);
        register.copy_from_slice(&record[..4]);
        value.copy_from_slice(&record[4..]);
        Record { register: u32::from_le_bytes(register), value: u64::from_le_bytes(value) }
    }))
}

fn timer(bytes: &[u8]) -> Result<PhysicalTimer, VcpuError> {
    let length = SectionError::Length { wanted: 16, found: bytes.len() as u64 };
    let words: [u8; 16] = bytes.try_into().map_err(|_| length)?;
    let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|n| words[at + n]));
    let control = word(8);
    let field = SectionError::Field { field: "the control of the physical timer", value: control };
    Ok(PhysicalTimer::with(word(0), control).ok_or(field)?)
}
