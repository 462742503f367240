// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A link that is encrypted and authenticated: the Noise protocol `NNpsk0` with ChaCha20-Poly1305 and BLAKE2s, by the
//! crate `snow`. For host sides only (feature `sealed`): it needs the system's random numbers.
//!
//! The stream's checksums keep out accidents; this keeps out a forger ([`stream`](crate::stream)). Both sides have the
//! same key of 32 bytes, and each connection has a handshake of its own:
//!
//! * K1: the source sends `psk, e`: an ephemeral public key, authenticated with the pre-shared key.
//! * K2: the target sends `e, ee`. From here on each direction has a key that no earlier connection had, so bytes that
//!   were recorded then open nothing now, nor does a pre-shared key that leaks later open what was recorded.
//! * K3: bytes follow in frames: a length (2 bytes, little-endian), and as many bytes of ciphertext with its tag. The
//!   frame's number is its nonce.
//!
//! Invariant: a reader returns the bytes that the other side's writer was given, in their order, or an error. A frame
//! that was changed, repeated, left out or moved does not fit its number's tag. After an error nothing more comes. A
//! link that was cut between two frames is an end for this module; the stream's own end says whether it is complete.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use embedded_io::{Error as _, ErrorKind, ErrorType, Read, ReadExactError, Write};
use snow::{Builder, HandshakeState, StatelessTransportState};

/// The key that both sides have.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    /// A key from 32 random bytes. Take them from a random number generator, not from a password.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

/// Shows nothing of the key.
impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Key")
    }
}

/// Why no sealed link was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// The other side has another key, or the bytes were changed on the way.
    #[error("the handshake does not authenticate: is the key the same on both sides?")]
    Key,
    /// The link was cut.
    #[error("the link ended in the handshake")]
    Cut,
    /// The link failed.
    #[error("the link failed in the handshake: {0:?}")]
    Link(ErrorKind),
}

/// The source's side of K1 to K3.
///
/// # Errors
///
/// The link failed, or the other side has another key.
pub fn initiate<R: Read, W: Write>(
    (mut from, mut to): (R, W),
    key: &Key,
) -> Result<(SealedReader<R>, SealedWriter<W>), SealError> {
    let builder = builder(key)?;
    let mut handshake = builder.build_initiator().map_err(|_| SealError::Key)?;
    send(&mut handshake, &mut to)?;
    receive(&mut handshake, &mut from)?;
    sealed(handshake, from, to)
}

/// The target's side of K1 to K3.
///
/// # Errors
///
/// As [`initiate`].
pub fn accept<R: Read, W: Write>(
    (mut from, mut to): (R, W),
    key: &Key,
) -> Result<(SealedReader<R>, SealedWriter<W>), SealError> {
    let builder = builder(key)?;
    let mut handshake = builder.build_responder().map_err(|_| SealError::Key)?;
    receive(&mut handshake, &mut from)?;
    send(&mut handshake, &mut to)?;
    sealed(handshake, from, to)
}

/// Encrypts what is written. A frame goes out when it is full, and with [`flush`](Write::flush). What was not flushed
/// when it is dropped is lost, as on any link that is cut.
pub struct SealedWriter<W> {
    to: W,
    keys: Arc<StatelessTransportState>,
    number: u64,
    plain: Vec<u8>,
    frame: Vec<u8>,
    /// Where the ciphertext begins in `frame`: at a cache line, so that the cipher's vectors cross none. Its length is
    /// before it.
    start: usize,
    failed: Option<ErrorKind>,
}

/// Decrypts what is read.
pub struct SealedReader<R> {
    from: R,
    keys: Arc<StatelessTransportState>,
    number: u64,
    plain: Vec<u8>,
    /// The bytes of `plain` that were not returned yet.
    left: Range<usize>,
    frame: Vec<u8>,
    failed: Option<ErrorKind>,
}

impl<W: Write> SealedWriter<W> {
    /// Encrypts `plain[..]` or the given bytes into a frame, and writes it.
    fn send(&mut self, bytes: Option<&[u8]>) -> Result<(), ErrorKind> {
        let (plain, start) = (bytes.unwrap_or(&self.plain), self.start);
        let size = self.keys.write_message(self.number, plain, &mut self.frame[start..]);
        let size = size.map_err(|_| ErrorKind::InvalidData)?;
        self.frame[start - HEAD..start].copy_from_slice(&(size as u16).to_le_bytes());
        self.number += 1;
        self.to.write_all(&self.frame[start - HEAD..start + size]).map_err(|error| error.kind())
    }

    fn attempt(&mut self, work: impl FnOnce(&mut Self) -> Result<(), ErrorKind>) -> Result<(), ErrorKind> {
        if self.failed.is_none() {
            // A frame that was written in part cannot be followed by another.
            self.failed = work(self).err();
        }
        self.failed.map_or(Ok(()), Err)
    }
}

impl<W> SealedWriter<W> {
    /// What the frames are written to.
    pub fn to(&self) -> &W {
        &self.to
    }
}

