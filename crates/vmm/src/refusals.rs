// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls of the guest that were refused, and the limit on their lines in the control channel.
//!
//! Invariant: however many calls a guest makes, at most [`LISTED`] + 1 lines are written. The control channel is a file
//! on the host, which a guest must not be able to fill.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

/// The number of refusals that are written with their reasons.
pub const LISTED: u64 = 8;

/// Counts the refused calls of all vCPUs.
#[derive(Default)]
pub struct Refusals(AtomicU64);

impl Refusals {
    /// Records a refused call: writes the reason of one of the first to `log`, and only counts the others.
    pub fn add(&self, why: fmt::Arguments, log: impl FnOnce(fmt::Arguments)) {
        if self.0.fetch_add(1, Ordering::Relaxed) < LISTED {
            log(why);
        }
    }

    /// Writes to `log` how many refusals were only counted, if there are any. Called at the end of the guest.
    pub fn report(&self, log: impl FnOnce(fmt::Arguments)) {
        let more = self.0.load(Ordering::Relaxed).saturating_sub(LISTED);
        if more != 0 {
            log(format_args!("{more} more calls of the guest were refused; their reasons are not listed"));
        }
    }
}
