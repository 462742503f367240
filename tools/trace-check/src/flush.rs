// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The effect of invalidations and barriers (Arm ARM DDI 0487K.a, D8.16).
//!
//! A changed entry is flushed after these steps of one CPU, in this order:
//!
//! - F1: a DSB makes the change visible.
//! - F2: a TLBI names the entry's address, level and VMID.
//! - F3: a DSB completes the TLBI.
//! - F4: `VMALLE1IS` removes entries that combine both stages.
//! - F5: a DSB completes it.
//!
//! `VMALLS12E1IS` replaces F2 and F4. The CPU itself may rely on the flush after an ISB.
//!
//! For a flush of one CPU's own TLB (`flushed.here`), the same steps may use local operations and barriers.

use std::collections::HashMap;
use std::ops::Range;

use twofold_abi::trace::Domain;

use super::debts::{Debt, Debts};
use super::operands::{Named, What};

/// The debts, and the flushes in progress on each CPU.
#[derive(Clone, Default)]
pub struct Flushes {
    /// Debts before F3: no invalidation of stage 2 is complete.
    open: Debts,
    /// Debts between F3 and F5: the invalidation of combined entries is not complete.
    combined: Debts,
    cpus: HashMap<u32, Cpu>,
}

#[derive(Clone, Default)]
struct Cpu {
    /// Walks see what was written before this event: walks of all CPUs, and walks of this CPU.
    visible: Option<usize>,
    visible_here: Option<usize>,
    /// The TLBIs that no DSB has completed yet.
    issued: Vec<Issued>,
    /// The invalidations of this CPU's own TLB since it last wrote an entry or left a guest.
    here: Vec<Here>,
    /// Events and VMIDs of issued VMALLE1, which count for invalidations that were complete before.
    combining: Vec<(usize, u16)>,
    /// The event at which a flush completed, if no context synchronization followed yet.
    unsynchronized: Option<usize>,
}

/// A broadcast TLBI that no DSB has completed yet.
#[derive(Clone)]
struct Issued {
    at: usize,
    visible: usize,
    vmid: u16,
    what: What,
}

/// An invalidation of one CPU's own TLB.
#[derive(Clone)]
struct Here {
    vmid: u16,
    what: What,
    /// The event that completed the invalidation of stage 2.
    complete: Option<usize>,
    /// Whether the invalidation of combined entries is complete too.
    done: bool,
}

impl Flushes {
    pub fn owe(&mut self, debt: Debt) {
        self.open.add(debt);
    }

    pub fn of_group(&self, group: usize) -> Option<Debt> {
        self.open.of_group(group).or_else(|| self.combined.of_group(group)).copied()
    }

    pub fn over(&self, pa: u64) -> Option<Debt> {
        self.open.over(pa).or_else(|| self.combined.over(pa)).copied()
    }

    /// Removes these debts, and returns the oldest.
    pub fn take(&mut self, tree: u64, range: &Range<u64>, mut wanted: impl FnMut(&Debt) -> bool) -> Option<Debt> {
        let open = self.open.take(tree, range, &mut wanted);
        let combined = self.combined.take(tree, range, wanted);
        open.into_iter().chain(combined).min_by_key(|debt| debt.at)
    }

    /// Removes the debts that a CPU should have flushed by now, and returns the oldest.
    pub fn take_own(&mut self, tree: u64, range: &Range<u64>, cpu: u32) -> Option<Debt> {
        self.take(tree, range, |debt| debt.cpu == Some(cpu))
    }

    /// Returns the debts that a CPU must flush in `range`.
    #[cfg(test)]
    pub fn own(&self, tree: u64, range: &Range<u64>, cpu: u32) -> Vec<Debt> {
        self.open.clone().take(tree, range, |debt| debt.cpu == Some(cpu))
    }

    /// A CPU wrote an entry or ended an operation. Its earlier local invalidations do not count for its next operation.
    pub fn wrote(&mut self, cpu: u32) {
        if let Some(cpu) = self.cpus.get_mut(&cpu) {
            cpu.begin_here();
        }
    }

