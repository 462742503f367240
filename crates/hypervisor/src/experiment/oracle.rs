// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the judge of dirty logs ([`twofold_oracle`]) on the guest's RAM while the guest runs, in images with the feature
//! `oracle`.
//!
//! The guest does not choose when a round happens: a round follows a random number of exits, and comes before or after
//! the exit is answered. The GIC is the guest's, so no timer interrupt enters EL2. But the guest's writes to its
//! translation registers trap (HCR_EL2.TVM), and so each change of process does. Every few rounds the log stops, blocks
//! are coalesced while the guest runs, and the log starts again with other options. So pages are split and coalesced
//! all the time.
//!
//! Invariant: during a round, only this CPU accesses the guest's memory, because the guest has no other CPU. So all
//! writers are held.

use alloc::string::String;

use spin::Once;
use twofold_abi::control::{ORACLE_ARGUMENT, STAT};
use twofold_abi::virt::RAM_BASE;
use twofold_memory::dirty::{DirtyPages, LogError, Tracker};
use twofold_oracle::{GuestPages, Judge, PAGE, Page, Plan, Random, options};
use twofold_stage2::{Features, Ipa};

use super::exit_observer::ExitObserver;
use super::observed_guest::ObservedGuest;
use super::translation_registers;
use crate::board::Board;
use crate::context::Context;
use crate::memory::Taken;
use crate::{control, log};

/// The driver of the judge.
pub struct Oracle {
    plan: &'static Plan,
    /// The index of the present tracker in the plan.
    turn: usize,
    random: Random,
    state: State,
    /// Exits until the next round.
    exits: u64,
    /// Whether the round of this exit comes before its answer.
    comes_first: bool,
    dirty: DirtyPages,
    judge: Judge,
}

enum State {
    /// No log runs, and pages are coalesced from this page on.
    Coalescing(u64),
    /// A log runs for this many more rounds.
    Running(u64),
}

static PLAN: Once<Plan> = Once::new();

impl ExitObserver for Oracle {
    type Error = OracleError;

    const TRAPS: u64 = translation_registers::TVM;
    /// The heap also holds a copy of the guest's memory.
    const RAM_PER_HEAP: u64 = 3;
    const ONE_VCPU: bool = true;

    /// Reads the plan from the image's own command line.
    fn begin(board: &Board, cpus: u32, _: &Features, _: &Taken) -> Result<(), OracleError> {
        let plan = board.bootargs.split_once(ORACLE_ARGUMENT).and_then(|(_, text)| Plan::parse(text));
        let plan = plan.ok_or(OracleError::Argument)?;
        if cpus != 1 {
            return Err(OracleError::Cpus { cpus });
        }
        PLAN.call_once(|| plan);
        Ok(())
    }

    fn vcpu_starts(_: usize) -> Self {
        let plan = PLAN.get().expect("the plan was read before there was a guest");
        Self {
            plan,
            turn: 0,
            random: Random::new(plan.seed, 0),
            state: State::Coalescing(0),
            exits: 1,
            comes_first: false,
            dirty: DirtyPages::new(),
            judge: Judge::new(),
        }
    }

    fn before_answer(&mut self, guest: &impl ObservedGuest) {
        self.comes_first = self.random.once_in(2);
        if self.comes_first {
            self.exit(guest);
        }
    }

    fn register_trapped(&mut self, esr: u64, context: &mut Context) -> bool {
        translation_registers::write(esr, context)
    }

    fn after_answer(&mut self, guest: &impl ObservedGuest, _esr: u64) {
        if !self.comes_first {
            self.exit(guest);
        }
    }
}

/// Why the oracle cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum OracleError {
    /// The argument is missing or wrong.
    #[error("this image needs `{ORACLE_ARGUMENT}TRACKER,...:COMPARISONS:SEED`: start it with `cargo xtask oracle`")]
    Argument,
    /// A page could be written while it is compared.
    #[error("the oracle watches one vCPU, not {cpus}")]
    Cpus {
        /// The number of vCPUs.
        cpus: u32,
    },
}

