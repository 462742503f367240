// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A vCPU of the fast mode: a guest's registers, on a CPU of its own.
//!
//! Invariant: the CPU's TLB holds entries only for the registers as they were when it was last loaded. A change of the
//! registers empties the TLB, and nothing is filled before it is loaded again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use twofold_stage2::Pa;

use super::FastMachine;
use super::cpu::{Cpu, EXECUTE, NEVER, Page, READ, WRITE};
use super::thread::Thread;
use crate::arena::Arena;
use crate::interrupts::{Interrupts, Line};
use crate::program::{Abort, Ended, Exit, Instructions, Program, Stage1Registers, State};
use crate::tlbi::Reach;
use crate::walk::stage1::{self, GuestTables};
use crate::walk::stage2::{self, Entries, Leaf2, Stage2Fault};
use crate::walk::{Access, AccessKind, El, FaultKind, Unmodelled, syndrome};

/// A vCPU on one CPU of a machine.
#[derive(Debug)]
pub struct FastVcpu {
    cpu: Arc<Cpu>,
    interrupts: Arc<Interrupts>,
    /// Keeps the memory that the CPU's entries point to alive.
    machine: Arc<FastMachine>,
    index: usize,
    vttbr: u64,
    stage2: stage2::Regime,
    state: State,
    /// `None` until the TLB is loaded for the current registers.
    stage1: Option<Result<stage1::Regime, Unmodelled>>,
}

/// The reason why a vCPU cannot be made or loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VcpuError {
    /// The machine has no such CPU.
    #[error("CPU {index}: the machine has {cpus} CPUs, numbered from 0")]
    NoCpu {
        /// The CPU that was asked for.
        index: usize,
        /// The number of CPUs.
        cpus: usize,
    },
    /// Another vCPU has it.
    #[error("CPU {index} has a vCPU already")]
    Taken {
        /// The CPU that was asked for.
        index: usize,
    },
    /// The registers have reserved or unmodelled values.
    #[error("{what} is {value:#x}: {why}")]
    Registers {
        /// The register.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The reason.
        why: &'static str,
    },
}

impl FastVcpu {
    /// A vCPU on CPU `index`, in the guest that `VTTBR_EL2` and `VTCR_EL2` set up, with its stage 1 off.
    ///
    /// # Errors
    ///
    /// The CPU does not exist or is taken, or the registers have reserved or unmodelled values.
    pub fn new(
        machine: &Arc<FastMachine>,
        index: usize,
        (vttbr, vtcr): (u64, u64),
        interrupts: Arc<Interrupts>,
    ) -> Result<Self, VcpuError> {
        let stage2 = regime(machine, vttbr, vtcr)?;
        let cpu = machine.cpus.get(index).ok_or(VcpuError::NoCpu { index, cpus: machine.cpus() })?;
        if !cpu.take() {
            return Err(VcpuError::Taken { index });
        }
        Ok(Self {
            cpu: Arc::clone(cpu),
            interrupts,
            machine: Arc::clone(machine),
            index,
            vttbr,
            stage2,
            state: State::default(),
            stage1: None,
        })
    }

    /// Enters the guest. The calling thread acts as this CPU until it runs a vCPU of another.
    ///
    /// # Errors
    ///
    /// The reason why the vCPU left its guest.
    pub fn run<P: Program>(&mut self, program: &mut P) -> Result<Ended, Exit> {
        Thread::with(self.machine.id, |thread| thread.set_cpu(self.index, self.vttbr));
        program.run(self)
    }

    /// Loads another guest's registers.
    ///
    /// # Errors
    ///
    /// They have reserved or unmodelled values; nothing was changed.
    pub fn load_guest(&mut self, vttbr: u64, vtcr: u64) -> Result<(), VcpuError> {
        self.stage2 = regime(&self.machine, vttbr, vtcr)?;
        self.vttbr = vttbr;
        self.changed();
        Ok(())
    }

    /// Answers the guest's hypercall: the repeated instruction returns `value`.
    pub fn answer(&mut self, value: u64) {
        self.state.answer = Some(value);
    }

    /// Raises an abort in the guest: the access that caused the exit ends with it when it is repeated.
    pub fn raise(&mut self, abort: Abort) {
        self.state.abort = Some(abort);
    }

    /// Skips the cache maintenance instruction that caused the exit.
    pub fn skip(&mut self) {
        self.state.skipped = true;
    }

    /// The state that moves with the vCPU to another CPU.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Takes over the state of a vCPU that ran on another CPU.
    pub fn set_state(&mut self, state: State) {
        self.state = state;
        self.changed();
    }

    /// The vCPU's interrupts and kick.
    pub fn interrupts(&self) -> &Arc<Interrupts> {
        &self.interrupts
    }

