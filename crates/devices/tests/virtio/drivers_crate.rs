// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A second opinion: the drivers of the crate `virtio-drivers`, which know the specification from elsewhere, over our
//! registers. Their memory is an arena; what a driver shares is copied into it and back, as by an IOMMU.
//!
//! These drivers wait for an answer in a loop. So a device that a notification does not wake hangs the test.

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::rc::Rc;

use twofold_devices::virtio::{Block, Console, Model, Net, Next, Rng, Virtio};
use twofold_devices::{GuestRam, RamError, Width};
use virtio_drivers::device::blk::{SECTOR_SIZE, VirtIOBlk};
use virtio_drivers::device::console::VirtIOConsole;
use virtio_drivers::device::net::VirtIONetRaw;
use virtio_drivers::device::rng::VirtIORng;
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use virtio_drivers::{BufferDirection, Hal, PhysAddr};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::console::Wire;
use crate::disk::{FakeDisk, ID, SECTORS, config};
use crate::net::Cable;
use crate::rng::Source;

const BASE: u64 = 0x4000_0000;
const PAGES: usize = 512;
const PAGE: usize = virtio_drivers::PAGE_SIZE;

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

/// The memory of one test, which driver and device share.
#[derive(Clone, Copy)]
struct Arena(NonNull<u8>);

thread_local! {
    /// Never freed, and reached by raw pointers only, on this thread only.
    static ARENA: Arena = Arena(NonNull::from(Box::leak(vec![Page([0; PAGE]); PAGES].into_boxed_slice())).cast());
    static NEXT_FREE: Cell<usize> = const { Cell::new(0) };
}

fn arena() -> Arena {
    ARENA.with(|arena| *arena)
}

/// Whole pages that nothing else has.
fn allocate(pages: usize) -> usize {
    let first = NEXT_FREE.get();
    assert!(first + pages <= PAGES, "the arena is too small");
    NEXT_FREE.set(first + pages);
    first * PAGE
}

impl Arena {
    fn pointer(self, offset: usize, length: usize) -> NonNull<u8> {
        assert!(offset + length <= PAGES * PAGE);
        // SAFETY: inside the arena, by the check above.
        unsafe { self.0.add(offset) }
    }
}

impl GuestRam for Arena {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), RamError> {
        let offset = offset(address, bytes.len())?;
        // SAFETY: inside the arena. Only this thread reaches it, no reference covers it, and `bytes` is elsewhere.
        unsafe { self.pointer(offset, bytes.len()).as_ptr().copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), RamError> {
        let offset = offset(address, bytes.len())?;
        // SAFETY: as for a read.
        unsafe { self.pointer(offset, bytes.len()).as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }
}

fn offset(address: u64, length: usize) -> Result<usize, RamError> {
    let offset = address.checked_sub(BASE).ok_or(RamError::NotRam(address))? as usize;
    let inside = offset.checked_add(length).is_some_and(|end| end <= PAGES * PAGE);
    inside.then_some(offset).ok_or(RamError::NotRam(address))
}

struct Machine;

// SAFETY: `dma_alloc` returns pages of the arena, which are valid, aligned, zeroed and handed out once. Nothing asks for
// MMIO. What is shared is copied.
unsafe impl Hal for Machine {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        let offset = allocate(pages);
        (BASE + offset as u64, arena().pointer(offset, pages * PAGE))
    }

    unsafe fn dma_dealloc(_: PhysAddr, _: NonNull<u8>, _: usize) -> i32 {
        0
    }

    unsafe fn mmio_phys_to_virt(_: PhysAddr, _: usize) -> NonNull<u8> {
        unreachable!("there is no PCI")
    }

    unsafe fn share(buffer: NonNull<[u8]>, direction: BufferDirection) -> PhysAddr {
        let address = BASE + allocate(buffer.len().div_ceil(PAGE)) as u64;
        if direction != BufferDirection::DeviceToDriver {
            // SAFETY: the caller passes a valid buffer, which nothing else accesses during this call.
            arena().write(address, unsafe { buffer.as_ref() }).expect("it was allocated");
        }
        address
    }

    unsafe fn unshare(address: PhysAddr, mut buffer: NonNull<[u8]>, direction: BufferDirection) {
        if direction != BufferDirection::DriverToDevice {
            // SAFETY: as for `share`.
            arena().read(address, unsafe { buffer.as_mut() }).expect("it was allocated");
        }
    }
}

/// A device with its far end, and how the far end is worked.
struct Bus<M, F> {
    device: RefCell<Virtio<M>>,
    far_end: RefCell<F>,
    line: Cell<bool>,
    run: fn(&mut Virtio<M>, &mut F, &mut bool) -> Next,
}

