// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The launcher's end of a session on the control channel, as data: messages in, bytes for the hypervisor out
//! (`docs/control.md`, S1 to S8, C1 to C3). [`Session`](crate::session::Session) shares it between threads.
//!
//! Invariants:
//!
//! * What came before the welcome of this session is ignored (S3). An answer goes to the command that has its number.
//! * What comes is taken at once, by the credit that was granted for it. So the thread that reads the channel never waits for
//!   the reader of a console, and a console that nothing reads holds up its guest alone.
//! * A byte that [`Client::read`] returned is reported as taken, and no other. So a launcher that comes later gets the rest.
//! * The bytes on their way to the hypervisor are bounded: input by its credit, and a grant or a report follows a certain
//!   number of bytes that the hypervisor has sent.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};

use twofold_abi::channel::wire::{CONTENT_MAX, DELIMITER, PAYLOAD_MAX, VERSION};
use twofold_abi::channel::{
    Command, FrameWriter, GuestState, Reason, ReceiveCredit, SendCredit, ToHypervisor, ToLauncher,
};

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
    /// What has come for commands, and whether that is all.
    answers: HashMap<u32, (Answer, bool)>,
    /// Each guest's states, from the first that it had in this session.
    states: Vec<Vec<GuestState>>,
    refusals: Vec<String>,
    broken: Option<Refusal>,
}

/// The answer to a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Each figure, with the guest that it is of.
    pub figures: Vec<(Option<u16>, String, u64)>,
    /// Its content, of a command that has some.
    pub content: Vec<u8>,
    /// Why the command was refused; `None`: it is done.
    pub refusal: Option<Refusal>,
}

/// Why the hypervisor refuses.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{reason:?}: {text}")]
pub struct Refusal {
    /// For programs.
    pub reason: Reason,
    /// For people.
    pub text: String,
}

