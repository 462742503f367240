// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tasks of `bm` (Natapov 2010): some store to random pages of an array that does not fit, others work.
//!
//! Behaviour is that of the program as it was published. What it did wrong is not repeated: each worker's counter has a
//! page of its own, each faulting task its own random numbers, and the work is an access to memory. The run ends by
//! virtual time, so no flag and no barrier is needed.
//!
//! Invariant: a faulting task writes its own word of each page, and keeps what it wrote last. So the array's content
//! can be compared when the run is over, page by page ([`Written::is`]).

use std::cell::RefCell;
use std::rc::Rc;

use twofold_stage2::{Ipa, IpaRange};

use super::task::{Access, Privilege, Step, Task};
use super::time::Nanos;

/// The guest-physical addresses of everything that the tasks touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The array.
    pub array: IpaRange,
    /// What the kernel and the workers have: the vCPUs' areas, then a page for each worker.
    pub own: IpaRange,
}

/// Writes each page of the array once, and ends: the `memset` before the threads start.
pub struct Fill {
    layout: Layout,
    page: u64,
}

/// Stores to random pages of the array, for ever.
pub struct Faulter {
    layout: Layout,
    number: u64,
    random: Random,
    written: Rc<RefCell<Written>>,
}

/// What a faulting task has written: for each page the last value whose store has completed, and the store that has
/// not.
pub struct Written {
    last: Vec<u64>,
    pending: Option<(u64, u64)>,
}

/// Works, for ever: each step computes for [`WORK`] and adds one to its counter in memory.
pub struct Worker {
    counter: u64,
}

/// The faulting tasks that an array has words for.
pub const MOST_FAULTERS: u64 = PAGE / WORD - 1;

/// What one unit of work costs.
pub const WORK: Nanos = Nanos::micros(10);
/// What a faulting task's step costs, beside the fault: a random number and a store that misses caches. Assumed.
pub const TOUCH: Nanos = Nanos::new(200);

impl Layout {
    /// The layout for an array of this many bytes, a multiple of the page, and these workers and vCPUs.
    pub fn new(bytes: u64, workers: u64) -> Self {
        let own = Ipa::new(OWN)..Ipa::new(OWN + (1 + workers) * PAGE);
        Self { array: Ipa::new(ARRAY)..Ipa::new(ARRAY + bytes), own }
    }

    /// The number of the array's pages.
    pub fn pages(&self) -> u64 {
        (self.array.end - self.array.start) / PAGE
    }

    /// The area of a vCPU.
    pub fn area(&self, vcpu: u64) -> u64 {
        self.own.start.raw() + vcpu * twofold_abi::async_fault::area::SIZE
    }

    /// The counter of a worker.
    pub fn counter(&self, worker: u64) -> u64 {
        self.own.start.raw() + (1 + worker) * PAGE
    }

    fn word(&self, page: u64, word: u64) -> u64 {
        self.array.start.raw() + page * PAGE + word * WORD
    }
}

impl Fill {
    /// Fills the array of this layout.
    pub fn new(layout: &Layout) -> Self {
        Self { layout: layout.clone(), page: 0 }
    }

    /// What it writes to the last word of a page.
    pub fn value(page: u64) -> u64 {
        !page
    }
}

impl Task for Fill {
    fn step(&mut self) -> Option<Step> {
        let page = self.page;
        self.page += 1;
        let store = Access::Store { at: self.layout.word(page, LAST_WORD), value: Self::value(page) };
        (page < self.layout.pages()).then_some(user(FILL_PC, store, TOUCH))
    }
}

impl Faulter {
    /// A faulting task. Each has its own number, below [`MOST_FAULTERS`].
    pub fn new(layout: &Layout, number: u64, seed: u64) -> Self {
        let written = Written { last: vec![0; layout.pages() as usize], pending: None };
        let random = Random::new(seed, number);
        Self { layout: layout.clone(), number, random, written: Rc::new(RefCell::new(written)) }
    }

    /// What it writes, for a comparison when the run is over.
    pub fn written(&self) -> Rc<RefCell<Written>> {
        Rc::clone(&self.written)
    }

    /// Where its word of a page is.
    pub fn word(layout: &Layout, number: u64, page: u64) -> Ipa {
        Ipa::new(layout.word(page, number))
    }
}

