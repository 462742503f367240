// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The steps of a command: one line each, with its duration.

use std::time::Instant;

use twofold_launch::Stop;

use crate::output;

/// Prints a line for each completed step.
#[derive(Debug)]
pub struct Steps {
    stop: Stop,
}

impl Steps {
    /// Steps that end when `stop` is requested.
    pub fn new(stop: Stop) -> Self {
        Self { stop }
    }

    /// Runs one step. `work` returns the step's result and a short description of it.
    pub fn step<T>(&self, name: &str, work: impl FnOnce() -> anyhow::Result<(T, String)>) -> anyhow::Result<T> {
        let start = Instant::now();
        let result = work();
        // A signal may have ended the step's subprocess, which is not a failure of the step.
        if self.stop.is_requested() {
            anyhow::bail!("stopped");
        }
        let (value, words) = result?;
        output::line(format!("{name:<12} {:>6.1} s  {words}", start.elapsed().as_secs_f64()).trim_end())?;
        Ok(value)
    }
}
