// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The fast mode: a plain TLB for each CPU, for benches. It forgives what a CPU would forgive.
//!
//! # What a TLB holds
//!
//! Pages of 4 KiB, whatever leaf they are from, in a table that an address indexes directly. While the guest's stage 1
//! is off these are stage-2 entries, which TLBIs by IPA remove one by one, and `VMALLE1` leaves alone. While it is on
//! they combine both stages: TLBIs by IPA need not remove them, and `VMALLE1`, which the engine sends after, removes
//! all. A TLB holds the entries of one guest and one setting of its stage 1: what changes either empties it.
//!
//! Writes are cached as allowed where S2AP\[1\] is set, so that the first write after it was cleared and the TLB
//! invalidated walks the tables, and finds DBM there. The same goes for stage 1.
//!
//! # When an invalidation is complete
//!
//! `DSB ISH` after a TLBI returns only when no CPU reaches anything by what was invalidated. It costs a guest's access
//! no fence and no atomic read-modify-write:
//!
//! * An access (A1) stores its address to its CPU's `inside`, (A2) looks its entry up, (A3) does what it does, and (A4)
//!   stores 0 to `inside`, or the next access its address, with release ordering. A compiler fence is between A1 and
//!   A2.
//! * An invalidation, after the tables were changed, (I1) counts the CPU's `epoch` up, (I2) clears the tags it reaches;
//!   at the DSB it (I3) has a full barrier executed on every CPU that runs a thread of this process (`membarrier`), and
//!   (I4) waits for each of these CPUs until `inside` is 0 or not what it was.
//!
//! *No access by an old entry is under way after I4.* The access's thread executes a full barrier during I3, or is not
//! running, which is one. If A1 is before it, A1 is visible to I4, which sees it or what the thread stored to `inside`
//! after: in the first case I4 waits for that, and sees A3 done, by release and acquire, in the second it sees this at
//! once. If A1 is after the barrier, so is A2, and it finds the tag cleared.
//!
//! *No old entry comes back.* A miss walks inside an access too: (M1) as A1, with a full fence; (M2) reads `epoch`;
//! (M3) walks; (M4) stores the entry; (M5) executes a full fence; (M6) reads `epoch` again and, if it moved, clears the
//! tag and begins anew; (M7) as A4. A full fence is also between I1 and I2, so M6 sees the count or I2 sees the tag. An
//! M2 that reads the new count is followed by a walk that sees the tables as they were changed before it. One that
//! reads the old count may be followed by a walk of the old tables: then either I2 removes what it found, or M6 does,
//! and I4 waits for M7.
//!
//! *No CPU is forgotten.* The invalidation passes over CPUs that have another guest loaded. A CPU that loads a guest
//! (L1) empties its TLB, (L2) stores whose it is, (L3) executes a full fence, before it walks. The invalidation has a
//! full fence between the change of the tables and its look: it sees L2, or the walks see the change.
//!
//! Where the kernel has no `membarrier`, an access executes a full fence between A1 and A2, and I3 is one: either I4
//! sees A1, or A2 sees I2. An access then costs several times as much.
//!
//! # What it does not tell
//!
//! A block, and a page of 16 or 64 KiB of the guest's own, takes as many entries as the guest uses pages of it, where real
//! TLBs have one for all. A walk costs what software takes for it. Cleaning a cache costs nothing, unless the machine is
//! made with the host's ([`HostCaches`]). With stage 1 off, a flush costs a guest the entries that it names; CPUs may drop
//! more at `VMALLE1`.

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
pub use vcpu::{FastVcpu, VcpuError};

/// CPUs and their memory.
#[derive(Debug)]
pub struct FastMachine {
    /// Never that of another machine.
    id: u64,
    arena: Arc<Arena>,
    features: Features,
    cpus: Box<[Arc<Cpu>]>,
    /// Whether the kernel executes barriers on other CPUs for this process.
    membarrier: bool,
    /// What cleaning is done by; `None`: it is nothing.
    caches: Option<HostCaches>,
}

/// More CPUs than make sense, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{asked} vCPUs: this machine has {available} CPUs, and runs 1 to {most}; take {}", asked.clamp(&1, most))]
pub struct CpusError {
    /// How many were asked for.
    pub asked: usize,
    /// How many CPUs this process may use.
    pub available: usize,
    /// The most that are possible.
    pub most: usize,
}

impl CpusError {
    /// Whether so many vCPUs make sense here: 1 to 64, and at most 8 for each CPU of this machine.
    ///
    /// # Errors
    ///
    /// They do not.
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
    /// So many CPUs with these features, over this memory. Cleaning a cache is for free.
    ///
    /// # Errors
    ///
    /// More CPUs than make sense.
    pub fn new(arena: Arc<Arena>, features: Features, cpus: usize) -> Result<Arc<Self>, CpusError> {
        Self::with_caches(arena, features, cpus, None)
    }

    /// The same, where the engine's cleaning of a line is the host's of that memory: it takes the time that it takes.
    ///
    /// # Errors
    ///
    /// More CPUs than make sense.
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

    /// What the CPUs can do.
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// What cleaning a line is done by; `None` where it is for free.
    pub fn caches(&self) -> Option<&HostCaches> {
        self.caches.as_ref()
    }

    /// How many CPUs there are.
    pub fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// Makes CPUs forget what `reach` names of a guest; `own` is the CPU that asks, if it is one. Those that have to be
    /// waited for come back, a bit for each. The one that asks is not left out: its vCPU may be another thread's by
    /// now.
    fn invalidate(&self, vmid: u16, reach: &Reach, own: Option<usize>) -> u64 {
        // Tables that were changed before are seen by whoever loads the guest after this.
        fence(Ordering::SeqCst);
        let mut told = 0;
        for (index, cpu) in self.cpus.iter().enumerate() {
            if (reach.broadcast || own == Some(index)) && cpu.forget(vmid, reach) {
                told |= 1 << index;
            }
        }
        told
    }

    /// Waits until no CPU of these is inside an access that it began before.
    fn complete(&self, told: u64) {
        if self.membarrier {
            let done = membarrier(MembarrierCommand::PrivateExpedited);
            done.expect("the process was registered when the machine was made");
        } else {
            fence(Ordering::SeqCst);
        }
        let told = self.cpus.iter().enumerate().filter(|(index, _)| told >> index & 1 == 1);
        told.for_each(|(_, cpu)| cpu.wait_until_out());
    }
}

/// As many as a word has bits.
const MOST_CPUS: usize = 64;
