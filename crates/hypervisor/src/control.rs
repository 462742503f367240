// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lines for the launcher (see [`twofold_abi::control`]): by the framed [`channel`], else by semihosting, else not at all.
//!
//! Invariant: a line leaves in one frame or in one semihosting call, so lines of several CPUs never mix. A line has no end
//! inside.

use core::ffi::CStr;
use core::fmt::{self, Write};

use arrayvec::ArrayString;
use twofold_abi::control;

use crate::{channel, semihosting};

/// Writes a `twofold:log` line.
#[macro_export]
macro_rules! log {
    ($($argument:tt)*) => { $crate::control::log(format_args!($($argument)*)) };
}

/// Writes a `twofold:error` line: why the guest could not be started.
#[macro_export]
macro_rules! error {
    ($($argument:tt)*) => { $crate::control::error(format_args!($($argument)*)) };
}

/// Writes a note for people; [`log!`](crate::log) is shorter.
pub fn log(text: fmt::Arguments) {
    line(control::LOG, text);
}

/// Writes why the guest could not be started; [`error!`](crate::error) is shorter.
pub fn error(text: fmt::Arguments) {
    line(control::ERROR, text);
}

/// Writes one figure. `key` has dotted parts of `[a-z0-9_]`.
pub fn stat(key: &str, value: u64) {
    line(control::STAT, format_args!("{key} {value}"));
}

/// Writes how it ended. Only [`exit`] follows.
pub fn end(how: &str) {
    line(control::END, format_args!("{how}"));
}

/// Writes the last line. False: it did not go by the framed channel.
pub fn exit(status: i32) -> bool {
    write(control::EXIT, format_args!("{status}"))
}

/// Writes a line that starts with `word`, one of the constants of [`twofold_abi::control`]. A line is cut off at about
/// 1,000 bytes.
pub fn line(word: &str, text: fmt::Arguments) {
    let _ = write(word, text);
}

/// Returns whether the line went by the framed channel.
fn write(word: &str, text: fmt::Arguments) -> bool {
    let mut line = Line(ArrayString::new());
    // A line that is too long is cut off.
    let _ = write!(line, "{word} {text}");
    channel::line(&line.0) || {
        semihosting::write(line.terminated());
        false
    }
}

/// A line, and room for its end.
struct Line(ArrayString<1024>);

impl Line {
    fn terminated(&mut self) -> &CStr {
        self.0.push_str("\n\0");
        // A zero in the text ends the line there.
        CStr::from_bytes_until_nul(self.0.as_bytes()).expect("the line was just terminated")
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            let character = if matches!(character, '\n' | '\r') { ' ' } else { character };
            if self.0.remaining_capacity() < 2 + character.len_utf8() {
                return Err(fmt::Error);
            }
            self.0.push(character);
        }
        Ok(())
    }
}
