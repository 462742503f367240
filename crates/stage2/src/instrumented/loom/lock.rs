// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lock of a table: it excludes other CPUs, and publishes what was done under it.

use std::sync::Arc;

use loom::cell::UnsafeCell;

use super::machine::{Machine, Watch};
use super::model;
use crate::TableMetadata;
use crate::counts::Counts;

/// Adds one to what the lock protects, without an atomic.
fn count(machine: &Machine, metadata: &TableMetadata, protected: &UnsafeCell<u64>) {
    let mut counts = metadata.lock(machine);
    // SAFETY: the thread that holds the lock is alone with it. The model checker reports if it is not.
    protected.with_mut(|protected| unsafe { *protected += 1 });
    counts += Counts::BUSY;
    metadata.unlock(counts);
}

fn threads_count(preemptions: usize, threads: u64) {
    model(preemptions, move || {
        let shared = Arc::new((TableMetadata::default(), UnsafeCell::new(0)));
        let machine = Machine::new(0, Watch::Nothing);
        let others = (1..threads).map(|_| {
            let (machine, shared) = (machine.clone(), shared.clone());
            loom::thread::spawn(move || count(&machine, &shared.0, &shared.1))
        });
        let others: Vec<_> = others.collect();
        count(&machine, &shared.0, &shared.1);
        others.into_iter().for_each(|other| other.join().expect("no panic"));
        // SAFETY: the other threads have ended.
        assert_eq!(shared.1.with(|protected| unsafe { *protected }), threads);
        assert_eq!(shared.0.peek().map(Counts::busy), Some(threads), "the counts written by unlock are lost");
    });
}

#[test]
fn two_exclude_each_other() {
    threads_count(3, 2);
}

#[test]
fn three_exclude_each_other() {
    threads_count(2, 3);
}
