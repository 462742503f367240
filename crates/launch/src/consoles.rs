// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The launcher's end of a session that carries the consoles of guests (`docs/control.md`, S1 to S8, C1 to C3).
//!
//! [`Client`] is a session as data: messages in, bytes for the hypervisor out. [`Consoles`] shares it between the thread that
//! reads the channel and those that read and write consoles.
//!
//! Invariants:
//!
//! * What comes is taken at once, by the credit that was granted for it. So the thread that reads the channel never waits for
//!   the reader of a console, and a console that nothing reads holds up its guest alone.
//! * A byte that [`Client::read`] returned is reported as taken, and no other. So a launcher that comes later gets the rest.
//! * The bytes on their way to the hypervisor are bounded: input by its credit, and a grant or a report follows a certain
//!   number of bytes that the hypervisor has sent.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use twofold_abi::channel::wire::{DELIMITER, PAYLOAD_MAX, VERSION};
use twofold_abi::channel::{Command, FrameWriter, ReceiveCredit, SendCredit, ToHypervisor, ToLauncher};

use crate::channel::{Next, Peer};

/// The most bytes of one guest's output that wait for their reader.
pub const WINDOW: usize = 8 << 10;

/// A session.
#[derive(Debug)]
pub struct Client {
    session: u64,
    has_begun: bool,
    ends: HashMap<u16, End>,
    /// Guests whose output nothing is granted for.
    unread: Vec<u16>,
    requests: u32,
    answered: u32,
    refusals: Vec<String>,
}

/// Our end of a guest's console.
#[derive(Clone, Debug, Default)]
pub struct End {
    /// The number of the next byte of output that is read.
    pub taken: u64,
    /// The number of the next byte of input that is sent.
    pub given: u64,
    /// The hypervisor has given its numbers in this session.
    is_open: bool,
    output: VecDeque<u8>,
    input: VecDeque<u8>,
    reported: u64,
    grants: ReceiveCredit,
    credit: SendCredit,
}

impl Client {
    /// A session that begins when [`hello`](Self::hello) is sent. It goes on where `before` stopped: nothing, or the ends of
    /// a session before. `unread` are guests whose output is not wanted yet.
    #[must_use]
    pub fn new(before: HashMap<u16, End>, unread: Vec<u16>) -> Self {
        let session = RandomState::new().build_hasher().finish();
        // Output that was not read comes again.
        let forget = |(guest, end): (u16, End)| (guest, End { taken: end.taken, ..End::default() });
        let ends = before.into_iter().map(forget).collect();
        Self { session, has_begun: false, ends, unread, requests: 0, answered: 0, refusals: Vec::new() }
    }

    /// S1: what is sent first.
    pub fn hello(&self, reply: &mut Vec<u8>) {
        reply.push(DELIMITER);
        write(reply, None, &ToHypervisor::Hello { lowest: VERSION, highest: VERSION, session: self.session });
    }

    /// Takes a message, and adds what is to be sent for it.
    pub fn take(&mut self, guest: Option<u16>, message: &ToLauncher<'_>, reply: &mut Vec<u8>) {
        if let ToLauncher::Welcome { session, .. } = *message {
            self.has_begun = session == self.session;
        }
        if !self.has_begun {
            return;
        }
        let number = guest.unwrap_or_default();
        match *message {
            ToLauncher::Position { output, input } => {
                let end = self.ends.entry(number).or_default();
                // What is before that another launcher has taken.
                end.taken = end.taken.max(output);
                (end.reported, end.given, end.is_open) = (end.taken, input, true);
                write(reply, guest, &ToHypervisor::Taken(end.taken));
                self.grant(number, reply);
            }
            ToLauncher::Output(bytes) => match self.end(number).grants.received(bytes.len()) {
                Ok(()) => self.end(number).output.extend(bytes),
                Err(error) => self.refusals.push(format!("guest {number}: {error}")),
            },
            ToLauncher::InputCredit(bytes) => {
                if let Err(error) = self.end(number).credit.granted(bytes) {
                    self.refusals.push(format!("guest {number}: {error}"));
                }
                self.send(number, reply);
            }
            ToLauncher::Done(_) => self.answered += 1,
            ToLauncher::Refused { request, reason, text } => {
                self.answered += u32::from(request.is_some());
                self.refusals.push(format!("{reason:?}: {text}"));
            }
            _ => {}
        }
    }

    /// Takes at most this many bytes of a guest's output.
    pub fn read(&mut self, guest: u16, most: usize, reply: &mut Vec<u8>) -> Vec<u8> {
        let end = self.end(guest);
        let count = most.min(end.output.len());
        let bytes = end.output.drain(..count).collect();
        end.taken += count as u64;
        self.report(guest, reply);
        self.grant(guest, reply);
        bytes
    }

    /// Gives bytes to a guest. They are sent as it takes them.
    pub fn write(&mut self, guest: u16, bytes: &[u8], reply: &mut Vec<u8>) {
        self.end(guest).input.extend(bytes);
        self.send(guest, reply);
    }