    /// `AT S1E1R`: returns `PAR_EL1` for `va`, with the IPA in bits 47 to 12, or with bit 0 set if the stage-1 walk
    /// fails.
    pub fn translate_stage1(&mut self, va: u64) -> u64 {
        const FAILED: u64 = 1;
        let Ok(stage1) = stage1::Regime::new(&self.state.stage1) else { return FAILED };
        let read = Access::new(AccessKind::Read, El::El1);
        match stage1.walk(va, read, &mut Memory { arena: &self.machine.arena, stage2: &self.stage2 }) {
            Ok(leaf) => (leaf.ipa | va & (leaf.size - 1)) & !0xfff,
            Err(_) => FAILED,
        }
    }

    #[inline(always)]
    fn access<R>(&mut self, va: u64, kind: AccessKind, act: impl Fn(&AtomicU64) -> R) -> Result<R, Exit> {
        loop {
            // A kick asks for a bit that no entry has, so the access misses.
            let needed = needs(kind) | self.interrupts.kicked() & NEVER;
            if let Some(result) = self.cpu.access(va, needed, &act) {
                return Ok(result);
            }
            self.miss(va, kind)?;
        }
    }

    /// Handles a TLB miss or a kick.
    #[cold]
    #[inline(never)]
    fn miss(&mut self, va: u64, kind: AccessKind) -> Result<(), Exit> {
        if self.interrupts.take_kick() {
            return Err(Exit::Kicked);
        }
        // The TLB has no entry for an access that the hypervisor refused, so the repeated access comes here.
        if let Some(abort) = self.state.abort.take() {
            return Err(Exit::Stage1(abort));
        }
        let access = Access::new(kind, El::El1);
        if va & 7 != 0 {
            return Err(Exit::Stage1(own_fault(ALIGNMENT, access, va)));
        }
        let stage1 = match self.loaded() {
            Ok(stage1) => stage1,
            // A CPU's behaviour is unpredictable here; the model raises the fault in the guest.
            Err(_) => return Err(Exit::Stage1(syndrome::stage1(FaultKind::AddressSize, 0, access, va))),
        };
        let memory = Memory { arena: &self.machine.arena, stage2: &self.stage2 };
        self.cpu.fill(va, || walk(&stage1, memory, va, access))
    }

    /// Returns the stage-1 regime of the current registers, and loads the TLB for it if necessary.
    fn loaded(&mut self) -> Result<stage1::Regime, Unmodelled> {
        let (cpu, vmid, registers) = (&self.cpu, self.stage2.vmid, &self.state.stage1);
        *self.stage1.get_or_insert_with(|| {
            cpu.load(vmid, registers.sctlr & MMU_ON != 0);
            stage1::Regime::new(registers)
        })
    }

    /// Empties the TLB, because its entries are for the registers before the change.
    fn changed(&mut self) {
        self.cpu.empty();
        self.stage1 = None;
    }
}

