// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A stopped guest as sections, and a guest that is made from them: all that it is besides its memory.
//!
//! | section | instance | content |
//! |---|---|---|
//! | `cpu` | 0 | the ID registers that the guest sees: CRm, op2 and value (u64 each) |
//! | `time`, `power` | 0; a vCPU | as [`saved`] has them |
//! | `registers`, `timer`, `async-fault`, `stolen-time` | a vCPU | as [`crate::vcpu::saved`] has them |
//! | `gic`, `uart`, `rtc` | 0 | as the models of `twofold_devices` have them |
//! | `virtio`, `disk`, `card` | a transport | as [`crate::virtio`] has them |
//! | `balloon` | a piece | as [`crate::virtio`] has them |
//!
//! The guest's memory is [`saved_pages`](super::saved_pages). What is not here: what waits in the console's buffers, which the launcher takes before; the counts of statistics; a
//! running dirty log.
//!
//! Invariants: a guest is saved only while it is stopped, so no vCPU is in its turn, and restored only while it is stopped
//! and has not run here. A section that is refused changes nothing. So a restore followed at once by a save gives the
//! same bytes.

use alloc::vec::Vec;

use thiserror::Error;
use twofold_devices::vgic;
use twofold_vmm::life::{NotNow, State};
use twofold_vmm::power::{RestoreError, Saved};
use twofold_vmm::saved::{self, OtherDevice, Section, SectionError, Time};
use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

use super::Vm;
use crate::guest_cpu::GuestCpu;
use crate::read_sysreg;
use crate::vcpu::saved::VcpuError;

