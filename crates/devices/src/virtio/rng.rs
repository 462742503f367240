// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A source of random bytes (VIRTIO 1.2, 5.4).
//!
//! A buffer gets up to [`CHUNK`] bytes, which is more than Linux asks for at once. Invariant: a byte of the source is
//! given to the guest once, or never.

use super::chain::Chain;
use super::device::{Model, Virtio};
use super::next::{Fault, Next, Stop};
use super::queue::{Queue, Used};
use super::state::{Reader, Writer};
use crate::line::InterruptLine;
use crate::ram::GuestRam;
use crate::state::StateError;

/// A virtio-rng device.
pub type Rng = Virtio<RngModel>;

/// Where random bytes come from.
pub trait Entropy {
    /// Fills the first of `bytes`, and returns how many. With 0, the embedder polls the device when there are more.
    fn fill(&mut self, bytes: &mut [u8]) -> usize;
}

/// The most bytes of one buffer.
pub const CHUNK: usize = 256;
/// Buffers of one poll.
const BUDGET: usize = 8;

/// The model behind the registers.
#[derive(Clone, Copy, Debug, Default)]
pub struct RngModel;

impl Rng {
    /// The device after a reset.
    #[must_use]
    pub const fn new() -> Self {
        Self::with_model(RngModel)
    }

    /// Fills the guest's buffers.
    pub fn poll(&mut self, ram: &impl GuestRam, entropy: &mut impl Entropy, line: &mut impl InterruptLine) -> Next {
        self.work(ram, line, |_, [queue, ..], features| fill(queue, features, ram, entropy))
    }
}

impl Default for Rng {
    fn default() -> Self {
        Self::new()
    }
}

fn fill(queue: &mut Queue, features: u64, ram: &impl GuestRam, entropy: &mut impl Entropy) -> Result<Next, Stop> {
    queue.pay(ram)?;
    let mut chain = Chain::EMPTY;
    for step in 0..BUDGET {
        if step > 0 && ram.should_pause() {
            return Ok(Next::Again);
        }
        if !queue.is_notified {
            return Ok(Next::Idle);
        }
        if !queue.take(0, ram, features, &mut chain)? {
            queue.rest(0, ram, features)?;
            continue;
        }
        let (readable, writable) = (chain.readable(), chain.writable());
        if writable == 0 {
            return Err(Fault::Short { readable, writable }.into());
        }
        let mut bytes = [0; CHUNK];
        let wanted = CHUNK.min(writable as usize);
        let filled = entropy.fill(&mut bytes[..wanted]).min(wanted);
        if filled == 0 {
            return Ok(Next::Idle);
        }
        chain.write(ram, 0, &bytes[..filled])?;
        queue.advance();
        queue.finish(ram, Used { head: chain.head(), written: filled as u32 })?;
    }
    Ok(Next::Again)
}

impl Model for RngModel {
    const DEVICE: u32 = 4;
    const QUEUES: usize = 1;
    const STATE_MAX: usize = 0;

    fn features(&self) -> u64 {
        0
    }

    fn config(&self, _: u64) -> u8 {
        0
    }

    fn abandon(&mut self, _: usize) {}

    fn held(&self, _: usize) -> usize {
        0
    }

    fn save(&self, _: &mut Writer<'_>) -> Result<(), StateError> {
        Ok(())
    }

    fn load(&mut self, _: &mut Reader<'_>, _: u64) -> Result<(), StateError> {
        Ok(())
    }
}
