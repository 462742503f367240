// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The keys that are typed on the screen of `twofold stat`.
//!
//! crossterm's own reader never returns from a terminal that is gone: it reads the same end again and again. So the terminal
//! is polled and read here, and crossterm is for the screen alone.
//!
//! Invariant: a terminal that is gone is an event, once, and no error.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};

/// What was typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// To the guest above.
    Up,
    /// To the guest below.
    Down,
    /// The user leaves the screen, or the terminal is gone.
    Leave,
}

/// Waits for keys of the terminal `from`, which is in raw mode, for this long at most.
///
/// # Errors
///
/// The terminal cannot be polled or read, and is not gone.
pub fn wait(from: impl AsFd, most: Duration) -> io::Result<Vec<Key>> {
    let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
    match poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&most)) {
        Ok(0) | Err(Errno::INTR) => return Ok(Vec::new()),
        Ok(_) => {}
        Err(why) => return Err(why.into()),
    }
    let mut bytes = [0; 64];
    match read(&from, &mut bytes) {
        Ok(0) => Ok(vec![Key::Leave]),
        Ok(count) => Ok(keys(&bytes[..count])),
        Err(Errno::INTR | Errno::AGAIN) => Ok(Vec::new()),
        Err(why) => Err(why.into()),
    }
}

/// The keys that have a meaning. An arrow is one sequence of bytes, which a terminal writes at once; an Esc alone leaves.
fn keys(mut bytes: &[u8]) -> Vec<Key> {
    const CTRL_C: u8 = 3;
    const CTRL_D: u8 = 4;
    let mut keys = Vec::new();
    while let Some((first, rest)) = bytes.split_first() {
        bytes = rest;
        match *first {
            b'q' | CTRL_C | CTRL_D => keys.push(Key::Leave),
            ESCAPE => match rest {
                [b'[' | b'O', sequence @ ..] => {
                    let end = sequence.iter().position(|byte| byte.is_ascii_alphabetic() || *byte == b'~');
                    let (sequence, rest) = sequence.split_at(end.map_or(sequence.len(), |end| end + 1));
                    bytes = rest;
                    match sequence {
                        b"A" => keys.push(Key::Up),
                        b"B" => keys.push(Key::Down),
                        _ => {}
                    }
                }
                [] | [ESCAPE, ..] => keys.push(Key::Leave),
                // A character with Alt.
                [_, rest @ ..] => bytes = rest,
            },
            _ => {}
        }
    }
    keys
}

const ESCAPE: u8 = 0x1b;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;
    use std::os::unix::ffi::OsStrExt;

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

    #[test]
    fn keys_have_their_meaning() {
        use Key::{Down, Leave, Up};
        for (bytes, expected) in [
            (&b"q"[..], &[Leave][..]),
            (b"\x03", &[Leave]),
            (b"\x04", &[Leave]),
            (b"\x1b", &[Leave]),
            (b"\x1b\x1b", &[Leave, Leave]),
            (b"\x1b[A\x1bOBx\x1b[B", &[Up, Down, Down]),
            // Page up, an arrow with Shift, a character with Alt, half a sequence.
            (b"\x1b[5~\x1b[1;2A\x1bq\x1b[", &[]),
            (b"ABC\r\n\xff", &[]),
        ] {
            assert_eq!(keys(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn a_terminal_that_is_gone_is_left() {
        let mut user = File::from(openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap());
        grantpt(&user).unwrap();
        unlockpt(&user).unwrap();
        let name = ptsname(&user, Vec::new()).unwrap();
        let terminal = File::open(std::ffi::OsStr::from_bytes(name.to_bytes())).unwrap();
        let mut raw = tcgetattr(&terminal).unwrap();
        raw.make_raw();
        tcsetattr(&terminal, OptionalActions::Now, &raw).unwrap();
        assert_eq!(wait(&terminal, Duration::from_millis(1)).unwrap(), []);
        user.write_all(b"\x1b[A").unwrap();
        assert_eq!(wait(&terminal, Duration::from_secs(60)).unwrap(), [Key::Up]);
        drop(user);
        assert_eq!(wait(&terminal, Duration::from_secs(60)).unwrap(), [Key::Leave]);
    }
}
