// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The host's clock, which all processes of the host share, and threads for streams.

use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use twofold_migration::Runtime;

/// A moment of the host's monotonic clock, the same in each process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment(Duration);

impl Moment {
    /// Now.
    pub fn now() -> Self {
        let time = clock_gettime(ClockId::Monotonic);
        Self(Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32))
    }

    /// The moment that is this much later.
    #[cfg(test)]
    pub fn after(self, time: Duration) -> Self {
        Self(self.0 + time)
    }

    /// The time since an earlier moment; none if that is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// The clock and the threads of a migration.
#[derive(Clone, Copy, Debug)]
pub struct Threads;

impl Runtime for Threads {
    fn now(&self) -> Duration {
        Moment::now().0
    }

    fn wait(&self, time: Duration) {
        thread::sleep(time);
    }

    fn each<S: Send>(&self, streams: &mut [S], work: impl Fn(&mut S) + Sync) {
        match streams {
            // A thread would cost more than it saves.
            [one] => work(one),
            many => {
                let work = &work;
                thread::scope(|scope| many.iter_mut().for_each(|stream| drop(scope.spawn(move || work(stream)))));
            }
        }
    }
}
