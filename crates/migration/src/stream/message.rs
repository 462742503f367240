// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What source and target say to each other beside the guest: answers to the hello, and the commit.

use alloc::string::String;
use alloc::vec::Vec;

use zerocopy::{FromBytes, IntoBytes};

use super::wire::{OwnershipRow, TEXT_MAX, WHOLE, message};
use crate::commit::{Owner, Ownership};

/// A message. The commit's protocol ([`crate::commit`]) says what each means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Target to source: the hello is accepted.
    Accepted,
    /// Target to source: the target refuses, and why.
    Refused(String),
    /// Either way: the side has taken the guest, and the owner record holds this.
    Taken(Ownership),
    /// Source to target: the source keeps the guest, and why. Nothing was offered yet.
    Withdrawn(String),
    /// Target to source: all absent pages have come, so the source may release them. From version 2 on.
    Complete,
}

/// The content of a message is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// There is no such message.
    #[error("a message of form {0}")]
    Form(u8),
    /// The payload is none of that message.
    #[error("a payload of {length} bytes in a message of form {form}")]
    Payload {
        /// The message.
        form: u8,
        /// Its size.
        length: usize,
    },
}

impl Message {
    pub(super) fn to_form_and_bytes(&self) -> (u8, Vec<u8>) {
        match self {
            Self::Accepted => (message::ACCEPTED, Vec::new()),
            Self::Refused(why) => (message::REFUSED, text(why)),
            Self::Taken(now) => (message::TAKEN, ownership_bytes(*now)),
            Self::Withdrawn(why) => (message::WITHDRAWN, text(why)),
            Self::Complete => (message::COMPLETE, Vec::new()),
        }
    }

    pub(super) fn from_form_and_bytes(form: u8, bytes: &[u8], version: u32) -> Result<Self, MessageError> {
        let wrong = MessageError::Payload { form, length: bytes.len() };
        let nothing = || if bytes.is_empty() { Ok(()) } else { Err(wrong) };
        let text = || match core::str::from_utf8(bytes) {
            Ok(text) if text.len() <= TEXT_MAX => Ok(String::from(text)),
            _ => Err(wrong),
        };
        let ownership = || ownership(bytes).ok_or(wrong);
        match form {
            message::ACCEPTED => nothing().map(|()| Self::Accepted),
            message::REFUSED => text().map(Self::Refused),
            message::TAKEN => ownership().map(Self::Taken),
            message::WITHDRAWN => text().map(Self::Withdrawn),
            message::COMPLETE if version > WHOLE => nothing().map(|()| Self::Complete),
            _ => Err(MessageError::Form(form)),
        }
    }
}

/// Returns the text's bytes; if there are too many, as many characters as fit.
fn text(text: &str) -> Vec<u8> {
    let end = (0..=TEXT_MAX.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    text.as_bytes()[..end].to_vec()
}

pub(super) fn ownership_bytes(Ownership { owner, epoch }: Ownership) -> Vec<u8> {
    let row = OwnershipRow { host: owner.host.into(), incarnation: owner.incarnation.into(), epoch: epoch.into() };
    row.as_bytes().to_vec()
}

/// Returns the ownership that the bytes hold, unless its epoch is the last number, which has no next.
pub(super) fn ownership(bytes: &[u8]) -> Option<Ownership> {
    let row = OwnershipRow::read_from_bytes(bytes).ok()?;
    let owner = Owner { host: row.host.get(), incarnation: row.incarnation.get() };
    Some(Ownership { owner, epoch: row.epoch.get() }).filter(|ownership| ownership.epoch < u64::MAX)
}
