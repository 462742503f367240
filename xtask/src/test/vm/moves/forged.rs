// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Streams that are forged or replayed on a link: a relay without the key changes what it carries.
//!
//! Invariants: after a change to what the source sends, the target has no guest, the source's guest runs on, and the owner record
//! names the source. Each side says why. A guest whose link was only recorded moves, and all of it is compared; what was recorded of
//! it moves nothing later.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure};
use twofold_abi::channel::{Command, GuestState};
use twofold_launch::session::Session;
use twofold_migration::precopy::Sent;
use twofold_workspace::output;

use super::course::{Links, course};
use crate::test::vm::machines::Machines;

/// What the relay does on one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// It records both directions, and changes nothing.
    Recorded,
    /// It changes what the source sends.
    Stream(Change, Place),
    /// It changes what the target answers.
    Answers(Change, Place),
    /// It sends what it has recorded last of the source to the target.
    ReplayedStream,
    /// It sends what it has recorded last of the target to the source.
    ReplayedAnswers,
}

/// How it changes a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A bit is another one.
    Flipped,
    /// The frame comes twice.
    Repeated,
    /// The next frame comes before it.
    Swapped,
    /// It does not come, and the next ones do.
    LeftOut,
    /// Other bytes of its length come in its place.
    Forged,
    /// Half of it comes, and nothing after it.
    Halved,
}

/// Which frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The handshake's message.
    Handshake,
    /// The frame of this number.
    Frame(u64),
    /// The one with the end of the stream: the source has offered the guest then.
    Last,
}

/// The end of the stream is another one, and then all of that stream comes again.
pub fn some(machines: &Machines) -> anyhow::Result<()> {
    forged(machines, &[Link::Stream(Change::Flipped, Place::Last), Link::ReplayedStream])
}

/// Each change at the begin, among the pages and at the end, and the streams of a guest that has moved.
pub fn all(machines: &Machines) -> anyhow::Result<()> {
    use Change::{Flipped, Forged, Halved, LeftOut, Repeated, Swapped};
    use Place::{Frame, Handshake, Last};
    let stream = |change, place| Link::Stream(change, place);
    let mut links = vec![stream(Flipped, Handshake), stream(Forged, Handshake), Link::Answers(Flipped, Handshake)];
    for change in [Flipped, Repeated, Forged, Halved] {
        links.extend([0, 9].map(|frame| stream(change, Frame(frame))));
    }
    // Nothing follows the first frame before the target has answered.
    links.extend([Swapped, LeftOut].map(|change| stream(change, Frame(9))));
    links.extend([Flipped, Forged, Halved].map(|change| stream(change, Last)));
    links.extend([Flipped, Forged, Halved].map(|change| Link::Answers(change, Frame(0))));
    links.extend([Link::ReplayedStream, Link::ReplayedAnswers]);
    links.extend([Link::Recorded, Link::ReplayedStream, Link::ReplayedAnswers]);
    forged(machines, &links)
}

fn forged(machines: &Machines, links: &[Link]) -> anyhow::Result<()> {
    // It ends at once if anything changes, and otherwise at the test's request.
    let guest = machines.bare("guest", 2, "watch=7200000 moved");
    let relay = Relay {
        links: Mutex::new(links.iter().rev().copied().collect()),
        under_way: Mutex::default(),
        tape: Arc::default(),
        reached: Arc::default(),
        offered: Arc::default(),
        answered: Arc::default(),
        changed: Arc::default(),
    };
    course(machines, &guest, "watch: begins", 1, Some(&relay))?;
    ensure!(lock(&relay.links).is_empty(), "the guest ended before {:?}", lock(&relay.links));
    Ok(())
}

/// Stands on each link in turn.
struct Relay {
    /// What it has yet to do, the next at the end.
    links: Mutex<Vec<Link>>,
    /// The links that have not ended, the last at the end. The guest's stay at a target is a part of the link that brought it.
    under_way: Mutex<Vec<Link>>,
    /// What was recorded last of each direction: the source's, the target's.
    tape: Arc<[Mutex<Vec<u8>>; 2]>,
    /// Whether the present link has reached the target.
    reached: Arc<AtomicBool>,
    /// Whether the source has offered the guest on it.
    offered: Arc<AtomicBool>,
    /// Whether the target has answered on it.
    answered: Arc<AtomicBool>,
    /// Whether anything was changed on it.
    changed: Arc<AtomicBool>,
}

