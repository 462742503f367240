// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's name, by which commands and messages refer to it.
//!
//! Invariant: a [`Name`] needs no quoting anywhere, because it has only letters from `a` to `z`, digits and hyphens.

use core::fmt;

use thiserror::Error;
use twofold_abi::bundle::NAME_MAX;

/// A guest's name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// The name, padded with zeros.
    bytes: [u8; NAME_MAX + 1],
}

/// The text is not a name.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("--name: a name has 1 to {NAME_MAX} characters, each a letter from a to z, a digit or a hyphen")]
pub struct NotAName;

impl Name {
    /// The name `text`.
    pub fn new(text: &str) -> Result<Self, NotAName> {
        let mut bytes = [0; NAME_MAX + 1];
        bytes.get_mut(..text.len()).ok_or(NotAName)?.copy_from_slice(text.as_bytes());
        // A zero at the end of the text would be taken for padding.
        Self::from_padded(bytes).ok().filter(|name| name.as_str() == text).ok_or(NotAName)
    }

    /// The name in a bundle, padded with zeros.
    pub fn from_padded(bytes: [u8; NAME_MAX + 1]) -> Result<Self, NotAName> {
        let size = size(&bytes);
        let is_plain = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
        let is_name = (1..=NAME_MAX).contains(&size) && bytes[..size].iter().all(is_plain);
        let is_padded = bytes[size..].iter().all(|byte| *byte == 0);
        if is_name && is_padded { Ok(Self { bytes }) } else { Err(NotAName) }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        // Each byte is ASCII by the invariant.
        core::str::from_utf8(&self.bytes[..size(&self.bytes)]).unwrap_or_default()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), formatter)
    }
}

fn size(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len())
}
