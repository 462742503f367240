// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A fault of the guest, as data.

use twofold_stage2::Ipa;
use twofold_stage2::fault::{AccessKind, FaultKind};

/// A stage-2 fault of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestFault {
    /// The guest-physical address.
    pub ipa: Ipa,
    /// Why the access was stopped.
    pub kind: FaultKind,
    /// The access that the guest made.
    pub access: AccessKind,
}
