// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's interrupt controller: the model of `twofold_devices::vgic`, its lock, and the machine's interrupts that it
//! needs.
//!
//! # Locking
//!
//! One spin lock is around the model. It is held for one call of it, with interrupts masked as everywhere at EL2, and
//! never while a guest runs. The list registers of a CPU belong to the vCPU that is loaded there, and only that CPU
//! reads or writes them, under the lock.
//!
//! A vCPU whose interrupts change while it is loaded on another CPU is *kicked*:
//!
//! * C1: the CPU that changes the model takes the lock, changes it, and releases the lock.
//! * C2: it sends the SGI [`KICK`](super::sources::KICK) to the vCPU's CPU, after a barrier (`DSB ISHST`).
//! * V1: the vCPU's CPU leaves the guest because of the SGI, and acknowledges it.
//! * V2: it takes the lock, and [synchronizes](GuestGic::synchronize) its list registers with the model.
//! * V3: it deactivates the SGI, and enters the guest.
//!
//! No wake-up is lost. If C2 comes before V1, then C1 came before V2, and V2 sees the change. If C2 comes after V1, the
//! SGI becomes pending a second time. It stays so until V3 has deactivated the first one, because EL2 is masked; then it
//! is an exit right after the entry, and V1 again. A CPU that is at EL2 for another reason takes the SGI in the same
//! way. A vCPU that waits in WFI is in the guest, and the SGI ends the wait.
//!
//! A kick to a vCPU that is being switched off may reach a CPU that is off. The vCPU drains its list registers into the
//! model before, and reads the model when it is switched on again.

use alloc::vec::Vec;

use spin::Mutex;
use twofold_abi::virt;
use twofold_devices::Width;
use twofold_devices::vgic::{Config, ConfigError, Effects, Frame, Here, Intid, Read, Retry, SgiRegister, VcpuId, Vgic};

use super::interface::ThisCpu;
use super::physical;
use super::sources::Sources;
use crate::mmio::Operation;
use crate::read_sysreg;

/// A guest's interrupt controller.
pub struct GuestGic {
    model: Mutex<Vgic>,
    /// MPIDR of each vCPU's CPU.
    cpus: Vec<u64>,
    sources: Sources,
}

/// A read that waits for the list registers of other CPUs. The guest repeats the access meanwhile, and takes its
/// interrupts between two tries.
#[derive(Debug)]
pub struct Waiting {
    frame: Frame,
    width: Width,
    retry: Retry,
}

/// The interrupts of the guest's timers.
const VIRTUAL_TIMER: Intid = ppi(virt::VIRTUAL_TIMER_INTERRUPT);
const PHYSICAL_TIMER: Intid = ppi(virt::PHYSICAL_TIMER_INTERRUPT);

/// As many as QEMU's `virt` has.
const SPIS: u32 = 224;

impl GuestGic {
    /// The controller of a guest whose vCPUs run on CPUs with these affinities.
    ///
    /// # Errors
    ///
    /// [`ConfigError`].
    pub fn new(cpus: &[u64], sources: &Sources) -> Result<Self, ConfigError> {
        let affinities: Vec<u32> =
            cpus.iter().map(|mpidr| (mpidr >> 8 & 0xff00_0000 | mpidr & 0xff_ffff) as u32).collect();
        let linked = [(VIRTUAL_TIMER, sources.virtual_timer as u16), (PHYSICAL_TIMER, sources.physical_timer as u16)];
        let linked = if sources.physical_timer_is_linked { &linked[..] } else { &linked[..1] };
        let model = Vgic::new(&Config { spis: SPIS, affinities: &affinities, linked })?;
        Ok(Self { model: Mutex::new(model), cpus: cpus.to_vec(), sources: *sources })
    }

    /// vCPU `vcpu` starts on this CPU. Returns the machine's interrupts that are active for it, a bit for each INTID.
    pub fn start(&self, vcpu: usize) -> u32 {
        ThisCpu.clear();
        let Some(vcpu) = id(vcpu) else { return 0 };
        let mut model = self.model.lock();
        model.reset_interface(vcpu);
        let held = model.load(vcpu, &mut ThisCpu);
        self.physical(held).fold(0, |active, intid| active | 1_u32.checked_shl(intid).unwrap_or(0))
    }

    /// vCPU `vcpu`, which runs on this CPU, is switched off.
    pub fn stop(&self, vcpu: usize) {
        let Some(vcpu) = id(vcpu) else { return };
        let mut model = self.model.lock();
        let mut effects = model.unload(vcpu, &mut ThisCpu);
        // Its timers are off when it starts again.
        for timer in [VIRTUAL_TIMER, PHYSICAL_TIMER] {
            effects = effects.and(model.set_ppi(vcpu, timer, false, &mut Here::without_vcpu()));
        }
        drop(model);
        self.complete(effects);
    }

    /// An access of `vcpu`, which runs on this CPU. Returns `None` if a load has to be tried again.
    #[inline]
    pub fn access(
        &self,
        vcpu: usize,
        frame: Frame,
        width: Width,
        operation: Operation,
        waiting: &mut Option<Waiting>,
    ) -> Option<u64> {
        let id = id(vcpu)?;
        if let Frame::Redistributor(..) = frame {
            self.lower_timer(id);
        }
        match operation {
            Operation::Write(value) => {
                self.change(vcpu, |model, here| model.write(frame, width, value, here));
                Some(0)
            }
            Operation::Read => self.read(id, frame, width, waiting),
        }
    }

