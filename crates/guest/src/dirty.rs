// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `dirty=SIZE`: the price of a dirty log, tracker by tracker.
//!
//! All of the memory is written once. Then, for each tracker, the guest starts its own log by vendor calls, and writes all
//! of it again and again, one word in each page, with a get and a clear after each time. Between a clear and the next get
//! the program writes to those pages, and to hardly any other: so what a hypervisor counts meanwhile is what they cost.

use core::arch::asm;

use twofold_abi::vendor::{LOG_CLEAR, LOG_GET, LOG_START, LOG_STOP, NOT_SUPPORTED, SUCCESS, TRACKERS, WRITE_PROTECT};

use crate::memory::Memory;
use crate::touch;
use crate::uart::println;

/// Why [`run`] failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Memory(#[from] touch::Failure),
    #[error("{tracker}: {call} answered {answer}")]
    Refused { tracker: &'static str, call: &'static str, answer: i64 },
    #[error("{tracker}: the log tells of {told} pages, and {written} were written")]
    Lost { tracker: &'static str, told: i64, written: u64 },
    #[error("{tracker}: the log tells of {told} pages, and only {written} were written")]
    TooMany { tracker: &'static str, told: i64, written: u64 },
    #[error("no tracker is there")]
    NoTracker,
}

/// Measures with `bytes` of free RAM, rounded up to whole pages.
pub fn run(memory: &Memory, bytes: u64) -> Result<(), Failure> {
    let pages = touch::touch(memory, bytes, 0)?;
    let mut measured = 0;
    for (number, tracker) in TRACKERS.into_iter().enumerate() {
        let all_dirty = u64::from(number != WRITE_PROTECT);
        match call(LOG_START, [number as u64, all_dirty, CHUNK]) {
            SUCCESS => {}
            NOT_SUPPORTED => {
                println!("dirty log, {tracker}: not on this machine");
                continue;
            }
            answer => return Err(Failure::Refused { tracker, call: "start", answer }),
        }
        let log = Log { tracker, clears: number != WRITE_PROTECT };
        // What was dirty at the start, or written since.
        log.get()?;
        log.clear()?;
        for iteration in 1..=ITERATIONS {
            touch::touch(memory, bytes, iteration)?;
            let told = log.get()?;
            if told < pages as i64 {
                return Err(Failure::Lost { tracker, told, written: pages });
            }
            if told > (pages + OTHERS) as i64 {
                return Err(Failure::TooMany { tracker, told, written: pages });
            }
            log.clear()?;
        }
        log.check("stop", call(LOG_STOP, [0; 3]))?;
        println!("dirty log, {tracker}: {ITERATIONS} times {pages} pages");
        measured += 1;
    }
    if measured == 0 { Err(Failure::NoTracker) } else { Ok(()) }
}

const ITERATIONS: u64 = 4;
/// What is split at once, where there are blocks.
const CHUNK: u64 = 2 << 20;
/// Pages that the program itself may write to meanwhile: its stack and its data.
const OTHERS: u64 = 8;

/// A log that runs.
struct Log {
    tracker: &'static str,
    /// Whether it is cleared apart.
    clears: bool,
}

impl Log {
    fn get(&self) -> Result<i64, Failure> {
        self.check("get", call(LOG_GET, [0; 3]))
    }

    fn clear(&self) -> Result<(), Failure> {
        if self.clears {
            self.check("clear", call(LOG_CLEAR, [0; 3]))?;
        }
        Ok(())
    }

    fn check(&self, call: &'static str, answer: i64) -> Result<i64, Failure> {
        if answer < 0 { Err(Failure::Refused { tracker: self.tracker, call, answer }) } else { Ok(answer) }
    }
}

fn call(function: u32, [a, b, c]: [u64; 3]) -> i64 {
    let answer: i64;
    // SAFETY: the call changes no memory of the guest's, and the registers that SMCCC lets it change are declared.
    unsafe {
        asm!("hvc #0", inout("x0") u64::from(function) => answer, inout("x1") a => _, inout("x2") b => _,
            inout("x3") c => _, clobber_abi("C"), options(nostack));
    }
    answer
}
