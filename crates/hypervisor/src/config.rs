// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the guest is to be: read from the bundle, and checked before anything is built from it.
//!
//! The bundle comes from outside: every offset and size in it is checked against its length here, and nowhere
//! later.

use twofold_abi::bundle::{self, Header};
use twofold_abi::virt;
use twofold_memory::Pages;
use zerocopy::FromBytes;

/// A guest to start.
pub struct Config<'a> {
    /// The kernel, a raw arm64 Image.
    pub kernel: &'a [u8],
    /// The initial RAM disk; empty for none.
    pub initrd: &'a [u8],
    /// The kernel's command line.
    pub command_line: &'a str,
    /// Bytes of RAM.
    pub memory: u64,
    /// Number of vCPUs.
    pub cpus: u32,
    /// How large mappings may be.
    pub pages: Pages,
    /// Bits of [`bundle::flags`].
    pub flags: u32,
}

/// Why a bundle was refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not a bundle.
    #[error("what was loaded as initrd is no guest bundle of this version: start the image with `cargo xtask run`")]
    NoBundle,
    /// An offset or size leads outside.
    #[error("the bundle's {what} reaches beyond its end: it was cut off or damaged")]
    CutOff {
        /// Which part.
        what: &'static str,
    },
    /// The command line is no text.
    #[error("the guest's command line is not UTF-8")]
    CommandLine,
    /// A number makes no sense.
    #[error("the bundle asks for {value} {what}: {allowed}")]
    Number {
        /// What it counts.
        what: &'static str,
        /// What it is.
        value: u64,
        /// What it may be.
        allowed: &'static str,
    },
}

impl<'a> Config<'a> {
    /// Reads a bundle.
    pub fn from_bundle(file: &'a [u8]) -> Result<Self, ConfigError> {
        let (header, _) = Header::ref_from_prefix(file).map_err(|_| ConfigError::NoBundle)?;
        if header.magic != bundle::MAGIC {
            return Err(ConfigError::NoBundle);
        }
        let text = header.command_line.get(..header.command_line_size.get() as usize);
        let text = text.ok_or(ConfigError::CutOff { what: "command line" })?;
        let pages = match header.pages.get() {
            bundle::pages::SMALL => Pages::Small,
            bundle::pages::AUTO | bundle::pages::BLOCKS => Pages::Largest,
            value => return Err(number("page policy", value.into(), "0, 1 or 2")),
        };
        let memory = header.memory.get();
        if memory == 0 || !memory.is_multiple_of(4096) {
            return Err(number("bytes of memory", memory, "a multiple of 4096 that is not 0"));
        }
        if header.pages.get() == bundle::pages::BLOCKS && !memory.is_multiple_of(2 << 20) {
            return Err(number("bytes of memory", memory, "with blocks only, a multiple of 2 MiB"));
        }
        let cpus = header.cpus.get();
        if !(1..=virt::MAX_CPUS).contains(&cpus) {
            return Err(number("vCPUs", cpus.into(), "1 to 64"));
        }
        Ok(Self {
            kernel: part(file, "kernel", header.kernel_offset.get(), header.kernel_size.get())?,
            initrd: part(file, "initrd", header.initrd_offset.get(), header.initrd_size.get())?,
            command_line: core::str::from_utf8(text).map_err(|_| ConfigError::CommandLine)?,
            memory,
            cpus,
            pages,
            flags: header.flags.get(),
        })
    }

    /// Whether a bit of [`bundle::flags`] is set.
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}

fn part<'a>(file: &'a [u8], what: &'static str, offset: u64, size: u64) -> Result<&'a [u8], ConfigError> {
    let end = offset.checked_add(size).ok_or(ConfigError::CutOff { what })?;
    file.get(offset as usize..end as usize).ok_or(ConfigError::CutOff { what })
}

fn number(what: &'static str, value: u64, allowed: &'static str) -> ConfigError {
    ConfigError::Number { what, value, allowed }
}
