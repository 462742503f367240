// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The free memory of the machine: frames of 4 KiB, and naturally aligned runs of them.
//!
//! A frame is the unit in which memory is counted, whatever the granule: a page or a table of 16 KiB is a run of 4 frames,
//! one of 64 KiB a run of 16.
//!
//! Each donated range is kept in maps of 2 MiB ([`FrameMap`]), which own its frames. Adding a range takes memory on the
//! heap. Taking or giving a frame takes none, so a full heap stops no fault here.
//!
//! Single frames, for tables, come from a map that is already partly used, as long as one has any; RAM takes whole
//! maps. So tables stay together, and break few 2 MiB runs. A guest keeps its frames in a lock, the last in the lock
//! order, and nothing here waits. The lock orders accesses too: a CPU that takes a frame sees all that was done to it
//! before it was given back.

use alloc::sync::Arc;
use alloc::vec::Vec;

use twofold_stage2::{
    Donated, Error, Features, FrameMap, Geometry, Granule, Pa, Platform, Root, Run, TablePage, TableSource,
};

use crate::pool::FramePool;
use crate::shared::{Share, SharedFrames};

/// Bytes of a frame, with every granule.
pub(crate) const FRAME: u64 = 4096;
/// Bytes in a huge page, the unit in which guest RAM takes its frames, with every granule. With 4 KiB it is a level 2
/// block. With 16 KiB and 64 KiB, whose blocks have 32 MiB and 512 MiB, it is 128 and 32 pages: as many as the contiguous
/// hint joins at level 3 (Arm ARM DDI 0487K.a, D8.6.1).
pub const HUGE_PAGE: u64 = FrameMap::SPAN;
/// Frames in a huge page, and in a map.
pub(crate) const PAGES: u64 = HUGE_PAGE / FRAME;

/// Free frames, for guests and tables.
pub struct Frames {
    features: Features,
    ranges: Vec<Range>,
    /// The range from which less than 2 MiB was last taken.
    last: usize,
    free_frames: u64,
    tables_taken: u64,
    tables_given: u64,
    data: Data,
    /// What it has of the frames that several guests share.
    share: Option<Share>,
    /// Where the frames for data are, if they are not here.
    pool: Option<Arc<FramePool>>,
}

/// The frames that hold the guest's data, and how many may.
#[derive(Clone, Copy)]
struct Data {
    /// Frames that back the guest's RAM, those with I/O in flight included.
    taken: u64,
    /// The most that `taken` may become.
    limit: u64,
    /// Free frames that are left to tables.
    reserve: u64,
}

impl Data {
    const UNLIMITED: Self = Self { taken: 0, limit: u64::MAX, reserve: 0 };
}

/// A donated range, in one map for each 2 MiB.
struct Range {
    start: Pa,
    size: u64,
    maps: Vec<FrameMap>,
    /// No map before this one has a free frame.
    first_free: usize,
    /// The map from which less than 2 MiB was last taken, or to which frames were last given back.
    last: usize,
    /// No map before this one is whole.
    first_whole: usize,
}

impl Frames {
    /// No frames yet.
    pub fn new(features: Features) -> Self {
        Self {
            features,
            ranges: Vec::new(),
            last: 0,
            free_frames: 0,
            tables_taken: 0,
            tables_given: 0,
            data: Data::UNLIMITED,
            share: None,
            pool: None,
        }
    }

    /// The frames of a guest that takes them from `shared`, at most `limit` of them, rounded up to 2 MiB. It has none yet.
    pub fn sharing(features: Features, shared: Arc<SharedFrames>, limit: u64) -> Self {
        Self { share: Some(Share::new(shared, limit.div_ceil(PAGES))), ..Self::new(features) }
    }

    /// From now on frames for data come from `pool`. None of these holds data yet.
    pub fn with_pool(self, pool: Arc<FramePool>) -> Self {
        Self { pool: Some(pool), ..self }
    }

    /// Whether they come from those that several guests share.
    pub(crate) fn are_shared(&self) -> bool {
        self.share.is_some()
    }

