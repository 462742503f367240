// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Results as they are read: [`text`] for a terminal, [`html`] for a browser, [`csv`] for a spreadsheet, [`tap`] for who counts
//! passed and failed checks.
//!
//! Invariant: each is made of [`Results`] alone, so a file that was read again gives what the run itself gave.

mod csv;
mod figures;
mod html;
pub(crate) mod page;
pub(crate) mod plot;
pub mod section;
mod tap;
mod text;

#[cfg(test)]
pub(crate) mod example;

use std::path::Path;

pub use csv::csv;
pub use html::html;
pub use tap::{tap, tap_skipped};
pub use text::text;

use crate::output;
use crate::results::Results;

/// Writes the page to `path`.
///
/// # Errors
///
/// The file cannot be written; then there is none, or the one before. Results that cannot be drawn.
pub fn write_html(path: &Path, results: &Results) -> anyhow::Result<()> {
    output::file(path, &html(results)?)
}

/// Writes a line for each run to `path`.
///
/// # Errors
///
/// As [`write_html`].
pub fn write_csv(path: &Path, results: &Results) -> anyhow::Result<()> {
    output::file(path, &csv(results)?)
}
