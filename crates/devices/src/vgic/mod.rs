// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's interrupt controller: a GICv3 with affinity routing and one security state, without LPIs.
//!
//! The distributor and the redistributors are emulated: the guest's accesses trap ([`Vgic::read`], [`Vgic::write`]). The
//! CPU interface is the hardware's virtual one: the guest acknowledges and ends interrupts without an exit. [`Vgic`]
//! puts them into the list registers of the CPU that has the vCPU loaded, through [`CpuInterface`]. Citations are of the
//! GIC's architecture, Arm IHI 0069H.
//!
//! A [`Vgic`] has no lock inside. The embedder puts one spin lock around it, and calls it on the CPU that [`Here`] names.
//!
//! # For the embedder
//!
//! | when | call |
//! |---|---|
//! | a vCPU starts to run on a CPU | [`Vgic::load`]; then make the physical interrupts of linked PPIs active as it says |
//! | it leaves the CPU | [`Vgic::unload`]; then [`Vgic::set_ppi`] with the level of each linked PPI |
//! | stage-2 fault in the interrupt controller | [`Frame::locate`], then [`Vgic::read`] or [`Vgic::write`] |
//! | any other stage-2 fault, or exit | nothing |
//! | trapped write of `ICC_SGI1R_EL1` and its like | [`Vgic::send`] |
//! | trapped write of `ICC_DIR_EL1` | [`Vgic::deactivate`] |
//! | maintenance interrupt; the CPU was kicked for the vCPU | [`Vgic::set_ppi`] of each linked PPI, unless [`Vgic::is_quiet`]; then [`Vgic::sync`] |
//! | the physical interrupt of a linked PPI | drop its priority, do not deactivate it, [`Vgic::fire`] |
//! | a device's line changes | [`Vgic::set_spi`], or [`Vgic::set_ppi`] |
//! | WFI; a vCPU that waits for a page is kicked | [`Vgic::sync`] if it is loaded, then [`Vgic::has_deliverable`] |
//! | PSCI CPU_ON; reset | [`Vgic::reset_interface`]; [`Vgic::reset`] |
//! | snapshot, migration | stop and unload the vCPUs, then [`Vgic::save`], [`Vgic::restore`] |
//!
//! Each call returns [`Effects`]: vCPUs to kick, physical interrupts to deactivate. A read may need the list registers
//! of other CPUs, or the lines that they see: [`Read::Elsewhere`]. The vCPU that is loaded here can be among those,
//! because a pending maintenance interrupt was not yet taken; the embedder then calls [`Vgic::sync`] itself.
//!
//! Traps: `HCR_EL2.IMO` and `FMO` route physical interrupts to EL2, and make SGI registers trap. While a vCPU is loaded,
//! `ICH_HCR_EL2` has [`control::ALWAYS`], of which `TDIR` needs `ICH_VTR_EL2.TDS`. The embedder never writes
//! `ICH_HCR_EL2`, `ICH_VMCR_EL2`, `ICH_AP*R*_EL2` and `ICH_LR*_EL2` itself. While the vCPU is not in its guest, it may clear
//! [`control::EN`], and set it again.
//!
//! # Where an interrupt's state is
//!
//! An interrupt is in memory, or *resident*: in one list register of the CPU that has its vCPU loaded. The bank has its
//! configuration (enable, group, priority, trigger, route) and its line in either case; its pending latch and its active
//! state are in one of the two places. Only an interrupt that waits is put into a list register: pending, inactive,
//! enabled, of an enabled group, routed to that vCPU.
//!
//! * **D1** A call that changes an interrupt first takes it out of its list register if that is this CPU's
//!   (`touch`). If the list register is another CPU's, the call marks it, notes the change so that it applies
//!   on top of whatever the guest does there meanwhile, and reports the vCPU to kick.
//! * **D2** The call changes the words in memory. Each vCPU for which an interrupt waits now is served (this CPU's) or
//!   reported (others).
//! * **D3** A list register is written; the latch moves into it (`placed`), so that a later one is a second interrupt.
//! * **S1** At a sync, and before a list register is taken out, `EOIcount` is settled: as many of the interrupts that
//!   the guest handles outside the list registers end, the highest priority first.
//! * **S2** List registers that are marked, or owe a maintenance interrupt, are read, cleared, and folded into memory.
//! * **S3** List registers that the hardware reports as empty are retired without being read.
//! * **F1** Waiting interrupts go into free list registers. **F2** If they do not suffice, S2 and S3 make room.
//! * **F3** If they still do not suffice, all are taken out. The most urgent waiting ones and those that the guest
//!   handles go in; at least one is for a waiting one. NP and the groups' maintenance interrupts are on.
//!
//! Nothing is lost:
//!
//! * *A pending interrupt* is in memory with its bit in `waiting`, and then its vCPU was served or reported by D2, or
//!   overflow (F3) is on; or it is in a list register. F3 puts the most urgent in. So while one waits outside, a list
//!   register is pending that is at least as urgent, or NP fires; a group that the guest enables or disables also does.
//! * *A level-sensitive interrupt* whose line is still asserted when the guest ends it: its list register asks for a
//!   maintenance interrupt at the end, S2 finds the line, F1 puts it in again. If its line rises later, the call that
//!   raises it finds no such request and takes it out by D1.
//! * *A second edge* while the first is pending in a list register, or handled: D1 takes it out (or marks it), the latch
//!   in memory is set, and the fold merges the two if the first was not yet acknowledged.
//! * *An active interrupt* that was taken out: the end counts in `EOIcount` (`LRENPIE` is always on, so it is an exit),
//!   and S1 finds it, because EOIs come in the reverse order of acknowledges, whose priorities rise. A deactivation that
//!   names its interrupt (`ICC_DIR_EL1`) always traps, because it may name one that another vCPU acknowledged.
//! * *A linked interrupt* is *held* while its physical one is active for it. The hardware deactivates both (HW=1), and
//!   the physical one fires again if it is still asserted. Where the end is found by software, [`Effects::deactivate`]
//!   has the physical one.
//!
//! # What the architecture leaves open
//!
//! | rule | here | QEMU's GICv3 |
//! |---|---|---|
//! | the mode "any vCPU" of SPIs | none: `GICD_TYPER.No1N`, `IROUTER.Interrupt_Routing_Mode` is RES0 | the same |
//! | an affinity in `IROUTER` that no vCPU has | stays pending | the same |
//! | implemented bits of a priority | five, whatever the CPU has | the same |
//! | of equal priorities | any may be first | the lowest INTID |
//! | `GICR_WAKER.ProcessorSleep` | stored, withholds nothing; `ChildrenAsleep` follows at once | the same |
//! | trigger of PPIs | can be configured, but that of linked ones | can be configured |
//! | `IPRIORITYR` | bytes and words | the same |
//! | `IROUTER`, `GICR_TYPER` | words and double words | the same |
//! | all else of another width, unaligned, reserved | reads as zero, ignores writes | the same |
//! | SGI of a group that it does not belong to at the target | not sent | the same |
//! | `ICC_ASGI1R_EL1` | group 0 | the same |
//! | `ICC_EOIR*_EL1` of an interrupt that is not the last acknowledged | drops the priority; deactivates what a list register has, or one that is handled outside | drops the priority; deactivates |
//! | `ICC_DIR_EL1` with EOImode 0 | ignored | the same |
//! | a level-sensitive interrupt's pending latch (`ISPENDR`) | cleared by the acknowledge and by `ICPENDR` | the same |
//! | preemption | both priorities are compared at the binary point of the pending one's group | the same |
//! | a line is lowered while another CPU has the interrupt pending | it is withdrawn when that CPU synchronizes | at once |
//! | PSTATE's masks | not looked at by [`Vgic::has_deliverable`] | |
extern crate alloc;

