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
//! * C2: if a CPU has the vCPU loaded, it sends that CPU the SGI [`KICK`](super::sources::KICK), after a barrier
//!   (`DSB ISHST`).
//! * C3: otherwise it [wakes](schedule::wake) the vCPU.
//! * V1: the vCPU's CPU leaves the guest because of the SGI, and acknowledges it.
//! * V2: it takes the lock, and [synchronizes](GuestGic::synchronize) its list registers with the model.
//! * V3: it deactivates the SGI, and enters the guest.
//! * L: a CPU that loads the vCPU notes its number under the lock, and fills the list registers in the same step.
//! * U: a CPU that unloads it drains the list registers, looks for an interrupt that is signalled, and notes that no CPU
//!   has it, in one step under the lock. The scheduler's steps B2 and B3 follow.
//!
//! No wake-up is lost. If C2 comes before V1, then C1 came before V2, and V2 sees the change. If C2 comes after V1, the
//! SGI becomes pending a second time. It stays so until V3 has deactivated the first one, because EL2 is masked; then it
//! is an exit right after the entry, and V1 again. A CPU that is at EL2 for another reason takes the SGI in the same
//! way. A vCPU that waits in WFI without an exit is in the guest, and the SGI ends the wait.
//!
//! C2 and C3 read where the vCPU is after C1. If C1 came before U, then U sees the change, whatever C2 did: the SGI is one
//! too many. If C1 came after U and before the next L, that L sees the change, and if the vCPU is blocked until then, C3
//! reads that no CPU has it, and wakes it. If an L came between C1 and C3, the SGI is one too many again.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use spin::{Mutex, MutexGuard};
use twofold_abi::{async_fault, virt};
use twofold_devices::Width;
use twofold_devices::vgic::{
    Config, ConfigError, CpuInterface, Effects, Frame, Here, Intid, Look, Read, Retry, SgiRegister, StateError, VcpuId,
    Vgic,
};
use twofold_vmm::scheduler::EntityId;

use super::interface::ThisCpu;
use super::physical;
use super::sources::Sources;
use crate::mmio::Operation;
use crate::{cpus, read_sysreg, schedule};

/// A guest's interrupt controller.
pub struct GuestGic {
    model: Mutex<Vgic>,
    /// Where each vCPU is. Those that the guest does not have are nowhere.
    vcpus: Box<[Vcpu; VcpuId::MOST as usize]>,
    sources: Sources,
}

/// A vCPU, as far as it is kicked. Its size is a power of two, so that its place in the array is a shift.
#[repr(align(16))]
struct Vcpu {
    /// The number of the CPU that has it loaded, or [`NOWHERE`]. It changes under the model's lock.
    cpu: AtomicU32,
    entity: Option<EntityId>,
}

/// No CPU has the vCPU loaded.
const NOWHERE: u32 = u32::MAX;

/// The level of a timer's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerLines {
    /// The virtual timer's.
    pub virtual_timer: bool,
    /// The physical timer's.
    pub physical_timer: bool,
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
const TIMERS: u32 = 1 << VIRTUAL_TIMER.raw() | 1 << PHYSICAL_TIMER.raw();

/// The interrupt by which an absent page is announced.
const ANNOUNCEMENT: Intid = ppi(async_fault::INTID);

/// As many as QEMU's `virt` has.
const SPIS: u32 = 224;

