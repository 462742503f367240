// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A GICv3 for the guest, as the selftests' `dirty_log_perf_test` has one.
//!
//! The guest takes no interrupts. But without an interrupt controller in the kernel, KVM does more work at each exit: a
//! write fault takes 3,866 instructions at EL2 then, and 3,343 with one (6.12, `cargo xtask peers kvm`).

use kvm_bindings::{
    KVM_DEV_ARM_VGIC_CTRL_INIT, KVM_DEV_ARM_VGIC_GRP_ADDR, KVM_DEV_ARM_VGIC_GRP_CTRL, KVM_DEV_ARM_VGIC_GRP_NR_IRQS,
    KVM_VGIC_V3_ADDR_TYPE_DIST, KVM_VGIC_V3_ADDR_TYPE_REDIST_REGION, kvm_create_device, kvm_device_attr,
    kvm_device_type_KVM_DEV_TYPE_ARM_VGIC_V3,
};
use kvm_ioctls::VmFd;
use rustix::io::Errno;

use crate::error::KvmError;

/// The guest-physical address of the distributor.
static DISTRIBUTOR: u64 = 0x0800_0000;
/// The guest-physical address of the first redistributor. Each has 128 KiB, so 512 of them end below the guest's exits.
const REDISTRIBUTORS: u64 = 0x080a_0000;
/// The least number of interrupts that KVM accepts; a multiple of 32.
static INTERRUPTS: u32 = 64;

/// Creates a GIC for `vcpus` vCPUs, all of which must exist. A host without a GICv3 cannot provide one; then the guest
/// runs without a GIC.
pub(super) fn create(vm: &VmFd, vcpus: u32) -> Result<(), KvmError> {
    let mut device = kvm_create_device { type_: kvm_device_type_KVM_DEV_TYPE_ARM_VGIC_V3, fd: 0, flags: 0 };
    let gic = match vm.create_device(&mut device) {
        Err(error) if error.errno() == Errno::NODEV.raw_os_error() => return Ok(()),
        created => created.map_err(KvmError::refused("KVM_CREATE_DEVICE(KVM_DEV_TYPE_ARM_VGIC_V3)"))?,
    };
    let set = |group, attr: u64, value: *const u8| {
        gic.set_device_attr(&kvm_device_attr { group, attr, addr: value as u64, flags: 0 })
            .map_err(KvmError::refused("KVM_SET_DEVICE_ATTR of the GIC"))
    };
    // The number of redistributors, their address, no flags, region 0.
    let redistributors = u64::from(vcpus) << 52 | REDISTRIBUTORS;
    set(KVM_DEV_ARM_VGIC_GRP_NR_IRQS, 0, (&raw const INTERRUPTS).cast())?;
    set(KVM_DEV_ARM_VGIC_GRP_ADDR, KVM_VGIC_V3_ADDR_TYPE_DIST.into(), (&raw const DISTRIBUTOR).cast())?;
    set(KVM_DEV_ARM_VGIC_GRP_ADDR, KVM_VGIC_V3_ADDR_TYPE_REDIST_REGION.into(), (&raw const redistributors).cast())?;
    set(KVM_DEV_ARM_VGIC_GRP_CTRL, KVM_DEV_ARM_VGIC_CTRL_INIT.into(), std::ptr::null())
}
