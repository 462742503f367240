// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One connection through the gateway: bytes between a socket of the host and one of smoltcp.
//!
//! Each direction ends by itself: the end of one side's bytes becomes the end of the other's, after all bytes before it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::PollFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp;

/// A connection.
#[derive(Debug)]
pub struct Relay {
    /// `None`: there is none, or it is over.
    host: Option<TcpStream>,
    guest: SocketHandle,
    /// The guest gets no more bytes.
    host_has_ended: bool,
    /// The host gets no more bytes.
    guest_has_ended: bool,
}

impl Relay {
    /// Between a connection of the host and a guest's.
    pub fn new(host: TcpStream, guest: SocketHandle) -> io::Result<Self> {
        host.set_nonblocking(true)?;
        host.set_nodelay(true)?;
        Ok(Self { host: Some(host), guest, host_has_ended: false, guest_has_ended: false })
    }

    /// Between a guest's connection and a new one to a server on the host, which is not waited for.
    pub fn connect(server: SocketAddr, guest: SocketHandle) -> io::Result<Self> {
        let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let host = socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
        match connect(&host, &server) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Self::new(host.into(), guest),
            Err(error) => Err(error.into()),
        }
    }

    /// What is left of a guest's connection that has no server.
    pub fn refused(guest: SocketHandle) -> Option<Self> {
        Some(Self { host: None, guest, host_has_ended: true, guest_has_ended: true })
    }

    /// Its socket of smoltcp.
    pub fn socket(&self) -> SocketHandle {
        self.guest
    }

    /// What it waits for on the host's side.
    pub fn waits(&self, sockets: &SocketSet<'static>) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let host = self.host.as_ref()?;
        let guest = sockets.get::<tcp::Socket<'_>>(self.guest);
        let mut flags = PollFlags::empty();
        if !self.host_has_ended && guest.can_send() {
            flags |= PollFlags::IN;
        }
        if guest.can_recv() {
            flags |= PollFlags::OUT;
        }
        // An empty set would still report an error, again and again.
        (!flags.is_empty()).then_some((host.as_fd(), flags))
    }

    /// Moves what can be moved. True: something was.
    pub fn work(&mut self, sockets: &mut SocketSet<'static>) -> bool {
        let guest = sockets.get_mut::<tcp::Socket<'_>>(self.guest);
        let Some(host) = &mut self.host else { return false };
        let mut has_moved = false;
        let mut is_broken = false;
        if !self.host_has_ended && guest.can_send() {
            let mut has_ended = false;
            let read = guest.send(|room| match host.read(room) {
                Ok(0) => {
                    has_ended = true;
                    (0, 0)
                }
                Ok(count) => (count, count),
                Err(error) => {
                    is_broken |= !is_patient(&error);
                    (0, 0)
                }
            });
            has_moved |= read.is_ok_and(|count| count > 0);
            if has_ended {
                self.host_has_ended = true;
                has_moved = true;
                guest.close();
            }
        }
        if guest.can_recv() {
            let written = guest.recv(|bytes| match host.write(bytes) {
                Ok(count) => (count, count),
                Err(error) => {
                    is_broken |= !is_patient(&error);
                    (0, 0)
                }
            });
            has_moved |= written.is_ok_and(|count| count > 0);
        }
        let is_connected = guest.state() != tcp::State::SynSent;
        if !self.guest_has_ended && is_connected && !guest.may_recv() && !guest.can_recv() {
            self.guest_has_ended = true;
            has_moved = true;
            let _ = host.shutdown(Shutdown::Write);
        }
        if is_broken {
            guest.abort();
        }
        if is_broken || guest.state() == tcp::State::Closed {
            // What the guest has sent is written: `can_recv` is also true of a closed socket.
            if is_broken || !guest.can_recv() {
                self.host = None;
            }
        }
        has_moved
    }

    /// Whether both sides have ended.
    pub fn is_over(&self, sockets: &SocketSet<'static>) -> bool {
        let guest = sockets.get::<tcp::Socket<'_>>(self.guest);
        let is_closed = matches!(guest.state(), tcp::State::Closed | tcp::State::TimeWait);
        is_closed && (self.host.is_none() || self.host_has_ended && self.guest_has_ended)
    }
}

/// The host's side has nothing to say now, or is not connected yet.
fn is_patient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::NotConnected)
}
