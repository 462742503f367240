// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of cache lines of frames. A line has no contents here; the model tracks which observer could read stale
//! data.
//!
//! * A guest whose accesses are not cached may read a line that was written through the cache only after the line was
//!   cleaned (Arm ARM DDI 0487K.a, D7.5.9).
//! * A line that a guest may have written past the cache may be read through the cache only after it was invalidated.
//!   This holds for the hypervisor, and for a guest that stage 2 has since allowed to use the cache.
//! * A line that a guest wrote through the cache has to be cleaned before stage 2 makes the guest access it past the
//!   cache: the line might be written back at any time (D7.5.9).
//! * A line that was written may be executed only after an invalidation of the instruction cache that follows the
//!   completion of the write (D7.5.10).
//!
//! Where stage 2 leaves the choice to the guest, its own stage 1 may mix both kinds of access. The second rule for
//! guests and the third rule therefore cover only memory that stage 2 makes non-cacheable or a device.

use std::collections::BTreeMap;

use super::clock::{Clock, Moment};
use super::tables::PAGE;

/// The lines of frames that have a state to track.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    pages: BTreeMap<u64, PageLines>,
}

/// A bit for each line of 64 bytes.
#[derive(Clone, Copy, Debug, Default)]
struct PageLines {
    /// Written by the hypervisor through the cache, and not cleaned.
    dirty: u64,
    /// Written by a guest past the cache, and not invalidated.
    past: u64,
    /// The same, where stage 2 left the guest no choice.
    hidden: u64,
    /// Written by a guest through the cache, and not cleaned.
    cached: u64,
    /// Written, and not invalidated in the instruction cache.
    code: u64,
    /// The hypervisor's last write.
    written: Moment,
}

pub(crate) const LINE: u64 = 64;

impl Lines {
    /// The hypervisor writes through the cache.
    pub(crate) fn write(&mut self, start: u64, size: u64, moment: Moment) {
        self.each(start, size, true, |lines, mask| {
            lines.dirty |= mask;
            lines.past &= !mask;
            lines.hidden &= !mask;
            lines.code |= mask;
            lines.written = moment;
        });
    }

    /// The guest writes through the cache.
    pub(crate) fn write_cached(&mut self, word: u64) {
        self.each(word, 8, true, |lines, mask| lines.cached |= mask);
    }

    /// The guest writes past the cache, by its own choice or, if `forces`, because stage 2 makes it.
    pub(crate) fn write_past(&mut self, word: u64, forces: bool) {
        self.each(word, 8, true, |lines, mask| {
            lines.past |= mask;
            lines.hidden |= if forces { mask } else { 0 };
        });
    }

    /// Whether a guest that uses the cache may miss what a guest wrote past it.
    pub(crate) fn is_hidden(&self, word: u64) -> bool {
        self.any(word, 8, |lines| lines.hidden)
    }

    /// Whether a guest's write through the cache may not be in memory yet, or may be written back at any time.
    pub(crate) fn is_cached(&self, word: u64) -> bool {
        self.any(word, 8, |lines| lines.cached)
    }

    /// Whether a read past the cache misses a write of the hypervisor.
    pub(crate) fn is_dirty(&self, word: u64) -> bool {
        self.any(word, 8, |lines| lines.dirty)
    }

    /// Whether a read through the cache may miss a guest's write past it.
    pub(crate) fn is_past(&self, start: u64, size: u64) -> bool {
        self.any(start, size, |lines| lines.past)
    }

    /// Whether a fetch may miss a write.
    pub(crate) fn is_old_code(&self, word: u64) -> bool {
        self.any(word, 8, |lines| lines.code)
    }

    /// Cleans and invalidates lines.
    pub(crate) fn clean(&mut self, start: u64, size: u64) {
        self.each(start, size, false, |lines, mask| {
            lines.dirty &= !mask;
            lines.past &= !mask;
            lines.hidden &= !mask;
            lines.cached &= !mask;
        });
    }

    /// Invalidates the instruction cache, in a range or everywhere, for the writes in `complete`.
    pub(crate) fn invalidate_code(&mut self, range: Option<(u64, u64)>, complete: &Clock) {
        let (start, size) = range.unwrap_or((0, u64::MAX));
        self.each(start, size, false, |lines, mask| {
            if complete.knows(lines.written) {
                lines.code &= !mask;
            }
        });
    }

    /// Whether every write of the hypervisor to the range is known.
    pub(crate) fn is_known(&self, start: u64, size: u64, known: &Clock) -> bool {
        self.pages.range(start & !(PAGE - 1)..start.saturating_add(size)).all(|(_, lines)| known.knows(lines.written))
    }

