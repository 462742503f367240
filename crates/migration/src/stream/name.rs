// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names in a stream: of machine models, features and sections.

use core::fmt;

use twofold_abi::section::{self, NAME_SIZE};

/// A name of 1 to 24 bytes: lower-case letters, digits, `-`, `.` and `_`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name([u8; NAME_SIZE]);

impl Name {
    /// Returns `text` as a name, or `None` if it is none.
    pub fn new(text: &str) -> Option<Self> {
        section::padded(text).map(Self)
    }

    /// Returns the name that these bytes hold, padded with zeros.
    pub fn from_bytes(bytes: [u8; NAME_SIZE]) -> Option<Self> {
        section::name(&bytes).is_some().then_some(Self(bytes))
    }

    /// Returns the bytes, padded with zeros.
    pub const fn bytes(self) -> [u8; NAME_SIZE] {
        self.0
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        section::name(&self.0).unwrap_or_default()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_name_is_a_name() {
        let longest = "a.name-of_24.characters.";
        assert_eq!(Name::new(longest).unwrap().as_str(), longest);
        for text in ["", "a.name-of_25.characters..", "Upper", "with space", "ze\0ro", "é"] {
            assert_eq!(Name::new(text), None, "{text}");
        }
        let mut bytes = Name::new("short").unwrap().bytes();
        bytes[23] = b'x';
        assert_eq!(Name::from_bytes(bytes), None);
    }
}
