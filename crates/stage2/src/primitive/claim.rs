// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the engine states about its own barriers and invalidations.

use crate::{Ipa, IpaRange, Level};

/// A fact that the engine relies on once its barriers and invalidations are complete. A trace contains it, so that a
/// checker knows by when they had to be complete.
#[derive(Clone, Debug)]
pub enum Claim {
    /// Hardware walks see each entry that this CPU made before.
    Visible,
    /// No TLB holds anything that this CPU removed before at these addresses.
    Flushed {
        /// The addresses.
        range: IpaRange,
        /// `VTTBR_EL2` of the guest.
        vttbr: u64,
    },
    /// The TLB of this CPU holds nothing for this address that is older than the current leaf.
    FlushedHere {
        /// The address.
        ipa: Ipa,
        /// The level of the leaf; `None` for all levels, and for tables too.
        level: Option<Level>,
        /// `VTTBR_EL2` of the guest.
        vttbr: u64,
    },
}