impl<W> ErrorType for SealedWriter<W> {
    type Error = ErrorKind;
}

impl<W: Write> Write for SealedWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        let count = bytes.len().min(FULL - self.plain.len());
        self.attempt(|writer| {
            if count == FULL {
                // A full frame needs no copy.
                return writer.send(Some(&bytes[..count]));
            }
            writer.plain.extend_from_slice(&bytes[..count]);
            if writer.plain.len() == FULL {
                writer.send(None)?;
                writer.plain.clear();
            }
            Ok(())
        })?;
        Ok(count)
    }

    fn flush(&mut self) -> Result<(), ErrorKind> {
        self.attempt(|writer| {
            if !writer.plain.is_empty() {
                writer.send(None)?;
                writer.plain.clear();
            }
            writer.to.flush().map_err(|error| error.kind())
        })
    }
}

impl<R: Read> SealedReader<R> {
    /// Reads the next frame into `plain`. Without bytes there if the link has ended.
    fn receive(&mut self) -> Result<(), ErrorKind> {
        let mut head = [0; HEAD];
        if !filled(&mut self.from, &mut head)? {
            return Ok(());
        }
        let size = usize::from(u16::from_le_bytes(head));
        if !filled(&mut self.from, &mut self.frame[..size])? {
            return Err(ErrorKind::ConnectionReset);
        }
        let plain = self.keys.read_message(self.number, &self.frame[..size], &mut self.plain);
        self.left = 0..plain.map_err(|_| ErrorKind::InvalidData)?;
        self.number += 1;
        // A writer sends no empty frame, so it is not taken for the end.
        if self.left.is_empty() { Err(ErrorKind::InvalidData) } else { Ok(()) }
    }
}

impl<R> ErrorType for SealedReader<R> {
    type Error = ErrorKind;
}

impl<R: Read> Read for SealedReader<R> {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize, ErrorKind> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        if self.left.is_empty() && !bytes.is_empty() {
            self.receive().inspect_err(|kind| self.failed = Some(*kind))?;
        }
        let count = bytes.len().min(self.left.len());
        let start = self.left.start;
        bytes[..count].copy_from_slice(&self.plain[start..start + count]);
        self.left.start += count;
        Ok(count)
    }
}

/// Fills `bytes`. Returns false if the link has ended before the first of them.
fn filled(from: &mut impl Read, bytes: &mut [u8]) -> Result<bool, ErrorKind> {
    let mut done = 0;
    while done < bytes.len() {
        match from.read(&mut bytes[done..]).map_err(|error| error.kind())? {
            0 if done == 0 => return Ok(false),
            0 => return Err(ErrorKind::ConnectionReset),
            count => done += count,
        }
    }
    Ok(true)
}

fn builder(key: &Key) -> Result<Builder<'_>, SealError> {
    let protocol = PROTOCOL.parse().map_err(|_| SealError::Key)?;
    Builder::new(protocol).psk(0, &key.0).map_err(|_| SealError::Key)
}

fn send(handshake: &mut HandshakeState, to: &mut impl Write) -> Result<(), SealError> {
    let mut message = [0; HANDSHAKE];
    let size = handshake.write_message(&[], &mut message).map_err(|_| SealError::Key)?;
    let failed = |kind| SealError::Link(kind);
    // Both messages have one size, so no length is sent.
    debug_assert_eq!(size, HANDSHAKE);
    to.write_all(&message).map_err(|error| failed(error.kind()))?;
    to.flush().map_err(|error| failed(error.kind()))
}

fn receive(handshake: &mut HandshakeState, from: &mut impl Read) -> Result<(), SealError> {
    let mut message = [0; HANDSHAKE];
    from.read_exact(&mut message).map_err(|error| match error {
        ReadExactError::UnexpectedEof => SealError::Cut,
        ReadExactError::Other(error) => SealError::Link(error.kind()),
    })?;
    // A message of this size has an empty payload.
    handshake.read_message(&message, &mut []).map_err(|_| SealError::Key)?;
    Ok(())
}

fn sealed<R, W>(handshake: HandshakeState, from: R, to: W) -> Result<(SealedReader<R>, SealedWriter<W>), SealError> {
    let keys = Arc::new(handshake.into_stateless_transport_mode().map_err(|_| SealError::Key)?);
    let reader = SealedReader {
        from,
        keys: Arc::clone(&keys),
        number: 0,
        plain: vec![0; PLAIN],
        left: Range::default(),
        frame: vec![0; MOST],
        failed: None,
    };
    let (plain, frame) = (Vec::with_capacity(FULL), vec![0; HEAD + LINE + FULL + TAG]);
    // An address that cannot be aligned is no error.
    let start = HEAD + frame[HEAD..].as_ptr().align_offset(LINE).min(LINE);
    Ok((reader, SealedWriter { to, keys, number: 0, plain, frame, start, failed: None }))
}

