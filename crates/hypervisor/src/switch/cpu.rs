// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loading a vCPU on a CPU, and putting it away.
//!
//! A [`Switch`] is a CPU's side. [`Switch::load`] returns a [`Running`], which borrows the CPU and the vCPU's state until
//! it is put away; a drop puts it away too. So no vCPU is on two CPUs, none is forgotten on one, and a state cannot be
//! read while the hardware holds newer values.
//!
//! # Load
//!
//! - L1. If another guest was loaded here last, VTCR_EL2, VTTBR_EL2 and HCR_EL2 become the guest's. ISB: the next step names
//!   the VMID.
//! - L2. If another vCPU of the guest ran here last, the stage-1 and combined TLB entries of the VMID on this CPU are
//!   invalidated: the two share the VMID, and may use one ASID for different tables.
//! - L3. VMPIDR_EL2, CNTVOFF_EL2 and CNTPOFF_EL2; the registers of EL1 and EL0, with SCTLR_EL1 after the other registers of
//!   stage 1; the timers' compare values; ICC_SRE_EL1. ISB.
//! - L4. The timers' controls: only now can a timer fire, with its own compare value and offset. The virtual interface is
//!   the next step of the caller's (`GuestGic::load`).
//! - L5. The debug registers that have an effect (see [`debug`]). Nothing can be stepped at EL2.
//! - L6. CPTR_EL2.TFP traps FP and SIMD until their first use. The ERET of `world::enter` synchronises the rest.
//!
//! # Put
//!
//! - P1. The timers' controls are saved, and both timers turned off: no interrupt of this vCPU reaches the next one.
//! - P2. The other registers are saved. The virtual interface was unloaded before.
//! - P3. If the vCPU has used FP or SIMD since it was loaded, those registers are saved.
//! - P4. ISB: from here on the timers are off.
//!
//! # Why this order suffices
//!
//! EL2 runs with HCR_EL2.E2H clear, so during L1 to L6 the EL1&0 regime is out of context: no walk by it starts at EL2
//! (Arm ARM DDI 0487K.a, D8.2.2), and so no TLB entry mixes one vCPU's registers with another's tables. A CPU with an
//! erratum there (an AT instruction or a speculative walk that uses the registers in mid-change) needs more: this code
//! does not serve such CPUs. L2 needs VTTBR_EL2 only, and no entry can be made between L2 and the ERET.
//!
//! A vCPU that moves from CPU to CPU needs its local maintenance everywhere: HCR_EL2.FB broadcasts what the guest meant
//! for one CPU, and HCR_EL2.BSU makes its barriers wait for it. With them, an entry of this vCPU that stayed behind on
//! another CPU is never stale, and L2 may ask only which vCPU ran here last.

use core::sync::atomic::{AtomicU32, Ordering};

use twofold_abi::virt;

use super::has::Has;
use super::state::State;
use super::table::{floating_point, system, timer_controls, timers};
use super::{debug, simd};
use crate::registers::access::Access;
use crate::registers::{Cpu, el2};
use crate::sysreg::isb;
use crate::{read_sysreg, write_sysreg};

/// A CPU, as far as it runs vCPUs in turn.
pub struct Switch {
    /// Its place among the CPUs.
    cpu: usize,
    has: Has,
    /// VTTBR_EL2 of the guest that was loaded last; 0: none was.
    vttbr: u64,
    /// CPTR_EL2 with FP and SIMD trapped.
    cptr: u64,
    /// The bits of HCR_EL2 that depend on the CPU.
    traps: u64,
    /// Whether the physical counter has an offset.
    has_physical_offset: bool,
}

