// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves that a guest's memory is what a plain model says: the answers, the tables, what the guest reads, the counts,
//! and the maintenance. Slots, policies, features and sequences of faults, loads and stores are random, and memory runs
//! out in between. Also proves that each answer makes progress, and that no frame has two uses.
//!
//! 64 cases, or `PROPTEST_CASES`. A failure prints its smallest case and the seed; `PROPTEST_RNG_SEED` repeats it.
//! Failures are not kept in files.

#[path = "../machine/mod.rs"]
mod machine;

mod check;
mod plain;
mod scenario;

use std::hash::{BuildHasher, RandomState};

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use twofold_memory::{Answer, Backing, Done, Error, Frames, Slot};
use twofold_stage2::fault::{AccessKind, FaultKind};
use twofold_stage2::{Ipa, Pa};

use machine::guest::{IPA_BITS, Outcome, RunningGuest, needed};
use machine::{HUGE_PAGE, Machine, PAGE, RAM, device_at};
use plain::{Expected, Model};
use scenario::{Operation, Scenario};

/// Memory by the page, for tables.
const SINGLES: Pa = Pa::new(0x9_0000_0000);
const MOST_SINGLES: u64 = 64;

#[test]
fn memory_is_what_the_model_says() {
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { ProptestConfig::default().cases } else { 64 };
    let seed = match ProptestConfig::default().rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => RandomState::new().hash_one(0),
    };
    let rng_seed = RngSeed::Fixed(seed);
    let config = ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() };
    let outcome = TestRunner::new(config).run(&scenario::any_scenario(), |scenario| {
        World::new(&scenario).run(&scenario);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("PROPTEST_RNG_SEED={seed}: {error}");
    }
}

/// The guest, its model, and the memory that is still to be donated.
struct World {
    guest: RunningGuest,
    model: Model,
    /// For each range: the end of what was donated so far, and the end of its bank.
    huge_pages: (Pa, Pa),
    singles: (Pa, Pa),
}

impl World {
    fn new(scenario: &Scenario) -> Self {
        let model = Model::new(scenario);
        // Tables may break up one or two huge pages.
        let mut banks = vec![(RAM, (model.huge_pages() + 3) * HUGE_PAGE), (SINGLES, MOST_SINGLES * PAGE)];
        banks.extend(model.preallocated());
        let machine = Machine::new(scenario.features, &banks);
        let mut frames = Frames::new(scenario.features);
        let singles = (2 + scenario.singles) * PAGE;
        let huge_pages = scenario.huge_pages.min(model.huge_pages()) * HUGE_PAGE;
        frames.add(machine.donate(SINGLES, singles));
        if huge_pages > 0 {
            frames.add(machine.donate(RAM, huge_pages));
        }
        let mut guest = RunningGuest::on(machine, frames, scenario.pages, IPA_BITS);
        for slot in &model.slots {
            let plain::Slot { range, writable, .. } = slot.clone();
            let backing = match slot.backing {
                plain::Backing::Ram => Backing::Ram,
                plain::Backing::Device(registers) => device_at(registers),
                plain::Backing::Preallocated { start, largest } => {
                    guest.machine.give(start, range.end - range.start, largest)
                }
            };
            guest.memory.add_slot(Slot { range, backing, writable }).unwrap();
        }
        Self {
            guest,
            model,
            huge_pages: (RAM + huge_pages, banks[0].0 + banks[0].1),
            singles: (SINGLES + singles, banks[1].0 + banks[1].1),
        }
    }

    fn run(&mut self, scenario: &Scenario) {
        for operation in &scenario.operations {
            match *operation {
                Operation::Touch(address, access) => {
                    self.touch(self.model.ipa_of(address), access);
                }
                Operation::Fault(address, kind, access) => {
                    let _ = self.fault(self.model.ipa_of(address), kind, access);
                }
                Operation::Load(address, ref bytes) => self.load(self.model.ipa_of(address), bytes),
                Operation::Store(address, byte) => self.store(self.model.ipa_of(address), byte),
            }
        }
        self.check_contents();
    }

    /// Does the guest's access, with the faults that a CPU without a TLB takes. `None` if it aborts or is skipped.
    fn touch(&mut self, ipa: Ipa, access: AccessKind) -> Option<Pa> {
        let mut faults = 0;
        while let Some(kind) = self.guest.fault_of(ipa, access) {
            assert!(faults < 1, "{access:?} at {ipa} faults for {kind:?} again");
            faults += 1;
            let Answer::Retry(_) = self.fault(ipa, kind, access) else { return None };
        }
        let reached = self.guest.touch(ipa, access);
        let Ok(Outcome::Reaches(pa, answers)) = reached else { panic!("{reached:?}") };
        assert_eq!(answers, []);
        Some(pa)
    }

