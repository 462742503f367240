// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An experiment's progress bar. It is drawn on a terminal only.

use indicatif::ProgressBar;

use crate::estimate;

/// A progress bar. It disappears when dropped.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// A bar of `steps` steps.
    ///
    /// # Errors
    ///
    /// The bar's fixed style is invalid.
    pub fn new(steps: u64) -> anyhow::Result<Self> {
        let style = estimate::style("{bar:30} {pos}/{len} {msg} ({elapsed} gone{left})")?;
        Ok(Self(ProgressBar::new(steps).with_style(style)))
    }

    /// Shows the present operation.
    pub fn doing(&self, what: impl Into<String>) {
        self.0.set_message(what.into());
        self.0.tick();
    }

    /// Advances the bar by one step.
    pub fn done(&self) {
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
