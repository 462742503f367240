// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Words that CPUs share, each with the values that an observer may still see.
//!
//! Loads and stores of software follow the C++ memory model by vector clocks, as in model checkers. A load may return
//! any value that the CPU does not know to be overwritten. A CPU learns by an acquire from a release. Barriers of the
//! architecture add nothing to what *software* sees here: the engine has to be correct by the orderings of its accesses
//! alone.
//!
//! A table walk is another observer. It learns from a `DSB` (Arm ARM DDI 0487K.a, D8.2.6: walks see a store once a
//! `DSB` after it is complete). It also learns from entry to entry, by address dependency: a walk that sees a table's
//! entry sees every store ordered before that entry. Since the architecture orders these, an acquire by the writer of
//! the entry also counts for walks.
//!
//! Invariant: memory holds the last value. A read-modify-write, by software or hardware, reads the last value.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use super::clock::{CPUS, Clock, Moment};

/// The words of a machine.
pub(crate) struct Cells {
    cpus: usize,
    /// The words of which an observer may still see an old value.
    histories: HashMap<usize, History, BuildHasherDefault<AddressHasher>>,
    /// What the software on each CPU knows.
    known: [Clock; CPUS],
    /// What it knew at its last release fence.
    fenced: [Clock; CPUS],
    /// What was known at the full fences so far.
    at_full_fences: Clock,
    /// What the walks of each CPU know.
    walks: [Clock; CPUS],
}

#[derive(Clone, Copy)]
struct Value {
    raw: u64,
    moment: Moment,
    /// What software learns if it reads this value with acquire.
    publishes: Clock,
    /// What a walk learns from this value.
    publishes_to_walks: Clock,
    /// The machine's step at which it was stored.
    step: u64,
}

struct History {
    /// The oldest first; never empty.
    values: Vec<Value>,
    /// The number of values that were dropped before the first.
    dropped: u32,
    /// The index of the last value that each CPU has read.
    read: [u32; CPUS],
    read_by_walks: [u32; CPUS],
}

/// A value as a walk read it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) raw: u64,
    /// The step at which it was stored; 0 if every observer has long known it.
    pub(crate) step: u64,
    /// Whether it is the last value.
    pub(crate) newest: bool,
    /// What the walk knows after it.
    pub(crate) learned: Clock,
}

/// The most values that are kept. A store that exceeds it makes the oldest unobservable.
const KEPT: usize = 8;

impl Cells {
    pub(crate) fn new(cpus: usize) -> Self {
        let nothing = [Clock::default(); CPUS];
        let at_full_fences = Clock::default();
        Self { cpus, histories: HashMap::default(), known: nothing, fenced: nothing, at_full_fences, walks: nothing }
    }

    /// A load by software. `choose` picks one of a number of values, 0 being the newest.
    pub(crate) fn load(
        &mut self,
        cpu: usize,
        word: &AtomicU64,
        order: Ordering,
        choose: &mut dyn FnMut(usize) -> usize,
    ) -> u64 {
        let Some(history) = self.histories.get_mut(&address(word)) else { return word.load(Ordering::Relaxed) };
        let at = history.pick(&self.known[cpu], history.read[cpu], choose);
        let value = history.values[at];
        history.read[cpu] = history.dropped + at as u32;
        if order == Ordering::Acquire {
            self.known[cpu].join(&value.publishes);
        }
        value.raw
    }

    /// A store by software; returns the value before, and the moment of this store.
    pub(crate) fn store(
        &mut self,
        cpu: usize,
        word: &AtomicU64,
        raw: u64,
        order: Ordering,
        step: u64,
    ) -> (u64, Moment) {
        self.put(cpu, word, raw, matches!(order, Ordering::Release | Ordering::AcqRel), None, step)
    }

