// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The fast mode, for benches: each CPU has a plain TLB. Like real hardware, it reports no broken rule.
//!
//! # What a TLB holds
//!
//! A TLB is a direct-mapped array of 4 KiB pages, whatever the size of the leaf that maps them. With the guest's stage
//! 1 off, they are stage-2 entries: a TLBI by IPA removes the entries it names, and `VMALLE1` removes none. With stage
//! 1 on, they combine both stages: a TLBI by IPA need not remove them, and `VMALLE1`, which the engine issues after it,
//! removes all of them. A TLB holds the entries of one guest and one setting of its stage 1. A change of either empties
//! the TLB.
//!
//! An entry allows writes only if S2AP\[1\] was set when it was filled. So the first write after S2AP\[1\] is cleared
//! and the TLB invalidated walks the tables, and the walk finds DBM. The same holds for stage 1.
//!
//! # When an invalidation is complete
//!
//! A `DSB ISH` after a TLBI returns only when no CPU still uses an invalidated entry. A guest's access pays for that
//! neither a fence nor an atomic read-modify-write.
//!
//! An access:
//!
//! * A1: store its address to its CPU's `inside`. A compiler fence follows.
//! * A2: look the entry up.
//! * A3: do the access.
//! * A4: store 0 to `inside`, with release ordering. The next access may store its own address over it.
//!
//! An invalidation, after the tables were changed:
//!
//! * I1: increment the CPU's `epoch`.
//! * I2: clear the tags that the TLBI names.
//! * I3: at the DSB, execute a full barrier on every CPU that runs a thread of this process (`membarrier`).
//! * I4: for each of these CPUs, wait until `inside` is 0 or has changed.
//!
//! *No access by an old entry is under way after I4.* The thread of the access executes a full barrier during I3, or it
//! is not running, which is equivalent. If A1 precedes that barrier, I4 sees A1 or a later store to `inside`. If I4
//! sees A1, it waits for A4; if it sees a later store, it returns at once. In both cases release and acquire make A3
//! visible. If A1 follows the barrier, so does A2, and A2 finds the tag cleared.
//!
//! *No old entry comes back.* A miss runs inside an access too:
//!
//! * M1: as A1, followed by a full fence.
//! * M2: read `epoch`.
//! * M3: walk.
//! * M4: store the entry.
//! * M5: execute a full fence.
//! * M6: read `epoch` again; if it changed, clear the tag and start again.
//! * M7: as A4.
//!
//! A full fence also separates I1 from I2. So M6 sees the new count, or I2 sees the tag. If M2 reads the new count, M3
//! sees the changed tables. If M2 reads the old count, M3 may have walked the old tables. Then I2 or M6 removes the
//! entry, and I4 waits for M7.
//!
//! *No CPU is forgotten.* The invalidation skips CPUs that have another guest loaded. A CPU loads a guest as follows:
//!
//! * L1: empty its TLB.
//! * L2: store the guest it has loaded.
//! * L3: execute a full fence, before any walk.
//!
//! The invalidation has a full fence between the change of the tables and its read of what L2 stored. So the
//! invalidation sees L2, or the walks after L3 see the change.
//!
//! On a kernel without `membarrier`, an access executes a full fence between A1 and A2, and I3 is a full fence of the
//! invalidating thread. Then I4 sees A1, or A2 sees I2. An access costs several times as much.
//!
//! # What it does not model
//!
//! * A block, or a guest page of 16 or 64 KiB, takes one entry for each 4 KiB page that the guest uses. A real TLB has
//!   one entry for the whole.
//! * A walk costs the time of a walk in software.
//! * Cleaning a cache costs nothing, unless the machine is made with the host's caches ([`HostCaches`]).
//! * With stage 1 off, a flush costs the guest only the entries that it names. Real CPUs may drop more at `VMALLE1`.

mod caches;
mod cpu;
mod patience;
mod platform;
#[cfg(test)]
mod tests;
mod thread;
mod vcpu;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::thread::available_parallelism;

use rustix::thread::{MembarrierCommand, membarrier};
use twofold_stage2::Features;

use crate::arena::Arena;
use crate::tlbi::Reach;
pub use caches::HostCaches;
use cpu::Cpu;
pub use platform::FastPlatform;
pub use thread::this_cpu;
pub use vcpu::{FastVcpu, VcpuError};

