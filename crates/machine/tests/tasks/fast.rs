// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests on a fast machine, and `bm` there.

use std::sync::Arc;

use twofold_machine::arena::{Arena, ArenaOptions, Backing};
use twofold_machine::fast::{FastMachine, FastPlatform};
use twofold_machine::tasks::bm::{Faulter, Fill, Worker};
use twofold_machine::tasks::{Counts, Ended, Nanos, Task, TaskMachine};
use twofold_machine::vm::FastCpu;
use twofold_memory::async_fault::{Arrival, Mode};
use twofold_stage2::{Features, Ipa};

use super::guest::{Guest, Tasks};
use super::leaving::{Latency, PAGE};

const FEATURES: Features = Features::NONE
    .with_vmid_bits(16)
    .with_hardware_access_flag(true)
    .with_hardware_dirty_state(true)
    .with_forced_write_back(true)
    .with_tlbi_range(true)
    .with_tlbi_level_hint(true)
    .with_zero_block(64);

/// A guest with an array of this many pages, on a machine with this many CPUs.
pub fn fast(pages: u64, cpus: usize) -> (Guest<FastPlatform>, Vec<FastCpu>) {
    let arena = Arc::new(Arena::new(&ArenaOptions::new(32 << 20, Backing::Anonymous)).unwrap());
    let machine = FastMachine::new(Arc::clone(&arena), FEATURES, cpus).unwrap();
    let guest = Guest::new(FastPlatform(Arc::clone(&machine)), &arena, FEATURES, pages);
    let cpus = (0..cpus).map(|number| FastCpu { machine: Arc::clone(&machine), number });
    (guest, cpus.collect())
}

/// Every request takes as long.
pub fn after(latency: Nanos) -> Latency {
    Box::new(move |_| Some((latency, Arrival::Present)))
}

/// The work of the first workers.
pub fn work(guest: &Guest<FastPlatform>, workers: u64) -> u64 {
    (0..workers).map(|worker| guest.word(Ipa::new(guest.layout.counter(worker)))).sum()
}

/// What `bm` did in a second, with a faulting task and a worker on each of two vCPUs, and half of the array in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Did {
    pub work: u64,
    pub counts: Counts,
}

pub fn bm(mode: Mode, latency: Nanos, seed: u64) -> Did {
    const PAGES: u64 = 512;
    let (guest, cpus) = fast(PAGES, 2);
    let fill: Tasks = vec![vec![Box::new(Fill::new(&guest.layout))]];
    let pager = guest.pager(PAGES as usize / 2, after(Nanos::ZERO));
    let mut filling = TaskMachine::new(&cpus, &guest.memory, pager, Mode::Off, guest.vcpus(fill, None)).unwrap();
    assert_eq!(filling.run(Nanos::millis(1000)), Ok(Ended::Tasks));
    drop(filling);

    let mut pager = guest.pager(PAGES as usize / 2, after(latency));
    (0..PAGES / 2).for_each(|page| pager.leave(guest.layout.array.start.raw() + page * PAGE));
    let faulters: Vec<_> = (0..2).map(|number| Faulter::new(&guest.layout, number, seed)).collect();
    let written: Vec<_> = faulters.iter().map(Faulter::written).collect();
    let tasks = (0..).zip(faulters).map(|(number, faulter)| -> Vec<Box<dyn Task>> {
        vec![Box::new(faulter), Box::new(Worker::new(&guest.layout, number))]
    });
    let flags = (mode == Mode::Pv).then_some(0);
    let vcpus = guest.vcpus(tasks.collect(), flags);
    let mut machine = TaskMachine::new(&cpus, &guest.memory, pager, mode, vcpus).unwrap();
    assert_eq!(machine.run(Nanos::millis(1000)), Ok(Ended::Time));
    let counts = machine.counts();
    drop(machine);
    for page in 0..PAGES {
        for (number, written) in (0..).zip(&written) {
            let word = guest.word(Faulter::word(&guest.layout, number, page));
            assert!(written.borrow().is(page, word), "page {page}, task {number}: {word:#x}");
        }
        let last = guest.layout.array.start + page * PAGE + (PAGE - 8);
        assert_eq!(guest.word(last), Fill::value(page), "page {page}");
    }
    Did { work: work(&guest, 2), counts }
}
