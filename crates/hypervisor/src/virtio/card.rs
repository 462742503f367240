// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A network card, plugged into a port of its network.
//!
//! Invariant: the card has at most one frame of the network in hand, and sends one at a time.
//!
//! The port always has room: what a full queue drops is dropped by the switch. So a card is due only when the guest notifies
//! it, or when a frame comes into the empty queue of its port. If a frame waits for the guest's buffers, the guest's next
//! notification moves it.

use twofold_devices::InterruptLine;
use twofold_devices::virtio::net::{Net, Port};
use twofold_devices::virtio::{Next, net};
use twofold_vmm::saved;
use twofold_vmm::switch::{self, Received};

use super::network;
use crate::guest_ram::Ram;

const _: () = assert!(net::FRAME_MAX == switch::FRAME_MAX && net::FRAME_MIN == switch::FRAME_MIN);

/// A guest's network card.
pub struct Card {
    pub(super) net: Net,
    end: End,
    mac: [u8; 6],
    /// The guest has come from elsewhere with this card, and no frame has said so yet.
    is_new_here: bool,
}

/// The card's end of its network.
struct End {
    port: network::Port,
    in_hand: Option<Received>,
    counts: Counts,
}

/// What the card has moved.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) sent: u64,
    pub(super) bytes_sent: u64,
    pub(super) received: u64,
    pub(super) bytes_received: u64,
}

impl Card {
    pub(super) fn new(mac: [u8; 6], port: network::Port) -> Self {
        let end = End { port, in_hand: None, counts: Counts::default() };
        Self { net: Net::new(mac), end, mac, is_new_here: false }
    }

    /// What it is for its guest.
    pub(super) fn identity(&self) -> saved::Card {
        saved::Card { mac: self.mac }
    }

    /// The guest has come from elsewhere: when it runs, the card announces itself, once.
    pub(super) fn announce(&mut self) {
        self.is_new_here = true;
    }

    /// Moves frames in both directions.
    pub(super) fn work(&mut self, ram: &Ram<'_>, line: &mut impl InterruptLine) -> Next {
        if core::mem::take(&mut self.is_new_here) {
            self.end.port.send(&announcement(self.mac));
        }
        if self.end.in_hand.is_none() {
            self.end.in_hand = self.end.port.take();
        }
        self.net.poll(ram, &mut self.end, line)
    }

    /// The card is as after a reset, and nothing waits for it.
    pub(super) fn reset(&mut self, line: &mut impl InterruptLine) {
        if let Some(received) = self.end.in_hand.take() {
            self.end.port.give_back(received);
        }
        self.end.port.clear();
        self.net.reset(line);
    }

    /// What it has moved, and the frames for it or from it that were dropped.
    pub(super) fn counts(&self) -> (Counts, u64) {
        let port = self.end.port.counters();
        (self.end.counts, port.dropped + port.refused)
    }
}

/// A frame to all that asks nothing: from its source, switches learn the port behind which the card is now. It is a reverse
/// request for the card's own address, RARP (RFC 903), padded to the least length of Ethernet.
fn announcement(mac: [u8; 6]) -> [u8; 60] {
    /// The type; then Ethernet, IPv4, the lengths of their addresses, and the operation `request reverse`.
    const KIND: [u8; 10] = [0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3];
    let mut frame = [0; 60];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac);
    frame[12..22].copy_from_slice(&KIND);
    // The sender and the target, each with an IPv4 address that is not known.
    frame[22..28].copy_from_slice(&mac);
    frame[32..38].copy_from_slice(&mac);
    frame
}

impl Port for End {
    fn has_room(&self) -> bool {
        true
    }

    fn send(&mut self, frame: &[u8]) {
        self.counts.sent += 1;
        self.counts.bytes_sent += frame.len() as u64;
        self.port.send(frame);
    }

    fn incoming(&self) -> Option<&[u8]> {
        self.in_hand.as_ref().map(Received::bytes)
    }

    fn consume(&mut self) {
        if let Some(received) = self.in_hand.take() {
            self.counts.received += 1;
            self.counts.bytes_received += received.bytes().len() as u64;
            self.port.give_back(received);
        }
        self.in_hand = self.port.take();
    }
}