impl<M: Model, F> Bus<M, F> {
    fn new(device: Virtio<M>, far_end: F, run: fn(&mut Virtio<M>, &mut F, &mut bool) -> Next) -> Rc<Self> {
        Rc::new(Self { device: RefCell::new(device), far_end: RefCell::new(far_end), line: Cell::new(false), run })
    }

    fn get(&self, offset: u64) -> u32 {
        self.device.borrow().read(offset, Width::Word) as u32
    }

    fn set(&self, offset: u64, value: u32) {
        let mut line = self.line.get();
        let polls = self.device.borrow_mut().write(offset, Width::Word, value.into(), &mut line);
        self.line.set(line);
        if polls {
            self.poll();
        }
    }

    /// Polls the device until it is idle.
    fn poll(&self) {
        let mut line = self.line.get();
        loop {
            match (self.run)(&mut self.device.borrow_mut(), &mut self.far_end.borrow_mut(), &mut line) {
                Next::Idle => break,
                Next::Again => {}
                next => panic!("{next:?}"),
            }
        }
        self.line.set(line);
    }

    fn wide(&self, select: u64, register: u64) -> u64 {
        (0..2).fold(0, |all, half| {
            self.set(select, half);
            all | u64::from(self.get(register)) << (32 * half)
        })
    }
}

/// The driver's way to the registers, as its own MMIO transport has it.
struct Registers<M, F>(Rc<Bus<M, F>>);

impl<M: Model, F> Transport for Registers<M, F> {
    fn device_type(&self) -> DeviceType {
        DeviceType::try_from(self.0.get(0x008)).expect("a kind of device")
    }

    fn read_device_features(&mut self) -> u64 {
        self.0.wide(0x014, 0x010)
    }

    fn write_driver_features(&mut self, features: u64) {
        for half in 0..2 {
            self.0.set(0x024, half);
            self.0.set(0x020, (features >> (32 * half)) as u32);
        }
    }

    fn max_queue_size(&mut self, queue: u16) -> u32 {
        self.0.set(0x030, queue.into());
        self.0.get(0x034)
    }

    fn notify(&mut self, queue: u16) {
        self.0.set(0x050, queue.into());
    }

    fn get_status(&self) -> DeviceStatus {
        DeviceStatus::from_bits_truncate(self.0.get(0x070))
    }

    fn set_status(&mut self, status: DeviceStatus) {
        self.0.set(0x070, status.bits());
    }

    fn set_guest_page_size(&mut self, _: u32) {}

    fn requires_legacy_layout(&self) -> bool {
        false
    }

    fn queue_set(&mut self, queue: u16, size: u32, descriptors: PhysAddr, driver: PhysAddr, device: PhysAddr) {
        self.0.set(0x030, queue.into());
        self.0.set(0x038, size);
        for (offset, address) in [(0x080, descriptors), (0x090, driver), (0x0a0, device)] {
            self.0.set(offset, address as u32);
            self.0.set(offset + 4, (address >> 32) as u32);
        }
        self.0.set(0x044, 1);
    }

    fn queue_unset(&mut self, queue: u16) {
        self.0.set(0x030, queue.into());
        self.0.set(0x044, 0);
        assert_eq!(self.0.get(0x044), 0);
    }

    fn queue_used(&mut self, queue: u16) -> bool {
        self.0.set(0x030, queue.into());
        self.0.get(0x044) != 0
    }

    fn ack_interrupt(&mut self) -> InterruptStatus {
        let status = self.0.get(0x060);
        self.0.set(0x064, status);
        InterruptStatus::from_bits_truncate(status)
    }

    fn read_config_generation(&self) -> u32 {
        self.0.get(0x0fc)
    }

    fn read_config_space<T: FromBytes + IntoBytes>(&self, offset: usize) -> virtio_drivers::Result<T> {
        let mut value = T::new_zeroed();
        for (at, byte) in (0x100 + offset as u64..).zip(value.as_mut_bytes()) {
            *byte = self.0.device.borrow().read(at, Width::Byte) as u8;
        }
        Ok(value)
    }

    fn write_config_space<T: IntoBytes + Immutable>(&mut self, _: usize, _: T) -> virtio_drivers::Result<()> {
        Err(virtio_drivers::Error::Unsupported)
    }
}

