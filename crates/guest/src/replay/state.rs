// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the vCPUs share: what the guest knows, and the digest of what it has seen.

use super::event::Event;
use super::known::Known;
use crate::random::Random;
use crate::uart::{self, println};

/// The words of the command line.
#[derive(Clone, Copy)]
pub struct Settings {
    /// The number of events.
    pub events: u64,
    /// The first event with a digest.
    pub from: u64,
    /// Events from one digest to the next.
    pub every: u64,
    /// Where the random numbers start.
    pub seed: u64,
}

/// What only the vCPU that has the turn uses.
pub struct State {
    pub settings: Settings,
    pub vcpus: usize,
    pub known: Known,
    /// Events that were executed.
    pub done: u64,
    digest: u64,
    /// A digest is due, and waits until the UART's interrupt is off.
    due: bool,
    /// What the event has seen so far: its last values.
    seen: [u64; 8],
    seen_count: usize,
    pub acknowledged: u64,
    deepest: usize,
}

impl State {
    pub const fn new(settings: Settings, vcpus: usize) -> Self {
        Self {
            settings,
            vcpus,
            known: Known::new(Random::new(settings.seed)),
            done: 0,
            digest: 0,
            due: false,
            seen: [0; 8],
            seen_count: 0,
            acknowledged: 0,
            deepest: 0,
        }
    }

    /// A value that the guest read goes into the digest.
    pub fn see(&mut self, value: u64) -> u64 {
        let mixed = (self.digest.rotate_left(7) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.digest = mixed ^ mixed >> 32;
        self.seen[self.seen_count % self.seen.len()] = value;
        self.seen_count += 1;
        value
    }

    /// An event begins: it has seen nothing.
    pub fn begin(&mut self) {
        self.seen_count = 0;
    }

    /// The event has ended on this vCPU, and a digest may be due.
    pub fn finish(&mut self, vcpu: usize, event: Event) {
        self.done += 1;
        self.deepest = self.deepest.max(self.known.vcpus[vcpu].handling.len());
        let Settings { events, from, every, .. } = self.settings;
        if self.done < from {
            return;
        }
        if every == 1 {
            self.print_event(vcpu, event);
        }
        self.due |= self.done.is_multiple_of(every) || self.done == events;
        // A byte that is sent changes the UART's interrupt, so nothing is sent while it is on: the runs would differ in
        // how long a byte takes.
        if self.due && !self.known.uart {
            self.due = false;
            println!("replay: {} {:016x}", self.done, self.digest);
            uart::drain();
        }
    }

    /// After the last event.
    pub fn print_end(&self) {
        let Self { acknowledged, deepest, digest, .. } = self;
        println!("replay: done, {acknowledged} acknowledged, {deepest} at most at a time, {digest:016x}");
    }

    fn print_event(&self, vcpu: usize, event: Event) {
        let seen = &self.seen[..self.seen_count.min(self.seen.len())];
        println!("event {} on vCPU {vcpu}: {event:x?} saw {seen:x?}", self.done);
        uart::drain();
    }
}
