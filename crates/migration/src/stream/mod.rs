// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The stream that carries a guest: a versioned wire format, its writer and its reader.
//!
//! `docs/migration.md` specifies the bytes. A stream is a preamble and records. Each record has a checksum of its payload,
//! and a checksum that continues the record before it ([`wire`]), so a stream that was cut, or has a record changed,
//! repeated or out of order, is refused where that begins. These checksums keep out accidents. Against a forger,
//! the stream needs a transport that authenticates.
//!
//! Any byte stream carries it (`embedded_io`): a socket, a channel to the host, a file. A snapshot is the same stream in a
//! file. Several streams may carry one migration ([`Hello::stream`]): each has a hello, the memslots, and some of each
//! round's pages.

mod error;
mod hello;
mod message;
mod name;
mod order;
mod page;
mod reader;
mod record;
mod slots;
pub mod wire;
mod writer;

pub use error::{Cause, ReadError};
pub use hello::{Capabilities, Feature, Hello, HelloError, Refusal};
pub use message::{Message, MessageError};
pub use name::Name;
pub use order::{OrderError, Progress};
pub(crate) use page::is_zero;
pub use page::{Compression, PageError};
pub use reader::{Reader, heap_bound};
pub use record::Record;
pub use slots::{Slot, SlotError};
pub use writer::{WriteError, Writer};