    /// A read-modify-write by software, of the last value; returns that value, and the moment of the store.
    pub(crate) fn update(
        &mut self,
        cpu: usize,
        word: &AtomicU64,
        change: &mut dyn FnMut(u64) -> Option<u64>,
        order: Ordering,
        step: u64,
    ) -> Result<(u64, Moment), u64> {
        let last = self.histories.get(&address(word)).and_then(|history| history.values.last()).copied();
        if matches!(order, Ordering::Acquire | Ordering::AcqRel)
            && let Some(last) = last
        {
            self.known[cpu].join(&last.publishes);
        }
        let old = word.load(Ordering::Relaxed);
        let Some(new) = change(old) else { return Err(old) };
        let release = matches!(order, Ordering::Release | Ordering::AcqRel);
        let (_, moment) = self.put(cpu, word, new, release, last, step);
        Ok((old, moment))
    }

    /// A change that hardware makes in a walk, of the last value. It carries the knowledge of that value's store.
    pub(crate) fn hardware_update(&mut self, word: &AtomicU64, old: u64, new: u64, step: u64) -> Result<(), u64> {
        let now = word.load(Ordering::Relaxed);
        if now != old {
            return Err(now);
        }
        // Without a history, every observer knows the old value, and may know the new one too.
        if let Some(history) = self.histories.get_mut(&address(word)) {
            let last = history.values[history.values.len() - 1];
            history.push(Value { raw: new, step, ..last });
        }
        word.store(new, Ordering::Relaxed);
        Ok(())
    }

    fn put(
        &mut self,
        cpu: usize,
        word: &AtomicU64,
        raw: u64,
        release: bool,
        continued: Option<Value>,
        step: u64,
    ) -> (u64, Moment) {
        let old = word.load(Ordering::Relaxed);
        word.store(raw, Ordering::Relaxed);
        let moment = self.known[cpu].tick(cpu);
        let mut publishes = if release { self.known[cpu] } else { self.fenced[cpu] };
        let mut publishes_to_walks =
            if release { self.known[cpu] } else { self.known[cpu].with_own(cpu, &self.fenced[cpu]) };
        if let Some(before) = continued {
            // A release sequence continues through a read-modify-write.
            publishes.join(&before.publishes);
            publishes_to_walks.join(&before.publishes_to_walks);
        }
        let value = Value { raw, moment, publishes, publishes_to_walks, step };
        let first = || {
            let none = Clock::default();
            Value { raw: old, moment: Moment::default(), publishes: none, publishes_to_walks: none, step: 0 }
        };
        let history = self.histories.entry(address(word)).or_insert_with(|| History::new(first()));
        history.push(value);
        let newest = history.dropped + history.values.len() as u32 - 1;
        history.read[cpu] = newest;
        history.forget(&self.known[..self.cpus], &self.walks[..self.cpus]);
        (old, moment)
    }

    /// The software of every CPU learns what any CPU knows: threads begin, or have ended.
    pub(crate) fn meet(&mut self) {
        let mut all = Clock::default();
        self.known.iter().for_each(|known| all.join(known));
        self.known = [all; CPUS];
    }

    /// The software on this CPU learns what another CPU knew.
    pub(crate) fn learn(&mut self, cpu: usize, other: &Clock) {
        self.known[cpu].join(other);
    }

    /// Counts a write of this CPU that is not to a word here.
    pub(crate) fn event(&mut self, cpu: usize) -> Moment {
        self.known[cpu].tick(cpu)
    }

    /// A release fence.
    pub(crate) fn fence(&mut self, cpu: usize) {
        self.fenced[cpu] = self.known[cpu];
    }

    /// A full fence. A CPU that executes one knows everything that was known at the full fences before it.
    pub(crate) fn full_fence(&mut self, cpu: usize) {
        self.known[cpu].join(&self.at_full_fences);
        self.at_full_fences = self.known[cpu];
        self.fenced[cpu] = self.known[cpu];
    }

    /// A `DSB`: earlier stores are visible to the walks of this CPU, or of all CPUs.
    pub(crate) fn publish(&mut self, cpu: usize, everywhere: bool) {
        let known = self.known[cpu];
        if everywhere {
            self.walks[..self.cpus].iter_mut().for_each(|walk| walk.join(&known));
        } else {
            self.walks[cpu].join(&known);
        }
    }

    /// What a walk of this CPU knows when it begins.
    pub(crate) fn walk(&self, cpu: usize) -> Clock {
        self.walks[cpu]
    }

