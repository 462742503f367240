// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Snapshots: the stream of a stopped guest, to a file or anything else with the traits of `embedded_io`.
//!
//! | wanted | how |
//! |---|---|
//! | a stopped guest into a file | [`save`] |
//! | a running guest into a file, with little downtime | [`Precopy::run`](crate::precopy::Precopy::run) without answers ([`NO_ANSWERS`]), then raise [`Event::Cancel`](crate::commit::Event::Cancel): the guest goes on |
//! | a guest from a file | [`Receive::run`](crate::receive::Receive::run) with the file as its only stream |
//!
//! # Which guest a file is
//!
//! A stream's end offers the guest under an epoch, and a file can be read at any time, and more than once. So:
//!
//! * N1: before a guest goes on after a snapshot, its side swaps the owner record to the next epoch. `Event::Cancel` of a
//!   side in doubt does that (R1 of [`commit`](crate::commit)), and the guest runs only if the swap has won.
//! * N2: a side that takes the guest from a file as a move ([`Received::take`](crate::receive::Received::take)) wins only
//!   if the record still holds the file's epoch: the guest was stopped since, and not taken from there before.
//! * N3: any other use of a file, such as going back to an older state, makes another guest. It gets an owner record of
//!   its own, and the file's offer is not used.
//!
//! By N1 and N2 a file and its source never both run the guest.

use embedded_io::Write;

use crate::answers::Answers;
use crate::commit::Ownership;
use crate::pages::PageSet;
use crate::precopy::lane::{Lane, Round, piece};
use crate::precopy::{Cause, check_page_size};
use crate::ram::SourceRam;
use crate::runtime::{Cancel, Runtime};
use crate::section::Section;
use crate::stream::{Compression, Hello, Writer};

/// No target answers: the streams go to files.
pub const NO_ANSWERS: Option<&mut Answers<&'static [u8]>> = None;

/// A guest that stands still, to be saved.
pub struct Stopped<'a, M> {
    /// Its memory.
    pub ram: &'a M,
    /// What it was given.
    pub hello: Hello,
    /// What a reset of it needs.
    pub images: &'a [Section],
    /// The state of its vCPUs and devices.
    pub state: &'a [Section],
    /// What the owner record holds. See the module about what is done with it.
    pub owned: Ownership,
}

/// Saves a stopped guest; returns the number of bytes. A guest without absent pages has the same bytes each time. Absent
/// pages are read from the guest's store, and stay there. They come in the order in which the store answers, so only what
/// is restored is the same; `runtime` is the clock by which they are waited for.
///
/// # Errors
///
/// The sink fails; the memory cannot be read, or its store is silent; the hello or a section is none. What was written
/// then is no snapshot: a reader says that it is cut.
pub fn save<M: SourceRam>(
    guest: &Stopped<'_, M>,
    sink: impl Write,
    compression: Compression,
    runtime: &impl Runtime,
) -> Result<u64, Cause> {
    let Stopped { ram, hello, images, state, owned } = guest;
    check_page_size(hello, *ram)?;
    let mut lane = Lane::new(Writer::new(sink, compression), (0, 1), hello.page_shift);
    lane.greet(hello, ram.slots())?;
    lane.sections(images)?;
    let (pages, piece, cancel) = (PageSet::all(ram.slots()), piece(ram.slots(), 1), &Cancel::new());
    lane.round(&Round { ram: *ram, pages: &pages, stopped: true, cancel, piece, limit: None }, runtime)?;
    lane.sections(state)?;
    lane.writer.end(*owned)?;
    Ok(lane.writer.bytes())
}