impl Oracle {
    /// Counts an exit, and starts a round when it is due.
    fn exit(&mut self, guest: &impl ObservedGuest) {
        self.exits -= 1;
        if self.exits == 0 {
            // The distance ranges from one exit to tens of thousands, and no length is favoured.
            let most = 1 << self.random.below(17);
            self.exits = 1 + self.random.below(most);
            if let Err(error) = self.round(guest) {
                guest.fail(format_args!("the oracle: {error}"));
            }
        }
    }

    fn round(&mut self, guest: &impl ObservedGuest) -> Result<(), LogError> {
        let log = guest.dirty_log()?;
        match self.state {
            State::Coalescing(page) => {
                let coalesced = log.coalesce_range(page, 1 + self.random.below(16))?;
                self.judge.coalesced(coalesced.blocks);
                match coalesced.next {
                    Some(next) => self.state = State::Coalescing(next),
                    None => self.start(guest)?,
                }
            }
            State::Running(rounds) => {
                self.look(guest)?;
                self.state = State::Running(rounds.saturating_sub(1));
                // If a guest has written nearly everything, it is compared often enough before the log has ever
                // stopped.
                let tally = self.judge.tally();
                if tally.compared >= self.plan.comparisons && tally.starts > 1 {
                    log.stop()?;
                    self.finish(guest);
                } else if rounds == 0 {
                    log.stop()?;
                    self.state = State::Coalescing(0);
                }
            }
        }
        Ok(())
    }

    /// Starts a log of the present tracker.
    fn start(&mut self, guest: &impl ObservedGuest) -> Result<(), LogError> {
        let log = guest.dirty_log()?;
        let options = options::any(self.tracker(), &mut self.random);
        match log.start(&options) {
            Err(LogError::NoDirtyState) => {
                log!("oracle: {}: not on this CPU", self.tracker().name());
                self.next_turn(guest);
                return Ok(());
            }
            other => other?,
        }
        self.judge.start(&Ram { guest, pages: log.pages() }, options.all_dirty);
        self.state = State::Running(2 + self.random.below(20));
        Ok(())
    }

    /// One round of the judge.
    fn look(&mut self, guest: &impl ObservedGuest) -> Result<(), LogError> {
        let log = guest.dirty_log()?;
        let ram = Ram { guest, pages: log.pages() };
        log.get(&mut self.dirty)?;
        let judge = &mut self.judge;
        let unheard = self.dirty.pages().find(|page| self.plan.is_deaf && judge.would_be_lost(&ram, *page));
        self.dirty.pages().filter(|page| Some(*page) != unheard).for_each(|page| self.judge.report(page));
        let (name, mut said) = (self.tracker().name(), self.judge.tally().lost);
        self.judge.compare(&ram, |lost| {
            said += 1;
            if said <= SAID {
                log!("oracle: {name}: {lost}");
            }
        });
        if self.tracker() != Tracker::WriteProtect {
            log.clear_these(&self.dirty)?;
        }
        self.dirty.pages().for_each(|page| self.judge.copy(&ram, page));
        Ok(())
    }

    /// Reports the figures of this tracker, and starts the next one.
    fn finish(&mut self, guest: &impl ObservedGuest) {
        let name: String = self.tracker().name().replace('-', "_");
        for (what, value) in self.judge.tally().named() {
            control::line(STAT, format_args!("oracle.{name}.{what} {value}"));
        }
        self.next_turn(guest);
    }

    fn next_turn(&mut self, guest: &impl ObservedGuest) {
        self.turn += 1;
        if self.turn == self.plan.trackers.len() {
            guest.power_off();
        }
        self.judge = Judge::new();
        self.state = State::Coalescing(0);
    }

    fn tracker(&self) -> Tracker {
        self.plan.trackers[self.turn]
    }
}

/// Lost pages beyond this number are only counted.
const SAID: u64 = 4;

/// The guest's RAM.
struct Ram<'a, G> {
    guest: &'a G,
    pages: u64,
}

impl<G: ObservedGuest> GuestPages for Ram<'_, G> {
    fn count(&self) -> u64 {
        self.pages
    }

    fn read(&self, page: u64, into: &mut Page) {
        let ipa = Ipa::new(RAM_BASE) + page * PAGE as u64;
        self.guest.memory().read(ipa, into).expect("the log is of a slot of RAM");
    }
}
