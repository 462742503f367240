// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine, as its device tree describes it.
//!
//! [`Board::read`] runs before there is a heap, so the lists have fixed capacities.
//!
//! Invariant: `reserved` holds every part of RAM in use (the image, the tree, the bundle, the firmware), so
//! [`Board::free`] returns only unused RAM.

use core::ops::Range;

use arrayvec::ArrayVec;
use dtoolkit::fdt::{Fdt, FdtNode};
use dtoolkit::standard::{NodeStandard, Status};
use dtoolkit::{Node, Property};
use thiserror::Error;
use twofold_vmm::guests::Missing;

use crate::handover::Handover;
use crate::power::Conduit;
use crate::read_sysreg;

/// Why a device tree cannot be used.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Error {
    /// The machine lacks what no guest can do without.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// A required node is missing.
    #[error("the machine's device tree has no {0}")]
    NodeMissing(&'static str),
    /// A property is missing or malformed.
    #[error("the machine's device tree, {0}: property {1} is missing or malformed")]
    Property(&'static str, &'static str),
    /// There are more items than a list holds.
    #[error("the machine's device tree has too many {0}")]
    TooMany(&'static str),
    /// Two CPUs have the same MPIDR.
    #[error("the machine's device tree: /cpus has two CPUs with MPIDR {0:#x}")]
    SameCpu(u64),
    /// The running CPU is not among the CPUs.
    #[error("the machine's device tree: /cpus has no CPU with this one's MPIDR")]
    BootCpuMissing,
}

/// A virtio transport over MMIO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transport {
    /// Its registers.
    pub registers: Range<u64>,
    /// Its interrupt, if the tree names one that is shared.
    pub interrupt: Option<Shared>,
    /// Its accesses to memory are coherent with the caches (`dma-coherent`).
    pub is_coherent: bool,
}

/// A shared interrupt of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// Its INTID.
    pub intid: u32,
    /// Whether an edge makes it pending, and not a level.
    pub is_edge: bool,
}

/// The machine. Ranges are physical addresses.
#[derive(Debug)]
pub struct Board {
    /// The RAM.
    pub ram: ArrayVec<Range<u64>, 8>,
    /// Parts of RAM that are in use. They may overlap.
    pub reserved: ArrayVec<Range<u64>, 48>,
    /// The parts of `reserved` that must not even be mapped.
    pub no_map: ArrayVec<Range<u64>, 32>,
    /// The GICv3's distributor.
    pub gicd: Range<u64>,
    /// The GICv3's redistributors.
    pub gicr: ArrayVec<Range<u64>, 8>,
    /// The interrupt by which the GIC's virtual interface asks for EL2, as `interrupts` of its node; empty if there is
    /// none.
    pub maintenance_interrupt: ArrayVec<u32, MAX_INTERRUPT_CELLS>,
    /// The PL011.
    pub uart: Range<u64>,
    /// The PL031, if there is one.
    pub rtc: Option<Range<u64>>,
    /// The virtio transports. Those beyond the capacity are left out.
    pub virtio: ArrayVec<Transport, MAX_TRANSPORTS>,
    /// The instruction that calls the firmware.
    pub psci: Conduit,
    /// The affinity of each CPU, as in MPIDR_EL1. The CPU that booted comes first.
    pub cpus: ArrayVec<u64, MAX_CPUS>,
    /// The boot loader's initrd, which is the bundle.
    pub bundle: Option<Range<u64>>,
    /// The boot loader's command line.
    pub bootargs: &'static str,
    /// The timer's `interrupts`, cell by cell.
    pub timer_interrupts: ArrayVec<u32, MAX_INTERRUPT_CELLS>,
    /// The UART's `interrupts`, likewise.
    pub uart_interrupts: ArrayVec<u32, MAX_INTERRUPT_CELLS>,
    /// The device tree itself.
    pub dtb: Range<u64>,
}

