// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A number of bytes with a unit: `512M`.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

use crate::guest;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Size(u64);

impl Size {
    /// The number of bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
        let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
            "" | "B" => 0,
            "K" | "KIB" => 10,
            "M" | "MIB" => 20,
            "G" | "GIB" => 30,
            _ => return Err("give a number of bytes, or one with K, M or G, such as 512M".to_owned()),
        };
        let number: u64 = digits.parse().map_err(|_| "give a whole number, such as 512M or 1G".to_owned())?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(|| "that is more than 64 bits can count".to_owned())
    }
}

impl TryFrom<String> for Size {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Size {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&guest::size(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_units() {
        let bytes = |text: &str| text.parse::<Size>().map(Size::bytes).ok();
        assert_eq!(bytes("4096"), Some(4096));
        assert_eq!(bytes("64k"), Some(64 << 10));
        assert_eq!(bytes("512M"), Some(512 << 20));
        assert_eq!(bytes("1GiB"), Some(1 << 30));
        for bad in ["", "M", "-1M", "1.5G", "1T", "99999999999G"] {
            assert_eq!(bytes(bad), None, "{bad}");
        }
    }

    #[test]
    fn prints_the_largest_unit_that_fits() {
        for text in ["512M", "1G", "3K", "4097", "0"] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), text);
        }
        assert_eq!("1024M".parse::<Size>().unwrap().to_string(), "1G");
    }
}
