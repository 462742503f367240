// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a stream cannot be read.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use embedded_io::ErrorKind;

use super::hello::{HelloError, Refusal};
use super::message::MessageError;
use super::order::OrderError;
use super::page::PageError;
use super::slots::SlotError;
use super::wire::{OLDEST, PAYLOAD_MAX, VERSION};

/// Why a stream cannot be read further, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record {record}, which starts at byte {offset}: {cause}")]
pub struct ReadError {
    /// The record's number, from 0.
    pub record: u64,
    /// The offset of its first byte.
    pub offset: u64,
    /// What is wrong with it.
    pub cause: Cause,
}

/// What is wrong with a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The source failed.
    #[error("the stream's source failed: {}", failure(*.0))]
    Source(ErrorKind),
    /// The bytes end here.
    #[error("the stream is cut")]
    Cut,
    /// An error came before.
    #[error("the stream has failed before")]
    Failed,
    /// These bytes are no stream.
    #[error("no migration stream: it starts with {0:02x?}")]
    Magic([u8; 8]),
    /// It has a version that this reader does not read.
    #[error("a stream of version {0}, and this target reads {OLDEST} to {VERSION}")]
    Version(u32),
    /// A field that has to be zero is not.
    #[error("a reserved field of {0} is not zero")]
    Reserved(&'static str),
    /// The record does not continue the stream.
    #[error("does not follow the record before it: changed, repeated, out of order, or of another stream")]
    Chain,
    /// The payload is not what was sent.
    #[error("the payload's checksum is {found:#018x}, and the header says {wanted:#018x}")]
    Checksum {
        /// Of the bytes that came.
        found: u64,
        /// Of the bytes that were sent.
        wanted: u64,
    },
    /// There is no such record.
    #[error("a record of kind {0}")]
    Kind(u8),
    /// The payload is too long.
    #[error("a payload of {0} bytes; {PAYLOAD_MAX} are the most")]
    Length(u32),
    /// This target cannot take the guest.
    #[error("{}", Refusals(.0))]
    Refused(Vec<Refusal>),
    /// The hello is none.
    #[error(transparent)]
    Hello(#[from] HelloError),
    /// The record does not belong here.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// A page's bytes are none.
    #[error(transparent)]
    Page(#[from] PageError),
    /// A message's bytes are none.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// A section's head is none.
    #[error("a section's head of {0} bytes, or with no name")]
    Section(usize),
    /// Absent pages are no bitmap.
    #[error("absent pages of {0} bytes")]
    Absent(usize),
    /// An end has no ownership.
    #[error("an end of {0} bytes, or with the last epoch")]
    End(usize),
}

impl From<SlotError> for Cause {
    fn from(error: SlotError) -> Self {
        Self::Order(error.into())
    }
}

/// Lists all refusals.
struct Refusals<'a>(&'a [Refusal]);

impl core::fmt::Display for Refusals<'_> {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for (index, refusal) in self.0.iter().enumerate() {
            write!(formatter, "{}{refusal}", if index > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

/// What a failure of the link means. A sealed link says that data is invalid if they are not what the other side has sealed for it.
fn failure(kind: ErrorKind) -> Cow<'static, str> {
    match kind {
        ErrorKind::InvalidData => "what came was changed on the link, or is another link's".into(),
        ErrorKind::ConnectionReset => "the link was cut".into(),
        ErrorKind::TimedOut => "nothing came for too long".into(),
        kind => alloc::format!("{kind:?}").into(),
    }
}
