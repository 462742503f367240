// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory map of the virtual machine, in intermediate physical addresses (IPA).
//!
//! It is the map of QEMU's `virt` machine, so a guest that is built for `virt` boots here. The machine's own device
//! tree decides the *physical* addresses behind it.

/// Start of the flash of a guest that starts in a firmware. It has two banks side by side: the first begins with the
/// firmware, which is entered at this address; in the second a firmware keeps its settings. QEMU's `virt` has the same.
pub const FLASH_BASE: u64 = 0;
/// Size of both banks in bytes.
pub const FLASH_SIZE: u64 = 0x0800_0000;
/// Start of the GICv3 distributor.
pub const GICD_BASE: u64 = 0x0800_0000;
/// Size of the GICv3 distributor in bytes.
pub const GICD_SIZE: u64 = 0x1_0000;
/// Start of the GICv3 redistributors, one after the other, in the order of the vCPUs.
pub const GICR_BASE: u64 = 0x080A_0000;
/// Size of one vCPU's redistributor in bytes (`RD_base` and `SGI_base` frames of 64 KiB each).
pub const GICR_SIZE: u64 = 0x2_0000;
/// Start of the PL011 UART.
pub const UART_BASE: u64 = 0x0900_0000;
/// Size of the PL011 UART in bytes.
pub const UART_SIZE: u64 = 0x1000;
/// The UART's interrupt, as an INTID.
pub const UART_INTERRUPT: u32 = 33;
/// Start of the PL031 clock.
pub const RTC_BASE: u64 = 0x0901_0000;
/// Size of the PL031 clock in bytes.
pub const RTC_SIZE: u64 = 0x1000;
/// The clock's interrupt, as an INTID.
pub const RTC_INTERRUPT: u32 = 34;
/// The interrupt of the virtual timer, as an INTID.
pub const VIRTUAL_TIMER_INTERRUPT: u32 = 27;
/// The interrupt of the physical timer, as an INTID.
pub const PHYSICAL_TIMER_INTERRUPT: u32 = 30;
/// Start of the RAM for the vCPUs' [stolen time](crate::pv_time), one structure after the other in the order of the
/// vCPUs. No device tree lists it as memory. QEMU's `virt` has it here too.
pub const STOLEN_TIME_BASE: u64 = 0x090A_0000;
/// Bytes of that RAM.
pub const STOLEN_TIME_SIZE: u64 = 0x1_0000;
/// The numbers of a guest's memslots, where commands and streams name them.
pub mod memslot {
    /// The flash, if the guest has a firmware.
    pub const FLASH: u8 = 0;
    /// The vCPUs' stolen time.
    pub const STOLEN_TIME: u8 = 1;
    /// RAM.
    pub const RAM: u8 = 2;
}
/// Start of the transports of virtio devices, one after the other.
pub const VIRTIO_BASE: u64 = 0x0A00_0000;
/// Bytes of one transport's registers.
pub const VIRTIO_SIZE: u64 = 0x200;
/// How many transports there are. A guest's devices have the first ones: disks, network cards, console, random bytes.
pub const VIRTIO_COUNT: usize = 32;
/// The first transport's interrupt, as an INTID. The others' follow.
pub const VIRTIO_INTERRUPT: u32 = 48;
/// Start of guest RAM.
pub const RAM_BASE: u64 = 0x4000_0000;
/// The virtual address of an experiment's [test memory](crate::bundle::Guest::test_start), the same as in KVM's
/// selftests. RAM, which has the same place in both, ends below it.
pub const TEST_VA: u64 = 0xc000_0000;
/// The most vCPUs that a guest may have; their redistributors fit before the UART.
pub const MAX_CPUS: u32 = 64;

const _: () = assert!(FLASH_BASE + FLASH_SIZE <= GICD_BASE && FLASH_SIZE == 2 * crate::bundle::FIRMWARE_MAX);
const _: () = assert!(MAX_CPUS as u64 * crate::pv_time::structure::SIZE <= STOLEN_TIME_SIZE);
