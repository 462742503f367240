// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls of the guest that were refused, and how much of that goes to the control channel.
//!
//! Invariant: however many calls a guest makes, at most [`LISTED`] lines and one more are written. The control channel is
//! a file on the host, which a guest must not be able to fill.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::control;

/// How many refusals are written with their reasons.
pub const LISTED: u64 = 8;

/// Counts the refused calls of all vCPUs.
#[derive(Default)]
pub struct Refusals(AtomicU64);

impl Refusals {
    /// A call was refused: writes the reason if it is one of the first, else only counts.
    pub fn add(&self, why: fmt::Arguments) {
        if self.0.fetch_add(1, Ordering::Relaxed) < LISTED {
            control::log(why);
        }
    }

    /// Writes how many were only counted, if there are any. For the end of the guest.
    pub fn report(&self) {
        let more = self.0.load(Ordering::Relaxed).saturating_sub(LISTED);
        if more != 0 {
            control::log(format_args!("{more} more calls of the guest were refused; their reasons are not listed"));
        }
    }
}
