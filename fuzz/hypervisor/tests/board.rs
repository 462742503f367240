// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests edge cases of device trees: memory at the last address, deep buses, CPUs with equal and with large affinities.

use std::iter;

use dtoolkit::fdt::Fdt;
use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};
use twofold_abi::virt;
use twofold_fuzz_hypervisor::BOOT_CPU;
use twofold_fuzz_hypervisor::board::{Board, Error, Shared, Transport, intid};
use twofold_fuzz_hypervisor::handover::Handover;
use twofold_fuzz_hypervisor::power::Conduit;
use twofold_fuzz_hypervisor::sources::Sources;
use twofold_memory::Pages;
use twofold_stage2::Ipa;
use twofold_vmm::config::Config;
use twofold_vmm::device_tree;
use twofold_vmm::load::Layout;

const PAGE: u64 = 4096;
/// The start of the last page of the address space.
const LAST: u64 = 0xffff_ffff_ffff_f000;
const UART: &str = "pl011@9000000";

fn machine(cpus: &[u64]) -> Board {
    Board {
        ram: iter::once(virt::RAM_BASE..virt::RAM_BASE + (1 << 30)).collect(),
        reserved: Default::default(),
        no_map: Default::default(),
        gicd: 0..0,
        gicr: Default::default(),
        maintenance_interrupt: Default::default(),
        uart: 0..0,
        rtc: None,
        virtio: Default::default(),
        psci: Conduit::Smc,
        cpus: cpus.iter().copied().collect(),
        bundle: None,
        bootargs: "",
        timer_interrupts: [1, 13, 4].into_iter().collect(),
        uart_interrupts: [0, 1, 4].into_iter().collect(),
        dtb: 0..0,
    }
}

/// Returns the tree of a guest with these CPUs, which also serves as a machine's tree.
fn tree(cpus: &[u64]) -> DeviceTree {
    let config = Config {
        kernel: &[],
        initrd: &[],
        firmware: &[],
        devices: 0,
        swap: None,
        disks: &[],
        nets: &[],
        command_line: "",
        memory: 1 << 30,
        cpus: cpus.len() as u32,
        pages: Pages::Largest,
        flags: 0,
        ipa_bits: None,
        test: None,
        policies: 0,
    };
    let at = Ipa::new(virt::RAM_BASE);
    let layout = Layout { kernel: at, entry: at, initrd: at, device_tree: at };
    let blob = device_tree::build(&config, &layout, cpus);
    DeviceTree::from_fdt(&Fdt::new(&blob).unwrap())
}

fn read(tree: &DeviceTree) -> Result<Board, Error> {
    Board::read(Fdt::new(tree.to_dtb().leak()).unwrap(), 0x4020_0000..0x4030_0000)
}

fn set<T: dtoolkit::ToPropertyValue>(node: &mut DeviceTreeNode, name: &str, value: T) {
    node.add_property(DeviceTreeProperty::new_unchecked(name, value));
}

/// Returns the tree with its UART below `buses` nested buses.
fn with_buses(buses: usize) -> DeviceTree {
    let mut tree = tree(&[BOOT_CPU]);
    let mut device = tree.root.remove_child(UART).unwrap();
    for _ in 0..buses {
        let mut bus = DeviceTreeNode::new_unchecked("bus");
        set(&mut bus, "#address-cells", 2u32);
        set(&mut bus, "#size-cells", 2u32);
        set(&mut bus, "ranges", &[0u8; 0][..]);
        bus.add_child(device);
        device = bus;
    }
    tree.root.add_child(device);
    tree
}

#[test]
fn nothing_is_free_behind_the_last_address() {
    let mut board = machine(&[BOOT_CPU]);
    board.ram = iter::once(LAST + 1..u64::MAX).collect();
    assert_eq!(board.free(PAGE, PAGE), None);
    board.ram = iter::once(LAST - PAGE..u64::MAX).collect();
    assert_eq!(board.free(PAGE, PAGE), Some(LAST - PAGE..LAST));
    // The reserved range ends in the last page.
    board.reserved.push(LAST - PAGE..LAST + 1);
    assert_eq!(board.free(PAGE, PAGE), None);
    // Another bank may still have free RAM.
    board.ram.push(virt::RAM_BASE..virt::RAM_BASE + PAGE);
    assert_eq!(board.free(PAGE, PAGE), Some(virt::RAM_BASE..virt::RAM_BASE + PAGE));
}

