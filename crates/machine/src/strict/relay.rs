// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A relay of CPUs on one thread: whatever the thread does under locks, one CPU after another does.
//!
//! Where a CPU holds no lock, another CPU may come in between and take any. So the thread becomes the next CPU of the
//! relay each time that it takes its first lock. No CPU knows what the one before it did, but by the locks and words
//! that both of them used, with their orderings. A value behind a lock that a CPU reaches without such knowledge is a
//! data race, and the thread panics.
//!
//! Under a lock, too, another CPU may come in between, and take other locks: a test says where ([`meanwhile`]).
//!
//! This has a test of one thread judge each lock that it passes: a lock that is left out, or has half of its ordering, is
//! not seen by its results. The words themselves are real, so each load returns the last value.

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use twofold_stage2::primitive::Access;

use super::clock::{CPUS, Clock};
use super::guards::Guards;
use super::observer::{self, LOCKED};

thread_local! {
    static RELAY: RefCell<Option<Relay>> = const { RefCell::new(None) };
}

/// From now on, this thread is a relay. A thread that is one goes on with it.
pub(crate) fn begin() {
    observer::install();
    RELAY.with_borrow_mut(|relay| {
        relay.get_or_insert_default();
    });
}

/// Has another CPU do `action`, in the middle of what this CPU does. If this thread is no relay, it just does it.
pub(crate) fn meanwhile<R>(action: impl FnOnce() -> R) -> R {
    let _interrupted = Interrupted::now();
    action()
}

/// A CPU that goes on when this is dropped, also by a panic.
struct Interrupted;

impl Interrupted {
    fn now() -> Option<Self> {
        RELAY.with_borrow_mut(|relay| {
            let relay = relay.as_mut()?;
            relay.interrupted.push((relay.cpu, relay.held));
            relay.held = 0;
            relay.next_cpu();
            Some(Self)
        })
    }
}

impl Drop for Interrupted {
    fn drop(&mut self) {
        RELAY.with_borrow_mut(|relay| {
            if let Some(relay) = relay
                && let Some(interrupted) = relay.interrupted.pop()
            {
                (relay.cpu, relay.held) = interrupted;
            }
        });
    }
}

/// The CPUs, and what they know.
#[derive(Default)]
pub(super) struct Relay {
    cpu: usize,
    /// The locks that the CPU holds.
    held: usize,
    /// The CPUs that wait until this one has done what it does in between, with the locks that they hold.
    interrupted: Vec<(usize, usize)>,
    known: [Clock; CPUS],
    /// What each knew at its last release fence.
    fenced: [Clock; CPUS],
    at_full_fences: Clock,
    /// What a CPU learns from the last value of a word, by its address, if it reads it with acquire.
    published: HashMap<usize, Clock>,
    guards: Guards,
    /// The place of the last access of a word.
    site: Option<&'static Location<'static>>,
}

impl Relay {
    /// Calls `body` with the relay that this thread is; `None` if it is none.
    pub(super) fn current<R>(body: impl FnOnce(&mut Self) -> R) -> Option<R> {
        if thread::panicking() {
            return None;
        }
        RELAY.with_borrow_mut(|relay| relay.as_mut().map(body))
    }

    /// The next CPU of the relay that is not in the middle of something.
    fn next_cpu(&mut self) {
        let mut others = (1..CPUS).map(|step| (self.cpu + step) % CPUS);
        let free = |cpu: &usize| self.interrupted.iter().all(|(interrupted, _)| interrupted != cpu);
        self.cpu = others.find(free).unwrap_or(self.cpu);
    }

    pub(super) fn load(&mut self, word: &AtomicU64, access: Access) -> u64 {
        self.learn(word, access);
        word.load(access.order)
    }

    pub(super) fn store(&mut self, word: &AtomicU64, value: u64, access: Access) {
        word.store(value, access.order);
        self.publish(word, access, false);
    }

    pub(super) fn update(
        &mut self,
        word: &AtomicU64,
        change: &mut dyn FnMut(u64) -> Option<u64>,
        access: Access,
    ) -> Result<u64, u64> {
        self.learn(word, access);
        let updated = word.fetch_update(access.order, Ordering::Acquire, change);
        if updated.is_ok() {
            self.publish(word, access, true);
        }
        updated
    }

    pub(super) fn try_lock(&mut self, word: &AtomicU64, access: Access) -> Option<u64> {
        if self.held == 0 {
            self.next_cpu();
        }
        let taken = self.update(word, &mut |old| (old & LOCKED == 0).then_some(old | LOCKED), access).ok();
        self.held += usize::from(taken.is_some());
        taken
    }

    pub(super) fn unlock(&mut self, word: &AtomicU64, value: u64, access: Access) {
        self.store(word, value, access);
        self.held = self.held.saturating_sub(1);
    }

    pub(super) fn release_fence(&mut self) {
        self.fenced[self.cpu] = self.known[self.cpu];
    }

    pub(super) fn full_fence(&mut self) {
        self.known[self.cpu].join(&self.at_full_fences);
        self.at_full_fences = self.known[self.cpu];
        self.release_fence();
    }

    /// The error says what the CPU does not know.
    pub(super) fn reached(&mut self, value: (u64, usize), changes: bool) -> Result<(), String> {
        let Self { cpu, site, .. } = *self;
        let reached = self.guards.reach(cpu, &mut self.known[cpu], value, changes);
        reached.map_err(|other| {
            let site = site.map(|site| format!(", after {site}")).unwrap_or_default();
            format!(
                "data race: CPU {cpu} reaches the value of a lock{site}, and does not know what CPU {other} did there"
            )
        })
    }

    fn learn(&mut self, word: &AtomicU64, access: Access) {
        self.site = Some(access.site);
        if matches!(access.order, Ordering::Acquire | Ordering::AcqRel)
            && let Some(published) = self.published.get(&address(word))
        {
            self.known[self.cpu].join(published);
        }
    }

    /// `continues`: a read-modify-write continues the release sequence of the value before it.
    fn publish(&mut self, word: &AtomicU64, access: Access, continues: bool) {
        self.site = Some(access.site);
        let release = matches!(access.order, Ordering::Release | Ordering::AcqRel);
        let mut publishes = if release { self.known[self.cpu] } else { self.fenced[self.cpu] };
        let published = self.published.entry(address(word)).or_default();
        if continues {
            publishes.join(published);
        }
        *published = publishes;
    }
}

fn address(word: &AtomicU64) -> usize {
    std::ptr::from_ref(word).addr()
}