/// CPUs and their memory.
#[derive(Debug)]
pub struct FastMachine {
    /// No other machine of this process has the same number.
    id: u64,
    arena: Arc<Arena>,
    features: Features,
    cpus: Box<[Arc<Cpu>]>,
    /// Whether the kernel executes barriers on other CPUs for this process.
    membarrier: bool,
    /// The host's caches, if cleaning uses them; `None`: cleaning does nothing.
    caches: Option<HostCaches>,
}

/// The number of vCPUs is 0 or too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{asked} vCPUs: this machine has {available} CPUs, and runs 1 to {most}; take {}", asked.clamp(&1, most))]
pub struct CpusError {
    /// The number that was asked for.
    pub asked: usize,
    /// The number of CPUs that this process may use.
    pub available: usize,
    /// The largest number that is allowed.
    pub most: usize,
}

impl CpusError {
    /// Checks that a machine here can have `asked` CPUs: 1 to 64, and at most 8 for each CPU of this host.
    ///
    /// # Errors
    ///
    /// `asked` is outside that range.
    pub fn check(asked: usize) -> Result<(), Self> {
        let available = available_parallelism().map_or(1, usize::from);
        Self::check_on(asked, available)
    }

    fn check_on(asked: usize, available: usize) -> Result<(), Self> {
        let most = MOST_CPUS.min(available.saturating_mul(8));
        if (1..=most).contains(&asked) { Ok(()) } else { Err(Self { asked, available, most }) }
    }
}

impl FastMachine {
    /// A machine with `cpus` CPUs of these features, over this memory. Cleaning a cache costs nothing.
    ///
    /// # Errors
    ///
    /// `cpus` is 0 or too large ([`CpusError::check`]).
    pub fn new(arena: Arc<Arena>, features: Features, cpus: usize) -> Result<Arc<Self>, CpusError> {
        Self::with_caches(arena, features, cpus, None)
    }

    /// As [`new`](Self::new), but each cleaning by the engine cleans the same lines of the host's caches, and so costs
    /// what it costs on the host.
    ///
    /// # Errors
    ///
    /// `cpus` is 0 or too large ([`CpusError::check`]).
    pub fn with_caches(
        arena: Arc<Arena>,
        features: Features,
        cpus: usize,
        caches: Option<HostCaches>,
    ) -> Result<Arc<Self>, CpusError> {
        CpusError::check(cpus)?;
        let membarrier = membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
        Ok(Self::with(arena, features, cpus, caches, membarrier))
    }

    fn with(
        arena: Arc<Arena>,
        features: Features,
        cpus: usize,
        caches: Option<HostCaches>,
        membarrier: bool,
    ) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let cpus = (0..cpus).map(|_| Arc::new(Cpu::new(!membarrier))).collect();
        Arc::new(Self { id, arena, features, cpus, membarrier, caches })
    }

    /// The memory.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// The features of the CPUs.
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// The host's caches that cleaning uses; `None` where cleaning costs nothing.
    pub fn caches(&self) -> Option<&HostCaches> {
        self.caches.as_ref()
    }

    /// The number of CPUs.
    pub fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// Invalidates what `reach` names of this guest in the CPUs' TLBs. `own` is the calling thread's CPU, if it has
    /// one.
    ///
    /// Returns a bit for each CPU that [`complete`](Self::complete) has to wait for. The caller's own CPU is included:
    /// another thread may run its vCPU by now.
    fn invalidate(&self, vmid: u16, reach: &Reach, own: Option<usize>) -> u64 {
        // A CPU that loads the guest after this fence sees every earlier change of the tables.
        fence(Ordering::SeqCst);
        let mut pending = 0;
        for (index, cpu) in self.cpus.iter().enumerate() {
            if (reach.broadcast || own == Some(index)) && cpu.forget(vmid, reach) {
                pending |= 1 << index;
            }
        }
        pending
    }

    /// Waits until none of these CPUs is inside an access that began before the call.
    fn complete(&self, pending: u64) {
        if self.membarrier {
            let done = membarrier(MembarrierCommand::PrivateExpedited);
            done.expect("the process was registered when the machine was made");
        } else {
            fence(Ordering::SeqCst);
        }
        let pending = self.cpus.iter().enumerate().filter(|(index, _)| pending >> index & 1 == 1);
        pending.for_each(|(_, cpu)| cpu.wait_until_out());
    }
}

/// The CPUs to wait for are a bit each in a 64-bit word.
const MOST_CPUS: usize = 64;
