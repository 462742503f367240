// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ctrl-C: what runs ends at the next place where nothing is half done.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether somebody wants the program to end. Cheap to clone; all of a process are one.
#[derive(Clone, Debug)]
pub struct Stop(Arc<AtomicBool>);

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
        let stop = Self(Arc::new(AtomicBool::new(false)));
        let requested = stop.clone();
        ctrlc::set_handler(move || requested.0.store(true, Ordering::Relaxed))?;
        Ok(STOP.get_or_init(|| stop).clone())
    }

    /// One that nobody asks for.
    #[cfg(test)]
    pub fn never() -> Self {
        Self(Arc::new(AtomicBool::new(false)))
    }

    /// Whether it was asked for.
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
