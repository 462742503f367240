// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The firmware's services, each as a function that cannot be called wrongly.
//!
//! Invariant: a [`Firmware`] exists only while the boot services do. [`Firmware::exit_boot_services`] is the last call: its
//! caller makes no other one after a success.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::fmt::{self, Write};
use core::ops::Range;
use core::ptr::NonNull;

use uefi_raw::protocol::console::SimpleTextOutputProtocol;
use uefi_raw::protocol::device_path::DevicePathProtocol;
use uefi_raw::table::boot::{AllocateType, BootServices, MemoryAttribute, MemoryDescriptor, MemoryType};
use uefi_raw::table::system::SystemTable;
use uefi_raw::{Guid, Handle, Status};

/// Bytes of EFI's pages.
const PAGE: u64 = 4096;

/// The firmware, while its boot services exist.
pub struct Firmware {
    /// The image's handle.
    pub image: Handle,
    table: &'static SystemTable,
    services: &'static BootServices,
}

/// Why the memory map could not be read.
pub enum MapError<E> {
    /// The firmware's reason.
    Firmware(Status),
    /// The caller's.
    Caller(E),
}

impl Firmware {
    /// `None`: the table is not one of a firmware with boot services.
    ///
    /// # Safety
    /// They must be the arguments of an EFI application's entry point, and the boot services must not have ended.
    pub unsafe fn new(image: Handle, table: *const SystemTable) -> Option<Self> {
        // SAFETY: the caller's promise. The table and the services stay until the boot services end.
        let table = unsafe { table.as_ref() }?;
        // SAFETY: as above.
        let services = unsafe { table.boot_services.as_ref() }?;
        (table.header.signature == SystemTable::SIGNATURE).then_some(Self { image, table, services })
    }

    /// The entry of the configuration table with this GUID.
    pub fn configuration(&self, guid: &Guid) -> Option<*const c_void> {
        let count = self.table.number_of_configuration_table_entries;
        (0..count).find_map(|index| {
            // SAFETY: the firmware has this number of entries there.
            let entry = unsafe { &*self.table.configuration_table.add(index) };
            (entry.vendor_guid == *guid && !entry.vendor_table.is_null()).then_some(entry.vendor_table.cast_const())
        })
    }

    /// The interface of a handle. `T` must be the type of the protocol with this GUID.
    ///
    /// # Safety
    /// `handle` must be one that the firmware gave.
    pub unsafe fn protocol<T>(&self, handle: Handle, guid: &Guid) -> Result<NonNull<T>, Status> {
        let mut interface = core::ptr::null_mut();
        // SAFETY: the caller's promise.
        done(unsafe { (self.services.handle_protocol)(handle, guid, &mut interface) })?;
        NonNull::new(interface.cast()).ok_or(Status::NOT_FOUND)
    }

    /// The handle of a device path that has this protocol, and the rest of the path.
    ///
    /// # Safety
    /// `path` must begin a device path that ends.
    pub unsafe fn device(
        &self,
        mut path: *const DevicePathProtocol,
        guid: &Guid,
    ) -> Result<(Handle, *const DevicePathProtocol), Status> {
        let mut handle = core::ptr::null_mut();
        // SAFETY: the caller's promise.
        done(unsafe { (self.services.locate_device_path)(guid, &mut path, &mut handle) })?;
        Ok((handle, path))
    }

