// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A memory balloon (VIRTIO 1.2, 5.5): the guest gives up pages when it is asked to, and reports others that are free.
//!
//! The queues are numbered as drivers number them: those of features that were not accepted have no number. So the
//! queue of reports is the third, since there are neither statistics nor hints.
//!
//! Invariants:
//!
//! * A chain is given back when each of its pages was passed on: [`Pages::inflate`], [`Pages::deflate`] or
//!   [`Pages::report`]. Until then it stays available, and the model keeps how far it has come. So a page that the far end
//!   cannot give up now, or an interrupt, holds up the chain and loses nothing.
//! * The far end learns of a reset ([`Pages::forget`]) before anything of the driver that follows.
//!
//! # The model's part of a state
//!
//! Pages that the balloon should have, and pages that the driver says it has (u32 each); how far the next chain of each
//! queue has come, in bytes (u32 each).

use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use super::chain::Chain;
use super::device::{Model, Virtio};
use super::next::{Fault, Next, Stop, both};
use super::queue::{Queue, Used};
use super::state::{Reader, Writer, refuse};
use crate::line::InterruptLine;
use crate::ram::{GuestRam, RamError};
use crate::state::StateError;

/// A virtio-balloon device.
pub type Balloon = Virtio<BalloonModel>;

/// What takes the guest's pages.
pub trait Pages {
    /// The guest puts the page at this address into the balloon: it does not need the content any more. With `is_announced`, the
    /// guest uses no page of the balloon before [`deflate`](Self::deflate) for it has returned. Returns whether the
    /// page was dealt with; if not, the embedder polls the device soon.
    ///
    /// # Errors
    ///
    /// There is no RAM, or something has to come first ([`RamError::Absent`]).
    fn inflate(&mut self, page: u64, is_announced: bool) -> Result<bool, RamError>;

    /// The guest takes a page out of the balloon.
    fn deflate(&mut self, page: u64);

    /// The guest does not need the content of this memory, and takes it back when the chain is given back. Returns how many
    /// bytes were dealt with: some at least. If not all, the rest follows at the next call.
    ///
    /// # Errors
    ///
    /// As [`inflate`](Self::inflate).
    fn report(&mut self, address: u64, length: u32) -> Result<u32, RamError>;

    /// The device was reset: the balloon is empty.
    fn forget(&mut self);
}

/// Features of a balloon.
pub mod feature {
    /// The driver uses no page of the balloon before it was given back.
    pub const MUST_TELL_HOST: u64 = 1;
    /// The driver takes pages back when the guest has no memory left.
    pub const DEFLATE_ON_OOM: u64 = 1 << 2;
    /// The driver reports free memory.
    pub const REPORTING: u64 = 1 << 5;
}

/// Bytes of a page, whatever the guest's are.
pub const PAGE: u64 = 4096;

const INFLATE: usize = 0;
const DEFLATE: usize = 1;
const REPORT: usize = 2;
const COUNT: usize = 3;

/// Bytes of a page's number.
const NUMBER: usize = 4;
/// Bytes of page numbers that are copied at once.
const CHUNK: usize = 64 * NUMBER;
/// Chunks, or pieces of reported memory, of one poll and queue.
const BUDGET: usize = 16;

/// The model behind the registers.
#[derive(Clone, Copy, Debug)]
pub struct BalloonModel {
    /// Pages that the balloon should have.
    wanted: u32,
    /// Pages that it has, as the driver says.
    actual: [u8; 4],
    /// How far the next chain of each queue has come, in bytes.
    done: [u32; COUNT],
    /// The far end does not know yet of a reset.
    is_reset: bool,
}

impl Balloon {
    /// The device after a reset, which asks for no page.
    #[must_use]
    pub const fn new() -> Self {
        Self::with_model(BalloonModel { wanted: 0, actual: [0; 4], done: [0; COUNT], is_reset: true })
    }

    /// Asks the driver for this number of pages in the balloon.
    pub fn ask_for(&mut self, pages: u32, line: &mut impl InterruptLine) {
        if self.model.wanted != pages {
            self.change_config(line, |model| model.wanted = pages);
        }
    }

    /// Pages that the balloon has, as the driver says.
    #[must_use]
    pub const fn actual(&self) -> u32 {
        u32::from_le_bytes(self.model.actual)
    }

    /// Passes pages on.
    pub fn poll(&mut self, ram: &impl GuestRam, pages: &mut impl Pages, line: &mut impl InterruptLine) -> Next {
        self.work(ram, line, |model, [inflate, deflate, report], features| {
            if model.is_reset {
                pages.forget();
                model.is_reset = false;
            }
            let is_announced = features & feature::MUST_TELL_HOST != 0;
            let [of_inflate, of_deflate, of_report] = &mut model.done;
            // A page that one queue waits for does not stop the others.
            let inflated =
                numbers(INFLATE, inflate, features, ram, of_inflate, |page| pages.inflate(page, is_announced));
            let deflated = numbers(DEFLATE, deflate, features, ram, of_deflate, |page| {
                pages.deflate(page);
                Ok(true)
            });
            let reported = reports(report, features, ram, of_report, pages);
            both(both(inflated, deflated), reported)
        })
    }
}

