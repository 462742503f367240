// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Live migration and snapshots of a guest: the stream that carries it, the commit by which it changes hands, and the
//! planning of pre-copy. `docs/migration.md` has the formats and protocols.
//!
//! `no_std` and no unsafe code, but the crate needs an allocator (`alloc`). It knows no virtual machine and no link: pages
//! come as bytes, state as tagged sections, and the stream goes over anything with the traits of `embedded_io`.
//!
//! | module | takes | returns |
//! |---|---|---|
//! | [`stream`] | a guest's pages and state | bytes, and back; each byte that is not as it was sent is refused |
//! | [`commit`] | a side's state and an event | its next state, and what it has to do |
//! | [`plan`] | measured rates | another round, a throttle, a stop, or why it never ends |
//!
//! # Example
//!
//! ```
//! use twofold_migration::commit::{Owner, Ownership};
//! use twofold_migration::stream::{Capabilities, Compression, Hello, Name, Reader, Record, Slot, Writer};
//!
//! let model = Name::new("virt-1").unwrap();
//! let guest = Hello {
//!     migration: [7; 16],
//!     stream: 0,
//!     streams: 1,
//!     model,
//!     page_shift: 12,
//!     ipa_bits: 40,
//!     vcpus: 1,
//!     memory: 2 << 12,
//!     features: vec![],
//! };
//! let from = Ownership { owner: Owner { host: 1, incarnation: 1 }, epoch: 4 };
//! let mut writer = Writer::new(Vec::new(), Compression::Lz4);
//! writer.hello(&guest)?;
//! writer.slots(&[Slot { number: 0, read_only: false, first: 0x40000, pages: 2 }])?;
//! writer.round(true)?;
//! writer.page(0, 0, &[0xaa; 4096])?;
//! writer.zero_pages(0, 1, 1)?;
//! writer.end_round()?;
//! writer.end(from)?;
//! let bytes = writer.into_sink();
//!
//! let here = Capabilities { model, page_shift: 12, ipa_bits: 40, vcpus: 4, memory: 1 << 30, features: vec![] };
//! let mut reader = Reader::new(&bytes[..], here);
//! let mut offer = None;
//! while let Some(record) = reader.next()? {
//!     if let Record::End(ownership) = record {
//!         offer = Some(ownership);
//!     }
//! }
//! assert_eq!(offer, Some(from));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod answers;
pub mod commit;
mod pages;
pub mod plan;
pub mod postcopy;
pub mod precopy;
pub mod ram;
pub mod receive;
mod runtime;
mod section;
pub mod snapshot;
pub mod stream;

pub use answers::{AnswerError, Answers, Asked};
pub use pages::PageSet;
pub use runtime::{Cancel, Runtime};
pub use section::Section;