#[test]
fn its_disk() {
    let bus = Bus::new(Block::new(config(false)), FakeDisk::new(), |block, disk, line| {
        let next = block.poll(&arena(), disk, line);
        let was_idle = disk.pending.is_empty();
        disk.finish(block, &arena());
        if was_idle { next } else { Next::Again }
    });
    let mut disk = VirtIOBlk::<Machine, _>::new(Registers(bus.clone())).unwrap();
    assert_eq!((disk.capacity(), disk.readonly()), (SECTORS, false));
    let mut id = [0; 20];
    assert_eq!((disk.device_id(&mut id), id), (Ok(6), ID));
    for round in 0..20_u8 {
        let (first, sectors) = (usize::from(round) * 7, 1 + usize::from(round % 8));
        let written: Vec<u8> = (0..sectors * SECTOR_SIZE).map(|index| index as u8 ^ round).collect();
        disk.write_blocks(first, &written).unwrap();
        let mut read = vec![0; written.len()];
        disk.read_blocks(first, &mut read).unwrap();
        assert!(read == written);
        assert!(bus.far_end.borrow().data[first * SECTOR_SIZE..][..written.len()] == written);
        assert!(disk.ack_interrupt().contains(InterruptStatus::QUEUE_INTERRUPT));
    }
    disk.flush().unwrap();
    assert!(bus.far_end.borrow().stable == bus.far_end.borrow().data);
    assert!(disk.read_blocks(SECTORS as usize, &mut [0; 512]).is_err());
    drop(disk);
    assert_eq!(bus.get(0x044), 0, "its queue is no longer ready");
    // A second driver starts where the first has ended.
    let mut disk = VirtIOBlk::<Machine, _>::new(Registers(bus)).unwrap();
    let mut read = [0; 512];
    disk.read_blocks(7, &mut read).unwrap();
    assert_eq!(read[..3], [1, 0, 3]);
}

#[test]
fn its_console() {
    let wire = Wire { input: b"typed".to_vec(), ..Wire::new() };
    let run = |console: &mut Console, wire: &mut Wire, line: &mut bool| console.poll(&arena(), wire, line);
    let bus = Bus::new(Console::new(132, 43), wire, run);
    let mut console = VirtIOConsole::<Machine, _>::new(Registers(bus.clone())).unwrap();
    let size = console.size().unwrap().expect("the feature SIZE");
    assert_eq!((size.columns, size.rows), (132, 43));
    for chunk in 0..50_u8 {
        console.send_bytes(&[chunk; 100]).unwrap();
    }
    let expected: Vec<u8> = (0..50).flat_map(|chunk| [chunk; 100]).collect();
    assert!(bus.far_end.borrow().output == expected);
    let mut typed = Vec::new();
    for more in [&b""[..], b" and", &[b'x'; 300]] {
        bus.far_end.borrow_mut().input.extend(more);
        bus.poll();
        while let Some(byte) = console.recv(true).unwrap() {
            typed.push(byte);
        }
    }
    assert_eq!(typed, [&b"typed and"[..], &[b'x'; 300]].concat());
    assert!(bus.far_end.borrow().input.is_empty());
}

#[test]
fn its_network_card() {
    let run = |net: &mut Net, cable: &mut Cable, line: &mut bool| net.poll(&arena(), cable, line);
    let bus = Bus::new(Net::new([2, 1, 2, 3, 4, 5]), Cable::new(), run);
    let mut card = VirtIONetRaw::<Machine, _, 16>::new(Registers(bus.clone())).unwrap();
    assert_eq!(card.mac_address(), [2, 1, 2, 3, 4, 5]);
    for length in 14..80_usize {
        let frame = vec![length as u8; length];
        card.send(&frame).unwrap();
        assert_eq!(bus.far_end.borrow().sent.last(), Some(&frame));
    }
    for length in [14_usize, 60, 1514] {
        let mut buffer = vec![0; 1600];
        // SAFETY: the buffer lives, and is not touched, until the frame is complete.
        let token = unsafe { card.receive_begin(&mut buffer) }.unwrap();
        assert_eq!(card.poll_receive(), None);
        bus.far_end.borrow_mut().incoming.push_back(vec![length as u8; length]);
        bus.poll();
        assert_eq!(card.poll_receive(), Some(token));
        // SAFETY: the token and the buffer are those of the call above.
        let (header, received) = unsafe { card.receive_complete(token, &mut buffer) }.unwrap();
        assert_eq!((header, received), (12, length));
        assert!(buffer[header..][..received].iter().all(|byte| *byte == length as u8));
    }
}

#[test]
fn its_entropy() {
    let run = |rng: &mut Rng, source: &mut Source, line: &mut bool| rng.poll(&arena(), source, line);
    let mut rng = VirtIORng::<Machine, _>::new(Registers(Bus::new(Rng::new(), Source::new(), run))).unwrap();
    let mut bytes = [0xff; 40];
    assert_eq!(rng.request_entropy(&mut bytes), Ok(40));
    assert!(bytes.iter().copied().eq(0..40));
    assert_eq!(rng.request_entropy(&mut bytes), Ok(40));
    assert!(bytes.iter().copied().eq(40..80));
}
