// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What of a vCPU's asynchronous page faults a migration moves.
//!
//! Requests stay behind: the target's store has none of them. So the target wakes every task that waits for a token,
//! and each task repeats its access. A halt stays behind, too: the guest's PC is still at the access.

use twofold_abi::async_fault::{NO_TOKEN, flags};
use twofold_stage2::Ipa;

use super::area::{Area, AreaMemory};
use super::vcpu::{Enabled, Mode, VcpuFaults};

/// The state that moves. Plain data: the stream's format is the embedder's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The address of the area and the flags of [`ENABLE`](twofold_abi::async_fault::ENABLE), if announcements are
    /// enabled.
    pub enabled: Option<(Ipa, u64)>,
    /// Announcements so far.
    pub sequence: u64,
    /// The token in the area that the guest has not acknowledged, or 0.
    pub unacknowledged: u32,
    /// Whether the target delivers wake-all: tokens are out.
    pub wake_all: bool,
}

/// Why a snapshot was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The guest has announcements enabled, and this machine has none.
    #[error("the guest uses asynchronous page faults (area at {area}), and this machine does not offer them")]
    NotOffered {
        /// The address of its area.
        area: Ipa,
    },
    /// No area can be at that address.
    #[error("the area of asynchronous page faults at {area} is not aligned to 64 bytes, or is not in RAM")]
    Area {
        /// The address.
        area: Ipa,
    },
    /// A flag is of a later version.
    #[error("the asynchronous page faults have the flags {flags:#x}, and this version knows only {:#x}", flags::ALL)]
    Flags {
        /// The flags.
        flags: u64,
    },
}

impl<M: AreaMemory> VcpuFaults<M> {
    /// The state to move. The vCPU is not in the guest. Nothing changes here, so this side may go on.
    pub fn snapshot(&self) -> Snapshot {
        let Some(Enabled { area, kernel }) = &self.enabled else {
            return Snapshot { sequence: self.sequence, ..Snapshot::default() };
        };
        let is_out = |token| token != NO_TOKEN && token != self.unacknowledged;
        Snapshot {
            enabled: Some((area.ipa(), if *kernel { flags::KERNEL } else { 0 })),
            sequence: self.sequence,
            unacknowledged: self.unacknowledged,
            wake_all: self.wake_all || self.requests.iter().any(|(_, request)| is_out(request.token)),
        }
    }

    /// The vCPU at the target. Its arrivals are new. The guest's memory slots are there already; their pages need not
    /// be.
    ///
    /// # Errors
    ///
    /// [`Refused`] if the snapshot does not fit this machine.
    pub fn restore(mode: Mode, memory: &M, snapshot: &Snapshot) -> Result<Self, Refused> {
        let mut faults = Self::new(mode);
        faults.sequence = snapshot.sequence;
        let Some((area, flags)) = snapshot.enabled else { return Ok(faults) };
        if mode != Mode::Pv {
            return Err(Refused::NotOffered { area });
        }
        if flags & !flags::ALL != 0 {
            return Err(Refused::Flags { flags });
        }
        let checked = Area::new(area, memory).ok_or(Refused::Area { area })?;
        faults.enabled = Some(Enabled { area: checked, kernel: flags & flags::KERNEL != 0 });
        faults.unacknowledged = snapshot.unacknowledged;
        faults.wake_all = snapshot.wake_all;
        Ok(faults)
    }
}
