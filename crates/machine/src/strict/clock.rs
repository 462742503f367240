// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Vector clocks: the stores of the other CPUs that each CPU has seen.

/// The most CPUs that a machine has in strict mode.
pub(crate) const CPUS: usize = 8;

/// For each CPU, the number of its last store that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock([u32; CPUS]);

/// A store, by its CPU and number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) cpu: u8,
    pub(crate) time: u32,
}

impl Clock {
    /// Adds everything that another clock knows.
    #[inline]
    pub(crate) fn join(&mut self, other: &Self) {
        for (mine, other) in self.0.iter_mut().zip(other.0) {
            *mine = (*mine).max(other);
        }
    }

    /// This clock with everything that another knows.
    pub(crate) fn with(mut self, other: &Self) -> Self {
        self.join(other);
        self
    }

    /// What both clocks know.
    pub(crate) fn common(mut self, other: Self) -> Self {
        for (mine, other) in self.0.iter_mut().zip(other.0) {
            *mine = (*mine).min(other);
        }
        self
    }

    /// Counts a store of this CPU, and returns its moment.
    #[inline]
    pub(crate) fn tick(&mut self, cpu: usize) -> Moment {
        self.0[cpu] += 1;
        Moment { cpu: cpu as u8, time: self.0[cpu] }
    }

    /// Whether the store is known.
    #[inline]
    pub(crate) fn knows(&self, moment: Moment) -> bool {
        moment.time <= self.0[usize::from(moment.cpu)]
    }

    /// This clock, with its knowledge of `cpu` taken from another clock.
    #[inline]
    pub(crate) fn with_own(mut self, cpu: usize, from: &Self) -> Self {
        self.0[cpu] = from.0[cpu];
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_known_to_its_cpu_and_to_cpus_that_learned_of_it() {
        let [mut one, mut other] = [Clock::default(); 2];
        let (first, second) = (one.tick(0), one.tick(0));
        assert!(one.knows(first) && one.knows(second) && !other.knows(first));
        other.tick(1);
        other.join(&one);
        assert!(other.knows(second) && !one.knows(Moment { cpu: 1, time: 1 }));
        assert_eq!(one.with(&other), other);
    }

    #[test]
    fn what_was_always_there_is_known_to_all() {
        assert!(Clock::default().knows(Moment::default()));
    }

    #[test]
    fn what_both_know_is_the_less_of_each() {
        let [mut one, mut other] = [Clock::default(); 2];
        let (shared, own) = (one.tick(0), other.tick(1));
        other.join(&one);
        let newer = one.tick(0);
        let common = one.common(other);
        assert!(common.knows(shared) && !common.knows(newer) && !common.knows(own));
        let replaced = one.with_own(0, &other);
        assert!(replaced.knows(shared) && !replaced.knows(newer));
    }
}
