// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The durations of the parts of a run, which show the cause if a tier grows too long.
//!
//! Parts may run in parallel, so their durations do not add up to the run's.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Runs `work`, and records its duration under `name`.
pub fn timed<T>(name: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    keep(name, start.elapsed());
    result
}

/// Records the duration of a part.
pub fn keep(name: &str, time: Duration) {
    PARTS.lock().unwrap_or_else(PoisonError::into_inner).push((time, name.to_owned()));
}

/// Returns a line for each of the slowest recorded parts, the slowest first. Parts below a second are left out.
pub fn lines() -> Vec<String> {
    shown(PARTS.lock().unwrap_or_else(PoisonError::into_inner).clone())
}

/// The largest number of parts that are shown.
const SHOWN: usize = 10;

static PARTS: Mutex<Vec<(Duration, String)>> = Mutex::new(Vec::new());

fn shown(mut parts: Vec<(Duration, String)>) -> Vec<String> {
    parts.retain(|(time, _)| *time >= Duration::from_secs(1));
    parts.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
    parts.iter().take(SHOWN).map(|(time, name)| format!("{:7.1} s  {name}", time.as_secs_f64())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_ten_come_first_and_short_ones_not_at_all() {
        let part = |seconds| (Duration::from_secs_f64(seconds), format!("took {seconds}"));
        let lines = shown(vec![part(2.0), part(0.9), part(104.25), part(1.0)]);
        assert_eq!(lines, ["  104.2 s  took 104.25", "    2.0 s  took 2", "    1.0 s  took 1"]);
        assert_eq!(shown((1..20).map(|seconds| part(f64::from(seconds))).collect()).len(), SHOWN);
    }

    #[test]
    fn a_part_is_kept_with_its_name() {
        assert_eq!(timed("a part of this test", || 7), 7);
        let parts = PARTS.lock().unwrap();
        assert!(parts.iter().any(|(_, name)| name == "a part of this test"));
    }
}