const PROTOCOL: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// The bytes of a frame's length.
const HEAD: usize = 2;
/// Bytes of a cache line.
const LINE: usize = 64;
/// The most bytes of a frame: the protocol's limit.
const MOST: usize = 65_535;
/// The bytes of a tag.
const TAG: usize = 16;
/// The most bytes of a frame before encryption, as a reader takes them.
const PLAIN: usize = MOST - TAG;
/// The bytes of a full frame, as a writer fills it: whole blocks of the cipher, few enough to stay in a CPU's nearest
/// cache. (Of a frame of 64 KiB, copying alone took half as long as the cipher: `memcpy` moves that much by string
/// instructions, which are slow on some CPUs.)
const FULL: usize = 31 * 256;
/// A public key, and the tag of an empty payload.
const HANDSHAKE: usize = 32 + TAG;

#[cfg(test)]
mod tests {
    use super::*;

    type Ends<'a> = (SealedReader<&'a [u8]>, SealedWriter<Link>);

    /// A link that may fail.
    #[derive(Default)]
    struct Link {
        bytes: Vec<u8>,
        fails: bool,
    }

    impl ErrorType for Link {
        type Error = ErrorKind;
    }

    impl Write for Link {
        fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
            if self.fails {
                return Err(ErrorKind::TimedOut);
            }
            self.bytes.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> Result<(), ErrorKind> {
            Ok(())
        }
    }

    /// A source's writer, and a reader with its keys, which has no bytes yet.
    fn ends<'a>() -> Ends<'a> {
        let (key, mut there, mut back) = (Key::new([7; 32]), Vec::new(), Vec::new());
        let mut source = builder(&key).unwrap().build_initiator().unwrap();
        let mut target = builder(&key).unwrap().build_responder().unwrap();
        send(&mut source, &mut there).unwrap();
        receive(&mut target, &mut &there[..]).unwrap();
        send(&mut target, &mut back).unwrap();
        receive(&mut source, &mut &back[..]).unwrap();
        let (_, writer) = sealed(source, &b""[..], Link::default()).unwrap();
        let (reader, _) = sealed(target, &b""[..], Link::default()).unwrap();
        (reader, writer)
    }

    #[test]
    fn a_frame_goes_out_when_it_is_full_and_with_a_flush() {
        let (_, mut writer) = ends();
        let mut sent = 0;
        let mut grows = |writer: &SealedWriter<Link>| {
            let grown = writer.to().bytes.len() - sent;
            sent += grown;
            grown
        };
        for (write, size) in [(100, 0), (7836, 7954), (7936, 7954), (7937, 7954), (7935, 7954), (1, 0)] {
            let bytes = vec![1; write];
            writer.write_all(&bytes).unwrap();
            assert_eq!(grows(&writer), size, "a write of {write} bytes");
        }
        writer.flush().unwrap();
        assert_eq!(grows(&writer), 19);
        writer.flush().unwrap();
        assert_eq!(grows(&writer), 0, "there is nothing to flush");
    }

    #[test]
    fn a_writer_whose_link_has_failed_writes_no_more() {
        let (_, mut writer) = ends();
        writer.write_all(b"one").unwrap();
        writer.to.fails = true;
        assert_eq!(writer.flush(), Err(ErrorKind::TimedOut));
        writer.to.fails = false;
        assert_eq!((writer.write(b"two"), writer.flush()), (Err(ErrorKind::TimedOut), Err(ErrorKind::TimedOut)));
        assert_eq!(writer.to().bytes, []);
    }

    #[test]
    fn a_reader_returns_as_many_bytes_as_are_wanted() {
        let (mut reader, mut writer) = ends();
        writer.write_all(b"one").unwrap();
        writer.flush().unwrap();
        writer.write_all(b"two").unwrap();
        writer.flush().unwrap();
        let bytes = writer.to().bytes.clone();
        reader.from = &bytes;
        assert_eq!((reader.read(&mut []), reader.from.len()), (Ok(0), bytes.len()), "none are wanted");
        let mut found = [0; 6];
        for at in 0..6 {
            assert_eq!(reader.read(&mut found[at..=at]), Ok(1));
        }
        assert_eq!((&found, reader.read(&mut [0])), (b"onetwo", Ok(0)));
    }

    /// The end of a link is between two frames.
    #[test]
    fn a_frame_that_is_cut_anywhere_is_no_end() {
        for end in 0..=19 {
            let (mut reader, mut writer) = ends();
            writer.write_all(b"x").unwrap();
            writer.flush().unwrap();
            let bytes = writer.to().bytes.clone();
            reader.from = &bytes[..end];
            let wanted = match end {
                0 => Ok(0),
                19 => Ok(1),
                _ => Err(ErrorKind::ConnectionReset),
            };
            assert_eq!(reader.read(&mut [0; 9]), wanted, "cut after {end} bytes");
        }
    }

    #[test]
    fn an_empty_frame_is_no_end() {
        let (mut reader, mut writer) = ends();
        writer.send(Some(&[])).unwrap();
        let bytes = writer.to().bytes.clone();
        reader.from = &bytes;
        assert_eq!(reader.read(&mut [0; 9]), Err(ErrorKind::InvalidData));
    }
}
