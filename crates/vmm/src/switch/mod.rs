// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A network inside the machine: a learning switch between the cards of guests, and a card of the machine as its uplink.
//!
//! # Rules
//!
//! * A frame never goes back to its port. A frame for one address goes to the port of that address; one for a group, or for
//!   an address that the switch does not know, goes to all other ports.
//! * A card's own address is its port's for ever. Other source addresses are learned, and a learned one stays with its port,
//!   except that an uplink takes it from a card. A frame with a source that is another port's is dropped. So no guest
//!   can take the frames of another one, or those for the outside.
//! * Each port has a bounded number of learned addresses, and forgets its own oldest one for a new one. So a guest that
//!   invents addresses makes the switch forget none of another port.
//! * Each port has a queue of [`QUEUE`] frames. A frame for a queue that is full is dropped there, and counted. So a slow
//!   guest loses frames, and stalls no other one.
//!
//! # Locking
//!
//! The embedder calls everything under one lock. No frame is copied under it:
//!
//! * S1: the sender takes an empty [`Buffer`] under the lock.
//! * S2: it copies its frame into the buffer, without the lock.
//! * S3: under the lock, [`forward`](Switch::forward) puts the buffer into the queues of the ports that get it, and reports
//!   each port whose queue was empty.
//! * S4: the embedder wakes the owners of these ports.
//! * R1: a receiver [takes](Switch::take) the oldest frame of its queue under the lock.
//! * R2: it copies the frame to where it goes, without the lock.
//! * R3: it [gives](Switch::give_back) the frame back under the lock. The last receiver's becomes an empty buffer.
//!
//! No wake-up is lost: a receiver that found its queue empty in R1 did so under the lock, and the S3 that ends this is
//! followed by S4. A receiver that stops before its queue is empty has a reason that its own guest ends.
//!
//! # Bounds
//!
//! All buffers are made with the switch: as many as all queues hold, and two for each port, which are in its hands between
//! S1 and S3, and between R1 and R3. A port has at most one frame between each two of these steps, so S1 never fails.
//! One frame costs a step for each port at most.

mod table;

use alloc::collections::{TryReserveError, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use table::Table;
pub use table::{CARD_ADDRESSES, UPLINK_ADDRESSES};

/// Frames that wait for a port.
pub const QUEUE: usize = 32;
/// The shortest frame: two addresses and a type.
pub const FRAME_MIN: usize = 14;
/// The longest frame.
pub const FRAME_MAX: usize = FRAME_MIN + 1500;

/// A network.
#[derive(Debug)]
pub struct Switch {
    ports: Vec<Port>,
    table: Table,
    /// Each has one owner.
    free: Vec<Arc<Frame>>,
}

/// A port, by its place in the list from which the switch was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortId(pub u16);

/// What is plugged into a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plug {
    /// A card with this address.
    Card([u8; 6]),
    /// A way to other networks.
    Uplink,
}

/// An empty buffer (S1), then one with a frame (S2).
#[derive(Debug)]
pub struct Buffer(Arc<Frame>);

/// A frame that was received (R1).
#[derive(Debug)]
pub struct Received(Arc<Frame>);

/// What a port has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that came from it and were forwarded.
    pub forwarded: u64,
    /// Frames that came from it with an address or a length that it may not use.
    pub refused: u64,
    /// Frames for it that its queue had no room for.
    pub dropped: u64,
}

#[derive(Debug)]
struct Port {
    queue: VecDeque<Arc<Frame>>,
    counters: Counters,
    /// Something is there that takes frames.
    is_plugged: bool,
}

/// Aligned, so that a copy takes words.
#[derive(Debug)]
#[repr(C, align(8))]
struct Frame {
    bytes: [u8; FRAME_MAX],
    length: u16,
}

impl Switch {
    /// A switch with these ports.
    ///
    /// # Errors
    ///
    /// There is no memory for its lists. For its buffers, [`memory`](Self::memory) says beforehand how much is needed.
    pub fn new(plugs: &[Plug]) -> Result<Self, TryReserveError> {
        let mut ports = Vec::new();
        ports.try_reserve_exact(plugs.len())?;
        for _ in plugs {
            let mut queue = VecDeque::new();
            queue.try_reserve_exact(QUEUE)?;
            ports.push(Port { queue, counters: Counters::default(), is_plugged: true });
        }
        let mut free = Vec::new();
        let buffers = plugs.len() * BUFFERS;
        free.try_reserve_exact(buffers)?;
        free.extend((0..buffers).map(|_| Arc::new(Frame { length: 0, bytes: [0; FRAME_MAX] })));
        Ok(Self { ports, table: Table::new(plugs)?, free })
    }

