// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guest modes: the stage-1 configuration of a guest, and its number of physical address bits.
//!
//! The names are those of KVM's selftests. The numbers are those of Linux 6.12. They changed over time: `-m 4` was
//! P40V48_4K in 2021 (Wang 2021) and is P48V48_16K in Linux 6.12.

use core::fmt;

/// The granule of a guest's stage 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Granule {
    /// 4 KiB.
    Kib4,
    /// 16 KiB.
    Kib16,
    /// 64 KiB.
    Kib64,
}

impl Granule {
    /// Bytes in a page.
    pub const fn size(self) -> u64 {
        1 << self.shift()
    }

    /// log2 of the page size.
    pub const fn shift(self) -> u32 {
        match self {
            Self::Kib4 => 12,
            Self::Kib16 => 14,
            Self::Kib64 => 16,
        }
    }
}

/// A guest mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mode {
    /// The mode's name on a command line: `p40v48-4k`.
    pub name: &'static str,
    /// The mode's number for `-m` in Linux 6.12.
    pub number: u32,
    /// Bits in a guest physical address. `None` (`PXX`): as many as the host has.
    pub pa_bits: Option<u32>,
    /// Bits in a virtual address.
    pub va_bits: u32,
    /// The granule of stage 1.
    pub granule: Granule,
}

/// All modes of Linux 6.12, by number.
pub const MODES: [Mode; 16] = [
    mode("p52v48-4k", 0, Some(52), 48, Granule::Kib4),
    mode("p52v48-16k", 1, Some(52), 48, Granule::Kib16),
    mode("p52v48-64k", 2, Some(52), 48, Granule::Kib64),
    mode("p48v48-4k", 3, Some(48), 48, Granule::Kib4),
    mode("p48v48-16k", 4, Some(48), 48, Granule::Kib16),
    mode("p48v48-64k", 5, Some(48), 48, Granule::Kib64),
    mode("p40v48-4k", 6, Some(40), 48, Granule::Kib4),
    mode("p40v48-16k", 7, Some(40), 48, Granule::Kib16),
    mode("p40v48-64k", 8, Some(40), 48, Granule::Kib64),
    mode("pxxv48-4k", 9, None, 48, Granule::Kib4),
    mode("p47v64-4k", 10, Some(47), 64, Granule::Kib4),
    mode("p44v64-4k", 11, Some(44), 64, Granule::Kib4),
    mode("p36v48-4k", 12, Some(36), 48, Granule::Kib4),
    mode("p36v48-16k", 13, Some(36), 48, Granule::Kib16),
    mode("p36v48-64k", 14, Some(36), 48, Granule::Kib64),
    mode("p36v47-16k", 15, Some(36), 47, Granule::Kib16),
];

/// The four modes that Bras 2026 averages over. A host with fewer than 48 bits and no 16K granule runs them in turn if
/// no `-m` is given.
pub const S0_MODES: [&str; 4] = ["p40v48-4k", "p40v48-64k", "p36v48-4k", "p36v48-64k"];

const fn mode(name: &'static str, number: u32, pa_bits: Option<u32>, va_bits: u32, granule: Granule) -> Mode {
    Mode { name, number, pa_bits, va_bits, granule }
}

impl Mode {
    /// Finds a mode by name or by number. Case does not matter, and `_` stands for `-`.
    pub fn find(text: &str) -> Option<Self> {
        let is = |name: &str| {
            let fold = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
            name.len() == text.len() && name.bytes().zip(text.bytes()).all(|(a, b)| a == fold(b))
        };
        let number = text.parse::<u32>().ok();
        MODES.into_iter().find(|mode| is(mode.name) || number == Some(mode.number))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_found_by_name_and_number() {
        for (number, mode) in MODES.into_iter().enumerate() {
            assert_eq!(mode.number as usize, number);
            assert_eq!(Mode::find(mode.name), Some(mode));
            assert_eq!(Mode::find(&std::format!("{number}")), Some(mode));
        }
        assert_eq!(Mode::find("P40V48_4K").map(|mode| mode.number), Some(6));
        assert_eq!(Mode::find("p40v48"), None);
        assert_eq!(Mode::find("16"), None);
        assert!(S0_MODES.iter().all(|name| Mode::find(name).is_some()));
    }
}