    /// A CPU issues an invalidation.
    pub fn issue(&mut self, at: usize, cpu: u32, vmid: u16, Named { what, broadcast }: Named) {
        let cpu = self.cpus.entry(cpu).or_default();
        if what == What::Combined {
            cpu.combining.push((at, vmid));
        } else if cpu.visible_here.is_some() {
            cpu.here.push(Here { vmid, what: what.clone(), complete: None, done: false });
        }
        // Without an earlier DSB the change may be invisible, so that a walk may refill the TLB with the old entry.
        if let (Some(visible), true) = (cpu.visible, broadcast) {
            cpu.issued.push(Issued { at, visible, vmid, what });
        }
    }

    /// A CPU executes a DSB.
    pub fn barrier(&mut self, at: usize, cpu: u32, domain: Domain) {
        let cpu = self.cpus.entry(cpu).or_default();
        cpu.visible_here = Some(at);
        if matches!(domain, Domain::Ish | Domain::Nsh) {
            cpu.complete_here(at);
        }
        if matches!(domain, Domain::Ish | Domain::IshSt) {
            cpu.visible = Some(at);
        }
        if domain == Domain::Ish {
            for issued in std::mem::take(&mut cpu.issued) {
                self.complete(&issued, at);
            }
        }
    }

    /// A CPU's context is synchronized: its completed flushes take effect for itself.
    pub fn synchronized(&mut self, cpu: u32) {
        self.cpus.entry(cpu).or_default().unsynchronized = None;
    }

    /// A CPU enters a guest, and may fill its TLB.
    pub fn entered(&mut self, cpu: u32) {
        self.synchronized(cpu);
        self.wrote(cpu);
    }

    /// A CPU relies on a flush. Returns the DSB after which the ISB is missing.
    pub fn relied_on(&mut self, cpu: u32) -> Option<usize> {
        let cpu = self.cpus.entry(cpu).or_default();
        cpu.begin_here();
        cpu.unsynchronized.take()
    }

    /// Returns whether a CPU has flushed this address from its own TLB since it last wrote an entry.
    pub fn is_flushed_here(&self, cpu: u32, vmid: u16, ipa: u64, leaf_level: u32) -> bool {
        let named = |what: &What| match what {
            What::ByIpa { range, last_level, level } => {
                // Level 0 stands for every entry of the walk, tables too.
                range.contains(&ipa)
                    && level.is_none_or(|level| level == leaf_level)
                    && !(*last_level && leaf_level == 0)
            }
            What::All => true,
            What::Combined => false,
        };
        let here = self.cpus.get(&cpu).map_or(&[][..], |cpu| &cpu.here);
        here.iter().any(|here| here.done && here.vmid == vmid && named(&here.what))
    }

    /// A DSB has completed the TLBI on all CPUs.
    fn complete(&mut self, issued: &Issued, now: usize) {
        let in_time = |debt: &Debt| debt.vmid == issued.vmid && debt.at < issued.visible;
        match &issued.what {
            What::ByIpa { range, last_level, level } => {
                for tree in self.open.trees() {
                    let named = self.open.take(tree, range, |debt| {
                        let level_fits = level.is_none_or(|level| level == debt.level && !debt.table);
                        in_time(debt) && level_fits && !(*last_level && debt.table)
                    });
                    for debt in named {
                        self.combined.add(Debt { invalidated: Some(now), ..debt });
                    }
                }
            }
            What::Combined => {
                for tree in self.combined.trees() {
                    self.combined.take(tree, &EVERYWHERE, |debt| {
                        in_time(debt) && debt.invalidated.is_some_and(|then| then < issued.at)
                    });
                }
            }
            What::All => {
                for tree in self.open.trees() {
                    self.open.take(tree, &EVERYWHERE, in_time);
                }
                for tree in self.combined.trees() {
                    self.combined.take(tree, &EVERYWHERE, in_time);
                }
            }
        }
    }
}

/// All addresses.
pub const EVERYWHERE: Range<u64> = 0..u64::MAX;

impl Cpu {
    /// Forgets earlier local invalidations, which do not count for the next operation.
    fn begin_here(&mut self) {
        self.here.clear();
        self.combining.clear();
        self.visible_here = None;
    }

    fn complete_here(&mut self, now: usize) {
        if !(self.here.is_empty() && self.combining.is_empty() && self.issued.is_empty()) {
            self.unsynchronized = Some(now);
        }
        for (issued, vmid) in self.combining.drain(..) {
            for here in &mut self.here {
                here.done |= here.vmid == vmid && here.complete.is_some_and(|then| then < issued);
            }
        }
        for here in &mut self.here {
            here.complete.get_or_insert(now);
            here.done |= here.what == What::All;
        }
    }
}