    /// The frames of a huge page, from those that guests share, within the guest's limit.
    #[cold]
    pub(crate) fn take_shared<P: Platform>(&mut self, platform: &P) -> Option<Run> {
        let run = self.share.as_mut()?.take_chunk(platform)?;
        self.data.taken += PAGES;
        Some(run)
    }

    /// More frames for tables, from those that guests share, within the guest's limit. `None` without such frames.
    #[cold]
    pub(crate) fn add_tables<P: Platform>(&mut self, platform: &P) -> Option<()> {
        self.share.as_mut()?.add_tables(platform)?;
        self.free_frames += PAGES;
        Some(())
    }

    /// A huge page that the guest has lost goes to all guests, or to its own free frames if it shares none.
    pub(crate) fn release_data<P: Platform>(&mut self, platform: &P, run: Run) {
        match &mut self.share {
            Some(share) => {
                self.data.taken -= run.size() / FRAME;
                share.give_back(platform, run);
            }
            None => self.give_data(platform, run),
        }
    }

    /// Gives back to all guests what is empty. Returns how many chunks are left.
    pub(crate) fn give_back_empty<P: Platform>(&mut self, platform: &P) -> u64 {
        let Some(share) = &mut self.share else { return 0 };
        self.free_frames -= share.give_back_empty(platform);
        share.owned()
    }

    /// Adds the whole frames of a range.
    pub fn add(&mut self, range: Donated) {
        self.add_run(range.into_run());
    }

    /// Adds a run that was taken from another source.
    pub fn add_run(&mut self, run: Run) {
        if !run.is_empty() {
            self.free_frames += run.size() / FRAME;
            self.ranges.push(Range::new(run));
        }
    }

    /// The number of free frames.
    pub fn free(&self) -> u64 {
        self.free_frames
    }

    /// The number of free frames that it shares with other guests; 0 if it shares none.
    pub fn free_to_all<P: Platform>(&self, platform: &P) -> u64 {
        self.share.as_ref().map_or(0, |share| share.free_to_all(platform))
    }

    /// The number of free frames of its pool; 0 if it has none.
    pub fn free_in_pool(&self) -> u64 {
        self.pool.as_ref().map_or(0, |pool| pool.free())
    }

    /// The number of whole, aligned 2 MiB runs in the donated ranges, free or taken: the most from which guest RAM can
    /// be made.
    pub fn huge_pages(&self) -> u64 {
        let whole = |range: &Range| {
            let (start, end) = (range.start.raw(), range.start.raw() + range.size);
            (end / HUGE_PAGE).saturating_sub(start.div_ceil(HUGE_PAGE))
        };
        self.ranges.iter().map(whole).sum()
    }

    /// Takes a run of `count` frames, aligned to its size. `count` is a power of two. The run keeps its old content.
    /// `None` if there is no such run.
    pub fn take(&mut self, count: u64) -> Option<Run> {
        let run = if count < PAGES { self.take_part(count) } else { self.take_whole(count) };
        let run = run.or_else(|| self.take_of_share(count))?;
        self.free_frames -= count;
        Some(run)
    }

    #[cold]
    fn take_of_share(&mut self, count: u64) -> Option<Run> {
        if count < PAGES { self.share.as_mut()?.take(count) } else { None }
    }

    fn take_part(&mut self, count: u64) -> Option<Run> {
        if let Some(run) = self.ranges.get_mut(self.last)?.take_from_last(count) {
            return Some(run);
        }
        let mut ranges = self.ranges.iter_mut().enumerate();
        let broken = ranges.find_map(|(at, range)| Some((at, range.take_from_broken(count)?)));
        let mut ranges = self.ranges.iter_mut().enumerate();
        let (at, run) = broken.or_else(|| ranges.find_map(|(at, range)| Some((at, range.take_part(count)?))))?;
        self.last = at;
        Some(run)
    }

    fn take_whole(&mut self, count: u64) -> Option<Run> {
        self.ranges.iter_mut().find_map(|range| range.take_whole(count))
    }