impl GuestGic {
    /// The controller of a guest with these vCPUs: their affinities, as in MPIDR_EL1, and what the scheduler calls them.
    ///
    /// # Errors
    ///
    /// [`ConfigError`].
    pub fn new(vcpus: &[(u64, EntityId)], sources: &Sources) -> Result<Self, ConfigError> {
        let affinities: Vec<u32> =
            vcpus.iter().map(|(mpidr, _)| (mpidr >> 8 & 0xff00_0000 | mpidr & 0xff_ffff) as u32).collect();
        let linked = [(VIRTUAL_TIMER, sources.virtual_timer as u16), (PHYSICAL_TIMER, sources.physical_timer as u16)];
        let linked = if sources.physical_timer_is_linked { &linked[..] } else { &linked[..1] };
        let model = Vgic::new(&Config { spis: SPIS, affinities: &affinities, linked })?;
        let entity = |n: usize| vcpus.get(n).map(|(_, entity)| *entity);
        let vcpus = core::array::from_fn(|n| Vcpu { cpu: AtomicU32::new(NOWHERE), entity: entity(n) });
        Ok(Self { model: Mutex::new(model), vcpus: Box::new(vcpus), sources: *sources })
    }

    /// vCPU `vcpu` is loaded on this CPU, with its timers' lines at these levels. Returns the machine's interrupts that
    /// are active for it, a bit for each INTID.
    #[inline(always)]
    pub fn load(&self, vcpu: VcpuId, cpu: usize, lines: TimerLines) -> u32 {
        let mut model = self.model.lock();
        self.place(vcpu).cpu.store(cpu as u32, Ordering::Relaxed);
        if lines == TimerLines::LOW && model.load_quiet(vcpu, &mut ThisCpu) {
            return 0;
        }
        self.load_any(model, vcpu, lines)
    }

    #[inline(never)]
    fn load_any(&self, mut model: MutexGuard<'_, Vgic>, id: VcpuId, lines: TimerLines) -> u32 {
        // The only effects are this vCPU's: `load` puts its new work into the list registers, and returns what is active.
        let _ = set_lines(&mut model, id, lines);
        let held = model.load(id, &mut ThisCpu);
        drop(model);
        self.physical(held).fold(0, |active, intid| active | 1_u32.checked_shl(intid).unwrap_or(0))
    }

    /// vCPU `vcpu`, which is loaded on this CPU, leaves it. Returns whether it `waits` and an interrupt is signalled to it.
    #[inline(always)]
    pub fn unload(&self, vcpu: VcpuId, lines: TimerLines, waits: bool) -> bool {
        let mut model = self.model.lock();
        if lines == TimerLines::LOW && model.unload_quiet(vcpu, &mut ThisCpu) {
            self.place(vcpu).cpu.store(NOWHERE, Ordering::Relaxed);
            return false;
        }
        self.unload_any(model, vcpu, lines, waits)
    }

    #[inline(never)]
    fn unload_any(&self, mut model: MutexGuard<'_, Vgic>, id: VcpuId, lines: TimerLines, waits: bool) -> bool {
        let held = model.held(id);
        let mut effects = model.unload(id, &mut ThisCpu);
        effects = effects.and(set_lines(&mut model, id, lines));
        let is_signalled = waits && model.has_deliverable(id, &Here::without_vcpu());
        self.place(id).cpu.store(NOWHERE, Ordering::Relaxed);
        drop(model);
        // The next vCPU of this CPU has timers of its own, behind the same interrupts of the machine.
        effects.deactivate |= held;
        // Its own new work is in the answer.
        effects.kick.remove(id);
        if !effects.is_none() {
            self.complete(effects);
        }
        is_signalled
    }

    /// The interface of vCPU `vcpu`, which is not loaded, starts anew.
    pub fn reset_interface(&self, vcpu: usize) {
        if let Some(id) = id(vcpu) {
            self.model.lock().reset_interface(id);
        }
    }

    /// The guest starts anew. No vCPU is loaded.
    ///
    /// # Errors
    ///
    /// A vCPU is loaded.
    pub fn reset(&self) -> Result<(), StateError> {
        self.model.lock().reset()
    }

    /// The whole state. No vCPU is loaded.
    ///
    /// # Errors
    ///
    /// A vCPU is loaded.
    pub fn save(&self) -> Result<Vec<u8>, StateError> {
        let model = self.model.lock();
        let mut bytes = vec![0; model.state_len()];
        model.save(&mut bytes)?;
        Ok(bytes)
    }

