// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The launcher's end of a session on the control channel (`docs/control.md`, S1 to S6): commands out, answers in.
//!
//! It takes no console's output: it grants no credit.
//!
//! Invariants: what came before the welcome of this session is ignored (S3). An answer goes to the command that has its
//! number, whatever comes between. A hypervisor that ends ends each wait.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Receiver;

use twofold_abi::channel::wire::{DELIMITER, VERSION};
use twofold_abi::channel::{Command, FrameWriter, GuestState, Reason, ToHypervisor, ToLauncher};

/// A message of the hypervisor, and the guest that it concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The guest's number; `None`: none, or all.
    pub guest: Option<u16>,
    /// What it says.
    pub content: Content,
}

/// What a session's message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A session has begun.
    Welcome {
        /// How many guests there are.
        guests: u16,
        /// The number of the session.
        session: u64,
    },
    /// A command is done.
    Done(u32),
    /// A frame is refused.
    Refused {
        /// The command's number; `None`: it was no command.
        request: Option<u32>,
        /// Why.
        refusal: Refusal,
    },
    /// A figure of statistics.
    Figure {
        /// The command's number.
        request: u32,
        /// The figure's name.
        key: String,
        /// The figure.
        value: u64,
    },
    /// What a guest does now.
    State(GuestState),
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

/// The answer to a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Each figure, with the guest that it is of.
    pub figures: Vec<(Option<u16>, String, u64)>,
    /// Why the command was refused; `None`: it is done.
    pub refusal: Option<Refusal>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The hypervisor has ended.
    #[error("the hypervisor has ended, or closed its control channel")]
    Ended,
    /// The commands cannot be sent.
    #[error("cannot write to the control channel: {0}")]
    Write(#[from] io::Error),
    /// There is no session.
    #[error("the hypervisor refuses a session: {0}")]
    NoSession(Refusal),
    /// The hypervisor refused a frame that was no command. The launcher and the hypervisor disagree on the protocol.
    #[error("the hypervisor refuses a frame: {0}")]
    Protocol(Refusal),
}

/// A session.
#[derive(Debug)]
pub struct Session {
    stream: UnixStream,
    messages: Receiver<Message>,
    /// The number of the last command.
    last: u32,
    /// Each guest's states, from the first that it had in this session.
    states: Vec<Vec<GuestState>>,
    /// What has come for commands that were not waited for.
    answers: HashMap<u32, (Answer, bool)>,
}

impl Message {
    /// The message for a session; `None`: it is not a session's.
    pub(crate) fn of(guest: Option<u16>, message: &ToLauncher<'_>) -> Option<Self> {
        let content = match *message {
            ToLauncher::Welcome { version: _, guests, session } => Content::Welcome { guests, session },
            ToLauncher::Done(request) => Content::Done(request),
            ToLauncher::Refused { request, reason, text } => {
                Content::Refused { request, refusal: Refusal { reason, text: text.to_owned() } }
            }
            ToLauncher::Statistic { request, key, value } => Content::Figure { request, key: key.to_owned(), value },
            ToLauncher::State { state, text: _ } => Content::State(state),
            _ => return None,
        };
        Some(Self { guest, content })
    }
}

impl Session {
    /// Begins a session with the hypervisor at the other end of `stream`, whose messages come from `messages`. Waits for
    /// its welcome.
    ///
    /// # Errors
    ///
    /// [`SessionError`].
    pub fn begin(mut stream: UnixStream, messages: Receiver<Message>) -> Result<Self, SessionError> {
        let number = RandomState::new().hash_one("session");
        let mut writer = FrameWriter::new();
        let hello = ToHypervisor::Hello { lowest: VERSION, highest: VERSION, session: number };
        let hello = hello.write(None, &mut writer).expect("a hello fits into a frame");
        stream.write_all(&[&[DELIMITER], hello].concat())?;
        let guests = loop {
            match messages.recv().map_err(|_| SessionError::Ended)?.content {
                Content::Welcome { guests, session } if session == number => break guests,
                Content::Refused { request: None, refusal } if refusal.reason == Reason::Version => {
                    return Err(SessionError::NoSession(refusal));
                }
                _ => {}
            }
        };
        let states = vec![Vec::new(); guests.into()];
        Ok(Self { stream, messages, last: 0, states, answers: HashMap::new() })
    }

    /// How many guests there were when the session began.
    pub fn guests(&self) -> u16 {
        self.states.len() as u16
    }

    /// Sends a command, and waits for its answer.
    ///
    /// # Errors
    ///
    /// There is no answer. A refusal is one.
    pub fn ask(&mut self, guest: Option<u16>, command: Command) -> Result<Answer, SessionError> {
        let request = self.send(guest, command)?;
        self.answer(request)
    }

    /// Sends a command, and returns its number.
    ///
    /// # Errors
    ///
    /// It cannot be sent.
    pub fn send(&mut self, guest: Option<u16>, command: Command) -> Result<u32, SessionError> {
        self.last = self.last.checked_add(1).unwrap_or(1);
        let mut writer = FrameWriter::new();
        let command = ToHypervisor::Command { request: self.last, command };
        self.stream.write_all(command.write(guest, &mut writer).expect("a command fits into a frame"))?;
        Ok(self.last)
    }

    /// Waits for the answer to the command of this number, which was not waited for yet.
    ///
    /// # Errors
    ///
    /// There is no answer.
    pub fn answer(&mut self, request: u32) -> Result<Answer, SessionError> {
        loop {
            if self.answers.get(&request).is_some_and(|(_, is_whole)| *is_whole)
                && let Some((answer, _)) = self.answers.remove(&request)
            {
                return Ok(answer);
            }
            self.take()?;
        }
    }

