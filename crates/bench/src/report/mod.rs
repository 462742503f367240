// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reports: [`text()`] for a terminal, in about twelve lines or with every row; a page for a browser and CSV for a
//! spreadsheet ([`Files`]); [`tap()`] for a harness that counts passed and failed checks.
//!
//! Invariant: each report is made from [`Results`](crate::results::Results) alone. So results read from a file give the
//! same report as the run itself.

mod csv;
pub(crate) mod explained;
mod figures;
mod files;
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

pub use files::{Files, write_csv, write_html};
pub use tap::{tap, tap_skipped};
pub use text::{Detail, text};
