// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a store fails.

/// Why a store could not do a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The device reports an error.
    #[error("error {code} of its device")]
    Device {
        /// The device's or the system's number for it.
        code: i32,
    },
    /// The content at the place is not what was written.
    #[error("the content is damaged")]
    Damaged,
    /// The store has ended: for a peer, the link is cut.
    #[error("the store has ended")]
    Ended,
}
