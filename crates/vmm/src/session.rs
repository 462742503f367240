// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hypervisor's end of a session on the control channel (`docs/control.md`, S1 to S6): bytes in, answers and commands
//! out.
//!
//! Invariants:
//!
//! * A frame that cannot be taken is refused once, by its reason, and has no effect (S5).
//! * A command comes out only inside of a session, and for a guest that exists. It borrows the session, so it is answered
//!   before the next frame is read (S4), and none is under way when a session begins (S2).
//! * Each call does a bounded amount of work for each byte.

use alloc::vec::Vec;
use core::fmt::{self, Write};

use twofold_abi::channel::wire::{TEXT_MAX, VERSION};
use twofold_abi::channel::{Command, Frame, FrameReader, GuestState, Reason, SendCredit, ToHypervisor, ToLauncher};

/// Where answers go.
pub trait Launcher {
    /// A session begins, or fails to: the next frame follows a 0.
    fn begin(&mut self);

    /// Sends a message, whole.
    fn send(&mut self, guest: Option<u16>, message: &ToLauncher<'_>);
}

/// The hypervisor's end.
#[derive(Debug)]
pub struct Session {
    reader: FrameReader,
    /// Credit for the output of each guest. `None`: there is no session.
    credit: Option<Vec<SendCredit>>,
}

/// A command, to be answered once.
#[derive(Debug)]
#[must_use = "a command is answered"]
pub struct Asked<'a> {
    _session: &'a mut Session,
    request: u32,
    guest: Option<u16>,
    command: Command,
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
        Self { reader: FrameReader::new(), credit: None }
    }

    /// Reads up to the next command, and removes what it read from `bytes`. It answers everything else by itself. `None`:
    /// all was read. `guests` are the states of the guests, by their numbers.
    pub fn read(
        &mut self,
        bytes: &mut &[u8],
        guests: &[GuestState],
        launcher: &mut impl Launcher,
    ) -> Option<Asked<'_>> {
        let (request, guest, command) = loop {
            let frame = match self.reader.read(bytes)? {
                Ok(frame) => frame,
                Err(error) => {
                    refuse(launcher, None, None, &Refused(Reason::Malformed, format_args!("{error}")));
                    continue;
                }
            };
            match take(&mut self.credit, &frame, guests, launcher) {
                Some(command) => break command,
                None => continue,
            }
        };
        Some(Asked { _session: self, request, guest, command })
    }

    /// The credit for a guest's output. `None`: there is no session, or no such guest.
    pub fn credit(&mut self, guest: u16) -> Option<&mut SendCredit> {
        self.credit.as_mut()?.get_mut(usize::from(guest))
    }
}

impl Asked<'_> {
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

    /// Sends a figure of [`Command::Statistics`]. `key` has dotted parts of `[a-z0-9_]`, 64 bytes at most.
    pub fn figure(&self, guest: Option<u16>, key: &str, value: u64, launcher: &mut impl Launcher) {
        launcher.send(guest, &ToLauncher::Statistic { request: self.request, key, value });
    }

    /// It is done.
    pub fn done(self, launcher: &mut impl Launcher) {
        launcher.send(self.guest, &ToLauncher::Done(self.request));
    }

    /// It is not done, and had no effect.
    pub fn refused(self, reason: Reason, text: fmt::Arguments<'_>, launcher: &mut impl Launcher) {
        refuse(launcher, self.guest, Some(self.request), &Refused(reason, text));
    }
}

/// Takes a frame: returns a command, or answers it.
fn take(
    credit: &mut Option<Vec<SendCredit>>,
    frame: &Frame<'_>,
    guests: &[GuestState],
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
        *credit = begin(lowest..=highest, session, guests, launcher);
        return None;
    }
    let checked = match credit {
        None => Err(Refused(Reason::Kind, format_args!("there is no session"))),
        Some(_) if guest.is_some_and(|guest| usize::from(guest) >= guests.len()) => {
            Err(Refused(Reason::Guest, format_args!("the last guest is {}", guests.len().wrapping_sub(1) as isize)))
        }
        Some(credit) => Ok(credit),
    };
    match (checked, message) {
        (Err(refused), _) => refuse(launcher, guest, request, &refused),
        (Ok(_), ToHypervisor::Command { request, command }) => return Some((request, guest, command)),
        (Ok(credit), ToHypervisor::OutputCredit(bytes)) => {
            // The guests may be more than when the session began.
            let number = usize::from(guest.unwrap_or_default());
            if credit.len() <= number {
                credit.resize_with(number + 1, SendCredit::default);
            }
            if let Err(error) = credit[number].granted(bytes) {
                refuse(launcher, guest, None, &Refused(Reason::Credit, format_args!("{error}")));
            }
        }
        // Consoles are not on this channel yet, so no room for input was granted.
        (Ok(_), _) => refuse(launcher, guest, None, &Refused(Reason::Credit, format_args!("no input was granted"))),
    }
    None
}

/// S2: begins a session, or refuses to.
fn begin(
    versions: core::ops::RangeInclusive<u16>,
    session: u64,
    guests: &[GuestState],
    launcher: &mut impl Launcher,
) -> Option<Vec<SendCredit>> {
    launcher.begin();
    if !versions.contains(&VERSION) {
        refuse(launcher, None, None, &Refused(Reason::Version, format_args!("this is version {VERSION}")));
        return None;
    }
    launcher.send(None, &ToLauncher::Welcome { version: VERSION, guests: guests.len() as u16, session });
    for (guest, &state) in (0..).zip(guests) {
        launcher.send(Some(guest), &ToLauncher::State { state, text: "" });
    }
    Some(guests.iter().map(|_| SendCredit::default()).collect())
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
