// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A machine's device tree, as any bytes and as a valid tree with changes: the hypervisor reads it, and then writes the
//! tree for its guest.

use std::iter;
use std::ops::Range;
use std::sync::LazyLock;

use arbitrary::{Result, Unstructured};
use dtoolkit::fdt::Fdt;
use dtoolkit::memreserve::MemoryReservation;
use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};
use twofold_abi::virt;
use twofold_fuzz_hypervisor::BOOT_CPU;
use twofold_fuzz_hypervisor::board::{Board, intid};
use twofold_fuzz_hypervisor::power::Conduit;
use twofold_memory::Pages;
use twofold_stage2::Ipa;
use twofold_vmm::config::Config;
use twofold_vmm::device_tree as written;
use twofold_vmm::load::Layout;

/// Any bytes are refused, or describe a consistent machine, whose guest gets a correct tree.
pub fn device_tree(data: &[u8]) {
    with_static(data.to_vec(), judge);
}

/// The same for a valid tree with a few changes.
pub fn board(data: &[u8]) {
    static GOOD: LazyLock<DeviceTree> = LazyLock::new(good_tree);
    let mut tree = GOOD.clone();
    let _ = change(&mut tree, &mut Unstructured::new(data));
    with_static(tree.to_dtb(), judge);
}

const IMAGE: Range<u64> = 0x4020_0000..0x4030_0000;

fn judge(bytes: &'static [u8]) {
    let Ok(fdt) = Fdt::new(bytes) else { return };
    let Ok(board) = Board::read(fdt, IMAGE) else { return };
    assert_eq!(board.cpus[0], BOOT_CPU);
    let ranges = board.ram.iter().chain(&board.reserved).chain(&board.gicr).chain([&board.gicd, &board.uart]);
    assert!(ranges.into_iter().all(|range| range.start <= range.end), "{board:x?}");
    let reserved = |range: &Range<u64>| board.reserved.contains(range);
    assert!([&IMAGE, &board.dtb].into_iter().chain(&board.bundle).chain(&board.no_map).all(reserved), "{board:x?}");
    for (size, align) in [(4096, 4096), (2 << 20, 2 << 20), (1 << 20, 4096)] {
        check_free(&board, size, align);
    }
    check_guest_tree(&board);
}

fn check_free(board: &Board, size: u64, align: u64) {
    let Some(free) = board.free(size, align) else { return };
    assert!(free.end - free.start == size && free.start.is_multiple_of(align));
    assert!(board.ram.iter().any(|ram| ram.start <= free.start && free.end <= ram.end), "{free:x?} in {board:x?}");
    let used = |used: &Range<u64>| used.start < free.end && free.start < used.end && !used.is_empty();
    assert!(!board.reserved.iter().any(used), "{free:x?} in {board:x?}");
}

/// Checks that the hypervisor's reader accepts the guest's tree, and that the tree describes what the guest gets.
fn check_guest_tree(board: &Board) {
    let (config, layout) = (guest(board.cpus.len().min(3) as u32), layout());
    let cpus = board.cpus.clone();
    let redistributors = u64::from(config.cpus) * virt::GICR_SIZE;
    with_static(written::build(&config, &layout, &board.cpus), |bytes| {
        let guest = Fdt::new(bytes).map(|fdt| Board::read(fdt, IMAGE).expect("the guest's tree describes a board"));
        let guest = guest.expect("the guest's tree is valid");
        let sized = |start: u64, size: u64| start..start + size;
        assert_eq!(guest.ram[..], [sized(virt::RAM_BASE, config.memory)]);
        assert_eq!(guest.gicd, sized(virt::GICD_BASE, virt::GICD_SIZE));
        assert_eq!(guest.gicr[..], [sized(virt::GICR_BASE, redistributors)]);
        assert_eq!(guest.uart, sized(virt::UART_BASE, virt::UART_SIZE));
        assert_eq!((guest.psci, guest.bootargs), (Conduit::Hvc, config.command_line));
        assert_eq!(guest.bundle, Some(sized(layout.initrd.raw(), config.initrd.len() as u64)));
        assert_eq!(guest.cpus[..], cpus[..config.cpus as usize]);
        assert_eq!(guest.rtc, Some(sized(virt::RTC_BASE, virt::RTC_SIZE)));
        let timers = [0, 1, 2, 3].map(|index| intid(&guest.timer_interrupts, index));
        assert_eq!(timers, [29, virt::PHYSICAL_TIMER_INTERRUPT, virt::VIRTUAL_TIMER_INTERRUPT, 26].map(Some));
        assert_eq!(intid(&guest.uart_interrupts, 0), Some(virt::UART_INTERRUPT));
    });
}

fn guest(cpus: u32) -> Config<'static> {
    Config {
        kernel: &[],
        initrd: &[0; 100],
        firmware: &[],
        devices: 0,
        swap: None,
        disks: &[],
        nets: &[],
        command_line: "console=ttyAMA0 rdinit=/init",
        memory: 512 << 20,
        cpus,
        pages: Pages::Largest,
        flags: 0,
        ipa_bits: None,
        test: None,
        policies: 0,
    }
}