    /// Takes back a run that no mapping reaches any more. Returns the run as an error if it was not [taken](Self::take)
    /// here.
    pub fn give_run(&mut self, run: Run) -> Result<(), Run> {
        let count = run.size() / FRAME;
        match self.ranges.iter_mut().find(|range| range.contains(&run)) {
            Some(range) => range.give(run),
            None => {
                let Some(share) = &mut self.share else { return Err(run) };
                share.give(run)?;
                // An empty chunk is no frame that a table can take.
                if count == PAGES {
                    return Ok(());
                }
            }
        }
        self.free_frames += count;
        Ok(())
    }

    /// The features of the CPUs that the frames are used on.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Takes memory for a root table. `None` if there is not enough.
    pub fn take_root<G: Granule>(&mut self, geometry: &Geometry<G>) -> Option<Result<Root, Error>> {
        let size = geometry.root_size();
        let run = self.take(size / FRAME)?;
        self.tables_taken += geometry.root_tables() as u64;
        Some(run.into_root(geometry).map_err(|run| Error::Root { root: run.pa(), size }))
    }

    /// Takes frames for the guest's data, within the limit. The reserve is left to tables.
    pub(crate) fn take_data<P: Platform>(&mut self, platform: &P, count: u64) -> Option<Run> {
        if count > self.data_room() {
            return None;
        }
        let run = match &self.pool {
            None => self.take(count)?,
            Some(pool) => pool.take(platform, count)?,
        };
        self.data.taken += count;
        Some(run)
    }

    /// Takes back frames that held the guest's data.
    pub(crate) fn give_data<P: Platform>(&mut self, platform: &P, run: Run) {
        self.data.taken -= run.size() / FRAME;
        match &self.pool {
            None => self.give_own(run),
            Some(pool) => pool.give(platform, run),
        }
    }

    /// As [`give_data`](Self::give_data), of a guest that is destroyed: also what came from a pool stays here. The frames
    /// count as data until [`end_guest`](Self::end_guest).
    pub(crate) fn keep_data(&mut self, run: Run) {
        match &self.pool {
            None => self.give_own(run),
            Some(_) => self.add_run(run),
        }
    }

    /// How many more frames may hold data.
    #[inline]
    pub(crate) fn data_room(&self) -> u64 {
        let Data { taken, limit, reserve } = self.data;
        let free = match &self.pool {
            None => self.free_frames.saturating_sub(reserve),
            Some(pool) => pool.free(),
        };
        limit.saturating_sub(taken).min(free)
    }

    /// Frames that hold the guest's data, and the most that may.
    pub(crate) fn data(&self) -> (u64, u64) {
        (self.data.taken, self.data.limit)
    }

    /// Sets the most frames that may hold data.
    pub(crate) fn limit_data(&mut self, limit: u64) {
        self.data.limit = limit;
    }

    /// Sets how many free frames are left to tables.
    pub(crate) fn reserve_for_tables(&mut self, frames: u64) {
        self.data.reserve = frames;
    }

    /// Forgets the guest, which is destroyed.
    pub(crate) fn end_guest(&mut self) {
        self.data = Data::UNLIMITED;
    }

    /// Takes back a run that was taken here.
    pub(crate) fn give_own(&mut self, run: Run) {
        let given = self.give_run(run);
        assert!(given.is_ok(), "{given:?} was not taken here");
    }

    /// How many table pages were taken, and how many were given back.
    pub(crate) fn table_counts(&self) -> (u64, u64) {
        (self.tables_taken, self.tables_given)
    }
}

impl<G: Granule> TableSource<G> for Frames {
    fn take(&mut self) -> Option<TablePage<G>> {
        let page = self.take(G::SIZE / FRAME)?.into_table(&self.features).ok();
        self.tables_taken += 1;
        page
    }

    /// # Panics
    ///
    /// If the page was not taken here.
    fn give(&mut self, page: TablePage<G>) {
        self.give_own(page.into_run());
        self.tables_given += 1;
    }
}

