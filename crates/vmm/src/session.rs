// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hypervisor's end of a session on the control channel (`docs/control.md`, S1 to S8): bytes in, answers, commands and
//! consoles out.
//!
//! Invariants:
//!
//! * A frame that cannot be taken is refused once, by its reason, and has no effect (S5).
//! * A command comes out only inside of a session, and for a guest that exists. It is consumed by its answer, so it has
//!   one at most (S4). It knows its session: an answer that comes in a later one is not sent (S2).
//! * A state is announced once, in the order in which the guest was in these states, and after the welcome's.
//! * Each call does a bounded amount of work for each byte.
//! * Output goes out by credit, a frame of each console in turn, and never waits for the launcher. So an answer is behind
//!   at most one frame that was not sent yet (C3).

use alloc::vec::Vec;
use core::fmt::{self, Write};

use twofold_abi::channel::wire::{CONTENT_MAX, PAYLOAD_MAX, Part, TEXT_MAX, VERSION};
use twofold_abi::channel::{Command, CreditError, Frame, FrameReader, GuestState, Reason, ToHypervisor, ToLauncher};

use crate::console::{CHUNK, Console, NotSent};

/// The most bytes of an answer in one frame.
pub const PART_MAX: usize = PAYLOAD_MAX - size_of::<Part>();

/// Where answers go.
pub trait Launcher {
    /// A session begins, or fails to: the next frame follows a 0.
    fn begin(&mut self);

    /// Sends a message, whole.
    fn send(&mut self, guest: Option<u16>, message: &ToLauncher<'_>);

    /// Sends a message, whole, if there is room for it now.
    #[must_use]
    fn offer(&mut self, guest: Option<u16>, message: &ToLauncher<'_>) -> bool;
}

/// The guests, by their numbers.
pub trait Guests {
    /// How many there are.
    fn count(&self) -> u16;

    /// What a guest does now. The session asks at the moment at which it sends the answer.
    fn state(&self, guest: u16) -> GuestState;

    /// Calls `act` with a guest's console, under its lock. What it changes reaches the guest's UART before this returns.
    /// `None`: the channel does not carry this guest's console.
    fn console<T>(&self, guest: u16, act: impl FnOnce(&mut Console) -> T) -> Option<T>;
}

impl Guests for [GuestState] {
    fn count(&self) -> u16 {
        self.len() as u16
    }

    fn state(&self, guest: u16) -> GuestState {
        self.get(usize::from(guest)).copied().unwrap_or(GuestState::Off)
    }

    fn console<T>(&self, _guest: u16, _act: impl FnOnce(&mut Console) -> T) -> Option<T> {
        None
    }
}

/// The hypervisor's end.
#[derive(Debug)]
pub struct Session {
    reader: FrameReader,
    open: Option<Open>,
    /// How many sessions have begun, or failed to.
    number: u32,
    /// The guest whose console was sent last.
    turn: u16,
}

/// What [`Session::send`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It sent something. There may be more.
    Some,
    /// Nothing is left to be sent now.
    Nothing,
    /// The launcher's side has no room now.
    NoRoom,
}

/// A session.
#[derive(Debug)]
struct Open {
    /// The state of each guest that the launcher knows.
    announced: Vec<Option<GuestState>>,
    /// What has come for the next command that takes content, and the guest that it is for.
    content: (u16, Vec<u8>),
}

/// A command, to be answered once.
#[derive(Debug)]
#[must_use = "a command is answered"]
pub struct Asked {
    /// The session in which it came.
    session: u32,
    request: u32,
    guest: Option<u16>,
    command: Command,
    content: Vec<u8>,
}

/// The launcher oversteps what a console allows.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum Overstep {
    Credit(#[from] CreditError),
    Taken(#[from] NotSent),
}

/// Why a frame is refused.
struct Refused<'a>(Reason, fmt::Arguments<'a>);

impl Default for Session {
    fn default() -> Self {
        Self::new()
    }
}

impl Session {
    /// No session, until a launcher begins one.
    #[must_use]
    pub const fn new() -> Self {
        Self { reader: FrameReader::new(), open: None, number: 0, turn: 0 }
    }

    /// Reads up to the next command, and removes what it read from `bytes`. It answers everything else by itself. `None`:
    /// all was read.
    pub fn read(
        &mut self,
        bytes: &mut &[u8],
        guests: &(impl Guests + ?Sized),
        launcher: &mut impl Launcher,
    ) -> Option<Asked> {
        loop {
            let frame = match self.reader.read(bytes)? {
                Ok(frame) => frame,
                Err(error) => {
                    refuse(launcher, None, None, &Refused(Reason::Malformed, format_args!("{error}")));
                    continue;
                }
            };
            if let Some((request, guest, command)) = take(&mut self.open, &mut self.number, &frame, guests, launcher) {
                let content = self.open.as_mut().map(|open| open.content_for(guest, command)).unwrap_or_default();
                return Some(Asked { session: self.number, request, guest, command, content });
            }
        }
    }