impl Default for Balloon {
    fn default() -> Self {
        Self::new()
    }
}

/// Passes on the pages whose numbers the guest has written.
fn numbers(
    number: usize,
    queue: &mut Queue,
    features: u64,
    ram: &impl GuestRam,
    done: &mut u32,
    mut pass_on: impl FnMut(u64) -> Result<bool, RamError>,
) -> Result<Next, Stop> {
    queue.pay(ram)?;
    let mut chain = Chain::EMPTY;
    for step in 0..BUDGET {
        if step > 0 && ram.should_pause() {
            return Ok(Next::Again);
        }
        if !queue.is_notified {
            return Ok(Next::Idle);
        }
        if !queue.take(number as u8, ram, features, &mut chain)? {
            queue.rest(number as u8, ram, features)?;
            continue;
        }
        let (readable, writable) = (chain.readable(), chain.writable());
        if readable == 0 || !readable.is_multiple_of(NUMBER as u32) {
            return Err(Fault::Short { readable, writable }.into());
        }
        // A guest that makes a chain shorter meanwhile has its own will.
        let left = readable.saturating_sub(*done);
        let mut bytes = [0; CHUNK];
        let now = &mut bytes[..CHUNK.min(left as usize)];
        if !now.is_empty() {
            chain.read(ram, *done, now)?;
        }
        for page in now.as_chunks::<NUMBER>().0 {
            if !pass_on(u64::from(u32::from_le_bytes(*page)) * PAGE)? {
                return Ok(Next::Again);
            }
            *done += NUMBER as u32;
        }
        if *done >= readable {
            *done = 0;
            queue.advance();
            queue.finish(ram, Used { head: chain.head(), written: 0 })?;
        }
    }
    Ok(Next::Again)
}

/// Passes on memory that is reported: the buffers of the chains themselves.
fn reports(
    queue: &mut Queue,
    features: u64,
    ram: &impl GuestRam,
    done: &mut u32,
    pages: &mut impl Pages,
) -> Result<Next, Stop> {
    queue.pay(ram)?;
    let mut chain = Chain::EMPTY;
    for step in 0..BUDGET {
        if step > 0 && ram.should_pause() {
            return Ok(Next::Again);
        }
        if !queue.is_notified {
            return Ok(Next::Idle);
        }
        if !queue.take(REPORT as u8, ram, features, &mut chain)? {
            queue.rest(REPORT as u8, ram, features)?;
            continue;
        }
        match chain.writable_at(*done) {
            Some(left) => *done += pages.report(left.address, left.length)?.clamp(1, left.length),
            None => {
                *done = 0;
                queue.advance();
                queue.finish(ram, Used { head: chain.head(), written: 0 })?;
            }
        }
    }
    Ok(Next::Again)
}

impl Model for BalloonModel {
    const DEVICE: u32 = 5;
    const QUEUES: usize = COUNT;
    const STATE_MAX: usize = (2 + COUNT) * size_of::<U32>();

    fn features(&self) -> u64 {
        feature::MUST_TELL_HOST | feature::DEFLATE_ON_OOM | feature::REPORTING
    }

    fn config(&self, offset: u64) -> u8 {
        let config = [self.wanted.to_le_bytes(), self.actual];
        usize::try_from(offset).ok().and_then(|at| config.as_bytes().get(at).copied()).unwrap_or(0)
    }

    fn set_config(&mut self, offset: u64, byte: u8) {
        let place = offset.checked_sub(4).and_then(|at| self.actual.get_mut(usize::try_from(at).ok()?));
        if let Some(place) = place {
            *place = byte;
        }
    }

    fn abandon(&mut self, queue: usize) {
        if let Some(done) = self.done.get_mut(queue) {
            *done = 0;
        }
        if queue == INFLATE {
            (self.is_reset, self.actual) = (true, [0; 4]);
        }
    }

    fn held(&self, _: usize) -> usize {
        0
    }

    fn save(&self, to: &mut Writer<'_>) -> Result<(), StateError> {
        to.put(&U32::new(self.wanted))?;
        to.put(&self.actual)?;
        to.put(&self.done.map(U32::new))
    }

    fn load(&mut self, from: &mut Reader<'_>, _: u64) -> Result<(), StateError> {
        self.wanted = from.take::<U32>()?.get();
        self.actual = from.take()?;
        self.done = from.take::<[U32; COUNT]>()?.map(U32::get);
        let [inflate, deflate, _] = self.done;
        refuse([((inflate | deflate) % NUMBER as u32 != 0, "a part of a page's number")])
    }
}