impl Range {
    fn new(run: Run) -> Self {
        let (start, size) = (run.pa(), run.size());
        let mut maps = Vec::with_capacity(size.div_ceil(HUGE_PAGE) as usize + 1);
        let mut rest = run;
        while !rest.is_empty() {
            let here = (HUGE_PAGE - rest.pa().raw() % HUGE_PAGE).min(rest.size());
            // Never fails: `here` is whole pages, and no more than `rest` has.
            let Ok((part, behind)) = rest.split_at(here) else { break };
            maps.extend(FrameMap::new(part));
            rest = behind;
        }
        Self { start, size, maps, first_free: 0, last: 0, first_whole: 0 }
    }

    fn contains(&self, run: &Run) -> bool {
        run.pa() >= self.start && run.size() <= self.size && run.pa() - self.start <= self.size - run.size()
    }

    /// Frames of the map that was used last, if it is partly used.
    fn take_from_last(&mut self, count: u64) -> Option<Run> {
        take_if_broken(&mut self.maps[self.last], count)
    }

    /// Frames of any map that is partly used.
    fn take_from_broken(&mut self, count: u64) -> Option<Run> {
        self.first_free += self.maps[self.first_free..].iter().take_while(|map| map.free() == 0).count();
        let first = self.first_free;
        let mut maps = self.maps[first..].iter_mut().enumerate();
        let (at, run) = maps.find_map(|(at, map)| Some((first + at, take_if_broken(map, count)?)))?;
        self.last = at;
        Some(run)
    }

    /// Frames of any map.
    #[cold]
    fn take_part(&mut self, count: u64) -> Option<Run> {
        let mut maps = self.maps.iter_mut().enumerate();
        let (at, run) = maps.find_map(|(at, map)| Some((at, map.take(count)?)))?;
        self.last = at;
        Some(run)
    }

    /// One map or more, as one run.
    fn take_whole(&mut self, count: u64) -> Option<Run> {
        if count > PAGES {
            return self.take_maps((count / PAGES) as usize);
        }
        // A map that is passed over stays unusable for later calls, until frames come back.
        self.first_whole += self.maps[self.first_whole..].iter().take_while(|map| map.free() < PAGES).count();
        self.maps.get_mut(self.first_whole)?.take(count)
    }

    /// `count` maps in a row, aligned to their size, as one run.
    #[cold]
    fn take_maps(&mut self, count: usize) -> Option<Run> {
        let number = self.start.raw() / HUGE_PAGE;
        let aligned = |at: &usize| (number + *at as u64).is_multiple_of(count as u64);
        let is_whole = |maps: &[FrameMap]| maps.iter().all(|map| map.free() == PAGES);
        let mut starts = (0..self.maps.len().checked_sub(count - 1)?).filter(aligned);
        let at = starts.find(|at| is_whole(&self.maps[*at..*at + count]))?;
        let mut parts = self.maps[at..at + count].iter_mut().filter_map(|map| map.take(PAGES));
        let first = parts.next()?;
        // They are adjacent, so the join never fails.
        Some(parts.fold(first, |run, next| run.join(next).unwrap_or_else(|(run, _)| run)))
    }

    /// Takes back a run that lies in the range.
    fn give(&mut self, run: Run) {
        let mut rest = run;
        while !rest.is_empty() {
            let at = (rest.pa().raw() / HUGE_PAGE - self.start.raw() / HUGE_PAGE) as usize;
            let here = (HUGE_PAGE - rest.pa().raw() % HUGE_PAGE).min(rest.size());
            let Ok((part, behind)) = rest.split_at(here) else { return };
            let given = self.maps[at].give(part);
            debug_assert!(given.is_ok(), "{given:?} lies in the range");
            self.first_free = self.first_free.min(at);
            self.last = at;
            if self.maps[at].free() == PAGES {
                self.first_whole = self.first_whole.min(at);
            }
            rest = behind;
        }
    }
}

/// Frames of a map that is partly used, or that has less than 2 MiB.
fn take_if_broken(map: &mut FrameMap, count: u64) -> Option<Run> {
    if map.free() == PAGES { None } else { map.take(count) }
}
