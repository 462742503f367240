// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine's GICv3, which EL2 owns: driven by the crate `arm-gic`, except where that has no call.
//!
//! The CPU interface has EOImode 1: to end an interrupt is to drop its priority, and to deactivate it is a step of its
//! own. EL2 does both for its own interrupts. For a timer that a guest programs by itself EL2 only drops the priority.
//! The interrupt stays active, and so silent, until the guest ends the virtual one, which a list register links to it.
//!
//! Invariant: nothing but this module reaches the registers of the distributor and the redistributors.

use core::ptr::NonNull;

use arm_gic::gicv3::registers::{Gicd, GicrSgi};
use arm_gic::gicv3::{GicCpuInterface, GicDistributor, GicError, GicRedistributor};
use arm_gic::{IntId, InterruptGroup, Trigger, UniqueMmioPointer};
use safe_mmio::field;
use thiserror::Error;

use super::sources::{KICK, Sources};
use crate::board::{Board, Shared};
use crate::sysreg::{dsb_ishst, isb};
use crate::{host_devices, write_sysreg};

/// Why the GIC cannot be used.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Unusable {
    /// No redistributor has the CPU's affinity.
    #[error("the GIC has no redistributor for the CPU with affinity {0:#x}")]
    NoRedistributor(u64),
    /// The driver refused an interrupt.
    #[error("the GIC's driver: {0}")]
    Driver(GicError),
}

impl From<GicError> for Unusable {
    fn from(error: GicError) -> Self {
        Self::Driver(error)
    }
}

/// Sets the distributor up: all shared interrupts are disabled, except those of the UART, of the control channel's
/// port and of the machine's disks and cards, which go to the boot CPU.
///
/// # Safety
///
/// Called once, by the boot CPU, before any other CPU calls [`set_up_this_cpu`]. `board` must describe this machine.
///
/// # Errors
///
/// [`Unusable`].
pub unsafe fn set_up(board: &Board, sources: &Sources) -> Result<(), Unusable> {
    let registers = core::ptr::with_exposed_provenance_mut::<Gicd>(board.gicd.start as usize);
    let Some(registers) = NonNull::new(registers) else { return Err(Unusable::NoRedistributor(0)) };
    // SAFETY: the device tree has a distributor there, which `el2_mmu` maps as Device memory, and by the module's
    // invariant nothing else uses it.
    let mut distributor = GicDistributor::new(unsafe { UniqueMmioPointer::new(registers) });
    distributor.enable_all_interrupts(false);
    distributor.configure_default_settings();
    let uart = Shared { intid: sources.uart, is_edge: false };
    for Shared { intid, is_edge } in [uart].into_iter().chain(sources.port).chain(host_devices::interrupts()) {
        let Some(shared) = intid.checked_sub(32) else { continue };
        distributor.set_trigger(IntId::spi(shared), if is_edge { Trigger::Edge } else { Trigger::Level })?;
        distributor.set_routing(IntId::spi(shared), board.cpus.first().copied())?;
        distributor.enable_interrupt(IntId::spi(shared), true)?;
    }
    Ok(())
}

/// Sets up what belongs to this CPU, whose affinity is `mpidr`: its redistributor and its CPU interface. No interrupt of
/// an earlier vCPU stays active or pending.
///
/// # Safety
///
/// `board` must describe this machine, and `mpidr` this CPU. [`set_up`] must have returned.
///
/// # Errors
///
/// [`Unusable`].
pub unsafe fn set_up_this_cpu(board: &Board, mpidr: u64, sources: &Sources) -> Result<OwnRedistributor, Unusable> {
    let frames = redistributor(board, mpidr).ok_or(Unusable::NoRedistributor(mpidr))?;
    // SAFETY: `redistributor` found this CPU's frames there, mapped as Device memory; only this CPU uses them.
    let mut registers = unsafe { UniqueMmioPointer::new(frames) };
    let mut redistributor = GicRedistributor::new(registers.reborrow());
    // The only error: it is awake already.
    let _ = redistributor.mark_core_awake();
    redistributor.configure_default_settings();
    let mut private_registers = field!(registers, sgi);
    for mut register in field!(private_registers, icactiver).iter().take(1) {
        register.write(u32::MAX);
    }
    for mut register in field!(private_registers, icpendr).iter().take(1) {
        register.write(u32::MAX);
    }
    let mut redistributor = GicRedistributor::new(registers.reborrow());
    redistributor.enable_interrupt(IntId::sgi(KICK), true)?;
    for intid in sources.private() {
        redistributor.enable_interrupt(IntId::ppi(intid.saturating_sub(16)), true)?;
    }
    GicCpuInterface::set_priority_mask(0xff);
    // SAFETY: how EL2 ends its interrupts concerns EL2 alone.
    unsafe { write_sysreg!(ICC_CTLR_EL1, EOI_MODE) };
    GicCpuInterface::enable_group1(true);
    isb();
    Ok(OwnRedistributor(frames))
}