/// What a guest and a vCPU have at EL2.
#[derive(Clone, Copy)]
pub struct Seat<'a> {
    /// HCR_EL2. [`MOVES`] and the bits that depend on the CPU are added.
    pub hcr: u64,
    /// VTCR_EL2.
    pub vtcr: u64,
    /// VTTBR_EL2.
    pub vttbr: u64,
    /// VMPIDR_EL2: the vCPU's affinity.
    pub vmpidr: u64,
    /// How far the guest's counters are behind the machine's: CNTVOFF_EL2, and CNTPOFF_EL2 where the CPU has it.
    pub counter_offset: u64,
    /// The vCPU's number in its guest.
    pub vcpu: u32,
    /// The guest's.
    pub last: &'a LastVcpu,
}

/// The vCPU of a guest that ran last on each CPU.
pub struct LastVcpu([AtomicU32; virt::MAX_CPUS as usize]);

/// HCR_EL2.FB and BSU: what a guest invalidates on one CPU is invalidated on all, and its barriers wait for that. A vCPU
/// may have left entries on every CPU on which it ran.
pub const MOVES: u64 = 1 << 9 | 1 << 10;

impl Default for LastVcpu {
    fn default() -> Self {
        Self([const { AtomicU32::new(NONE) }; virt::MAX_CPUS as usize])
    }
}

impl LastVcpu {
    /// Notes that `vcpu` runs on this CPU; returns whether another one, or none, ran there last.
    #[inline(always)]
    fn is_other(&self, cpu: usize, vcpu: u32) -> bool {
        // Only this CPU uses its element, so no order is needed. `%` changes no number: it only spares a check
        // of the bounds.
        let last = &self.0[cpu % self.0.len()];
        let other = last.load(Ordering::Relaxed) != vcpu;
        if other {
            last.store(vcpu, Ordering::Relaxed);
        }
        other
    }
}

/// No vCPU.
const NONE: u32 = u32::MAX;
/// CPTR_EL2.TFP.
const TRAP_FP: u64 = 1 << 10;
/// MDCR_EL2.TDA, TDOSA and TDRA: every debug register traps.
const TRAP_DEBUG: u64 = 1 << 9 | 1 << 10 | 1 << 11;

impl Switch {
    /// Prepares CPU `cpu` for vCPUs that take turns: debug registers, FP and SIMD trap from now on.
    ///
    /// # Safety
    /// Must be called on that CPU, after [`registers::set_for`](crate::registers::set_for) and after
    /// `pmu::Counter::start`, once, and no guest may run on it but by this value.
    pub unsafe fn new(cpu: usize) -> Self {
        let has = Has::read();
        let cptr = read_sysreg!(CPTR_EL2) | TRAP_FP;
        let mdcr = read_sysreg!(MDCR_EL2) | TRAP_DEBUG;
        // SAFETY: the traps concern only guests. No guest runs now.
        unsafe {
            write_sysreg!(CPTR_EL2, cptr);
            write_sysreg!(MDCR_EL2, mdcr);
        }
        isb();
        let own = Cpu::read();
        let (traps, has_physical_offset) = (el2::traps(&own), own.has_physical_offset());
        Self { cpu, has, vttbr: 0, cptr, traps, has_physical_offset }
    }

    /// The registers that this CPU has.
    pub fn has(&self) -> Has {
        self.has
    }

