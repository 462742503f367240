// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The writes that each CPU has ordered, and made visible to walks (Arm ARM DDI 0487K.a, B2.3).
//!
//! A walk that finds an entry sees the writes that a release, a release fence or a DSB orders before the entry. A walk
//! is certain to find the entry itself after a DSB of the CPU that wrote it. Before that DSB the guest may fault once
//! more.

use std::collections::HashMap;

use twofold_abi::trace::{Domain, Order};

/// The state of all CPUs.
#[derive(Clone, Default)]
pub struct Publication {
    cpus: HashMap<u32, Cpu>,
}

#[derive(Clone, Copy, Default)]
struct Cpu {
    /// The last fence or barrier.
    ordered: Option<usize>,
    /// The last barrier.
    visible: Option<usize>,
    /// The last entry that the CPU made valid in a tree.
    made: Option<usize>,
}

impl Publication {
    pub fn fence(&mut self, at: usize, cpu: u32) {
        self.cpus.entry(cpu).or_default().ordered = Some(at);
    }

    pub fn barrier(&mut self, at: usize, cpu: u32, domain: Domain) {
        if matches!(domain, Domain::Ish | Domain::IshSt) {
            let cpu = self.cpus.entry(cpu).or_default();
            (cpu.ordered, cpu.visible) = (Some(at), Some(at));
        }
    }

    /// A CPU made an entry of a tree valid.
    pub fn made(&mut self, at: usize, cpu: u32) {
        self.cpus.entry(cpu).or_default().made = Some(at);
    }

    /// Returns the event up to which a CPU's writes are ordered before its store at `at`.
    pub fn ordered_before(&self, at: usize, cpu: u32, order: Order) -> Option<usize> {
        match order {
            Order::Release | Order::AcqRel | Order::SeqCst => Some(at),
            Order::Relaxed | Order::Acquire => self.cpus.get(&cpu)?.ordered,
        }
    }

    /// Returns the event of the last entry that a CPU made valid, unless walks see it.
    pub fn unseen(&self, cpu: u32) -> Option<usize> {
        let cpu = self.cpus.get(&cpu)?;
        cpu.made.filter(|made| cpu.visible < Some(*made))
    }

    /// Treats a CPU's entries as visible, after a breach was reported.
    pub fn take_for_seen(&mut self, cpu: u32) {
        self.cpus.entry(cpu).or_default().made = None;
    }

    /// Returns whether walks see a CPU's write at `at`.
    pub fn is_seen(&self, at: usize, cpu: u32) -> bool {
        self.cpus.get(&cpu).is_some_and(|cpu| cpu.visible > Some(at))
    }
}
