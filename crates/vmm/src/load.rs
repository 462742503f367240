// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The places of a guest's kernel, initrd and device tree, and the copy to them.
//!
//! The layout follows Linux's Documentation/arch/arm64/booting.rst. The kernel is at `text_offset` from a 2 MiB
//! boundary, with `image_size` bytes to itself. Then come, each at a 2 MiB boundary, the initrd and the device tree. A program
//! for a fixed address is at that address, with the others behind it, and starts as a kernel does.
//!
//! A firmware is at the start of the flash, and looks for the device tree at the start of RAM, as on QEMU's `virt`. The flash
//! is memory like RAM: it takes no commands, and the device tree does not list it.

use twofold_abi::virt;
use twofold_memory::GuestMemory;
use twofold_stage2::{Granule, Ipa, Platform};

use crate::config::Config;
use crate::program::Program;

/// The places in the guest's RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The kernel or the firmware.
    pub kernel: Ipa,
    /// Where the guest starts.
    pub entry: Ipa,
    /// The initrd.
    pub initrd: Ipa,
    /// The device tree.
    pub device_tree: Ipa,
}

/// The most bytes that the device tree may have.
pub const DEVICE_TREE_SIZE: u64 = 64 << 10;
const BOUNDARY: u64 = 2 << 20;

/// Why a kernel cannot be loaded.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The magic number is missing.
    #[error("the kernel is not an arm64 Image (no \"ARM\\x64\" at byte 56); a compressed one has to be unpacked first")]
    NotAnImage,
    /// The kernel's text_offset is too large.
    #[error("the kernel's text_offset {0:#x} is not below 2 MiB")]
    TextOffset(u64),
    /// A program that does not start within itself, or is below RAM.
    #[error(
        "the program at {load:#x}, which starts at {entry:#x}, is not in the guest's RAM, or does not start within itself"
    )]
    Program {
        /// Where it is loaded.
        load: u64,
        /// Where it starts.
        entry: u64,
    },
    /// RAM is too small.
    #[error(
        "{what} does not fit: it would end {over} bytes beyond the guest's {memory} bytes of memory; use a larger --memory"
    )]
    DoesNotFit {
        /// The part.
        what: &'static str,
        /// The bytes that are missing.
        over: u64,
        /// The guest's RAM in bytes.
        memory: u64,
    },
}

impl Layout {
    /// Finds a place for everything.
    pub fn new(config: &Config<'_>) -> Result<Self, LoadError> {
        if config.has_firmware() {
            return Self::of_firmware(config.memory);
        }
        let (offset, size, entry) = match Program::of(config.kernel) {
            Some(program) => of_program(&program)?,
            None => of_image(config.kernel)?,
        };
        let mut at = offset;
        let mut place = |what, size: u64| {
            let start = at;
            let end = start.saturating_add(size);
            if end > config.memory {
                return Err(LoadError::DoesNotFit { what, over: end - config.memory, memory: config.memory });
            }
            at = end.saturating_add(BOUNDARY - 1) & !(BOUNDARY - 1);
            Ok(Ipa::new(virt::RAM_BASE + start))
        };
        let kernel = place("the kernel", size)?;
        Ok(Self {
            kernel,
            entry: entry.unwrap_or(kernel),
            initrd: place("the initrd", config.initrd.len() as u64)?,
            device_tree: place("the device tree", DEVICE_TREE_SIZE)?,
        })
    }

    fn of_firmware(memory: u64) -> Result<Self, LoadError> {
        if let Some(over) = DEVICE_TREE_SIZE.checked_sub(memory).filter(|over| *over > 0) {
            return Err(LoadError::DoesNotFit { what: "the device tree", over, memory });
        }
        let ram = Ipa::new(virt::RAM_BASE);
        let flash = Ipa::new(virt::FLASH_BASE);
        Ok(Self { kernel: flash, entry: flash, initrd: ram, device_tree: ram })
    }

    /// Copies all parts into the guest's memory.
    pub fn load<P: Platform, G: Granule>(
        &self,
        config: &Config<'_>,
        device_tree: &[u8],
        memory: &GuestMemory<P, G>,
    ) -> Result<(), twofold_memory::Error> {
        memory.write(self.kernel, config.program())?;
        memory.write(self.initrd, config.initrd)?;
        memory.write(self.device_tree, device_tree)
    }
}

/// Bytes from the start of RAM to a kernel, its size in memory, and its entry, if that is not its first byte.
type Place = (u64, u64, Option<Ipa>);

fn of_image(kernel: &[u8]) -> Result<Place, LoadError> {
    let field = |at: usize| {
        let bytes = kernel.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u64::from_le_bytes).ok_or(LoadError::NotAnImage)
    };
    if field(56)? as u32 != u32::from_le_bytes(*b"ARM\x64") {
        return Err(LoadError::NotAnImage);
    }
    let (text_offset, image_size) = (field(8)?, field(16)?);
    if text_offset >= BOUNDARY {
        return Err(LoadError::TextOffset(text_offset));
    }
    Ok((text_offset, image_size.max(kernel.len() as u64), None))
}

fn of_program(program: &Program<'_>) -> Result<Place, LoadError> {
    let Program { load, entry, bytes } = *program;
    let offset = load.checked_sub(virt::RAM_BASE).filter(|_| program.has_entry());
    let offset = offset.ok_or(LoadError::Program { load, entry })?;
    Ok((offset, bytes.len() as u64, Some(Ipa::new(entry))))
}
