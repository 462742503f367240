// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Records which pages the guest writes, in images with the feature `record`: its dirty log, got and cleared at each change of
//! process, which is the shortest interval at which EL2 is sure to be there.
//!
//! The last rounds are kept, and told when the guest switches itself off: so what is to be recorded runs last. Invariant:
//! while the guest runs nothing is written anywhere, so that the interval is the guest's.

use alloc::collections::VecDeque;
use alloc::string::String;
use core::fmt::Write;

use spin::Once;
use twofold_abi::control::{RECORD_ARGUMENT, ROUND};
use twofold_memory::dirty::{DirtyPages, LogError, LogOptions, Tracker};

use crate::board::Board;
use crate::translation_registers::is_change_of_process;
use crate::vm::Vm;
use crate::{control, read_sysreg};

/// Reads how many rounds are to be kept from the image's own command line.
///
/// # Errors
///
/// It does not say, or there is more than one vCPU.
pub fn begin(board: &Board, cpus: u32) -> Result<(), RecordError> {
    let rounds = board.bootargs.split_once(RECORD_ARGUMENT).and_then(|(_, text)| text.split_ascii_whitespace().next());
    let rounds = rounds.and_then(|text| text.parse().ok()).filter(|rounds| *rounds > 0);
    let rounds = rounds.ok_or(RecordError::Argument)?;
    if cpus != 1 {
        return Err(RecordError::Cpus { cpus });
    }
    ROUNDS.call_once(|| rounds);
    Ok(())
}

/// Why nothing can be recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The argument is missing, or wrong.
    #[error("this image wants `{RECORD_ARGUMENT}ROUNDS`: start it with `cargo xtask record-redis`")]
    Argument,
    /// Rounds of several vCPUs would not be in an order.
    #[error("the writes of one vCPU are recorded, not of {cpus}")]
    Cpus {
        /// How many there are.
        cpus: u32,
    },
}

/// What was recorded so far.
pub struct Recorder {
    rounds: VecDeque<Round>,
    most: usize,
    is_running: bool,
}

struct Round {
    pages: DirtyPages,
    /// The counter at its end.
    end: u64,
}

static ROUNDS: Once<usize> = Once::new();

impl Recorder {
    /// One that has not seen anything yet. After [`begin`].
    pub fn planned() -> Self {
        let most = *ROUNDS.get().expect("the plan was read before there was a guest");
        Self { rounds: VecDeque::with_capacity(most), most, is_running: false }
    }

    /// The guest has left, and is answered.
    pub fn exit(&mut self, vm: &Vm, esr: u64) {
        if is_change_of_process(esr)
            && let Err(error) = self.round(vm)
        {
            vm.fail(format_args!("the recorder: {error}"));
        }
    }

    fn round(&mut self, vm: &Vm) -> Result<(), LogError> {
        let log = vm.dirty_log()?;
        if !self.is_running {
            log.start(&LogOptions { all_dirty: false, ..LogOptions::new(Tracker::Manual) })?;
            self.is_running = true;
            return Ok(());
        }
        let is_full = self.rounds.len() == self.most;
        let oldest = if is_full { self.rounds.pop_front() } else { None };
        let mut pages = oldest.map_or_else(DirtyPages::new, |round| round.pages);
        log.get(&mut pages)?;
        log.clear_these(&pages)?;
        self.rounds.push_back(Round { pages, end: read_sysreg!(CNTPCT_EL0) });
        Ok(())
    }

    /// Writes what is kept to the control channel.
    pub fn tell(&self, vm: &Vm) {
        for (number, round) in self.rounds.iter().enumerate() {
            let mut line = String::new();
            for (first, count) in runs(&round.pages) {
                let _ = write!(line, " {first}+{count}");
                if line.len() > LINE {
                    control::line(ROUND, format_args!("{number}{line}"));
                    line.clear();
                }
            }
            // Also where nothing is left, so that a round without a page is told of.
            control::line(ROUND, format_args!("{number}{line}"));
        }
        let end = |round: Option<&Round>| round.map_or(0, |round| round.end);
        let ticks = end(self.rounds.back()) - end(self.rounds.front());
        control::stat("record.rounds", self.rounds.len() as u64);
        control::stat("record.pages", vm.dirty_log().map_or(0, |log| log.pages()));
        control::stat("record.microseconds", ticks.saturating_mul(1_000_000) / read_sysreg!(CNTFRQ_EL0));
    }
}

/// Bytes of runs in a line: what the control channel does not cut.
const LINE: usize = 900;

/// Pages that follow each other: the first, and how many.
fn runs(pages: &DirtyPages) -> impl Iterator<Item = (u64, u64)> {
    let mut pages = pages.pages().peekable();
    core::iter::from_fn(move || {
        let first = pages.next()?;
        let mut count = 1;
        while pages.next_if_eq(&(first + count)).is_some() {
            count += 1;
        }
        Some((first, count))
    })
}
