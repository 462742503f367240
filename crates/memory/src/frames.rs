// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The free memory of the machine: 4 KiB frames and naturally aligned runs of them.
//!
//! What is behind it is the buddy allocator of a crate; here the invariant is kept that every frame handed
//! out lies in a donated range. A guest has its frames in a lock, the last one that is taken: nothing here waits for
//! anything, and whoever gets a frame sees what was done to it by whoever gave it back.

use alloc::vec::Vec;

use buddy_system_allocator::FrameAllocator;
use twofold_stage2::{Donated, Error, Features, Geometry, Pa, Root, Run, TablePage, TableSource};

use crate::ram::SECTION;

/// Bytes of a frame.
pub(crate) const FRAME: u64 = 4096;

/// Free frames, for guests and tables.
pub struct Frames {
    features: Features,
    ranges: Vec<Range>,
    free_frames: u64,
    tables_taken: u64,
    tables_given: u64,
}

/// A donated range and what is free of it. One allocator for all would merge free frames of ranges that adjoin into
/// runs that lie in none.
struct Range {
    donated: Donated,
    free: FrameAllocator,
}

impl Frames {
    /// No frames yet.
    pub fn new(features: Features) -> Self {
        Self { features, ranges: Vec::new(), free_frames: 0, tables_taken: 0, tables_given: 0 }
    }

    /// Adds the whole frames of a range.
    pub fn add(&mut self, range: Donated) {
        let first = range.start().raw().div_ceil(FRAME);
        let end = (range.start().raw() + range.size()) / FRAME;
        if first < end {
            let mut free = FrameAllocator::new();
            free.add_frame(first as usize, end as usize);
            self.free_frames += end - first;
            self.ranges.push(Range { donated: range, free });
        }
    }

    /// How many frames are free.
    pub fn free(&self) -> u64 {
        self.free_frames
    }

    /// How many whole sections the donated ranges hold, taken or not: the most that guest RAM can be made of.
    pub fn sections(&self) -> u64 {
        let whole = |range: &Range| {
            let (start, end) = (range.donated.start().raw(), range.donated.start().raw() + range.donated.size());
            (end / SECTION).saturating_sub(start.div_ceil(SECTION))
        };
        self.ranges.iter().map(whole).sum()
    }

    /// A run of `count` frames, a power of two, aligned to its size. Its content is whatever was there before.
    pub fn take(&mut self, count: u64) -> Option<Run> {
        let (range, pa) = self.take_frames(count)?;
        range.run(pa, count * FRAME)
    }

    fn take_frames(&mut self, count: u64) -> Option<(&Donated, Pa)> {
        let mut ranges = self.ranges.iter_mut();
        let (range, first) = ranges.find_map(|range| Some((&range.donated, range.free.alloc(count as usize)?)))?;
        self.free_frames -= count;
        Some((range, Pa::new(first as u64 * FRAME)))
    }

    /// Takes a run back that nothing reaches any more, and that was [taken](Self::take) here.
    pub(crate) fn give_run(&mut self, run: &Run) {
        self.give_frames(run.pa(), run.size() / FRAME);
    }

    fn give_frames(&mut self, pa: Pa, count: u64) {
        let range = self.ranges.iter_mut().find(|range| range.donated.contains(pa, count * FRAME));
        let range = range.expect("frames are handed out from donated ranges only");
        range.free.dealloc((pa.raw() / FRAME) as usize, count as usize);
        self.free_frames += count;
    }

    /// The features of the CPUs that the frames are used on.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Memory for a root table; `None` when there is not enough.
    pub fn take_root(&mut self, geometry: &Geometry) -> Option<Result<Root, Error>> {
        let (range, pa) = self.take_frames((geometry.root_size() / FRAME).next_power_of_two())?;
        let root = range.root(pa, geometry);
        self.tables_taken += geometry.root_tables() as u64;
        Some(root)
    }

    /// Takes the memory of a root back, which no CPU has loaded any more.
    pub(crate) fn give_root(&mut self, root: Root) {
        self.give_frames(root.pa(), (root.size() / FRAME).next_power_of_two());
    }

    /// Table pages that were handed out and that came back.
    pub(crate) fn table_counts(&self) -> (u64, u64) {
        (self.tables_taken, self.tables_given)
    }
}

impl TableSource for Frames {
    fn take(&mut self) -> Option<TablePage> {
        let features = self.features;
        let (range, pa) = self.take_frames(1)?;
        let page = range.table_page(pa, &features);
        self.tables_taken += 1;
        page
    }

    fn give(&mut self, page: TablePage) {
        self.give_frames(page.pa(), 1);
        self.tables_given += 1;
    }
}