    /// Sends the state of a guest, if the launcher does not know it. The caller reads the state while it has the session.
    pub fn announce(&mut self, guest: u16, state: GuestState, launcher: &mut impl Launcher) {
        let Some(open) = &mut self.open else { return };
        let number = usize::from(guest);
        // The guests may be more than when the session began.
        if open.announced.len() <= number {
            open.announced.resize(number + 1, None);
        }
        if open.announced[number].replace(state) == Some(state) {
            return;
        }
        launcher.send(Some(guest), &ToLauncher::State { state, text: "" });
    }

    /// Sends what the consoles have: credit for input, and one frame of output.
    pub fn send(&mut self, guests: &(impl Guests + ?Sized), launcher: &mut impl Launcher) -> Sent {
        if self.open.is_none() {
            return Sent::Nothing;
        }
        let count = guests.count();
        (0..count).for_each(|guest| grant(guest, guests, launcher));
        let mut bytes = [0; CHUNK];
        for guest in (self.turn + 1..count).chain(0..count.min(self.turn + 1)) {
            let length = guests.console(guest, |console| console.chunk(&mut bytes)).unwrap_or(0);
            if length == 0 {
                continue;
            }
            if !launcher.offer(Some(guest), &ToLauncher::Output(&bytes[..length])) {
                return Sent::NoRoom;
            }
            guests.console(guest, |console| console.sent(length));
            self.turn = guest;
            return Sent::Some;
        }
        Sent::Nothing
    }

    /// Whether there is a session.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }
}

impl Open {
    /// Keeps content for a later command. Nothing is kept if it is refused.
    fn keep(&mut self, guest: u16, bytes: &[u8]) -> Result<(), Refused<'static>> {
        let (of, content) = &mut self.content;
        let overstep = |why| Err(Refused(Reason::Credit, why));
        if *of != guest && !content.is_empty() {
            return overstep(format_args!("the content for another guest waits for its command"));
        }
        if content.len() + bytes.len() > CONTENT_MAX || content.try_reserve(bytes.len()).is_err() {
            return overstep(format_args!("no room for so much content"));
        }
        content.extend_from_slice(bytes);
        *of = guest;
        Ok(())
    }

    /// Takes the content for a command; nothing, if the command takes none.
    fn content_for(&mut self, guest: Option<u16>, command: Command) -> Vec<u8> {
        let takes = command.takes_content() && guest == Some(self.content.0);
        if takes { core::mem::take(&mut self.content.1) } else { Vec::new() }
    }
}

impl Asked {
    /// The guest; `None`: all of them, or the hypervisor.
    #[must_use]
    pub fn guest(&self) -> Option<u16> {
        self.guest
    }

    /// What is wanted.
    #[must_use]
    pub fn command(&self) -> Command {
        self.command
    }

    /// What has come for the command.
    #[must_use]
    pub fn content(&self) -> &[u8] {
        &self.content
    }

    /// Sends a part of the answer: 1 to [`PART_MAX`] bytes.
    pub fn part(&self, bytes: &[u8], session: &Session, launcher: &mut impl Launcher) {
        if self.is_of(session) {
            launcher.send(self.guest, &ToLauncher::Part { request: self.request, bytes });
        }
    }

    /// Sends a figure. `key` has dotted parts of `[a-z0-9_]`, 64 bytes at most.
    pub fn figure(&self, guest: Option<u16>, key: &str, value: u64, session: &Session, launcher: &mut impl Launcher) {
        if self.is_of(session) {
            launcher.send(guest, &ToLauncher::Statistic { request: self.request, key, value });
        }
    }

    /// It is done.
    pub fn done(self, session: &Session, launcher: &mut impl Launcher) {
        if self.is_of(session) {
            launcher.send(self.guest, &ToLauncher::Done(self.request));
        }
    }

    /// It is not done, and had no effect.
    pub fn refused(self, reason: Reason, text: fmt::Arguments<'_>, session: &Session, launcher: &mut impl Launcher) {
        if self.is_of(session) {
            refuse(launcher, self.guest, Some(self.request), &Refused(reason, text));
        }
    }

    fn is_of(&self, session: &Session) -> bool {
        self.session == session.number
    }
}

