// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the invalidations and barriers of the CPUs flush (Arm ARM D8.16).
//!
//! An entry that was changed is flushed when, in this order: a DSB has made the change visible; a TLBI that names its
//! address, level and VMID was issued by that CPU; its DSB is complete; the same again with `VMALLE1IS`, for what was
//! combined with stage 1 before. `VMALLS12E1IS` stands for both. The CPU itself goes by that after an ISB.
//!
//! On one CPU alone (`flushed.here`), the same sequence does with operations and barriers that reach no other.

use std::collections::HashMap;
use std::ops::Range;

use twofold_abi::trace::Domain;

use super::debts::{Debt, Debts};
use super::operands::{Named, What};

/// What is to be flushed, and what each CPU is flushing.
#[derive(Clone, Default)]
pub struct Flushes {
    /// No invalidation of stage 2 is complete.
    open: Debts,
    /// It is, and the one of what is combined is not.
    combined: Debts,
    cpus: HashMap<u32, Cpu>,
}

#[derive(Clone, Default)]
struct Cpu {
    /// What was written before this event is visible to walks: of all CPUs, and of this one.
    visible: Option<usize>,
    visible_here: Option<usize>,
    /// The TLBIs whose DSB is still to come.
    issued: Vec<Issued>,
    /// The invalidations of this CPU's own TLB since it last wrote an entry or left a guest.
    here: Vec<Here>,
    /// VMALLE1 was issued, for what was complete before.
    combining: Vec<(usize, u16)>,
    /// A flush was complete at this event, and no context synchronization came since.
    unsynchronized: Option<usize>,
}

/// A TLBI of all CPUs whose DSB is still to come.
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
    /// When stage 2 was complete.
    complete: Option<usize>,
    /// So is what is combined.
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

    /// Forgets all such debts, and returns the first.
    pub fn take(&mut self, tree: u64, range: &Range<u64>, mut wanted: impl FnMut(&Debt) -> bool) -> Option<Debt> {
        let open = self.open.take(tree, range, &mut wanted);
        let combined = self.combined.take(tree, range, wanted);
        open.into_iter().chain(combined).min_by_key(|debt| debt.at)
    }

    /// Forgets what a CPU is to have flushed by now, and returns the first.
    pub fn take_own(&mut self, tree: u64, range: &Range<u64>, cpu: u32) -> Option<Debt> {
        self.take(tree, range, |debt| debt.cpu == Some(cpu))
    }

    /// All that a CPU is to flush there.
    #[cfg(test)]
    pub fn own(&self, tree: u64, range: &Range<u64>, cpu: u32) -> Vec<Debt> {
        self.open.clone().take(tree, range, |debt| debt.cpu == Some(cpu))
    }

    /// A CPU wrote an entry, or ended an operation: what it invalidated before does not count for what it does next.
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
        // Where nothing was made visible before, a walk may bring back what goes.
        if let (Some(visible), true) = (cpu.visible, broadcast) {
            cpu.issued.push(Issued { at, visible, vmid, what });
        }
    }

    /// A CPU waits.
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

    /// A CPU's context is synchronized: what it has flushed is gone for itself.
    pub fn synchronized(&mut self, cpu: u32) {
        self.cpus.entry(cpu).or_default().unsynchronized = None;
    }

    /// A CPU is in a guest, and may fill its TLB.
    pub fn entered(&mut self, cpu: u32) {
        self.synchronized(cpu);
        self.wrote(cpu);
    }

    /// A CPU relies on a flush: the DSB that was not followed by an ISB.
    pub fn relied_on(&mut self, cpu: u32) -> Option<usize> {
        let cpu = self.cpus.entry(cpu).or_default();
        cpu.begin_here();
        cpu.unsynchronized.take()
    }

    /// Whether a CPU has flushed this address from its own TLB since it last wrote an entry.
    pub fn is_flushed_here(&self, cpu: u32, vmid: u16, ipa: u64, leaf_level: u32) -> bool {
        let named = |what: &What| match what {
            What::ByIpa { range, last_level, level } => {
                // Level 0 stands for whatever leads there, tables too.
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

    /// The TLBI is complete on all CPUs.
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
    /// What was invalidated before does not count for what comes.
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
