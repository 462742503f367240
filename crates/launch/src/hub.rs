// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guests' consoles for several readers each: the terminal of the run, and those that attach to it.
//!
//! A reader gets what the guest wrote lately, and then each byte once. Input of all readers goes to the guest as it comes.
//!
//! Invariant: a reader that takes nothing holds up its guest's console alone, as `docs/control.md` says of a console that
//! nothing reads. A reader that is gone holds up nothing. A console without a reader is read, and its end is kept.

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, Read, Write};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use crate::bundle::Bundle;
use crate::session::Session;

/// Bytes of a console that a new reader gets first.
pub const RECENT: usize = 16 << 10;

/// The consoles of all guests.
#[derive(Debug)]
pub struct Hub {
    session: Arc<Session>,
    guests: Vec<(String, Mutex<Readers>)>,
    /// The bundle that started the guests.
    bundle: OnceLock<Bundle>,
    /// Guests that move, or are being saved.
    claimed: Mutex<BTreeSet<u16>>,
}

/// A guest that moves, or is being saved: no command but this one's may stop it or let it go on. It ends with this value.
#[derive(Debug)]
pub struct Claim {
    hub: Arc<Hub>,
    guest: u16,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.hub.claimed().remove(&self.guest);
    }
}

#[derive(Debug, Default)]
struct Readers {
    recent: VecDeque<u8>,
    readers: Vec<SyncSender<Vec<u8>>>,
    has_ended: bool,
}

/// A guest's console.
pub struct Console {
    /// What the guest writes. It ends when the machine does.
    pub output: Box<dyn Read + Send>,
    /// What the guest reads.
    pub input: Box<dyn Write + Send>,
}

struct Output {
    pieces: Receiver<Vec<u8>>,
    left: VecDeque<u8>,
}

struct Input {
    session: Arc<Session>,
    guest: u16,
}

impl Hub {
    /// The consoles of the guests of these names. Call [`spawn`](Self::spawn) next.
    #[must_use]
    pub fn new(session: Arc<Session>, names: &[String]) -> Arc<Self> {
        let guests = names.iter().map(|name| (name.clone(), Mutex::default())).collect();
        Arc::new(Self { session, guests, bundle: OnceLock::new(), claimed: Mutex::default() })
    }

    /// Names the bundle that started the guests, once.
    pub fn started_with(&self, bundle: &Bundle) {
        let _ = self.bundle.set(bundle.clone());
    }

    /// The bundle that started the guests, if it is known.
    #[must_use]
    pub fn bundle(&self) -> Option<&Bundle> {
        self.bundle.get()
    }

    /// Claims a guest for one that moves or saves it; `None`: it is claimed already.
    #[must_use]
    pub fn claim(self: &Arc<Self>, guest: u16) -> Option<Claim> {
        let is_first = self.claimed().insert(guest);
        is_first.then(|| Claim { hub: Arc::clone(self), guest })
    }

    /// Whether a guest moves, or is being saved; `None`: any.
    #[must_use]
    pub fn is_claimed(&self, guest: Option<u16>) -> bool {
        let claimed = self.claimed();
        guest.map_or(!claimed.is_empty(), |guest| claimed.contains(&guest))
    }

    fn claimed(&self) -> MutexGuard<'_, BTreeSet<u16>> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the threads that read the consoles. They end with the machine.
    pub fn spawn(self: &Arc<Self>) -> Vec<JoinHandle<()>> {
        let each = |guest| {
            let hub = Arc::clone(self);
            thread::spawn(move || hub.pump(guest))
        };
        (0..self.guests.len() as u16).map(each).collect()
    }

    /// The session.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The guests' names, in the order of their numbers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.guests.iter().map(|(name, _)| name.as_str())
    }

    /// The number of the guest of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<u16> {
        self.names().position(|other| other == name).map(|guest| guest as u16)
    }

    /// Opens a guest's console; `None`: there is no such guest.
    #[must_use]
    pub fn open(&self, guest: u16) -> Option<Console> {
        let (sender, pieces) = mpsc::sync_channel(PIECES);
        let mut readers = self.readers(guest)?;
        let left = readers.recent.clone();
        if !readers.has_ended {
            readers.readers.push(sender);
        }
        let input = Input { session: Arc::clone(&self.session), guest };
        Some(Console { output: Box::new(Output { pieces, left }), input: Box::new(input) })
    }

    /// Reads a console until the machine ends.
    fn pump(&self, guest: u16) {
        loop {
            let bytes = self.session.read(guest, 4096);
            let Some(mut readers) = self.readers(guest) else { return };
            if bytes.is_empty() {
                (readers.has_ended, readers.readers) = (true, Vec::new());
                return;
            }
            readers.recent.extend(&bytes);
            let over = readers.recent.len().saturating_sub(RECENT);
            readers.recent.drain(..over);
            let current = readers.readers.clone();
            drop(readers);
            // Without the lock: a reader may take its time, and another one may come meanwhile.
            let mut has_gone = false;
            for reader in &current {
                has_gone |= reader.send(bytes.clone()).is_err();
            }
            drop(current);
            if has_gone && let Some(mut readers) = self.readers(guest) {
                readers
                    .readers
                    .retain(|reader| !matches!(reader.try_send(Vec::new()), Err(mpsc::TrySendError::Disconnected(_))));
            }
        }
    }

    fn readers(&self, guest: u16) -> Option<MutexGuard<'_, Readers>> {
        let (_, readers) = self.guests.get(usize::from(guest))?;
        Some(readers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Pieces that wait for a reader.
const PIECES: usize = 64;

impl Read for Output {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.left.is_empty() {
            match self.pieces.recv() {
                Ok(piece) => self.left.extend(piece),
                Err(_) => return Ok(0),
            }
        }
        self.left.read(buffer)
    }
}

impl Write for Input {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.session.write(self.guest, bytes) { Ok(bytes.len()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::channel::Peer;
    use twofold_abi::channel::ToLauncher;
    use twofold_abi::channel::wire::VERSION;

    /// A session of one guest that has written these bytes.
    pub fn session(written: &[u8]) -> Arc<Session> {
        let mut session = Arc::<Session>::default();
        let number = session.act(|client, _| client.number());
        session.take(None, &ToLauncher::Welcome { version: VERSION, guests: 1, session: number });
        session.take(Some(0), &ToLauncher::Position { output: 0, input: 0 });
        session.take(Some(0), &ToLauncher::Output(written));
        session
    }

    #[test]
    fn each_reader_gets_all_that_comes_and_what_came_lately() {
        let mut session = session(b"first ");
        let hub = Hub::new(Arc::clone(&session), &["web".to_owned()]);
        let mut early = hub.open(0).unwrap();
        // One that is gone holds up nothing.
        drop(hub.open(0).unwrap());
        let threads = hub.spawn();
        let mut bytes = [0; 6];
        early.output.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"first ");
        let late = hub.open(0).unwrap();
        session.take(Some(0), &ToLauncher::Output(b"second"));
        session.end();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        for (mut console, expected) in
            [(early, "second"), (late, "first second"), (hub.open(0).unwrap(), "first second")]
        {
            let mut all = String::new();
            console.output.read_to_string(&mut all).unwrap();
            assert_eq!(all, expected);
            assert!(console.input.write(b"x").is_err());
        }
        assert_eq!((hub.find("web"), hub.find("db"), hub.open(1).is_none()), (Some(0), None, true));
    }
}
