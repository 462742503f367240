// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ctrl-C: what runs ends at the next place where nothing is half done.

use std::sync::OnceLock;

/// Whether somebody wants the program to end. Cheap to clone; all of a process are one.
#[derive(Clone, Debug)]
pub struct Stop(twofold_launch::Stop);

impl Stop {
    /// From now on Ctrl-C, and what asks a process to end, is a request.
    ///
    /// # Errors
    ///
    /// The system has no handler for us.
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

    /// One that nobody asks for.
    #[cfg(test)]
    pub fn never() -> Self {
        Self(twofold_launch::Stop::default())
    }

    /// Whether it was asked for.
    pub fn is_requested(&self) -> bool {
        self.0.is_requested()
    }

    /// The same for what runs in QEMU.
    pub fn of_launch(&self) -> twofold_launch::Stop {
        self.0.clone()
    }
}