impl Board {
    /// Reads the tree. `image` is the memory that the running image covers.
    pub fn read(fdt: Fdt<'static>, image: Range<u64>) -> Result<Self, Error> {
        let dtb = fdt.data().as_ptr_range();
        let dtb = dtb.start as u64..dtb.end as u64;
        let root = fdt.root();
        let chosen = root.child("chosen");
        let bundle = chosen.and_then(bundle);
        let gic = find(root, &["arm,gic-v3"], GIC).map_err(|error| match error {
            Error::NodeMissing(_) => Missing::GicV3.into(),
            other => other,
        })?;
        let gicd = gic.region(0).ok_or(Error::Property(GIC, "reg"))?;
        let mut board = Self {
            ram: ram(root)?,
            reserved: ArrayVec::new(),
            no_map: ArrayVec::new(),
            gicd,
            gicr: redistributors(&gic)?,
            maintenance_interrupt: interrupts(&gic, GIC).unwrap_or_default(),
            uart: uart(fdt)?,
            rtc: find(root, &["arm,pl031"], RTC).ok().and_then(|rtc| rtc.region(0)),
            virtio: transports(root),
            psci: conduit(fdt)?,
            cpus: cpus(fdt)?,
            bundle: bundle.clone(),
            bootargs: chosen.and_then(bootargs).unwrap_or(""),
            timer_interrupts: interrupts(&find(root, &["arm,armv8-timer"], TIMER)?, TIMER)?,
            uart_interrupts: interrupts(&find(root, &["arm,pl011"], UART)?, UART)?,
            dtb: dtb.clone(),
        };
        // A frame at address 0 would be a null pointer.
        let null = 0..4096;
        for used in [image, dtb, null].into_iter().chain(bundle) {
            push(&mut board.reserved, used, RESERVED)?;
        }
        board.read_reserved(fdt)?;
        Ok(board)
    }

    /// The same machine as EFI has left it: RAM that the firmware keeps is not mapped, and the bundle is EFI's.
    pub fn left_by(mut self, efi: &Handover) -> Result<Self, Error> {
        for ram in self.ram.clone() {
            for kept in efi.kept(ram) {
                push(&mut self.no_map, kept.clone(), RESERVED)?;
                push(&mut self.reserved, kept, RESERVED)?;
            }
        }
        push(&mut self.reserved, efi.bundle.clone(), RESERVED)?;
        self.bundle = Some(efi.bundle.clone());
        Ok(self)
    }

    /// The first `size` bytes of unused RAM, aligned to `align` (a power of two).
    #[must_use]
    pub fn free(&self, size: u64, align: u64) -> Option<Range<u64>> {
        self.ram.iter().find_map(|ram| {
            let mut start = ram.start.checked_next_multiple_of(align)?;
            loop {
                let end = start.checked_add(size).filter(|end| *end <= ram.end)?;
                match self.reserved.iter().find(|used| used.start < end && start < used.end) {
                    None => return Some(start..end),
                    Some(used) => start = used.end.checked_next_multiple_of(align)?,
                }
            }
        })
    }

    /// The registers of the devices that EL2 uses.
    pub fn devices(&self) -> impl Iterator<Item = &Range<u64>> {
        let virtio = self.virtio.iter().map(|transport| &transport.registers);
        [&self.gicd, &self.uart].into_iter().chain(&self.gicr).chain(&self.rtc).chain(virtio)
    }

    fn read_reserved(&mut self, fdt: Fdt<'static>) -> Result<(), Error> {
        for reservation in fdt.memory_reservations() {
            let range = range(reservation.address(), reservation.size());
            push(&mut self.reserved, range.ok_or(Error::Property("the tree", "memory reservations"))?, RESERVED)?;
        }
        for node in fdt.reserved_memory().into_iter().flatten() {
            for region in regions(*node).into_iter().flatten() {
                let region = region.ok_or(Error::Property(RESERVED, "reg"))?;
                if node.no_map() {
                    push(&mut self.no_map, region.clone(), RESERVED)?;
                }
                push(&mut self.reserved, region, RESERVED)?;
            }
        }
        Ok(())
    }
}

/// The INTID of the interrupt at place `index` of an `interrupts` property in the GIC's three cells.
#[must_use]
pub fn intid(cells: &[u32], index: usize) -> Option<u32> {
    const SHARED: u32 = 0;
    const PRIVATE: u32 = 1;
    match *cells.as_chunks::<3>().0.get(index)? {
        [SHARED, number, _] if number < 988 => Some(32 + number),
        [PRIVATE, number, _] if number < 16 => Some(16 + number),
        _ => None,
    }
}

/// Whether the boot loader's command line contains this word.
pub(crate) fn has_boot_argument(fdt: Fdt<'static>, word: &str) -> bool {
    let arguments = fdt.root().child("chosen").and_then(bootargs);
    arguments.is_some_and(|arguments| arguments.split_whitespace().any(|other| other == word))
}

/// The PL011 of the tree.
pub(crate) fn uart(fdt: Fdt<'static>) -> Result<Range<u64>, Error> {
    let uart = find(fdt.root(), &["arm,pl011"], UART)?;
    uart.region(0).ok_or(Error::Property(UART, "reg"))
}

