// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Addresses for guests by DHCP (RFC 2131), as far as a network without a router needs it.
//!
//! An address belongs to one hardware address for ever: leases are not taken back while this process runs. A guest that
//! moves or boots again gets its old one. When all are given, a new guest gets no answer.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::udp;
use smoltcp::wire::{DhcpMessageType, DhcpPacket, DhcpRepr, EthernetAddress, IpEndpoint};

use super::Network;

/// The first host number that is given.
const FIRST: u32 = 15;
/// Addresses that are given at most.
const LEASES: u32 = 200;
/// Seconds until a guest asks again.
const LEASE: u32 = 86400;
const SERVER_PORT: u16 = 67;
const CLIENT_PORT: u16 = 68;
/// Messages that wait.
const MESSAGES: usize = 16;
const MESSAGE_MAX: usize = 1500;

/// Which guest has which address.
#[derive(Debug)]
pub struct Leases {
    network: Network,
    given: HashMap<EthernetAddress, Ipv4Addr>,
}

impl Leases {
    /// None yet.
    #[must_use]
    pub fn new(network: Network) -> Self {
        Self { network, given: HashMap::new() }
    }

    /// The address of this guest, from now on.
    pub fn of(&mut self, guest: EthernetAddress) -> Option<Ipv4Addr> {
        if let Some(address) = self.given.get(&guest) {
            return Some(*address);
        }
        let Network { address: own, prefix } = self.network;
        let mask = self.mask();
        let broadcast = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
        let free = (FIRST..FIRST + LEASES).take_while(|host| *host < broadcast).find_map(|host| {
            let address = Ipv4Addr::from_bits(own.to_bits() & mask.to_bits() | host);
            (address != own && !self.given.values().any(|other| *other == address)).then_some(address)
        })?;
        self.given.insert(guest, free);
        Some(free)
    }

    fn mask(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - u32::from(self.network.prefix)).unwrap_or(0))
    }

    /// The answer to a message, if it has one.
    pub fn answer<'a>(&mut self, asked: &DhcpRepr<'a>) -> Option<DhcpRepr<'a>> {
        let own = self.network.address;
        let for_other = asked.server_identifier.is_some_and(|server| server != own);
        let address = match asked.message_type {
            DhcpMessageType::Discover | DhcpMessageType::Request if !for_other => {
                self.of(asked.client_hardware_address)?
            }
            // Of the rest, none changes anything.
            _ => return None,
        };
        let wanted = asked.requested_ip.or(Some(asked.client_ip).filter(|ip| !ip.is_unspecified()));
        let message_type = match asked.message_type {
            DhcpMessageType::Discover => DhcpMessageType::Offer,
            _ if wanted.is_none_or(|wanted| wanted == address) => DhcpMessageType::Ack,
            _ => DhcpMessageType::Nak,
        };
        let is_nak = message_type == DhcpMessageType::Nak;
        Some(DhcpRepr {
            message_type,
            transaction_id: asked.transaction_id,
            secs: 0,
            client_hardware_address: asked.client_hardware_address,
            client_ip: Ipv4Addr::UNSPECIFIED,
            your_ip: if is_nak { Ipv4Addr::UNSPECIFIED } else { address },
            server_ip: own,
            router: None,
            subnet_mask: (!is_nak).then(|| self.mask()),
            relay_agent_ip: Ipv4Addr::UNSPECIFIED,
            broadcast: true,
            requested_ip: None,
            client_identifier: None,
            server_identifier: Some(own),
            parameter_request_list: None,
            dns_servers: None,
            max_size: None,
            lease_duration: (!is_nak).then_some(LEASE),
            renew_duration: None,
            rebind_duration: None,
            additional_options: &[],
        })
    }
}

/// The server.
#[derive(Debug)]
pub struct Dhcp {
    leases: Leases,
    socket: SocketHandle,
}

impl Dhcp {
    /// A server of this network.
    pub fn new(network: Network, sockets: &mut SocketSet<'static>) -> Self {
        let buffer = || {
            let messages = vec![udp::PacketMetadata::EMPTY; MESSAGES];
            udp::PacketBuffer::new(messages, vec![0; MESSAGES * MESSAGE_MAX])
        };
        let mut socket = udp::Socket::new(buffer(), buffer());
        // It fails only for port 0, or if it is bound already.
        let _ = socket.bind(SERVER_PORT);
        Self { leases: Leases::new(network), socket: sockets.add(socket) }
    }

    /// Answers what has come.
    pub fn work(&mut self, sockets: &mut SocketSet<'static>) {
        let socket = sockets.get_mut::<udp::Socket<'_>>(self.socket);
        while socket.can_send()
            && let Ok((bytes, _)) = socket.recv()
        {
            let asked = DhcpPacket::new_checked(bytes).ok();
            let asked = asked.as_ref().and_then(|packet| DhcpRepr::parse(packet).ok());
            let Some(answer) = asked.and_then(|asked| self.leases.answer(&asked)) else { continue };
            let mut bytes = vec![0; answer.buffer_len()];
            if answer.emit(&mut DhcpPacket::new_unchecked(&mut bytes)).is_ok() {
                let to = IpEndpoint::new(Ipv4Addr::BROADCAST.into(), CLIENT_PORT);
                // A guest that gets no answer asks again.
                let _ = socket.send_slice(&bytes, to);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(number: u32) -> EthernetAddress {
        let [a, b, c, d] = number.to_be_bytes();
        EthernetAddress([2, 0, a, b, c, d])
    }

    #[test]
    fn each_guest_has_one_address() {
        let mut leases = Leases::new(Network::default());
        let first: Vec<_> = (0..LEASES).map(|number| leases.of(guest(number)).unwrap()).collect();
        assert_eq!(first[0], Ipv4Addr::new(10, 0, 3, 15));
        let mut sorted = first.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), LEASES as usize, "no two have the same");
        assert_eq!(leases.of(guest(LEASES)), None);
        assert!(first.iter().zip(0..).all(|(address, number)| leases.of(guest(number)) == Some(*address)));
    }

    #[test]
    fn addresses_are_of_the_network_and_not_the_gateways() {
        let network = Network { address: Ipv4Addr::new(192, 168, 7, 17), prefix: 27 };
        let mut leases = Leases::new(network);
        let given: Vec<_> = (0..40).map_while(|number| leases.of(guest(number))).collect();
        let expected: Vec<_> =
            (15..31).filter(|host| *host != 17).map(|host| Ipv4Addr::new(192, 168, 7, host)).collect();
        assert_eq!(given, expected);
    }
}
