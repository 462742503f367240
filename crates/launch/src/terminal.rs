// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The terminal as the console of a guest, byte by byte, with an escape to the monitor.
//!
//! What is typed goes to the guest as it comes, Ctrl-C too. Ctrl-] opens the monitor: a line of its own, during which the
//! console's output waits. An empty line returns to the console; Ctrl-] again gives the guest a Ctrl-].
//!
//! Invariants: the terminal has the settings that it had before, however this ends: by [`RawMode`]'s end, a signal that ends
//! the run in order, or a panic (the hook restores them, since a panic may abort). Without a terminal nothing is an escape.

use std::io::{self, Read, Write};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Condvar, Mutex, Once, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::hub::{Console, Hub};
use crate::monitor;
use crate::run::Stop;

/// What a terminal is connected with.
pub trait Guests: Sync {
    /// Opens a guest's console.
    ///
    /// # Errors
    ///
    /// Why not, as a line for people.
    fn open(&self, guest: &str) -> Result<Console, String>;

    /// Carries out a line of the monitor, for this guest if it names none. Returns what it has to say.
    fn command(&self, current: &str, line: &str) -> String;

    /// Whether the terminal can leave, and the guests go on.
    fn can_leave(&self) -> bool;
}

/// Why a terminal is not connected any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The machine has ended.
    Ended,
    /// The user has left it.
    Left,
    /// [`Stop::request`] was called.
    Stopped,
}

impl Guests for Arc<Hub> {
    fn open(&self, guest: &str) -> Result<Console, String> {
        self.find(guest).and_then(|number| Hub::open(self, number)).ok_or_else(|| monitor::no_guest(self, guest))
    }

    fn command(&self, current: &str, line: &str) -> String {
        monitor::command(self, self.find(current).unwrap_or_default(), line)
    }

    fn can_leave(&self) -> bool {
        false
    }
}

/// Connects standard input and output with a guest's console. `is_terminal`: both are a terminal in [`RawMode`].
///
/// # Errors
///
/// There is no such guest; the line says which there are.
pub fn connect(guests: &dyn Guests, first: &str, is_terminal: bool, stop: &Stop) -> Result<End, String> {
    let (sender, events) = mpsc::sync_channel(EVENTS);
    let mut shown = Shown::open(guests, first, 0, &sender)?;
    read_typed(sender.clone());
    let mut keys = Keys::default();
    loop {
        let event = match events.recv_timeout(POLL) {
            _ if stop.is_requested() => return Ok(End::Stopped),
            Ok(event) => event,
            // The sender is kept here, so there always is one.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => continue,
        };
        let acts = match event {
            Event::Output(number, _) | Event::End(number) if number != shown.number => continue,
            Event::End(_) => return Ok(End::Ended),
            Event::Output(_, bytes) => {
                write(&bytes);
                continue;
            }
            Event::Typed(bytes) if is_terminal => keys.take(&bytes),
            Event::Typed(bytes) => vec![Act::Give(bytes)],
        };
        for act in acts {
            match act {
                // If the machine has ended, its output's end says so.
                Act::Give(bytes) => _ = shown.input.write_all(&bytes),
                Act::Echo(text) => write(text.as_bytes()),
                Act::Open => {
                    shown.hold.set(true);
                    write(format!("\r\n{WELCOME}\r\n{PROMPT}").as_bytes());
                }
                Act::Close => {
                    write(b"\r\n");
                    shown.hold.set(false);
                }
                Act::Line(line) => match line.split_whitespace().collect::<Vec<_>>()[..] {
                    ["leave"] if guests.can_leave() => return Ok(End::Left),
                    ["attach", name] => match Shown::open(guests, name, shown.number + 1, &sender) {
                        Ok(other) => {
                            // What the other one has to show waits for the end of the monitor too.
                            other.hold.set(true);
                            say(&format!("This is the console of {name}.\n"));
                            shown = other;
                        }
                        Err(why) => say(&why),
                    },
                    ["quit"] => {
                        // The last output, and the end, are not held up by a monitor that nothing is left for.
                        write(guests.command(&shown.guest, &line).replace('\n', "\r\n").as_bytes());
                        keys = Keys::default();
                        shown.hold.set(false);
                    }
                    _ => say(&guests.command(&shown.guest, &line)),
                },
            }
        }
    }
}

const POLL: Duration = Duration::from_millis(20);
/// Events that wait. Their senders wait then.
const EVENTS: usize = 16;
/// Ctrl-].
const ESCAPE: u8 = 0x1d;
const PROMPT: &str = "twofold> ";
const WELCOME: &str = "The monitor: `help` has the commands, an empty line returns to the console.";

enum Event {
    /// Of the console of this number.
    Output(usize, Vec<u8>),
    End(usize),
    Typed(Vec<u8>),
}

/// The console that is shown.
struct Shown {
    guest: String,
    number: usize,
    input: Box<dyn Write + Send>,
    hold: Arc<Hold>,
}

/// Holds output back.
#[derive(Default)]
struct Hold {
    holds: Mutex<bool>,
    changed: Condvar,
}

impl Shown {
    /// Opens a console, and shows it until its end, or until another one is shown.
    fn open(guests: &dyn Guests, guest: &str, number: usize, events: &SyncSender<Event>) -> Result<Self, String> {
        let Console { mut output, input } = guests.open(guest)?;
        let (hold, events) = (Arc::<Hold>::default(), events.clone());
        let theirs = Arc::clone(&hold);
        thread::spawn(move || {
            let mut buffer = vec![0; 4096];
            loop {
                let count = output.read(&mut buffer).unwrap_or(0);
                if count != 0 {
                    theirs.wait();
                }
                let event =
                    if count == 0 { Event::End(number) } else { Event::Output(number, buffer[..count].to_vec()) };
                // The hub's reader goes with this thread.
                if events.send(event).is_err() || count == 0 || Arc::strong_count(&theirs) == 1 {
                    return;
                }
            }
        });
        Ok(Self { guest: guest.to_owned(), number, input, hold })
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.hold.set(false);
    }
}

