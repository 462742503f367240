// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lent memory is withdrawn while another CPU maps it by a grant that was made before. When both have ended, nothing
//! leads to it.
//!
//! The cases are those of the engine's module `withdraw`. The model checker tries every order of each on tables of two
//! entries (`loom::withdrawn`); here the tables have their full size, and CPUs that link and unlink tables run beside.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use twofold_machine::strict::{CpuHandle, Hosted, Knowledge, Program};
use twofold_stage2::{Access, Attributes, Error, Features, Grant, Ipa, Lent, Level, Lock, Run, Stage2, Unwatched};

use crate::window::ByAddress as _;
use crate::world::{MIB_2, MODERN, PAGE, PLAIN, Pages, World};

const START: Ipa = Ipa::new(1 << 30);
const RAM: Attributes = Attributes::ram(Access::READ_WRITE);
const ROUNDS: u64 = 10;
const SEEDS: u64 = 6;

/// What the other CPU does with its grant.
type Maps = fn(Grant<'_, Hosted>, &mut &Pages) -> Result<(), Error>;

const PAGE_ALONE: Maps = |grant, pages| grant.map(Level::L3, &RAM, pages).map(drop);
const BLOCK: Maps = |grant, pages| grant.map(Level::L2, &RAM, pages).map(drop);
const RANGE: Maps = |grant, pages| grant.map_range(Level::L3, &RAM, pages);
const COALESCE: Maps = |grant, pages| grant.coalesce(Level::L2, &RAM, pages, &mut |_| ()).map(drop);

/// One case.
struct Case {
    features: Features,
    /// The size of the memory that is lent.
    size: u64,
    maps: Maps,
    /// What is mapped by windows beside the lent page: nothing, a page for the whole time, or a page that comes and goes.
    beside: Beside,
    /// Pages of the lent memory that are mapped before.
    before: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Nothing,
    Stays,
    ComesAndGoes,
}

/// A page of the same table as the lent page, outside the lent memory.
const NEIGHBOUR: u64 = 100 * PAGE;

/// The rounds of one run.
struct Rounds<'a> {
    case: &'a Case,
    world: &'a World,
    tables: &'a Stage2<Hosted>,
    lent: Lock<Option<Lent>>,
    /// The last round in which the memory was lent, granted and mapped. Words of the host: they hand over nothing.
    stages: [AtomicU64; 3],
    /// What the mapping CPU knew at the end of a round.
    known: Mutex<Option<Knowledge>>,
    /// Grants that had become stale.
    refused: AtomicU64,
}

impl Rounds<'_> {
    fn reach(&self, stage: usize, round: u64) {
        self.stages[stage].store(round, Ordering::Relaxed);
    }

    fn wait(&self, cpu: &CpuHandle, stage: usize, round: u64) {
        while self.stages[stage].load(Ordering::Relaxed) < round {
            cpu.pause();
        }
    }

    /// Waits for as long as the other CPU takes for a few steps, for most of its operation, or for all of it.
    fn linger(&self, cpu: &CpuHandle) {
        let longest = if self.case.size < MIB_2 { [8, 40, 400] } else { [40, 400, 2500] };
        (0..cpu.draw(longest[cpu.draw(3) as usize])).for_each(|_| cpu.pause());
    }

    /// The CPU that lends and withdraws.
    fn withdraw(&self, cpu: &CpuHandle, run: Run) -> Run {
        let (tables, pages, mut run) = (self.tables, &mut &self.world.pages, run);
        for round in 1..=ROUNDS {
            let lent = tables.lend(run, START, START..START + self.case.size);
            for page in 0..self.case.before {
                let grant = tables.grant(&lent, START + page * PAGE, PAGE).expect("it is lent");
                let _ = grant.map(Level::L3, &RAM, pages).expect("it is not withdrawn");
            }
            *self.lent.lock(tables.platform()) = Some(lent);
            self.reach(0, round);
            self.wait(cpu, 1, round);
            self.linger(cpu);
            let lent = self.lent.lock(tables.platform()).take().expect("no other CPU takes it");
            let withdrawal = tables.withdraw(lent, pages, Unwatched).map_err(|(error, _)| error).expect("withdrawn");
            run = withdrawal.reclaim(pages).0;
            cpu.reuse(run.pa(), run.size());
            self.wait(cpu, 2, round);
            self.known.lock().unwrap().take().iter().for_each(Knowledge::learn);
            for page in 0..run.size() / PAGE {
                let ipa = START + page * PAGE;
                let leaf = tables.look_up(ipa).filter(|leaf| {
                    let pa = leaf.descriptor.address();
                    (run.pa()..run.pa() + run.size()).contains(&pa)
                });
                if let Some(leaf) = leaf {
                    cpu.report(format!("{ipa} maps memory that was withdrawn, by {leaf:?}"));
                }
            }
        }
        run
    }

    /// The CPU that maps by its grant.
    fn map(&self, cpu: &CpuHandle) {
        let (tables, pages) = (self.tables, &mut &self.world.pages);
        for round in 1..=ROUNDS {
            self.wait(cpu, 0, round);
            let grant = {
                let lent = self.lent.lock(tables.platform());
                lent.as_ref().and_then(|lent| tables.grant(lent, START, self.case.size)).expect("it is lent")
            };
            self.reach(1, round);
            if cpu.draw(2) == 0 {
                self.linger(cpu);
            }
            match (self.case.maps)(grant, pages) {
                Ok(()) => {}
                Err(Error::Withdrawn { .. }) => drop(self.refused.fetch_add(1, Ordering::Relaxed)),
                Err(error) => cpu.report(format!("round {round}: {error}")),
            }
            *self.known.lock().unwrap() = Knowledge::of_this_cpu();
            self.reach(2, round);
        }
    }

    /// A CPU by which the table of the lent page comes and goes.
    fn come_and_go(&self, cpu: &CpuHandle) {
        while self.stages[2].load(Ordering::Relaxed) < ROUNDS {
            self.map_neighbour();
            (0..cpu.draw(4)).for_each(|_| cpu.pause());
            let (page, pages) = (START + NEIGHBOUR, &mut &self.world.pages);
            let unmapped = self.tables.unmap(page..page + PAGE, pages, Unwatched).expect("its ends are pages");
            unmapped.complete().free(pages);
        }
    }

    fn map_neighbour(&self) {
        let (page, frame) = (START + NEIGHBOUR, self.world.frame(8 * MIB_2));
        let _ = self.tables.map(page, frame, Level::L3, &RAM, &mut &self.world.pages).expect("no block is there");
    }
}

