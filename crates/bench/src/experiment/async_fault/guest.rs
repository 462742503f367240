// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest that runs `bm`, once: its memory, its store, its tasks, and a comparison of its array when it is over.
//!
//! Invariant: the array was filled, and the pages that do not fit were written out, before the measured time begins.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, ensure};
use twofold_machine::arena::{Arena, ArenaOptions, Backing};
use twofold_machine::fast::{FastMachine, FastPlatform};
use twofold_machine::tasks::bm::{Faulter, Fill, Layout, Worker, Written};
use twofold_machine::tasks::{Counts, Enabled, Ended, Nanos, Swapped, Task, TaskMachine, VcpuTasks, VirtualStore};
use twofold_machine::vm::FastCpu;
use twofold_memory::async_fault::Mode;
use twofold_memory::swap::SwapOptions;
use twofold_memory::{Backing as SlotBacking, Frames, GuestMemory, Pages, Slot};
use twofold_stage2::{Geometry, Ipa, Kib4, Vmid};

use super::plan::{Bm, PAGE};
use crate::features::TODAY;

/// What a guest did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Did {
    /// The work of each worker.
    pub workers: Vec<u64>,
    /// What guest and hypervisor counted.
    pub counts: Counts,
}

impl Did {
    /// The work of all workers.
    pub fn work(&self) -> u64 {
        self.workers.iter().sum()
    }
}

/// A guest, ready to run.
pub struct Guest {
    bm: Bm,
    layout: Layout,
    memory: GuestMemory<FastPlatform>,
    store: Arc<VirtualStore>,
    cpus: Vec<FastCpu>,
}

impl Guest {
    /// Makes a guest whose array is filled.
    ///
    /// # Errors
    ///
    /// Its memory does not fit, or the limit is below what a guest needs.
    pub fn new(bm: &Bm) -> anyhow::Result<Self> {
        let layout = Layout::new(bm.bytes, bm.workers);
        let arena = Arc::new(Arena::new(&ArenaOptions::new(memory(bm, &layout), Backing::Anonymous))?);
        let machine = FastMachine::new(Arc::clone(&arena), TODAY, bm.vcpus as usize)?;
        let cpus = (0..bm.vcpus as usize).map(|number| FastCpu { machine: Arc::clone(&machine), number }).collect();
        let mut frames = Frames::new(TODAY);
        frames.add(arena.donate_part(0, memory(bm, &layout)).context("the machine's memory is smaller than its plan")?);
        let geometry = Geometry::new(Kib4, ADDRESS_BITS, &TODAY)?;
        let mut memory = GuestMemory::new(FastPlatform(machine), geometry, Vmid::new(1), frames, Pages::Small)?;
        for range in [&layout.own, &layout.array] {
            memory.add_slot(Slot { range: range.clone(), backing: SlotBacking::Ram, writable: true })?;
        }
        let store = Arc::new(VirtualStore::new());
        let options = SwapOptions { vcpus: bm.vcpus as u32, others: 1, headroom: (bm.limit / PAGE / 8).min(HEADROOM) };
        memory.attach_store(Box::new(Arc::clone(&store)), Box::new(Arc::clone(&store)), &options)?;
        memory.set_limit(bm.limit / PAGE).context("--limit")?;
        let guest = Self { bm: *bm, layout, memory, store, cpus };
        guest.fill()?;
        Ok(guest)
    }

