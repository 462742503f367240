// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An encrypted link, with a forger at its other end, or a peer that has the key.

use std::cell::RefCell;

use arbitrary::{Result as Arbitrary, Unstructured};
use embedded_io::{ErrorKind, ErrorType, Read, Write};
use snow::{Builder, HandshakeState, StatelessTransportState};
use twofold_migration::sealed::{Key, SealError, SealedReader, SealedWriter, accept, initiate};

use crate::heap;

/// A reader returns what a peer with the key wrote, in its order, up to the first byte that is not as it was written; a
/// writer's frames hold what it was given. A forger gets no link. Whatever comes, a side holds no more heap than any link
/// needs.
///
/// The first byte says which side is tried, and what its peer does; the second, how few bytes the link takes at a time.
pub fn sealed(data: &[u8]) {
    let &[mode, piece, ref data @ ..] = data else { return };
    let (role, piece) = (if mode & 1 == 0 { Role::Source } else { Role::Target }, usize::from(piece) + 1);
    match mode >> 1 & 3 {
        0 => forger(role, piece, data),
        1 => reads(role, piece, |_| Sent { bytes: data.to_vec(), plain: Vec::new(), whole: data.is_empty() }),
        2 => reads(role, piece, |keys| script(keys, data)),
        _ => writes(role, piece, data),
    }
}

/// The side that is tried.
#[derive(Clone, Copy)]
enum Role {
    Source,
    Target,
}

/// What a peer sends after the handshake.
struct Sent {
    bytes: Vec<u8>,
    /// What a reader returns of it.
    plain: Vec<u8>,
    /// Whether that is all of it. If not, an error follows.
    whole: bool,
}

/// A peer without the key: its bytes are the handshake.
fn forger(role: Role, piece: usize, data: &[u8]) {
    let wire = RefCell::new(Wire::new(piece, data.to_vec(), None));
    let (held, refused) = heap::most(|| open(role, &wire).map(drop));
    assert_eq!(refused, Err(if data.len() < HANDSHAKE { SealError::Cut } else { SealError::Key }));
    assert!(held <= HEAP_MOST, "{held} bytes of heap for a forger");
}

/// A peer with the key sends; the other side reads to the end or to an error.
fn reads(role: Role, piece: usize, sends: impl FnOnce(&StatelessTransportState) -> Sent) {
    connected(role, piece, |wire, keys, (mut reader, _), held| {
        let Sent { bytes, plain, whole } = sends(&keys);
        wire.borrow_mut().arrives(bytes);
        let (mut left, mut part) = (&plain[..], [0; 1000]);
        let (more, end) = heap::most(|| {
            loop {
                match reader.read(&mut part) {
                    Ok(0) => break Ok(()),
                    Ok(count) => {
                        left = left.strip_prefix(&part[..count]).expect("a reader returns what was written");
                    }
                    Err(error) => break Err(error),
                }
            }
        });
        assert!(left.is_empty(), "{} bytes did not come before {end:?}", left.len());
        assert_eq!(end.is_ok(), whole, "{end:?}");
        assert_eq!(reader.read(&mut part), end.map(|()| 0), "an end and an error stay");
        assert!(held + more <= HEAP_MOST, "{held} and {more} bytes of heap");
    });
}

/// The side writes, to a link that may be cut; a peer with the key reads what came.
fn writes(role: Role, piece: usize, data: &[u8]) {
    connected(role, piece, |wire, keys, (_, mut writer), _| {
        let mut u = Unstructured::new(data);
        let room: u16 = u.arbitrary().unwrap_or(0);
        // An even number is a link that is not cut.
        let before = wire.borrow().outgoing.len();
        if room % 2 == 1 {
            wire.borrow_mut().room = before + usize::from(room);
        }
        let (mut plain, mut flushed, mut failed) = (Vec::new(), 0, None);
        for number in 0..STEPS {
            let Ok(length) = length(&mut u) else { break };
            let bytes = vec![number as u8; length];
            let result = writer.write_all(&bytes).and_then(|()| writer.flush());
            assert!(failed.is_none() || result.is_err(), "a writer that has failed goes on");
            failed = failed.or(result.err());
            plain.extend_from_slice(&bytes);
            if failed.is_none() {
                flushed = plain.len();
            }
        }
        let wire = wire.borrow();
        let (mut frames, mut found, mut frame) = (&wire.outgoing[before..], Vec::new(), vec![0; FRAME_MOST]);
        for number in 0.. {
            let Some((head, rest)) = frames.split_first_chunk() else { break };
            let Some((cipher, rest)) = rest.split_at_checked(usize::from(u16::from_le_bytes(*head))) else { break };
            let size = keys.read_message(number, cipher, &mut frame).expect("a frame with its number");
            assert!(size > 0, "an empty frame");
            found.extend_from_slice(&frame[..size]);
            frames = rest;
        }
        assert!(frames.is_empty() || failed.is_some(), "a frame in part");
        assert!(found.len() >= flushed && plain.starts_with(&found), "{} bytes of {flushed}", found.len());
    });
}