    /// Bytes that a switch with this many ports takes, at most.
    #[must_use]
    pub const fn memory(ports: usize) -> usize {
        // An allocator that rounds up to powers of two gives 2 KiB for a frame.
        ports * (BUFFERS * (2 << 10) + (4 << 10)) + UPLINK_ADDRESSES * 16 + (4 << 10)
    }

    /// S1. `None`: the caller has more frames in hand than a port may have.
    pub fn buffer(&mut self) -> Option<Buffer> {
        self.free.pop().map(Buffer)
    }

    /// S3: the frame in `buffer` comes from `port`. Calls `wake` for each port whose queue was empty.
    pub fn forward(&mut self, port: PortId, buffer: Buffer, mut wake: impl FnMut(PortId)) {
        let Buffer(frame) = buffer;
        let Some(from) = self.ports.get_mut(usize::from(port.0)) else { return self.recycle(frame) };
        if !self.table.learn(port, frame.source()) || frame.length < FRAME_MIN as u16 {
            from.counters.refused += 1;
            return self.recycle(frame);
        }
        from.counters.forwarded += 1;
        match self.table.find(frame.destination()) {
            Some(to) if to == port => {}
            Some(to) => self.queue(to, &frame, &mut wake),
            None => {
                for to in (0..self.ports.len() as u16).map(PortId).filter(|to| *to != port) {
                    self.queue(to, &frame, &mut wake);
                }
            }
        }
        self.recycle(frame);
    }

    /// R1: the oldest frame for `port`.
    pub fn take(&mut self, port: PortId) -> Option<Received> {
        self.ports.get_mut(usize::from(port.0))?.queue.pop_front().map(Received)
    }

    /// R3.
    pub fn give_back(&mut self, received: Received) {
        self.recycle(received.0);
    }

    /// Drops what waits for `port`.
    pub fn clear(&mut self, port: PortId) {
        while let Some(received) = self.take(port) {
            self.give_back(received);
        }
    }

    /// Takes out what is plugged into `port`: what waits for it is dropped, the addresses that the port has learned are
    /// forgotten, and no frame goes there.
    pub fn unplug(&mut self, port: PortId) {
        self.clear(port);
        self.table.forget(port);
        self.set_plugged(port, false);
    }

    /// Something is plugged into `port` again. At first it is so for each port.
    pub fn plug(&mut self, port: PortId) {
        self.set_plugged(port, true);
    }

    fn set_plugged(&mut self, port: PortId, is_plugged: bool) {
        if let Some(port) = self.ports.get_mut(usize::from(port.0)) {
            port.is_plugged = is_plugged;
        }
    }

    /// Whether a frame waits for `port`.
    #[must_use]
    pub fn has_frame(&self, port: PortId) -> bool {
        self.ports.get(usize::from(port.0)).is_some_and(|port| !port.queue.is_empty())
    }

    /// What a port has done.
    #[must_use]
    pub fn counters(&self, port: PortId) -> Counters {
        self.ports.get(usize::from(port.0)).map_or_else(Counters::default, |port| port.counters)
    }

    fn queue(&mut self, to: PortId, frame: &Arc<Frame>, wake: &mut impl FnMut(PortId)) {
        let Some(port) = self.ports.get_mut(usize::from(to.0)).filter(|port| port.is_plugged) else { return };
        if port.queue.len() == QUEUE {
            port.counters.dropped += 1;
            return;
        }
        let was_empty = port.queue.is_empty();
        port.queue.push_back(Arc::clone(frame));
        if was_empty {
            wake(to);
        }
    }

    /// A frame that has no other owner is an empty buffer.
    fn recycle(&mut self, mut frame: Arc<Frame>) {
        if Arc::get_mut(&mut frame).is_some() {
            self.free.push(frame);
        }
    }
}

/// Buffers for each port.
const BUFFERS: usize = QUEUE + 2;

impl Buffer {
    /// S2. A frame that is too long stays away, and [`forward`](Switch::forward) refuses what is left.
    pub fn fill(&mut self, bytes: &[u8]) {
        // A buffer that was taken has one owner.
        let Some(frame) = Arc::get_mut(&mut self.0) else { return };
        frame.length = 0;
        if let Some(place) = frame.bytes.get_mut(..bytes.len()) {
            place.copy_from_slice(bytes);
            frame.length = bytes.len() as u16;
        }
    }
}

impl Received {
    /// The frame.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.0.bytes.get(..self.0.length.into()).unwrap_or(&[])
    }
}

impl Frame {
    fn destination(&self) -> [u8; 6] {
        self.bytes.first_chunk().copied().unwrap_or_default()
    }

    fn source(&self) -> [u8; 6] {
        self.bytes[6..].first_chunk().copied().unwrap_or_default()
    }
}
