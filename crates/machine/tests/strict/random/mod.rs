// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random operations of several CPUs on the same tables, interleaved with their guests' accesses. No rule is broken,
//! each value that a guest reads was written there, and in the end the table metadata is right and every page is
//! returned.
//!
//! The full suite runs with `TWOFOLD_OPERATIONS=10000000`. The operations that had an effect are printed
//! (`--nocapture`).

mod accesses;
mod counts;
mod granules;
mod layout;
mod lent;
mod operation;
mod writes;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use twofold_machine::strict::{CpuHandle, Hosted, Program};
use twofold_stage2::{Granule, Kib4, Stage2, TablePage, TableSource, Unwatched};

use crate::world::{GIB, MODERN, PLAIN, Pages, World};
use counts::Counts;
use layout::Layout;
use lent::LentMemory;
use operation::Worker;

pub const CPUS: usize = 4;
/// Two blocks of 1 GiB for each of two guests, and smaller frames.
pub const MEMORY: u64 = 5 * GIB;

/// The number of operations in one run of a machine.
const AT_ONCE: u64 = 50_000;

pub fn operations(quick: u64) -> u64 {
    std::env::var("TWOFOLD_OPERATIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(quick)
}

pub fn seed() -> u64 {
    std::env::var("TWOFOLD_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

#[test]
fn judge_random_operations() {
    random_operations(|seed| World::new(MODERN, CPUS, seed, MEMORY), operations(6_000), seed());
}

#[test]
fn judge_random_operations_of_armv8_0() {
    random_operations(|seed| World::new(PLAIN, CPUS, seed, MEMORY), operations(6_000), seed());
}

#[test]
fn judge_random_operations_with_two_bits_of_vmid() {
    let few = MODERN.with_vmid_bits(2).with_tlbi_range(false);
    random_operations(|seed| World::new(few, CPUS, seed, MEMORY), operations(3_000), seed());
}

/// Blocks and tables replace each other without a break, on a CPU that raises no conflict abort.
/// Its name keeps it out of the traces that `trace-check` reads: that checker asks for a break at each level of FEAT_BBM.
#[test]
fn judge_live_changes_of_size() {
    let live = MODERN.with_bbm(2).with_no_conflict_abort(true);
    random_operations(|seed| World::new(live, CPUS, seed, MEMORY), operations(6_000), seed());
}

/// Table pages, of which some requests are refused.
pub struct Scarce<'a, G: Granule = Kib4> {
    pub pages: &'a Pages<G>,
    pub cpu: &'a CpuHandle,
    /// One in this number of requests is refused; 0 for none.
    pub one_in: u64,
}

impl<G: Granule> TableSource<G> for Scarce<'_, G> {
    fn take(&mut self) -> Option<TablePage<G>> {
        if self.one_in > 0 && self.cpu.draw(self.one_in) == 0 {
            return None;
        }
        let mut pages = self.pages;
        pages.take()
    }

    fn give(&mut self, page: TablePage<G>) {
        let mut pages = self.pages;
        pages.give(page);
    }
}

/// The tables of the guests, which share the machine.
struct Guests<G: Granule> {
    tables: Vec<Stage2<Hosted, G>>,
    lent: LentMemory,
}

/// Runs `total` operations, on a new machine with the next seed for each run.
pub fn random_operations(machine: impl Fn(u64) -> World, total: u64, first_seed: u64) {
    random_operations_at(Layout::new(36, GIB, true), machine, total, first_seed);
}

/// The same with guests' memory as the layout has it.
fn random_operations_at<G: Granule>(layout: Layout<G>, machine: impl Fn(u64) -> World<G>, total: u64, first_seed: u64) {
    let counts = Mutex::new(Counts::default());
    let mut done = 0;
    let mut seed = first_seed;
    while done < total {
        let now = AT_ONCE.min(total - done);
        let world = machine(seed);
        let left = AtomicU64::new(now);
        let guests = world.machine.alone(|cpu| {
            let tables = (0..2).map(|number| world.tables(number, number as u16 + 1, layout.ipa_bits));
            let tables: Vec<_> = tables.collect();
            layout.write_guest_tables(&world, tables.len());
            cpu.load(0);
            let lent = LentMemory::new(&world, &layout, tables.len());
            Guests { tables, lent }
        });
        let guests = guests.unwrap_or_else(|breach| panic!("{breach}"));
        let programs = (0..CPUS).map(|_| -> Program<'_> {
            Box::new(|cpu| {
                let mut worker = Worker::new(cpu, &world, layout, &guests.tables, &guests.lent);
                while left.load(Ordering::Relaxed) > 0 {
                    let done = worker.step();
                    let _ =
                        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(done)));
                }
                let mine = worker.end();
                counts.lock().unwrap().add(&mine);
            })
        });
        let ended = world.machine.run(programs.collect());
        ended.unwrap_or_else(|breach| panic!("{breach}"));
        world.machine.alone(|_| end(&world, &layout, guests)).unwrap_or_else(|breach| panic!("{breach}"));
        done += now;
        seed += 1;
    }
    println!("{}\n{}", layout.name(), counts.into_inner().unwrap());
}

/// Checks that the table metadata is right and that every page is returned.
fn end<G: Granule>(world: &World<G>, layout: &Layout<G>, guests: Guests<G>) {
    let in_trees: u64 =
        guests.tables.iter().map(|tables| tables.audit().unwrap_or_else(|error| panic!("{error}"))).sum();
    assert_eq!(world.pages.out(), in_trees, "pages are lost");
    guests.tables.iter().enumerate().for_each(|(guest, tables)| guests.lent.check(world, layout, guest, tables));
    let roots: Vec<_> =
        guests.tables.into_iter().map(|tables| tables.destroy(&mut &world.pages, Unwatched).0).collect();
    guests.lent.end(layout, &roots);
    assert_eq!(world.pages.out(), 0, "pages are lost");
}