/// Runs a case, and returns the number of grants that were refused.
fn refused(case: &Case, seed: u64) -> u64 {
    // Turns of three points, or so long that a withdrawal fits between two steps of the other CPU.
    let points = if seed.is_multiple_of(2) { 3 } else { 40 };
    let world = World::narrow(case.features, 3, seed, (64, points));
    let tables = world.machine.alone(|_| world.tables(0, 1, 40)).unwrap_or_else(|breach| panic!("{breach}"));
    let [stages, refused] = [[0; 3].map(AtomicU64::new), [0; 3].map(AtomicU64::new)];
    let [refused, ..] = refused;
    let (lent, known) = (Lock::new(None), Mutex::new(None));
    let rounds = Rounds { case, world: &world, tables: &tables, lent, stages, known, refused };
    let mut run = Some(world.run(0, case.size));
    if case.beside == Beside::Stays {
        world.machine.alone(|_| rounds.map_neighbour()).unwrap_or_else(|breach| panic!("{breach}"));
    }
    let rounds_ref = &rounds;
    let run_ref = &mut run;
    let mut programs: Vec<Program<'_>> =
        vec![Box::new(|cpu| *run_ref = run_ref.take().map(|run| rounds_ref.withdraw(cpu, run)))];
    programs.push(Box::new(|cpu| rounds_ref.map(cpu)));
    if case.beside == Beside::ComesAndGoes {
        programs.push(Box::new(|cpu| rounds_ref.come_and_go(cpu)));
    }
    world.machine.run(programs).unwrap_or_else(|breach| panic!("seed {seed}, {:?}: {breach}", case.beside));
    let refused = rounds.refused.load(Ordering::Relaxed);
    let ended = world.machine.alone(|_| {
        let _ = tables.destroy(&mut &world.pages, Unwatched);
    });
    ended.unwrap_or_else(|breach| panic!("{breach}"));
    refused
}

/// Runs a case with each seed. Some grants are refused, and some are used in time.
fn judge(case: &Case) {
    let refused: u64 = (1..=SEEDS).map(|seed| refused(case, seed)).sum();
    assert!((1..SEEDS * ROUNDS).contains(&refused), "{refused} grants were refused: this is no race");
}

#[test]
fn judge_a_page_that_is_withdrawn_is_not_mapped() {
    for features in [MODERN, PLAIN] {
        for beside in [Beside::Nothing, Beside::Stays, Beside::ComesAndGoes] {
            for maps in [PAGE_ALONE, RANGE] {
                judge(&Case { features, size: PAGE, maps, beside, before: 0 });
            }
        }
    }
}

#[test]
fn judge_pages_that_are_withdrawn_together_are_not_mapped() {
    for features in [MODERN, PLAIN] {
        judge(&Case { features, size: MIB_2, maps: BLOCK, beside: Beside::Nothing, before: 0 });
        judge(&Case { features, size: 16 * PAGE, maps: RANGE, beside: Beside::ComesAndGoes, before: 2 });
        judge(&Case { features, size: MIB_2, maps: COALESCE, beside: Beside::Nothing, before: 2 });
    }
}
