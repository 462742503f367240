// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a model refuses a state.

use thiserror::Error;

/// Why the bytes are no state of a model. The model that refuses them is not made.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateError {
    /// The number of bytes is wrong.
    #[error("a state of {found} bytes, and this model's has {wanted}")]
    Length {
        /// The bytes there are.
        found: usize,
        /// The bytes of a state.
        wanted: usize,
    },
    /// It is of another version of the model.
    #[error("a state of version {0}")]
    Version(u16),
    /// No device could have reached this.
    #[error("no device can have this state: {0}")]
    Impossible(&'static str),
}
