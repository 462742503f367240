// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages: what frames mean.
//!
//! Invariant: a message that is read and written again gives the same frame. Each field of a message was checked, so a
//! receiver decides by state only, never by form.

use thiserror::Error;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::frame::{Frame, FrameWriter, TooLong};
use super::wire::{
    self, COMMANDS_MAX, Credit, Hello, KEY_MAX, MAGIC, NO_REQUEST, Part, Refusal, State, Statistic, TEXT_MAX,
    WINDOW_MAX, Welcome, command, kind, reason, state,
};

/// Why a frame is no message. The receiver refuses it by this name, and the session goes on.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageError {
    /// There is no such kind in this direction.
    #[error("a frame of kind {0:#x}")]
    Kind(u8),
    /// The payload has the wrong size for its kind.
    #[error("a payload of {found} bytes for a frame of kind {kind:#x}")]
    Length {
        /// The frame's kind.
        kind: u8,
        /// The payload's bytes.
        found: usize,
    },
    /// The frame needs a guest, or must not have one.
    #[error("a frame of kind {kind:#x} {} a guest", if *.has { "with" } else { "without" })]
    Guest {
        /// The frame's kind.
        kind: u8,
        /// Whether it has a guest.
        has: bool,
    },
    /// It is no hello or welcome of this protocol.
    #[error("no hello of this protocol: it starts with {0:02x?}")]
    Magic([u8; 8]),
    /// A field has a value that it cannot have.
    #[error("{field} is {value:#x}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A text or a key has a character that it cannot have, or is too long.
    #[error("a text that is none")]
    Text,
}

/// What a launcher asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Send statistics.
    Statistics,
    /// Stop the guest.
    Stop,
    /// Let a stopped guest go on.
    Continue,
    /// Start the guest anew.
    Reset,
    /// End the guest; without a guest: end the hypervisor.
    Quit,
    /// Start a dirty log of the guest's RAM.
    DirtyStart,
    /// Stop it.
    DirtyStop,
    /// Collect the pages that were written since it started or was last collected, and send how many.
    Dirty,
    /// Split the blocks of the guest's RAM, and send how many.
    Split,
    /// Make blocks of the guest's RAM, and send how many.
    Coalesce,
    /// Ask the guest to keep this many MiB of its memory, below 2^24, and to give up the rest.
    Balloon(u32),
    /// Send the sections of the stopped guest: all that it is besides its memory.
    Save,
    /// Take a section, which came as content, into the guest, which is stopped before its first instruction.
    Restore,
    /// Send the page of the guest at this address, divided by [`PAGE_SIZE`]. A page of zeroes has no bytes.
    Read(u32),
    /// Take a page, which came as content, into the guest, which is stopped before its first instruction. The number is as
    /// in `Read`.
    Write(u32),
    /// Start dirty logs of all of the guest's memslots.
    Track(Track),
    /// Send which pages of this memslot are in its dirty log: a [`WrittenWord`](wire::WrittenWord) for each 64 pages that
    /// have some.
    Written(u8),
    /// Take these pages out of the memslot's dirty log, so that they may be read. They came as content, as `Written` sends
    /// them.
    Clear(u8),
    /// Send where this page of the stopped guest is, and the pages of RAM behind it, at most
    /// [`FRAMES_MAX`](wire::FRAMES_MAX): a word for each ([`frame`](wire::frame)). The number is as in `Read`.
    Frames(u32),
    /// These pages of the memslot, which came as content, are absent: their content comes after the guest has begun. It is
    /// stopped before its first instruction.
    Absent(u8),
    /// Send the numbers of absent pages that the guest needs and that were not sent yet, 4 bytes each and as in `Read`, as
    /// soon as there are any. No bytes: no page is absent any more.
    Wanted,
    /// An absent page has come, as content or as zeroes if there is none. The number is as in `Read`. A page that is not
    /// absent keeps what it has.
    Fill(u32),
    /// These absent pages of the memslot, which came as content, are zero. A page that is not absent keeps what it has.
    Zero(u8),
}

/// How [`Command::Track`] starts the logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Track {
    /// The place of the tracker among all that there are. The hypervisor refuses one that it does not have.
    pub tracker: u8,
    /// Whether all pages are in the log at first.
    pub all: bool,
}

/// Bytes of a page that [`Command::Read`] sends and [`Command::Write`] takes.
pub const PAGE_SIZE: usize = 4096;