impl Instructions for FastVcpu {
    #[inline(always)]
    fn load(&mut self, va: u64) -> Result<u64, Exit> {
        self.access(va, AccessKind::Read, |word| word.load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn store(&mut self, va: u64, value: u64) -> Result<(), Exit> {
        self.access(va, AccessKind::Write, |word| word.store(value, Ordering::Relaxed))
    }

    #[inline(always)]
    fn fetch(&mut self, va: u64) -> Result<u64, Exit> {
        self.access(va, AccessKind::Execute, |word| word.load(Ordering::Relaxed))
    }

    fn clean(&mut self, va: u64) -> Result<(), Exit> {
        if core::mem::take(&mut self.state.skipped) {
            return Ok(());
        }
        self.access(va, AccessKind::Maintenance, |_| ())
    }

    fn hypercall(&mut self, arguments: [u64; 4]) -> Result<u64, Exit> {
        self.state.answer.take().ok_or(Exit::Hypercall(arguments))
    }

    fn wait_for_interrupt(&mut self) -> Result<(), Exit> {
        if self.interrupts.take_kick() {
            Err(Exit::Kicked)
        } else if self.interrupts.pending() != 0 {
            Ok(())
        } else {
            Err(Exit::WaitForInterrupt)
        }
    }

    fn take_interrupts(&mut self) -> u64 {
        self.interrupts.take()
    }

    fn counter(&mut self) -> u64 {
        self.interrupts.counter()
    }

    fn set_timer(&mut self, deadline: u64) {
        self.interrupts.set_timer(deadline, Line::TIMER);
    }

    fn stage1(&mut self) -> &mut Stage1Registers {
        self.changed();
        &mut self.state.stage1
    }

    fn invalidate_stage1(&mut self) {
        let reach = Reach { stage2: None, stage1_and_combined: true, broadcast: true, every_vmid: false };
        let pending = self.machine.invalidate(self.stage2.vmid, &reach, Some(self.index));
        if pending != 0 {
            self.machine.complete(pending);
        }
    }
}

impl Drop for FastVcpu {
    fn drop(&mut self) {
        self.cpu.give();
    }
}

/// `SCTLR_EL1.M`.
const MMU_ON: u64 = 1 << 0;

/// xFSC of a synchronous external abort, not on a walk.
const EXTERNAL: u64 = 0b01_0000;
/// xFSC of an alignment fault.
const ALIGNMENT: u64 = 0b10_0001;

/// A fault that the guest's EL1 takes, with a status code that no walk returns.
fn own_fault(status: u64, access: Access, va: u64) -> Abort {
    let abort = syndrome::stage1(FaultKind::AddressSize, 0, access, va);
    Abort { esr: abort.esr & !0x3f | status, ..abort }
}

/// Walks both stages, and returns the page with the accesses that its entries allow now.
fn walk(stage1: &stage1::Regime, mut memory: Memory<'_>, va: u64, access: Access) -> Result<Page, Exit> {
    let first = stage1.walk(va, access, &mut memory).map_err(|fault| match fault {
        stage1::Fault::Stage1(kind, level) => Exit::Stage1(syndrome::stage1(kind, level, access, va)),
        stage1::Fault::Stage2(fault, access) => Exit::Abort(syndrome::stage2(&fault, access, va)),
        stage1::Fault::Unmodelled(_) => Exit::Stage1(syndrome::stage1(FaultKind::Translation, 0, access, va)),
    })?;
    let ipa = first.ipa | va & (first.size - 1);
    let second = memory.walk(ipa, access).map_err(|fault| Exit::Abort(syndrome::stage2(&fault, access, va)))?;
    let pa = Pa::new(stage2::output(second.raw, second.level, ipa)).align_down(1 << 12);
    // No memory answers at this address.
    let at = memory.arena.pointer(pa).ok_or(Exit::Stage1(own_fault(EXTERNAL, access, va)))?;
    let allowed = [AccessKind::Read, AccessKind::Write, AccessKind::Execute].into_iter().filter(|&kind| {
        let access = Access { kind, ..access };
        let as_it_is = first.descriptor.map(|descriptor| descriptor.raw);
        stage1.grant(&first, access) == Ok(as_it_is) && stage2::allows(second.raw, access)
    });
    let allows = allowed.fold(needs(access.kind), |allows, kind| allows | needs(kind));
    Ok(Page { at, level: second.level, allows })
}

#[inline(always)]
const fn needs(kind: AccessKind) -> u64 {
    match kind {
        // Cache maintenance needs the permission of a load.
        AccessKind::Read | AccessKind::Maintenance => READ,
        AccessKind::Write => WRITE,
        AccessKind::Execute => EXECUTE,
    }
}

fn regime(machine: &FastMachine, vttbr: u64, vtcr: u64) -> Result<stage2::Regime, VcpuError> {
    let regime = stage2::Regime::new(vttbr, vtcr, &machine.features);
    regime.map_err(|Unmodelled { what, value, why }| VcpuError::Registers { what, value, why })
}

/// Guest memory and tables as walks see them. Outside of memory a walk reads 0, an invalid descriptor.
#[derive(Clone, Copy)]
struct Memory<'a> {
    arena: &'a Arena,
    stage2: &'a stage2::Regime,
}

impl Memory<'_> {
    fn walk(&mut self, ipa: u64, access: Access) -> Result<Leaf2, Stage2Fault> {
        let regime = *self.stage2;
        regime.walk(ipa, access, self)
    }

    fn read(&self, pa: u64) -> u64 {
        self.arena.load(Pa::new(pa)).unwrap_or(0)
    }

    fn update(&self, pa: u64, old: u64, new: u64) -> Result<(), u64> {
        self.arena.compare_exchange(Pa::new(pa), old, new).unwrap_or(Err(0)).map(|_| ())
    }
}

impl Entries for Memory<'_> {
    fn stage2(&mut self, pa: u64) -> u64 {
        self.read(pa)
    }

    fn update_stage2(&mut self, pa: u64, old: u64, new: u64) -> Result<(), u64> {
        self.update(pa, old, new)
    }
}

impl GuestTables for Memory<'_> {
    fn translate(&mut self, ipa: u64, access: Access) -> Result<u64, Stage2Fault> {
        let leaf = self.walk(ipa, access)?;
        Ok(stage2::output(leaf.raw, leaf.level, ipa))
    }

    fn stage1(&mut self, pa: u64) -> u64 {
        self.read(pa)
    }

    fn update_stage1(&mut self, pa: u64, old: u64, new: u64) -> Result<(), u64> {
        self.update(pa, old, new)
    }
}
