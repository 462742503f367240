// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cost of an operation for the thread that runs it: wall-clock time, CPU time, and instructions of the kernel.
//!
//! Only the instructions of the host's kernel are counted; on arm64 with VHE, that is EL2. The cost of reading the
//! counter is measured before, and subtracted.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use perf_event::events::Hardware;
use perf_event::{Builder, Counter};
use rustix::time::{ClockId, clock_gettime};

/// The cost of an operation for a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Wall-clock time.
    pub wall: Duration,
    /// CPU time; a vCPU's includes its guest's.
    pub cpu: Duration,
    /// Instructions that the host's kernel executed; `None` if there is no counter, or this process may not read it.
    pub instructions: Option<u64>,
}

/// Returns whether the calling thread can count instructions of the kernel.
pub fn counts_instructions() -> bool {
    METER.with_borrow_mut(|meter| meter.read().is_some())
}

/// Runs `work`; returns its result and its cost.
pub(crate) fn measured<T>(work: impl FnOnce() -> T) -> (T, Cost) {
    let before = METER.with_borrow_mut(Meter::read);
    let cpu = cpu_time();
    let start = Instant::now();
    let result = work();
    let wall = start.elapsed();
    let cpu = cpu_time().saturating_sub(cpu);
    let instructions = METER.with_borrow_mut(|meter| Some(meter.read()?.saturating_sub(before? + meter.price)));
    (result, Cost { wall, cpu, instructions })
}

thread_local! {
    static METER: RefCell<Meter> = RefCell::new(Meter::open());
}

/// A thread's counter.
struct Meter {
    counter: Option<Counter>,
    /// Instructions between two successive readings.
    price: u64,
}

impl Meter {
    fn open() -> Self {
        let mut builder = Builder::new(Hardware::INSTRUCTIONS);
        builder
            .exclude_user(true)
            .exclude_kernel(false)
            .exclude_hv(false)
            .exclude_guest(true)
            .pinned(true)
            .enabled(true);
        let mut meter = Self { counter: builder.build().ok(), price: 0 };
        // The clocks are read in between, as in `measured`: without a vDSO those are system calls too.
        let price = (0..16).filter_map(|_| {
            let before = meter.read()?;
            let _ = (cpu_time(), Instant::now().elapsed(), cpu_time());
            Some(meter.read()? - before)
        });
        let price = price.collect::<Vec<_>>().into_iter().min();
        // An emulated PMU may have a counter that never counts. It is ignored.
        match price {
            Some(price) if price > 0 => meter.price = price,
            _ => meter.counter = None,
        }
        meter
    }

    fn read(&mut self) -> Option<u64> {
        self.counter.as_mut()?.read().ok()
    }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_costs_and_sleep_does_not() {
        let (_, slept) = measured(|| std::thread::sleep(Duration::from_millis(200)));
        assert!(slept.wall >= Duration::from_millis(200) && slept.cpu < slept.wall / 2, "{slept:?}");
        let (_, worked) = measured(|| (0..2_000_000u64).fold(0, |sum, number| std::hint::black_box(sum + number)));
        assert!(worked.cpu > Duration::from_micros(100), "{worked:?}");
        assert_eq!(worked.instructions.is_some(), counts_instructions());
    }
}