use alloc::vec::Vec;

use thiserror::Error;

use bank::{Bank, NONE};
use deliver::BankId;

mod bank;
mod best;
mod deliver;
mod deliverable;
mod distributor;
mod effects;
mod frame;
mod interface;
mod intid;
mod lines;
mod list_register;
mod look;
mod redistributor;
mod registers;
mod sgi;
mod state;
mod vcpu;

pub use effects::{Effects, Here, Read, Retry};
pub use frame::Frame;
pub use interface::{CpuInterface, MOST_LIST_REGISTERS, NoInterface, SavedInterface, control};
pub use intid::{Intid, VcpuId, VcpuSet};
pub use list_register::ListRegister;
pub use look::Look;
pub use sgi::SgiRegister;
pub use state::{Impossible, StateError};

/// What a guest's interrupt controller has. It does not change while the guest exists.
#[derive(Clone, Debug)]
pub struct Config<'a> {
    /// The number of SPIs, a multiple of 32, up to 960. QEMU's `virt` has 224, and says 256 interrupts.
    pub spis: u32,
    /// Each vCPU's affinity, Aff3.Aff2.Aff1.Aff0 as in `GICR_TYPER`, by its index.
    pub affinities: &'a [u32],
    /// PPIs that are linked to a physical interrupt (`HW` in their list registers): the virtual PPI, and the physical
    /// INTID. They are always level-sensitive.
    pub linked: &'a [(Intid, u16)],
}