impl Written {
    /// Whether this may be the word of the page now.
    pub fn is(&self, page: u64, word: u64) -> bool {
        self.last.get(page as usize) == Some(&word) || self.pending == Some((page, word))
    }
}

impl Task for Faulter {
    fn step(&mut self) -> Option<Step> {
        let mut written = self.written.borrow_mut();
        if let Some((page, value)) = written.pending.take() {
            written.last[page as usize] = value;
        }
        let draw = self.random.next();
        let (page, value) = (draw % self.layout.pages(), draw | 1);
        written.pending = Some((page, value));
        Some(user(FAULTER_PC, Access::Store { at: self.layout.word(page, self.number), value }, TOUCH))
    }
}

impl Worker {
    /// The worker of this number.
    pub fn new(layout: &Layout, number: u64) -> Self {
        Self { counter: layout.counter(number) }
    }
}

impl Task for Worker {
    fn step(&mut self) -> Option<Step> {
        Some(user(WORKER_PC, Access::Add { at: self.counter, value: 1 }, WORK))
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014): each number is a function of the seed and its place.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

    fn new(seed: u64, stream: u64) -> Self {
        let mut start = Self(seed);
        start.0 = start.next() ^ stream.wrapping_mul(Self::GAMMA);
        Self(start.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(Self::GAMMA);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

fn user(pc: u64, access: Access, cost: Nanos) -> Step {
    Step { pc, privilege: Privilege::User, access, cost }
}

const PAGE: u64 = 4096;
const WORD: u64 = 8;
const LAST_WORD: u64 = PAGE / WORD - 1;

/// Where the kernel's and the workers' memory begins, and where the array does.
const OWN: u64 = 0x4000_0000;
const ARRAY: u64 = 0x8000_0000;

/// The instructions that make the accesses.
const FILL_PC: u64 = 0x40_0000;
const FAULTER_PC: u64 = 0x40_1000;
const WORKER_PC: u64 = 0x40_2000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_touch_different_words() {
        let layout = Layout::new(8 * PAGE, 3);
        assert_eq!(layout.pages(), 8);
        let counters: Vec<_> = (0..3).map(|worker| layout.counter(worker) / PAGE).collect();
        assert!(counters.windows(2).all(|pair| pair[1] == pair[0] + 1), "a page for each counter");
        assert!(counters.iter().all(|page| page * PAGE + PAGE <= layout.own.end.raw()));
        assert!(layout.area(63) + 64 <= layout.counter(0));
    }

    #[test]
    fn a_faulting_task_knows_what_it_wrote() {
        let layout = Layout::new(4 * PAGE, 0);
        let mut faulter = Faulter::new(&layout, 2, 7);
        let written = faulter.written();
        let mut memory = [0; 4];
        for _ in 0..100 {
            let Some(Step { access: Access::Store { at, value }, .. }) = faulter.step() else { panic!("no store") };
            assert_eq!(at % PAGE, 2 * WORD);
            let page = (at - layout.array.start.raw()) / PAGE;
            assert!(written.borrow().is(page, memory[page as usize]) && written.borrow().is(page, value));
            memory[page as usize] = value;
            assert!((0..4).all(|page| written.borrow().is(page, memory[page as usize])));
        }
        assert!(!written.borrow().is(0, 2), "values are odd");
    }

    #[test]
    fn streams_of_one_seed_differ_and_equal_ones_repeat() {
        let first = |seed, stream| Random::new(seed, stream).next();
        assert_eq!(first(1, 0), first(1, 0));
        let all = [first(1, 0), first(1, 1), first(2, 0), first(2, 1)];
        assert!((1..4).all(|at| !all[..at].contains(&all[at])), "{all:x?}");
    }

    #[test]
    fn the_fill_ends_after_each_page_was_written_once() {
        let layout = Layout::new(3 * PAGE, 0);
        let mut fill = Fill::new(&layout);
        let stores: Vec<_> = std::iter::from_fn(|| fill.step()).map(|step| step.access).collect();
        let wanted = [0, 1, 2].map(|page| Access::Store { at: layout.word(page, 511), value: !page });
        assert_eq!(stores, wanted);
    }
}