    /// Does a fault. A CPU with a stale TLB may take one for another reason than the tables give.
    fn fault(&mut self, ipa: Ipa, kind: FaultKind, access: AccessKind) -> Answer {
        let Expected { answer: expected, leaf } = self.model.fault(ipa, kind, access);
        let before = self.guest.walk(ipa);
        let page = ipa.align_down(PAGE);
        self.guest.machine.watch_nothing();
        if page < self.guest.memory.stage2().geometry().end() {
            // A mapped page may be broken and made again. The guest's writes to it are in its caches, and stay there.
            let is_new = before.is_none() && self.model.is_ram(page);
            self.guest.machine.watch(page, is_new.then(|| self.model.content(page)));
        }
        self.guest.machine.events();

        let (answer, was_dry) = self.provided(|guest| guest.fault(ipa, kind, access));

        match (answer, expected) {
            // A page that was zeroed before memory ran out is not zeroed again.
            (Answer::Retry(Done::Mapped { level, .. }), Answer::Retry(Done::Mapped { level: other, .. }))
                if was_dry =>
            {
                assert_eq!(level, other);
            }
            _ => assert_eq!(answer, expected, "{kind:?}, {access:?} at {ipa}"),
        }
        if let Answer::Retry(Done::Mapped { level, first_touch: true }) = answer {
            self.model.counts.first_touches[usize::from(level.raw())] += 1;
        }
        if let (Answer::Retry(_), Some(_)) = (answer, leaf) {
            let found = self.guest.memory.stage2().look_up(ipa).expect("a mapped leaf is found");
            let enough = kind == FaultKind::AccessFlag || found.descriptor.access().covers(needed(access));
            assert!(enough, "{access:?} at {ipa} will fault again");
        }
        let record = self.guest.machine.events();
        check::maintenance(&self.guest, ipa, answer, before, &record);
        let donated = self.donated();
        check::tables(&self.guest, &mut self.model, donated);
        if let Answer::Retry(Done::Mapped { .. }) = answer {
            self.check_new_leaf(page);
        }
        answer
    }

    /// How many frames were donated to the guest.
    fn donated(&self) -> u64 {
        (self.huge_pages.0 - RAM + (self.singles.0 - SINGLES)) / PAGE
    }

    /// Does `action`, and adds memory when it runs out, one piece at a time. An action that fails changes no leaf.
    fn provided<T>(&mut self, mut action: impl FnMut(&mut RunningGuest) -> Result<T, Error>) -> (T, bool) {
        for tries in 0.. {
            let leaves = self.guest.scan().leaves;
            let error = match action(&mut self.guest) {
                Ok(done) => return (done, tries > 0),
                Err(error) => error,
            };
            assert_eq!(self.guest.scan().leaves, leaves, "{error}, but something is mapped");
            let (range, size) = match error {
                Error::NoFrames { .. } => (&mut self.huge_pages, HUGE_PAGE),
                Error::Stage2(twofold_stage2::Error::NoTablePage { .. }) => (&mut self.singles, PAGE),
                error => panic!("{error}"),
            };
            assert!(range.0 + size <= range.1, "{error}, after all memory was donated");
            let more = self.guest.machine.donate(range.0, size);
            range.0 = range.0 + size;
            self.guest.memory.frames().add(more);
        }
        unreachable!()
    }

    /// Writes a loader's bytes, unless a page of the range is mapped already.
    fn load(&mut self, at: Ipa, bytes: &[u8]) {
        let end = at + bytes.len() as u64;
        let mut pages = (at.align_down(PAGE).raw()..end.raw()).step_by(PAGE as usize).map(Ipa::new);
        if pages.any(|page| self.guest.walk(page).is_some()) {
            return;
        }
        let missing = self.model.load(at, bytes);
        let (outcome, _) = self.provided(|guest| match guest.memory.write(at, bytes) {
            Err(error @ Error::NoFrames { .. }) => Err(error),
            outcome => Ok(outcome),
        });
        assert_eq!(outcome, missing.map_or(Ok(()), |ipa| Err(Error::NoRam { ipa })));
        let donated = self.donated();
        check::tables(&self.guest, &mut self.model, donated);
    }

    /// Stores a byte as the guest, if it may; its next load sees the byte at once.
    fn store(&mut self, at: Ipa, byte: u8) {
        let Some(pa) = self.touch(at, AccessKind::Write) else { return };
        if self.guest.machine.is_ram(pa) {
            self.guest.machine.bank(pa).store(pa, &[byte]);
            self.model.store(at, byte);
        }
    }

    /// Checks that all pages of the leaf hold what the model says, for a guest with its caches on or off.
    fn check_new_leaf(&self, page: Ipa) {
        let leaf = self.guest.walk(page).unwrap();
        for ipa in (leaf.ipa.raw()..leaf.end().raw()).step_by(PAGE as usize).map(Ipa::new) {
            if self.model.is_ram(ipa) {
                self.guest.machine.check_page(leaf.output(ipa), &self.model.content(ipa));
            }
        }
    }

    /// Checks that the guest's loads find what was loaded and stored, and nothing else.
    fn check_contents(&self) {
        for leaf in self.guest.scan().leaves {
            for ipa in (leaf.ipa.raw()..leaf.end().raw()).step_by(PAGE as usize).map(Ipa::new) {
                if self.model.is_ram(ipa) {
                    let pa = leaf.output(ipa);
                    assert!(self.guest.machine.bank(pa).load(pa, PAGE) == self.model.content(ipa), "{ipa}");
                }
            }
        }
    }
}
