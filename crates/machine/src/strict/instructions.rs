// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The effect of a CPU's instructions: TLB invalidations, barriers, cache maintenance, `VTTBR_EL2`.
//!
//! Invariant: an instruction takes effect only at the barrier, or the context synchronization, that completes it.

use twofold_abi::trace::{self, Event};
use twofold_stage2::platform::{Domain, Ic, Tlbi};

use super::breach::Rule;
use super::model::{Broken, Model, Outcome};
use super::stale::{CpuSet, Stale};
use super::tables::{Page, Root, Standing};
use crate::tlbi::Reach;
use crate::walk::Shape;

/// The number of barriers of each CPU that are kept.
const BARRIERS: usize = 64;

impl Model {
    pub(crate) fn tlbi(&mut self, cpu: usize, operation: Tlbi, operand: u64) -> Outcome {
        let word = trace::Tlbi::ALL[operation as usize];
        self.trace.event(Event::Tlbi { operation: word, operand, vttbr: self.cpus[cpu].vttbr });
        let reach = Reach::decode(operation, operand, &self.features, self.format)
            .map_err(|error| Broken::new(Rule::Operand, error.to_string()))?;
        for page in std::mem::take(&mut self.cpus[cpu].unlinked) {
            if let Some(Page { standing: Standing::Unlinked(place, _), .. }) = self.tables.of(page) {
                self.tables.set(page, Standing::Closed(place));
            }
        }
        self.cpus[cpu].invalidations += 1;
        let vmid = self.vmid(self.cpus[cpu].effective);
        let cpus = if reach.broadcast { self.all() } else { 1 << cpu };
        let (cells, tables, format, all) = (&self.cells, &self.tables, self.format, &self.cpus);
        let is_away = |root: &Root, cpu: usize| root.shares_vmids && format.root(all[cpu].effective) != root.pa;
        let final_on =
            |stale: &Stale, cpu| cells.is_published(stale.changed, cpu) || is_away(tables.root(stale.root), cpu);
        self.stale.issue(cpu, vmid, &reach, cpus, final_on);
        if reach.stage1_and_combined {
            let vmid = Some(vmid).filter(|_| !reach.every_vmid);
            self.cpus[cpu].stage1.push((vmid, reach.broadcast, reach.stage2.is_some()));
        }
        Ok(())
    }

    pub(crate) fn dsb(&mut self, cpu: usize, domain: Domain) {
        self.trace.event(Event::Dsb { domain: trace::Domain::ALL[domain as usize] });
        let everywhere = matches!(domain, Domain::Ish | Domain::IshSt);
        self.cells.publish(cpu, everywhere);
        let (cells, cpus) = (&self.cells, self.cpus.len());
        self.stale.publish(|changed| (0..cpus).all(|cpu| cells.is_published(changed, cpu)));
        if matches!(domain, Domain::IshSt | Domain::NshSt) {
            return;
        }
        let cpus = if everywhere { self.all() } else { 1 << cpu };
        let now = (self.cells.event(cpu), self.step);
        self.stale.complete(cpu, cpus, now);
        if self.cpus[cpu].barriers.len() == BARRIERS {
            self.cpus[cpu].barriers.pop_front();
        }
        self.cpus[cpu].barriers.push_back(now);
        self.complete_stage1(cpu, everywhere);
        if everywhere {
            for (start, size) in std::mem::take(&mut self.cpus[cpu].cleaned) {
                self.lines.clean(start, size);
            }
            for (range, complete) in std::mem::take(&mut self.cpus[cpu].code) {
                self.lines.invalidate_code(range, &complete);
            }
            self.cpus[cpu].complete = *self.cells.known(cpu);
        }
    }

    /// Whether a barrier on this CPU waits for accesses of other CPUs, which may have begun under an invalidated entry.
    pub(crate) fn waits_for_accesses(&self, cpu: usize) -> bool {
        self.stale.is_pending(cpu) && self.cpus.iter().enumerate().any(|(other, state)| other != cpu && state.accesses)
    }

    /// `ISB`.
    pub(crate) fn isb(&mut self, cpu: usize) -> Outcome {
        self.trace.event(Event::Isb);
        self.synchronize(cpu)
    }