    /// What the software on this CPU knows.
    pub(crate) fn known(&self, cpu: usize) -> &Clock {
        &self.known[cpu]
    }

    /// The same, to add to it.
    pub(crate) fn known_mut(&mut self, cpu: usize) -> &mut Clock {
        &mut self.known[cpu]
    }

    /// A walk reads an entry; `walk` is what it knows so far.
    pub(crate) fn walk_load(
        &mut self,
        cpu: usize,
        word: &AtomicU64,
        walk: &Clock,
        choose: &mut dyn FnMut(usize) -> usize,
    ) -> Seen {
        let Some(history) = self.histories.get_mut(&address(word)) else {
            return Seen { raw: word.load(Ordering::Relaxed), step: 0, newest: true, learned: *walk };
        };
        let at = history.pick(walk, history.read_by_walks[cpu], choose);
        let value = history.values[at];
        history.read_by_walks[cpu] = history.dropped + at as u32;
        let mut learned = *walk;
        learned.join(&value.publishes_to_walks);
        Seen { raw: value.raw, step: value.step, newest: at + 1 == history.values.len(), learned }
    }

    /// Whether a store is known to the walks of a CPU.
    pub(crate) fn is_published(&self, moment: Moment, cpu: usize) -> bool {
        self.walks[cpu].knows(moment)
    }

    /// What a walk on any CPU knows once it sees the last value of a word.
    pub(crate) fn last_publishes_to_walks(&self, word: &AtomicU64) -> Clock {
        let known = self.walks[..self.cpus].iter().copied().reduce(Clock::common).unwrap_or_default();
        let last = self.histories.get(&address(word)).and_then(|history| history.values.last());
        last.map_or(known, |last| known.with(&last.publishes_to_walks))
    }

    /// Drops the history of a word whose last value all software knows. The word is in no table now, so no walk reads
    /// it, and a late lockless walk of the engine learns nothing from it.
    pub(crate) fn settle(&mut self, word: &AtomicU64) {
        let last = self.histories.get(&address(word)).and_then(|history| history.values.last());
        if last.is_some_and(|last| self.known[..self.cpus].iter().all(|clock| clock.knows(last.moment))) {
            self.histories.remove(&address(word));
        }
    }

    /// The last value of a word that `clock` knows; `None` if only later values are kept.
    pub(crate) fn last_known(&self, word: &AtomicU64, clock: &Clock) -> Option<u64> {
        let Some(history) = self.histories.get(&address(word)) else { return Some(word.load(Ordering::Relaxed)) };
        history.newest_known(clock).map(|at| history.values[at].raw)
    }

    /// The store of a word's last value, and its step; `None` if there is no history.
    pub(crate) fn last_stored(&self, word: &AtomicU64) -> Option<(Moment, u64)> {
        let last = self.histories.get(&address(word))?.values.last()?;
        Some((last.moment, last.step))
    }
}

impl History {
    fn new(first: Value) -> Self {
        Self { values: vec![first], dropped: 0, read: [0; CPUS], read_by_walks: [0; CPUS] }
    }

    /// Picks one of the values that may be seen with this knowledge after reading up to `read`.
    #[inline]
    fn pick(&self, known: &Clock, read: u32, choose: &mut dyn FnMut(usize) -> usize) -> usize {
        let last = self.values.len() - 1;
        let oldest = self.newest_known(known).unwrap_or(0).max(read.saturating_sub(self.dropped) as usize);
        if oldest >= last { last } else { last - choose(last - oldest + 1) }
    }

    /// The index of the last value that is known.
    fn newest_known(&self, known: &Clock) -> Option<usize> {
        self.values.iter().rposition(|value| known.knows(value.moment))
    }

    fn push(&mut self, value: Value) {
        self.values.push(value);
        if self.values.len() > KEPT {
            self.drop_first(1);
        }
    }

    /// Drops the values that no observer may see any more.
    fn forget(&mut self, known: &[Clock], walks: &[Clock]) {
        if self.values.len() == 1 {
            return;
        }
        let by_all = known.iter().chain(walks).copied().reduce(Clock::common).unwrap_or_default();
        match self.values.iter().rposition(|value| by_all.knows(value.moment)) {
            None | Some(0) => {}
            Some(first) => self.drop_first(first),
        }
    }

