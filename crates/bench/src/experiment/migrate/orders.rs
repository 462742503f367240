// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the bench says to the target's process on its standard input, and what that answers on its standard output: JSON,
//! one message a line.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::compare::Compared;
use super::meter::Sample;
use super::settings::{How, Settings};
use crate::experiment::host_clock::Moment;

/// A message of the bench.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Order {
    /// The first: what both know.
    Begin(Settings),
    /// Receive a guest.
    Receive(Move),
    /// Send the guest that is there.
    Send(Move),
}

/// A message of the target's process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Report {
    /// It is ready for orders.
    Ready,
    /// It listens for the connections of a move.
    Listening,
    /// It has sent the guest.
    Sent(Sent),
    /// It has received the guest.
    Received(Received),
    /// It could not.
    Failed(String),
}

/// One move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// Its number, from 0.
    pub number: u64,
    /// How: a tracker, or post-copy.
    pub how: String,
    /// A control: a page of the guest that is sent as zeroes.
    pub withheld: Option<u64>,
    /// A control: the target ends after this many bytes of a stream.
    pub ends_after: Option<u64>,
}

/// What the source saw of a move.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sent {
    /// When the migration began.
    pub begin: Moment,
    /// When the source began to stop the guest.
    pub stop: Moment,
    /// All requests until the migration began.
    pub served: u64,
    /// Requests over time.
    pub samples: Vec<Sample>,
    /// Rounds while the guest ran.
    pub rounds: u64,
    /// Pages, each time that they were sent.
    pub pages: u64,
    /// Those that were sent after the switch.
    pub later: u64,
    /// Bytes of all streams.
    pub bytes: u64,
    /// The most that vCPUs were slowed down, in per mille.
    pub slowed: u16,
}

/// What the target saw of a move.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Received {
    /// When all vCPUs were in the guest.
    pub entered: Moment,
    /// When all pages were there.
    pub complete: Moment,
    /// How long the comparison of the memory took, before the first entry.
    pub judged: Duration,
    /// All requests until all pages were there.
    pub served: u64,
    /// Requests over time, from the first entry on.
    pub samples: Vec<Sample>,
    /// What was compared.
    pub compared: Compared,
    /// How often a vCPU has waited for an absent page.
    pub waited: u64,
}

impl Move {
    /// How it is done.
    ///
    /// # Errors
    ///
    /// There is no such way.
    pub fn how(&self) -> anyhow::Result<How> {
        How::find(&self.how).ok_or_else(|| anyhow::anyhow!("there is no way to move a guest `{}`", self.how))
    }
}
