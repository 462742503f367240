// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reports: [`text()`] for a terminal, in about twelve lines or with every row; [`html()`] for a browser; [`csv()`] for a
//! spreadsheet; [`tap()`] for a harness that counts passed and failed checks.
//!
//! Invariant: each report is made from [`Results`] alone. So results read from a file give the same report as the run
//! itself.

mod csv;
pub(crate) mod explained;
mod figures;
mod html;
mod modes;
pub(crate) mod page;
pub(crate) mod plot;
pub(crate) mod published;
pub mod section;
mod summary;
pub(crate) mod table;
mod tap;
mod text;
pub(crate) mod words;

#[cfg(test)]
pub(crate) mod example;

use std::path::Path;

pub use csv::csv;
pub use html::html;
pub use tap::{tap, tap_skipped};
pub use text::{Detail, text};

use crate::output;
use crate::results::Results;

/// Writes the page to `path`.
///
/// # Errors
///
/// An error is returned if the file cannot be written, or the results cannot be drawn. A file that was there before is
/// kept.
pub fn write_html(path: &Path, results: &Results) -> anyhow::Result<()> {
    output::file(path, &html(results)?)
}

/// Writes a line for each run of each figure to `path`.
///
/// # Errors
///
/// The same as [`write_html`].
pub fn write_csv(path: &Path, results: &Results) -> anyhow::Result<()> {
    output::file(path, &csv(results)?)
}
