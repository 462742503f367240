// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the lines of a trace in order, and hands each to the rules that it concerns.
//!
//! Lines about tables go to `changes`; the other rules are here.

use anyhow::bail;
use twofold_abi::trace::{Dc, Event, Line};

use super::guests::{self, Wrong};
use super::rules::Rule;
use super::state::Checker;

impl Checker {
    /// Checks the next event, which has the number `at`.
    ///
    /// # Errors
    ///
    /// The line describes a shape of tables that the checker does not support.
    pub fn event(&mut self, at: usize, line: &Line<'_>) -> anyhow::Result<()> {
        let cpu = line.cpu;
        match line.event {
            Event::Feature { name, value } => self.formats.feature(name, value),
            Event::RootMade { pa, entries, vttbr, vtcr } => {
                check_shape(entries, vtcr)?;
                self.root_made(at, cpu, pa, entries as usize, vttbr, vtcr);
            }
            Event::RootFreed { pa } => self.root_freed(at, pa),
            Event::TableTaken { pa } => self.table_taken(at, pa),
            Event::TableFreed { pa } => self.table_freed(at, pa),
            Event::LockTaken { pa } => self.lock_taken(at, cpu, pa),
            Event::LockReleased { pa } => self.lock_released(at, cpu, pa),
            Event::Write { pa, old, new, how, order } => self.write(at, cpu, pa, (old, new), how, order),
            Event::Hardware { pa, old, new } => self.hardware(at, pa, old, new),
            Event::Dc { operation: Dc::Zva, pa, size } => self.zeroed(at, pa, size),
            Event::Tlbi { operation, operand, vttbr } => match self.formats.decode(operation, operand) {
                Ok(named) => {
                    let wrong = self.guests.invalidate(cpu, vttbr, &named);
                    self.is_right(at, Rule::OtherTree, wrong);
                    self.flushes.issue(at, cpu, guests::vmid_of(vttbr), named);
                }
                Err(what) => self.breach(at, None, Rule::Operand, what),
            },
            Event::Dsb { domain } => {
                self.flushes.barrier(at, cpu, domain);
                self.guests.barrier(cpu, domain);
                self.publication.barrier(at, cpu, domain);
            }
            Event::Isb => {
                self.flushes.synchronized(cpu);
                self.guests.synchronize(cpu);
            }
            Event::Fence { .. } => self.publication.fence(at, cpu),
            Event::Vttbr { vttbr } => self.guests.load(at, cpu, vttbr),
            Event::GuestEntered { vcpu, vttbr } => self.guest_entered(at, cpu, vcpu, vttbr),
            Event::GuestLeft { vcpu } => {
                let wrong = if self.lost.is_empty() { self.guests.leave(cpu, vcpu) } else { Ok(()) };
                self.is_right(at, Rule::OtherVcpu, wrong);
            }
            Event::Visible => {
                self.relied_on_visibility(at, cpu);
                self.flushes.wrote(cpu);
            }
            Event::Flushed { ipa, size, vttbr } => {
                let range = ipa..ipa.saturating_add(size);
                if let Some(debt) = self.flushes.take_own(guests::root_of(vttbr), &range, cpu) {
                    self.breach(at, Some(debt.at), Rule::StillCached, format!("the CPU relies on a flush, and {debt}"));
                }
                self.relied_on_flush(at, cpu);
            }
            Event::FlushedHere { ipa, level, vttbr } => {
                if !self.flushes.is_flushed_here(cpu, guests::vmid_of(vttbr), ipa, level) {
                    let what = format!("the CPU relies on an incomplete flush of its own TLB at IPA {ipa:#x}");
                    self.breach(at, None, Rule::NoProgress, what);
                }
                self.relied_on_flush(at, cpu);
            }
            Event::Unrecorded { pa } => drop(self.unrecorded.insert(cpu, pa)),
            Event::Lost { .. } => {
                let (breaches, mut lost) = (std::mem::take(&mut self.breaches), std::mem::take(&mut self.lost));
                lost.push(at);
                *self = Self { breaches, lost, formats: self.formats, ..Self::default() };
            }
            Event::DataWritten { .. } | Event::Dc { .. } | Event::Ic { .. } | Event::Other { .. } => {}
        }
        Ok(())
    }

    fn is_right(&mut self, at: usize, rule: Rule, result: Result<(), Wrong>) {
        if let Err((what, since)) = result {
            self.breach(at, since, rule, what);
        }
    }

    fn guest_entered(&mut self, at: usize, cpu: u32, vcpu: u32, vttbr: u64) {
        let tree = self.tables.trees.get(&guests::root_of(vttbr)).copied();
        // Bit 0 is CnP, which does not distinguish trees.
        let is_its_own = tree.is_some_and(|tree| tree.vttbr | 1 == vttbr | 1);
        if let Some((loaded, since)) = self.guests.differs_from_loaded(cpu, vttbr) {
            self.breach(at, Some(since), Rule::OtherTree, format!("the CPU has loaded {loaded:#x}"));
        } else if !is_its_own && self.lost.is_empty() {
            let made = tree.map(|tree| tree.made.1);
            self.breach(at, made, Rule::OtherTree, "this VTTBR_EL2 belongs to no existing tree");
        }
        let entered = self.guests.enter(at, cpu, vcpu, vttbr);
        self.is_right(at, Rule::OtherVcpu, entered);
        self.relied_on_visibility(at, cpu);
        if let Some((maker, made)) = tree.and_then(|tree| tree.linked)
            && !self.publication.is_seen(made, maker)
        {
            self.breach(at, Some(made), Rule::NotVisible, "walks may not see the root that was zeroed");
        }
        self.flushes.entered(cpu);
    }

    fn relied_on_visibility(&mut self, at: usize, cpu: u32) {
        if let Some(made) = self.publication.unseen(cpu) {
            self.breach(at, Some(made), Rule::NotVisible, "walks may not see the entry that this CPU made last");
            self.publication.take_for_seen(cpu);
        }
    }

    fn relied_on_flush(&mut self, at: usize, cpu: u32) {
        if let Some(complete) = self.flushes.relied_on(cpu) {
            let what = "the CPU relies on its flush without an ISB after the DSB";
            self.breach(at, Some(complete), Rule::StillCached, what);
        }
    }
}

/// Checks that the checker supports this root and granule.
fn check_shape(entries: u32, vtcr: u64) -> anyhow::Result<()> {
    const MOST_ENTRIES: u32 = 16 * 512;
    if vtcr >> 14 & 3 != 0 {
        bail!("the granule of these tables is not 4 KiB (VTCR_EL2.TG0)");
    }
    if entries > MOST_ENTRIES {
        bail!("a root has at most 16 tables");
    }
    Ok(())
}