/// Why a frame is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The versions have nothing in common.
    Version,
    /// The frame is no frame or no message.
    Malformed,
    /// There is no such kind, or no session yet.
    Kind,
    /// There is no such guest.
    Guest,
    /// Not in this state of the guest.
    State,
    /// More than [`COMMANDS_MAX`] commands are under way.
    Busy,
    /// More input than was granted, or more credit than a window.
    Credit,
    /// It was tried and failed.
    Failed,
}

/// What a guest does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestState {
    /// It runs.
    Running,
    /// It is stopped, and can go on.
    Stopped,
    /// It is off.
    Off,
    /// It starts anew.
    Reset,
    /// The hypervisor has ended it.
    Failed,
}

/// A message to the hypervisor. The guest is the frame's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToHypervisor<'a> {
    /// A session begins. Everything of the one before is forgotten, credit included.
    Hello {
        /// The lowest version that the launcher speaks.
        lowest: u16,
        /// The highest, not below it.
        highest: u16,
        /// A random number that names the session.
        session: u64,
    },
    /// A command for the guest, or for all if there is none.
    Command {
        /// Names the command in its answer: not 0, and of no other command that is under way.
        request: u32,
        /// The command.
        command: Command,
    },
    /// At least one byte for the guest's console, for which there is credit.
    Input(&'a [u8]),
    /// So much more of the guest's output has room: 1 to [`WINDOW_MAX`].
    OutputCredit(u32),
    /// The guest's output before the byte with this number was taken, and will not be needed again.
    Taken(u64),
    /// At least one byte, behind those before, for the next command to this guest that takes content.
    Content(&'a [u8]),
}

/// A message to the launcher. The guest is the frame's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToLauncher<'a> {
    /// The session has begun. What came before this message belongs to an older one.
    Welcome {
        /// The version of this session.
        version: u16,
        /// How many guests there are.
        guests: u16,
        /// The hello's.
        session: u64,
    },
    /// The command is done. All of its figures came before.
    Done(u32),
    /// A frame is refused, and had no effect.
    Refused {
        /// The command, if it was one.
        request: Option<u32>,
        /// Why.
        reason: Reason,
        /// Why, in words.
        text: &'a str,
    },
    /// At least one byte from the guest's console, for which there was credit.
    Output(&'a [u8]),
    /// So much more of the guest's input has room: 1 to [`WINDOW_MAX`].
    InputCredit(u32),
    /// One figure.
    Statistic {
        /// The command that asked for it.
        request: u32,
        /// Dotted parts of `[a-z0-9_]`.
        key: &'a str,
        /// The figure.
        value: u64,
    },
    /// What the guest does from now on.
    State {
        /// It does this.
        state: GuestState,
        /// Why; may be empty.
        text: &'a str,
    },
    /// A note for people.
    Log(&'a str),
    /// A line of [`control`](crate::control), without its end.
    Line(&'a str),
    /// At least one byte of the trace, behind those before.
    Trace(&'a [u8]),
    /// The session begins in the guest's console at the bytes with these numbers.
    Position {
        /// The next byte of its output.
        output: u64,
        /// The next byte of its input.
        input: u64,
    },
    /// At least one byte of a command's answer, behind those before.
    Part {
        /// The command.
        request: u32,
        /// The bytes.
        bytes: &'a [u8],
    },
}

impl<'a> ToHypervisor<'a> {
    /// Reads a message.
    pub fn read(frame: &Frame<'a>) -> Result<Self, MessageError> {
        let message = match frame.kind {
            kind::HELLO => {
                let hello: Hello = row(frame)?;
                greeting(hello.magic, hello.reserved)?;
                let (lowest, highest) = (hello.lowest.get(), hello.highest.get());
                check("the highest version", highest, lowest <= highest)?;
                Self::Hello { lowest, highest, session: hello.session.get() }
            }
            kind::COMMAND => {
                let row: wire::Command = row(frame)?;
                let [low, middle, high] = row.argument;
                let argument = u32::from_le_bytes([low, middle, high, 0]);
                Self::Command { request: request(row.request)?, command: Command::from_numbers(row.command, argument)? }
            }
            kind::INPUT => Self::Input(bytes(frame)?),
            kind::OUTPUT_CREDIT => Self::OutputCredit(credit(frame)?),
            kind::TAKEN => Self::Taken(row::<wire::Taken>(frame)?.output.get()),
            kind::CONTENT => Self::Content(bytes(frame)?),
            other => return Err(MessageError::Kind(other)),
        };
        let has = frame.guest.is_some();
        let fits = match message {
            Self::Hello { .. } => !has,
            Self::Command { .. } => true,
            Self::Input(_) | Self::OutputCredit(_) | Self::Taken(_) | Self::Content(_) => has,
        };
        if fits { Ok(message) } else { Err(MessageError::Guest { kind: frame.kind, has }) }
    }

    /// Returns the message's bytes on the wire.
    pub fn write<'w>(&self, guest: Option<u16>, writer: &'w mut FrameWriter) -> Result<&'w [u8], TooLong> {
        match *self {
            Self::Hello { lowest, highest, session } => {
                let (lowest, highest) = (lowest.into(), highest.into());
                let row = Hello { magic: MAGIC, lowest, highest, reserved: U32::ZERO, session: session.into() };
                writer.write(kind::HELLO, guest, row.as_bytes(), &[])
            }
            Self::Command { request, command } => {
                let (command, argument) = command.numbers();
                let [low, middle, high, _] = argument.to_le_bytes();
                let row = wire::Command { request: request.into(), command, argument: [low, middle, high] };
                writer.write(kind::COMMAND, guest, row.as_bytes(), &[])
            }
            Self::Input(bytes) => writer.write(kind::INPUT, guest, &[], bytes),
            Self::OutputCredit(bytes) => writer.write(kind::OUTPUT_CREDIT, guest, &bytes.to_le_bytes(), &[]),
            Self::Taken(output) => writer.write(kind::TAKEN, guest, &output.to_le_bytes(), &[]),
            Self::Content(bytes) => writer.write(kind::CONTENT, guest, &[], bytes),
        }
    }
}

impl<'a> ToLauncher<'a> {
    /// Reads a message.
    pub fn read(frame: &Frame<'a>) -> Result<Self, MessageError> {
        let message = match frame.kind {
            kind::WELCOME => {
                let row: Welcome = row(frame)?;
                greeting(row.magic, row.reserved)?;
                Self::Welcome { version: row.version.get(), guests: row.guests.get(), session: row.session.get() }
            }
            kind::DONE => Self::Done(request(row(frame)?)?),
            kind::REFUSED => {
                let (row, text): (Refusal, _) = row_and_text(frame)?;
                let request = Some(row.request.get()).filter(|&request| request != NO_REQUEST);
                Self::Refused { request, reason: Reason::from_number(row.reason.get())?, text }
            }
            kind::OUTPUT => Self::Output(bytes(frame)?),
            kind::INPUT_CREDIT => Self::InputCredit(credit(frame)?),
            kind::STATISTIC => {
                let (row, key): (Statistic, _) = row_and_text(frame)?;
                if !is_key(key) {
                    return Err(MessageError::Text);
                }
                Self::Statistic { request: request(row.request)?, key, value: row.value.get() }
            }
            kind::STATE => {
                let (row, text): (State, _) = row_and_text(frame)?;
                Self::State { state: GuestState::from_number(row.state)?, text }
            }
            kind::LOG => Self::Log(text(frame.payload)?),
            kind::LINE => Self::Line(line(frame.payload)?),
            kind::TRACE => Self::Trace(bytes(frame)?),
            kind::POSITION => {
                let row: wire::Position = row(frame)?;
                Self::Position { output: row.output.get(), input: row.input.get() }
            }
            kind::PART => {
                let (row, bytes) = Part::ref_from_prefix(frame.payload).map_err(|_| length(frame))?;
                if bytes.is_empty() {
                    return Err(length(frame));
                }
                Self::Part { request: request(row.request)?, bytes }
            }
            other => return Err(MessageError::Kind(other)),
        };
        let has = frame.guest.is_some();
        let fits = match message {
            Self::Welcome { .. } | Self::Line(_) | Self::Trace(_) => !has,
            Self::Output(_) | Self::InputCredit(_) | Self::Position { .. } | Self::Part { .. } => has,
            _ => true,
        };
        if fits { Ok(message) } else { Err(MessageError::Guest { kind: frame.kind, has }) }
    }

    /// Returns the message's bytes on the wire. A text of more than [`TEXT_MAX`] bytes and a key that is none are the
    /// writer's mistake: the reader refuses them.
    pub fn write<'w>(&self, guest: Option<u16>, writer: &'w mut FrameWriter) -> Result<&'w [u8], TooLong> {
        match *self {
            Self::Welcome { version, guests, session } => {
                let (version, guests) = (version.into(), guests.into());
                let row = Welcome { magic: MAGIC, version, guests, reserved: U32::ZERO, session: session.into() };
                writer.write(kind::WELCOME, guest, row.as_bytes(), &[])
            }
            Self::Done(request) => writer.write(kind::DONE, guest, &request.to_le_bytes(), &[]),
            Self::Refused { request, reason, text } => {
                let row = Refusal { request: request.unwrap_or(NO_REQUEST).into(), reason: reason.number().into() };
                writer.write(kind::REFUSED, guest, row.as_bytes(), text.as_bytes())
            }
            Self::Output(bytes) => writer.write(kind::OUTPUT, guest, &[], bytes),
            Self::InputCredit(bytes) => writer.write(kind::INPUT_CREDIT, guest, &bytes.to_le_bytes(), &[]),
            Self::Statistic { request, key, value } => {
                let row = Statistic { request: request.into(), value: value.into() };
                writer.write(kind::STATISTIC, guest, row.as_bytes(), key.as_bytes())
            }
            Self::State { state, text } => writer.write(kind::STATE, guest, &[state.number()], text.as_bytes()),
            Self::Log(text) => writer.write(kind::LOG, guest, &[], text.as_bytes()),
            Self::Line(line) => writer.write(kind::LINE, guest, &[], line.as_bytes()),
            Self::Trace(bytes) => writer.write(kind::TRACE, guest, &[], bytes),
            Self::Position { output, input } => {
                let row = wire::Position { output: output.into(), input: input.into() };
                writer.write(kind::POSITION, guest, row.as_bytes(), &[])
            }
            Self::Part { request, bytes } => {
                writer.write(kind::PART, guest, Part { request: request.into() }.as_bytes(), bytes)
            }
        }
    }
}

