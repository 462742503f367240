// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The head of a section: a part of a guest's state, or an image that its reset needs. It is the same in what the hypervisor
//! saves (`docs/control.md`) and in a migration's stream (`docs/migration.md`).

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a name, padded with zeros.
pub const NAME_SIZE: usize = 24;

/// What comes before the section's bytes. All numbers are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Head {
    /// The section's name.
    pub name: [u8; NAME_SIZE],
    /// The instance, if there are several of that name.
    pub instance: U32,
    /// The version of the section's content.
    pub version: U32,
    /// The section's size in bytes, without this head.
    pub size: U64,
}

/// The text of a name, or `None` if these bytes are none: 1 to 24 of `[a-z0-9._-]`, and then zeros.
#[must_use]
pub fn name(bytes: &[u8; NAME_SIZE]) -> Option<&str> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(NAME_SIZE);
    let (text, padding) = bytes.split_at(end);
    let is_good = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-');
    let is_name = end > 0 && text.iter().all(is_good) && padding.iter().all(|byte| *byte == 0);
    if is_name { core::str::from_utf8(text).ok() } else { None }
}

/// A name's bytes, or `None` if the text is no name.
#[must_use]
pub fn padded(text: &str) -> Option<[u8; NAME_SIZE]> {
    let mut bytes = [0; NAME_SIZE];
    bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
    name(&bytes).is_some_and(|name| name.len() == text.len()).then_some(bytes)
}

impl Head {
    /// The first section of `bytes`: its head, its content, and the bytes after it. `None` if they are cut.
    #[must_use]
    pub fn split(bytes: &[u8]) -> Option<(&Self, &[u8], &[u8])> {
        let (head, rest) = Self::ref_from_prefix(bytes).ok()?;
        let (content, rest) = rest.split_at_checked(usize::try_from(head.size.get()).ok()?)?;
        Some((head, content, rest))
    }
}
