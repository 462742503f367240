// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client outside of both QEMUs, with one connection through all moves.
//!
//! It sets keys of its own in turn, each to a new value, and reads another of them back, which has to have the value that it set
//! last. Sometimes it asks how many requests Redis has served. It keeps the moment of each answer.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, ensure};
use redis::Connection;

use super::guest::connect;
use crate::experiment::host_clock::Moment;

/// The client's keys.
pub const KEYS: u64 = 1000;
/// The time from one answer to the next question.
const APART: Duration = Duration::from_millis(10);
/// Of this many questions, one is for the number of requests.
const ASKED: u64 = 10;

/// The client, which works in a thread.
pub struct Watcher {
    seen: Arc<Mutex<Seen>>,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<u64>>,
}

/// Requests that Redis had served at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When the answer came.
    pub at: Moment,
    /// All requests until then, the client's own included.
    pub served: u64,
}

/// What the client has seen.
#[derive(Debug, Default)]
struct Seen {
    answers: Vec<Moment>,
    samples: Vec<Sample>,
}

impl Watcher {
    /// Connects, and begins.
    ///
    /// # Errors
    ///
    /// There is no connection.
    pub fn start(redis: SocketAddr) -> anyhow::Result<Self> {
        let connection = connect(redis).context("a connection of the client outside")?;
        let (seen, is_over) = (Arc::<Mutex<Seen>>::default(), Arc::<AtomicBool>::default());
        let thread = {
            let (seen, is_over) = (Arc::clone(&seen), Arc::clone(&is_over));
            thread::spawn(move || watch(connection, &seen, &is_over))
        };
        Ok(Self { seen, is_over, thread })
    }

    /// The last number of requests.
    pub fn served(&self) -> u64 {
        self.seen().samples.last().map_or(0, |sample| sample.served)
    }

    /// What was served from one moment to another.
    pub fn samples(&self, from: Moment, to: Moment) -> Vec<Sample> {
        self.seen().samples.iter().filter(|sample| (from..=to).contains(&sample.at)).copied().collect()
    }

    /// The longest time without an answer that ended between these moments.
    pub fn longest_gap(&self, from: Moment, to: Moment) -> Duration {
        longest_gap(&self.seen().answers, from, to)
    }

    /// When it got the last answer.
    pub fn last_answer(&self) -> Option<Moment> {
        self.seen().answers.last().copied()
    }

    /// Whether it still works.
    pub fn works(&self) -> bool {
        !self.thread.is_finished()
    }

    /// Ends it: it reads all its keys once more. Returns how many answers it has had.
    ///
    /// # Errors
    ///
    /// A key had another value than it was set to, or the connection was dropped.
    pub fn end(self) -> anyhow::Result<u64> {
        self.is_over.store(true, Ordering::Release);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn watch(mut connection: Connection, seen: &Mutex<Seen>, is_over: &AtomicBool) -> anyhow::Result<u64> {
    let mut answers = 0;
    for number in 0.. {
        if is_over.load(Ordering::Acquire) {
            for key in 0..number.min(KEYS) {
                check(&mut connection, key, number)?;
            }
            break;
        }
        let key = number % KEYS;
        redis::cmd("SET").arg(name(key)).arg(number).exec(&mut connection).context(DROPPED)?;
        // Another key each time, and all of them in time.
        check(&mut connection, number * 7 % KEYS.min(number + 1), number + 1)?;
        let served = if number % ASKED == 0 { Some(served(&mut connection)?) } else { None };
        let at = Moment::now();
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.answers.push(at);
        seen.samples.extend(served.map(|served| Sample { at, served }));
        drop(seen);
        answers += 1;
        thread::sleep(APART);
    }
    Ok(answers)
}

/// Reads a key back, after `set` keys were set in turn.
fn check(connection: &mut Connection, key: u64, set: u64) -> anyhow::Result<()> {
    let found: Option<u64> = redis::cmd("GET").arg(name(key)).query(connection).context(DROPPED)?;
    let wanted = last_value(key, set);
    ensure!(found == wanted, "the key {} was set to {wanted:?}, and is {found:?}", name(key));
    Ok(())
}

/// The value that the key has after the values 0 to `set - 1` were given to the keys in turn.
fn last_value(key: u64, set: u64) -> Option<u64> {
    let rounds = set.checked_sub(key + 1)? / KEYS;
    Some(key + rounds * KEYS)
}

fn served(connection: &mut Connection) -> anyhow::Result<u64> {
    let info: String = redis::cmd("INFO").arg("stats").query(connection).context(DROPPED)?;
    let line = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
    line.and_then(|number| number.trim().parse().ok()).context("Redis does not say how many requests it has served")
}

fn name(key: u64) -> String {
    format!("watched:{key}")
}

fn longest_gap(answers: &[Moment], from: Moment, to: Moment) -> Duration {
    let gaps = answers.windows(2).filter(|pair| (from..=to).contains(&pair[1]));
    gaps.map(|pair| pair[1].since(pair[0])).max().unwrap_or_default()
}

const DROPPED: &str = "the connection of the client outside";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_the_last_value_that_it_was_given() {
        for set in [0, 1, 5, KEYS, KEYS + 1, 3 * KEYS - 1] {
            let mut values = vec![None; KEYS as usize];
            (0..set).for_each(|number| values[(number % KEYS) as usize] = Some(number));
            for (key, value) in (0..).zip(values) {
                assert_eq!(last_value(key, set), value, "key {key} of {set}");
            }
        }
    }

    #[test]
    fn a_gap_counts_where_it_ends() {
        let start = Moment::now();
        let at = |milliseconds| start.after(Duration::from_millis(milliseconds));
        let answers = [0, 10, 500, 510, 900].map(at);
        let gap = |from, to| longest_gap(&answers, at(from), at(to)).as_millis();
        assert_eq!((gap(0, 1000), gap(0, 499), gap(501, 1000), gap(901, 1000)), (490, 10, 390, 0));
    }
}