#[test]
fn buses_are_followed_so_far_as_the_stack_lasts() {
    let uart = virt::UART_BASE..virt::UART_BASE + virt::UART_SIZE;
    for buses in [0, 1, 15] {
        assert_eq!(read(&with_buses(buses)).map(|board| board.uart), Ok(uart.clone()), "below {buses} buses");
    }
    for buses in [16, 17, 1000] {
        assert_eq!(read(&with_buses(buses)).err(), Some(Error::TooMany("levels of buses")), "below {buses} buses");
    }
}

#[test]
fn transports_that_are_whole_are_found() {
    let mut tree = tree(&[BOOT_CPU]);
    let mut add = |name: &str, reg: &[u32], status: &str, interrupts: &[u32]| {
        let mut node = DeviceTreeNode::new_unchecked(name);
        set(&mut node, "compatible", vec!["virtio,mmio"]);
        set(&mut node, "reg", reg.to_vec());
        set(&mut node, "status", vec![status]);
        if !interrupts.is_empty() {
            set(&mut node, "interrupts", interrupts.to_vec());
        }
        if name == "virtio_mmio@a000000" {
            set(&mut node, "dma-coherent", Vec::<u32>::new());
        }
        tree.root.add_child(node);
    };
    add("virtio_mmio@a000000", &[0, 0xa00_0000, 0, 0x200], "okay", &[0, 16, 1]);
    add("virtio_mmio@a000200", &[0, 0xa00_0200, 0, 0x1ff], "okay", &[]);
    add("virtio_mmio@a000400", &[0, 0xa00_0400, 0, 0x200], "disabled", &[]);
    add("virtio_mmio@a000600", &[u32::MAX, 0xffff_ff00, 0, 0x200], "okay", &[]);
    add("virtio_mmio@a000800", &[0, 0xa00_0800], "okay", &[]);
    add("virtio_mmio@a000a00", &[0, 0xa00_0a00, 0, 0x1000], "okay", &[0, 17, 4]);
    add("virtio_mmio@a001c00", &[0, 0xa00_1c00, 0, 0x200], "okay", &[1, 3, 4]);
    add("virtio_mmio@a001e00", &[0, 0xa00_1e00, 0, 0x200], "okay", &[0, 18]);
    add("virtio_mmio@a002000", &[0, 0xa00_2000, 0, 0x200], "okay", &[]);
    let found = read(&tree).unwrap().virtio;
    let transport = |registers: std::ops::Range<u64>, interrupt| {
        let is_coherent = registers.start == 0xa00_0000;
        Transport { registers, interrupt, is_coherent }
    };
    let expected = [
        transport(0xa00_0000..0xa00_0200, Some(Shared { intid: 48, is_edge: true })),
        transport(0xa00_0a00..0xa00_1a00, Some(Shared { intid: 49, is_edge: false })),
        transport(0xa00_1c00..0xa00_1e00, None),
        transport(0xa00_1e00..0xa00_2000, None),
        transport(0xa00_2000..0xa00_2200, None),
    ];
    assert_eq!(found[..], expected);
    for number in 0..100u32 {
        let mut node = DeviceTreeNode::new_unchecked(format!("virtio_mmio@{number}"));
        set(&mut node, "compatible", vec!["virtio,mmio"]);
        set(&mut node, "reg", vec![0, number << 12, 0, 0x200]);
        tree.root.add_child(node);
    }
    assert_eq!(read(&tree).unwrap().virtio.len(), 32, "more than the list holds are left out");
}

