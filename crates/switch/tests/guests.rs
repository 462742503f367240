// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A switch in a thread, with guests that are smoltcp's TCP/IP over a stream, as QEMU's guests would be.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::Instant as Clock;

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::{dhcpv4, tcp};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr, Ipv4Cidr};
use twofold_switch::framing::{Incoming, Outgoing};
use twofold_switch::{Address, Forward, Network, Serve, Server, Settings, SwitchError};

/// A switch in a thread, which ends with this value.
struct Running {
    path: PathBuf,
    forwards: Vec<SocketAddr>,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<Result<(), SwitchError>>>,
    _directory: tempfile::TempDir,
}

impl Running {
    fn new(forwards: &[Forward], serves: &[Serve]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("switch");
        let settings = Settings {
            listen: vec![Address::Unix(path.clone())],
            gateway: Some(Network::default()),
            forwards: forwards.to_vec(),
            serves: serves.to_vec(),
        };
        let server = Server::new(&settings).unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let forwards = server.forwards();
        let thread = thread::spawn(move || server.run(&stopped));
        Self { path, forwards, stop: Some(stop), thread: Some(thread), _directory: directory }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop = None;
        let result = self.thread.take().unwrap().join();
        if !thread::panicking() {
            result.unwrap().unwrap();
        }
    }
}

/// A card at a port of the switch.
struct Card {
    stream: UnixStream,
    incoming: Incoming,
    frames: VecDeque<Vec<u8>>,
}

impl Card {
    fn new(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_nonblocking(true).unwrap();
        Self { stream, incoming: Incoming::default(), frames: VecDeque::new() }
    }

    fn read(&mut self) {
        let mut bytes = [0; 4096];
        while let Ok(count) = self.stream.read(&mut bytes) {
            assert_ne!(count, 0, "the switch has closed the port");
            self.incoming.add(&bytes[..count]);
            while let Some(frame) = self.incoming.frame().unwrap() {
                self.frames.push_back(frame.to_vec());
            }
        }
    }