    /// The guest writes to a register that sends an SGI.
    pub fn send(&self, vcpu: usize, register: SgiRegister, value: u64) {
        if let Some(id) = id(vcpu) {
            self.change(vcpu, |model, here| model.send(id, register, value, here));
        }
    }

    /// The guest deactivates an interrupt that its interface may not have (ICC_DIR_EL1).
    pub fn deactivate(&self, vcpu: usize, intid: u32) {
        if let Some(id) = id(vcpu) {
            self.change(vcpu, |model, here| model.deactivate(id, intid, here));
        }
    }

    /// Sets the line of a shared interrupt. `vcpu` runs on this CPU.
    pub fn set_shared(&self, vcpu: usize, intid: u32, level: bool) {
        if let Some(intid) = Intid::new(intid) {
            self.change(vcpu, |model, here| model.set_spi(intid, level, here));
        }
    }

    /// Sets the line of the emulated physical timer of `vcpu`, which runs on this CPU.
    pub fn set_physical_timer(&self, vcpu: usize, level: bool) {
        if let Some(id) = id(vcpu) {
            self.change(vcpu, |model, here| model.set_ppi(id, PHYSICAL_TIMER, level, here));
        }
    }

    /// The machine's virtual timer has fired for `vcpu`, which runs on this CPU, and stays active.
    #[inline]
    pub fn virtual_timer_fired(&self, vcpu: usize) {
        if let Some(id) = id(vcpu) {
            self.change(vcpu, |model, here| model.fire(id, VIRTUAL_TIMER, here));
        }
    }

    /// The same for the physical timer, where the guest has it with an offset.
    pub fn physical_timer_fired(&self, vcpu: usize) {
        if let Some(id) = id(vcpu) {
            self.change(vcpu, |model, here| model.fire(id, PHYSICAL_TIMER, here));
        }
    }

    /// V2: this CPU's list registers and the model agree again.
    pub fn synchronize(&self, vcpu: usize) {
        if let Some(id) = id(vcpu) {
            self.change(vcpu, |model, here| model.sync(id, here));
        }
    }

    fn read(&self, vcpu: VcpuId, frame: Frame, width: Width, waiting: &mut Option<Waiting>) -> Option<u64> {
        let mut this = ThisCpu;
        let mut here = Here::loaded(vcpu, &mut this);
        let is_this = |other: &Waiting| (other.frame, other.width) == (frame, width);
        let read = match waiting.take().filter(is_this) {
            Some(Waiting { retry, .. }) => self.model.lock().retry(retry, &mut here),
            None => self.model.lock().read(frame, width, &mut here),
        };
        match read {
            Read::Value(value) => Some(value),
            Read::Elsewhere(retry) => {
                retry.vcpus().iter().for_each(|vcpu| self.kick(vcpu));
                *waiting = Some(Waiting { frame, width, retry });
                None
            }
        }
    }

    /// C1 and C2.
    #[inline(always)]
    fn change(&self, vcpu: usize, change: impl FnOnce(&mut Vgic, &mut Here<'_, ThisCpu>) -> Effects) {
        let Some(id) = id(vcpu) else { return };
        let effects = change(&mut self.model.lock(), &mut Here::loaded(id, &mut ThisCpu));
        if !effects.is_none() {
            self.complete(effects);
        }
    }

    /// C2, and what is left to do for this CPU's own interrupts.
    #[cold]
    fn complete(&self, effects: Effects) {
        self.physical(effects.deactivate).for_each(physical::deactivate);
        effects.kick.iter().for_each(|vcpu| self.kick(vcpu));
    }

    fn kick(&self, vcpu: VcpuId) {
        if let Some(mpidr) = self.cpus.get(vcpu.index()) {
            physical::kick(*mpidr);
        }
    }

    /// The guest may have silenced its virtual timer without ending the interrupt: the model learns that the line is
    /// low.
    fn lower_timer(&self, vcpu: VcpuId) {
        const ASSERTED: u64 = 0b101;
        if read_sysreg!(CNTV_CTL_EL0) & 0b111 != ASSERTED {
            self.change(vcpu.index(), |model, here| model.set_ppi(vcpu, VIRTUAL_TIMER, false, here));
        }
    }

    /// The machine's interrupts behind linked ones of the guest.
    fn physical(&self, linked: u32) -> impl Iterator<Item = u32> {
        let of = |intid: Intid, physical| (linked >> intid.raw() & 1 == 1).then_some(physical);
        of(VIRTUAL_TIMER, self.sources.virtual_timer).into_iter().chain(of(PHYSICAL_TIMER, self.sources.physical_timer))
    }
}

fn id(vcpu: usize) -> Option<VcpuId> {
    VcpuId::new(vcpu as u32)
}

/// A PPI by its INTID.
const fn ppi(intid: u32) -> Intid {
    match Intid::new(intid) {
        Some(intid) if intid.is_private() => intid,
        _ => panic!("a PPI is private"),
    }
}
