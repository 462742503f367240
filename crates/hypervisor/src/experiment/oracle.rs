// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the dirty log with the guest's memory while the guest runs, in images with the feature `oracle`.
//!
//! The oracle keeps a copy of the guest's RAM. A round has these steps:
//!
//! * O1: get the log.
//! * O2: compare every page that the log does not report with its copy.
//! * O3: clear the log.
//! * O4: copy the reported pages.
//!
//! A page that differs in O2 is *lost*: it was written, and is not in the log. The count of compared pages includes only
//! pages that the guest wrote, and the log reported, in an earlier round.
//!
//! The guest does not choose when a round happens: a round follows a random number of exits, and comes before or after
//! the exit is answered. The GIC is the guest's, so no timer interrupt enters EL2. But the guest's writes to its
//! translation registers trap (HCR_EL2.TVM), and so each change of process does. Every few rounds the log stops, blocks
//! are coalesced while the guest runs, and the log starts again with other options. So pages are split and coalesced
//! all the time.
//!
//! Invariant: between O1 and the comparison of a page, only this CPU accesses the page, because the guest has no other
//! CPU.

use alloc::boxed::Box;
use alloc::vec::Vec;

use spin::Once;
use twofold_abi::control::{ORACLE_ARGUMENT, STAT};
use twofold_abi::vendor::TRACKERS;
use twofold_abi::virt::RAM_BASE;
use twofold_memory::dirty::{DirtyPages, LogError, LogOptions, Tracker};
use twofold_stage2::Ipa;

use crate::board::Board;
use crate::vm::{End, Vm};
use crate::{control, log};