#[test]
fn no_two_cpus_are_the_same() {
    let mut tree = tree(&[BOOT_CPU, 0x100, 2]);
    set(tree.find_node_mut("/cpus/cpu@2").unwrap(), "reg", 0x100u64);
    assert_eq!(read(&tree).err(), Some(Error::SameCpu(0x100)));
}

#[test]
fn a_machine_without_a_gicv3_says_so() {
    let mut tree = tree(&[BOOT_CPU]);
    tree.root.remove_child(&format!("intc@{:x}", virt::GICD_BASE)).unwrap();
    let error = read(&tree).unwrap_err();
    assert!(error.to_string().contains("no GICv3") && error.to_string().contains("gic-version=3"), "{error}");
}

#[test]
fn the_guest_reads_each_part_of_an_affinity() {
    let cpus = [BOOT_CPU, 1, 0x01_0000_0000, 0xff_00ff_ffff];
    assert_eq!(read(&tree(&cpus)).map(|board| board.cpus), Ok(cpus.into_iter().collect()));
}

/// The cells of an interrupt: shared or private, its number, its trigger.
#[test]
fn an_interrupt_is_found_by_its_place() {
    let cells = [0, 1, 4, 1, 15, 4, 1, 16, 4, 0, 988, 4, 2, 1, 4, 0, 987];
    let found = [0, 1, 2, 3, 4, 5, usize::MAX / 3].map(|index| intid(&cells, index));
    assert_eq!(found, [Some(33), Some(31), None, None, None, None, None]);
}

#[test]
fn each_interrupt_that_el2_takes_must_be_named() {
    let mut board = machine(&[BOOT_CPU]);
    board.timer_interrupts = [1, 13, 4, 1, 14, 4, 1, 11, 4, 1, 10, 4].into_iter().collect();
    board.maintenance_interrupt = [1, 9, 4].into_iter().collect();
    let sources = |board: &Board, linked| Sources::of(board, linked).map_err(|error| error.to_string());
    let all = sources(&board, false).unwrap();
    assert_eq!([all.physical_timer, all.virtual_timer, all.own_timer, all.maintenance, all.uart], [30, 27, 26, 25, 33]);
    assert_eq!(all.private().collect::<Vec<_>>(), [27, 26, 25]);
    assert_eq!(sources(&board, true).unwrap().private().collect::<Vec<_>>(), [27, 26, 25, 30]);
    for (clear, word) in [
        ((|board| board.maintenance_interrupt.clear()) as fn(&mut Board), "virtual interface"),
        (|board| board.uart_interrupts.clear(), "the UART"),
        (|board| board.timer_interrupts.truncate(9), "EL2's timer"),
        (|board| board.timer_interrupts.truncate(3), "the physical timer"),
    ] {
        let mut board = machine(&[BOOT_CPU]);
        board.timer_interrupts = [1, 13, 4, 1, 14, 4, 1, 11, 4, 1, 10, 4].into_iter().collect();
        board.maintenance_interrupt = [1, 9, 4].into_iter().collect();
        clear(&mut board);
        assert!(sources(&board, false).unwrap_err().contains(word), "{word}");
    }
}

/// What EFI keeps of the RAM is reserved and unmapped, and the bundle is the one that it has loaded.
#[test]
fn what_efi_keeps_is_not_free() {
    let mut efi = Handover::new(0x4800_0000..0x4810_0000);
    efi.add(virt::RAM_BASE..virt::RAM_BASE + (1 << 29)).unwrap();
    let board = machine(&[BOOT_CPU]).left_by(&efi).unwrap();
    let kept = virt::RAM_BASE + (1 << 29)..virt::RAM_BASE + (1 << 30);
    assert_eq!(board.no_map.as_slice(), core::slice::from_ref(&kept));
    assert!(board.reserved.contains(&kept) && board.reserved.contains(&efi.bundle));
    assert_eq!(board.bundle, Some(efi.bundle));
    assert_eq!(board.free(1 << 29, PAGE), None);
    assert_eq!(board.free(0x1000_0000, PAGE), Some(0x4810_0000..0x5810_0000));
}
