// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's device tree: the machine of [`twofold_abi::virt`], with the guest's own RAM, vCPUs and command line.
//!
//! The devices are emulated, so their interrupts are those of QEMU's `virt`. The affinities of the vCPUs are those of
//! the CPUs that they run on.

use alloc::format;
use alloc::vec::Vec;

use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};
use twofold_abi::{async_fault, virt};
use twofold_memory::async_fault::Mode;

use crate::config::Config;
use crate::load::Layout;

const GIC_PHANDLE: u32 = 1;
const CLOCK_PHANDLE: u32 = 2;

/// The guest's device tree as a blob. `affinities` are those of its vCPUs, as in MPIDR_EL1; more are ignored.
pub fn build(config: &Config<'_>, layout: &Layout, affinities: &[u64]) -> Vec<u8> {
    let mut tree = DeviceTree::new();
    let root = &mut tree.root;
    set(root, "compatible", "linux,dummy-virt");
    set(root, "model", "Twofold");
    set(root, "#address-cells", 2u32);
    set(root, "#size-cells", 2u32);
    set(root, "interrupt-parent", GIC_PHANDLE);
    root.add_child(chosen(config, layout));
    root.add_child(memory(config));
    root.add_child(cpus(config, affinities));
    root.add_child(psci());
    root.add_child(gic(config));
    root.add_child(timer());
    if config.swap.is_some_and(|swap| swap.mode == Mode::Pv) {
        root.add_child(async_page_fault());
    }
    root.add_child(clock());
    root.add_child(uart());
    root.add_child(rtc());
    // Linux names disks and cards in the order in which it finds them, which is that of the nodes.
    for number in 0..config.virtio_devices() {
        root.add_child(virtio(number as u32));
    }
    tree.to_dtb()
}

/// The affinity of a vCPU, as on QEMU's `virt`: 16 in a cluster, which is as many as an SGI reaches at once.
#[must_use]
pub fn affinity(vcpu: u64) -> u64 {
    let (cluster, core) = (vcpu / 16, vcpu % 16);
    cluster << 8 | core
}

fn chosen(config: &Config<'_>, layout: &Layout) -> DeviceTreeNode {
    let mut node = DeviceTreeNode::new_unchecked("chosen");
    set(&mut node, "bootargs", config.command_line);
    set(&mut node, "stdout-path", &*format!("/pl011@{:x}", virt::UART_BASE));
    if !config.initrd.is_empty() {
        set(&mut node, "linux,initrd-start", layout.initrd.raw());
        set(&mut node, "linux,initrd-end", layout.initrd.raw() + config.initrd.len() as u64);
    }
    node
}

fn memory(config: &Config<'_>) -> DeviceTreeNode {
    let mut node = DeviceTreeNode::new_unchecked(format!("memory@{:x}", virt::RAM_BASE));
    set(&mut node, "device_type", "memory");
    set(&mut node, "reg", reg(&[(virt::RAM_BASE, config.memory)]));
    node
}

fn cpus(config: &Config<'_>, affinities: &[u64]) -> DeviceTreeNode {
    let mut node = DeviceTreeNode::new_unchecked("cpus");
    // One cell cannot hold Aff3.
    set(&mut node, "#address-cells", 2u32);
    set(&mut node, "#size-cells", 0u32);
    for mpidr in affinities.iter().take(config.cpus as usize) {
        let mut cpu = DeviceTreeNode::new_unchecked(format!("cpu@{mpidr:x}"));
        set(&mut cpu, "device_type", "cpu");
        set(&mut cpu, "compatible", "arm,armv8");
        set(&mut cpu, "reg", *mpidr);
        set(&mut cpu, "enable-method", "psci");
        node.add_child(cpu);
    }
    node
}

fn psci() -> DeviceTreeNode {
    let mut node = DeviceTreeNode::new_unchecked("psci");
    set(&mut node, "compatible", &["arm,psci-1.0", "arm,psci-0.2"][..]);
    set(&mut node, "method", "hvc");
    node
}

fn gic(config: &Config<'_>) -> DeviceTreeNode {
    let mut node = DeviceTreeNode::new_unchecked(format!("intc@{:x}", virt::GICD_BASE));
    set(&mut node, "compatible", "arm,gic-v3");
    set(&mut node, "phandle", GIC_PHANDLE);
    set(&mut node, "#interrupt-cells", 3u32);
    set(&mut node, "interrupt-controller", &[0u8; 0][..]);
    let redistributors = u64::from(config.cpus) * virt::GICR_SIZE;
    set(&mut node, "reg", reg(&[(virt::GICD_BASE, virt::GICD_SIZE), (virt::GICR_BASE, redistributors)]));
    node
}

