// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ctrl-C: the program ends at the next point at which nothing is half done.

use std::sync::OnceLock;

/// The exit status after a signal: 128 plus the number of SIGINT.
pub const INTERRUPTED: u8 = 130;

/// A request that the program end. It is cheap to clone; all of a process are the same.
#[derive(Clone, Debug)]
pub struct Stop(twofold_launch::Stop);

impl Stop {
    /// From now on, Ctrl-C and a signal that asks the process to end set the request.
    ///
    /// # Errors
    ///
    /// An error is returned if the system cannot install the handler.
    pub fn on_signal() -> anyhow::Result<Self> {
        static STOP: OnceLock<Stop> = OnceLock::new();
        if let Some(stop) = STOP.get() {
            return Ok(stop.clone());
        }
        let stop = Self(twofold_launch::Stop::default());
        let requested = stop.clone();
        ctrlc::set_handler(move || requested.0.request())?;
        Ok(STOP.get_or_init(|| stop).clone())
    }

    /// A request that never comes.
    #[cfg(test)]
    pub fn never() -> Self {
        Self(twofold_launch::Stop::default())
    }

    /// Returns whether the request has come.
    pub fn is_requested(&self) -> bool {
        self.0.is_requested()
    }

    /// Returns the same request, for an experiment that runs in QEMU.
    pub fn of_launch(&self) -> twofold_launch::Stop {
        self.0.clone()
    }
}
