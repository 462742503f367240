// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves, for random sequences of operations on a slot and its log: pages that were written since their last clear are
//! reported, no page is reported without a reason, and pages that are not reported are as they were when they were last
//! read.
//!
//! 64 cases, or `PROPTEST_CASES`. A failure prints its smallest case and the seed; `PROPTEST_RNG_SEED` repeats it.
//! Failures are not kept in files.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use twofold_memory::Pages;
use twofold_memory::dirty::{LogError, LogOptions, Tracker};
use twofold_stage2::Level;
use twofold_stage2::fault::AccessKind;

use crate::world::{BASE, EDGES, FEATURES, World};

const MOST_STEPS: usize = 80;

#[derive(Clone, Debug)]
struct Scenario {
    pages: Pages,
    /// The page in a huge page where the slot starts, and the slot's number of pages.
    offset: u64,
    count: u64,
    /// The largest leaf that may map the slot's frames, if they are preallocated.
    preallocated: Option<Level>,
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
enum Step {
    /// The first page, the number of pages, and the distance between them.
    Write(u64, u64, u64),
    Touch(u64, AccessKind),
    DeviceWrite(u64),
    Get,
    /// The first page, the number of words, and the mask for each word.
    Clear(u64, u64, u64),
    /// All pages that the last get reported.
    ClearReported,
    Start(LogOptions),
    Stop,
    Rejoin(u64, u64),
    Unmap(u64, u64),
    Replace,
}

fn page() -> impl Strategy<Value = u64> {
    prop_oneof![3 => prop::sample::select(EDGES.to_vec()), 1 => 0u64..1600]
}

fn options() -> impl Strategy<Value = LogOptions> {
    let chunk = prop::sample::select(vec![0, 4 << 10, 2 << 20, 1 << 30]);
    let section = prop::sample::select(vec![8, 64, 512]);
    (prop::sample::select(Tracker::ALL.to_vec()), any::<bool>(), chunk, section).prop_map(
        |(tracker, all_dirty, chunk, section)| {
            let all_dirty = all_dirty && tracker != Tracker::WriteProtect;
            LogOptions { tracker, all_dirty, chunk, section }
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop::sample::select(vec![AccessKind::Read, AccessKind::Execute, AccessKind::Maintenance]);
    prop_oneof![
        8 => (page(), 1u64..20, 1u64..70).prop_map(|(page, count, stride)| Step::Write(page, count, stride)),
        2 => (page(), kind).prop_map(|(page, kind)| Step::Touch(page, kind)),
        2 => page().prop_map(Step::DeviceWrite),
        4 => Just(Step::Get),
        2 => (page(), 1u64..20, any::<u64>()).prop_map(|(page, words, mask)| Step::Clear(page, words, mask)),
        3 => Just(Step::ClearReported),
        4 => options().prop_map(Step::Start),
        2 => Just(Step::Stop),
        1 => (page(), 0u64..4).prop_map(|(page, blocks)| Step::Rejoin(page, blocks)),
        1 => (page(), 1u64..1200).prop_map(|(page, count)| Step::Unmap(page, count)),
        1 => Just(Step::Replace),
    ]
}

fn scenario() -> impl Strategy<Value = Scenario> {
    let pages = prop::sample::select(vec![Pages::Largest, Pages::Largest, Pages::Small]);
    let offset = prop::sample::select(vec![0, 1, 64, 509]);
    let preallocated = prop::sample::select(vec![None, None, Some(Level::L2), Some(Level::L3)]);
    let steps = prop::collection::vec(step(), 1..=MOST_STEPS);
    (pages, offset, 1u64..1300, preallocated, steps).prop_map(|(pages, offset, count, preallocated, steps)| Scenario {
        pages,
        offset,
        count,
        preallocated,
        steps,
    })
}

#[test]
fn what_is_not_reported_is_as_it_was() {
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { ProptestConfig::default().cases } else { 64 };
    let seed = match ProptestConfig::default().rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => RandomState::new().hash_one(0),
    };
    let rng_seed = RngSeed::Fixed(seed);
    let config = ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() };
    let outcome = TestRunner::new(config).run(&scenario(), |scenario| {
        Migration::new(&scenario).run(&scenario.steps);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("PROPTEST_RNG_SEED={seed}: {error}");
    }
}

/// A slot, and what a migration knows of it.
struct Migration {
    world: World,
    options: Option<LogOptions>,
    /// Pages that were written, or are dirty from the start, since they were last cleared.
    dirty: BTreeSet<u64>,
    /// Pages that a get has reported since then.
    reported: BTreeSet<u64>,
    /// Pages that were cleared while hardware had a record of them that no get had seen: they are reported once more.
    recorded: BTreeSet<u64>,
}

impl Migration {
    fn new(scenario: &Scenario) -> Self {
        let start = BASE + scenario.offset * crate::machine::PAGE;
        let world = match scenario.preallocated {
            None => World::with(FEATURES, scenario.pages, start, scenario.count, 16),
            Some(largest) => World::preallocated(FEATURES, scenario.pages, start, scenario.count, largest, 16),
        };
        Self { world, options: None, dirty: [].into(), reported: [].into(), recorded: [].into() }
    }

    fn run(&mut self, steps: &[Step]) {
        for step in steps {
            self.step(step);
        }
        if self.options.is_some() {
            self.get();
        }
        self.world.copy_pages(0..self.world.pages);
    }

    fn step(&mut self, step: &Step) {
        let count = self.world.pages;
        let not_running = LogError::NotRunning { start: self.world.start };
        match *step {
            Step::Write(page, pages, stride) => {
                for page in (0..pages).map(|number| (page + number * stride) % count) {
                    self.world.write(page);
                    self.wrote(page);
                }
            }
            Step::Touch(page, kind) => self.world.touch(page % count, kind),
            Step::DeviceWrite(page) => {
                self.world.device_writes(page % count);
                self.wrote(page % count);
            }
            Step::Get if self.options.is_some() => self.get(),
            Step::Get => {
                let mut dirty = twofold_memory::dirty::DirtyPages::new();
                assert_eq!(self.world.log().get(&mut dirty), Err(not_running));
            }
            Step::Clear(page, words, mask) => {
                let first = page % count / 64 * 64;
                let pages = (words * 64).min(count - first);
                self.clear(first, &vec![mask; pages.div_ceil(64) as usize], pages);
            }
            Step::ClearReported => {
                let mut mask = vec![0; count.div_ceil(64) as usize];
                self.reported.iter().for_each(|page| mask[*page as usize / 64] |= 1 << (page % 64));
                self.clear(0, &mask, count);
            }
            Step::Start(options) => {
                let started = self.world.log().start(&options);
                if self.options.is_some() {
                    return assert_eq!(started, Err(LogError::Running { start: self.world.start }));
                }
                assert_eq!(started, Ok(()));
                self.options = Some(options);
                self.dirty = if options.all_dirty { (0..count).collect() } else { [].into() };
                (self.reported, self.recorded) = ([].into(), [].into());
                if !options.all_dirty {
                    self.world.copy_pages(0..count);
                }
            }
            Step::Stop => {
                let expected = if self.options.take().is_some() { Ok(()) } else { Err(not_running) };
                assert_eq!(self.world.log().stop(), expected);
            }
            Step::Rejoin(page, blocks) => {
                let coalesced = self.world.log().coalesce_range(page, blocks);
                if let Ok(coalesced) = coalesced {
                    assert!(coalesced.blocks <= blocks && (coalesced.blocks == 0 || self.options.is_none()));
                }
            }
            Step::Unmap(page, pages) => {
                let start = page % count;
                let end = (start + pages).min(count);
                self.world.guest.memory.unmap(self.world.slot, self.world.ipa(start)..self.world.ipa(end)).unwrap();
            }
            Step::Replace => {
                self.world.replace_slot();
                self.options = None;
            }
        }
    }

    fn wrote(&mut self, page: u64) {
        if self.options.is_some() {
            self.dirty.insert(page);
        }
    }

    fn get(&mut self) {
        let Some(options) = self.options else { return };
        let reported = self.world.get();
        assert!(self.dirty.is_subset(&reported), "not reported: {:?}", self.dirty.difference(&reported));
        let reasons: BTreeSet<_> = self.dirty.union(&self.recorded).copied().collect();
        assert!(reported.is_subset(&reasons), "reported without a reason: {:?}", reported.difference(&reasons));
        if options.tracker == Tracker::WriteProtect {
            (self.dirty, self.reported) = ([].into(), [].into());
            self.world.check_copy(&self.reported);
        } else {
            self.world.check_copy(&reported);
            self.dirty.extend(&reported);
            self.reported = reported;
        }
        self.recorded.clear();
    }

    fn clear(&mut self, first: u64, mask: &[u64], pages: u64) {
        let cleared = self.world.log().clear(first, pages, mask);
        let Some(options) = self.options else {
            return assert_eq!(cleared, Err(LogError::NotRunning { start: self.world.start }));
        };
        if options.tracker == Tracker::WriteProtect {
            return assert_eq!(cleared, Err(LogError::ClearedByGet));
        }
        assert_eq!(cleared, Ok(()));
        let bits = (0..pages).filter(|page| mask[*page as usize / 64] >> (page % 64) & 1 == 1).map(|page| first + page);
        for page in bits {
            if self.dirty.remove(&page) && !self.reported.remove(&page) {
                self.recorded.insert(page);
            }
            self.world.copy_pages([page]);
        }
    }
}
