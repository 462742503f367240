// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A session on the control channel that several threads use: consoles, commands, and what guests do.
//!
//! [`Client`] is the session. The thread that reads the channel gives it what comes; the others read and write consoles, and
//! give commands.
//!
//! Invariants: the thread that reads the channel waits for no other. A hypervisor that ends ends each wait.

use std::collections::HashMap;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use twofold_abi::channel::{Command, GuestState, ToLauncher};

use crate::channel::{Next, Peer};
pub use crate::client::{Answer, Client, Refusal, WINDOW};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The hypervisor has ended.
    #[error("the hypervisor has ended, or closed its control channel")]
    Ended,
    /// The hypervisor refuses the session, or a frame that was no command. The launcher and the hypervisor disagree on the
    /// protocol.
    #[error("the hypervisor refuses a frame: {0}")]
    Protocol(Refusal),
}

/// A session.
#[derive(Debug)]
pub struct Session {
    shared: Mutex<Shared>,
    changed: Condvar,
}

#[derive(Debug)]
struct Shared {
    client: Client,
    /// To the hypervisor, while there is a machine.
    stream: Option<UnixStream>,
    has_ended: bool,
    /// The channel's reader has to forget where it is ([`Next::Cut`]). Nothing is granted for these guests then.
    cut: Option<Vec<u16>>,
}

impl Default for Session {
    /// A first session, whose consoles are all read.
    fn default() -> Self {
        Self::new(Client::new(HashMap::new(), Vec::new()))
    }
}