/// What a peer with the key sends: frames, some of them changed, repeated, left out, moved, or with another number.
fn script(keys: &StatelessTransportState, data: &[u8]) -> Sent {
    let (mut u, mut script) = (Unstructured::new(data), Script { keys, made: Vec::new(), delivered: Vec::new() });
    for _ in 0..STEPS {
        if u.is_empty() || script.step(&mut u).is_err() {
            break;
        }
    }
    let (bytes, mut plain) = (script.delivered.concat(), Vec::new());
    let mut rest = &bytes[..];
    for number in 0.. {
        let fits = |made: &&Made| made.number == number && !made.plain.is_empty() && rest.starts_with(&made.frame);
        let Some(made) = script.made.iter().find(fits) else { break };
        plain.extend_from_slice(&made.plain);
        rest = &rest[made.frame.len()..];
    }
    let whole = rest.is_empty();
    Sent { bytes, plain, whole }
}

struct Script<'a> {
    keys: &'a StatelessTransportState,
    /// Frames that the key made.
    made: Vec<Made>,
    /// What arrives, in this order.
    delivered: Vec<Vec<u8>>,
}

struct Made {
    number: u64,
    plain: Vec<u8>,
    frame: Vec<u8>,
}

impl Script<'_> {
    fn step(&mut self, u: &mut Unstructured<'_>) -> Arbitrary<()> {
        let step: u8 = u.arbitrary()?;
        let last = self.delivered.len().wrapping_sub(1);
        match step % 9 {
            // The next frame, as a writer makes it; left out in one of nine.
            step @ 0..=2 => {
                let (number, length) = (self.next(), length(u)?);
                let frame = self.make(number, length);
                if step < 2 {
                    self.delivered.extend(frame);
                }
            }
            3 => {
                let (number, length) = (u.arbitrary()?, length(u)?);
                let frame = self.make(number, length);
                self.delivered.extend(frame);
            }
            4 => {
                let again = u.choose_index(self.made.len())?;
                self.delivered.push(self.made[again].frame.clone());
            }
            5 if last > 0 && last < usize::MAX => self.delivered.swap(last - 1, last),
            6 if last < usize::MAX => {
                let bit = usize::from(u.arbitrary::<u16>()?);
                let count = self.delivered[last].len().max(1);
                if let Some(byte) = self.delivered[last].get_mut(bit / 8 % count) {
                    *byte ^= 1 << (bit % 8);
                }
            }
            7 if last < usize::MAX => {
                let cut = usize::from(u.arbitrary::<u8>()?);
                let left = self.delivered[last].len().saturating_sub(cut);
                self.delivered[last].truncate(left);
            }
            _ => {
                let count = usize::from(u.arbitrary::<u8>()?);
                self.delivered.push(u.bytes(count.min(u.len()))?.to_vec());
            }
        }
        Ok(())
    }

    /// The number of the next frame that was not made.
    fn next(&self) -> u64 {
        (0..).find(|&number| self.made.iter().all(|made| made.number != number)).unwrap_or(0)
    }

    /// Makes a frame; none if there is no such number.
    fn make(&mut self, number: u64, length: usize) -> Option<Vec<u8>> {
        let (plain, mut frame) = (vec![number as u8; length], vec![0; 2 + length + TAG]);
        let size = self.keys.write_message(number, &plain, &mut frame[2..]).ok()?;
        frame[..2].copy_from_slice(&(size as u16).to_le_bytes());
        self.made.push(Made { number, plain, frame: frame.clone() });
        Some(frame)
    }
}

/// A frame's bytes before encryption: any few, or about as many as a side or the protocol takes.
fn length(u: &mut Unstructured<'_>) -> Arbitrary<usize> {
    let byte = usize::from(u.arbitrary::<u8>()?);
    Ok(*[4096, 7935, 7936, 7937, FRAME_MOST - TAG - 1, FRAME_MOST - TAG].get(byte.wrapping_sub(250)).unwrap_or(&byte))
}

