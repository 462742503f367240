// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control channel: lines for the launcher, by semihosting (see [`twofold_abi::control`]).
//!
//! Invariant: a line leaves in one semihosting call, so lines of several CPUs never mix. No lock is held.

use core::ffi::CStr;
use core::fmt::{self, Write};

use twofold_abi::control;

use crate::semihosting;

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

/// Writes the last line.
pub fn end(how: &str) {
    line(control::END, format_args!("{how}"));
}

/// Writes a line that starts with `word`, one of the constants of [`twofold_abi::control`]. A line is cut off at about
/// 1,000 bytes.
pub fn line(word: &str, text: fmt::Arguments) {
    if !semihosting::is_enabled() {
        return;
    }
    let mut line = Line { bytes: [0; SIZE], used: 0 };
    let _ = write!(line, "{word} {text}");
    semihosting::write(line.finish());
}

const SIZE: usize = 1024;

struct Line {
    bytes: [u8; SIZE],
    used: usize,
}

impl Line {
    fn finish(&mut self) -> &CStr {
        self.bytes[self.used] = b'\n';
        self.bytes[self.used + 1] = 0;
        CStr::from_bytes_until_nul(&self.bytes).expect("the line was just terminated")
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = SIZE - 2 - self.used;
        let text = &text.as_bytes()[..text.len().min(room)];
        self.bytes[self.used..][..text.len()].copy_from_slice(text);
        self.used += text.len();
        Ok(())
    }
}
