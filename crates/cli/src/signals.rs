// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SIGINT, SIGTERM and SIGHUP end a command in order. A second one ends it at once.
//!
//! Invariant: the terminal has its settings again in both cases.

use twofold_launch::{Stop, terminal};

/// 128 plus the number of SIGINT, as shells count.
pub const INTERRUPTED: u8 = 130;

/// Has signals request this stop.
pub fn stop() -> anyhow::Result<Stop> {
    let stop = Stop::default();
    let on_signal = stop.clone();
    ctrlc::set_handler(move || {
        if on_signal.is_requested() {
            // What the first signal started may hang.
            terminal::restore();
            std::process::exit(INTERRUPTED.into());
        }
        on_signal.request();
    })?;
    Ok(stop)
}