    /// Loads a vCPU. `change` is called before another guest than the last one is loaded. `invalidate` must invalidate the
    /// stage-1 and combined TLB entries of the guest's VMID on this CPU
    /// ([`Stage2::invalidate_for_other_vcpu`](twofold_stage2::Stage2::invalidate_for_other_vcpu)).
    ///
    /// # Safety
    /// The seat must confine the guest to its own memory and devices, with a VMID of its own. All seats with its VTTBR_EL2
    /// must have its VTCR_EL2 and HCR_EL2, and whatever else changes VTTBR_EL2 on this CPU must restore it.
    #[inline(always)]
    pub unsafe fn load<'a>(
        &'a mut self,
        vcpu: &'a mut State,
        seat: &Seat<'_>,
        change: impl FnOnce(),
        invalidate: impl FnOnce(),
    ) -> Running<'a> {
        let has = self.has;
        // SAFETY: no guest runs on this CPU, because `Running` borrows the CPU; these are the registers of the one that
        // runs next. The caller is responsible for what confines it.
        unsafe {
            if self.vttbr != seat.vttbr {
                change();
                self.change_guest(seat.vttbr, seat.vtcr, seat.hcr);
            }
            if seat.last.is_other(self.cpu, seat.vcpu) {
                invalidate();
            }
            write_sysreg!(VMPIDR_EL2, seat.vmpidr);
            write_sysreg!(CNTVOFF_EL2, seat.counter_offset);
            if self.has_physical_offset {
                write_sysreg!(S3_4_C14_C0_6, seat.counter_offset); // CNTPOFF_EL2
            }
            system::restore(has, &vcpu.registers);
            timers::restore(has, &vcpu.registers);
            isb();
            timer_controls::restore(has, &vcpu.registers);
            debug::restore(has, &vcpu.registers);
        }
        Running { cpu: self, vcpu, has_fp: false }
    }

    /// L1.
    ///
    /// # Safety
    /// No guest may run on this CPU, and these must confine the one that runs there next.
    #[cold]
    #[inline(never)]
    unsafe fn change_guest(&mut self, vttbr: u64, vtcr: u64, hcr: u64) {
        self.vttbr = vttbr;
        // SAFETY: the caller's promise.
        unsafe {
            write_sysreg!(VTCR_EL2, vtcr);
            write_sysreg!(VTTBR_EL2, vttbr);
            write_sysreg!(HCR_EL2, hcr | self.traps | MOVES);
        }
        isb();
    }
}

/// A vCPU that is loaded on a CPU.
#[must_use = "a vCPU is put away when this is dropped"]
pub struct Running<'a> {
    cpu: &'a mut Switch,
    vcpu: &'a mut State,
    /// Whether the vCPU's FP and SIMD registers are in hardware.
    has_fp: bool,
}

impl Running<'_> {
    /// The general registers, PC and PSTATE, which `world::enter` switches.
    pub fn context(&mut self) -> &mut crate::context::Context {
        &mut self.vcpu.context
    }

    /// Answers the vCPU's first use of FP or SIMD since it was loaded, a trap of exception class 7: the registers become
    /// its own, and the guest repeats the instruction.
    pub fn first_use_of_fp(&mut self) {
        if self.has_fp {
            return;
        }
        self.has_fp = true;
        // SAFETY: the trap concerns only FP and SIMD, which EL2 does not use; the registers are this vCPU's.
        unsafe {
            write_sysreg!(CPTR_EL2, self.cpu.cptr & !TRAP_FP);
            isb();
            floating_point::restore(self.cpu.has, &self.vcpu.registers);
        }
        simd::restore(&self.vcpu.vectors);
    }

    /// Answers a trapped access to a debug register. Returns `false` if it is UNDEFINED; the caller skips the
    /// instruction otherwise.
    pub fn debug_register(&mut self, access: &Access) -> bool {
        // SAFETY: the vCPU is loaded here, and EL2 runs.
        unsafe { debug::answer(self.cpu.has, self.vcpu, access) }
    }

    /// Puts the vCPU away. Its state then holds all its registers.
    #[inline(always)]
    pub fn put(self) {}
}

impl Drop for Running<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let (has, vcpu) = (self.cpu.has, &mut *self.vcpu);
        timer_controls::save(has, &mut vcpu.registers);
        // SAFETY: the timers are this vCPU's, which does not run.
        unsafe {
            write_sysreg!(S3_3_C14_C3_1, 0); // CNTV_CTL_EL0
            write_sysreg!(S3_3_C14_C2_1, 0); // CNTP_CTL_EL0
        }
        system::save(has, &mut vcpu.registers);
        timers::save(has, &mut vcpu.registers);
        if self.has_fp {
            floating_point::save(has, &mut vcpu.registers);
            simd::save(&mut vcpu.vectors);
            // SAFETY: the trap concerns only guests.
            unsafe { write_sysreg!(CPTR_EL2, self.cpu.cptr) };
        }
        isb();
    }
}