/// Why there is no such interrupt controller.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// The number of SPIs.
    #[error("an interrupt controller has 0 to 960 SPIs, a multiple of 32, and not {0}")]
    Spis(u32),
    /// The number of vCPUs.
    #[error("an interrupt controller has 1 to 64 vCPUs, and not {0}")]
    Vcpus(usize),
    /// Two vCPUs have one affinity.
    #[error("two vCPUs have the affinity {0:#x}")]
    Affinity(u32),
    /// Not a PPI, or not a physical PPI or SPI.
    #[error(
        "interrupt {ppi} cannot be linked to the physical interrupt {physical}: only PPIs are linked, to PPIs and SPIs"
    )]
    Link {
        /// The virtual interrupt.
        ppi: u32,
        /// The physical one.
        physical: u16,
    },
}

/// A guest's interrupt controller: a distributor, and a redistributor for each vCPU.
#[derive(Debug)]
pub struct Vgic {
    /// `GICD_CTLR`'s enables: bit 0 of group 0, bit 1 of group 1.
    control: u32,
    vcpus: Vec<Vcpu>,
    spis: Vec<Shared>,
    /// Banks of SPIs with an interrupt that waits, for whichever vCPU.
    busy: u32,
    /// The physical interrupt of each linked PPI.
    physical: [u16; 32],
    /// Reads that asked other CPUs for their list registers.
    requests: u64,
    /// `GICD_TYPER`.
    typer: u32,
}

use vcpu::Vcpu;

/// 32 SPIs, and where they go.
#[derive(Debug)]
struct Shared {
    bank: Bank,
    /// `GICD_IROUTER<n>`: an affinity.
    route: [u32; 32],
    /// The vCPU of that affinity, or [`NONE`].
    target: [u8; 32],
}

impl Vgic {
    /// An interrupt controller after a reset. It allocates here, and nowhere else.
    pub fn new(config: &Config<'_>) -> Result<Self, ConfigError> {
        let Config { spis, affinities, linked } = *config;
        if spis > 960 || !spis.is_multiple_of(32) {
            return Err(ConfigError::Spis(spis));
        }
        if affinities.is_empty() || affinities.len() > VcpuId::MOST as usize {
            return Err(ConfigError::Vcpus(affinities.len()));
        }
        for (n, affinity) in affinities.iter().enumerate() {
            if affinities.iter().take(n).any(|other| other == affinity) {
                return Err(ConfigError::Affinity(*affinity));
            }
        }
        let banks = spis as usize / 32;
        let mut physical = [0; 32];
        let mut mask = 0;
        for &(ppi, to) in linked {
            if ppi.raw() < 16 || ppi.is_shared() || !(16..1020).contains(&to) {
                return Err(ConfigError::Link { ppi: ppi.raw(), physical: to });
            }
            physical[ppi.index()] = to;
            mask |= ppi.bit();
        }
        let mut vcpus: Vec<Vcpu> = affinities.iter().map(|&affinity| Vcpu::new(affinity, banks)).collect();
        for vcpu in &mut vcpus {
            vcpu.private.linked = mask;
        }
        let spis = (0..banks).map(|_| Shared { bank: Bank::new(0), route: [0; 32], target: [NONE; 32] }).collect();
        let typer = distributor::typer(banks, affinities);
        let mut vgic = Self { control: 0, vcpus, spis, busy: 0, physical, requests: 0, typer };
        vgic.reroute();
        Ok(vgic)
    }

