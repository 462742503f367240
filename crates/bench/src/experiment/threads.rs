// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Threads as the system sees them: their CPUs, and their CPU time.

use std::fs;

use anyhow::{Context, ensure};
use rustix::thread::{CpuSet, gettid, sched_setaffinity};

/// A thread of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadId(i32);

impl ThreadId {
    /// The calling thread.
    pub fn this() -> Self {
        Self(gettid().as_raw_nonzero().get())
    }

    /// Nanoseconds of CPU time; callable from any thread. `None` if the kernel does not report it.
    pub fn cpu_time(self) -> Option<f64> {
        let text = fs::read_to_string(format!("/proc/self/task/{}/schedstat", self.0)).ok()?;
        text.split_whitespace().next()?.parse().ok()
    }
}

/// Binds the calling thread to one CPU.
///
/// # Errors
///
/// The CPU does not exist, or this process may not use it.
pub fn pin(cpu: usize) -> anyhow::Result<()> {
    ensure!(cpu < CpuSet::MAX_CPU, "there is no CPU {cpu}");
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("cannot run a thread on CPU {cpu}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_works_takes_cpu_time() {
        let this = ThreadId::this();
        let Some(before) = this.cpu_time() else {
            println!("this kernel does not report a thread's CPU time");
            return;
        };
        // No time limit: the kernel may count in ticks.
        while this.cpu_time().unwrap() == before {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn there_is_no_such_cpu() {
        assert!(pin(usize::MAX).unwrap_err().to_string().contains("there is no CPU"));
    }
}