impl Links for Relay {
    fn has_more(&self) -> bool {
        !lock(&self.links).is_empty()
    }

    fn next(&self, to: SocketAddr) -> anyhow::Result<Option<SocketAddr>> {
        let Some(link) = lock(&self.links).pop() else { return Ok(None) };
        lock(&self.under_way).push(link);
        for flag in [&self.reached, &self.offered, &self.answered, &self.changed] {
            flag.store(false, Ordering::Release);
        }
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let tape = Arc::clone(&self.tape);
        let [reached, offered, answered, changed] =
            [&self.reached, &self.offered, &self.answered, &self.changed].map(Arc::clone);
        thread::spawn(move || -> io::Result<()> {
            let (source, _) = listener.accept()?;
            let target = TcpStream::connect(to)?;
            reached.store(true, Ordering::Release);
            let (up, down) = ((source.try_clone()?, target.try_clone()?), (target, source));
            let of = |stream| match (link, stream) {
                (Link::Stream(change, place), true) | (Link::Answers(change, place), false) => Some((change, place)),
                _ => None,
            };
            // What is replayed was recorded on an earlier link.
            let [old_stream, old_answers] = [STREAM, ANSWERS].map(|of| lock(&tape[of]).clone());
            let direction = |replays: bool, old, number, change| Direction {
                change,
                replayed: replays.then_some(old),
                tape: Arc::clone(&tape),
                number,
                offered: Arc::clone(&offered),
                answered: Arc::clone(&answered),
                changed: Arc::clone(&changed),
            };
            let answers = direction(link == Link::ReplayedAnswers, old_answers, ANSWERS, of(false));
            let stream = direction(link == Link::ReplayedStream, old_stream, STREAM, of(true));
            let answers = thread::spawn(move || answers.carry(down));
            stream.carry(up);
            let _ = answers.join();
            Ok(())
        });
        Ok(Some(address))
    }

    fn has_reached(&self) -> bool {
        self.reached.load(Ordering::Acquire)
    }

    fn done(&self, here: &Session) -> anyhow::Result<()> {
        ensure!(here.state(0) == Some(GuestState::Running), "the guest is {:?}", here.state(0));
        let answer = here.ask(None, Command::Quit)?;
        ensure!(answer.refusal.is_none(), "{answer:?}");
        Ok(())
    }

    fn offered(&self) {
        self.offered.store(true, Ordering::Release);
    }

    fn stayed(&self, source: &str, target: &str) -> anyhow::Result<()> {
        let Some(link) = lock(&self.under_way).last().copied() else { bail!("no link is under way") };
        output::remark(&format!("{link:?}: {source} // the target: {target}"));
        ensure!(link != Link::Recorded, "nothing was changed");
        ensure!(self.changed.load(Ordering::Acquire), "{link:?} came to nothing");
        let said = if matches!(link, Link::Answers(..) | Link::ReplayedAnswers) { source } else { target };
        let words = match link {
            Link::Stream(Change::Halved, _) | Link::Answers(Change::Halved, _) => ["cut", "ended"],
            Link::Stream(_, Place::Handshake) | Link::Answers(_, Place::Handshake) | Link::ReplayedAnswers => {
                ["the handshake does not authenticate", "in the handshake"]
            }
            _ => [FORGED; 2],
        };
        ensure!(words.iter().any(|word| said.contains(word)), "{link:?}: {source} // the target: {target}");
        Ok(())
    }

    fn ended(&self, sent: Option<&Sent>) {
        let link = lock(&self.under_way).pop();
        assert_eq!(sent.is_some(), link == Some(Link::Recorded), "{link:?}");
    }
}

/// What a side says of bytes that the other side has not sealed for this link.
const FORGED: &str = "was changed on the link, or is another link's";

/// One direction of a link.
struct Direction {
    change: Option<(Change, Place)>,
    /// What is sent in place of what comes.
    replayed: Option<Vec<u8>>,
    tape: Arc<[Mutex<Vec<u8>>; 2]>,
    number: usize,
    offered: Arc<AtomicBool>,
    answered: Arc<AtomicBool>,
    changed: Arc<AtomicBool>,
}