    /// Takes the state of a guest that comes from elsewhere. No vCPU is loaded.
    ///
    /// # Errors
    ///
    /// The state does not fit this guest. Nothing changes.
    pub fn restore(&self, bytes: &[u8]) -> Result<(), StateError> {
        self.model.lock().restore(bytes)
    }

    /// Makes the CPUs that have a vCPU loaded leave the guest. A CPU that loads one later sees what the caller wrote
    /// before.
    pub fn kick_all(&self) {
        let _model = self.model.lock();
        for place in self.vcpus.iter() {
            if let Some(cpu) = place.loaded() {
                schedule::interrupt(cpu);
            }
        }
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
        if matches!(frame, Frame::Redistributor(of, _) if of == id) {
            self.change(vcpu, |model, here| self.report_timers(model, id, here));
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

    /// Sets the line of a shared interrupt. `here` is the vCPU of this guest that is loaded on this CPU, if one is.
    pub fn set_shared(&self, here: Option<usize>, intid: u32, level: bool) {
        let Some(intid) = Intid::new(intid) else { return };
        match here {
            Some(vcpu) => self.change(vcpu, |model, here| model.set_spi(intid, level, here)),
            None => {
                let effects = self.model.lock().set_spi(intid, level, &mut Here::without_vcpu());
                self.complete(effects);
            }
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

    /// The interface of `vcpu`, which is loaded on this CPU, and its PPI of announcements.
    pub fn look(&self, vcpu: usize) -> Option<Look> {
        let id = id(vcpu)?;
        self.model.lock().look_at(id, ANNOUNCEMENT, &Here::loaded(id, &mut ThisCpu))
    }

    /// Whether `vcpu` takes an interrupt as its next step with this PSTATE, if it is entered now. `is_loaded`: on this CPU;
    /// else nowhere.
    pub fn can_take(&self, vcpu: usize, pstate: u64, is_loaded: bool) -> bool {
        const FIQ_MASKED: u64 = 1 << 6;
        const IRQ_MASKED: u64 = 1 << 7;
        let Some(id) = id(vcpu) else { return false };
        let model = self.model.lock();
        let [fiq, irq] = match is_loaded {
            true => model.deliverable(id, &Here::loaded(id, &mut ThisCpu)),
            false => model.deliverable(id, &Here::without_vcpu()),
        };
        fiq && pstate & FIQ_MASKED == 0 || irq && pstate & IRQ_MASKED == 0
    }

    /// Makes the PPI of announcements of `vcpu` pending, if the guest has made it edge-triggered, or not pending. `is_loaded`
    /// as above.
    pub fn announce(&self, vcpu: usize, is_pending: bool, is_loaded: bool) {
        let Some(id) = id(vcpu) else { return };
        let mut model = self.model.lock();
        let effects = match is_loaded {
            true => announce(&mut model, id, is_pending, &mut Here::loaded(id, &mut ThisCpu)),
            false => announce(&mut model, id, is_pending, &mut Here::without_vcpu()),
        };
        drop(model);
        self.complete(effects);
    }

    /// Kicks a vCPU for something that is not in the model, and that the caller has written before. The lock orders this
    /// with L and U: either the vCPU's CPU sees what was written when it has unloaded the vCPU, or this finds that no CPU
    /// has it. It interrupts nothing if this CPU has the vCPU, and [looks](cpus::will_look) by itself.
    pub fn kick_for(&self, vcpu: usize) {
        let Some(id) = id(vcpu) else { return };
        drop(self.model.lock());
        if self.place(id).loaded().is_none_or(|cpu| !cpus::looks_at_kicks(cpu)) {
            self.kick(id);
        }
    }

    /// V2: this CPU's list registers and the model agree again.
    pub fn synchronize(&self, vcpu: usize) {
        if let Some(id) = id(vcpu) {
            self.change(vcpu, |model, here| match model.is_quiet(id, TIMERS) {
                true => model.sync(id, here),
                // Another vCPU may wait for what only this CPU sees.
                false => self.report_timers(model, id, here).and(model.sync(id, here)),
            });
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

    /// C2, or C3.
    fn kick(&self, vcpu: VcpuId) {
        let place = self.place(vcpu);
        match place.loaded() {
            Some(cpu) => schedule::interrupt(cpu),
            None => place.entity.into_iter().for_each(schedule::wake),
        }
    }

    #[inline(always)]
    fn place(&self, vcpu: VcpuId) -> &Vcpu {
        // The index is below the number, which the compiler does not know.
        &self.vcpus[vcpu.index() % VcpuId::MOST as usize]
    }

    /// The model learns the levels of the lines of the timers that the machine has for `vcpu`, which runs on this CPU. The
    /// guest may have silenced a timer without ending its interrupt, or set it anew while the interrupt is active.
    fn report_timers(&self, model: &mut Vgic, vcpu: VcpuId, here: &mut Here<'_, ThisCpu>) -> Effects {
        const ASSERTED: u64 = 0b101;
        let is_asserted = |control: u64| control & 0b111 == ASSERTED;
        let effects = model.set_ppi(vcpu, VIRTUAL_TIMER, is_asserted(read_sysreg!(CNTV_CTL_EL0)), here);
        // Else it is emulated, and the model knows its level.
        if !self.sources.physical_timer_is_linked {
            return effects;
        }
        effects.and(model.set_ppi(vcpu, PHYSICAL_TIMER, is_asserted(read_sysreg!(CNTP_CTL_EL0)), here))
    }

    /// The machine's interrupts behind linked ones of the guest.
    fn physical(&self, linked: u32) -> impl Iterator<Item = u32> {
        let of = |intid: Intid, physical| (linked >> intid.raw() & 1 == 1).then_some(physical);
        of(VIRTUAL_TIMER, self.sources.virtual_timer).into_iter().chain(of(PHYSICAL_TIMER, self.sources.physical_timer))
    }
}

/// As [`GuestGic::announce`], where the vCPU is.
fn announce<I: CpuInterface>(model: &mut Vgic, id: VcpuId, is_pending: bool, here: &mut Here<'_, I>) -> Effects {
    /// GICR_ICPENDR0, in the redistributor's second frame.
    const CLEAR_PENDING: u32 = 0x1_0280;
    if !is_pending {
        let frame = Frame::Redistributor(id, CLEAR_PENDING);
        return model.write(frame, Width::Word, ANNOUNCEMENT.bit().into(), here);
    }
    let rises = model.set_ppi(id, ANNOUNCEMENT, true, here);
    rises.and(model.set_ppi(id, ANNOUNCEMENT, false, here))
}

/// Reports the levels of the timers' lines of a vCPU that is not loaded.
fn set_lines(model: &mut Vgic, id: VcpuId, lines: TimerLines) -> Effects {
    let mut effects = Effects::default();
    // The usual case, in which the reports would change nothing.
    if lines != TimerLines::LOW || !model.is_quiet(id, TIMERS) {
        for (timer, level) in lines.each() {
            effects = effects.and(model.set_ppi(id, timer, level, &mut Here::without_vcpu()));
        }
    }
    effects
}

impl TimerLines {
    /// Both are low.
    pub const LOW: Self = Self { virtual_timer: false, physical_timer: false };

    fn each(self) -> [(Intid, bool); 2] {
        [(VIRTUAL_TIMER, self.virtual_timer), (PHYSICAL_TIMER, self.physical_timer)]
    }
}

impl Vcpu {
    /// The CPU that has it loaded.
    fn loaded(&self) -> Option<usize> {
        let cpu = self.cpu.load(Ordering::Relaxed);
        (cpu != NOWHERE).then_some(cpu as usize)
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