    /// Runs `bm`. If `is_checked`, the array is compared with what was written.
    ///
    /// # Errors
    ///
    /// The guest cannot go on; a page differs from what was written to it.
    pub fn run(self, mode: Mode, latency: Nanos, seed: u64, is_checked: bool) -> anyhow::Result<Did> {
        let Self { bm, layout, memory, store, cpus } = &self;
        let faulters: Vec<_> = (0..bm.faulting).map(|number| Faulter::new(layout, number, seed)).collect();
        let written: Vec<_> = faulters.iter().map(Faulter::written).collect();
        let mut vcpus: Vec<Vec<Box<dyn Task>>> = (0..bm.vcpus).map(|_| Vec::new()).collect();
        let mut deal = |number: u64, task| vcpus[(number % bm.vcpus) as usize].push(task);
        faulters.into_iter().zip(0..).for_each(|(faulter, number)| deal(number, Box::new(faulter)));
        // Workers go on where the faulting tasks end, so that vCPUs without one get the first.
        (0..bm.workers).for_each(|worker| deal(bm.faulting + worker, Box::new(Worker::new(layout, worker))));
        let vcpus = (0..).zip(vcpus).map(|(vcpu, tasks)| {
            let enabled = (mode == Mode::Pv).then(|| Enabled { area: layout.area(vcpu), flags: 0 });
            VcpuTasks { tasks, enabled }
        });
        store.set_latency(latency);
        let pager = Swapped::new(memory, Arc::clone(store));
        let mut machine = TaskMachine::new(cpus, memory, pager, mode, vcpus.collect())?;
        ensure!(machine.run(bm.time)? == Ended::Time, "the workers ended before their time");
        let counts = machine.counts();
        drop(machine);

        let mut pager = Swapped::new(memory, Arc::clone(store));
        store.set_latency(Nanos::ZERO);
        let mut word = |ipa: Ipa| -> anyhow::Result<u64> {
            let mut bytes = [0; 8];
            pager.read(ipa, &mut bytes)?;
            Ok(u64::from_le_bytes(bytes))
        };
        let workers = (0..bm.workers).map(|worker| word(Ipa::new(layout.counter(worker)))).collect::<Result<_, _>>()?;
        if is_checked {
            check(layout, &written, &mut word)?;
        }
        drop(pager);
        Ok(Did { workers, counts })
    }

    /// The `memset`. It takes no time of the guest's.
    fn fill(&self) -> anyhow::Result<()> {
        let pager = Swapped::new(&self.memory, Arc::clone(&self.store));
        let fill = VcpuTasks { tasks: vec![Box::new(Fill::new(&self.layout))], enabled: None };
        let mut machine = TaskMachine::new(&self.cpus, &self.memory, pager, Mode::Off, vec![fill])?;
        ensure!(machine.run(FOR_EVER)? == Ended::Tasks, "the array was not filled");
        Ok(())
    }
}

/// Compares each page with what was written to it.
fn check(
    layout: &Layout,
    written: &[Rc<RefCell<Written>>],
    word: &mut impl FnMut(Ipa) -> anyhow::Result<u64>,
) -> anyhow::Result<()> {
    for page in 0..layout.pages() {
        for (number, written) in (0..).zip(written) {
            let found = word(Faulter::word(layout, number, page))?;
            ensure!(
                written.borrow().is(page, found),
                "page {page} of the array has {found:#x} in the word of task {number}, which did not write that"
            );
        }
        let last = word(layout.array.start + page * PAGE + (PAGE - 8))?;
        ensure!(last == Fill::value(page), "page {page} of the array has lost what it was filled with: {last:#x}");
    }
    Ok(())
}

/// Bytes of the machine's memory: the guest's limit, and tables.
fn memory(bm: &Bm, layout: &Layout) -> u64 {
    let own = layout.own.end - layout.own.start;
    let data = bm.limit.min(bm.bytes + own);
    let tables = (bm.bytes + own).div_ceil(HUGE_PAGE) * PAGE;
    data.next_multiple_of(HUGE_PAGE) + tables.next_multiple_of(HUGE_PAGE) + SPARE
}

/// The most frames that are kept free, so that an arrival need not wait for a page to be written.
const HEADROOM: u64 = 64;
const ADDRESS_BITS: u32 = 40;
const HUGE_PAGE: u64 = 2 << 20;
/// Table pages of the upper levels, the reserve, and what a run of 2 MiB cannot use.
const SPARE: u64 = 4 << 20;
const FOR_EVER: Nanos = Nanos::new(u64::MAX / 4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_lost_its_content_is_found() {
        let layout = Layout::new(4 * PAGE, 0);
        let mut faulter = Faulter::new(&layout, 0, 1);
        let written = [faulter.written()];
        let step = faulter.step();
        assert!(step.is_some());
        let filled = |ipa: Ipa| {
            let offset = ipa - layout.array.start;
            if offset % PAGE == PAGE - 8 { Fill::value(offset / PAGE) } else { 0 }
        };
        let compare = |word: &dyn Fn(Ipa) -> u64| check(&layout, &written, &mut |ipa| Ok(word(ipa)));
        assert!(compare(&filled).is_ok(), "the store has not completed");
        let lost = compare(&|_| 0).unwrap_err().to_string();
        assert!(lost.starts_with("page 0 of the array has lost"), "{lost}");
        let other = compare(&|ipa| filled(ipa) + u64::from(ipa == layout.array.start + 2 * PAGE)).unwrap_err();
        assert!(other.to_string().starts_with("page 2 of the array has 0x1 in the word of task 0"), "{other}");
    }
}