    fn any(&self, start: u64, size: u64, bits: impl Fn(&PageLines) -> u64) -> bool {
        self.pages
            .range(start & !(PAGE - 1)..start.saturating_add(size))
            .any(|(page, lines)| bits(lines) & mask(*page, start, size) != 0)
    }

    fn each(&mut self, start: u64, size: u64, makes: bool, mut change: impl FnMut(&mut PageLines, u64)) {
        let first = start & !(PAGE - 1);
        if makes {
            let mut page = first;
            while page < start + size {
                self.pages.entry(page).or_default();
                page += PAGE;
            }
        }
        for (page, lines) in self.pages.range_mut(first..start.saturating_add(size)) {
            change(lines, mask(*page, start, size));
        }
    }
}

/// The lines of a page that are in a range.
fn mask(page: u64, start: u64, size: u64) -> u64 {
    let first = start.saturating_sub(page) / LINE;
    let end = (start.saturating_add(size) - page).min(PAGE).div_ceil(LINE);
    if end - first >= 64 { u64::MAX } else { ((1 << (end - first)) - 1) << first }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0x4000_0000;

    fn written(start: u64, size: u64) -> Lines {
        let mut lines = Lines::default();
        lines.write(start, size, Moment { cpu: 0, time: 1 });
        lines
    }

    #[test]
    fn masks_of_parts_of_a_page() {
        for (start, size, expected) in [
            (START, 1, 1),
            (START + 63, 2, 0b11),
            (START + 64, 64, 0b10),
            (START, PAGE, u64::MAX),
            (START - 8, 16, 1),
            (START + PAGE - 64, 4 * PAGE, 1 << 63),
            (START - PAGE, 8 * PAGE, u64::MAX),
        ] {
            assert_eq!(mask(START, start, size), expected, "{start:#x}, {size:#x}");
        }
    }

    #[test]
    fn a_line_is_dirty_until_it_is_cleaned() {
        let mut lines = written(START + PAGE - 8, 16);
        for word in [START + PAGE - 64, START + PAGE - 8, START + PAGE, START + PAGE + 56] {
            assert!(lines.is_dirty(word), "{word:#x}");
        }
        assert!(!lines.is_dirty(START + PAGE - 72) && !lines.is_dirty(START + PAGE + 64));
        lines.clean(START, PAGE);
        assert!(!lines.is_dirty(START + PAGE - 8) && lines.is_dirty(START + PAGE));
    }

    #[test]
    fn what_was_written_past_the_cache_is_not_read_through_it_until_the_line_is_invalidated() {
        let mut lines = Lines::default();
        lines.write_past(START + 128, false);
        assert!(lines.is_past(START, PAGE) && !lines.is_past(START, 128) && !lines.is_dirty(START + 128));
        lines.clean(START + 128, 64);
        assert!(!lines.is_past(START, PAGE));
        // A write through the cache puts the line into the cache.
        lines.write_past(START, true);
        assert!(lines.is_hidden(START) && !lines.is_hidden(START + 128));
        lines.write(START, 64, Moment { cpu: 0, time: 1 });
        assert!(!lines.is_past(START, 64) && !lines.is_hidden(START));
    }

    #[test]
    fn what_a_guest_wrote_is_settled_by_cleaning_its_line() {
        let mut lines = Lines::default();
        lines.write_cached(START + 8);
        lines.write_past(START + 64, true);
        lines.write_past(START + 128, false);
        assert_eq!([0, 64, 128].map(|line| lines.is_cached(START + line)), [true, false, false]);
        assert_eq!([0, 64, 128].map(|line| lines.is_hidden(START + line)), [false, true, false]);
        lines.clean(START, 128);
        assert!(![0, 64].iter().any(|line| lines.is_cached(START + line) || lines.is_hidden(START + line)));
    }

    #[test]
    fn code_is_old_until_it_is_invalidated_after_its_write_is_complete() {
        let mut lines = written(START, 2 * PAGE);
        let (nothing, mut complete) = (Clock::default(), Clock::default());
        complete.tick(0);
        lines.invalidate_code(None, &nothing);
        assert!(lines.is_old_code(START));
        lines.invalidate_code(Some((START, 64)), &complete);
        assert!(!lines.is_old_code(START) && lines.is_old_code(START + 64));
        lines.invalidate_code(None, &complete);
        assert!(!lines.is_old_code(START + 64) && !lines.is_old_code(START + PAGE));
    }

    #[test]
    fn a_frame_is_known_to_a_cpu_that_knows_its_last_write() {
        let lines = written(START + PAGE, 8);
        let (nothing, mut knows) = (Clock::default(), Clock::default());
        knows.tick(0);
        assert!(lines.is_known(START, PAGE, &nothing) && !lines.is_known(START, 2 * PAGE, &nothing));
        assert!(lines.is_known(START, 2 * PAGE, &knows));
    }
}
