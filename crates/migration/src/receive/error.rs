// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a guest was not received. The source gets the reason, and the guest stays there.

use alloc::string::String;

use crate::commit::State;
use crate::ram::RamError;
use crate::stream::{Name, ReadError};

/// Why a guest was not received. What had come of it was released.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// A stream cannot be read.
    #[error("stream {stream}: {error}")]
    Read {
        /// The stream, in the order in which the streams were given.
        stream: usize,
        /// Why.
        error: ReadError,
    },
    /// The streams are not those of one migration.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// A page cannot be stored.
    #[error(transparent)]
    Ram(#[from] RamError),
    /// The sections are larger than is allowed.
    #[error("section {name}, instance {instance}, has {size} bytes, and {left} are left of those allowed")]
    SectionSize {
        /// Its name.
        name: Name,
        /// Its instance.
        instance: u32,
        /// Its size.
        size: u64,
        /// The bytes that are left.
        left: u64,
    },
    /// The embedder does not take the guest.
    #[error("{0}")]
    Host(String),
    /// This side has a guest, or is in doubt about one.
    #[error("this side takes no guest now: it is {0:?}")]
    Busy(State),
    /// The source keeps the guest.
    #[error("the source keeps the guest: {0}")]
    Withdrawn(String),
}

/// Why several streams are not those of one migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The number of streams is not what they say.
    #[error("{came} streams came, and their hellos say {said}")]
    Streams {
        /// How many came.
        came: usize,
        /// How many their hellos say.
        said: u16,
    },
    /// A stream is missing, or comes twice.
    #[error("stream {wanted} is missing, and stream {found} came in its place")]
    Number {
        /// The number that is missing.
        wanted: u16,
        /// The number in its place.
        found: u16,
    },
    /// A stream belongs to another migration, or to another guest.
    #[error("stream {stream} has another {what} than stream 0")]
    Differs {
        /// The stream.
        stream: u16,
        /// What differs.
        what: &'static str,
    },
    /// A stream is elsewhere than the others.
    #[error("stream {stream} is at {found}, and stream 0 at {wanted}")]
    Apart {
        /// The stream.
        stream: u16,
        /// Where it is.
        found: &'static str,
        /// Where the first one is.
        wanted: &'static str,
    },
    /// The first round does not have each page.
    #[error("the first round has {came} of the guest's {all} pages in all streams")]
    FirstRound {
        /// How many came.
        came: u64,
        /// The guest's.
        all: u64,
    },
    /// A page came in no round, and is not absent either.
    #[error("page {page:#x} of memslot {slot} came in no round, and is not absent")]
    NeverCame {
        /// The memslot's number.
        slot: u16,
        /// The page.
        page: u64,
    },
    /// A page came in two streams in one round.
    #[error("page {page:#x} of memslot {slot} comes in two streams in one round")]
    Repeated {
        /// The memslot's number.
        slot: u16,
        /// The page.
        page: u64,
    },
    /// A section came in another stream than the first.
    #[error("a section in stream {stream}; sections are in stream 0")]
    Section {
        /// The stream.
        stream: u16,
    },
    /// A record came where it has no meaning.
    #[error("{what} in stream {stream} of a guest that is received")]
    Misplaced {
        /// The record.
        what: &'static str,
        /// The stream.
        stream: u16,
    },
}