/// The redistributor of the CPU that set it up.
pub struct OwnRedistributor(NonNull<GicrSgi>);

impl OwnRedistributor {
    /// Makes private interrupts of this CPU active, a bit for each INTID. So they stay silent until the guest ends the
    /// virtual ones that are linked to them.
    pub fn activate(&mut self, mask: u32) {
        // SAFETY: as in `set_up_this_cpu`; the value is neither `Send` nor `Sync`, so this is the same CPU.
        let mut registers = unsafe { UniqueMmioPointer::new(self.0) };
        let mut private = field!(registers, sgi);
        for mut register in field!(private, isactiver).iter().take(1) {
            register.write(mask);
        }
    }
}

/// Takes the pending interrupt of the highest priority; `None` if there is none any more.
#[inline(always)]
pub fn acknowledge() -> Option<u32> {
    GicCpuInterface::get_and_acknowledge_interrupt(InterruptGroup::Group1).map(u32::from)
}

/// Drops the priority of the interrupt that was acknowledged last. It stays active.
#[inline(always)]
pub fn drop_priority(intid: u32) {
    // SAFETY: the interrupt is active, and ends here; the other steps are the guest's or `deactivate`.
    unsafe { write_sysreg!(ICC_EOIR1_EL1, intid.into()) };
}

/// Deactivates an interrupt whose priority was dropped.
#[inline(always)]
pub fn deactivate(intid: u32) {
    // SAFETY: it concerns only whether this interrupt is taken again.
    unsafe { write_sysreg!(ICC_DIR_EL1, intid.into()) };
}

/// Makes the CPU with this affinity leave its guest, or not enter it. All earlier stores of this CPU are visible there
/// before.
pub fn kick(mpidr: u64) {
    dsb_ishst();
    let affinity = |level: u64| mpidr >> [0, 8, 16, 32][level as usize & 3] & 0xff;
    // `GicCpuInterface::send_sgi` has no range selector, which is the upper half of Aff0.
    let target = affinity(3) << 48 | (affinity(0) >> 4) << 44 | affinity(2) << 32 | affinity(1) << 16;
    // SAFETY: the target takes the interrupt at EL2, which expects it.
    unsafe { write_sysreg!(ICC_SGI1R_EL1, target | u64::from(KICK) << 24 | 1 << (affinity(0) & 15)) };
    isb();
}

/// ICC_CTLR_EL1: the end of an interrupt only drops its priority.
const EOI_MODE: u64 = 1 << 1;

/// The frames of the redistributor with this affinity.
fn redistributor(board: &Board, mpidr: u64) -> Option<NonNull<GicrSgi>> {
    for region in &board.gicr {
        let mut start = region.start;
        while start + size_of::<GicrSgi>() as u64 <= region.end {
            let frames = NonNull::new(core::ptr::with_exposed_provenance_mut::<GicrSgi>(start as usize))?;
            // SAFETY: the device tree has redistributors in the region, which `el2_mmu` maps as Device memory. This
            // view of one, which may be another CPU's, only reads its type, which never changes.
            let typer = GicRedistributor::new(unsafe { UniqueMmioPointer::new(frames) }).typer();
            if typer.core_mpidr() == mpidr {
                return Some(frames);
            }
            if typer.last_redistributor() {
                break;
            }
            // One with virtual LPIs has two more frames.
            start += (size_of::<GicrSgi>() as u64) << u32::from(typer.virtual_lpis_supported());
        }
    }
    None
}
