// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Vector clocks: what each CPU has seen of the others' stores.

/// The most CPUs that a machine has in the unforgiving mode.
pub(crate) const CPUS: usize = 8;

/// For each CPU, the last of its stores that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock([u32; CPUS]);

/// One CPU's store, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) cpu: u8,
    pub(crate) time: u32,
}

impl Clock {
    /// Learns what another one knows.
    #[inline]
    pub(crate) fn join(&mut self, other: &Self) {
        for (mine, other) in self.0.iter_mut().zip(other.0) {
            *mine = (*mine).max(other);
        }
    }

    /// Counts a store of this CPU's, and tells which it is.
    #[inline]
    pub(crate) fn tick(&mut self, cpu: usize) -> Moment {
        self.0[cpu] += 1;
        Moment { cpu: cpu as u8, time: self.0[cpu] }
    }

    /// Whether that store is known.
    #[inline]
    pub(crate) fn knows(&self, moment: Moment) -> bool {
        moment.time <= self.0[usize::from(moment.cpu)]
    }

    /// The same, with what is known of `cpu` taken from another clock.
    #[inline]
    pub(crate) fn with_own(mut self, cpu: usize, from: &Self) -> Self {
        self.0[cpu] = from.0[cpu];
        self
    }
}