fn timer() -> DeviceTreeNode {
    let mut node = DeviceTreeNode::new_unchecked("timer");
    set(&mut node, "compatible", "arm,armv8-timer");
    // The secure timer's comes first, and the hypervisor's last; neither exists in the guest, but both have a place.
    let timers = [29, virt::PHYSICAL_TIMER_INTERRUPT, virt::VIRTUAL_TIMER_INTERRUPT, 26];
    set(&mut node, "interrupts", &timers.map(interrupt).concat()[..]);
    set(&mut node, "always-on", &[0u8; 0][..]);
    node
}

/// What `docs/async-page-fault.md` says of discovery.
fn async_page_fault() -> DeviceTreeNode {
    const EDGE_RISING: u32 = 1;
    let mut node = DeviceTreeNode::new_unchecked("async-page-fault");
    set(&mut node, "compatible", async_fault::COMPATIBLE);
    set(&mut node, "method", "hvc");
    let [kind, number, _] = interrupt(async_fault::INTID);
    set(&mut node, "interrupts", &[kind, number, EDGE_RISING][..]);
    node
}

fn clock() -> DeviceTreeNode {
    let mut node = DeviceTreeNode::new_unchecked("apb-pclk");
    set(&mut node, "compatible", "fixed-clock");
    set(&mut node, "phandle", CLOCK_PHANDLE);
    set(&mut node, "#clock-cells", 0u32);
    // The value of QEMU's virt; the PL011's divisors have no effect there.
    set(&mut node, "clock-frequency", 24_000_000u32);
    node
}

fn uart() -> DeviceTreeNode {
    let mut node = DeviceTreeNode::new_unchecked(format!("pl011@{:x}", virt::UART_BASE));
    set(&mut node, "compatible", &["arm,pl011", "arm,primecell"][..]);
    set(&mut node, "reg", reg(&[(virt::UART_BASE, virt::UART_SIZE)]));
    set(&mut node, "interrupts", &interrupt(virt::UART_INTERRUPT)[..]);
    set(&mut node, "clocks", [CLOCK_PHANDLE, CLOCK_PHANDLE]);
    set(&mut node, "clock-names", &["uartclk", "apb_pclk"][..]);
    node
}

fn rtc() -> DeviceTreeNode {
    let mut node = DeviceTreeNode::new_unchecked(format!("pl031@{:x}", virt::RTC_BASE));
    set(&mut node, "compatible", &["arm,pl031", "arm,primecell"][..]);
    set(&mut node, "reg", reg(&[(virt::RTC_BASE, virt::RTC_SIZE)]));
    set(&mut node, "interrupts", &interrupt(virt::RTC_INTERRUPT)[..]);
    set(&mut node, "clocks", CLOCK_PHANDLE);
    set(&mut node, "clock-names", "apb_pclk");
    node
}

/// A transport. Its interrupt is an edge, as on QEMU's `virt`. The devices access memory as the CPUs do.
fn virtio(number: u32) -> DeviceTreeNode {
    const EDGE_RISING: u32 = 1;
    let base = virt::VIRTIO_BASE + u64::from(number) * virt::VIRTIO_SIZE;
    let mut node = DeviceTreeNode::new_unchecked(format!("virtio_mmio@{base:x}"));
    let [kind, shared, _] = interrupt(virt::VIRTIO_INTERRUPT + number);
    set(&mut node, "compatible", "virtio,mmio");
    set(&mut node, "reg", reg(&[(base, virt::VIRTIO_SIZE)]));
    set(&mut node, "interrupts", &[kind, shared, EDGE_RISING][..]);
    set(&mut node, "dma-coherent", &[0u8; 0][..]);
    node
}

/// An interrupt in the GIC's three cells: shared or private, its number, and that it is a level.
fn interrupt(intid: u32) -> [u32; 3] {
    const LEVEL_HIGH: u32 = 4;
    match intid.checked_sub(32) {
        Some(shared) => [0, shared, LEVEL_HIGH],
        None => [1, intid - 16, LEVEL_HIGH],
    }
}

fn set<T: dtoolkit::ToPropertyValue>(node: &mut DeviceTreeNode, name: &str, value: T) {
    node.add_property(DeviceTreeProperty::new_unchecked(name, value));
}

/// The property `reg`, with two cells for each number.
fn reg(ranges: &[(u64, u64)]) -> Vec<u8> {
    ranges.iter().flat_map(|(start, size)| [start.to_be_bytes(), size.to_be_bytes()]).flatten().collect()
}