    fn drop_first(&mut self, count: usize) {
        self.values.drain(..count);
        self.dropped += count as u32;
    }
}

fn address(word: &AtomicU64) -> usize {
    std::ptr::from_ref(word).addr()
}

/// A hash for addresses of words.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_usize(usize::from(*byte)));
    }

    fn write_usize(&mut self, address: usize) {
        self.0 = (self.0 ^ (address as u64 >> 3)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }
}

#[cfg(test)]
mod tests {
    use Ordering::{AcqRel, Acquire, Relaxed, Release};

    use super::*;

    /// All values that a CPU may load.
    fn may_load(cells: &Cells, cpu: usize, word: &AtomicU64, order: Ordering) -> Vec<u64> {
        let mut values = Vec::new();
        let mut count = 1;
        while values.len() < count {
            let (pick, mut cells) = (values.len(), copy(cells));
            let mut choose = |values| {
                count = values;
                pick
            };
            values.push(cells.load(cpu, word, order, &mut choose));
        }
        values
    }

    /// All values that a CPU's walk may read.
    fn may_walk(cells: &Cells, cpu: usize, word: &AtomicU64, walk: &Clock) -> Vec<u64> {
        let mut values = Vec::new();
        let mut count = 1;
        while values.len() < count {
            let (pick, mut cells) = (values.len(), copy(cells));
            let mut choose = |values| {
                count = values;
                pick
            };
            values.push(cells.walk_load(cpu, word, walk, &mut choose).raw);
        }
        values
    }

    fn copy(cells: &Cells) -> Cells {
        let history = |(at, history): (&usize, &History)| {
            let &History { ref values, dropped, read, read_by_walks } = history;
            (*at, History { values: values.clone(), dropped, read, read_by_walks })
        };
        Cells { histories: cells.histories.iter().map(history).collect(), ..*cells }
    }

    fn words<const N: usize>() -> [AtomicU64; N] {
        std::array::from_fn(|_| AtomicU64::new(0))
    }

    #[test]
    fn a_load_tells_any_value_that_is_not_known_to_be_overwritten() {
        let (mut cells, [word]) = (Cells::new(2), words());
        cells.store(0, &word, 1, Relaxed, 1);
        cells.store(0, &word, 2, Relaxed, 2);
        assert_eq!(may_load(&cells, 1, &word, Acquire), [2, 1, 0]);
        assert_eq!(may_load(&cells, 0, &word, Relaxed), [2], "the CPU that stored knows its store");
    }

    #[test]
    fn a_cpu_that_has_read_a_value_reads_none_before_it() {
        let (mut cells, [word]) = (Cells::new(2), words());
        cells.store(0, &word, 1, Relaxed, 1);
        cells.store(0, &word, 2, Relaxed, 2);
        assert_eq!(cells.load(1, &word, Relaxed, &mut |_| 1), 1);
        assert_eq!(may_load(&cells, 1, &word, Relaxed), [2, 1]);
    }

    #[test]
    fn acquire_from_release_publishes_what_was_before() {
        for (store, load, ordered) in
            [(Release, Acquire, true), (Relaxed, Acquire, false), (Release, Relaxed, false), (Relaxed, Relaxed, false)]
        {
            let (mut cells, [data, flag]) = (Cells::new(2), words());
            cells.store(0, &data, 1, Relaxed, 1);
            cells.store(0, &flag, 1, store, 2);
            assert_eq!(cells.load(1, &flag, load, &mut |_| 0), 1);
            let values: &[u64] = if ordered { &[1] } else { &[1, 0] };
            assert_eq!(may_load(&cells, 1, &data, Relaxed), values, "{store:?}, {load:?}");
        }
    }

    #[test]
    fn a_release_fence_orders_what_was_before_it() {
        let (mut cells, [before, after, flag]) = (Cells::new(2), words());
        cells.store(0, &before, 1, Relaxed, 1);
        cells.fence(0);
        cells.store(0, &after, 1, Relaxed, 2);
        cells.store(0, &flag, 1, Relaxed, 3);
        cells.load(1, &flag, Acquire, &mut |_| 0);
        assert_eq!(may_load(&cells, 1, &before, Relaxed), [1]);
        assert_eq!(may_load(&cells, 1, &after, Relaxed), [1, 0]);
    }