/// Makes both directions of an enum's numbers from one list, so that they agree.
macro_rules! numbers {
    ($enum:ident: $number:ty, $field:literal, $($variant:ident = $constant:path),+) => {
        impl $enum {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            const fn number(self) -> $number {
                match self {
                    $(Self::$variant => $constant,)+
                }
            }

            fn from_number(number: $number) -> Result<Self, MessageError> {
                match number {
                    $($constant => Ok(Self::$variant),)+
                    _ => Err(MessageError::Field { field: $field, value: number.into() }),
                }
            }
        }
    };
}

/// The commands without an argument.
const PLAIN: [(u8, Command); 13] = [
    (command::STATISTICS, Command::Statistics),
    (command::STOP, Command::Stop),
    (command::CONTINUE, Command::Continue),
    (command::RESET, Command::Reset),
    (command::QUIT, Command::Quit),
    (command::DIRTY_START, Command::DirtyStart),
    (command::DIRTY_STOP, Command::DirtyStop),
    (command::DIRTY, Command::Dirty),
    (command::SPLIT, Command::Split),
    (command::COALESCE, Command::Coalesce),
    (command::SAVE, Command::Save),
    (command::RESTORE, Command::Restore),
    (command::WANTED, Command::Wanted),
];

/// The bit of an argument of [`command::TRACK`] that says that all pages are in the log at first.
const TRACK_ALL: u32 = 8;