    /// A context synchronization: `ISB`, or entering a guest.
    pub(crate) fn synchronize(&mut self, cpu: usize) -> Outcome {
        self.stale.synchronize(cpu);
        let vttbr = self.cpus[cpu].vttbr;
        if vttbr == self.cpus[cpu].effective {
            return Ok(());
        }
        self.cpus[cpu].effective = vttbr;
        let (vmid, pa) = (self.vmid(vttbr), self.format.root(vttbr));
        let Some(number) = self.tables.find_root(pa) else { return Ok(()) };
        let was = *self.tables.root(number);
        if was.vmid != vmid && was.exposed != 0 {
            let what = format!(
                "the tree at {pa:#x} gets VMID {vmid}, and TLBs may hold entries of it with VMID {}, which its flushes miss",
                was.vmid
            );
            return Err(Broken::new(Rule::VmidReused, what));
        }
        let held = |at: usize| self.stale.iter().any(|stale| stale.root == at && stale.cpus() >> cpu & 1 == 1);
        let other = |(at, root): (usize, &Root)| {
            at != number && root.vmid == vmid && (root.exposed >> cpu & 1 == 1 || held(at))
        };
        if let Some(at) = self.tables.roots().iter().enumerate().position(other) {
            let before = self.tables.root(at).pa;
            let what = format!(
                "VMID {vmid} now names the tree at {pa:#x}, and TLBs may hold entries of the one at {before:#x}"
            );
            return Err(Broken::new(Rule::VmidReused, what));
        }
        let cells = &self.cells;
        self.stale.load(cpu, (vmid, number), |changed| cells.is_published(changed, cpu));
        let root = &mut self.tables.roots_mut()[number];
        root.vmid = vmid;
        root.exposed |= 1 << cpu;
        root.was_loaded = true;
        Ok(())
    }

    /// `MSR VTTBR_EL2`.
    pub(crate) fn load_vttbr(&mut self, cpu: usize, vttbr: u64) {
        self.trace.event(Event::Vttbr { vttbr });
        self.cpus[cpu].vttbr = vttbr;
    }

    /// Cleans and invalidates lines to the point of coherency.
    pub(crate) fn clean(&mut self, cpu: usize, start: u64, size: u64) -> Outcome {
        self.trace.event(Event::Dc { operation: trace::Dc::Civac, pa: start, size });
        self.cpus[cpu].cleaned.push((start, size));
        Ok(())
    }

    pub(crate) fn ic(&mut self, cpu: usize, operation: Ic, line: Option<(u64, u64)>) {
        let range = if operation == Ic::IallUis { None } else { line };
        let (pa, size) = range.unwrap_or_default();
        self.trace.event(Event::Ic { operation: trace::Ic::ALL[operation as usize], pa, size });
        let complete = self.cpus[cpu].complete;
        self.cpus[cpu].code.push((range, complete));
    }

    fn complete_stage1(&mut self, cpu: usize, everywhere: bool) {
        let issued = std::mem::take(&mut self.cpus[cpu].stage1);
        for (vmid, broadcast, both) in issued {
            if broadcast && !everywhere {
                self.cpus[cpu].stage1.push((vmid, broadcast, both));
                self.cpus[cpu].forget_vcpus(vmid);
                continue;
            }
            let reached = self.cpus.iter_mut().enumerate().filter(|(number, _)| broadcast || *number == cpu);
            reached.for_each(|(_, cpu)| cpu.forget_vcpus(vmid));
            if both && broadcast {
                self.forget_exposure(vmid);
            }
        }
    }

    /// Everything of a VMID, or of all, is invalidated. Only a CPU that has a tree with entries loaded now may hold entries of
    /// it again.
    fn forget_exposure(&mut self, vmid: Option<u16>) {
        for number in 0..self.tables.roots().len() {
            let root = *self.tables.root(number);
            if vmid.is_some_and(|vmid| root.vmid != vmid) {
                continue;
            }
            let holds = |index: u64| self.format.shape(self.read(root.pa + index * 8), root.level) != Shape::Invalid;
            let holds = root.alive && (0..root.entries as u64).any(holds);
            self.tables.roots_mut()[number].exposed = 0;
            if holds {
                self.expose(number);
            }
        }
    }

    fn all(&self) -> CpuSet {
        ((1u16 << self.cpus.len()) - 1) as u8
    }
}
