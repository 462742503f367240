// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An end of the network in this process, for programs of the host that have no tap device: smoltcp's TCP/IP.
//!
//! * A [`Forward`] is a port of the host. Each connection to it becomes one to a guest, from the gateway's address.
//! * A [`Serve`] is a port of the gateway. Each connection of a guest to it becomes one to a server on the host.
//! * Guests that ask by DHCP get an address of the network ([`dhcp`]). There is no router: a guest reaches the other guests
//!   and the gateway, and nothing else.
//!
//! Invariants: the number of connections is bounded, and so are the bytes on their way through each. A side that is slow slows
//! the other one, by TCP's windows.

pub mod dhcp;
mod link;
mod relay;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::socket::tcp;
use smoltcp::time::Instant as Moment;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr, Ipv4Cidr};
use thiserror::Error;

use crate::ports::{GATEWAY, Ports};
use dhcp::Dhcp;
use link::Link;
use relay::Relay;

/// Connections through the gateway at the same time.
pub const CONNECTIONS: usize = 256;
/// Connections of guests that wait for their server, for each port.
const BACKLOG: usize = 8;
/// Bytes on their way, in each direction of a connection.
const BUFFER: usize = 128 << 10;
/// The gateway's address on the link, which is administered locally.
pub const MAC: [u8; 6] = [0x02, b't', b'f', 2, 0, 0];

/// The gateway's address, and the size of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// The gateway.
    pub address: Ipv4Addr,
    /// Bits that are the same for all: 8 to 30.
    pub prefix: u8,
}

/// A port of the host that leads to one of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Where the host listens.
    pub host: SocketAddr,
    /// The guest's address and port.
    pub guest: (Ipv4Addr, u16),
}

/// A port of the gateway that leads to a server on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Serve {
    /// The gateway's port.
    pub port: u16,
    /// The server.
    pub host: SocketAddr,
}

