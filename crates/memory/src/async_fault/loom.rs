// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A vCPU and one or two CPUs of the store, in every order that the memory model allows.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p twofold-memory --lib async_fault::loom` runs the tests. Each limits
//! the preemptions of a thread; `LOOM_MAX_PREEMPTIONS` overrides that.

use std::sync::Arc;
use std::vec::Vec;

use loom::sync::Notify;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use super::arrivals::{Arrival, Arrivals, Completion, Ticket};

/// A vCPU's arrivals, its kick, and the content of two pages, which nothing orders but the arrivals.
struct Shared {
    arrivals: Arrivals,
    kick: Notify,
    pages: [AtomicU64; 2],
}

/// Slots with different hints, and slots with the same one.
const APART: [usize; 2] = [0, 1];
const SAME_HINT: [usize; 2] = [1, 65];

fn model(preemptions: usize, body: impl Fn(Arc<Shared>) + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.check(move || {
        let pages = [0, 0].map(AtomicU64::new);
        body(Arc::new(Shared { arrivals: Arrivals::new(), kick: Notify::new(), pages }));
    });
}

impl Shared {
    /// The store brings a page, and kicks the vCPU if it is asked to.
    fn bring(&self, page: usize, ticket: Ticket) -> Completion {
        self.pages[page].store(1, Ordering::Relaxed);
        self.complete(ticket, Arrival::Present)
    }

    fn complete(&self, ticket: Ticket, arrival: Arrival) -> Completion {
        let completion = self.arrivals.complete(ticket, arrival);
        if completion == Completion::Kick {
            self.kick.notify();
        }
        completion
    }

    /// Takes what has arrived. The pages' content is visible.
    fn take(&self, slots: [usize; 2]) -> Vec<usize> {
        let mut taken = Vec::new();
        self.arrivals.take(|slot, arrival| {
            assert_eq!(arrival, Arrival::Present);
            let page = slots.iter().position(|own| *own == slot).expect("one of the two");
            assert_eq!(self.pages[page].load(Ordering::Relaxed), 1, "the page's content is visible");
            taken.push(slot);
        });
        taken
    }
}

/// Two CPUs bring a page each. The vCPU sleeps whenever it has taken all that is there, and wakes by kicks alone.
fn two_pages(slots: [usize; 2]) {
    model(3, move |shared| {
        let tickets = slots.map(|slot| shared.arrivals.open(slot));
        let stores = [0, 1].map(|page| {
            let shared = shared.clone();
            thread::spawn(move || assert_ne!(shared.bring(page, tickets[page]), Completion::Stale))
        });
        let mut taken = Vec::new();
        while taken.len() < 2 {
            shared.kick.wait();
            taken.extend(shared.take(slots));
        }
        taken.sort_unstable();
        assert_eq!(taken, slots);
        stores.into_iter().for_each(|store| store.join().unwrap());
        assert_eq!(shared.take(slots), [0_usize; 0]);
    });
}

#[test]
fn a_vcpu_that_sleeps_between_two_pages_gets_both() {
    two_pages(APART);
}

#[test]
fn a_vcpu_gets_both_pages_of_one_hint() {
    two_pages(SAME_HINT);
}

#[test]
fn a_vcpu_that_takes_unasked_gets_both_pages() {
    model(3, |shared| {
        let tickets = APART.map(|slot| shared.arrivals.open(slot));
        let stores = [0, 1].map(|page| {
            let shared = shared.clone();
            thread::spawn(move || shared.bring(page, tickets[page]))
        });
        // An exit for another reason, before any kick.
        let mut taken = shared.take(APART);
        while taken.len() < 2 {
            shared.kick.wait();
            taken.extend(shared.take(APART));
        }
        stores.into_iter().for_each(|store| assert_ne!(store.join().unwrap(), Completion::Stale));
    });
}

#[test]
fn one_of_two_completions_counts() {
    model(3, |shared| {
        let ticket = shared.arrivals.open(0);
        let other = shared.clone();
        let store = thread::spawn(move || other.arrivals.complete(ticket, Arrival::Present));
        let completions = [shared.arrivals.complete(ticket, Arrival::Present), store.join().unwrap()];
        assert_eq!(completions.iter().filter(|completion| **completion == Completion::Stale).count(), 1);
        let mut taken = 0;
        shared.arrivals.take(|_, _| taken += 1);
        assert_eq!(taken, 1);
    });
}

#[test]
fn a_cancelled_ticket_says_nothing_of_the_next_use() {
    model(3, |shared| {
        let first = shared.arrivals.open(0);
        let (late, store) = (shared.clone(), shared.clone());
        // The store's first answer meets the cancellation.
        let late = thread::spawn(move || late.complete(first, Arrival::Failed));
        let was_pending = shared.arrivals.cancel(first);
        let second = shared.arrivals.open(0);
        let store = thread::spawn(move || store.bring(0, second));
        let mut taken = Vec::new();
        while taken.is_empty() {
            shared.kick.wait();
            taken.extend(shared.take(APART));
        }
        assert_eq!(taken, [0]);
        let late = late.join().unwrap();
        assert_eq!(was_pending, late == Completion::Stale, "the ticket was cancelled or completed, not both");
        assert_ne!(store.join().unwrap(), Completion::Stale);
        assert_eq!(shared.take(APART), [0_usize; 0]);
    });
}