impl Hold {
    fn set(&self, holds: bool) {
        *self.holds.lock().unwrap_or_else(PoisonError::into_inner) = holds;
        self.changed.notify_all();
    }

    fn wait(&self) {
        let mut holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        while *holds {
            holds = self.changed.wait(holds).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Reads standard input to its end, in a thread that may wait for it when the process ends.
fn read_typed(events: SyncSender<Event>) {
    thread::spawn(move || {
        let mut buffer = [0; 1024];
        while let Ok(count @ 1..) = io::stdin().read(&mut buffer) {
            if events.send(Event::Typed(buffer[..count].to_vec())).is_err() {
                return;
            }
        }
    });
}

/// The terminal may be closed; the signal that says so ends the run.
fn write(bytes: &[u8]) {
    let mut output = io::stdout().lock();
    let _ = output.write_all(bytes).and_then(|()| output.flush());
}

/// An answer of the monitor, and the next prompt.
fn say(text: &str) {
    write(format!("{}{PROMPT}", text.replace('\n', "\r\n")).as_bytes());
}

/// What the keys of a terminal do.
#[derive(Debug, Default)]
struct Keys {
    /// The monitor's line, while it is open.
    line: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum Act {
    Give(Vec<u8>),
    Echo(String),
    Open,
    Close,
    Line(String),
}

impl Keys {
    fn take(&mut self, bytes: &[u8]) -> Vec<Act> {
        let mut acts = Vec::new();
        for &byte in bytes {
            let Some(line) = &mut self.line else {
                match (byte, acts.last_mut()) {
                    (ESCAPE, _) => {
                        self.line = Some(String::new());
                        acts.push(Act::Open);
                    }
                    (_, Some(Act::Give(bytes))) => bytes.push(byte),
                    _ => acts.push(Act::Give(vec![byte])),
                }
                continue;
            };
            match byte {
                ESCAPE if line.is_empty() => {
                    self.line = None;
                    acts.extend([Act::Close, Act::Give(vec![ESCAPE])]);
                }
                b'\r' | b'\n' if line.trim().is_empty() => {
                    self.line = None;
                    acts.push(Act::Close);
                }
                b'\r' | b'\n' => acts.extend([Act::Echo("\r\n".to_owned()), Act::Line(std::mem::take(line))]),
                // Backspace.
                0x7f | 0x08 if line.pop().is_some() => acts.push(Act::Echo("\x08 \x08".to_owned())),
                // Ctrl-C, Ctrl-D and Ctrl-U give the line up.
                0x03 | 0x04 | 0x15 => {
                    self.line = None;
                    acts.push(Act::Close);
                }
                b' '..=b'~' if line.len() < LINE_MAX => {
                    line.push(byte.into());
                    acts.push(Act::Echo(char::from(byte).to_string()));
                }
                _ => {}
            }
        }
        acts
    }
}

const LINE_MAX: usize = 120;

/// The terminal gives each key as it is typed, while this lives.
#[derive(Debug)]
pub struct RawMode(());

/// The settings to restore.
static SAVED: Mutex<Option<Termios>> = Mutex::new(None);

impl RawMode {
    /// Begins it.
    ///
    /// # Errors
    ///
    /// Standard input is no terminal, or the system refuses.
    pub fn begin() -> io::Result<Self> {
        static HOOK: Once = Once::new();
        let saved = tcgetattr(io::stdin())?;
        let mut raw = saved.clone();
        raw.make_raw();
        // A line end of ours still begins a line.
        raw.output_modes = saved.output_modes;
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                before(panic);
            }));
        });
        *SAVED.lock().unwrap_or_else(PoisonError::into_inner) = Some(saved);
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self(()))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal's settings, once.
pub fn restore() {
    // Not a lock that a panic of its holder could keep for ever.
    let saved = SAVED.try_lock().ok().and_then(|mut saved| saved.take());
    if let Some(saved) = saved {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &saved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn echo(text: &str) -> Act {
        Act::Echo(text.to_owned())
    }

    #[test]
    fn keys_go_to_the_guest_but_the_escape() {
        let mut keys = Keys::default();
        assert_eq!(keys.take(b"ls\r\x03\x01"), [Act::Give(b"ls\r\x03\x01".to_vec())]);
        let acts = keys.take(b"a\x1dx\x7fst\r\rb");
        let line =
            [echo("s"), echo("t"), echo("\r\n"), Act::Line("st".to_owned()), Act::Close, Act::Give(b"b".to_vec())];
        let first = [Act::Give(b"a".to_vec()), Act::Open, echo("x"), echo("\x08 \x08")];
        assert_eq!(acts, first.into_iter().chain(line).collect::<Vec<_>>());
        // Twice is one for the guest.
        assert_eq!(keys.take(b"\x1d\x1dc"), [Act::Open, Act::Close, Act::Give(b"\x1dc".to_vec())]);
        for end in [3, 4, 0x15] {
            let given = [Act::Open, echo("q"), Act::Close, Act::Give(b"d".to_vec())];
            assert_eq!(keys.take(&[0x1d, b'q', end, b'd']), given);
        }
        // Keys that are no text, and too much of it.
        let long = keys.take(&[&b"\x1d\x1b\x09\xff"[..], &[b'x'; 500]].concat());
        assert_eq!(long.len(), 1 + LINE_MAX);
    }
}
