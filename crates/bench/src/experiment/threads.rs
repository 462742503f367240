// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Threads as the system sees them: where they are, and what CPU time they took.

use std::fs;

use anyhow::{Context, ensure};
use rustix::thread::{CpuSet, gettid, sched_setaffinity};

/// A thread of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadId(i32);

impl ThreadId {
    /// This thread.
    pub fn this() -> Self {
        Self(gettid().as_raw_nonzero().get())
    }

    /// Nanoseconds of CPU time that it took, from any thread; `None` where the kernel does not tell.
    pub fn cpu_time(self) -> Option<f64> {
        let text = fs::read_to_string(format!("/proc/self/task/{}/schedstat", self.0)).ok()?;
        text.split_whitespace().next()?.parse().ok()
    }
}

/// From here on this thread is on that CPU alone.
///
/// # Errors
///
/// There is no such CPU, or it is not for this process.
pub fn pin(cpu: usize) -> anyhow::Result<()> {
    ensure!(cpu < CpuSet::MAX_CPU, "there is no CPU {cpu}");
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("a thread cannot be on CPU {cpu}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_works_takes_cpu_time() {
        let this = ThreadId::this();
        let Some(before) = this.cpu_time() else {
            println!("this kernel does not tell what a thread took");
            return;
        };
        // As long as it takes: the kernel may count by its ticks.
        while this.cpu_time().unwrap() == before {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn there_is_no_such_cpu() {
        assert!(pin(usize::MAX).unwrap_err().to_string().contains("there is no CPU"));
    }
}
