// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The switch of `twofold_vmm`, with ports that come and go.
//!
//! Port 0 is the gateway's. Each other one is free or belongs to a connection. All ports are uplinks: behind each there may be
//! a machine with several guests, and an address moves to the port from which its last frame came.

use twofold_vmm::switch::{Plug, PortId, Switch};

/// Connections at the same time.
pub const CONNECTIONS: usize = 63;
/// The port of the gateway.
pub const GATEWAY: PortId = PortId(0);

/// The switch, and which ports are used.
#[derive(Debug)]
pub struct Ports {
    switch: Switch,
    is_used: [bool; CONNECTIONS + 1],
}

impl Ports {
    /// A switch whose ports are all free, except the gateway's if there is one.
    ///
    /// # Panics
    ///
    /// There is no memory.
    #[must_use]
    pub fn new(has_gateway: bool) -> Self {
        let mut switch =
            Switch::new(&[Plug::Uplink; CONNECTIONS + 1]).expect("there is memory for some thousand frames");
        (0..=CONNECTIONS as u16).map(PortId).for_each(|port| switch.unplug(port));
        let mut is_used = [false; CONNECTIONS + 1];
        is_used[0] = true;
        if has_gateway {
            switch.plug(GATEWAY);
        }
        Self { switch, is_used }
    }

    /// Takes a free port.
    pub fn plug(&mut self) -> Option<PortId> {
        let free = self.is_used.iter().position(|is_used| !is_used)?;
        self.is_used[free] = true;
        let port = PortId(free as u16);
        self.switch.plug(port);
        Some(port)
    }

    /// Whether a port is free.
    #[must_use]
    pub fn has_room(&self) -> bool {
        !self.is_used.iter().all(|is_used| *is_used)
    }

    /// The port is free again. Nothing goes there any more.
    pub fn unplug(&mut self, port: PortId) {
        self.is_used[usize::from(port.0)] = false;
        self.switch.unplug(port);
    }

    /// A frame from a port.
    pub fn send(&mut self, port: PortId, frame: &[u8]) {
        // This thread has one frame in its hands at a time, so there is a buffer.
        let Some(mut buffer) = self.switch.buffer() else { return };
        buffer.fill(frame);
        self.switch.forward(port, buffer, |_| {});
    }

    /// Calls `act` with the oldest frame for a port. `None`: there is none.
    pub fn receive<T>(&mut self, port: PortId, act: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let received = self.switch.take(port)?;
        let done = act(received.bytes());
        self.switch.give_back(received);
        Some(done)
    }

    /// Whether a frame waits for a port.
    #[must_use]
    pub fn has_frame(&self, port: PortId) -> bool {
        self.switch.has_frame(port)
    }
}