/// A text is no such thing.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0:?} is not of the form {1}")]
pub struct NotOfForm(String, &'static str);

impl Default for Network {
    fn default() -> Self {
        Self { address: Ipv4Addr::new(10, 0, 3, 2), prefix: 24 }
    }
}

impl FromStr for Network {
    type Err = NotOfForm;

    fn from_str(text: &str) -> Result<Self, NotOfForm> {
        let parsed = text.split_once('/').and_then(|(address, prefix)| {
            let (address, prefix) = (address.parse().ok()?, prefix.parse().ok()?);
            (8..=30).contains(&prefix).then_some(Self { address, prefix })
        });
        parsed.ok_or_else(|| NotOfForm(text.to_owned(), "ADDRESS/BITS with 8 to 30 bits, as 10.0.3.2/24"))
    }
}

impl FromStr for Forward {
    type Err = NotOfForm;

    fn from_str(text: &str) -> Result<Self, NotOfForm> {
        let parsed = text.split_once('=').and_then(|(host, guest)| {
            let (address, port) = guest.rsplit_once(':')?;
            Some(Self { host: host.parse().ok()?, guest: (address.parse().ok()?, port.parse().ok()?) })
        });
        parsed.ok_or_else(|| {
            NotOfForm(text.to_owned(), "HOST:PORT=GUEST:PORT with addresses, as 127.0.0.1:8022=10.0.3.15:22")
        })
    }
}

impl FromStr for Serve {
    type Err = NotOfForm;

    fn from_str(text: &str) -> Result<Self, NotOfForm> {
        let parsed = text
            .split_once('=')
            .and_then(|(port, host)| Some(Self { port: port.parse().ok()?, host: host.parse().ok()? }));
        parsed.ok_or_else(|| NotOfForm(text.to_owned(), "PORT=HOST:PORT with an address, as 80=127.0.0.1:8080"))
    }
}

/// The gateway.
pub struct Gateway {
    interface: Interface,
    sockets: SocketSet<'static>,
    link: Link,
    dhcp: Dhcp,
    forwards: Vec<(TcpListener, Forward)>,
    serves: Vec<Serve>,
    /// Sockets that wait for a guest's connection, with the place of their port.
    waiting: Vec<(smoltcp::iface::SocketHandle, usize)>,
    relays: Vec<Relay>,
    begun: Instant,
    /// The local port of the next connection to a guest.
    next_port: u16,
}

impl Gateway {
    /// The gateway of this network, which listens at once.
    ///
    /// # Errors
    ///
    /// The host's port that cannot be used, and why.
    pub fn new(network: Network, forwards: &[Forward], serves: &[Serve]) -> Result<Self, (SocketAddr, io::Error)> {
        let mut link = Link::default();
        let mut interface =
            Interface::new(Config::new(HardwareAddress::Ethernet(EthernetAddress(MAC))), &mut link, Moment::ZERO);
        interface.update_ip_addrs(|addresses| {
            // The list has room for one.
            let _ = addresses.push(IpCidr::Ipv4(Ipv4Cidr::new(network.address, network.prefix)));
        });
        let mut listeners = Vec::new();
        for forward in forwards {
            let listen = || {
                let listener = TcpListener::bind(forward.host)?;
                listener.set_nonblocking(true)?;
                Ok(listener)
            };
            listeners.push((listen().map_err(|error| (forward.host, error))?, *forward));
        }
        let mut sockets = SocketSet::new(Vec::new());
        let dhcp = Dhcp::new(network, &mut sockets);
        let mut gateway = Self {
            interface,
            sockets,
            link,
            dhcp,
            forwards: listeners,
            serves: serves.to_vec(),
            waiting: Vec::new(),
            relays: Vec::new(),
            begun: Instant::now(),
            next_port: FIRST_PORT,
        };
        gateway.listen();
        Ok(gateway)
    }

    /// The addresses at which the host listens: those of the forwards, with the ports that the system has chosen.
    #[must_use]
    pub fn listens_at(&self) -> Vec<SocketAddr> {
        self.forwards.iter().filter_map(|(listener, _)| listener.local_addr().ok()).collect()
    }

    /// What is waited for: listeners that may take a connection, and connections.
    pub fn waits(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let has_room = self.relays.len() < CONNECTIONS;
        let listeners = self.forwards.iter().filter(move |_| has_room).map(|(to, _)| (to.as_fd(), PollFlags::IN));
        listeners.chain(self.relays.iter().filter_map(|relay| relay.waits(&self.sockets)))
    }

    /// How long it may be left alone, if nothing happens.
    pub fn delay(&mut self) -> Option<Duration> {
        let delay = self.interface.poll_delay(self.now(), &self.sockets)?;
        Some(Duration::from_micros(delay.total_micros()))
    }

    /// Does what can be done: frames that the switch has for it, connections of the host, and what follows for both.
    pub fn work(&mut self, ports: &mut Ports) {
        while ports.receive(GATEWAY, |frame| self.link.came(frame)).is_some() {}
        self.accept();
        loop {
            let now = self.now();
            self.interface.poll(now, &mut self.link, &mut self.sockets);
            self.dhcp.work(&mut self.sockets);
            self.established();
            let mut has_moved = false;
            for relay in &mut self.relays {
                has_moved |= relay.work(&mut self.sockets);
            }
            self.interface.poll(now, &mut self.link, &mut self.sockets);
            while let Some(frame) = self.link.leaves() {
                ports.send(GATEWAY, &frame);
            }
            if !has_moved {
                break;
            }
        }
        self.relays.retain(|relay| {
            let is_over = relay.is_over(&self.sockets);
            if is_over {
                self.sockets.remove(relay.socket());
            }
            !is_over
        });
        self.listen();
    }

    fn now(&self) -> Moment {
        Moment::from_micros(i64::try_from(self.begun.elapsed().as_micros()).unwrap_or(i64::MAX))
    }

    /// Connections of the host become connections to guests.
    fn accept(&mut self) {
        for (listener, forward) in &self.forwards {
            while self.relays.len() < CONNECTIONS {
                // A connection that was ended before it was taken is none.
                let Ok((stream, _)) = listener.accept() else { break };
                let mut socket = socket();
                let port = self.next_port;
                self.next_port = if port == u16::MAX { FIRST_PORT } else { port + 1 };
                let is_begun = socket.connect(self.interface.context(), forward.guest, port).is_ok();
                // Otherwise the host's end is closed.
                if is_begun && let Ok(relay) = Relay::new(stream, self.sockets.add(socket)) {
                    self.relays.push(relay);
                }
            }
        }
    }

    /// Each port of the gateway has sockets that wait.
    fn listen(&mut self) {
        for (place, serve) in self.serves.iter().enumerate() {
            let waiting = self.waiting.iter().filter(|(_, of)| *of == place).count();
            for _ in waiting..BACKLOG {
                let mut socket = socket();
                if socket.listen(serve.port).is_ok() {
                    self.waiting.push((self.sockets.add(socket), place));
                }
            }
        }
    }

    /// Connections of guests become connections to servers on the host.
    fn established(&mut self) {
        let Self { waiting, sockets, serves, relays, .. } = self;
        waiting.retain(|(handle, place)| {
            let socket = sockets.get_mut::<tcp::Socket<'_>>(*handle);
            if matches!(socket.state(), tcp::State::Listen | tcp::State::SynReceived) {
                return true;
            }
            let relay =
                if relays.len() < CONNECTIONS { Relay::connect(serves[*place].host, *handle).ok() } else { None };
            match relay {
                Some(relay) => relays.push(relay),
                None => {
                    socket.abort();
                    relays.extend(Relay::refused(*handle));
                }
            }
            false
        });
    }
}

/// The first local port of connections to guests.
const FIRST_PORT: u16 = 49152;

fn socket() -> tcp::Socket<'static> {
    let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER]);
    let mut socket = tcp::Socket::new(buffer(), buffer());
    // A guest that is gone does not hold its connection for ever.
    socket.set_timeout(Some(smoltcp::time::Duration::from_secs(TIMEOUT)));
    socket.set_keep_alive(Some(smoltcp::time::Duration::from_secs(KEEP_ALIVE)));
    socket.set_nagle_enabled(false);
    socket
}

