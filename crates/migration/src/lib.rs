// SPDX-License-Identifier: Apache-2.0 OR MIT
#![doc = include_str!("../README.md")]
//!
//! `no_std` and no unsafe code, but the crate needs an allocator (`alloc`). It has no thread and no clock, and knows no
//! virtual machine and no link: state comes as tagged sections, the stream goes over anything with the traits of
//! `embedded_io`, and the embedder has the vCPUs, the clock and the arbiter.
//!
//! | module | takes | returns |
//! |---|---|---|
//! | [`precopy`] | a running guest and links | the guest offered to the target, or running on with the reason |
//! | [`receive`] | links | a guest that came whole, or what is wrong with it |
//! | [`snapshot`] | a stopped guest | a file |
//! | [`postcopy`] | faults on absent pages, and pages that come | what to ask, send and store |
//! | [`ram`] | a guest's memory and a tracker | what the drivers ask of them |
//! | [`stream`] | a guest's pages and state | bytes, and back; each byte that is not as it was sent is refused |
//! | [`commit`] | a side's state and an event | its next state, and what it has to do |
//! | [`plan`] | measured rates | another round, a throttle, a stop, or why it never ends |
//!
//! # A guest moves
//!
//! The source sends it, and the arbiter says in the end which side runs it:
//!
//! ```
//! use core::time::Duration;
//!
//! use embedded_io::{Read, Write};
//! use twofold_memory::dirty::{LogOptions, Tracker};
//! use twofold_memory::{GuestMemory, SlotId};
//! use twofold_migration::commit::{Event, Side, State};
//! use twofold_migration::plan::Wanted;
//! use twofold_migration::precopy::{Failed, Host, Postcopy, Precopy};
//! use twofold_migration::ram::GuestRam;
//! use twofold_migration::stream::{Compression, Hello, Slot};
//! use twofold_migration::{Answers, Cancel, Runtime};
//! use twofold_stage2::Platform;
//!
//! /// Moves a guest; returns whether it runs at the target. If not, it runs here as before.
//! fn send<P: Platform>(
//!     (memory, slots, hello): (&GuestMemory<P>, &[(SlotId, Slot)], Hello),
//!     (links, answers): (Vec<impl Write + Send>, impl Read),
//!     side: &mut Side,
//!     host: &mut impl Host,
//!     (runtime, cancel): (&impl Runtime, &Cancel),
//! ) -> Result<bool, Failed>
//! where
//!     GuestMemory<P>: Sync,
//! {
//!     let precopy = Precopy {
//!         ram: &GuestRam::new(memory, LogOptions::new(Tracker::Adaptive), slots).expect("its own memslots"),
//!         hello,
//!         wanted: Wanted {
//!             downtime: Duration::from_millis(5),
//!             fixed: Duration::from_millis(1),
//!             rounds: 30,
//!             throttle: 800,
//!             forced: false,
//!         },
//!         limit: None,
//!         compression: Compression::Lz4,
//!         postcopy: Postcopy::Off,
//!         runtime,
//!         cancel,
//!     };
//!     let mut answers = Answers::new(answers);
//!     // With an error, the guest goes on here.
//!     let _offered = precopy.run(links, Some(&mut answers), side, host)?;
//!     // From here on, this side is in doubt.
//!     match answers.taken() {
//!         Ok(now) => side.raise(Event::Record(now), host),
//!         Err(_) => side.raise(Event::Cancel, host),
//!     };
//!     while let State::InDoubt { .. } = side.state() {
//!         runtime.wait(Duration::from_secs(1));
//!         side.raise(Event::Tick, host);
//!     }
//!     Ok(matches!(side.state(), State::Idle { .. }))
//! }
//! ```
//!
//! The target takes it:
//!
//! ```
//! use embedded_io::Read;
//! use twofold_migration::Runtime;
//! use twofold_migration::commit::{Side, State};
//! use twofold_migration::receive::{Host, Receive, ReceiveError};
//!
//! /// Receives a guest and asks the arbiter for it. If the side is in doubt then, raise `Event::Tick` until it is not.
//! fn take<R: Runtime>(
//!     receive: &Receive<'_, R>,
//!     links: Vec<impl Read + Send>,
//!     side: &mut Side,
//!     host: &mut impl Host,
//! ) -> Result<State, ReceiveError> {
//!     let received = receive.run(links, side, host)?;
//!     let (state, _absent) = received.take(side, host);
//!     Ok(state)
//! }
//! ```
//!
//! # The stream by itself
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
#[cfg(feature = "sealed")]
pub mod sealed;
mod section;
pub mod snapshot;
pub mod stream;

pub use answers::{AnswerError, Answers, Asked};
pub use pages::PageSet;
pub use runtime::{Cancel, Runtime};
pub use section::Section;
