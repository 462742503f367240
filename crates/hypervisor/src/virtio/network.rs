// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A network of the image: a switch with its lock, the wakers of its ports, and the two kinds of its ends.
//!
//! The steps S1 to S4 and R1 to R3 are those of [`twofold_vmm::switch`]. The lock is held for one of them. Under it only the
//! scheduler's lock is taken.

use alloc::collections::TryReserveError;
use alloc::vec::Vec;

use spin::{Mutex, Once};
use twofold_vmm::switch::{Counters, Plug, PortId, Received, Switch};

use super::host::Waker;

/// A network of the image.
pub struct Network {
    switch: Mutex<Switch>,
    owners: Vec<Once<Waker>>,
}

/// The end of a network for a card of the machine.
pub struct Uplink(Port);

/// An end of a network.
#[derive(Clone, Copy)]
pub struct Port {
    network: &'static Network,
    id: PortId,
}

impl Network {
    /// A network with these ports.
    ///
    /// # Errors
    ///
    /// There is no memory for it.
    pub fn new(plugs: &[Plug]) -> Result<Self, TryReserveError> {
        let owners = plugs.iter().map(|_| Once::new()).collect();
        Ok(Self { switch: Mutex::new(Switch::new(plugs)?), owners })
    }

    /// The end with this number.
    pub fn port(&'static self, id: PortId) -> Port {
        Port { network: self, id }
    }
}

impl Port {
    /// The waker is called when a frame comes into an empty queue. It is set once, before any guest runs.
    pub fn set_waker(&self, waker: Waker) {
        if let Some(owner) = self.network.owners.get(usize::from(self.id.0)) {
            owner.call_once(|| waker);
        }
    }

    /// S1 to S4. The caller sends one frame at a time from this port.
    pub fn send(&self, frame: &[u8]) {
        let Some(mut buffer) = self.network.switch.lock().buffer() else { return };
        buffer.fill(frame);
        self.network.switch.lock().forward(self.id, buffer, |port| {
            if let Some(waker) = self.network.owners.get(usize::from(port.0)).and_then(Once::get) {
                waker.wake();
            }
        });
    }

    /// R1. The caller has one frame in hand at a time.
    #[must_use]
    pub fn take(&self) -> Option<Received> {
        self.network.switch.lock().take(self.id)
    }

    /// R3.
    pub fn give_back(&self, received: Received) {
        self.network.switch.lock().give_back(received);
    }

    /// Drops what waits.
    pub fn clear(&self) {
        self.network.switch.lock().clear(self.id);
    }

    /// What it has done.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.network.switch.lock().counters(self.id)
    }
}

impl Uplink {
    /// The end of this port.
    #[must_use]
    pub const fn new(port: Port) -> Self {
        Self(port)
    }

    /// The waker is called when the first frame for the outside comes: the driver then [takes](Self::take) all.
    pub fn set_waker(&self, waker: Waker) {
        self.0.set_waker(waker);
    }

    /// A frame from the outside. One at a time.
    pub fn send(&self, frame: &[u8]) {
        self.0.send(frame);
    }

    /// The oldest frame for the outside. The driver has one in hand at a time.
    #[must_use]
    pub fn take(&self) -> Option<Received> {
        self.0.take()
    }

    /// The frame was sent, or copied, or dropped.
    pub fn give_back(&self, received: Received) {
        self.0.give_back(received);
    }
}
