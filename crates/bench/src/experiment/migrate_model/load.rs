// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the guest does: it writes to pages, most of them to a few, at a rate that its own computing sets.
//!
//! Invariants: a vCPU's clock passes by its own computing, by what its faults cost, and by hardware's records of its
//! writes, and by nothing else. The same seed draws the same pages, whatever tracker runs.

use std::sync::Arc;

use twofold_machine::program::{Ended, Exit, Instructions, Program};
use twofold_memory::GuestMemory;
use twofold_stage2::Ipa;

use super::events::{CountedPlatform, Counters, Events};
use super::plan::{Hot, Mix};
use super::prices::{Picos, Prices};

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// The guest's first address.
pub const START: u64 = 1 << 30;

/// The guest's pages in an order in which the hot ones come first.
#[derive(Debug)]
pub struct Pages {
    order: Vec<u32>,
    hot: u64,
    /// The part of writes to hot pages, in percent.
    writes: u64,
}

impl Pages {
    /// The pages of a guest with this mix.
    pub fn new(count: u64, mix: Mix, hot: Hot, seed: u64) -> Self {
        let mut order: Vec<u32> = (0..count as u32).collect();
        if hot == Hot::Scattered {
            let mut random = Random(seed ^ SHUFFLE);
            for at in (1..order.len()).rev() {
                order.swap(at, random.below(at as u64 + 1) as usize);
            }
        }
        Self { hot: (count * mix.pages / 100).clamp(1, count), order, writes: mix.writes }
    }

    /// Draws the page of a write.
    fn draw(&self, random: &mut Random) -> u64 {
        let all = self.order.len() as u64;
        let is_hot = self.hot == all || random.below(100) < self.writes;
        let at = if is_hot { random.below(self.hot) } else { self.hot + random.below(all - self.hot) };
        self.order[at as usize].into()
    }
}

/// Touches all pages, so that each has content and is mapped when the migration begins.
pub struct Fill {
    /// The pages that are left.
    pub left: u64,
}

impl Program for Fill {
    fn run<C: Instructions>(&mut self, cpu: &mut C) -> Result<Ended, Exit> {
        while self.left > 0 {
            cpu.store(START + (self.left - 1) * PAGE, self.left)?;
            self.left -= 1;
        }
        Ok(Ended)
    }
}

/// One vCPU's work.
pub struct Work<'g> {
    memory: &'g GuestMemory<CountedPlatform>,
    counters: Arc<Counters>,
    prices: Prices,
    pages: Arc<Pages>,
    random: Random,
    /// The computing before each write, at full speed.
    step: Picos,
    /// How much the vCPU is slowed down, in per mille.
    pub slowed: u16,
    /// The vCPU's clock.
    pub now: Picos,
    /// Where it ends for now.
    pub until: Picos,
    /// The write that was begun and is not complete.
    next: Option<u64>,
    has_faulted: bool,
    /// After this many writes it has done its work. It goes on writing.
    goal: u64,
    /// What it did.
    pub did: Did,
}

/// What a vCPU did, and where its time went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Did {
    /// Writes.
    pub writes: u64,
    /// Writes that faulted.
    pub faults: u64,
    /// Writes that hardware recorded.
    pub records: u64,
    /// What its faults had the engine execute.
    pub events: Events,
    /// Its own computing.
    pub computing: Picos,
    /// What the throttle added to it.
    pub throttled: Picos,
    /// Its faults.
    pub faulting: Picos,
    /// Hardware's records.
    pub recording: Picos,
    /// When its work was done, if it is.
    pub finished: Option<Picos>,
}

impl<'g> Work<'g> {
    /// A vCPU that has `goal` writes to do, one after each `step` of computing.
    pub fn new(
        memory: &'g GuestMemory<CountedPlatform>,
        counters: Arc<Counters>,
        prices: Prices,
        pages: Arc<Pages>,
        seed: u64,
        (step, goal): (Picos, u64),
    ) -> Self {
        Self {
            memory,
            counters,
            prices,
            pages,
            random: Random(seed),
            step,
            slowed: 0,
            now: Picos::ZERO,
            until: Picos::ZERO,
            next: None,
            has_faulted: false,
            goal,
            did: Did::default(),
        }
    }

