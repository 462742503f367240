// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an operation costs the thread that does it: wall time, CPU time, and instructions of the kernel.
//!
//! The instructions are those in the host's kernel alone: on arm64 with VHE that is EL2. What it takes to read the counter
//! was measured before, and is not among them.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use perf_event::events::Hardware;
use perf_event::{Builder, Counter};
use rustix::time::{ClockId, clock_gettime};

/// What something cost a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Time on the wall.
    pub wall: Duration,
    /// CPU time; a vCPU's includes its guest's.
    pub cpu: Duration,
    /// Instructions that the host's kernel executed; `None` where there is no counter, or nobody may read it.
    pub instructions: Option<u64>,
}

/// Whether the calling thread can count instructions of the kernel.
pub fn counts_instructions() -> bool {
    METER.with_borrow_mut(|meter| meter.read().is_some())
}

/// Does it, and what it cost.
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
    /// Instructions from one reading to the next, with nothing in between.
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
        // With the clocks' readings in between, as in `measured`: without a vDSO they are calls too.
        let price = (0..16).filter_map(|_| {
            let before = meter.read()?;
            let _ = (cpu_time(), Instant::now().elapsed(), cpu_time());
            Some(meter.read()? - before)
        });
        let price = price.collect::<Vec<_>>().into_iter().min();
        // A counter that never counts is none: an emulated PMU may be one.
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