    /// Sends a command, and returns how many were sent.
    pub fn ask(&mut self, guest: Option<u16>, command: Command, reply: &mut Vec<u8>) -> u32 {
        self.requests += 1;
        write(reply, guest, &ToHypervisor::Command { request: self.requests, command });
        self.requests
    }

    /// From now on a guest's output is wanted.
    pub fn want(&mut self, guest: u16, reply: &mut Vec<u8>) {
        self.unread.retain(|&unread| unread != guest);
        self.grant(guest, reply);
    }

    /// Our end of a guest's console.
    pub fn end(&mut self, guest: u16) -> &mut End {
        self.ends.entry(guest).or_default()
    }

    /// The number of the byte that the next [`write`](Self::write) gives to a guest; `None` until the session has begun.
    pub fn next_input(&mut self, guest: u16) -> Option<u64> {
        let end = self.end(guest);
        end.is_open.then_some(end.given + end.input.len() as u64)
    }

    /// How many commands were answered.
    #[must_use]
    pub fn answered(&self) -> u32 {
        self.answered
    }

    /// Whether the hypervisor has begun the session.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// What either side has found wrong with the other.
    #[must_use]
    pub fn refusals(&self) -> &[String] {
        &self.refusals
    }

    /// Sends input, as far as there is credit.
    fn send(&mut self, guest: u16, reply: &mut Vec<u8>) {
        let end = self.end(guest);
        loop {
            let count = end.credit.take(end.input.len().min(PAYLOAD_MAX));
            if count == 0 {
                return;
            }
            let bytes: Vec<_> = end.input.drain(..count).collect();
            end.given += count as u64;
            write(reply, Some(guest), &ToHypervisor::Input(&bytes));
        }
    }

    /// Reports what was taken: now and then, and when nothing is left to be taken, because the hypervisor keeps it until
    /// then.
    fn report(&mut self, guest: u16, reply: &mut Vec<u8>) {
        let end = self.end(guest);
        if !end.is_open {
            return;
        }
        if end.taken - end.reported.min(end.taken) >= WINDOW as u64 / 4
            || (end.output.is_empty() && end.taken > end.reported)
        {
            end.reported = end.taken;
            write(reply, Some(guest), &ToHypervisor::Taken(end.taken));
        }
    }

    /// C1. Not before the position was answered (S8): what this launcher has would come again.
    fn grant(&mut self, guest: u16, reply: &mut Vec<u8>) {
        if self.unread.contains(&guest) {
            return;
        }
        let end = self.end(guest);
        if !end.is_open {
            return;
        }
        if let Some(bytes) = end.grants.grant(WINDOW.saturating_sub(end.output.len())) {
            write(reply, Some(guest), &ToHypervisor::OutputCredit(bytes));
        }
    }
}

fn write(reply: &mut Vec<u8>, guest: Option<u16>, message: &ToHypervisor<'_>) {
    // Too long is only input of more than a payload, and that is cut before.
    if let Ok(bytes) = message.write(guest, &mut FrameWriter::new()) {
        reply.extend(bytes);
    }
}