    /// Two CPUs each write a word, then read the other's (store buffering).
    #[test]
    fn of_two_full_fences_the_later_one_s_cpu_finds_what_was_before_the_other() {
        type Fence = fn(&mut Cells, usize);
        let nothing: Fence = |_, _| ();
        let (full, release): (Fence, Fence) = (Cells::full_fence, Cells::fence);
        for (fences, found) in
            [([full, full], true), ([nothing; 2], false), ([full, nothing], false), ([release; 2], false)]
        {
            let (mut cells, [one, other]) = (Cells::new(2), words());
            cells.store(0, &one, 1, Relaxed, 1);
            fences[0](&mut cells, 0);
            assert_eq!(may_load(&cells, 0, &other, Relaxed), [0], "no CPU has written it yet");
            cells.store(1, &other, 1, Relaxed, 2);
            fences[1](&mut cells, 1);
            let values: &[u64] = if found { &[1] } else { &[1, 0] };
            assert_eq!(may_load(&cells, 1, &one, Relaxed), values);
        }
    }

    #[test]
    fn a_full_fence_tells_what_was_learned_before_the_other_and_nothing_later() {
        let (mut cells, [data, flag, later]) = (Cells::new(3), words());
        cells.store(0, &data, 1, Relaxed, 1);
        cells.store(0, &flag, 1, Release, 2);
        // CPU 1 learns of the store, then executes its fence.
        cells.load(1, &flag, Acquire, &mut |_| 0);
        cells.full_fence(1);
        cells.store(1, &later, 1, Relaxed, 3);
        cells.full_fence(2);
        assert_eq!(may_load(&cells, 2, &data, Relaxed), [1]);
        assert_eq!(may_load(&cells, 2, &later, Relaxed), [1, 0]);
    }

    /// A full fence also acts as a release fence.
    #[test]
    fn a_full_fence_orders_what_was_before_it_before_the_stores_after_it() {
        let (mut cells, [data, flag]) = (Cells::new(2), words());
        cells.store(0, &data, 1, Relaxed, 1);
        cells.full_fence(0);
        cells.store(0, &flag, 1, Relaxed, 2);
        cells.load(1, &flag, Acquire, &mut |_| 0);
        assert_eq!(may_load(&cells, 1, &data, Relaxed), [1]);
    }

    #[test]
    fn a_read_modify_write_is_of_the_last_value_and_continues_its_release_sequence() {
        let (mut cells, [data, word]) = (Cells::new(3), words());
        cells.store(0, &data, 1, Relaxed, 1);
        cells.store(0, &word, 4, Release, 2);
        let done = cells.update(1, &word, &mut |old| Some(old + 1), Relaxed, 3).map(|(old, _)| old);
        assert_eq!((done, word.load(Relaxed)), (Ok(4), 5));
        // As it is relaxed, its own CPU learns nothing. A CPU that acquires from it learns what the earlier store
        // released.
        assert_eq!(may_load(&cells, 1, &data, Relaxed), [1, 0]);
        cells.load(2, &word, Acquire, &mut |_| 0);
        assert_eq!(may_load(&cells, 2, &data, Relaxed), [1]);
        let refused = cells.update(2, &word, &mut |old| (old == 4).then_some(0), AcqRel, 4);
        assert_eq!((refused.map(|(old, _)| old), word.load(Relaxed)), (Err(5), 5));
    }

    #[test]
    fn walks_see_what_a_barrier_published() {
        let (mut cells, [word]) = (Cells::new(2), words());
        let (_, moment) = cells.store(0, &word, 1, Release, 1);
        assert_eq!(may_walk(&cells, 0, &word, &cells.walk(0)), [1, 0], "its own CPU's walks too");
        cells.publish(0, false);
        assert!(cells.is_published(moment, 0) && !cells.is_published(moment, 1));
        assert_eq!(may_walk(&cells, 0, &word, &cells.walk(0)), [1]);
        assert_eq!(may_walk(&cells, 1, &word, &cells.walk(1)), [1, 0]);
        cells.publish(0, true);
        assert_eq!(may_walk(&cells, 1, &word, &cells.walk(1)), [1]);
    }