/// Takes a frame: returns a command, or answers it.
fn take(
    open: &mut Option<Open>,
    number: &mut u32,
    frame: &Frame<'_>,
    guests: &(impl Guests + ?Sized),
    launcher: &mut impl Launcher,
) -> Option<(u32, Option<u16>, Command)> {
    let guest = frame.guest;
    let message = match ToHypervisor::read(frame) {
        Ok(message) => message,
        Err(error) => {
            let reason = match error {
                twofold_abi::channel::MessageError::Kind(_) => Reason::Kind,
                _ => Reason::Malformed,
            };
            refuse(launcher, guest, None, &Refused(reason, format_args!("{error}")));
            return None;
        }
    };
    let request = if let ToHypervisor::Command { request, .. } = message { Some(request) } else { None };
    if let ToHypervisor::Hello { lowest, highest, session } = message {
        *number = number.wrapping_add(1);
        *open = begin(lowest..=highest, session, guests, launcher);
        return None;
    }
    if open.is_none() {
        refuse(launcher, guest, request, &Refused(Reason::Kind, format_args!("there is no session")));
        return None;
    }
    if guest.is_some_and(|guest| guest >= guests.count()) {
        let last = i32::from(guests.count()) - 1;
        refuse(launcher, guest, request, &Refused(Reason::Guest, format_args!("the last guest is {last}")));
        return None;
    }
    if let ToHypervisor::Command { request, command } = message {
        return Some((request, guest, command));
    }
    if let (ToHypervisor::Content(bytes), Some(guest), Some(open)) = (message, guest, open) {
        if let Err(why) = open.keep(guest, bytes) {
            refuse(launcher, Some(guest), None, &why);
        }
        return None;
    }
    let done = guests.console(guest.unwrap_or_default(), |console| -> Result<(), Overstep> {
        match message {
            ToHypervisor::Input(bytes) => console.receive(bytes)?,
            ToHypervisor::OutputCredit(bytes) => console.granted(bytes)?,
            ToHypervisor::Taken(position) => console.taken(position)?,
            ToHypervisor::Hello { .. } | ToHypervisor::Command { .. } | ToHypervisor::Content(_) => {}
        }
        Ok(())
    });
    // The console's lock is free again.
    match done {
        Some(Ok(())) => {}
        Some(Err(error)) => refuse(launcher, guest, None, &Refused(Reason::Credit, format_args!("{error}"))),
        None => {
            refuse(launcher, guest, None, &Refused(Reason::Guest, format_args!("its console is not on this channel")));
        }
    }
    None
}

/// S2: begins a session, or refuses to.
fn begin(
    versions: core::ops::RangeInclusive<u16>,
    session: u64,
    guests: &(impl Guests + ?Sized),
    launcher: &mut impl Launcher,
) -> Option<Open> {
    launcher.begin();
    if !versions.contains(&VERSION) {
        for guest in 0..guests.count() {
            guests.console(guest, Console::end);
        }
        refuse(launcher, None, None, &Refused(Reason::Version, format_args!("this is version {VERSION}")));
        return None;
    }
    let count = guests.count();
    launcher.send(None, &ToLauncher::Welcome { version: VERSION, guests: count, session });
    let mut open = Open { announced: Vec::with_capacity(count.into()), content: (0, Vec::new()) };
    for guest in 0..count {
        let state = guests.state(guest);
        launcher.send(Some(guest), &ToLauncher::State { state, text: "" });
        open.announced.push(Some(state));
    }
    for guest in 0..count {
        if let Some((output, input)) = guests.console(guest, Console::begin) {
            launcher.send(Some(guest), &ToLauncher::Position { output, input });
        }
    }
    (0..count).for_each(|guest| grant(guest, guests, launcher));
    Some(open)
}

/// Grants credit for a guest's input, if that is worth a frame.
fn grant(guest: u16, guests: &(impl Guests + ?Sized), launcher: &mut impl Launcher) {
    if let Some(bytes) = guests.console(guest, Console::grant).flatten() {
        launcher.send(Some(guest), &ToLauncher::InputCredit(bytes));
    }
}

fn refuse(launcher: &mut impl Launcher, guest: Option<u16>, request: Option<u32>, why: &Refused<'_>) {
    let mut text = Text { bytes: [0; TEXT_MAX], used: 0 };
    // A text that is too long is cut off.
    let _ = text.write_fmt(why.1);
    launcher.send(guest, &ToLauncher::Refused { request, reason: why.0, text: text.as_str() });
}

/// A text of at most [`TEXT_MAX`] bytes.
struct Text {
    bytes: [u8; TEXT_MAX],
    used: usize,
}

impl Text {
    fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.used]).unwrap_or_default()
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            let end = self.used + character.len_utf8();
            character.encode_utf8(self.bytes.get_mut(self.used..end).ok_or(fmt::Error)?);
            self.used = end;
        }
        Ok(())
    }
}
