// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Records the pages that the guest writes, in images with the feature `record`. It gets and clears the guest's dirty
//! log at each change of process: the shortest interval at which an exit to EL2 is certain.
//!
//! The last rounds are kept, and reported when the guest switches itself off, so the workload to record must run last.
//! Invariant: nothing is written to the control channel while the guest runs, so the interval is the guest's own.

use alloc::collections::VecDeque;
use alloc::string::String;
use core::fmt::Write;

use spin::Once;
use twofold_abi::control::{RECORD_ARGUMENT, ROUND};
use twofold_memory::dirty::{DirtyPages, LogError, LogOptions, Tracker};
use twofold_stage2::Features;

use super::exit_observer::ExitObserver;
use super::observed_guest::ObservedGuest;
use super::translation_registers;
use crate::board::Board;
use crate::context::Context;
use crate::memory::Taken;
use crate::{control, read_sysreg};

/// The rounds that were recorded so far.
pub struct Recorder {
    rounds: VecDeque<Round>,
    most: usize,
    is_running: bool,
}

struct Round {
    pages: DirtyPages,
    /// The machine's counter at the end of the round.
    end: u64,
}

static ROUNDS: Once<usize> = Once::new();

impl ExitObserver for Recorder {
    type Error = RecordError;

    const TRAPS: u64 = translation_registers::TVM;
    /// The heap also holds the pages of hundreds of rounds.
    const RAM_PER_HEAP: u64 = 16;
    const ONE_VCPU: bool = true;

    /// Reads the number of rounds to keep from the image's own command line.
    fn begin(board: &Board, cpus: u32, _: &Features, _: &Taken) -> Result<(), RecordError> {
        let rounds = board.bootargs.split_once(RECORD_ARGUMENT);
        let rounds = rounds.and_then(|(_, text)| text.split_ascii_whitespace().next()?.parse().ok());
        let rounds = rounds.filter(|rounds| *rounds > 0).ok_or(RecordError::Argument)?;
        if cpus != 1 {
            return Err(RecordError::Cpus { cpus });
        }
        ROUNDS.call_once(|| rounds);
        Ok(())
    }

    fn vcpu_starts(_: usize) -> Self {
        let most = *ROUNDS.get().expect("the plan was read before there was a guest");
        Self { rounds: VecDeque::with_capacity(most), most, is_running: false }
    }

    fn register_trapped(&mut self, esr: u64, context: &mut Context) -> bool {
        translation_registers::write(esr, context)
    }

    fn after_answer(&mut self, guest: &impl ObservedGuest, esr: u64) {
        if translation_registers::is_change_of_process(esr)
            && let Err(error) = self.round(guest)
        {
            guest.fail(format_args!("the recorder: {error}"));
        }
    }

    fn guest_ends(&mut self, guest: &impl ObservedGuest) {
        self.report(guest);
    }
}

/// Why the recorder cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The argument is missing or wrong.
    #[error("this image needs `{RECORD_ARGUMENT}ROUNDS`: start it with `cargo xtask record-redis`")]
    Argument,
    /// The rounds of several vCPUs would have no order.
    #[error("the recorder works with one vCPU, not with {cpus}")]
    Cpus {
        /// The number of vCPUs.
        cpus: u32,
    },
}

impl Recorder {
    fn round(&mut self, guest: &impl ObservedGuest) -> Result<(), LogError> {
        let log = guest.dirty_log()?;
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

    /// Writes the recorded rounds to the control channel.
    fn report(&self, guest: &impl ObservedGuest) {
        for (number, round) in self.rounds.iter().enumerate() {
            let mut line = String::new();
            for (first, count) in runs(&round.pages) {
                let _ = write!(line, " {first}+{count}");
                if line.len() > LINE {
                    control::line(ROUND, format_args!("{number}{line}"));
                    line.clear();
                }
            }
            // Even without runs, so that a round without a page is reported.
            control::line(ROUND, format_args!("{number}{line}"));
        }
        let end = |round: Option<&Round>| round.map_or(0, |round| round.end);
        let ticks = end(self.rounds.back()) - end(self.rounds.front());
        control::stat("record.rounds", self.rounds.len() as u64);
        control::stat("record.pages", guest.dirty_log().map_or(0, |log| log.pages()));
        control::stat("record.microseconds", ticks.saturating_mul(1_000_000) / read_sysreg!(CNTFRQ_EL0));
    }
}

/// Bytes of runs in a line: below the limit of the control channel.
const LINE: usize = 900;

/// Runs of consecutive pages: the first page and the count.
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