    /// A walk learns from entry to entry, by address dependency.
    #[test]
    fn a_walk_that_sees_an_entry_sees_what_was_ordered_before_it() {
        for (order, below) in [(Release, &[1][..]), (Relaxed, &[1, 0])] {
            let (mut cells, [leaf, table]) = (Cells::new(2), words());
            cells.store(0, &leaf, 1, Relaxed, 1);
            cells.store(0, &table, 1, order, 2);
            let seen = cells.walk_load(1, &table, &cells.walk(1), &mut |_| 0);
            assert_eq!((seen.raw, seen.newest, seen.step), (1, true, 2));
            assert_eq!(may_walk(&cells, 1, &leaf, &seen.learned), below, "{order:?}");
        }
    }

    /// A barrier orders earlier stores even before a plain store.
    #[test]
    fn what_every_walk_knows_need_not_be_published() {
        let (mut cells, [data, entry]) = (Cells::new(2), words());
        let (_, written) = cells.store(0, &data, 1, Relaxed, 1);
        cells.store(0, &entry, 1, Relaxed, 2);
        assert!(!cells.last_publishes_to_walks(&entry).knows(written));
        cells.publish(0, false);
        assert!(!cells.last_publishes_to_walks(&entry).knows(written), "CPU 1's walks do not know it");
        cells.publish(0, true);
        assert!(cells.last_publishes_to_walks(&entry).knows(written));
    }

    #[test]
    fn hardware_changes_the_last_value_or_none() {
        let (mut cells, [word]) = (Cells::new(2), words());
        cells.store(0, &word, 1, Relaxed, 1);
        assert_eq!(cells.hardware_update(&word, 0, 8, 2), Err(1));
        assert_eq!(cells.hardware_update(&word, 1, 9, 3), Ok(()));
        assert_eq!((word.load(Relaxed), may_load(&cells, 1, &word, Relaxed)), (9, vec![9, 1, 0]));
        assert_eq!(may_load(&cells, 0, &word, Relaxed), [9], "a CPU that knows the old value sees the new one");
    }

    #[test]
    fn what_all_know_is_settled() {
        let (mut cells, [word]) = (Cells::new(2), words());
        assert_eq!(may_load(&cells, 1, &word, Relaxed), [0]);
        cells.store(0, &word, 1, Relaxed, 1);
        cells.settle(&word);
        assert_eq!(may_load(&cells, 1, &word, Relaxed), [1, 0], "the other CPU may still find the old value");
        assert!(cells.last_stored(&word).is_some_and(|(_, step)| step == 1));
        cells.meet();
        cells.settle(&word);
        assert_eq!((may_load(&cells, 1, &word, Relaxed), cells.last_stored(&word)), (vec![1], None));
    }

    #[test]
    fn the_last_known_value_is_of_the_last_store_that_is_known() {
        let (mut cells, [word]) = (Cells::new(2), words());
        let nothing = Clock::default();
        assert_eq!(cells.last_known(&word, &nothing), Some(0));
        cells.store(0, &word, 1, Relaxed, 1);
        let first = *cells.known(0);
        assert_eq!(cells.hardware_update(&word, 1, 9, 2), Ok(()));
        cells.store(0, &word, 2, Relaxed, 3);
        assert_eq!([&nothing, &first, cells.known(0)].map(|at| cells.last_known(&word, at)), [0, 9, 2].map(Some));
        for value in 3..20 {
            cells.store(0, &word, value, Relaxed, value);
        }
        assert_eq!((cells.last_known(&word, &first), cells.last_known(&word, cells.known(0))), (None, Some(19)));
    }

    #[test]
    fn a_history_keeps_its_maximum_of_values() {
        let (mut cells, [word]) = (Cells::new(2), words());
        for value in 1..20 {
            cells.store(0, &word, value, Relaxed, value);
        }
        let newest: Vec<u64> = (20 - KEPT as u64..20).rev().collect();
        assert_eq!(may_load(&cells, 1, &word, Relaxed), newest);
    }
}
