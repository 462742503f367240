// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loop of the switch: it waits for connections, frames and the gateway, in one place.
//!
//! # A round
//!
//! * **R1** Wait until something can be done, or until the gateway's next deadline.
//! * **R2** Take new connections. If all ports are used, they wait in the listener.
//! * **R3** Read from each connection that has bytes, at most [`READ`] of them, and forward the frames.
//! * **R4** Let the gateway work.
//! * **R5** Write the frames that wait for each connection, until it takes no more.
//!
//! A connection that fails, or that speaks another protocol, gives its port back. The others do not notice.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use thiserror::Error;
use twofold_vmm::switch::PortId;

use crate::framing::{Incoming, Outgoing};
use crate::gateway::{Forward, Gateway, Network, Serve};
use crate::listen::{Address, Listener, Stream};
use crate::ports::Ports;

/// Bytes that one connection brings in a round at most.
pub const READ: usize = 64 << 10;

/// What a switch is made of.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where QEMUs plug in.
    pub listen: Vec<Address>,
    /// The gateway, if there is one.
    pub gateway: Option<Network>,
    /// Ports of the host that lead to guests.
    pub forwards: Vec<Forward>,
    /// Ports of the gateway that lead to servers on the host.
    pub serves: Vec<Serve>,
}

/// Why a switch cannot run.
#[derive(Debug, Error)]
pub enum SwitchError {
    /// It cannot listen there.
    #[error("cannot listen at {0}: {1}")]
    Listen(Address, io::Error),
    /// A forward's port cannot be used.
    #[error("--forward: cannot listen at {0}: {1}")]
    Forward(SocketAddr, io::Error),
    /// The system does not let it wait.
    #[error("cannot wait for connections: {0}")]
    Wait(io::Error),
}

/// A switch that listens.
pub struct Server {
    listeners: Vec<Listener>,
    connections: Vec<Connection>,
    ports: Ports,
    gateway: Option<Gateway>,
}

struct Connection {
    stream: Stream,
    port: PortId,
    incoming: Incoming,
    outgoing: Outgoing,
    is_over: bool,
}

impl Server {
    /// Listens.
    ///
    /// # Errors
    ///
    /// [`SwitchError`].
    pub fn new(settings: &Settings) -> Result<Self, SwitchError> {
        let listen =
            |address: &Address| Listener::new(address).map_err(|why| SwitchError::Listen(address.clone(), why));
        let gateway = settings.gateway.map(|network| Gateway::new(network, &settings.forwards, &settings.serves));
        let gateway = gateway.transpose().map_err(|(address, why)| SwitchError::Forward(address, why))?;
        Ok(Self {
            listeners: settings.listen.iter().map(listen).collect::<Result<_, _>>()?,
            connections: Vec::new(),
            ports: Ports::new(gateway.is_some()),
            gateway,
        })
    }

    /// Where the host listens for the forwards.
    #[must_use]
    pub fn forwards(&self) -> Vec<SocketAddr> {
        self.gateway.as_ref().map_or_else(Vec::new, Gateway::listens_at)
    }

    /// Works until `stop` has bytes, or its other end is closed.
    ///
    /// # Errors
    ///
    /// [`SwitchError::Wait`].
    pub fn run(mut self, stop: &UnixStream) -> Result<(), SwitchError> {
        while !self.round(stop).map_err(SwitchError::Wait)? {}
        Ok(())
    }

    /// R1 to R5. Returns whether it is to stop.
    fn round(&mut self, stop: &UnixStream) -> io::Result<bool> {
        if self.wait(stop)? {
            return Ok(true);
        }
        for listener in &self.listeners {
            while self.ports.has_room()
                && let Ok(stream) = listener.accept()
                && let Some(port) = self.ports.plug()
            {
                let (incoming, outgoing) = (Incoming::default(), Outgoing::default());
                self.connections.push(Connection { stream, port, incoming, outgoing, is_over: false });
            }
        }
        for connection in &mut self.connections {
            connection.is_over = connection.read(&mut self.ports).is_err();
        }
        if let Some(gateway) = &mut self.gateway {
            gateway.work(&mut self.ports);
        }
        let ports = &mut self.ports;
        self.connections.retain_mut(|connection| {
            let is_over = connection.is_over || connection.write(ports).is_err();
            if is_over {
                ports.unplug(connection.port);
            }
            !is_over
        });
        Ok(false)
    }

    /// R1. Returns whether it is to stop.
    fn wait(&mut self, stop: &UnixStream) -> io::Result<bool> {
        let timeout = self.gateway.as_mut().and_then(Gateway::delay).map(timespec);
        let mut waits = vec![PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)];
        if self.ports.has_room() {
            waits.extend(self.listeners.iter().map(|to| PollFd::from_borrowed_fd(to.as_fd(), PollFlags::IN)));
        }
        for connection in &self.connections {
            let writes = !connection.outgoing.is_empty() || self.ports.has_frame(connection.port);
            let flags = if writes { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            waits.push(PollFd::from_borrowed_fd(connection.stream.as_fd(), flags));
        }
        if let Some(gateway) = &self.gateway {
            waits.extend(gateway.waits().map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags)));
        }
        match poll(&mut waits, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(!waits[0].revents().is_empty()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Connection {
    /// R3. An error ends the connection.
    fn read(&mut self, ports: &mut Ports) -> io::Result<()> {
        let mut bytes = [0; 16 << 10];
        for _ in 0..READ / bytes.len() {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.incoming.add(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            while let Some(frame) = self.incoming.frame().map_err(io::Error::other)? {
                ports.send(self.port, frame);
            }
        }
        Ok(())
    }

    /// R5. An error ends the connection.
    fn write(&mut self, ports: &mut Ports) -> io::Result<()> {
        loop {
            if self.outgoing.is_empty() && ports.receive(self.port, |frame| self.outgoing.set(frame)).is_none() {
                return Ok(());
            }
            match self.stream.write(self.outgoing.rest()) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.outgoing.advance(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn timespec(delay: Duration) -> Timespec {
    Timespec { tv_sec: delay.as_secs().min(3600) as i64, tv_nsec: delay.subsec_nanos().into() }
}