    /// The number of vCPUs.
    #[must_use]
    pub fn vcpus(&self) -> usize {
        self.vcpus.len()
    }

    /// The vCPU's CPU interface starts anew, as after PSCI's CPU_ON: it handles no interrupt any more. The vCPU is not
    /// loaded.
    pub fn reset_interface(&mut self, vcpu: VcpuId) {
        let Some(state) = self.vcpus.get_mut(vcpu.index()).filter(|state| !state.loaded) else { return };
        state.saved = SavedInterface::RESET;
        state.slots.outside = false;
        state.private.forget(vcpu);
        for shared in &mut self.spis {
            shared.bank.forget(vcpu);
        }
    }

    /// Everything is as after a reset, but the devices' lines, which are the devices' own. No vCPU is loaded; if one is,
    /// nothing changes, and it is returned.
    pub fn reset(&mut self) -> Result<(), StateError> {
        if let Some(loaded) = self.vcpus.iter().position(|state| state.loaded) {
            return Err(StateError::Loaded(VcpuId::from_index(loaded)));
        }
        self.control = 0;
        for state in &mut self.vcpus {
            let bank = &mut state.private;
            *bank = Bank { line: bank.line, linked: bank.linked, ..Bank::new(0xffff) };
            state.saved = SavedInterface::RESET;
            state.slots.outside = false;
            state.asleep = true;
        }
        for shared in &mut self.spis {
            *shared =
                Shared { bank: Bank { line: shared.bank.line, ..Bank::new(0) }, route: [0; 32], target: [NONE; 32] };
        }
        self.reroute();
        Ok(())
    }

    /// Recomputes where all SPIs go, and which banks are busy.
    fn reroute(&mut self) {
        for vcpu in &mut self.vcpus {
            vcpu.routed.fill(0);
        }
        for n in 0..self.spis.len() {
            for index in 0..32 {
                self.route(n, index);
            }
            self.refresh(n);
        }
    }

    /// Recomputes where one SPI goes.
    fn route(&mut self, n: usize, index: usize) {
        let Some(affinity) = self.spis.get(n).map(|shared| shared.route[index & 31]) else { return };
        let target = self.find(affinity);
        let Some(shared) = self.spis.get_mut(n) else { return };
        let bit = 1_u32 << (index & 31);
        let old = core::mem::replace(&mut shared.target[index & 31], target.map_or(NONE, |target| target as u8));
        for (vcpu, routed) in [(Some(old.into()), false), (target, true)] {
            let word = vcpu.and_then(|vcpu| self.vcpus.get_mut(vcpu)).and_then(|state| state.routed.get_mut(n));
            if let Some(word) = word {
                *word = if routed { *word | bit } else { *word & !bit };
            }
        }
    }

    fn bank(&self, bank: BankId) -> Option<&Bank> {
        match bank {
            BankId::Private(vcpu) => self.vcpus.get(vcpu.index()).map(|state| &state.private),
            BankId::Shared(n) => self.spis.get(n).map(|shared| &shared.bank),
        }
    }

    fn bank_mut(&mut self, bank: BankId) -> Option<&mut Bank> {
        match bank {
            BankId::Private(vcpu) => self.vcpus.get_mut(vcpu.index()).map(|state| &mut state.private),
            BankId::Shared(n) => self.spis.get_mut(n).map(|shared| &mut shared.bank),
        }
    }
}