impl Answer {
    /// The figure of this name, of a guest or of the hypervisor.
    pub fn figure(&self, guest: Option<u16>, key: &str) -> Option<u64> {
        self.figures.iter().find(|(of, name, _)| *of == guest && name == key).map(|(.., value)| *value)
    }
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
        Self {
            session,
            has_begun: false,
            ends,
            unread,
            requests: 0,
            answered: 0,
            answers: HashMap::new(),
            states: Vec::new(),
            refusals: Vec::new(),
            broken: None,
        }
    }

    /// S1: what is sent first.
    pub fn hello(&self, reply: &mut Vec<u8>) {
        reply.push(DELIMITER);
        write(reply, None, &ToHypervisor::Hello { lowest: VERSION, highest: VERSION, session: self.session });
    }

    /// Takes a message, and adds what is to be sent for it.
    pub fn take(&mut self, guest: Option<u16>, message: &ToLauncher<'_>, reply: &mut Vec<u8>) {
        match *message {
            ToLauncher::Welcome { session, guests, .. } => {
                self.has_begun = session == self.session;
                self.states = vec![Vec::new(); guests.into()];
            }
            // S2: there is no session.
            ToLauncher::Refused { request: None, reason: Reason::Version, text } if !self.has_begun => {
                self.broken = Some(Refusal { reason: Reason::Version, text: text.to_owned() });
            }
            _ => {}
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
            ToLauncher::Done(request) => self.answered(request, None),
            ToLauncher::Refused { request, reason, text } => {
                let refusal = Refusal { reason, text: text.to_owned() };
                self.refusals.push(refusal.to_string());
                match request {
                    Some(request) => self.answered(request, Some(refusal)),
                    None => self.broken = Some(refusal),
                }
            }
            ToLauncher::Statistic { request, key, value } => {
                if let Some((answer, _)) = self.answers.get_mut(&request) {
                    answer.figures.push((guest, key.to_owned(), value));
                }
            }
            ToLauncher::Part { request, bytes } => {
                if let Some((answer, _)) = self.answers.get_mut(&request) {
                    answer.content.extend_from_slice(bytes);
                }
            }
            ToLauncher::State { state, text: _ } => {
                self.states.get_mut(usize::from(number)).into_iter().for_each(|states| states.push(state));
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

    /// Sends a command, and returns its number: how many were sent.
    pub fn ask(&mut self, guest: Option<u16>, command: Command, reply: &mut Vec<u8>) -> u32 {
        self.requests += 1;
        self.answers.insert(self.requests, Default::default());
        write(reply, guest, &ToHypervisor::Command { request: self.requests, command });
        self.requests
    }

    /// As [`ask`](Self::ask), of a command that takes content: [`CONTENT_MAX`] bytes at most.
    pub fn ask_with(&mut self, guest: u16, command: Command, content: &[u8], reply: &mut Vec<u8>) -> u32 {
        debug_assert!(content.len() <= CONTENT_MAX);
        for part in content.chunks(PAYLOAD_MAX) {
            write(reply, Some(guest), &ToHypervisor::Content(part));
        }
        self.ask(Some(guest), command, reply)
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

    /// Takes the whole answer to the command of this number, once.
    pub fn answer(&mut self, request: u32) -> Option<Answer> {
        self.answers.get(&request).filter(|(_, is_whole)| *is_whole)?;
        self.answers.remove(&request).map(|(answer, _)| answer)
    }

    /// The number of the session.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.session
    }

    /// How many commands were answered.
    #[must_use]
    pub fn count_answered(&self) -> u32 {
        self.answered
    }

    /// How many guests there were when the session began.
    #[must_use]
    pub fn guests(&self) -> u16 {
        self.states.len() as u16
    }

    /// The states that a guest has had in this session.
    #[must_use]
    pub fn states(&self, guest: u16) -> &[GuestState] {
        self.states.get(usize::from(guest)).map_or(&[], |states| states.as_slice())
    }

    /// Why there is no session, or a frame of ours is none to the hypervisor: the two disagree on the protocol.
    #[must_use]
    pub fn broken(&self) -> Option<&Refusal> {
        self.broken.as_ref()
    }

    fn answered(&mut self, request: u32, refusal: Option<Refusal>) {
        if let Some((answer, is_whole)) = self.answers.get_mut(&request) {
            (answer.refusal, *is_whole) = (refusal, true);
            self.answered += 1;
        }
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

    /// Another launcher begins a session, and knows what was read.
    pub(crate) fn begin_anew(&mut self, unread: Vec<u16>, reply: &mut Vec<u8>) {
        *self = Self::new(std::mem::take(&mut self.ends), unread);
        self.hello(reply);
    }

    /// The bytes for a guest that were not sent yet.
    pub(crate) fn waiting(&mut self, guest: u16) -> usize {
        self.end(guest).input.len()
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

#[cfg(test)]
mod tests {
    use super::*;
    use twofold_abi::channel::FrameReader;
    use twofold_abi::channel::wire::WINDOW_MAX;

    #[test]
    fn answers_go_to_their_commands() {
        let mut client = Client::new(HashMap::new(), Vec::new());
        // Of an older session.
        client.take(None, &ToLauncher::Done(1), &mut Vec::new());
        client.take(
            None,
            &ToLauncher::Welcome { version: VERSION, guests: 9, session: !client.session },
            &mut Vec::new(),
        );
        client.take(Some(0), &ToLauncher::State { state: GuestState::Off, text: "" }, &mut Vec::new());
        let mut client = begun(HashMap::new(), Vec::new());
        let stop = client.ask(Some(0), Command::Stop, &mut Vec::new());
        let figures = client.ask(None, Command::Statistics, &mut Vec::new());
        let figure = ToLauncher::Statistic { request: figures, key: "exits.hvc", value: 7 };
        taken(&mut client, 1, figure);
        taken(&mut client, 1, ToLauncher::State { state: GuestState::Stopped, text: "" });
        assert_eq!((client.answer(stop), client.answer(figures)), (None, None));
        client.take(None, &ToLauncher::Done(figures), &mut Vec::new());
        let refused = ToLauncher::Refused { request: Some(stop), reason: Reason::State, text: "why" };
        client.take(Some(0), &refused, &mut Vec::new());
        assert_eq!(client.answer(figures).and_then(|answer| answer.figure(Some(1), "exits.hvc")), Some(7));
        let refusal = client.answer(stop).and_then(|answer| answer.refusal);
        assert_eq!(refusal, Some(Refusal { reason: Reason::State, text: "why".to_owned() }));
        assert_eq!((client.answer(stop), client.count_answered(), client.guests()), (None, 2, 2));
        assert_eq!((client.states(0), client.states(1)), (&[][..], &[GuestState::Stopped][..]));
        assert_eq!(client.broken(), None);
        client.take(None, &ToLauncher::Refused { request: None, reason: Reason::Malformed, text: "" }, &mut Vec::new());
        assert_eq!(client.broken().map(|refusal| refusal.reason), Some(Reason::Malformed));
    }

    #[test]
    fn a_version_without_a_match_is_no_session() {
        let mut client = Client::new(HashMap::new(), Vec::new());
        client.take(None, &ToLauncher::Refused { request: None, reason: Reason::Version, text: "" }, &mut Vec::new());
        assert!(client.broken().is_some() && !client.has_begun());
    }

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