    fn send(&mut self, frame: &[u8]) {
        let mut outgoing = Outgoing::default();
        outgoing.set(frame);
        while !outgoing.is_empty() {
            match self.stream.write(outgoing.rest()) {
                Ok(count) => outgoing.advance(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

struct Frame(Vec<u8>);
struct Room<'a>(&'a mut Card);

impl RxToken for Frame {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, act: F) -> R {
        act(&self.0)
    }
}

impl TxToken for Room<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, act: F) -> R {
        let mut frame = vec![0; length];
        let done = act(&mut frame);
        self.0.send(&frame);
        done
    }
}

impl Device for Card {
    type RxToken<'a> = Frame;
    type TxToken<'a> = Room<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Frame, Room<'_>)> {
        self.read();
        let frame = self.frames.pop_front()?;
        Some((Frame(frame), Room(self)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Room<'_>> {
        Some(Room(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}

/// A guest.
struct Guest {
    card: Card,
    interface: Interface,
    sockets: SocketSet<'static>,
    begun: Clock,
}

impl Guest {
    fn new(path: &Path, number: u8, address: Option<Ipv4Addr>) -> Self {
        let mut card = Card::new(path);
        let mac = HardwareAddress::Ethernet(EthernetAddress([2, b't', b'f', 0, 0, number]));
        let mut interface = Interface::new(Config::new(mac), &mut card, Instant::ZERO);
        if let Some(address) = address {
            interface.update_ip_addrs(|all| all.push(IpCidr::Ipv4(Ipv4Cidr::new(address, 24))).unwrap());
        }
        Self { card, interface, sockets: SocketSet::new(Vec::new()), begun: Clock::now() }
    }

    fn poll(&mut self) {
        let now = Instant::from_micros(self.begun.elapsed().as_micros() as i64);
        self.interface.poll(now, &mut self.card, &mut self.sockets);
        thread::yield_now();
    }

    fn socket(&mut self) -> SocketHandle {
        let buffer = || tcp::SocketBuffer::new(vec![0; 32 << 10]);
        self.sockets.add(tcp::Socket::new(buffer(), buffer()))
    }

    fn tcp(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(handle)
    }
}

/// Sends back what comes, until the other end has ended.
fn echo(guest: &mut Guest, handle: SocketHandle) {
    guest.tcp(handle).listen(7).unwrap();
    loop {
        guest.poll();
        let socket = guest.tcp(handle);
        if socket.can_recv() && socket.can_send() {
            let mut bytes = [0; 2048];
            let room = (socket.send_capacity() - socket.send_queue()).min(bytes.len());
            let count = socket.recv_slice(&mut bytes[..room]).unwrap();
            assert_eq!(socket.send_slice(&bytes[..count]), Ok(count));
        }
        if !socket.may_recv() && !socket.can_recv() && socket.state() == tcp::State::CloseWait {
            socket.close();
        }
        if matches!(socket.state(), tcp::State::Closed | tcp::State::TimeWait) {
            return;
        }
    }
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|index| (index * index / 7) as u8).collect()
}

/// Sends bytes through an echo, and compares.
fn exchange(mut stream: TcpStream, count: usize) {
    let expected = bytes(count);
    let mut writer = stream.try_clone().unwrap();
    let sent = expected.clone();
    let thread = thread::spawn(move || {
        writer.write_all(&sent).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut came = Vec::new();
    stream.read_to_end(&mut came).unwrap();
    thread.join().unwrap();
    assert!(came == expected, "{} of {count} bytes", came.len());
}

const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 3, 50);
const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

#[test]
fn a_client_of_the_host_talks_to_a_guest() {
    let running = Running::new(&[Forward { host: ANY, guest: (GUEST, 7) }], &[]);
    let (path, at) = (running.path.clone(), running.forwards[0]);
    let guest = thread::spawn(move || {
        let mut guest = Guest::new(&path, 1, Some(GUEST));
        let handle = guest.socket();
        echo(&mut guest, handle);
    });
    exchange(TcpStream::connect(at).unwrap(), 1 << 20);
    guest.join().unwrap();
}

#[test]
fn a_guest_talks_to_a_server_of_the_host_with_an_address_by_dhcp() {
    let listener = TcpListener::bind(ANY).unwrap();
    let running = Running::new(&[], &[Serve { port: 80, host: listener.local_addr().unwrap() }]);
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = Vec::new();
        stream.read_to_end(&mut asked).unwrap();
        stream.write_all(&asked).unwrap();
    });
    let mut guest = Guest::new(&running.path, 1, None);
    let dhcp = guest.sockets.add(dhcpv4::Socket::new());
    let address = loop {
        guest.poll();
        if let Some(dhcpv4::Event::Configured(config)) = guest.sockets.get_mut::<dhcpv4::Socket<'_>>(dhcp).poll() {
            break config.address;
        }
    };
    assert_eq!(address, Ipv4Cidr::new(Ipv4Addr::new(10, 0, 3, 15), 24));
    guest.interface.update_ip_addrs(|all| all.push(IpCidr::Ipv4(address)).unwrap());
    let handle = guest.socket();
    let Guest { interface, sockets, .. } = &mut guest;
    let socket = sockets.get_mut::<tcp::Socket<'_>>(handle);
    socket.connect(interface.context(), (Ipv4Addr::new(10, 0, 3, 2), 80), 50000).unwrap();
    let (expected, mut sent, mut came) = (bytes(300_000), 0, Vec::new());
    loop {
        guest.poll();
        let socket = guest.tcp(handle);
        if socket.can_send() && sent < expected.len() {
            sent += socket.send_slice(&expected[sent..]).unwrap();
            if sent == expected.len() {
                socket.close();
            }
        }
        if socket.can_recv() {
            socket.recv(|bytes| (bytes.len(), came.extend_from_slice(bytes))).unwrap();
        }
        if matches!(socket.state(), tcp::State::Closed | tcp::State::TimeWait) {
            break;
        }
    }
    assert!(came == expected, "{} bytes", came.len());
    server.join().unwrap();
}

#[test]
fn a_connection_outlives_the_port_of_its_guest() {
    let running = Running::new(&[Forward { host: ANY, guest: (GUEST, 7) }], &[]);
    let (path, at) = (running.path.clone(), running.forwards[0]);
    let guest = thread::spawn(move || {
        let mut guest = Guest::new(&path, 1, Some(GUEST));
        let handle = guest.socket();
        guest.tcp(handle).listen(7).unwrap();
        let mut came = 0;
        while guest.tcp(handle).state() != tcp::State::Closed && guest.tcp(handle).state() != tcp::State::TimeWait {
            guest.poll();
            let socket = guest.tcp(handle);
            if socket.can_recv() {
                let mut bytes = [0; 100];
                let count = socket.recv_slice(&mut bytes).unwrap();
                socket.send_slice(&bytes[..count]).unwrap();
                came += count;
                // As if it went on in another QEMU.
                if came < 30 {
                    guest.card = Card::new(&path);
                }
            } else if socket.state() == tcp::State::CloseWait {
                socket.close();
            }
        }
        assert_eq!(came, 50);
    });
    let mut stream = TcpStream::connect(at).unwrap();
    for round in 0..5 {
        let mut bytes = [round; 10];
        stream.write_all(&bytes).unwrap();
        stream.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, [round; 10]);
    }
    drop(stream);
    guest.join().unwrap();
}

#[test]
fn guests_talk_to_each_other_and_frames_go_where_they_should() {
    let running = Running::new(&[], &[]);
    let mut cards: Vec<_> = (0..3).map(|_| Card::new(&running.path)).collect();
    let mac = |number: u8| [2, 0, 0, 0, 0, number];
    let frame = |to: [u8; 6], from: u8, text: &[u8]| [&to[..], &mac(from), b"\x88\xb5", text].concat();
    let next = |card: &mut Card| {
        while card.frames.is_empty() {
            card.read();
            thread::yield_now();
        }
        card.frames.pop_front().unwrap()
    };
    // Each announces its address. What comes back says that the switch has all of it.
    for from in 0..3 {
        cards[from].send(&frame([0xff; 6], from as u8, b"here"));
        for to in (0..3).filter(|to| *to != from) {
            assert_eq!(next(&mut cards[to]), frame([0xff; 6], from as u8, b"here"));
        }
    }
    cards[0].send(&frame(mac(1), 0, b"for 1"));
    assert_eq!(next(&mut cards[1]), frame(mac(1), 0, b"for 1"));
    // If 2 had got that frame, it would come before this one.
    cards[0].send(&frame(mac(2), 0, b"for 2"));
    assert_eq!(next(&mut cards[2]), frame(mac(2), 0, b"for 2"));
    // One that speaks another protocol loses its port, and the others keep theirs.
    let mut other = UnixStream::connect(&running.path).unwrap();
    other.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(other.read(&mut [0; 10]).unwrap(), 0);
    cards[2].send(&frame(mac(0), 2, b"still"));
    assert_eq!(next(&mut cards[0]), frame(mac(0), 2, b"still"));
}

#[test]
fn a_forward_that_is_in_use_is_refused() {
    let taken = TcpListener::bind(ANY).unwrap();
    let forwards = vec![Forward { host: taken.local_addr().unwrap(), guest: (GUEST, 7) }];
    let settings = Settings { listen: Vec::new(), gateway: Some(Network::default()), forwards, serves: Vec::new() };
    assert!(matches!(Server::new(&settings), Err(SwitchError::Forward(..))));
}
