// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rules of `docs/mmu-rules.md`, one by one: a breach of each is reported as that rule, and a correct sequence
//! close to it is allowed.
//!
//! The tests write their tables by hand, as a hypervisor with one wrong step.

mod caches;
mod concurrency;
mod document;
mod entries;
mod flushes;
mod groups;
mod guests;
mod hand;
mod peers;
mod qemu;
mod records;
mod reports;
mod sizes;

use hand::{Hand, Machinery};
use twofold_machine::strict::{Bbm, Breach, Rule};

use crate::world::{MODERN, PLAIN};

/// The number of runs of a test that depends on chance. A breach has to be reported in one of them, and an allowed
/// sequence in none.
const SEEDS: u64 = 60;

/// Runs `body` as CPU 0 of a machine with two, on CPUs with all features, and on CPUs with few.
fn on_each_machine(body: impl Fn(&Hand) + Sync, mut check: impl FnMut(&str, Result<(), Breach>)) {
    for (name, features) in [("MODERN", MODERN), ("PLAIN", PLAIN)] {
        let machinery = Machinery::new(features, Bbm::default(), 2, 1);
        check(name, machinery.alone(&body));
    }
}

#[track_caller]
fn reported(rule: Rule, body: impl Fn(&Hand) + Sync) {
    on_each_machine(body, |name, ended| match ended {
        Ok(()) => panic!("{name}: {rule:?} is not reported"),
        Err(breach) => assert_eq!(breach.rule, rule, "{name}: {breach}"),
    });
}

#[track_caller]
fn allowed(body: impl Fn(&Hand) + Sync) {
    on_each_machine(body, |name, ended| ended.unwrap_or_else(|breach| panic!("{name}: {breach}")));
}

/// The race of two CPUs is reported in some run, and never as another rule.
#[track_caller]
fn reported_in_a_race(rule: Rule, first: impl Fn(&Hand) + Sync, second: impl Fn(&Hand) + Sync) {
    let mut reports = 0;
    for seed in 0..SEEDS {
        if let Err(breach) = Machinery::new(MODERN, Bbm::default(), 2, seed).race(&first, &second) {
            assert_eq!(breach.rule, rule, "seed {seed}: {breach}");
            reports += 1;
        }
    }
    assert!(reports > 0, "{rule:?} is not reported");
}

/// The race of two CPUs is reported in no run.
#[track_caller]
fn allowed_in_a_race(first: impl Fn(&Hand) + Sync, second: impl Fn(&Hand) + Sync) {
    for seed in 0..SEEDS {
        let ended = Machinery::new(MODERN, Bbm::default(), 2, seed).race(&first, &second);
        ended.unwrap_or_else(|breach| panic!("seed {seed}: {breach}"));
    }
}