/// Reads the oracle's plan from the image's own command line.
///
/// # Errors
///
/// The argument is missing, or there is more than one vCPU.
pub fn begin(board: &Board, cpus: u32) -> Result<(), OracleError> {
    let plan = board.bootargs.split_once(ORACLE_ARGUMENT).and_then(|(_, text)| Plan::parse(text));
    let plan = plan.ok_or(OracleError::Argument)?;
    if cpus != 1 {
        return Err(OracleError::Cpus { cpus });
    }
    PLAN.call_once(|| plan);
    Ok(())
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

/// The oracle.
pub struct Oracle {
    plan: &'static Plan,
    random: Random,
    /// The index of the present tracker in the plan.
    turn: usize,
    state: State,
    /// Exits until the next round.
    exits: u64,
    dirty: DirtyPages,
    copy: Vec<Option<Box<Page>>>,
    /// Whether the guest was seen to write each page.
    written: Vec<bool>,
    page: Box<Page>,
    counts: Counts,
}

type Page = [u8; PAGE];
const PAGE: usize = 4096;

/// The plan of a run.
struct Plan {
    /// Indexes of [`Tracker::ALL`].
    trackers: Vec<usize>,
    comparisons: u64,
    seed: u64,
    /// A negative control: each round ignores one of the reported pages, so that some pages are lost.
    is_deaf: bool,
}

enum State {
    /// No log runs, and pages are coalesced from this page on.
    Joining(u64),
    /// A log runs for `rounds` more rounds. `all_reported`: the next get returns all pages, written or not.
    Running { rounds: u64, all_reported: bool },
}

#[derive(Default)]
struct Counts {
    compared: u64,
    redirtied: u64,
    lost: u64,
    rounds: u64,
    starts: u64,
    blocks: u64,
}

static PLAN: Once<Plan> = Once::new();

impl Oracle {
    /// An oracle without rounds. Call it after [`begin`].
    pub fn planned() -> Self {
        let plan = PLAN.get().expect("the plan was read before there was a guest");
        Self {
            plan,
            random: Random(plan.seed),
            turn: 0,
            state: State::Joining(0),
            exits: 1,
            dirty: DirtyPages::new(),
            copy: Vec::new(),
            written: Vec::new(),
            page: empty(),
            counts: Counts::default(),
        }
    }

    /// Whether a round comes before the exit's answer, not after it.
    pub fn comes_first(&mut self) -> bool {
        self.random.below(2) == 0
    }

    /// Called at each exit of the guest.
    pub fn exit(&mut self, vm: &Vm) {
        self.exits -= 1;
        if self.exits == 0 {
            // The distance ranges from one exit to tens of thousands, and no length is favoured.
            let most = 1 << self.random.below(17);
            self.exits = 1 + self.random.below(most);
            if let Err(error) = self.round(vm) {
                vm.fail(format_args!("the oracle: {error}"));
            }
        }
    }

    fn round(&mut self, vm: &Vm) -> Result<(), LogError> {
        let dirty = vm.dirty_log()?;
        match self.state {
            State::Joining(page) => {
                let joined = dirty.coalesce_range(page, 1 + self.random.below(16))?;
                self.counts.blocks += joined.blocks;
                match joined.next {
                    Some(next) => self.state = State::Joining(next),
                    None => self.start(vm)?,
                }
            }
            State::Running { rounds, all_reported } => {
                self.look(vm, all_reported)?;
                self.state = State::Running { rounds: rounds.saturating_sub(1), all_reported: false };
                // If a guest has written nearly everything, it is compared often enough before the log has ever
                // stopped.
                if self.counts.compared >= self.plan.comparisons && self.counts.starts > 1 {
                    dirty.stop()?;
                    self.finish(vm);
                } else if rounds == 0 {
                    dirty.stop()?;
                    self.state = State::Joining(0);
                }
            }
        }
        Ok(())
    }

    /// Starts a log of the present tracker, with random options.
    fn start(&mut self, vm: &Vm) -> Result<(), LogError> {
        let dirty = vm.dirty_log()?;
        let tracker = self.tracker();
        let options = LogOptions {
            all_dirty: tracker != Tracker::WriteProtect && self.random.below(2) == 0,
            chunk: [0, 64 << 10, 2 << 20, 32 << 20][self.random.below(4) as usize],
            section: 8 << self.random.below(7),
            ..LogOptions::new(tracker)
        };
        match dirty.start(&options) {
            Err(LogError::NoDirtyState) => {
                log!("oracle: {}: not on this CPU", tracker.name());
                self.next_turn(vm);
                return Ok(());
            }
            other => other?,
        }
        self.counts.starts += 1;
        let pages = dirty.pages() as usize;
        self.copy.resize_with(pages, || None);
        self.written.resize(pages, false);
        if !options.all_dirty {
            // The log is empty, so the copy is of the present memory.
            (0..pages).for_each(|page| self.copy_page(vm, page));
        }
        self.state = State::Running { rounds: 2 + self.random.below(20), all_reported: options.all_dirty };
        Ok(())
    }

    /// One round: get, compare, clear, copy.
    fn look(&mut self, vm: &Vm, all_reported: bool) -> Result<(), LogError> {
        let log = vm.dirty_log()?;
        let mut reported = core::mem::take(&mut self.dirty);
        log.get(&mut reported)?;
        let unheard = reported.pages().find(|page| self.plan.is_deaf && !all_reported && self.written[*page as usize]);
        self.compare(vm, &reported, unheard);
        if self.tracker() != Tracker::WriteProtect {
            log.clear_these(&reported)?;
        }
        for page in reported.pages() {
            let page = page as usize;
            self.copy_page(vm, page);
            if !all_reported {
                self.counts.redirtied += u64::from(self.written[page]);
                self.written[page] = true;
            }
        }
        self.dirty = reported;
        self.counts.rounds += 1;
        Ok(())
    }

    /// Compares all pages that the log did not report, and the reported page `unheard`.
    fn compare(&mut self, vm: &Vm, reported: &DirtyPages, unheard: Option<u64>) {
        let mut words = reported.words().iter().peekable();
        for page in 0..self.copy.len() {
            let first = page as u64 / 64 * 64;
            while words.next_if(|word| word.first_page < first).is_some() {}
            let is_reported =
                words.peek().is_some_and(|word| word.first_page == first && word.mask >> (page % 64) & 1 == 1);
            if is_reported && unheard != Some(page as u64) {
                continue;
            }
            self.read(vm, page);
            let same = self.copy[page].as_ref().map_or_else(|| is_zero(&self.page), |copy| is_same(copy, &self.page));
            self.counts.compared += u64::from(self.written[page]);
            if !same {
                self.counts.lost += 1;
                if self.counts.lost <= 4 {
                    let name = self.tracker().name();
                    log!("oracle: {name}: page {page} was written in round {}, and is in no log", self.counts.rounds);
                }
                // A lost page is reported once.
                self.copy_page(vm, page);
            }
        }
    }

    fn copy_page(&mut self, vm: &Vm, page: usize) {
        self.read(vm, page);
        if is_zero(&self.page) {
            self.copy[page] = None;
        } else {
            let copy = self.copy[page].get_or_insert_with(empty);
            core::mem::swap(copy, &mut self.page);
        }
    }

    fn read(&mut self, vm: &Vm, page: usize) {
        let ipa = Ipa::new(RAM_BASE) + (page * PAGE) as u64;
        vm.memory().read(ipa, &mut self.page[..]).expect("the log is of a slot of RAM");
    }

    fn tracker(&self) -> Tracker {
        Tracker::ALL[self.plan.trackers[self.turn]]
    }

    /// Reports the figures of this tracker, and starts the next one.
    fn finish(&mut self, vm: &Vm) {
        let name = TRACKERS[self.plan.trackers[self.turn]];
        let counts = core::mem::take(&mut self.counts);
        for (what, value) in [
            ("compared", counts.compared),
            ("redirtied", counts.redirtied),
            ("lost", counts.lost),
            ("rounds", counts.rounds),
            ("starts", counts.starts),
            ("blocks", counts.blocks),
        ] {
            control::line(STAT, format_args!("oracle.{name}.{what} {value}"));
        }
        self.next_turn(vm);
    }

    fn next_turn(&mut self, vm: &Vm) {
        self.turn += 1;
        if self.turn == self.plan.trackers.len() {
            vm.end(End::PowerOff);
        }
        self.written.fill(false);
        self.state = State::Joining(0);
    }
}

impl Plan {
    /// Reads `TRACKER,...:COMPARISONS:SEED`, and `:deaf` for the negative control.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split_ascii_whitespace().next()?.split(':');
        let number = |name: &str| Tracker::ALL.iter().position(|tracker| tracker.name() == name);
        let plan = Self {
            trackers: parts.next()?.split(',').map(number).collect::<Option<Vec<_>>>()?,
            comparisons: parts.next()?.parse().ok()?,
            // The generator would stay at 0.
            seed: parts.next()?.parse::<u64>().ok()? | 1 << 63,
            is_deaf: match parts.next() {
                None => false,
                Some("deaf") => true,
                Some(_) => return None,
            },
        };
        (!plan.trackers.is_empty()).then_some(plan)
    }
}

/// Xorshift (Marsaglia): the only requirement is that it repeats.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The high bits are better mixed.
        (self.0 >> 20) % end
    }
}

/// Allocated on the heap, because EL2's stack is small.
fn empty() -> Box<Page> {
    alloc::vec![0; PAGE].into_boxed_slice().try_into().expect("it has the length of a page")
}

fn is_zero(page: &Page) -> bool {
    lines(page).all(|line| words(line).fold(0, |all, word| all | word) == 0)
}

fn is_same(one: &Page, other: &Page) -> bool {
    let differs = |(one, other)| words(one).zip(words(other)).fold(0, |all, (one, other)| all | (one ^ other));
    lines(one).zip(lines(other)).all(|both| differs(both) == 0)
}

fn lines(page: &Page) -> impl Iterator<Item = &[u8; 64]> {
    page.as_chunks().0.iter()
}

fn words(line: &[u8; 64]) -> impl Iterator<Item = u64> {
    line.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word))
}
