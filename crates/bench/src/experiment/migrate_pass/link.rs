// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where bytes go: nowhere, into a list, or through a socket to a thread that drops them.

use std::hint::black_box;
use std::io::{self, BufWriter, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::Context;
use embedded_io::{Error as _, ErrorKind, ErrorType, Read, Write};
use twofold_migration::sealed::{Key, SealedReader, SealedWriter, accept, initiate};

/// Drops what is written.
pub struct Nowhere;

impl ErrorType for Nowhere {
    type Error = ErrorKind;
}

impl Write for Nowhere {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        Ok(black_box(bytes).len())
    }

    fn flush(&mut self) -> Result<(), ErrorKind> {
        Ok(())
    }
}

/// Keeps what is written, and the size of each write.
#[derive(Default)]
pub struct Recorded {
    /// All bytes.
    pub bytes: Vec<u8>,
    sizes: Vec<usize>,
}

impl Recorded {
    /// Empties the list, and keeps its memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.sizes.clear();
    }

    /// Writes all of it again, in the same writes.
    ///
    /// # Errors
    ///
    /// The sink failed.
    pub fn replay(&self, sink: &mut impl Write) -> anyhow::Result<()> {
        let mut left = &self.bytes[..];
        for size in &self.sizes {
            let (now, later) = left.split_at(*size);
            sink.write_all(now).map_err(|error| failed(error.kind()))?;
            left = later;
        }
        sink.flush().map_err(|error| failed(error.kind()))
    }
}

impl ErrorType for Recorded {
    type Error = ErrorKind;
}

impl Write for Recorded {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        self.bytes.extend_from_slice(bytes);
        self.sizes.push(bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<(), ErrorKind> {
        Ok(())
    }
}

/// A socket whose other end is dropped by a thread.
pub struct Socket {
    /// The socket, with a buffer: a record's header and its page go out together.
    link: BufWriter<UnixStream>,
    drops: Option<JoinHandle<()>>,
}

impl Socket {
    /// Makes the socket and its thread.
    ///
    /// # Errors
    ///
    /// The system has none left.
    pub fn new() -> anyhow::Result<Self> {
        let (here, mut there) = UnixStream::pair()?;
        let drops = thread::Builder::new().name("socket's other end".to_owned()).spawn(move || {
            let mut bytes = vec![0; BUFFER];
            while matches!(there.read(&mut bytes), Ok(1..)) {
                black_box(&bytes);
            }
        })?;
        Ok(Self { link: BufWriter::with_capacity(BUFFER, here), drops: Some(drops) })
    }

    /// Writes bytes past the buffer, in calls that are as large.
    ///
    /// # Errors
    ///
    /// The socket failed.
    pub fn write_plain(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(bytes.chunks(BUFFER).try_for_each(|part| self.link.get_mut().write_all(part))?)
    }
}

impl ErrorType for Socket {
    type Error = ErrorKind;
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        self.link.write(bytes).map_err(kind)
    }

    fn flush(&mut self) -> Result<(), ErrorKind> {
        self.link.flush().map_err(kind)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // The thread ends at the end of the stream.
        let _ = self.link.get_ref().shutdown(std::net::Shutdown::Both);
        let _ = self.drops.take().map(JoinHandle::join);
    }
}

/// A socket for a handshake, which drops what is written after it.
pub struct Opened {
    socket: UnixStream,
    is_open: Arc<AtomicBool>,
}

impl ErrorType for Opened {
    type Error = ErrorKind;
}

impl Read for Opened {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize, ErrorKind> {
        self.socket.read(bytes).map_err(kind)
    }
}

impl Write for Opened {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        if self.is_open.load(Ordering::Relaxed) {
            return Ok(black_box(bytes).len());
        }
        self.socket.write(bytes).map_err(kind)
    }

    fn flush(&mut self) -> Result<(), ErrorKind> {
        Ok(())
    }
}

/// A sealed link whose bytes go nowhere once both sides have their keys.
///
/// # Errors
///
/// The system has no socket or no random numbers.
pub fn sealed() -> anyhow::Result<SealedWriter<Opened>> {
    let key = Key::new([0x5a; 32]);
    let (here, there) = UnixStream::pair()?;
    let is_open = Arc::new(AtomicBool::new(false));
    let end = |socket: &UnixStream| -> anyhow::Result<_> {
        Ok(Opened { socket: socket.try_clone()?, is_open: Arc::clone(&is_open) })
    };
    let (target, source) = ((end(&there)?, end(&there)?), (end(&here)?, end(&here)?));
    let (target, source) = thread::scope(|scope| {
        let target = scope.spawn(|| accept(target, &key).map(|(reader, _): (SealedReader<_>, _)| reader));
        let source = initiate(source, &key);
        (target.join(), source)
    });
    target.ok().context("the target's thread has ended")??;
    let (_, writer) = source?;
    is_open.store(true, Ordering::Relaxed);
    Ok(writer)
}

fn kind(error: io::Error) -> ErrorKind {
    match error.kind() {
        io::ErrorKind::ConnectionReset => ErrorKind::ConnectionReset,
        io::ErrorKind::BrokenPipe => ErrorKind::BrokenPipe,
        _ => ErrorKind::Other,
    }
}

fn failed(kind: ErrorKind) -> anyhow::Error {
    anyhow::anyhow!("the sink failed: {kind:?}")
}

/// Bytes that go to the socket at once: few enough to stay in a CPU's nearest caches, and enough for one call each.
const BUFFER: usize = 64 << 10;
