// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The requests that a guest has served, over time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use twofold_machine::key_value::Served;

use crate::experiment::host_clock::Moment;

/// Requests that were served until a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// When.
    pub at: Moment,
    /// All requests of the guest until then.
    pub served: u64,
}

/// Takes samples until it is stopped.
pub struct Meter {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Sample>>>,
}

/// The time between samples.
const APART: Duration = Duration::from_millis(5);
/// The most samples of a move; more are thinned out.
const MOST: usize = 4096;

impl Meter {
    /// Begins to take samples.
    pub fn start(counts: Vec<Arc<Served>>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let (mut samples, mut apart) = (Vec::new(), APART);
            // Relaxed: what the other thread wrote before is not read here.
            while !stopped.load(Ordering::Relaxed) {
                samples.push(sample(&counts));
                if samples.len() == MOST {
                    let mut at = 0;
                    samples.retain(|_| {
                        at += 1;
                        at % 2 == 1
                    });
                    apart *= 2;
                }
                thread::sleep(apart);
            }
            samples.push(sample(&counts));
            samples
        });
        Self { stop, thread: Some(thread) }
    }

    /// Ends it; returns the samples.
    pub fn stop(mut self) -> Vec<Sample> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn sample(counts: &[Arc<Served>]) -> Sample {
    Sample { at: Moment::now(), served: counts.iter().map(|count| count.count()).sum() }
}
