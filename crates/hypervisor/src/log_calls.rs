// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's own calls for the dirty log of its RAM ([`twofold_abi::vendor`]), and what each step of it took.
//!
//! Up to the end of the first clear everything belongs to the start, since all pages may be dirty then. After that it goes
//! round: writes that fault, a get, a clear. Invariant: what the engine executes between two calls was executed for faults,
//! as the only guest that there is makes the calls; so nothing is counted in a fault itself, and it costs what it costs
//! without this.

use twofold_abi::{control as channel, vendor};
use twofold_memory::dirty::{DirtyLog, DirtyPages, LogError, LogOptions, Tracker};

use crate::platform::{EnginePlatform, Flushes};
use crate::stats::{Meter, Purpose, Stats};
use crate::vm::Vm;
use crate::{control, log};

/// What the calls of one vCPU have left.
#[derive(Default)]
pub struct LogCalls {
    pages: DirtyPages,
    measured: Option<Measured>,
}

/// A log that the guest has started.
struct Measured {
    tracker: usize,
    /// Whether it was cleared, so that what happens from now on is counted.
    is_settled: bool,
    /// What had been spent when it was.
    before: Spent,
    /// What the engine had executed when the last call was over.
    last: Flushes,
    iterations: u64,
    pages: u64,
    faults: Flushes,
    gets: Flushes,
    clears: Flushes,
}

/// What a vCPU has spent on a log.
#[derive(Clone, Copy, Default)]
struct Spent {
    faults: u64,
    fault: u64,
    get: u64,
    clear: u64,
}

impl LogCalls {
    /// Answers the call with these arguments (x0 to x3); `None` where it is none for a log.
    pub fn call(&mut self, vm: &Vm, stats: &Stats, meter: &mut Meter, arguments: [u64; 4]) -> Option<i64> {
        let [function, first, second, third] = arguments;
        let function = u32::try_from(function).ok().filter(|function| CALLS.contains(function))?;
        let before = flushes(vm);
        if let Some(measured) = &mut self.measured {
            measured.faults += before - measured.last;
        }
        let result = vm.dirty_log().and_then(|dirty| match function {
            vendor::LOG_START => self.start(&dirty, [first, second, third]),
            vendor::LOG_GET => dirty.get(&mut self.pages).map(|()| self.pages.count() as i64),
            vendor::LOG_CLEAR => dirty.clear_these(&self.pages).map(|()| vendor::SUCCESS),
            _ => dirty.stop().map(|()| vendor::SUCCESS),
        });
        let answer = result.unwrap_or_else(|error| {
            log!("the guest's call {function:#x} for its dirty log: {error}");
            if error == LogError::NoDirtyState { vendor::NOT_SUPPORTED } else { vendor::INVALID_PARAMETER }
        });
        if answer >= 0
            && let Some(measured) = &mut self.measured
        {
            meter.is_for(measured.account(function, answer, flushes(vm) - before, stats));
            measured.last = flushes(vm);
            if function == vendor::LOG_STOP {
                measured.report(stats);
                self.measured = None;
            }
        }
        Some(answer)
    }

    fn start(
        &mut self,
        dirty: &DirtyLog<'_, EnginePlatform>,
        [tracker, all, chunk]: [u64; 3],
    ) -> Result<i64, LogError> {
        let Some((number, tracker)) = Tracker::ALL.into_iter().enumerate().nth(tracker as usize) else {
            return Ok(vendor::INVALID_PARAMETER);
        };
        dirty.start(&LogOptions { all_dirty: all != 0, chunk, ..LogOptions::new(tracker) })?;
        self.measured = Some(Measured {
            tracker: number,
            is_settled: false,
            before: Spent::default(),
            last: Flushes::default(),
            iterations: 0,
            pages: 0,
            faults: Flushes::default(),
            gets: Flushes::default(),
            clears: Flushes::default(),
        });
        Ok(vendor::SUCCESS)
    }
}

const CALLS: [u32; 4] = [vendor::LOG_START, vendor::LOG_GET, vendor::LOG_CLEAR, vendor::LOG_STOP];

fn flushes(vm: &Vm) -> Flushes {
    vm.memory().stage2().platform().counts().flushes()
}

impl Measured {
    /// Counts a call that went well; what its instructions are to be put down to.
    fn account(&mut self, function: u32, answer: i64, flushes: Flushes, stats: &Stats) -> Purpose {
        if !self.is_settled {
            let clears = if self.tracker == vendor::WRITE_PROTECT { vendor::LOG_GET } else { vendor::LOG_CLEAR };
            if function == clears {
                self.is_settled = true;
                self.before = Spent::by(stats);
                self.faults = Flushes::default();
            }
            return Purpose::LogStart;
        }
        match function {
            vendor::LOG_GET => {
                self.iterations += 1;
                self.pages += answer as u64;
                self.gets += flushes;
                Purpose::LogGet
            }
            vendor::LOG_CLEAR => {
                self.clears += flushes;
                Purpose::LogClear
            }
            _ => Purpose::LogStart,
        }
    }

    /// Writes what it took to the control channel.
    fn report(&self, stats: &Stats) {
        let (now, before) = (Spent::by(stats), self.before);
        let write = |what: &str, value: u64| {
            let tracker = vendor::TRACKERS[self.tracker];
            control::line(channel::STAT, format_args!("dirty_log.{tracker}.{what} {value}"));
        };
        write("iterations", self.iterations);
        write("pages", self.pages);
        write("faults", now.faults - before.faults);
        write("fault.instructions", now.fault - before.fault);
        write("get.instructions", now.get - before.get);
        write("clear.instructions", now.clear - before.clear);
        let steps = [
            ("fault.tlbi", "fault.dsb", self.faults),
            ("get.tlbi", "get.dsb", self.gets),
            ("clear.tlbi", "clear.dsb", self.clears),
        ];
        for (tlbi, dsb, flushes) in steps {
            write(tlbi, flushes.tlbi);
            write(dsb, flushes.dsb);
        }
    }
}

impl Spent {
    fn by(stats: &Stats) -> Self {
        Self {
            faults: stats.write_faults(),
            fault: stats.instructions(Purpose::WriteFault),
            get: stats.instructions(Purpose::LogGet),
            clear: stats.instructions(Purpose::LogClear),
        }
    }
}

const _: () = assert!(vendor::TRACKERS.len() == Tracker::ALL.len(), "each tracker has a name in figures");
