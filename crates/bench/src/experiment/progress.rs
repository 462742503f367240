// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How far an experiment is, on a terminal. Elsewhere nothing is drawn.

use indicatif::ProgressBar;

use crate::estimate;

/// A bar, which is gone when it is dropped.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// Of so many steps.
    ///
    /// # Errors
    ///
    /// The style of the bar, which is fixed, is none.
    pub fn new(steps: u64) -> anyhow::Result<Self> {
        let style = estimate::style("{bar:30} {pos}/{len} {msg} ({elapsed} gone{left})")?;
        Ok(Self(ProgressBar::new(steps).with_style(style)))
    }

    /// What is done now.
    pub fn doing(&self, what: impl Into<String>) {
        self.0.set_message(what.into());
        self.0.tick();
    }

    /// A step is done.
    pub fn done(&self) {
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
