// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The workloads: which pages a guest writes in each round.

use super::recorded::Recorded;
use crate::statistics::Random;

/// A workload.
#[derive(Debug)]
pub enum Workload {
    /// One page after the other.
    Sequential,
    /// A random page each time.
    Random,
    /// One page in each 64, the same in every round. Its place among the 64 differs from one group to the next.
    Sparse,
    /// A random page of a hot hundredth, which is scattered in runs of 16 pages.
    Hot,
    /// The recorded writes of a real guest.
    Recorded(Recorded),
}

impl Workload {
    /// Returns the workload's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Random => "random",
            Self::Sparse => "sparse 1 in 64",
            Self::Hot => "hot 1 %",
            Self::Recorded(recorded) => recorded.name(),
        }
    }

    /// Returns the pages of a round, in the order in which they are written, for a slot of `pages` pages. A recorded
    /// round ignores `writes`: it has one write for each page that was dirty.
    pub fn round(&self, round: u64, pages: u64, writes: u64) -> Vec<u32> {
        let mut random = Random::new(round);
        let mut list = |page: &mut dyn FnMut(u64, &mut Random) -> u64| -> Vec<u32> {
            (round * writes..(round + 1) * writes).map(|number| page(number, &mut random) as u32).collect()
        };
        match self {
            Self::Sequential => list(&mut |number, _| number % pages),
            Self::Random => list(&mut |_, random| random.below(pages)),
            Self::Sparse => list(&mut |number, _| {
                let of_64 = number % (pages / 64);
                of_64 * 64 + Random::new(of_64).below(64)
            }),
            Self::Hot => list(&mut |_, random| {
                let run = Random::new(random.below(pages / 100 / HOT_RUN)).below(pages / HOT_RUN);
                run * HOT_RUN + random.below(HOT_RUN)
            }),
            Self::Recorded(recorded) => recorded.round(round).to_vec(),
        }
    }

    /// Returns the number of rounds; `None` if the workload has any number of them.
    pub fn rounds(&self) -> Option<u64> {
        match self {
            Self::Recorded(recorded) => Some(recorded.rounds()),
            _ => None,
        }
    }
}

/// Pages of a hot run.
const HOT_RUN: u64 = 16;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PAGES: u64 = 1 << 18;

    fn written(workload: &Workload, round: u64, writes: u64) -> BTreeSet<u32> {
        let pages = workload.round(round, PAGES, writes);
        assert_eq!(pages.len() as u64, writes);
        assert!(pages.iter().all(|page| u64::from(*page) < PAGES));
        pages.into_iter().collect()
    }

    #[test]
    fn sequential_rounds_go_on_where_the_last_one_ended() {
        let workload = Workload::Sequential;
        assert_eq!(workload.round(1, PAGES, 3), [3, 4, 5]);
        assert_eq!(written(&workload, 5, PAGES).len() as u64, PAGES);
    }

    #[test]
    fn random_rounds_differ() {
        let (first, second) = (written(&Workload::Random, 0, 1000), written(&Workload::Random, 1, 1000));
        assert!(first.intersection(&second).count() < 50);
    }

    #[test]
    fn sparse_is_the_same_page_of_each_64() {
        let pages = written(&Workload::Sparse, 0, PAGES);
        assert_eq!(pages.len() as u64, PAGES / 64);
        assert_eq!(pages.iter().map(|page| page / 64).collect::<BTreeSet<_>>().len() as u64, PAGES / 64);
        assert_eq!(pages, written(&Workload::Sparse, 7, PAGES));
        assert!(pages.iter().map(|page| page % 64).collect::<BTreeSet<_>>().len() > 60);
    }

    #[test]
    fn hot_is_a_hundredth() {
        let mut pages = written(&Workload::Hot, 0, PAGES);
        pages.append(&mut written(&Workload::Hot, 1, PAGES));
        let hundredth = PAGES as f64 / 100.0;
        assert!((0.95..=1.0).contains(&(pages.len() as f64 / hundredth)), "{}", pages.len());
    }
}
