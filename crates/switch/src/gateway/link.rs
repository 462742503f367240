// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The gateway's card: frames in both directions, as smoltcp wants them.

use std::collections::VecDeque;

use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

use twofold_vmm::switch::{FRAME_MAX, QUEUE};

/// Frames that smoltcp has not taken, or the switch.
#[derive(Debug, Default)]
pub struct Link {
    incoming: VecDeque<Vec<u8>>,
    outgoing: VecDeque<Vec<u8>>,
}

impl Link {
    /// A frame from the switch.
    pub fn came(&mut self, frame: &[u8]) {
        self.incoming.push_back(frame.to_vec());
    }

    /// A frame for the switch.
    pub fn leaves(&mut self) -> Option<Vec<u8>> {
        self.outgoing.pop_front()
    }
}

impl Device for Link {
    type RxToken<'a> = Frame;
    type TxToken<'a> = Room<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Frame, Room<'_>)> {
        let frame = self.incoming.pop_front()?;
        Some((Frame(frame), Room(&mut self.outgoing)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Room<'_>> {
        // The queue of the switch is no longer: what is more would be lost there.
        (self.outgoing.len() < QUEUE).then_some(Room(&mut self.outgoing))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME_MAX;
        capabilities
    }
}

/// A frame that came.
pub struct Frame(Vec<u8>);

impl RxToken for Frame {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, act: F) -> R {
        act(&self.0)
    }
}

/// Room for a frame that leaves.
pub struct Room<'a>(&'a mut VecDeque<Vec<u8>>);

impl TxToken for Room<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, act: F) -> R {
        let mut frame = vec![0; length];
        let done = act(&mut frame);
        self.0.push_back(frame);
        done
    }
}