    /// Fresh pages for `size` bytes. The firmware's memory map then says that the image's program has them.
    pub fn allocate(&self, size: usize) -> Result<&'static mut [u8], Status> {
        let mut address = 0;
        let pages = size.div_ceil(PAGE as usize).max(1);
        // SAFETY: the firmware only writes the address.
        done(unsafe {
            (self.services.allocate_pages)(AllocateType::ANY_PAGES, MemoryType::LOADER_DATA, pages, &mut address)
        })?;
        let start = core::ptr::with_exposed_provenance_mut::<u8>(address as usize);
        // SAFETY: the pages are the caller's alone from now on. Any byte is a `u8`: they are zeroed before they are seen.
        Ok(unsafe {
            start.write_bytes(0, size);
            core::slice::from_raw_parts_mut(start, size)
        })
    }

    /// Calls `add` for each range of memory that is free when the boot services have ended, and that can be cached. Returns
    /// the key for [`exit_boot_services`](Self::exit_boot_services).
    pub fn usable_memory<E>(&mut self, mut add: impl FnMut(Range<u64>) -> Result<(), E>) -> Result<usize, MapError<E>> {
        /// The firmware's own map has one to two hundred entries of 40 or 48 bytes. The room is in .bss: an allocation
        /// would change the map.
        const ROOM: usize = 64 << 10;
        #[repr(C, align(16))]
        struct Room(UnsafeCell<[u8; ROOM]>);
        // SAFETY: `&mut self` is the only `Firmware`, and one CPU runs.
        unsafe impl Sync for Room {}
        static MAP: Room = Room(UnsafeCell::new([0; ROOM]));

        let (mut size, mut key, mut step, mut version) = (ROOM, 0, 0, 0);
        let map = MAP.0.get().cast::<u8>();
        // SAFETY: `map` has room for `size` bytes, aligned as descriptors are.
        done(unsafe { (self.services.get_memory_map)(&mut size, map.cast(), &mut key, &mut step, &mut version) })
            .map_err(MapError::Firmware)?;
        if step < size_of::<MemoryDescriptor>() || !step.is_multiple_of(align_of::<MemoryDescriptor>()) || size > ROOM {
            return Err(MapError::Firmware(Status::INCOMPATIBLE_VERSION));
        }
        for place in (0..size / step).map(|index| index * step) {
            // SAFETY: the firmware has written a descriptor there.
            let descriptor = unsafe { &*map.add(place).cast::<MemoryDescriptor>() };
            let end = descriptor.page_count.checked_mul(PAGE).and_then(|size| descriptor.phys_start.checked_add(size));
            if let Some(end) = end.filter(|_| is_usable(descriptor)) {
                add(descriptor.phys_start..end).map_err(MapError::Caller)?;
            }
        }
        Ok(key)
    }

    /// Ends the boot services, if `key` is that of the present memory map. After a success no service may be called.
    pub fn exit_boot_services(&mut self, key: usize) -> Result<(), Status> {
        // SAFETY: the image's own handle.
        done(unsafe { (self.services.exit_boot_services)(self.image, key) })
    }

    /// Prints to the firmware's console, as far as there is one.
    pub fn print(&self, text: fmt::Arguments<'_>) {
        let Some(console) = NonNull::new(self.table.stdout) else { return };
        // A console that fails cannot report it.
        let _ = Console(console).write_fmt(text);
    }
}

/// A status as a result. Warnings are successes.
pub fn done(status: Status) -> Result<(), Status> {
    if status.is_error() { Err(status) } else { Ok(()) }
}

/// UEFI 2.10, table 7.10: what the operating system may use when the boot services have ended.
fn is_usable(descriptor: &MemoryDescriptor) -> bool {
    const FREE: [MemoryType; 5] = [
        MemoryType::LOADER_CODE,
        MemoryType::LOADER_DATA,
        MemoryType::BOOT_SERVICES_CODE,
        MemoryType::BOOT_SERVICES_DATA,
        MemoryType::CONVENTIONAL,
    ];
    FREE.contains(&descriptor.ty)
        && descriptor.att.contains(MemoryAttribute::WRITE_BACK)
        && !descriptor.att.contains(MemoryAttribute::RUNTIME)
}

struct Console(NonNull<SimpleTextOutputProtocol>);

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // The protocol takes strings that end with zero.
        for unit in text.encode_utf16() {
            let string = [unit, 0];
            // SAFETY: the firmware's own console, and a string that ends.
            let status = unsafe { ((*self.0.as_ptr()).output_string)(self.0.as_ptr(), string.as_ptr()) };
            done(status).map_err(|_| fmt::Error)?;
        }
        Ok(())
    }
}
