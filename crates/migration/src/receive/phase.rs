// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The barriers to which each stream is read before any stream is read on.

use crate::commit::Ownership;

/// Where a stream's part ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The first round's begin: the images have come.
    Begun,
    /// A round's end.
    Round { number: u64, stopped: bool, pages: u64 },
    /// The stream's end.
    End(Ownership),
}

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Self::Begun => "the first round's begin",
            Self::Round { stopped: false, .. } => "the end of a round",
            Self::Round { stopped: true, .. } => "the end of the stopped guest's round",
            Self::End(_) => "its end",
        }
    }
}
