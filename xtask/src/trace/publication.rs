// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each CPU has ordered, and made visible to walks (Arm ARM B2.3).
//!
//! A walk that finds an entry sees what a release, a release fence or a DSB put before it. It finds the entry itself when a
//! DSB of the CPU that wrote it is complete; before that the guest may fault once more.

use std::collections::HashMap;

use twofold_abi::trace::{Domain, Order};

/// All CPUs.
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
    /// The last entry that was made in a tree.
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

    /// A CPU has made an entry of a tree valid.
    pub fn made(&mut self, at: usize, cpu: u32) {
        self.cpus.entry(cpu).or_default().made = Some(at);
    }

    /// The event up to which what a CPU did is ordered before a store that it does at `at`.
    pub fn ordered_before(&self, at: usize, cpu: u32, order: Order) -> Option<usize> {
        match order {
            Order::Release | Order::AcqRel | Order::SeqCst => Some(at),
            Order::Relaxed | Order::Acquire => self.cpus.get(&cpu)?.ordered,
        }
    }

    /// The entry that a CPU made last, unless walks see it.
    pub fn unseen(&self, cpu: u32) -> Option<usize> {
        let cpu = self.cpus.get(&cpu)?;
        cpu.made.filter(|made| cpu.visible < Some(*made))
    }

    /// What a CPU did was taken for visible.
    pub fn take_for_seen(&mut self, cpu: u32) {
        self.cpus.entry(cpu).or_default().made = None;
    }

    /// Whether walks see what a CPU did at `at`.
    pub fn is_seen(&self, at: usize, cpu: u32) -> bool {
        self.cpus.get(&cpu).is_some_and(|cpu| cpu.visible > Some(at))
    }
}