/// The instruction that calls the firmware.
pub(crate) fn conduit(fdt: Fdt<'static>) -> Result<Conduit, Error> {
    let psci = find(fdt.root(), &["arm,psci-1.0", "arm,psci-0.2"], PSCI)?;
    match psci.node.property("method").and_then(|method| method.value_as::<&str>().ok()) {
        Some("smc") => Ok(Conduit::Smc),
        Some("hvc") => Ok(Conduit::Hvc),
        _ => Err(Error::Property(PSCI, "method")),
    }
}

/// As many as there are stacks.
const MAX_CPUS: usize = twofold_abi::virt::MAX_CPUS as usize;
/// Levels of nodes: each takes some of the small stack.
const MAX_LEVELS: usize = 16;
/// QEMU has 32.
const MAX_TRANSPORTS: usize = 32;
/// Five interrupts of three cells each, and one to spare.
const MAX_INTERRUPT_CELLS: usize = 16;

const GIC: &str = "GICv3 (compatible \"arm,gic-v3\")";
const UART: &str = "PL011 (compatible \"arm,pl011\")";
const RTC: &str = "PL031 (compatible \"arm,pl031\")";
const PSCI: &str = "PSCI (compatible \"arm,psci-0.2\")";
const TIMER: &str = "timer (compatible \"arm,armv8-timer\")";
const RESERVED: &str = "/reserved-memory";

fn ram(root: FdtNode<'static>) -> Result<ArrayVec<Range<u64>, 8>, Error> {
    let mut ram = ArrayVec::new();
    // A bank with another status is not ours: QEMU's secure RAM, for instance.
    for node in root.children().filter(|node| is_device_type(node, "memory") && is_used(node)) {
        for region in regions(node).ok_or(Error::Property("/memory", "reg"))? {
            push(&mut ram, region.ok_or(Error::Property("/memory", "reg"))?, "ranges of RAM")?;
        }
    }
    if ram.is_empty() { Err(Error::NodeMissing("/memory")) } else { Ok(ram) }
}

/// The virtio transports below the root, which is where virtual machines have them. One that is malformed is left out: the
/// machine can be used without it.
fn transports(root: FdtNode<'static>) -> ArrayVec<Transport, MAX_TRANSPORTS> {
    /// The driver uses no register behind these.
    const REGISTERS: u64 = 0x200;
    let nodes = root.children().filter(|node| is_used(node) && node.is_compatible("virtio,mmio"));
    let transport = |node| {
        let registers = regions(node)?.next()?.filter(|range| range.end - range.start >= REGISTERS)?;
        let is_coherent = node.property("dma-coherent").is_some();
        Some(Transport { registers, interrupt: shared(node), is_coherent })
    };
    nodes.filter_map(transport).take(MAX_TRANSPORTS).collect()
}

/// The first interrupt of a node, if it is shared.
fn shared(node: FdtNode<'static>) -> Option<Shared> {
    /// Edges, rising and falling.
    const EDGES: u32 = 0b11;
    let property = node.property("interrupts")?;
    let cells: ArrayVec<u32, 3> =
        property.value().as_chunks::<4>().0.iter().take(3).map(|cell| u32::from_be_bytes(*cell)).collect();
    let intid = intid(&cells, 0).filter(|intid| *intid >= 32)?;
    Some(Shared { intid, is_edge: cells.last()? & EDGES != 0 })
}

fn redistributors(gic: &Device) -> Result<ArrayVec<Range<u64>, 8>, Error> {
    const COUNT: &str = "#redistributor-regions";
    let count = match gic.node.property(COUNT) {
        Some(count) => count.value_as::<u32>().map_err(|_| Error::Property(GIC, COUNT))?,
        None => 1,
    };
    let mut redistributors = ArrayVec::new();
    for index in 1..=count as usize {
        push(&mut redistributors, gic.region(index).ok_or(Error::Property(GIC, "reg"))?, "redistributor regions")?;
    }
    Ok(redistributors)
}

fn cpus(fdt: Fdt<'static>) -> Result<ArrayVec<u64, MAX_CPUS>, Error> {
    /// Aff3 and Aff2 to Aff0.
    const AFFINITY: u64 = 0xff_00ff_ffff;
    const CPU: &str = "/cpus/cpu";
    let node = root_child(fdt, "cpus").ok_or(Error::NodeMissing("/cpus"))?;
    let mut cpus = ArrayVec::new();
    for cpu in node.children().filter(|node| is_device_type(node, "cpu") && is_used(node)) {
        let id = cpu.reg().ok().flatten().and_then(|mut reg| reg.next()?.address::<u64>().ok());
        let id = id.ok_or(Error::Property(CPU, "reg"))?;
        if cpus.contains(&id) {
            return Err(Error::SameCpu(id));
        }
        push(&mut cpus, id, "CPUs")?;
    }
    let this = read_sysreg!(MPIDR_EL1) & AFFINITY;
    let place = cpus.iter().position(|cpu| *cpu == this).ok_or(Error::BootCpuMissing)?;
    cpus.swap(0, place);
    Ok(cpus)
}

