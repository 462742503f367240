// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why an experiment failed.

use crate::mode;
use crate::vendor::Refused;

/// Why an experiment failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Mode(#[from] mode::Failure),
    #[error("{0}")]
    Refused(#[from] Refused),
    #[error("the log reports {reported} pages of 4 KiB, but there are only {pages}")]
    TooMany { reported: u64, pages: u64 },
}
