// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The image as an EFI application: from the firmware's jump to the state in which a boot loader enters the image.
//!
//! `boot.s` relocates the image and calls [`enter`], which runs on the firmware's stack, under its MMU and its interrupts.
//!
//! - E1 The CPU must be at EL2.
//! - E2 The configuration table has the device tree. A machine that is described by ACPI alone is refused.
//! - E3 The bundle is loaded into pages of its own ([`bundle`]).
//! - E4 The memory map is read, and becomes the [`Handover`].
//! - E5 The boot services end, by the key of that map. If the map has changed meanwhile, E4 is repeated.
//! - E6 `boot.s` cleans the image to the point of coherency, turns MMU and caches off, and goes to the entry that boot
//!   loaders use. The tree and the bundle need no cleaning: they are read with the caches on.
//!
//! Invariant: until E5 the image can return: a refusal leaves a status, a reason on the firmware's console, and at most the
//! bundle's pages. After E5 nothing of the firmware is called.

mod bundle;
mod firmware;

use spin::Once;
use thiserror::Error;
use uefi_raw::table::system::SystemTable;
use uefi_raw::{Guid, Handle, Status, guid};

use crate::handover::{Handover, MAX_USABLE, TooMany};
use crate::read_sysreg;
use firmware::{Firmware, MapError};

/// What EFI handed over, if it started the image.
pub(crate) fn handover() -> Option<&'static Handover> {
    HANDOVER.get()
}

// Not in .bss, which boot.s zeroes after this was written.
#[unsafe(link_section = ".data.handover")]
static HANDOVER: Once<Handover> = Once::new();

/// Why the image does not start.
#[derive(Debug, Error)]
enum Refused {
    #[error(
        "this CPU runs at EL{0}, and a hypervisor needs EL2: switch the machine's virtualization on (QEMU: \
         -M virt,virtualization=on)"
    )]
    NotEl2(u64),
    #[error(
        "the firmware gives no device tree, and ACPI tables are not read: have it give one (QEMU: -M virt,acpi=off); \
         docs/boards.md has more"
    )]
    NoDeviceTree,
    #[error(
        "there is no bundle: give it as the initrd, or as the file twofold.bundle on this program's volume, or name it by \
         initrd=FILE"
    )]
    NoBundle,
    #[error("the bundle cannot be loaded: {0:?}")]
    Bundle(Status),
    #[error("the firmware's memory map cannot be used: {0:?}")]
    Map(Status),
    #[error("the firmware's memory map has more than {MAX_USABLE} pieces of free memory")]
    TooManyPieces,
    #[error("the boot services do not end: {0:?}")]
    Exit(Status),
}

/// What `boot.s` gets: a status that is an error, or the device tree.
#[repr(C)]
pub(crate) struct Entered {
    status: Status,
    dtb: *const u8,
}

/// Does E1 to E5.
///
/// # Safety
/// The firmware's arguments of the entry point, once, on the firmware's stack, before the boot services end.
pub(crate) unsafe extern "C" fn enter(image: Handle, table: *const SystemTable) -> Entered {
    let refused = |status| Entered { status, dtb: core::ptr::null() };
    // SAFETY: the caller's promise.
    let Some(mut firmware) = (unsafe { Firmware::new(image, table) }) else {
        return refused(Status::INVALID_PARAMETER);
    };
    match leave(&mut firmware) {
        Ok(dtb) => Entered { status: Status::SUCCESS, dtb },
        Err(reason) => {
            firmware.print(format_args!("twofold: {reason}\r\n"));
            refused(reason.status())
        }
    }
}

/// EFI_DTB_TABLE_GUID (Embedded Base Boot Requirements 2.1, 2.4.1).
const DEVICE_TREE: Guid = guid!("b1b621d5-f19c-41a5-830b-d9152c69aae0");

fn leave(firmware: &mut Firmware) -> Result<*const u8, Refused> {
    let level = read_sysreg!(CurrentEL) >> 2 & 0b11;
    if level != 2 {
        return Err(Refused::NotEl2(level));
    }
    let dtb = firmware.configuration(&DEVICE_TREE).ok_or(Refused::NoDeviceTree)?;
    let bundle = bundle::load(firmware)?;
    let mut attempts = 0;
    loop {
        let mut handover = Handover::new(bundle.clone());
        let key = firmware.usable_memory(|range| handover.add(range)).map_err(Refused::from)?;
        match firmware.exit_boot_services(key) {
            Ok(()) => {
                HANDOVER.call_once(|| handover);
                return Ok(dtb.cast());
            }
            // UEFI 2.10, 7.4.6: only the memory map may be read again.
            Err(Status::INVALID_PARAMETER) if attempts < 3 => attempts += 1,
            Err(status) => return Err(Refused::Exit(status)),
        }
    }
}

impl Refused {
    fn status(&self) -> Status {
        match self {
            Self::NotEl2(_) | Self::NoDeviceTree => Status::UNSUPPORTED,
            Self::NoBundle => Status::NOT_FOUND,
            Self::TooManyPieces => Status::OUT_OF_RESOURCES,
            Self::Bundle(status) | Self::Map(status) | Self::Exit(status) => *status,
        }
    }
}

impl From<MapError<TooMany>> for Refused {
    fn from(error: MapError<TooMany>) -> Self {
        match error {
            MapError::Firmware(status) => Self::Map(status),
            MapError::Caller(TooMany) => Self::TooManyPieces,
        }
    }
}