    /// When the work is done, if the vCPU stands still from `stopped` to `resumed`, and neither faults nor is slowed down
    /// after that.
    pub fn finish(&self, stopped: Picos, resumed: Picos) -> Picos {
        let left = self.step * (self.goal - self.did.writes.min(self.goal));
        // What it has computed of the next write already, or what its last fault takes beyond the stop.
        let (ahead, behind) = (stopped - self.now, self.now - stopped);
        self.did.finished.unwrap_or(resumed + behind + (left - ahead))
    }

    /// The next write's page, once its computing is done; `None` if that is beyond `until`.
    fn next(&mut self) -> Option<u64> {
        if self.next.is_none() {
            let speed = u64::from(FULL_SPEED - self.slowed.min(FULL_SPEED - 1));
            let step = Picos::new(self.step.get() * u64::from(FULL_SPEED) / speed);
            if self.now + step > self.until {
                return None;
            }
            self.now += step;
            self.did.computing += self.step;
            self.did.throttled += step - self.step;
            self.next = Some(self.pages.draw(&mut self.random));
        }
        self.next
    }

    /// Pays for the fault that was handled.
    fn pay(&mut self) {
        let events = self.counters.take();
        let cost = self.prices.of_fault(&events);
        self.now += cost;
        self.did.faulting += cost;
        self.did.faults += 1;
        self.did.events += events;
    }

    /// Whether hardware records the next write to this page: it is hardware-tracked and clean.
    fn is_recorded(&self, at: u64) -> bool {
        let leaf = self.memory.stage2().look_up(Ipa::new(at));
        leaf.is_some_and(|leaf| leaf.descriptor.is_hardware_tracked() && !leaf.descriptor.is_writable())
    }
}

impl Program for Work<'_> {
    fn run<C: Instructions>(&mut self, cpu: &mut C) -> Result<Ended, Exit> {
        if std::mem::take(&mut self.has_faulted) {
            self.pay();
        }
        while let Some(page) = self.next() {
            let at = START + page * PAGE;
            let is_recorded = self.is_recorded(at);
            // Not the page's first word, which keeps it from being zero.
            let word = 1 + self.did.writes % (PAGE / 8 - 1);
            if let Err(exit) = cpu.store(at + word * 8, self.did.writes) {
                self.has_faulted = true;
                return Err(exit);
            }
            if is_recorded {
                self.now += self.prices.record;
                self.did.recording += self.prices.record;
                self.did.records += 1;
            }
            self.next = None;
            self.did.writes += 1;
            if self.did.writes == self.goal {
                self.did.finished = Some(self.now);
            }
        }
        Ok(Ended)
    }
}

/// A generator of random numbers (Steele and others' SplitMix64, 2014).
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31) % end
    }
}

/// A vCPU's speed when it is not slowed down, in per mille.
const FULL_SPEED: u16 = twofold_migration::plan::FULL_SPEED;
/// The order of pages is drawn by other numbers than the writes.
const SHUFFLE: u64 = 0x5b0f_f1e5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_go_where_the_mix_says() {
        for hot in [Hot::Together, Hot::Scattered] {
            let pages = Pages::new(1000, Mix { writes: 80, pages: 20 }, hot, 3);
            let mut random = Random(1);
            let mut counts = vec![0_u32; 1000];
            (0..100_000).for_each(|_| counts[pages.draw(&mut random) as usize] += 1);
            let hot_pages: Vec<_> = (0..1000).filter(|page| counts[*page] > 200).collect();
            assert_eq!(hot_pages.len(), 200, "{hot:?}");
            assert_eq!(hot_pages == (0..200).collect::<Vec<_>>(), hot == Hot::Together);
            let writes: u32 = hot_pages.iter().map(|page| counts[*page]).sum();
            assert!((79_000..81_000).contains(&writes), "{writes}");
        }
    }

    #[test]
    fn a_mix_of_all_pages_is_even() {
        let pages = Pages::new(10, Mix { writes: 100, pages: 100 }, Hot::Scattered, 3);
        let mut random = Random(1);
        let mut counts = [0_u32; 10];
        (0..10_000).for_each(|_| counts[pages.draw(&mut random) as usize] += 1);
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }
}