fn layout() -> Layout {
    let at = |offset| Ipa::new(virt::RAM_BASE + offset);
    Layout { kernel: at(0), entry: at(0), initrd: at(16 << 20), device_tree: at(18 << 20) }
}

/// Returns the tree of a machine like those that the image boots on.
fn good_tree() -> DeviceTree {
    let board = Board {
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
        cpus: [BOOT_CPU, 1, 0x100].into_iter().collect(),
        bundle: None,
        bootargs: "",
        timer_interrupts: [1, 13, 4, 1, 14, 4, 1, 11, 4, 1, 10, 4].into_iter().collect(),
        uart_interrupts: [0, 1, 4].into_iter().collect(),
        dtb: 0..0,
    };
    let blob = written::build(&guest(3), &layout(), &board.cpus);
    let mut tree = DeviceTree::from_fdt(&Fdt::new(&blob).expect("what was just built"));
    let mut reserved = DeviceTreeNode::new_unchecked("reserved-memory");
    for (name, value) in [("#address-cells", 2u32), ("#size-cells", 2)] {
        reserved.add_property(DeviceTreeProperty::new_unchecked(name, value));
    }
    let mut firmware = DeviceTreeNode::new_unchecked("firmware@50000000");
    firmware.add_property(DeviceTreeProperty::new_unchecked("reg", vec![0u32, 0x5000_0000, 0, 0x10_0000]));
    reserved.add_child(firmware);
    tree.root.add_child(reserved);
    tree
}

const NODES: [&str; 12] = [
    "/",
    "/chosen",
    "/memory@40000000",
    "/cpus",
    "/cpus/cpu@0",
    "/cpus/cpu@1",
    "/psci",
    "/intc@8000000",
    "/timer",
    "/pl011@9000000",
    "/reserved-memory",
    "/reserved-memory/firmware@50000000",
];
const PROPERTIES: [&str; 16] = [
    "reg",
    "compatible",
    "status",
    "device_type",
    "#address-cells",
    "#size-cells",
    "ranges",
    "interrupts",
    "method",
    "bootargs",
    "linux,initrd-start",
    "linux,initrd-end",
    "no-map",
    "#redistributor-regions",
    "#interrupt-cells",
    "phandle",
];
const WORDS: [&str; 12] = [
    "arm,gic-v3",
    "arm,pl011",
    "arm,psci-0.2",
    "arm,armv8-timer",
    "cpu",
    "memory",
    "okay",
    "disabled",
    "smc",
    "hvc",
    "simple-bus",
    "twofold.semihosting",
];
const MOST_CHANGES: usize = 40;

fn change(tree: &mut DeviceTree, u: &mut Unstructured<'_>) -> Result<()> {
    for _ in 0..MOST_CHANGES {
        if u.is_empty() {
            break;
        }
        let path = *u.choose(&NODES)?;
        let Some(node) = tree.find_node_mut(path) else { continue };
        let name = *u.choose(&PROPERTIES)?;
        let mut set = |value: Vec<u8>| node.add_property(DeviceTreeProperty::new_unchecked(name, value));
        match u.int_in_range(0..=6)? {
            0 => set(cells(u)?),
            1 => set([u.choose(&WORDS)?.as_bytes(), &[0]].concat()),
            2 => set(Vec::new()),
            3 => set(u.bytes(u.len().min(20))?.to_vec()),
            4 => drop(node.remove_property(name)),
            5 => {
                let child = node.children_mut().next().cloned();
                let mut bus = DeviceTreeNode::new_unchecked(*u.choose(&["bus", "cpu@2", "memory@2", "chosen"])?);
                // The bus's `ranges` place its children.
                child.into_iter().for_each(|child| bus.add_child(child));
                node.add_child(bus);
            }
            _ => tree.memory_reservations.push(MemoryReservation::new(u.arbitrary()?, u.arbitrary()?)),
        }
    }
    Ok(())
}

/// Makes numbers of a tree: small or any, in one cell or two.
fn cells(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut cells = Vec::new();
    for _ in 0..u.int_in_range(0..=12)? {
        let cell: u32 = if u.arbitrary()? { u.int_in_range(0..=4)? } else { u.arbitrary()? };
        cells.extend(cell.to_be_bytes());
    }
    Ok(cells)
}

/// Lends bytes as `'static`, which a board requires, and frees them afterwards.
fn with_static(bytes: Vec<u8>, read: impl FnOnce(&'static [u8])) {
    let bytes = Box::into_raw(bytes.into_boxed_slice());
    // SAFETY: the pointer comes from a box, and no other reference exists. `read` returns nothing and stores nothing,
    // so its borrow ends when it returns.
    read(unsafe { &*bytes });
    // SAFETY: the pointer comes from `Box::into_raw`, and the borrow above has ended.
    drop(unsafe { Box::from_raw(bytes) });
}
