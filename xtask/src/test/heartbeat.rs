// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Prints a line every [`EVERY`] that names the running part, so that a log without new lines shows a hang.
//!
//! Running parts are in a list; the line names the one that began last. Invariant: a part leaves the list when its
//! [`during`] returns or panics.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use twofold_workspace::output;

/// Runs `work`; lines that are printed meanwhile have its name.
pub fn during<T>(name: &str, work: impl FnOnce() -> T) -> T {
    let _running = Running::begin(name);
    work()
}

/// Runs `work` and prints lines meanwhile, to standard error: standard output belongs to the test harness.
pub fn beating<T>(work: impl FnOnce() -> T) -> T {
    let ended = (Mutex::new(false), Condvar::new());
    thread::scope(|scope| {
        scope.spawn(|| beat(&ended));
        let end = End(&ended);
        let result = work();
        drop(end);
        result
    })
}

/// The time between two lines.
const EVERY: Duration = Duration::from_secs(20);

static RUNNING: Mutex<Vec<(u64, String, Instant)>> = Mutex::new(Vec::new());

/// Locks the list. A poisoned list is still valid, because each change is a single operation.
fn running() -> MutexGuard<'static, Vec<(u64, String, Instant)>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An entry of the list.
struct Running(u64);

impl Running {
    fn begin(name: &str) -> Self {
        let mut running = running();
        let number = running.last().map_or(0, |(number, ..)| number + 1);
        running.push((number, name.to_owned(), Instant::now()));
        Self(number)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        running().retain(|(number, ..)| *number != self.0);
    }
}

/// Stops the lines on drop, even if the work panicked.
struct End<'a>(&'a (Mutex<bool>, Condvar));

impl Drop for End<'_> {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }
}

fn beat((ended, changed): &(Mutex<bool>, Condvar)) {
    let mut is_ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
    while !*is_ended {
        let (guard, waited) = changed.wait_timeout(is_ended, EVERY).unwrap_or_else(PoisonError::into_inner);
        is_ended = guard;
        if waited.timed_out() && !*is_ended {
            line().into_iter().for_each(|line| output::remark(&line));
        }
    }
}

fn line() -> Option<String> {
    let running = running();
    let (_, name, since) = running.last()?;
    Some(format!("running: {name}, for {} s", since.elapsed().as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_began_last_is_named_until_it_ends() {
        during("suite", || {
            assert!(line().unwrap().starts_with("running: suite, for 0 s"));
            during("step", || assert!(line().unwrap().starts_with("running: step,")));
            let panicked = thread::spawn(|| during("panics", || panic!("on purpose"))).join();
            assert!(panicked.is_err() && line().unwrap().starts_with("running: suite,"));
        });
        assert_eq!(line(), None);
        assert_eq!(beating(|| 7), 7, "the lines end with the work, not at the next line");
    }
}
