// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine of a bare-metal image: memory, device tree, vCPUs, interrupt controller.
//!
//! Invariant: the device tree describes exactly what the machine has.

use std::sync::atomic::Ordering;

use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};
use kvm_bindings::{KVM_ARM_VCPU_POWER_OFF, KVM_ARM_VCPU_PSCI_0_2, kvm_userspace_memory_region, kvm_vcpu_init};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};

use super::arm64::{EL1H_MASKED, PC, PSTATE, create, set, x};
use super::gic;
use crate::error::KvmError;
use crate::mapping::Mapping;
use crate::options::Backing;
use crate::system::System;

/// A machine that is ready to run.
pub(crate) struct BareMachine {
    /// Its RAM, which must outlive its vCPUs.
    pub(crate) memory: BareMemory,
    /// Its vCPUs, of which the first is on.
    pub(crate) vcpus: Vec<VcpuFd>,
}

/// What a machine's vCPUs use.
pub(crate) struct BareMemory {
    _vm: VmFd,
    _ram: Mapping,
}

/// Start of RAM.
const RAM: u64 = 0x4000_0000;
const RAM_SIZE: u64 = 64 << 20;
/// Where the image is, in RAM: it runs at any multiple of 4 KiB.
const IMAGE: u64 = 2 << 20;
/// Where the device tree is, in RAM.
const TREE: u64 = 32 << 20;
/// Bits of a guest-physical address.
const ADDRESS_BITS: u32 = 40;

impl BareMachine {
    /// Makes the machine, with the image and its command line in memory.
    pub(crate) fn new(kvm: &Kvm, image: &[u8], command_line: &str, vcpus: u32) -> Result<Self, KvmError> {
        let room = (TREE - IMAGE) as usize;
        if image.len() > room || image.get(56..60) != Some(b"ARM\x64") {
            return Err(KvmError::Options(format!(
                "the image is not an arm64 Image of at most {} MiB: build it with `cargo xtask build`",
                room >> 20
            )));
        }
        let vm = create(kvm, ADDRESS_BITS)?;
        let ram = Mapping::new(RAM_SIZE, 2 << 20, Backing::AnonymousThp, &System::this())?;
        let slot = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: RAM,
            memory_size: RAM_SIZE,
            userspace_addr: ram.address(),
        };
        // SAFETY: the mapping is the machine's alone, and `BareMemory` keeps it as long as its vCPUs run.
        unsafe { vm.set_user_memory_region(slot) }
            .map_err(KvmError::refused("KVM_SET_USER_MEMORY_REGION of the guest's RAM"))?;
        copy(&ram, IMAGE, image);
        copy(&ram, TREE, &tree(command_line, vcpus).to_dtb());
        let vcpus: Vec<_> = (0..vcpus).map(|number| vcpu(&vm, number)).collect::<Result<_, _>>()?;
        gic::create(&vm, vcpus.len() as u32)?;
        if let Some(first) = vcpus.first() {
            let registers = [(x(0), RAM + TREE), (PC, RAM + IMAGE), (PSTATE, EL1H_MASKED)];
            registers.into_iter().try_for_each(|(register, value)| set(first, register, value))?;
        }
        Ok(Self { memory: BareMemory { _vm: vm, _ram: ram }, vcpus })
    }
}

fn vcpu(vm: &VmFd, number: u32) -> Result<VcpuFd, KvmError> {
    let vcpu = vm.create_vcpu(number.into()).map_err(KvmError::refused("KVM_CREATE_VCPU"))?;
    let mut target = kvm_vcpu_init::default();
    vm.get_preferred_target(&mut target).map_err(KvmError::refused("KVM_ARM_PREFERRED_TARGET"))?;
    target.features[0] |= 1 << KVM_ARM_VCPU_PSCI_0_2;
    if number != 0 {
        target.features[0] |= 1 << KVM_ARM_VCPU_POWER_OFF;
    }
    vcpu.vcpu_init(&target).map_err(KvmError::refused("KVM_ARM_VCPU_INIT"))?;
    Ok(vcpu)
}

/// Copies bytes to RAM, which is zero there.
fn copy(ram: &Mapping, to: u64, bytes: &[u8]) {
    for (offset, chunk) in (to..).step_by(8).zip(bytes.chunks(8)) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        if let Some(place) = ram.word(offset) {
            place.store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
    }
}

/// The device tree: what the bare-metal guest looks for.
fn tree(command_line: &str, vcpus: u32) -> DeviceTree {
    let mut tree = DeviceTree::new();
    let root = &mut tree.root;
    set_property(root, "#address-cells", 2u32);
    set_property(root, "#size-cells", 2u32);
    let mut chosen = DeviceTreeNode::new_unchecked("chosen");
    set_property(&mut chosen, "bootargs", command_line);
    let mut memory = DeviceTreeNode::new_unchecked(format!("memory@{RAM:x}"));
    set_property(&mut memory, "device_type", "memory");
    set_property(&mut memory, "reg", [RAM.to_be_bytes(), RAM_SIZE.to_be_bytes()].concat());
    let mut cpus = DeviceTreeNode::new_unchecked("cpus");
    set_property(&mut cpus, "#address-cells", 1u32);
    set_property(&mut cpus, "#size-cells", 0u32);
    for number in 0..vcpus {
        let mut cpu = DeviceTreeNode::new_unchecked(format!("cpu@{number:x}"));
        set_property(&mut cpu, "device_type", "cpu");
        set_property(&mut cpu, "compatible", "arm,armv8");
        set_property(&mut cpu, "reg", number);
        set_property(&mut cpu, "enable-method", "psci");
        cpus.add_child(cpu);
    }
    let mut clock = DeviceTreeNode::new_unchecked("pl031@9010000");
    set_property(&mut clock, "compatible", &["arm,pl031", "arm,primecell"][..]);
    [chosen, memory, cpus, clock].into_iter().for_each(|node| root.add_child(node));
    tree
}

fn set_property<T: dtoolkit::ToPropertyValue>(node: &mut DeviceTreeNode, name: &str, value: T) {
    node.add_property(DeviceTreeProperty::new_unchecked(name, value));
}