/// A session that several threads use.
#[derive(Debug)]
pub struct Consoles {
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

impl Default for Consoles {
    /// A first session, whose consoles are all read.
    fn default() -> Self {
        Self::new(Client::new(HashMap::new(), Vec::new()))
    }
}

impl Consoles {
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
        while shared.client.end(guest).input.len() > WINDOW && !shared.has_ended {
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

    /// This launcher goes in the middle of whatever it reads and of `written`, and another one comes on the same stream.
    /// For tests of a launcher that comes back.
    pub fn come_back(&self, unread: Vec<u16>, written: &[u8]) {
        let mut shared = self.lock();
        shared.act(|_, reply| reply.extend(written));
        shared.begin_anew(unread.clone());
        shared.cut = Some(unread);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Another process begins a session.
    fn begin_anew(&mut self, unread: Vec<u16>) {
        self.act(|client, reply| {
            let ends = std::mem::take(&mut client.ends);
            *client = Client::new(ends, unread);
            client.hello(reply);
        });
    }

    fn act<T>(&mut self, act: impl FnOnce(&mut Client, &mut Vec<u8>) -> T) -> T {
        let mut reply = Vec::new();
        let done = act(&mut self.client, &mut reply);
        // A machine that has ended takes nothing.
        let _ = self.stream.as_mut().map_or(Ok(()), |stream| stream.write_all(&reply));
        done
    }
}

impl Peer for Arc<Consoles> {
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
            shared.begin_anew(unread);
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
    use twofold_abi::channel::FrameReader;
    use twofold_abi::channel::wire::WINDOW_MAX;

    /// What is sent, without the hello.
    fn sent(reply: &[u8]) -> Vec<(u16, String)> {
        let (mut reader, mut left, mut all) = (FrameReader::new(), reply, Vec::new());
        assert!(reader.read(&mut &[DELIMITER][..]).is_none());
        while let Some(frame) = reader.read(&mut left) {
            let frame = frame.unwrap();
            match ToHypervisor::read(&frame).unwrap() {
                ToHypervisor::Hello { .. } => {}
                message => all.push((frame.guest.unwrap(), format!("{message:?}"))),
            }
        }
        all
    }

    fn taken(client: &mut Client, guest: u16, message: ToLauncher<'_>) -> Vec<(u16, String)> {
        let mut reply = Vec::new();
        client.take(Some(guest), &message, &mut reply);
        sent(&reply)
    }

    fn begun(before: HashMap<u16, End>, unread: Vec<u16>) -> Client {
        let mut client = Client::new(before, unread);
        // Of an older session.
        assert_eq!(taken(&mut client, 0, ToLauncher::InputCredit(5)), []);
        let welcome = ToLauncher::Welcome { version: VERSION, guests: 2, session: client.session };
        client.take(None, &welcome, &mut Vec::new());
        client
    }

    fn message(guest: u16, message: ToHypervisor<'_>) -> (u16, String) {
        (guest, format!("{message:?}"))
    }

    #[test]
    fn output_is_granted_reported_and_never_beyond_the_window() {
        let mut client = begun(HashMap::new(), vec![1]);
        let position = ToLauncher::Position { output: 0, input: 0 };
        let grant = message(0, ToHypervisor::OutputCredit(WINDOW as u32));
        assert_eq!(taken(&mut client, 0, position), [message(0, ToHypervisor::Taken(0)), grant]);
        // Nothing is granted for a console that is not wanted yet.
        assert_eq!(taken(&mut client, 1, position), [message(1, ToHypervisor::Taken(0))]);
        let mut reply = Vec::new();
        client.want(1, &mut reply);
        assert_eq!(sent(&reply), [message(1, ToHypervisor::OutputCredit(WINDOW as u32))]);
        (0..WINDOW / 1024).for_each(|_| assert_eq!(taken(&mut client, 0, ToLauncher::Output(&[7; 1024])), []));
        assert_eq!(client.refusals(), [""; 0]);
        assert_eq!(taken(&mut client, 0, ToLauncher::Output(b"x")), []);
        assert_eq!(client.refusals().len(), 1);
        let mut reply = Vec::new();
        assert_eq!(client.read(0, 5000, &mut reply).len(), 5000);
        assert_eq!(sent(&reply), [message(0, ToHypervisor::Taken(5000)), message(0, ToHypervisor::OutputCredit(5000))]);
        let mut reply = Vec::new();
        assert_eq!(client.read(0, WINDOW, &mut reply).len(), WINDOW - 5000);
        assert_eq!(sent(&reply)[0], message(0, ToHypervisor::Taken(WINDOW as u64)));
    }

    #[test]
    fn input_goes_as_it_is_granted() {
        let mut client = begun(HashMap::new(), Vec::new());
        let mut reply = Vec::new();
        client.want(0, &mut reply);
        assert!(reply.is_empty(), "a grant before the position");
        client.write(0, b"hello", &mut reply);
        assert!(reply.is_empty() && client.next_input(0).is_none());
        taken(&mut client, 0, ToLauncher::Position { output: 0, input: 3 });
        assert_eq!(taken(&mut client, 0, ToLauncher::InputCredit(2)), [message(0, ToHypervisor::Input(b"he"))]);
        assert_eq!((client.end(0).given, client.next_input(0)), (5, Some(8)));
        assert_eq!(
            taken(&mut client, 0, ToLauncher::InputCredit(WINDOW_MAX - 100)),
            [message(0, ToHypervisor::Input(b"llo"))]
        );
        let mut reply = Vec::new();
        client.write(0, &[1; 1500], &mut reply);
        assert_eq!(
            sent(&reply),
            [message(0, ToHypervisor::Input(&[1; 1024])), message(0, ToHypervisor::Input(&[1; 476]))]
        );
    }

    #[test]
    fn a_session_goes_on_where_the_one_before_stopped() {
        let mut client = begun(HashMap::new(), Vec::new());
        taken(&mut client, 0, ToLauncher::Position { output: 0, input: 0 });
        taken(&mut client, 0, ToLauncher::Output(b"read and not read"));
        assert_eq!(client.read(0, 4, &mut Vec::new()), b"read");
        let ends = std::mem::take(&mut client.ends);
        let mut client = begun(ends, Vec::new());
        // The hypervisor has heard of nothing, and sends again what was not read.
        let sent = taken(&mut client, 0, ToLauncher::Position { output: 0, input: 9 });
        assert_eq!(sent[0], message(0, ToHypervisor::Taken(4)));
        assert_eq!(client.next_input(0), Some(9));
        taken(&mut client, 0, ToLauncher::Output(b" and not read, and more"));
        assert_eq!(client.read(0, 100, &mut Vec::new()), b" and not read, and more");
        // Another launcher was there meanwhile.
        let mut client = begun(std::mem::take(&mut client.ends), Vec::new());
        taken(&mut client, 0, ToLauncher::Position { output: 100, input: 9 });
        assert_eq!(client.end(0).taken, 100);
    }
}
