// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Serves a disk's contents to QEMU by the network block device protocol, at a Unix socket.
//!
//! The handshake and the requests are those of the protocol's document (`doc/proto.md` of the project nbd): fixed newstyle,
//! without structured replies. Requests are served one after the other, so a flush covers all writes that are answered.
//! Invariant: once [`Server::cut`] returns, no request changes the store.

use std::io::{self, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::forgetful::Store;

/// What is served. An error reaches the client with its number.
pub trait Contents: Send + 'static {
    /// The size in bytes, as a client learns it.
    fn size(&self) -> u64;
    /// Reads `bytes` from `position`.
    fn read(&mut self, position: u64, bytes: &mut [u8]) -> io::Result<()>;
    /// Writes `bytes` at `position`. With `is_forced` they are stable afterwards.
    fn write(&mut self, position: u64, bytes: &[u8], is_forced: bool) -> io::Result<()>;
    /// Makes all that was written stable.
    fn flush(&mut self) -> io::Result<()>;
    /// Makes bytes zero. With `may_unmap` their place may be given up.
    fn zero(&mut self, position: u64, length: u32, _may_unmap: bool, is_forced: bool) -> io::Result<()> {
        self.write(position, &vec![0; length as usize], is_forced)
    }
    /// Bytes are no longer needed.
    fn discard(&mut self, _position: u64, _length: u32) -> io::Result<()> {
        Ok(())
    }
}

impl Contents for Store {
    fn size(&self) -> u64 {
        Self::size(self)
    }

    fn read(&mut self, position: u64, bytes: &mut [u8]) -> io::Result<()> {
        Self::read(self, position, bytes)
    }

    fn write(&mut self, position: u64, bytes: &[u8], is_forced: bool) -> io::Result<()> {
        Self::write(self, position, bytes, is_forced)
    }

    fn flush(&mut self) -> io::Result<()> {
        Self::flush(self);
        Ok(())
    }
}

/// A server of such contents.
#[derive(Debug)]
pub struct Server<C> {
    shared: Arc<Mutex<Shared<C>>>,
}

#[derive(Debug)]
struct Shared<C> {
    contents: C,
    /// The cuts so far. A connection serves until the next one.
    cuts: u64,
}

impl<C: Contents> Server<C> {
    /// Serves `contents` at `socket`, which does not exist yet, until this program ends.
    pub fn start(contents: C, socket: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(socket)?;
        let shared = Arc::new(Mutex::new(Shared { contents, cuts: 0 }));
        let server = Self { shared: Arc::clone(&shared) };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                // A client that breaks off is one whose QEMU was killed.
                thread::spawn(move || serve(&stream, &shared));
            }
        });
        Ok(server)
    }

    /// Runs `look` on the contents.
    pub fn look<T>(&self, look: impl FnOnce(&C) -> T) -> T {
        look(&lock(&self.shared).contents)
    }
}

impl Server<Store> {
    /// Cuts the power: ends all connections' effects, and has the store forget. Returns whether there was something to
    /// forget.
    pub fn cut(&self) -> bool {
        let mut shared = lock(&self.shared);
        shared.cuts += 1;
        let forgot = shared.contents.has_volatile();
        shared.contents.cut();
        forgot
    }
}

const MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

/// FIXED_NEWSTYLE and NO_ZEROES.
const HANDSHAKE_FLAGS: u16 = 3;
/// HAS_FLAGS, SEND_FLUSH, SEND_FUA, SEND_TRIM, SEND_WRITE_ZEROES.
const TRANSMISSION_FLAGS: u16 = 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6;

/// Options of the handshake.
mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const GO: u32 = 7;
}

/// Replies to options.
mod reply {
    pub const ACK: u32 = 1;
    pub const INFO: u32 = 3;
    pub const UNSUPPORTED: u32 = 1 << 31 | 1;
}

