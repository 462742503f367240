// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The link between two launchers: TCP, encrypted and authenticated by [`twofold_migration::sealed`].
//!
//! Invariant: a link is one only after its handshake, so what another key wrote is never read as a guest. A link on which
//! nothing comes for [`SILENCE`] has failed.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use embedded_io::ErrorKind;
use thiserror::Error;
use twofold_migration::sealed::{self, Key, SealError, SealedReader, SealedWriter};

/// How long a side waits for the other.
pub const SILENCE: Duration = Duration::from_secs(30);

/// What comes by a link.
pub type Reader = SealedReader<Tcp>;
/// What goes by a link.
pub type Writer = SealedWriter<Tcp>;

/// Why there is no key.
#[derive(Debug, Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("cannot read the key {path}: {why}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        why: io::Error,
    },
    /// It is no key.
    #[error("{0} is no key: give 64 hexadecimal digits, as `openssl rand -hex 32` writes them")]
    Malformed(PathBuf),
    /// Others can read it.
    #[error("others can read the key {0}; `chmod 600` it")]
    Open(PathBuf),
}

/// Why there is no link.
#[derive(Debug, Error)]
pub enum LinkError {
    /// There is no connection.
    #[error("cannot connect to {to}: {why}")]
    Connect {
        /// The other side.
        to: String,
        /// The system's error.
        why: io::Error,
    },
    /// The other side is another one, or has another key.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The other side has ended the connection.
    #[error("{to} has ended the connection in the handshake: is the key the same on both sides?")]
    Refused {
        /// The other side.
        to: String,
    },
    /// The connection cannot be used.
    #[error("cannot use the connection: {0}")]
    Socket(#[from] io::Error),
}

/// Reads a key from a file that its owner alone can read.
///
/// # Errors
///
/// [`KeyError`].
pub fn key(path: &Path) -> Result<Key, KeyError> {
    let file = |why| KeyError::File { path: path.to_owned(), why };
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(path).map_err(file)?);
    if mode & 0o077 != 0 {
        return Err(KeyError::Open(path.to_owned()));
    }
    let text = fs::read_to_string(path).map_err(file)?;
    digits(text.trim()).map(Key::new).ok_or_else(|| KeyError::Malformed(path.to_owned()))
}

fn digits(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 2 * bytes.len() || !text.is_ascii() {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}

/// Connects to a target, such as `HOST:PORT`.
///
/// # Errors
///
/// [`LinkError`].
pub fn connect(to: &str, key: &Key) -> Result<(Reader, Writer), LinkError> {
    let stream = TcpStream::connect(to).map_err(|why| LinkError::Connect { to: to.to_owned(), why })?;
    initiate(stream, key).map_err(|why| match why {
        // A target that cannot read the first message says nothing.
        LinkError::Seal(SealError::Cut | SealError::Link(ErrorKind::ConnectionReset)) => {
            LinkError::Refused { to: to.to_owned() }
        }
        why => why,
    })
}

/// The source's side of a connection.
///
/// # Errors
///
/// [`LinkError`].
pub fn initiate(stream: TcpStream, key: &Key) -> Result<(Reader, Writer), LinkError> {
    Ok(sealed::initiate(both(stream)?, key)?)
}

/// The target's side of a connection.
///
/// # Errors
///
/// [`LinkError`].
pub fn accept(stream: TcpStream, key: &Key) -> Result<(Reader, Writer), LinkError> {
    Ok(sealed::accept(both(stream)?, key)?)
}

fn both(stream: TcpStream) -> io::Result<(Tcp, Tcp)> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    Ok((Tcp(stream.try_clone()?), Tcp(stream)))
}

/// A connection with the traits of a stream.
#[derive(Debug)]
pub struct Tcp(TcpStream);

impl Tcp {
    /// Ends the connection in both directions: whatever waits for it fails.
    pub(super) fn cut(&self) {
        // One that has ended already is as wanted.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl embedded_io::ErrorType for Tcp {
    type Error = ErrorKind;
}

impl embedded_io::Read for Tcp {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize, ErrorKind> {
        again(|| (&self.0).read(bytes))
    }
}

impl embedded_io::Write for Tcp {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        again(|| (&self.0).write(bytes))
    }

    fn flush(&mut self) -> Result<(), ErrorKind> {
        Ok(())
    }
}

/// Repeats a call that a signal has interrupted.
fn again(mut call: impl FnMut() -> io::Result<usize>) -> Result<usize, ErrorKind> {
    loop {
        match call() {
            Ok(count) => return Ok(count),
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) => {
                return Err(match why.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ErrorKind::TimedOut,
                    io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => ErrorKind::ConnectionReset,
                    _ => ErrorKind::Other,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_64_digits_for_its_owner_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let put = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            key(&path).map_err(|why| why.to_string())
        };
        assert!(put(&"0f".repeat(32), 0o600).is_ok() && put(&format!("{}\n", "aB".repeat(32)), 0o400).is_ok());
        assert!(put(&"0f".repeat(32), 0o640).unwrap_err().contains("chmod 600"));
        for text in ["", &"0".repeat(63), &"0".repeat(65), &"0g".repeat(32), &"é".repeat(32)] {
            assert!(put(text, 0o600).unwrap_err().contains("64 hexadecimal digits"), "{text}");
        }
        assert_eq!(digits(&"01".repeat(32)), Some([1; 32]));
    }
}