type Ends<'a> = (SealedReader<Link<'a>>, SealedWriter<Link<'a>>);

fn open(role: Role, wire: &RefCell<Wire>) -> Result<Ends<'_>, SealError> {
    let ends = (Link(wire), Link(wire));
    match role {
        Role::Source => initiate(ends, &Key::new(KEY)),
        Role::Target => accept(ends, &Key::new(KEY)),
    }
}

/// Has `work` done with a link whose peer has the key, with the peer's keys, and with the heap that the link took.
fn connected(role: Role, piece: usize, work: impl FnOnce(&RefCell<Wire>, StatelessTransportState, Ends<'_>, u64)) {
    let builder = Builder::new(PROTOCOL.parse().unwrap()).psk(0, &KEY).unwrap();
    let (wire, mut first) = match role {
        Role::Source => (Wire::new(piece, Vec::new(), Some(builder.build_responder().unwrap())), None),
        Role::Target => {
            let (mut peer, mut message) = (builder.build_initiator().unwrap(), vec![0; HANDSHAKE]);
            assert_eq!(peer.write_message(&[], &mut message), Ok(HANDSHAKE));
            (Wire::new(piece, message, None), Some(peer))
        }
    };
    let wire = RefCell::new(wire);
    let (held, ends) = heap::most(|| open(role, &wire).expect("the peer has the key"));
    if let Some(peer) = &mut first {
        assert_eq!(peer.read_message(&wire.borrow().outgoing, &mut []), Ok(0));
    }
    let peer = first.or_else(|| wire.borrow_mut().answers.take()).expect("there is a peer");
    work(&wire, peer.into_stateless_transport_mode().expect("the handshake is complete"), ends, held);
}

/// A link within one thread.
struct Wire {
    /// What the side that is tried reads, from `at` on, `piece` bytes at a time.
    incoming: Vec<u8>,
    at: usize,
    piece: usize,
    /// What it has written. The write that would make it longer than `room` bytes fails.
    outgoing: Vec<u8>,
    room: usize,
    /// A peer that answers the side's handshake when the answer is read.
    answers: Option<HandshakeState>,
}

impl Wire {
    fn new(piece: usize, incoming: Vec<u8>, answers: Option<HandshakeState>) -> Self {
        Self { incoming, at: 0, piece, outgoing: Vec::new(), room: usize::MAX, answers }
    }

    fn arrives(&mut self, bytes: Vec<u8>) {
        (self.incoming, self.at) = (bytes, 0);
    }
}

struct Link<'a>(&'a RefCell<Wire>);

impl ErrorType for Link<'_> {
    type Error = ErrorKind;
}

impl Read for Link<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize, ErrorKind> {
        let wire = &mut *self.0.borrow_mut();
        if let (Some(peer), true) = (&mut wire.answers, wire.incoming.is_empty()) {
            let mut message = vec![0; HANDSHAKE];
            assert_eq!(peer.read_message(&wire.outgoing, &mut []), Ok(0));
            assert_eq!(peer.write_message(&[], &mut message), Ok(HANDSHAKE));
            wire.incoming = message;
        }
        let count = bytes.len().min(wire.piece).min(wire.incoming.len() - wire.at);
        bytes[..count].copy_from_slice(&wire.incoming[wire.at..wire.at + count]);
        wire.at += count;
        Ok(count)
    }
}

impl Write for Link<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        let wire = &mut *self.0.borrow_mut();
        let count = bytes.len().min(wire.piece).min(wire.room - wire.outgoing.len());
        wire.outgoing.extend_from_slice(&bytes[..count]);
        if count == 0 && !bytes.is_empty() {
            // Later writes would succeed, so that a side that goes on in the middle of a frame is noticed.
            wire.room = usize::MAX;
            return Err(ErrorKind::ConnectionReset);
        }
        Ok(count)
    }

    fn flush(&mut self) -> Result<(), ErrorKind> {
        Ok(())
    }
}

const KEY: [u8; 32] = [7; 32];
const PROTOCOL: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// The bytes of a message of the handshake, of a tag, and the most of a frame.
const HANDSHAKE: usize = 48;
const TAG: usize = 16;
const FRAME_MOST: usize = 65_535;
/// The most steps of a script. A frame has up to 64 KiB, so more would only be slow.
const STEPS: usize = 64;
/// The most bytes of heap that a link may take: a reader's two buffers of 64 KiB, a writer's two of 8 KiB, and the keys.
const HEAP_MOST: u64 = 152 << 10;
