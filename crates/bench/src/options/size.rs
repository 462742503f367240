// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sizes and times on a command line.

use std::str::FromStr;
use std::time::Duration;

/// Bytes: `512M`, `1G`, `4096`, `512MB`; suffixes are powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

/// A time: `100ms`, `10s`, `2m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is not a size: give 512M, 1G, or bytes");
        if let Some(hex) = text.strip_prefix("0x") {
            return u64::from_str_radix(hex, 16).map(Self).map_err(|_| bad());
        }
        let (number, unit) = split(text);
        let number: u64 = number.parse().map_err(|_| bad())?;
        let shift = match unit.to_ascii_uppercase().as_str() {
            "" | "B" => 0,
            "K" | "KB" | "KIB" => 10,
            "M" | "MB" | "MIB" => 20,
            "G" | "GB" | "GIB" => 30,
            "T" | "TB" | "TIB" => 40,
            _ => return Err(bad()),
        };
        number.checked_mul(1 << shift).map(Self).ok_or_else(|| format!("{text} does not fit in 64 bits"))
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is not a time above 0: give 100ms, 10s or 2m");
        let (number, unit) = split(text);
        let number: u32 = number.parse().map_err(|_| bad())?;
        let one = match unit {
            "ms" => Duration::from_millis(1),
            "s" => Duration::from_secs(1),
            "m" => Duration::from_secs(60),
            _ => return Err(bad()),
        };
        Some(one * number).filter(|time| !time.is_zero()).map(Self).ok_or_else(bad)
    }
}

/// Guest memory: a power of two from 1 GiB to 256 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestSize(u64);

impl GuestSize {
    /// The size in bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for GuestSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (digits, shift) = match text.strip_suffix('G') {
            Some(digits) => (digits, 30),
            None => text.strip_suffix('M').map_or((text, 0), |digits| (digits, 20)),
        };
        let number: u64 = digits.parse().map_err(|_| format!("`{text}` is not a size: give 16G, 4096M or bytes"))?;
        let bytes = number.saturating_mul(1 << shift);
        if bytes.is_power_of_two() && (1 << 30..=256 << 30).contains(&bytes) {
            Ok(Self(bytes))
        } else {
            Err(format!("{text} is not a power of two from 1G to 256G"))
        }
    }
}

/// Splits a text into its digits and its unit.
fn split(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("4096", 4096),
            ("64K", 64 << 10),
            ("512MB", 512 << 20),
            ("1g", 1 << 30),
            ("2GiB", 2 << 30),
            ("1T", 1 << 40),
            ("0x1000", 4096),
            ("0", 0),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for bad in ["", "G", "-1", "1X", "1.5G", "1 G", "99999999999T", "0xG", "0x1G"] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_of_guests() {
        assert_eq!("16G".parse(), Ok(GuestSize(16 << 30)));
        assert_eq!("1024M".parse(), Ok(GuestSize(1 << 30)));
        for bad in ["", "G", "3G", "512M", "512G", "-1", "99999999999G"] {
            assert!(bad.parse::<GuestSize>().is_err(), "{bad}");
        }
    }

    #[test]
    fn times() {
        assert_eq!("100ms".parse(), Ok(Span(Duration::from_millis(100))));
        assert_eq!("10s".parse(), Ok(Span(Duration::from_secs(10))));
        assert_eq!("2m".parse(), Ok(Span(Duration::from_secs(120))));
        for bad in ["", "10", "ms", "0s", "-1s", "1h"] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
    }
}
