// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SIGINT, SIGTERM and SIGHUP end a command in order. One that comes later ends it at once.
//!
//! A terminal that is closed sends SIGHUP twice: its shell does, and the system. So what comes within [`TOGETHER`] of the first
//! signal is that signal still.
//!
//! Invariant: the terminal has its settings again in both cases.

use std::time::{Duration, Instant};

use twofold_launch::{Stop, terminal};

/// 128 plus the number of SIGINT, as shells count.
pub const INTERRUPTED: u8 = 130;

/// Signals within this time are one.
const TOGETHER: Duration = Duration::from_secs(1);

/// Has signals request this stop.
pub fn stop() -> anyhow::Result<Stop> {
    let stop = Stop::default();
    let on_signal = stop.clone();
    let mut first: Option<Instant> = None;
    ctrlc::set_handler(move || {
        if first.is_some_and(|first| first.elapsed() > TOGETHER) {
            // What the first signal started may hang.
            terminal::restore();
            std::process::exit(INTERRUPTED.into());
        }
        first.get_or_insert_with(Instant::now);
        on_signal.request();
    })?;
    Ok(stop)
}
