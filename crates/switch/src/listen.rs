// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the switch listens, and the connections of its ports: Unix sockets or TCP.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

/// Where the switch listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket, which is made. Only its owner can use it, as the directory and the umask say.
    Unix(PathBuf),
    /// An address and a port of the host.
    Tcp(SocketAddr),
}

/// A text is no address.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("it is empty; give the path of a Unix socket, or ADDRESS:PORT")]
pub struct NoAddress;

impl FromStr for Address {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<Self, NoAddress> {
        match text.parse() {
            Ok(address) => Ok(Self::Tcp(address)),
            Err(_) if text.is_empty() => Err(NoAddress),
            Err(_) => Ok(Self::Unix(text.into())),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(out),
            Self::Tcp(address) => address.fmt(out),
        }
    }
}

/// Takes connections.
#[derive(Debug)]
pub enum Listener {
    /// On a Unix socket, which is removed in the end.
    Unix(UnixListener, PathBuf),
    /// By TCP.
    Tcp(TcpListener),
}

/// A connection.
#[derive(Debug)]
pub enum Stream {
    /// Of a Unix socket.
    Unix(UnixStream),
    /// By TCP.
    Tcp(TcpStream),
}

impl Listener {
    /// Listens there. A socket that a switch has left behind is replaced; one that is served is not.
    ///
    /// # Errors
    ///
    /// The address is in use, or the system refuses.
    pub fn new(address: &Address) -> io::Result<Self> {
        let listener = match address {
            Address::Unix(path) => {
                remove_stale(path)?;
                let listener = UnixListener::bind(path)?;
                listener.set_nonblocking(true)?;
                Self::Unix(listener, path.clone())
            }
            Address::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Self::Tcp(listener)
            }
        };
        Ok(listener)
    }

    /// Takes the next connection.
    ///
    /// # Errors
    ///
    /// `WouldBlock`: there is none.
    pub fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok(Stream::Unix(stream))
            }
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = fs::remove_file(path);
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener, _) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(bytes),
            Self::Tcp(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Removes a socket that nothing serves.
fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    if !is_socket {
        // `bind` says what is wrong with a file.
        return Ok(());
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        _ => Ok(()),
    }
}
