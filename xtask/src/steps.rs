// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The steps of a command: one line each, with the time it took.

use std::time::Instant;

use twofold_launch::Stop;

use crate::output;

/// Prints a line for each step when it is done.
#[derive(Debug)]
pub struct Steps {
    stop: Stop,
}

impl Steps {
    /// Steps that end when `stop` is requested.
    pub fn new(stop: Stop) -> Self {
        Self { stop }
    }

    /// Does one step; `work` gives its result and a few words on it. An error is the step's name and why.
    pub fn step<T>(&self, name: &str, work: impl FnOnce() -> anyhow::Result<(T, String)>) -> anyhow::Result<T> {
        let start = Instant::now();
        let result = work();
        // A signal may have ended the step's own subprocess: then that is no failure of the step.
        if self.stop.is_requested() {
            anyhow::bail!("stopped");
        }
        let (value, words) = result?;
        output::line(format!("{name:<12} {:>6.1} s  {words}", start.elapsed().as_secs_f64()).trim_end())?;
        Ok(value)
    }
}