impl Command {
    /// All of them; those with an argument, with one that is possible.
    pub const ALL: &[Self] = &[
        Self::Statistics,
        Self::Stop,
        Self::Continue,
        Self::Reset,
        Self::Quit,
        Self::DirtyStart,
        Self::DirtyStop,
        Self::Dirty,
        Self::Split,
        Self::Coalesce,
        Self::Balloon(0x01_0203),
        Self::Save,
        Self::Restore,
        Self::Read(0x04_0000),
        Self::Write(0xff_ffff),
        Self::Track(Track { tracker: 4, all: true }),
        Self::Written(2),
        Self::Clear(0xff),
        Self::Frames(0x04_0000),
        Self::Absent(2),
        Self::Wanted,
        Self::Fill(0x04_0000),
        Self::Zero(2),
    ];

    /// Whether it takes the content that came before it.
    #[must_use]
    pub fn takes_content(self) -> bool {
        matches!(
            self,
            Self::Restore | Self::Write(_) | Self::Clear(_) | Self::Absent(_) | Self::Fill(_) | Self::Zero(_)
        )
    }

    /// Its number and its argument.
    fn numbers(self) -> (u8, u32) {
        match self {
            Self::Balloon(mebibytes) => (command::BALLOON, mebibytes),
            Self::Read(page) => (command::READ, page),
            Self::Write(page) => (command::WRITE, page),
            Self::Track(Track { tracker, all }) => (command::TRACK, u32::from(tracker) | u32::from(all) << TRACK_ALL),
            Self::Written(memslot) => (command::WRITTEN, memslot.into()),
            Self::Clear(memslot) => (command::CLEAR, memslot.into()),
            Self::Frames(page) => (command::FRAMES, page),
            Self::Absent(memslot) => (command::ABSENT, memslot.into()),
            Self::Fill(page) => (command::FILL, page),
            Self::Zero(memslot) => (command::ZERO, memslot.into()),
            plain => (PLAIN.iter().find(|(_, command)| *command == plain).map_or(u8::MAX, |(number, _)| *number), 0),
        }
    }