/// Seconds after which a connection whose guest does not answer ends. A guest may be stopped for a move.
const TIMEOUT: u64 = 300;
/// Seconds after which a silent guest is asked.
const KEEP_ALIVE: u64 = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        let host = "127.0.0.1:8022".parse().unwrap();
        assert_eq!(
            "127.0.0.1:8022=10.0.3.15:22".parse(),
            Ok(Forward { host, guest: (Ipv4Addr::new(10, 0, 3, 15), 22) })
        );
        assert_eq!("80=127.0.0.1:8022".parse(), Ok(Serve { port: 80, host }));
        assert_eq!("10.0.3.2/24".parse(), Ok(Network::default()));
        for bad in ["", "8022=10.0.3.15:22", "127.0.0.1:8022", "127.0.0.1:8022=10.0.3.15", "host:1=10.0.3.15:22"] {
            assert!(bad.parse::<Forward>().is_err(), "{bad}");
        }
        for bad in ["", "80", "80=8080", "70000=127.0.0.1:80"] {
            assert!(bad.parse::<Serve>().is_err(), "{bad}");
        }
        for bad in ["", "10.0.3.2", "10.0.3.2/7", "10.0.3.2/31", "10.0.3/24"] {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
        let error = "80".parse::<Serve>().unwrap_err();
        assert_eq!(error.to_string(), "\"80\" is not of the form PORT=HOST:PORT with an address, as 80=127.0.0.1:8080");
    }
}
