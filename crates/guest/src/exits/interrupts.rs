// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interrupts of the events: SGIs, and the virtual timer's.
//!
//! Priorities are open and both vCPUs' private interrupts enabled; PSTATE.I stays set. Invariant: an interrupt that
//! [`take`] returns has been ended.

use core::arch::asm;
use core::ptr::{NonNull, with_exposed_provenance_mut};

use arm_gic::gicv3::registers::{Gicd, GicrSgi};
use arm_gic::gicv3::{GicCpuInterface, GicError, GicV3, SgiTarget, SgiTargetGroup};
use arm_gic::{IntId, InterruptGroup, Trigger, UniqueMmioPointer};
use twofold_abi::virt::{GICD_BASE, GICR_BASE};

use super::Failure;

/// The SGI that events send.
pub const SGI: IntId = IntId::sgi(3);
/// SGIs that a vCPU gets together: as many as most CPUs have list registers.
pub const MORE_SGIS: [IntId; 4] = [IntId::sgi(4), IntId::sgi(5), IntId::sgi(6), IntId::sgi(7)];
/// The virtual timer's interrupt: PPI 11, as on QEMU's `virt`.
pub const TIMER: IntId = IntId::ppi(11);

/// The machine's interrupt controller.
pub struct Interrupts(GicV3<'static>);

impl Interrupts {
    /// Turns the controller on, for the first `vcpus` vCPUs, and this vCPU's interface.
    pub fn start(vcpus: usize) -> Result<Self, Failure> {
        let distributor = pointer::<Gicd>(GICD_BASE);
        // SAFETY: the distributor is mapped as device memory, and nothing else in this program uses it.
        let distributor = unsafe { UniqueMmioPointer::new(distributor) };
        // SAFETY: as above, for the redistributors, which are one after the other.
        let gic = unsafe { GicV3::new(distributor, pointer::<GicrSgi>(GICR_BASE), vcpus) };
        let mut gic = gic.map_err(Failure::Interrupts)?;
        gic.setup(0);
        for vcpu in 0..vcpus {
            for interrupt in [SGI, TIMER].into_iter().chain(MORE_SGIS) {
                gic.set_interrupt_priority(interrupt, Some(vcpu), 0x80).map_err(Failure::Interrupts)?;
                gic.enable_interrupt(interrupt, Some(vcpu), true).map_err(Failure::Interrupts)?;
            }
        }
        GicCpuInterface::set_priority_mask(0xff);
        Ok(Self(gic))
    }

    /// Enables one more private interrupt, of the same priority, which is edge-triggered.
    pub fn add_edge(&mut self, interrupt: IntId, vcpus: usize) -> Result<(), Failure> {
        for vcpu in 0..vcpus {
            self.0.set_trigger(interrupt, Some(vcpu), Trigger::Edge).map_err(Failure::Interrupts)?;
            self.0.set_interrupt_priority(interrupt, Some(vcpu), 0x80).map_err(Failure::Interrupts)?;
            self.0.enable_interrupt(interrupt, Some(vcpu), true).map_err(Failure::Interrupts)?;
        }
        Ok(())
    }

    /// Wakes the redistributor of another vCPU. Under KVM it is always awake.
    pub fn wake(&mut self, vcpu: usize) -> Result<(), Failure> {
        match self.0.redistributor_mark_core_awake(vcpu) {
            Ok(()) | Err(GicError::AlreadyAwake) => Ok(()),
            Err(error) => Err(Failure::Interrupts(error)),
        }
    }
}

/// Opens the interface of the calling vCPU.
pub fn open() {
    GicCpuInterface::enable_system_register_el1();
    GicCpuInterface::set_priority_mask(0xff);
    GicCpuInterface::enable_group1(true);
}

/// Sends an SGI to a vCPU: its affinity level 0.
#[inline(always)]
pub fn send(sgi: IntId, vcpu: u8) {
    // A fixed target list: the call has no error then.
    let _ = GicCpuInterface::send_sgi(
        sgi,
        SgiTarget::List { affinity3: 0, affinity2: 0, affinity1: 0, target_list: 1 << vcpu },
        SgiTargetGroup::CurrentGroup1,
    );
}

/// Polls until an interrupt is pending, takes it and ends it.
#[inline(always)]
pub fn take(wanted: IntId) -> Result<(), Failure> {
    while !is_pending() {}
    let found = GicCpuInterface::get_and_acknowledge_interrupt(InterruptGroup::Group1);
    if found != Some(wanted) {
        return Err(Failure::WrongInterrupt {
            found: found.map_or(1023, IntId::raw_value),
            wanted: wanted.raw_value(),
        });
    }
    if wanted == TIMER {
        stop_timer();
    }
    GicCpuInterface::end_interrupt(wanted, InterruptGroup::Group1);
    Ok(())
}

/// Polls until these are pending, in any order, takes them and ends them.
pub fn take_all(wanted: &[IntId]) -> Result<(), Failure> {
    for _ in wanted {
        while !is_pending() {}
        let found = GicCpuInterface::get_and_acknowledge_interrupt(InterruptGroup::Group1);
        let Some(interrupt) = found.filter(|found| wanted.contains(found)) else {
            let (found, wanted) = (found.map_or(1023, IntId::raw_value), wanted[0].raw_value());
            return Err(Failure::WrongInterrupt { found, wanted });
        };
        GicCpuInterface::end_interrupt(interrupt, InterruptGroup::Group1);
    }
    Ok(())
}

/// Sets the virtual timer to this value of the counter.
#[inline(always)]
pub fn set_timer(at: u64) {
    // SAFETY: the timer is the guest's own, and its interrupt is masked by PSTATE.
    unsafe {
        asm!("msr cntv_cval_el0, {}", "msr cntv_ctl_el0, {}", "isb", in(reg) at, in(reg) 1u64,
            options(nostack, preserves_flags));
    }
}

/// What the virtual timer was set to last.
#[inline(always)]
pub fn timer() -> u64 {
    let at: u64;
    // SAFETY: reading the register changes nothing.
    unsafe { asm!("mrs {}, cntv_cval_el0", out(reg) at, options(nomem, nostack, preserves_flags)) };
    at
}

/// Whether an IRQ is pending for this vCPU (ISR_EL1.I).
#[inline(always)]
pub fn is_pending() -> bool {
    let pending: u64;
    // SAFETY: reading the register changes nothing.
    unsafe { asm!("isb", "mrs {}, isr_el1", out(reg) pending, options(nostack, preserves_flags)) };
    pending & 1 << 7 != 0
}

/// Turns the virtual timer off.
#[inline(always)]
pub fn stop_timer() {
    // SAFETY: as in `set_timer`.
    unsafe { asm!("msr cntv_ctl_el0, xzr", "isb", options(nostack, preserves_flags)) };
}

fn pointer<T>(address: u64) -> NonNull<T> {
    NonNull::new(with_exposed_provenance_mut(address as usize)).expect("no device is at address 0")
}
