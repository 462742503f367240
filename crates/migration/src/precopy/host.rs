// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The embedder's side of pre-copy.

use alloc::string::String;
use alloc::vec::Vec;

use crate::commit::Embedder;
use crate::plan::{Plan, Throttle};
use crate::section::Section;

/// The source's embedder. [`Embedder::run`] lets the stopped guest go on.
pub trait Host: Embedder {
    /// Stops the guest. When this returns, no vCPU is in the guest, and no device writes to its memory.
    fn stop(&mut self);

    /// Slows vCPUs down, or lets them run at full speed again: [`Throttle::slowed`] has a number for each vCPU. If the
    /// tracker cannot tell vCPUs apart ([`written`](Self::written)), it has one number for all.
    fn throttle(&mut self, throttle: &Throttle);

    /// Adds to each vCPU's number the pages that it has begun to write since the last call: its write faults, if the
    /// tracker has writes fault. Returns false if the tracker cannot tell vCPUs apart.
    fn written(&mut self, by_vcpu: &mut [u64]) -> bool {
        let _ = by_vcpu;
        false
    }

    /// Returns what can be sent while the guest runs, such as the images that a reset needs.
    ///
    /// # Errors
    ///
    /// Why there is none. The guest goes on.
    fn images(&mut self) -> Result<Vec<Section>, String> {
        Ok(Vec::new())
    }

    /// Returns the state of vCPUs and devices of the stopped guest. It does not write to the guest's memory.
    ///
    /// # Errors
    ///
    /// Why there is none. The guest goes on.
    fn state(&mut self) -> Result<Vec<Section>, String>;

    /// Called after each round of the running guest.
    fn progress(&mut self, round: &Progress<'_>) {
        let _ = round;
    }
}

/// What a round did, and what follows.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The round's number, from 1.
    pub round: u64,
    /// The pages that it sent.
    pub pages: u64,
    /// How long it took.
    pub time: core::time::Duration,
    /// The pages that the guest has written meanwhile.
    pub left: u64,
    /// The next step, with the forecast from here.
    pub plan: &'a Plan,
}