/// Why a guest is not saved.
#[derive(Debug, Error)]
pub(crate) enum Unsaved {
    /// It runs, or has ended.
    #[error(transparent)]
    State(#[from] NotNow),
    /// It has a disk in memory, which cannot be saved yet.
    #[error("the guest has {0}, which cannot be saved yet")]
    Has(&'static str),
    /// A disk of the machine works on requests of the guest's.
    #[error("a disk of the machine still works on the guest's requests")]
    Busy,
    /// A vCPU is in its turn.
    #[error("the interrupt controller: {0}")]
    Gic(#[from] vgic::StateError),
    /// A device has no room for its state.
    #[error(transparent)]
    Device(#[from] twofold_devices::StateError),
}

/// Why a section is not taken.
#[derive(Debug, Error)]
pub(crate) enum Unrestored {
    /// The guest does not come from elsewhere, or has run here.
    #[error("the guest has begun here: start it with what it was saved to")]
    HasBegun,
    /// It is no section, or its content is bad.
    #[error(transparent)]
    Section(#[from] SectionError),
    /// There is something after the section.
    #[error("{0} bytes follow the section")]
    Longer(usize),
    /// No section has this name, or the guest has no such vCPU.
    #[error("this machine has nothing of which it could be the state")]
    Unknown,
    /// The guest's counters had another frequency.
    #[error("the counters had {there} ticks in a second, and have {here} here")]
    Frequency {
        /// Where the guest comes from.
        there: u64,
        /// Here.
        here: u64,
    },
    /// The guest has seen another CPU.
    #[error("the guest's {register} is {there:#x}, and {here:#x} on this machine: start it with the CPU that it had")]
    Cpu {
        /// The register.
        register: &'static str,
        /// Where the guest comes from.
        there: u64,
        /// Here.
        here: u64,
    },
    /// A power state does not fit.
    #[error(transparent)]
    Power(#[from] RestoreError),
    /// A vCPU does not take it.
    #[error(transparent)]
    Vcpu(#[from] VcpuError),
    /// The interrupt controller does not take it.
    #[error(transparent)]
    Gic(#[from] vgic::StateError),
    /// A device does not take it.
    #[error(transparent)]
    Device(#[from] twofold_devices::StateError),
    /// A device is not the one that the guest knows: the one of this transport.
    #[error("virtio device {0}: {1}")]
    Other(u32, OtherDevice),
}

impl Vm {
    /// Appends a part of the sections of the guest, which is stopped: the one of this number, from 0 on. Returns whether there
    /// are more. The order is always the same. [`Unsaved::Busy`] passes.
    pub(crate) fn save(&self, part: usize, to: &mut Vec<u8>) -> Result<bool, Unsaved> {
        let (state, counter) = self.life.change(|life, now| (life.state(), life.counter(now)));
        if state != State::Stopped {
            return Err(NotNow(state).into());
        }
        if let Some(device) = self.devices.virtio.unsaved() {
            return Err(Unsaved::Has(device));
        }
        if !self.devices.virtio.is_idle() {
            return Err(Unsaved::Busy);
        }
        let Some(index) = part.checked_sub(1) else {
            let time = Time { counter, frequency: read_sysreg!(CNTFRQ_EL0) };
            Section { name: "time", instance: 0, bytes: &time.bytes() }.write(to);
            let rows: Vec<_> =
                self.guest_cpu.all().map(|([crm, op2], value)| [crm, op2, value].map(u64::to_le_bytes)).collect();
            Section { name: "cpu", instance: 0, bytes: rows.as_flattened().as_flattened() }.write(to);
            return Ok(true);
        };
        let Some(slot) = self.vcpus.get(index) else {
            self.devices.save(to)?;
            return Ok(false);
        };
        let (instance, power) = (index as u32, self.power.lock().state(index));
        if let Some(power) = power {
            Section { name: "power", instance, bytes: &saved::power_bytes(power) }.write(to);
        }
        slot.state.lock().save(instance, to);
        Ok(true)
    }

    /// Takes one section, with its head.
    pub(crate) fn restore(&self, bytes: &[u8]) -> Result<(), Unrestored> {
        if !self.is_incoming() {
            return Err(Unrestored::HasBegun);
        }
        let (section, rest) = Section::read(bytes)?;
        if !rest.is_empty() {
            return Err(Unrestored::Longer(rest.len()));
        }
        match (section.name, section.instance) {
            ("time", 0) => self.restore_time(section.bytes),
            ("cpu", 0) => self.check_cpu(section.bytes),
            ("power", vcpu) => self.restore_power(vcpu as usize, section.bytes),
            ("virtio" | "disk" | "card" | "balloon", _) => {
                let taken = self.devices.virtio.restore(&section, &self.devices.gic);
                taken.unwrap_or(Err(Unrestored::Unknown))
            }
            (_, vcpu) => {
                let slot = self.vcpus.get(vcpu as usize);
                match slot.and_then(|slot| slot.state.lock().restore(&section, self)) {
                    Some(taken) => Ok(taken?),
                    None if vcpu == 0 => self.devices.restore(section.name, section.bytes),
                    None => Err(Unrestored::Unknown),
                }
            }
        }
    }

    /// Whether the guest comes from elsewhere, and has not run here.
    pub(crate) fn is_incoming(&self) -> bool {
        self.life.change(|life, _| life.is_incoming())
    }

    fn restore_time(&self, bytes: &[u8]) -> Result<(), Unrestored> {
        let (Time { counter, frequency: there }, here) = (Time::read(bytes)?, read_sysreg!(CNTFRQ_EL0));
        if there != here {
            return Err(Unrestored::Frequency { there, here });
        }
        let is_set = self.life.change(|life, now| life.set_counter(counter, now));
        if is_set { Ok(()) } else { Err(Unrestored::HasBegun) }
    }

    /// The guest goes on with the ID registers that it has read, so this machine has to give it the same.
    fn check_cpu(&self, bytes: &[u8]) -> Result<(), Unrestored> {
        let length = SectionError::Length { wanted: size_of::<[U64; 3]>() as u64, found: bytes.len() as u64 };
        let rows = <[[U64; 3]]>::ref_from_bytes(bytes).map_err(|_| length)?;
        let differs = |[crm, op2, there]: [u64; 3]| {
            let here = self.guest_cpu.get([crm, op2]);
            (here != there).then_some(Unrestored::Cpu { register: GuestCpu::name([crm, op2]), there, here })
        };
        match rows.iter().find_map(|row| differs(row.map(U64::get))) {
            Some(differs) => Err(differs),
            None => Ok(()),
        }
    }

    fn restore_power(&self, vcpu: usize, bytes: &[u8]) -> Result<(), Unrestored> {
        let state = saved::read_power(bytes)?;
        let slot = self.vcpus.get(vcpu).ok_or(Unrestored::Unknown)?;
        let mut power = self.power.lock();
        let Saved { mut states, end } = power.save();
        states[vcpu] = state;
        power.restore(&Saved { states, end })?;
        drop(power);
        slot.state.lock().set_power(state);
        Ok(())
    }
}