    fn from_numbers(number: u8, argument: u32) -> Result<Self, MessageError> {
        match number {
            command::BALLOON => return Ok(Self::Balloon(argument)),
            command::READ => return Ok(Self::Read(argument)),
            command::WRITE => return Ok(Self::Write(argument)),
            command::FRAMES => return Ok(Self::Frames(argument)),
            command::TRACK => {
                check("the argument", argument, argument < 2 << TRACK_ALL)?;
                return Ok(Self::Track(Track { tracker: argument as u8, all: argument >> TRACK_ALL == 1 }));
            }
            command::FILL => return Ok(Self::Fill(argument)),
            command::WRITTEN | command::CLEAR | command::ABSENT | command::ZERO => {
                let memslot = argument as u8;
                check("the argument", argument, argument == u32::from(memslot))?;
                return Ok(match number {
                    command::WRITTEN => Self::Written(memslot),
                    command::CLEAR => Self::Clear(memslot),
                    command::ABSENT => Self::Absent(memslot),
                    _ => Self::Zero(memslot),
                });
            }
            _ => {}
        }
        check("the argument", argument, argument == 0)?;
        let found = PLAIN.iter().find(|(plain, _)| *plain == number).map(|(_, command)| *command);
        found.ok_or(MessageError::Field { field: "the command", value: number.into() })
    }
}

numbers!(Reason: u16, "the reason", Version = reason::VERSION, Malformed = reason::MALFORMED, Kind = reason::KIND,
    Guest = reason::GUEST, State = reason::STATE, Busy = reason::BUSY, Credit = reason::CREDIT,
    Failed = reason::FAILED);
numbers!(GuestState: u8, "the state", Running = state::RUNNING, Stopped = state::STOPPED, Off = state::OFF,
    Reset = state::RESET, Failed = state::FAILED);

fn length(frame: &Frame<'_>) -> MessageError {
    MessageError::Length { kind: frame.kind, found: frame.payload.len() }
}

/// The payload as a row and nothing else.
fn row<T: FromBytes + KnownLayout + Immutable + Unaligned>(frame: &Frame<'_>) -> Result<T, MessageError> {
    T::read_from_bytes(frame.payload).map_err(|_| length(frame))
}

fn row_and_text<'a, T: FromBytes>(frame: &Frame<'a>) -> Result<(T, &'a str), MessageError> {
    let (row, rest) = T::read_from_prefix(frame.payload).map_err(|_| length(frame))?;
    Ok((row, text(rest)?))
}

fn bytes<'a>(frame: &Frame<'a>) -> Result<&'a [u8], MessageError> {
    if frame.payload.is_empty() { Err(length(frame)) } else { Ok(frame.payload) }
}

fn credit(frame: &Frame<'_>) -> Result<u32, MessageError> {
    let bytes = row::<Credit>(frame)?.bytes.get();
    check("the credit", bytes, (1..=WINDOW_MAX).contains(&bytes))?;
    Ok(bytes)
}

fn request(number: U32) -> Result<u32, MessageError> {
    check("the request", number.get(), number != NO_REQUEST)?;
    Ok(number.get())
}

fn greeting(magic: [u8; 8], reserved: U32) -> Result<(), MessageError> {
    if magic != MAGIC {
        return Err(MessageError::Magic(magic));
    }
    check("a reserved field", reserved.get(), reserved == 0)
}

fn check(field: &'static str, value: impl Into<u64>, fits: bool) -> Result<(), MessageError> {
    if fits { Ok(()) } else { Err(MessageError::Field { field, value: value.into() }) }
}

fn text(bytes: &[u8]) -> Result<&str, MessageError> {
    core::str::from_utf8(bytes).ok().filter(|text| text.len() <= TEXT_MAX).ok_or(MessageError::Text)
}

/// As long as the payload, and without an end of its own.
fn line(bytes: &[u8]) -> Result<&str, MessageError> {
    core::str::from_utf8(bytes).ok().filter(|line| !line.contains(['\n', '\r'])).ok_or(MessageError::Text)
}

fn is_key(key: &str) -> bool {
    let part =
        |part: &str| !part.is_empty() && part.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'));
    key.len() <= KEY_MAX && key.split('.').all(part)
}

const _: () = assert!(COMMANDS_MAX > 0 && size_of::<Statistic>() + TEXT_MAX <= wire::PAYLOAD_MAX);
