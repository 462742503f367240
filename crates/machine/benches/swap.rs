// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures what pages that leave cost: a round of ageing for each page, and a file store by the size of its clusters.
//! Run it by `cargo bench -p twofold-machine --bench swap`. `docs/results.md` has a run.

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/file_store/world.rs"]
mod world;

use std::fs::File;
use std::time::Instant;

use rustix::fs::{Advice, fadvise};
use twofold_machine::file_store::FileStoreOptions;
use twofold_memory::Pages;
use twofold_memory::swap::Generations;
use twofold_stage2::fault::{AccessKind, FaultKind};

use world::{Random, World, ipa};

fn main() {
    // `cargo test --benches` runs this without `--bench`, and only checks that it builds.
    if std::env::args().any(|argument| argument == "--bench") {
        rounds();
        store(false);
        store(true);
    }
}

const RUNS: usize = 7;
/// Pages of the guest that ages: 256 MiB.
const AGED: u64 = 65_536;
/// Pages of the guest with a store, and those that are measured at a time.
const STORED: u64 = 4096;
const MEASURED: u64 = 2048;
const HEADROOM: u64 = 256;

fn rounds() {
    println!("a round of ageing for {AGED} pages, in ns for each: median [quartiles] of {RUNS}");
    for (what, pages, is_single, is_young) in [
        ("pages, all accessed since", Pages::Small, false, true),
        ("pages, none accessed since", Pages::Small, false, false),
        ("blocks, all accessed since", Pages::Largest, false, true),
        ("states of their own, none accessed", Pages::Small, true, false),
    ] {
        let world = World::with(AGED, tempfile::tempfile().unwrap(), &FileStoreOptions::new(AGED), pages, 0);
        let fault = |page| {
            let fault =
                twofold_memory::GuestFault { ipa: ipa(page), kind: FaultKind::Translation, access: AccessKind::Read };
            let _ = world.memory.fault(&fault).unwrap();
        };
        let step = if pages == Pages::Largest { 512 } else { 1 };
        (0..AGED).step_by(step).for_each(fault);
        if is_single {
            // A huge page is kept page by page once one of its pages has left. This one is zero.
            (0..AGED).step_by(512).for_each(|page| assert!(world.memory.write_out(ipa(page)).is_ok()));
        }
        let mut ages = Generations::new();
        let mut runs = Vec::new();
        for _ in 0..=RUNS {
            if is_young {
                // As the hardware does: a leaf whose flag is clear gets it by a relaxing.
                (0..AGED).step_by(step).for_each(|page| {
                    let _ = world.memory.stage2().relax(ipa(page), twofold_stage2::Access::NONE).unwrap();
                });
            }
            let start = Instant::now();
            ages.round(&world.memory);
            runs.push(start.elapsed().as_nanos() as f64 / AGED as f64);
        }
        // The first round judges all pages, which the others do not.
        println!("{what:36} {}", quartiles(&runs[1..], 2));
    }
}

/// A store by the pages of a cluster, which are also those that are read at once.
fn store(is_cold: bool) {
    println!();
    println!(
        "a file store of {STORED} pages, the file {}; microseconds for each page that the guest reads or that leaves",
        if is_cold { "read from its device" } else { "in the host's page cache" }
    );
    println!(
        "cluster leave                calls   sequential           calls   random               calls   read ahead"
    );
    let mut rows: Vec<_> = [1, 4, 8, 16, 32, 64].map(|cluster| Row::new(cluster, false)).into();
    rows.push(Row::new(16, true));
    // In turns, so that what else the host does meets all alike.
    for run in 0..RUNS {
        rows.iter_mut().for_each(|row| row.measure(run, is_cold));
    }
    rows.into_iter().for_each(Row::print);
}

/// What was measured of one size.
struct Row {
    options: FileStoreOptions,
    /// Microseconds for each page of a run: leaving, sequential, random. And calls for each page, of the last run.
    micros: [Vec<f64>; 3],
    calls: [f64; 3],
    for_nothing: u64,
}

impl Row {
    fn new(cluster: usize, compress: bool) -> Self {
        let options = FileStoreOptions { cluster, read_ahead: cluster, compress, ..FileStoreOptions::new(2 * STORED) };
        Self { options, micros: Default::default(), calls: [0.0; 3], for_nothing: 0 }
    }

    fn measure(&mut self, run: usize, is_cold: bool) {
        let file = tempfile::tempfile().unwrap();
        let world = World::with(STORED, file.try_clone().unwrap(), &self.options, Pages::Small, HEADROOM);
        world.run(1, || {
            (0..STORED).for_each(|page| world.write(page, page).unwrap());
            self.time(0, &world, STORED, || world.leave(0..STORED).unwrap());
            let forget = || {
                if is_cold {
                    forget(&file)
                }
            };
            forget();
            self.time(1, &world, MEASURED, || (0..MEASURED).for_each(|page| world.check(page, page)));
            world.leave(0..STORED).unwrap();
            forget();
            let (mut random, before) = (Random(run as u64), world.store.counts());
            let pages: Vec<_> = (0..MEASURED).map(|_| random.below(STORED)).collect();
            self.time(2, &world, MEASURED, || pages.iter().for_each(|page| world.check(*page, *page)));
            self.for_nothing = world.store.counts().pages_ahead - before.pages_ahead;
        });
    }

    fn time(&mut self, of: usize, world: &World, pages: u64, body: impl FnOnce()) {
        let before = world.store.counts();
        let start = Instant::now();
        body();
        let took = start.elapsed();
        let after = world.store.counts();
        let calls = after.writes - before.writes + after.reads - before.reads;
        self.micros[of].push(took.as_secs_f64() * 1e6 / pages as f64);
        self.calls[of] = calls as f64 / pages as f64;
    }

    fn print(self) {
        let FileStoreOptions { cluster, compress, .. } = self.options;
        let name = if compress { format!("{cluster} lz4") } else { cluster.to_string() };
        let [leave, sequential, random] = self.micros.map(|runs| quartiles(&runs, 1));
        let [calls, of_sequential, of_random] = self.calls;
        println!(
            "{name:7} {leave:20} {calls:5.2}   {sequential:20} {of_sequential:5.2}   {random:20} {of_random:5.2}   {:6}",
            self.for_nothing
        );
    }
}

/// The host's page cache has nothing of the file from now on, and reads nothing ahead.
fn forget(file: &File) {
    file.sync_data().unwrap();
    fadvise(file, 0, None, Advice::Random).unwrap();
    fadvise(file, 0, None, Advice::DontNeed).unwrap();
}

fn quartiles(runs: &[f64], digits: usize) -> String {
    let mut runs = runs.to_vec();
    runs.sort_by(f64::total_cmp);
    let at = |quarter: usize| runs[(runs.len() - 1) * quarter / 4];
    format!("{:.digits$} [{:.digits$}, {:.digits$}]", at(2), at(1), at(3))
}