impl Session {
    /// A session that begins when QEMU starts.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self {
            shared: Mutex::new(Shared { client, stream: None, has_ended: false, cut: None }),
            changed: Condvar::new(),
        }
    }

    /// Waits for output of a guest, and takes at most this many bytes. Empty: the machine has ended, and nothing is left.
    pub fn read(&self, guest: u16, most: usize) -> Vec<u8> {
        let mut shared = self.lock();
        loop {
            let bytes = shared.act(|client, reply| client.read(guest, most, reply));
            if !bytes.is_empty() || shared.has_ended {
                return bytes;
            }
            shared = self.changed.wait(shared).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives bytes to a guest, and waits until it may have them but for a window. False: the machine has ended.
    pub fn write(&self, guest: u16, bytes: &[u8]) -> bool {
        let mut shared = self.lock();
        shared.act(|client, reply| client.write(guest, bytes, reply));
        while shared.client.waiting(guest) > WINDOW && !shared.has_ended {
            shared = self.changed.wait(shared).unwrap_or_else(PoisonError::into_inner);
        }
        !shared.has_ended
    }

    /// Waits until `holds`. False: the machine has ended before.
    pub fn wait(&self, holds: impl Fn(&mut Client) -> bool) -> bool {
        let mut shared = self.lock();
        while !holds(&mut shared.client) {
            if shared.has_ended {
                return false;
            }
            shared = self.changed.wait(shared).unwrap_or_else(PoisonError::into_inner);
        }
        true
    }

    /// Changes the client, and sends what that asks for.
    pub fn act<T>(&self, act: impl FnOnce(&mut Client, &mut Vec<u8>) -> T) -> T {
        let done = self.lock().act(act);
        self.changed.notify_all();
        done
    }

    /// Sends a command, and waits for its answer. Before the session has begun, it waits for that first.
    ///
    /// # Errors
    ///
    /// There is no answer. A refusal is one.
    pub fn ask(&self, guest: Option<u16>, command: Command) -> Result<Answer, SessionError> {
        let request = self.send(guest, command)?;
        self.answer(request)
    }

    /// Sends a command, and returns its number. Before the session has begun, it waits for that first.
    ///
    /// # Errors
    ///
    /// There is no session.
    pub fn send(&self, guest: Option<u16>, command: Command) -> Result<u32, SessionError> {
        self.until(|client| client.has_begun().then_some(()))?;
        Ok(self.act(|client, reply| client.ask(guest, command, reply)))
    }

    /// As [`send`](Self::send), of a command that takes content: 65536 bytes at most.
    ///
    /// # Errors
    ///
    /// There is no session.
    pub fn send_with(&self, guest: u16, command: Command, content: &[u8]) -> Result<u32, SessionError> {
        self.until(|client| client.has_begun().then_some(()))?;
        Ok(self.act(|client, reply| client.ask_with(guest, command, content, reply)))
    }

    /// Waits for the answer to the command of this number, which was not waited for yet.
    ///
    /// # Errors
    ///
    /// There is no answer.
    pub fn answer(&self, request: u32) -> Result<Answer, SessionError> {
        self.until(|client| client.answer(request))
    }

    /// Waits until a guest has been in this state, in this session and after `seen` others. Returns how many states it has
    /// had up to this one.
    ///
    /// # Errors
    ///
    /// The hypervisor has ended before.
    pub fn wait_for(&self, guest: u16, seen: usize, state: GuestState) -> Result<usize, SessionError> {
        self.until(|client| {
            let place = client.states(guest).iter().skip(seen).position(|other| *other == state)?;
            Some(seen + place + 1)
        })
    }

    /// Whether the machine has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.lock().has_ended
    }

    /// The last state of a guest; `None` before its first one has come.
    pub fn state(&self, guest: u16) -> Option<GuestState> {
        self.lock().client.states(guest).last().copied()
    }

    /// How many guests there are. Before the session has begun, it waits for that.
    ///
    /// # Errors
    ///
    /// There is no session.
    pub fn guests(&self) -> Result<u16, SessionError> {
        self.until(|client| client.has_begun().then(|| client.guests()))
    }

    /// Waits until `found` finds something, or nothing more comes.
    fn until<T>(&self, found: impl Fn(&mut Client) -> Option<T>) -> Result<T, SessionError> {
        let mut shared = self.lock();
        loop {
            if let Some(found) = found(&mut shared.client) {
                return Ok(found);
            }
            if let Some(refusal) = shared.client.broken() {
                return Err(SessionError::Protocol(refusal.clone()));
            }
            if shared.has_ended {
                return Err(SessionError::Ended);
            }
            shared = self.changed.wait(shared).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// This launcher goes in the middle of whatever it reads and of `written`, and another one comes on the same stream.
    /// For tests of a launcher that comes back.
    pub fn come_back(&self, unread: Vec<u16>, written: &[u8]) {
        let mut shared = self.lock();
        shared.act(|_, reply| reply.extend(written));
        shared.act(|client, reply| client.begin_anew(unread.clone(), reply));
        shared.cut = Some(unread);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn act<T>(&mut self, act: impl FnOnce(&mut Client, &mut Vec<u8>) -> T) -> T {
        let mut reply = Vec::new();
        let done = act(&mut self.client, &mut reply);
        // A machine that has ended takes nothing.
        let _ = self.stream.as_mut().map_or(Ok(()), |stream| stream.write_all(&reply));
        done
    }
}

impl Peer for Arc<Session> {
    fn begin(&mut self, stream: UnixStream) -> io::Result<()> {
        let mut shared = self.lock();
        shared.stream = Some(stream);
        shared.act(|client, reply| client.hello(reply));
        self.changed.notify_all();
        Ok(())
    }

    fn take(&mut self, guest: Option<u16>, message: &ToLauncher<'_>) -> Next {
        let mut shared = self.lock();
        if let Some(unread) = shared.cut.take() {
            // The welcome may be in what is skipped now.
            shared.act(|client, reply| client.begin_anew(unread, reply));
            return Next::Cut;
        }
        shared.act(|client, reply| client.take(guest, message, reply));
        drop(shared);
        self.changed.notify_all();
        Next::GoOn
    }

    fn end(&mut self) {
        let mut shared = self.lock();
        (shared.stream, shared.has_ended) = (None, true);
        drop(shared);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_ends_each_wait() {
        let mut session = Arc::<Session>::default();
        session.end();
        assert!(matches!(session.ask(None, Command::Quit), Err(SessionError::Ended)));
        assert!(matches!(session.wait_for(0, 0, GuestState::Off), Err(SessionError::Ended)));
        assert!(session.read(0, 10).is_empty() && !session.write(0, b"x"));
    }

    #[test]
    fn a_session_that_is_refused_is_an_error() {
        let mut session = Arc::<Session>::default();
        let reason = twofold_abi::channel::Reason::Version;
        session.take(None, &ToLauncher::Refused { request: None, reason, text: "why" });
        let error = session.ask(None, Command::Stop).unwrap_err();
        assert_eq!(error.to_string(), "the hypervisor refuses a frame: Version: why");
    }
}