impl Direction {
    /// Carries one direction to its end, and then ends both links.
    fn carry(self, (from, to): (TcpStream, TcpStream)) {
        // A link that ends is as wanted.
        let _ = match &self.replayed {
            Some(old) => self.replay(old, &from, &to),
            None => self.frames(&from, &to),
        };
        for stream in [from, to] {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn replay(&self, old: &[u8], mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
        self.changed.store(true, Ordering::Release);
        to.write_all(old)?;
        // What comes is lost.
        io::copy(&mut from, &mut io::sink()).map(drop)
    }

    fn frames(&self, from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
        let mut tape = Vec::new();
        let handshake = read(from, HANDSHAKE, &mut tape)?;
        match self.change {
            Some((change, Place::Handshake)) => return self.write_changed(change, 0, &handshake, from, to),
            _ => to.write_all(&handshake)?,
        }
        *lock(&self.tape[self.number]) = tape.clone();
        for number in 0.. {
            let frame = frame(from, &mut tape)?;
            self.answered.fetch_or(self.number == ANSWERS, Ordering::AcqRel);
            lock(&self.tape[self.number]).clone_from(&tape);
            match self.change {
                Some((change, Place::Frame(wanted))) if wanted == number => {
                    return self.write_changed(change, HEAD, &frame, from, to);
                }
                Some((change, Place::Last)) if self.is_last(from)? => {
                    return self.write_changed(change, HEAD, &frame, from, to);
                }
                _ => to.write_all(&frame)?,
            }
        }
        Ok(())
    }

    /// Whether the source has written nothing after this: it has offered the guest, and nothing more comes for a while. A busy host
    /// may make another frame the last one; it is changed then. Between the target's first answer and the offer the source waits for
    /// nothing, so a frame may wait here.
    fn is_last(&self, from: &TcpStream) -> io::Result<bool> {
        from.set_read_timeout(Some(Duration::from_millis(50)))?;
        let last = loop {
            match from.peek(&mut [0]) {
                Ok(_) => break false,
                Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if self.offered.load(Ordering::Acquire) {
                        break true;
                    }
                    if !self.answered.load(Ordering::Acquire) {
                        break false;
                    }
                }
                Err(why) => return Err(why),
            }
        };
        from.set_read_timeout(None)?;
        Ok(last)
    }

    /// Writes a frame, whose first `head` bytes are its length, in another way, and then all that comes.
    fn write_changed(
        &self,
        change: Change,
        head: usize,
        frame: &[u8],
        mut from: &TcpStream,
        mut to: &TcpStream,
    ) -> io::Result<()> {
        self.changed.store(true, Ordering::Release);
        match change {
            Change::Flipped => {
                let mut frame = frame.to_vec();
                let middle = head + (frame.len() - head) / 2;
                frame[middle] ^= 4;
                to.write_all(&frame)?;
            }
            Change::Repeated => to.write_all(&[frame, frame].concat())?,
            Change::Swapped => {
                let next = self::frame(from, &mut Vec::new())?;
                to.write_all(&[&next, frame].concat())?;
            }
            Change::LeftOut => {}
            Change::Forged => {
                let bytes = (0..frame.len() - head).map(|at| (at as u8).wrapping_mul(151));
                to.write_all(&frame[..head].iter().copied().chain(bytes).collect::<Vec<_>>())?;
            }
            Change::Halved => return to.write_all(&frame[..frame.len() / 2]),
        }
        io::copy(&mut from, &mut to).map(drop)
    }
}

/// Reads this number of bytes, and keeps them.
fn read(mut from: &TcpStream, size: usize, tape: &mut Vec<u8>) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; size];
    from.read_exact(&mut bytes)?;
    tape.extend_from_slice(&bytes);
    Ok(bytes)
}

/// Reads a frame, with its length before it.
fn frame(from: &TcpStream, tape: &mut Vec<u8>) -> io::Result<Vec<u8>> {
    let head = read(from, HEAD, tape)?;
    let size = u16::from_le_bytes([head[0], head[1]]);
    Ok([head, read(from, size.into(), tape)?].concat())
}

/// The directions' numbers.
const STREAM: usize = 0;
const ANSWERS: usize = 1;
/// Bytes of a message of the handshake, and of a frame's length (`docs/migration.md`, a sealed link).
const HANDSHAKE: usize = 48;
const HEAD: usize = 2;

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
