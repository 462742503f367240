// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The clock: CPU time of the calling thread. It stands still while another thread has the CPU.

use rustix::time::{ClockId, clock_gettime};

/// A point in this thread's CPU time.
#[derive(Clone, Copy, Debug)]
pub struct Moment(f64);

impl Moment {
    /// Now.
    pub fn now() -> Self {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Self(time.tv_sec as f64 * 1e9 + time.tv_nsec as f64)
    }

    /// Nanoseconds of CPU time of this thread since this moment.
    pub fn elapsed(self) -> f64 {
        Self::now().0 - self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_time_and_sleep_does_not() {
        let start = Moment::now();
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert!(start.elapsed() < 200e6);
        let mut sum = 0u64;
        for number in 0..1_000_000 {
            sum = std::hint::black_box(sum + number);
        }
        assert!(start.elapsed() > 10e3);
    }
}
