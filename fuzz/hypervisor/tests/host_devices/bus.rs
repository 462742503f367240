// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine: memory that driver and device share, and registers with a model behind them.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::rc::Rc;

use twofold_devices::virtio::{Model, Next, Virtio};
use twofold_devices::{GuestRam, RamError, Width};
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use virtio_drivers::{BufferDirection, Hal, PAGE_SIZE, PhysAddr};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Memory that the device reaches by the driver's addresses, as at EL2.
pub struct Machine;

fn layout(pages: usize) -> Layout {
    Layout::from_size_align(pages * PAGE_SIZE, PAGE_SIZE).unwrap()
}

// SAFETY: the pages are the allocator's: valid, aligned, zeroed, and nothing else has them. The device reaches memory by the
// driver's addresses.
unsafe impl Hal for Machine {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        // SAFETY: the size is not 0.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout(pages)) }).unwrap();
        (memory.as_ptr().expose_provenance() as u64, memory)
    }

    unsafe fn dma_dealloc(_: PhysAddr, memory: NonNull<u8>, pages: usize) -> i32 {
        // SAFETY: it was allocated above.
        unsafe { dealloc(memory.as_ptr(), layout(pages)) };
        0
    }

    unsafe fn mmio_phys_to_virt(_: PhysAddr, _: usize) -> NonNull<u8> {
        unreachable!("there is no PCI")
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        buffer.as_ptr().expose_provenance() as u64
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}

/// What the device reaches: what the driver has shared.
pub struct Memory;

impl GuestRam for Memory {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), RamError> {
        let from = std::ptr::with_exposed_provenance::<u8>(address as usize);
        // SAFETY: the driver shares valid memory, and the model reaches only what it is given.
        unsafe { from.copy_to(bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), RamError> {
        let to = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
        // SAFETY: as for a read.
        unsafe { to.copy_from(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }
}

/// A device, and its far end.
pub struct Bus<M, F> {
    pub device: RefCell<Virtio<M>>,
    pub far_end: RefCell<F>,
    pub line: Cell<bool>,
    pub is_notified: Cell<bool>,
}

impl<M: Model, F> Bus<M, F> {
    pub fn new(device: Virtio<M>, far_end: F) -> Rc<Self> {
        let (line, is_notified) = (Cell::new(false), Cell::new(false));
        Rc::new(Self { device: RefCell::new(device), far_end: RefCell::new(far_end), line, is_notified })
    }

    /// The device works, if it was notified.
    pub fn poll(&self, poll: impl Fn(&mut Virtio<M>, &mut F, &mut bool) -> Next) {
        let mut line = self.line.get();
        if self.is_notified.take() {
            while poll(&mut self.device.borrow_mut(), &mut self.far_end.borrow_mut(), &mut line) == Next::Again {}
        }
        self.line.set(line);
    }

    fn get(&self, offset: u64) -> u32 {
        self.device.borrow().read(offset, Width::Word) as u32
    }

    fn set(&self, offset: u64, value: u32) {
        let mut line = self.line.get();
        let polls = self.device.borrow_mut().write(offset, Width::Word, value.into(), &mut line);
        self.line.set(line);
        self.is_notified.set(self.is_notified.get() || polls);
    }
}

/// The driver's way to the registers.
pub struct Registers<M, F>(pub Rc<Bus<M, F>>);

impl<M: Model, F> Transport for Registers<M, F> {
    fn device_type(&self) -> DeviceType {
        DeviceType::try_from(self.0.get(0x008)).unwrap()
    }

    fn read_device_features(&mut self) -> u64 {
        (0..2).fold(0, |all, half| {
            self.0.set(0x014, half);
            all | u64::from(self.0.get(0x010)) << (32 * half)
        })
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
    }

    fn queue_used(&mut self, queue: u16) -> bool {
        self.0.set(0x030, queue.into());
        self.0.get(0x044) != 0
    }

    fn ack_interrupt(&mut self) -> InterruptStatus {
        InterruptStatus::empty()
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
