// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sockets of one move: a connection for each stream, and one for the target's answers.
//!
//! Invariant: nothing here waits for ever for a process that has ended. Its connections end with it, and a process that
//! does not connect is given up after [`PATIENCE`].

use std::io::{self, BufReader, BufWriter, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use embedded_io::{ErrorKind, ErrorType, Read, Write};

/// How long the other process may take to connect.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes that are kept before they are sent: records are small.
const BUFFER: usize = 256 << 10;

/// Waits for the connections of one move.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
}

/// What is written here is read at the other end.
#[derive(Debug)]
pub struct Sender(BufWriter<UnixStream>);

/// What was written at the other end.
#[derive(Debug)]
pub struct Receiver {
    socket: BufReader<UnixStream>,
    /// This process ends after this many bytes: a control.
    left: Option<u64>,
}

/// The ends of the connections of one move, at the source.
pub struct Outgoing {
    /// The streams.
    pub streams: Vec<Sender>,
    /// The target's answers.
    pub answers: Receiver,
}

/// The ends of the connections of one move, at the target.
pub struct Incoming {
    /// The streams, in the order in which they came.
    pub streams: Vec<Receiver>,
    /// The answers to the source.
    pub answers: Sender,
}

/// The first byte of a connection says what it is for.
const STREAM: u8 = b's';
const ANSWERS: u8 = b'a';

/// Connects to the target of a move, which listens at `path`.
///
/// # Errors
///
/// It does not listen.
pub fn connect(path: &Path, streams: usize) -> io::Result<Outgoing> {
    let one = |kind: u8| -> io::Result<UnixStream> {
        let mut socket = UnixStream::connect(path)?;
        socket.write_all(&[kind])?;
        Ok(socket)
    };
    let answers = Receiver::new(one(ANSWERS)?, None);
    let streams = (0..streams).map(|_| Ok(Sender::new(one(STREAM)?))).collect::<io::Result<_>>()?;
    Ok(Outgoing { streams, answers })
}

impl Listener {
    /// Listens at `path`, where nothing is yet.
    ///
    /// # Errors
    ///
    /// The socket cannot be made.
    pub fn new(path: &Path) -> io::Result<Self> {
        let socket = UnixListener::bind(path)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, path: path.to_owned() })
    }

    /// Waits for the connections. This process ends when it has read `ends_after` bytes of a stream, if that is set.
    ///
    /// # Errors
    ///
    /// They do not come.
    pub fn accept(self, streams: usize, ends_after: Option<u64>) -> io::Result<Incoming> {
        let (mut came, mut answers) = (Vec::new(), None);
        let begin = Instant::now();
        while came.len() < streams || answers.is_none() {
            let mut socket = match self.socket.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && begin.elapsed() < PATIENCE => {
                    thread::sleep(Duration::from_micros(200));
                    continue;
                }
                Err(error) => return Err(error),
            };
            socket.set_nonblocking(false)?;
            let mut kind = [0];
            socket.read_exact(&mut kind)?;
            match kind {
                [ANSWERS] => answers = Some(Sender::new(socket)),
                _ => came.push(Receiver::new(socket, ends_after)),
            }
        }
        let answers = answers.ok_or(io::ErrorKind::NotConnected)?;
        Ok(Incoming { streams: came, answers })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // A file that is left goes with its directory.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Sender {
    fn new(socket: UnixStream) -> Self {
        Self(BufWriter::with_capacity(BUFFER, socket))
    }
}

impl Receiver {
    fn new(socket: UnixStream, left: Option<u64>) -> Self {
        Self { socket: BufReader::with_capacity(BUFFER, socket), left }
    }
}

impl ErrorType for Sender {
    type Error = ErrorKind;
}

impl Write for Sender {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        self.0.write(bytes).map_err(|error| kind(&error))
    }

    fn flush(&mut self) -> Result<(), ErrorKind> {
        self.0.flush().map_err(|error| kind(&error))
    }
}

impl ErrorType for Receiver {
    type Error = ErrorKind;
}

impl Read for Receiver {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize, ErrorKind> {
        let count = loop {
            match self.socket.read(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other.map_err(|error| kind(&error))?,
            }
        };
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(count as u64).unwrap_or_else(|| std::process::abort());
        }
        Ok(count)
    }
}

fn kind(error: &io::Error) -> ErrorKind {
    match error.kind() {
        io::ErrorKind::BrokenPipe => ErrorKind::BrokenPipe,
        io::ErrorKind::ConnectionReset => ErrorKind::ConnectionReset,
        io::ErrorKind::ConnectionAborted => ErrorKind::ConnectionAborted,
        io::ErrorKind::Interrupted => ErrorKind::Interrupted,
        io::ErrorKind::OutOfMemory => ErrorKind::OutOfMemory,
        io::ErrorKind::WriteZero => ErrorKind::WriteZero,
        _ => ErrorKind::Other,
    }
}
