// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A map of free frames: up to 2 MiB of donated memory, with one bit for each frame.
//!
//! An embedder that keeps its frames in such maps needs no heap to take or give one. A map owns its memory. It hands a
//! frame out as a [`Run`] only if the frame's bit says that it is free, so no frame is handed out twice.

use crate::{Pa, Run};

/// Which frames of a run are free, and which are taken. The run lies in one naturally aligned span of 2 MiB.
#[derive(Debug)]
pub struct FrameMap {
    run: Run,
    /// One bit for each frame of the span: set if the frame is taken, or not in the run.
    out: [u64; WORDS],
    free: u16,
}

impl FrameMap {
    /// The size of a span in bytes, and its alignment: the most that one map covers.
    pub const SPAN: u64 = 2 << 20;

    /// A map of all of `run`. Returns the run itself if it does not lie in one aligned span.
    pub fn new(run: Run) -> Result<Self, Run> {
        let fits = run.pa().raw() % Self::SPAN + run.size() <= Self::SPAN;
        if !fits {
            return Err(run);
        }
        let (first, count) = (frame_of(run.pa()), (run.size() / FRAME) as usize);
        let mut map = Self { run, out: [u64::MAX; WORDS], free: count as u16 };
        map.set(first, count, false);
        Ok(map)
    }

    /// The number of free frames.
    #[inline]
    pub fn free(&self) -> u64 {
        u64::from(self.free)
    }

    /// Takes the first free run of `count` frames that is aligned to its size. `None` if there is none, or if `count`
    /// is not a power of two.
    pub fn take(&mut self, count: u64) -> Option<Run> {
        if count > self.free() || !count.is_power_of_two() {
            return None;
        }
        let first = self.find(count as usize)?;
        self.set(first, count as usize, true);
        self.free -= count as u16;
        let start = self.run.pa().align_down(Self::SPAN) + first as u64 * FRAME;
        Some(Run::out_of_map(start, count * FRAME))
    }

    /// Takes a run back. Returns the run itself if it is not from this map.
    pub fn give(&mut self, run: Run) -> Result<(), Run> {
        let inside = run.pa() >= self.run.pa() && run.pa() - self.run.pa() < self.run.size();
        if !inside || run.size() > self.run.size() - (run.pa() - self.run.pa()) {
            return Err(run);
        }
        let (first, count) = (frame_of(run.pa()), (run.size() / FRAME) as usize);
        // The caller owns the run, so these frames are taken.
        self.set(first, count, false);
        self.free += count as u16;
        Ok(())
    }

    /// The whole run, if no frame is taken.
    pub fn into_run(self) -> Result<Run, Self> {
        if self.free() * FRAME == self.run.size() { Ok(self.run) } else { Err(self) }
    }

    fn find(&self, count: usize) -> Option<usize> {
        if count >= 64 {
            let words = count / 64;
            return (0..self.out.len())
                .step_by(words)
                .find(|at| self.out.get(*at..*at + words).is_some_and(|words| words.iter().all(|word| *word == 0)))
                .map(|at| at * 64);
        }
        self.out.iter().enumerate().find_map(|(at, word)| {
            // Bit n stays set if the `count` frames from n on are free, and n is a multiple of `count`.
            let mut free = !word;
            let mut width = 1;
            while width < count {
                free &= free >> width;
                width *= 2;
            }
            free &= u64::MAX / ((1 << count) - 1).max(1);
            (free != 0).then(|| at * 64 + free.trailing_zeros() as usize)
        })
    }

    fn set(&mut self, first: usize, count: usize, out: bool) {
        let (mut at, end) = (first, first + count);
        while at < end {
            let bits = (64 - at % 64).min(end - at);
            let mask = u64::MAX >> (64 - bits) << (at % 64);
            // Every frame of a span has its bit: this leaves out no word, and no path that panics is compiled.
            let Some(word) = self.out.get_mut(at / 64) else { return };
            *word = if out { *word | mask } else { *word & !mask };
            at += bits;
        }
    }
}

const FRAME: u64 = 4096;
const WORDS: usize = (FrameMap::SPAN / FRAME / 64) as usize;

/// A frame's number in its span.
fn frame_of(pa: Pa) -> usize {
    (pa.raw() % FrameMap::SPAN / FRAME) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::Donated;

    fn run(first: u64, pages: u64) -> Run {
        // SAFETY: nothing is accessed through it here.
        unsafe { Donated::new(Pa::new(0x4000_0000 + first * FRAME), pages * FRAME) }.into_run()
    }

    /// The first run that is free and aligned, found frame by frame.
    fn expected(free: &BTreeSet<u64>, count: u64) -> Option<u64> {
        (0..512).step_by(count as usize).find(|first| (*first..first + count).all(|frame| free.contains(&frame)))
    }

    proptest! {
        #[test]
        fn it_keeps_the_books_as_a_set_does(
            (first, pages) in (0u64..512).prop_flat_map(|first| (Just(first), 0..=512 - first)),
            steps in prop::collection::vec((0u32..11, any::<prop::sample::Index>(), any::<bool>()), 0..200),
        ) {
            let mut map = FrameMap::new(run(first, pages)).unwrap();
            let mut free: BTreeSet<u64> = (first..first + pages).collect();
            let mut out: Vec<Run> = Vec::new();
            for (order, which, gives) in steps {
                if gives && !out.is_empty() {
                    let run = out.swap_remove(which.index(out.len()));
                    let frame = (run.pa() - Pa::new(0x4000_0000)) / FRAME;
                    free.extend(frame..frame + run.size() / FRAME);
                    prop_assert_eq!(map.give(run), Ok(()));
                } else {
                    let count = 1 << order;
                    let found = expected(&free, count).filter(|_| count <= 512);
                    let taken = map.take(count);
                    prop_assert_eq!(taken.as_ref().map(|run| (run.pa() - Pa::new(0x4000_0000)) / FRAME), found);
                    if let (Some(run), Some(found)) = (taken, found) {
                        prop_assert_eq!(run.size(), count * FRAME);
                        (found..found + count).for_each(|frame| assert!(free.remove(&frame)));
                        out.push(run);
                    }
                }
                prop_assert_eq!(map.free(), free.len() as u64);
            }
            out.into_iter().for_each(|run| assert_eq!(map.give(run), Ok(())));
            prop_assert_eq!(map.into_run().ok(), Some(run(first, pages)));
        }
    }

    #[test]
    fn each_frame_of_a_whole_span_is_taken_alone() {
        let mut map = FrameMap::new(run(0, 512)).unwrap();
        let taken: Vec<_> = core::iter::from_fn(|| map.take(1)).collect();
        assert_eq!(taken, (0..512).map(|frame| run(frame, 1)).collect::<Vec<_>>());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(FrameMap::new(run(511, 2)).is_err());
        let mut map = FrameMap::new(run(8, 8)).unwrap();
        for strange in [run(7, 1), run(16, 1), run(15, 2), run(512 + 8, 1)] {
            assert!(map.give(strange).is_err());
        }
        assert_eq!((map.take(3), map.take(0)), (None, None));
        let taken = map.take(8).unwrap();
        let mut map = map.into_run().unwrap_err();
        assert_eq!(map.give(taken), Ok(()));
        assert!(map.into_run().is_ok());
    }
}