/// Requests.
mod request {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISCONNECT: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const DISCARD: u16 = 4;
    pub const WRITE_ZEROES: u16 = 6;
    /// The flag of forced unit access.
    pub const FORCED: u16 = 1;
    /// The flag of zeroes whose place is not given up.
    pub const NO_HOLE: u16 = 2;
}

/// The most bytes of an option or a request.
const LENGTH_MAX: u32 = 64 << 20;
const EINVAL: u32 = 22;

fn serve<C: Contents>(stream: &UnixStream, shared: &Mutex<Shared<C>>) -> io::Result<()> {
    let (size, cuts) = {
        let shared = lock(shared);
        (shared.contents.size(), shared.cuts)
    };
    let (mut from, mut to) = (BufReader::new(stream), stream);
    if !shake_hands(&mut from, &mut to, size)? {
        return Ok(());
    }
    loop {
        if u32::from_be_bytes(array(&mut from)?) != REQUEST_MAGIC {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let flags = u16::from_be_bytes(array(&mut from)?);
        let kind = u16::from_be_bytes(array(&mut from)?);
        let handle: [u8; 8] = array(&mut from)?;
        let position = u64::from_be_bytes(array(&mut from)?);
        let length = u32::from_be_bytes(array(&mut from)?);
        if kind == request::DISCONNECT || length > LENGTH_MAX && kind != request::DISCARD {
            return Ok(());
        }
        let has_data = [request::READ, request::WRITE].contains(&kind);
        let mut bytes = vec![0; if has_data { length as usize } else { 0 }];
        if kind == request::WRITE {
            from.read_exact(&mut bytes)?;
        }
        let is_forced = flags & request::FORCED != 0;
        let done = {
            let mut shared = lock(shared);
            if shared.cuts != cuts {
                return Ok(());
            }
            let contents = &mut shared.contents;
            match kind {
                request::READ => contents.read(position, &mut bytes),
                request::WRITE => contents.write(position, &bytes, is_forced),
                request::WRITE_ZEROES => contents.zero(position, length, flags & request::NO_HOLE == 0, is_forced),
                request::DISCARD => contents.discard(position, length),
                request::FLUSH => contents.flush(),
                _ => Err(io::ErrorKind::InvalidInput.into()),
            }
        };
        let mut answer = REPLY_MAGIC.to_be_bytes().to_vec();
        let number = |error: &io::Error| error.raw_os_error().map_or(EINVAL, i32::cast_unsigned);
        answer.extend(done.as_ref().map_or_else(number, |()| 0).to_be_bytes());
        answer.extend(handle);
        if kind == request::READ && done.is_ok() {
            answer.extend(bytes);
        }
        to.write_all(&answer)?;
    }
}

/// Returns whether requests follow.
fn shake_hands(from: &mut impl Read, to: &mut impl Write, size: u64) -> io::Result<bool> {
    to.write_all(&[&MAGIC.to_be_bytes()[..], &OPTION_MAGIC.to_be_bytes(), &HANDSHAKE_FLAGS.to_be_bytes()].concat())?;
    let flags = u32::from_be_bytes(array(from)?);
    loop {
        if u64::from_be_bytes(array(from)?) != OPTION_MAGIC {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let asked = u32::from_be_bytes(array(from)?);
        let length = u32::from_be_bytes(array(from)?);
        if length > LENGTH_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        io::copy(&mut from.take(length.into()), &mut io::sink())?;
        let export = [&size.to_be_bytes()[..], &TRANSMISSION_FLAGS.to_be_bytes()].concat();
        let mut answer = |kind: u32, content: &[u8]| {
            let head = [&OPTION_REPLY_MAGIC.to_be_bytes()[..], &asked.to_be_bytes(), &kind.to_be_bytes()];
            to.write_all(&[&head.concat(), &(content.len() as u32).to_be_bytes()[..], content].concat())
        };
        match asked {
            option::GO => {
                // The information 0 is the export.
                answer(reply::INFO, &[&[0, 0], &export[..]].concat())?;
                answer(reply::ACK, &[])?;
                return Ok(true);
            }
            option::EXPORT_NAME => {
                to.write_all(&export)?;
                // Without NO_ZEROES on both sides, 124 of them follow.
                to.write_all(&[0; 124][..if flags & 2 == 0 { 124 } else { 0 }])?;
                return Ok(true);
            }
            option::ABORT => {
                answer(reply::ACK, &[])?;
                return Ok(false);
            }
            _ => answer(reply::UNSUPPORTED, &[])?,
        }
    }
}

fn array<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn lock<C>(shared: &Mutex<Shared<C>>) -> MutexGuard<'_, Shared<C>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Client(UnixStream);

    impl Client {
        fn new(socket: &Path) -> Self {
            let mut stream = UnixStream::connect(socket).unwrap();
            let hello: [u8; 18] = array(&mut stream).unwrap();
            assert_eq!(hello[..8], *b"NBDMAGIC");
            stream.write_all(&3u32.to_be_bytes()).unwrap();
            // Structured replies, which are refused; then the export without a name, and no wish for information.
            for (asked, content) in [(8u32, &[][..]), (option::GO, &[0; 6])] {
                let length = (content.len() as u32).to_be_bytes();
                stream
                    .write_all(&[&OPTION_MAGIC.to_be_bytes()[..], &asked.to_be_bytes(), &length, content].concat())
                    .unwrap();
            }
            let refused: [u8; 20] = array(&mut stream).unwrap();
            assert_eq!(refused[12..16], reply::UNSUPPORTED.to_be_bytes());
            let information: [u8; 32] = array(&mut stream).unwrap();
            assert_eq!(information[22..30], 8192u64.to_be_bytes());
            let acknowledged: [u8; 20] = array(&mut stream).unwrap();
            assert_eq!(acknowledged[12..16], reply::ACK.to_be_bytes());
            Self(stream)
        }

        /// Returns the error, and what was read. `None`: the connection is gone.
        fn ask(&mut self, kind: u16, position: u64, length: u32, bytes: &[u8]) -> Option<(u32, Vec<u8>)> {
            let head =
                [&REQUEST_MAGIC.to_be_bytes()[..], &0u16.to_be_bytes(), &kind.to_be_bytes(), b"somebody"].concat();
            let rest = [&position.to_be_bytes()[..], &length.to_be_bytes(), bytes].concat();
            self.0.write_all(&[head, rest].concat()).ok()?;
            let answer: [u8; 16] = array(&mut self.0).ok()?;
            assert_eq!(answer[8..], *b"somebody");
            let error = u32::from_be_bytes(answer[4..8].try_into().unwrap());
            let mut read = vec![0; if kind == request::READ && error == 0 { length as usize } else { 0 }];
            self.0.read_exact(&mut read).ok()?;
            Some((error, read))
        }
    }

    #[test]
    fn a_client_reads_writes_and_flushes_until_the_cut() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("disk");
        std::fs::write(&file, [b'0'; 8192]).unwrap();
        let socket = directory.path().join("socket");
        let server = Server::start(Store::open(&file).unwrap(), &socket).unwrap();
        let mut client = Client::new(&socket);
        assert_eq!(client.ask(request::WRITE, 512, 4, b"kept"), Some((0, Vec::new())));
        assert_eq!(client.ask(request::FLUSH, 0, 0, b""), Some((0, Vec::new())));
        assert_eq!(client.ask(request::WRITE, 512, 4, b"lost"), Some((0, Vec::new())));
        assert_eq!(client.ask(request::READ, 511, 5, b""), Some((0, b"0lost".to_vec())));
        assert_eq!(client.ask(request::READ, 8191, 2, b""), Some((EINVAL, Vec::new())));
        assert!(server.cut());
        assert_eq!(client.ask(request::WRITE, 512, 4, b"late"), None);
        let mut client = Client::new(&socket);
        assert_eq!(client.ask(request::READ, 511, 5, b""), Some((0, b"0kept".to_vec())));
        assert!(!server.cut());
        assert_eq!(server.look(Store::flushes), 1);
    }
}