/// The cells of a device's `interrupts`.
fn interrupts(device: &Device, name: &'static str) -> Result<ArrayVec<u32, MAX_INTERRUPT_CELLS>, Error> {
    let property = device.node.property("interrupts").ok_or(Error::Property(name, "interrupts"))?;
    let mut interrupts = ArrayVec::new();
    for cell in property.value().as_chunks::<4>().0 {
        push(&mut interrupts, u32::from_be_bytes(*cell), "interrupts of a device")?;
    }
    Ok(interrupts)
}

/// `linux,initrd-start` to `linux,initrd-end`, each of 32 or 64 bits.
fn bundle(chosen: FdtNode<'static>) -> Option<Range<u64>> {
    let address = |name| {
        let property = chosen.property(name)?;
        property.value_as::<u64>().or_else(|_| property.value_as::<u32>().map(u64::from)).ok()
    };
    let bundle = address("linux,initrd-start")?..address("linux,initrd-end")?;
    (!bundle.is_empty()).then_some(bundle)
}

fn bootargs(chosen: FdtNode<'static>) -> Option<&'static str> {
    chosen.properties().find(|property| property.name() == "bootargs")?.value_as().ok()
}

/// A device: its node, and its registers in the CPU's address space.
struct Device {
    node: FdtNode<'static>,
    regions: ArrayVec<Range<u64>, 16>,
}

impl Device {
    fn region(&self, index: usize) -> Option<Range<u64>> {
        self.regions.get(index).cloned()
    }
}

/// The first device that is compatible with one of `compatible` and in use. `name` is for the error if there is none.
fn find(root: FdtNode<'static>, compatible: &[&str], name: &'static str) -> Result<Device, Error> {
    find_below(root, compatible, MAX_LEVELS)?.ok_or(Error::NodeMissing(name))
}

/// The first such device below `bus`, at most `levels` levels down.
fn find_below(bus: FdtNode<'static>, compatible: &[&str], levels: usize) -> Result<Option<Device>, Error> {
    let found = bus.children().find_map(|node| {
        let Some(levels) = levels.checked_sub(1) else { return Some(Err(Error::TooMany("levels of buses"))) };
        if is_used(&node) && compatible.iter().any(|name| node.is_compatible(name)) {
            let regions = regions(node).into_iter().flatten().flatten().take(16).collect();
            return Some(Ok(Device { node, regions }));
        }
        let mut device = match find_below(node, compatible, levels).transpose()? {
            Ok(device) => device,
            error => return Some(error),
        };
        for region in &mut device.regions {
            *region = from_child_bus(node, region)?;
        }
        Some(Ok(device))
    });
    found.transpose()
}

/// Translates an address range on the bus `bus` for its parent bus (the property `ranges`).
fn from_child_bus(bus: FdtNode<'static>, region: &Range<u64>) -> Option<Range<u64>> {
    if bus.property("ranges")?.value().is_empty() {
        return Some(region.clone());
    }
    bus.ranges().ok()??.find_map(|window| {
        let child = range(window.child_bus_address().ok()?, window.length().ok()?)?;
        let offset = window.parent_bus_address::<u64>().ok()?.wrapping_sub(child.start);
        let inside = child.contains(&region.start) && region.end <= child.end;
        inside.then(|| region.start.wrapping_add(offset)..region.end.wrapping_add(offset))
    })
}

/// The property `reg`. An item is `None` if it is not a range of 64-bit addresses.
fn regions(node: FdtNode<'static>) -> Option<impl Iterator<Item = Option<Range<u64>>>> {
    Some(node.reg().ok()??.map(|reg| range(reg.address().ok()?, reg.size().ok()?)))
}

fn range(start: u64, size: u64) -> Option<Range<u64>> {
    Some(start..start.checked_add(size)?)
}

fn is_used(node: &FdtNode<'static>) -> bool {
    matches!(node.status(), Ok(Status::Okay))
}

fn is_device_type(node: &FdtNode<'static>, device_type: &str) -> bool {
    node.property("device_type").is_some_and(|property| property.value_as::<&str>() == Ok(device_type))
}

fn root_child(fdt: Fdt<'static>, name: &str) -> Option<FdtNode<'static>> {
    fdt.root().children().find(|node| node.name() == name)
}

fn push<T, const CAPACITY: usize>(list: &mut ArrayVec<T, CAPACITY>, item: T, what: &'static str) -> Result<(), Error> {
    list.try_push(item).map_err(|_| Error::TooMany(what))
}
