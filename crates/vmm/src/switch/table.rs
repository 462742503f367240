// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which address is behind which port.
//!
//! Invariant: the entries of a card's port are in its own window. Only frames from that port fill them, and only frames from
//! there or from an uplink clear them.

use alloc::collections::TryReserveError;
use alloc::vec::Vec;

use super::{Plug, PortId};

/// Addresses that a card's port learns, beside the card's own.
pub const CARD_ADDRESSES: usize = 8;
/// Addresses that an uplink's port learns.
pub const UPLINK_ADDRESSES: usize = 64;

#[derive(Debug)]
pub(super) struct Table {
    /// The cards' own addresses.
    own: Vec<(u64, PortId)>,
    learned: Vec<Learned>,
    /// The window of each port in `learned`, and the place in it that is overwritten next.
    windows: Vec<Window>,
}

#[derive(Clone, Copy, Debug)]
struct Learned {
    /// 0, which is no card's, is a free place.
    address: u64,
    port: PortId,
}

#[derive(Debug)]
struct Window {
    start: usize,
    size: usize,
    next: usize,
    is_uplink: bool,
}

impl Table {
    pub(super) fn new(plugs: &[Plug]) -> Result<Self, TryReserveError> {
        let (mut own, mut learned, mut windows) = (Vec::new(), Vec::new(), Vec::new());
        own.try_reserve_exact(plugs.len())?;
        windows.try_reserve_exact(plugs.len())?;
        learned.try_reserve_exact(plugs.iter().map(|plug| plug.addresses()).sum())?;
        for (port, plug) in (0..).map(PortId).zip(plugs) {
            if let Plug::Card(address) = plug {
                own.push((number(*address), port));
            }
            let is_uplink = *plug == Plug::Uplink;
            windows.push(Window { start: learned.len(), size: plug.addresses(), next: 0, is_uplink });
            learned.extend((0..plug.addresses()).map(|_| Learned { address: 0, port }));
        }
        Ok(Self { own, learned, windows })
    }

    /// A frame with this source comes from `port`. Returns whether it may.
    pub(super) fn learn(&mut self, port: PortId, source: [u8; 6]) -> bool {
        let address = number(source);
        if address == 0 || is_group(source) {
            return false;
        }
        if let Some((_, owner)) = self.own.iter().find(|(own, _)| *own == address) {
            return *owner == port;
        }
        let Some(window) = self.windows.get_mut(usize::from(port.0)) else { return false };
        match self.learned.iter_mut().find(|entry| entry.address == address) {
            Some(known) if known.port == port => return true,
            Some(known) if window.is_uplink => known.address = 0,
            Some(_) => return false,
            None => {}
        }
        if let Some(entry) = self.learned.get_mut(window.start + window.next) {
            entry.address = address;
        }
        window.next = (window.next + 1) % window.size;
        true
    }

    /// Forgets what a port has learned.
    pub(super) fn forget(&mut self, port: PortId) {
        self.learned.iter_mut().filter(|entry| entry.port == port).for_each(|entry| entry.address = 0);
    }

    /// The port of an address. `None`: it is not known, or a group's.
    pub(super) fn find(&self, destination: [u8; 6]) -> Option<PortId> {
        let address = number(destination);
        if address == 0 || is_group(destination) {
            return None;
        }
        let own = self.own.iter().find(|(own, _)| *own == address).map(|(_, port)| *port);
        own.or_else(|| self.learned.iter().find(|entry| entry.address == address).map(|entry| entry.port))
    }
}

impl Plug {
    const fn addresses(&self) -> usize {
        match self {
            Self::Card(_) => CARD_ADDRESSES,
            Self::Uplink => UPLINK_ADDRESSES,
        }
    }
}

/// Bit 0 of the first byte.
fn is_group(address: [u8; 6]) -> bool {
    address[0] & 1 != 0
}

fn number(address: [u8; 6]) -> u64 {
    address.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
