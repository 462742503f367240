// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The values behind locks: whether the CPUs that reach one have synchronized in between.
//!
//! A value is no word, so its accesses have no ordering of their own. Two accesses by two CPUs, one of them a change, are
//! a data race unless the later CPU knows the earlier access, as a lock that is taken and released lets it know. The
//! check needs no overlap in time: a lock that is left out, or has half of its ordering, is found as soon as two CPUs
//! have been there one after the other.

use std::collections::HashMap;

use super::clock::{CPUS, Clock, Moment};

/// The accesses of each value that a later one must know.
#[derive(Default)]
pub(crate) struct Guards(HashMap<(u64, usize), Accesses>);

#[derive(Default)]
struct Accesses {
    changed: Moment,
    /// When each CPU last read it, since the last change.
    read: [u32; CPUS],
}

impl Guards {
    /// A CPU that knows `known` reaches a value. The error is the CPU whose access it does not know.
    pub(crate) fn reach(
        &mut self,
        cpu: usize,
        known: &mut Clock,
        value: (u64, usize),
        changes: bool,
    ) -> Result<(), u8> {
        let accesses = self.0.entry(value).or_default();
        if !known.knows(accesses.changed) {
            return Err(accesses.changed.cpu);
        }
        if changes {
            let read = (0u8..).zip(accesses.read).map(|(cpu, time)| Moment { cpu, time });
            if let Some(unknown) = read.into_iter().find(|read| !known.knows(*read)) {
                return Err(unknown.cpu);
            }
            *accesses = Accesses { changed: known.tick(cpu), ..Accesses::default() };
        } else {
            accesses.read[cpu] = known.tick(cpu).time;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_that_does_not_know_the_last_change_races() {
        for changes in [false, true] {
            let (mut guards, [mut one, mut other]) = (Guards::default(), [Clock::default(); 2]);
            assert_eq!(guards.reach(0, &mut one, (7, 0), true), Ok(()));
            assert_eq!(guards.reach(0, &mut one, (7, 0), changes), Ok(()), "its own change");
            assert_eq!(guards.reach(1, &mut other, (8, 0), true), Ok(()), "another value");
            assert_eq!(guards.reach(1, &mut other.clone(), (7, 0), changes), Err(0));
            other.join(&one);
            assert_eq!(guards.reach(1, &mut other, (7, 0), changes), Ok(()));
        }
    }

    #[test]
    fn reads_do_not_race_with_each_other_and_a_change_races_with_each() {
        let (mut guards, mut clocks) = (Guards::default(), [Clock::default(); 3]);
        for (cpu, clock) in clocks.iter_mut().enumerate() {
            assert_eq!(guards.reach(cpu, clock, (7, 0), false), Ok(()));
        }
        let [one, other, mut changes] = clocks;
        assert_eq!(guards.reach(2, &mut changes.with(&one), (7, 0), true), Err(1));
        assert_eq!(guards.reach(2, &mut changes.with(&other), (7, 0), true), Err(0));
        changes.join(&one.with(&other));
        assert_eq!(guards.reach(2, &mut changes, (7, 0), true), Ok(()));
    }
}