    /// Waits until a guest has been in this state, in this session and after `seen` others. Returns how many states it has
    /// had up to this one.
    ///
    /// # Errors
    ///
    /// The hypervisor has ended before.
    pub fn wait_for(&mut self, guest: u16, seen: usize, state: GuestState) -> Result<usize, SessionError> {
        loop {
            let states = self.states.get(usize::from(guest)).map_or(&[][..], |states| states.as_slice());
            if let Some(place) = states.iter().skip(seen).position(|other| *other == state) {
                return Ok(seen + place + 1);
            }
            self.take()?;
        }
    }

    /// The states that a guest has had, as far as they were read.
    pub fn states(&self, guest: u16) -> &[GuestState] {
        self.states.get(usize::from(guest)).map_or(&[], |states| states.as_slice())
    }

    /// Takes one message.
    fn take(&mut self) -> Result<(), SessionError> {
        let Message { guest, content } = self.messages.recv().map_err(|_| SessionError::Ended)?;
        match content {
            Content::Done(request) => self.answers.entry(request).or_default().1 = true,
            Content::Refused { request: Some(request), refusal } => {
                let (answer, is_whole) = self.answers.entry(request).or_default();
                (answer.refusal, *is_whole) = (Some(refusal), true);
            }
            Content::Refused { request: None, refusal } => return Err(SessionError::Protocol(refusal)),
            Content::Figure { request, key, value } => {
                self.answers.entry(request).or_default().0.figures.push((guest, key, value));
            }
            Content::State(state) => {
                if let Some(states) = guest.and_then(|guest| self.states.get_mut(usize::from(guest))) {
                    states.push(state);
                }
            }
            // Of a session that this launcher began before.
            Content::Welcome { .. } => {}
        }
        Ok(())
    }
}

impl Answer {
    /// The figure of this name, of a guest or of the hypervisor.
    pub fn figure(&self, guest: Option<u16>, key: &str) -> Option<u64> {
        self.figures.iter().find(|(of, name, _)| *of == guest && name == key).map(|(.., value)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::sync::mpsc::{self, Sender};
    use std::thread;
    use twofold_abi::channel::FrameReader;

    /// What the other end does with a message, and the number of the session.
    type Act = fn(&ToHypervisor<'_>, &Sender<Message>);

    fn say(to: &Sender<Message>, guest: Option<u16>, content: Content) {
        to.send(Message { guest, content }).unwrap();
    }

    fn refusal(reason: Reason) -> Refusal {
        Refusal { reason, text: "why".to_owned() }
    }

    /// A session with a hypervisor that has two guests, and does this with each message after the hello.
    fn session(act: Act) -> Result<Session, SessionError> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (sender, messages) = mpsc::channel();
        thread::spawn(move || {
            let (mut reader, mut buffer) = (FrameReader::new(), [0; 256]);
            // Of an older session.
            say(&sender, None, Content::Done(1));
            say(&sender, None, Content::Welcome { guests: 9, session: 0 });
            say(&sender, Some(0), Content::State(GuestState::Off));
            while let Ok(count @ 1..) = theirs.read(&mut buffer) {
                let mut bytes = &buffer[..count];
                while let Some(frame) = reader.read(&mut bytes) {
                    match ToHypervisor::read(&frame.unwrap()).unwrap() {
                        ToHypervisor::Hello { session, .. } => {
                            say(&sender, None, Content::Welcome { guests: 2, session });
                            say(&sender, Some(0), Content::State(GuestState::Running));
                            say(&sender, Some(1), Content::State(GuestState::Stopped));
                        }
                        ToHypervisor::Command { command: Command::Quit, .. } => return,
                        message => act(&message, &sender),
                    }
                }
            }
        });
        Session::begin(ours, messages)
    }

    #[test]
    fn answers_go_to_their_commands() {
        let mut session = session(|message, to| {
            let ToHypervisor::Command { request, command } = *message else { panic!("{message:?}") };
            match command {
                // Answered after the next one.
                Command::Stop => {}
                Command::Statistics => {
                    say(to, Some(1), Content::Figure { request, key: "exits.hvc".to_owned(), value: 7 });
                    say(to, Some(1), Content::State(GuestState::Running));
                    say(to, None, Content::Done(request));
                    let refusal = refusal(Reason::State);
                    say(to, Some(0), Content::Refused { request: Some(request - 1), refusal });
                }
                other => panic!("{other:?}"),
            }
        })
        .unwrap();
        assert_eq!(session.guests(), 2);
        let stop = session.send(Some(0), Command::Stop).unwrap();
        let statistics = session.ask(None, Command::Statistics).unwrap();
        assert_eq!((statistics.figure(Some(1), "exits.hvc"), statistics.refusal), (Some(7), None));
        assert_eq!(session.answer(stop).unwrap().refusal, Some(refusal(Reason::State)));
        // What an older session said of guest 0 is not among its states.
        assert_eq!(session.wait_for(0, 0, GuestState::Running).unwrap(), 1);
        assert_eq!(session.wait_for(1, 1, GuestState::Running).unwrap(), 2);
        assert_eq!(session.states(1), [GuestState::Stopped, GuestState::Running]);
        assert!(matches!(session.ask(None, Command::Quit), Err(SessionError::Ended)));
        assert!(matches!(session.wait_for(1, 2, GuestState::Off), Err(SessionError::Ended)));
    }

    #[test]
    fn a_frame_that_is_refused_is_an_error() {
        let act: Act = |_, to| say(to, None, Content::Refused { request: None, refusal: refusal(Reason::Malformed) });
        let error = session(act).unwrap().ask(None, Command::Stop).unwrap_err();
        assert!(matches!(error, SessionError::Protocol(_)), "{error}");
    }
}
