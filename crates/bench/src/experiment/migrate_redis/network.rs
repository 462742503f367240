// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The network of the guest and its client: a switch in this process, outside of every QEMU, and a port of this host that leads
//! to the guest's Redis.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::Context;
use twofold_launch::devices::{Devices, Network as Card};
use twofold_launch::redis::{ADDRESS, PORT};
use twofold_switch::{Address, Forward, Server, Settings};

/// A switch in a thread, which ends with this value.
pub struct Network {
    socket: PathBuf,
    redis: SocketAddr,
    _stop: UnixStream,
}

impl Network {
    /// Starts it, with its socket in this directory.
    ///
    /// # Errors
    ///
    /// The socket or a port cannot be used.
    pub fn start(directory: &Path) -> anyhow::Result<Self> {
        let socket = directory.join("switch");
        // The system chooses a port that is free, and the switch takes it right after.
        let redis =
            TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).context("a port of this host")?;
        let server = Server::new(&Settings {
            listen: vec![Address::Unix(socket.clone())],
            gateway: Some(Default::default()),
            forwards: vec![Forward { host: redis, guest: (ADDRESS, PORT) }],
            serves: Vec::new(),
        })?;
        let (stop, stopped) = UnixStream::pair()?;
        thread::spawn(move || server.run(&stopped));
        Ok(Self { socket, redis, _stop: stop })
    }

    /// A guest's card in it.
    pub fn devices(&self) -> Devices {
        Devices { nets: vec![Card::Switch(self.socket.clone())], ..Devices::default() }
    }

    /// Where the host reaches the guest's Redis.
    pub fn redis(&self) -> SocketAddr {
        self.redis
    }
}
