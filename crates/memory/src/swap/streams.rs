// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How far to read ahead: not at all for a page alone, and twice as far each time that a guest goes on where the last read
//! of it ended. So random accesses bring no page for nothing, and sequential ones soon bring whole clusters.
//!
//! A store, or the machine around it, asks [`Streams::window`] for each page that the guest waits for, and requests the other
//! pages of the window by [`begin_read`](crate::GuestMemory::begin_read) with [`Unasked::Ahead`](super::Unasked::Ahead).

use core::marker::PhantomData;

use twofold_stage2::{Granule, Ipa, Kib4};

/// The sequential accesses of one guest to absent pages. It follows eight streams at once, and takes no memory beside itself.
#[derive(Debug)]
pub struct Streams<G: Granule = Kib4> {
    /// The one that was used last is the last.
    streams: [Stream; COUNT],
    granule: PhantomData<G>,
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The page that is wanted next if the accesses are sequential.
    next: Ipa,
    /// Pages of the last read. 0: nothing was read.
    window: u64,
}

const COUNT: usize = 8;

impl<G: Granule> Streams<G> {
    /// No accesses yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { streams: [Stream { next: Ipa::new(0), window: 0 }; COUNT], granule: PhantomData }
    }

    /// The guest waits for `page`. Returns how many pages to read from there on: at least 1, at most `most`.
    pub fn window(&mut self, page: Ipa, most: u64) -> u64 {
        let span = |pages: u64| pages * G::SIZE;
        // Pages of the window that were in memory are skipped, so the next read may begin behind its end.
        let goes_on = |stream: &Stream| page >= stream.next && page - stream.next < span(stream.window);
        let found = self.streams.iter().position(goes_on);
        let window = found.map_or(1, |at| (2 * self.streams[at].window).min(most).max(1));
        if let Some(next) = page.checked_add(span(window)) {
            // The stream goes to the end; a new one takes the place of the one that was not used for longest.
            let at = found.unwrap_or(0);
            self.streams.copy_within(at + 1.., at);
            self.streams[COUNT - 1] = Stream { next, window };
        }
        window
    }
}

impl<G: Granule> Default for Streams<G> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_grow_while_accesses_go_on() {
        let mut streams = Streams::<Kib4>::new();
        let page = |number: u64| Ipa::new(number * Kib4::SIZE);
        let (mut at, mut other) = (10, 1000);
        for expected in [1, 2, 4, 8, 16, 16] {
            assert_eq!(streams.window(page(at), 16), expected);
            // Another stream, and pages alone.
            assert_eq!(streams.window(page(other), 16), expected);
            assert_eq!(streams.window(page(at * 5000 + 777), 16), 1);
            at += expected;
            other += expected;
        }
        assert_eq!(streams.window(page(at + 16), 16), 1, "too far");
        assert_eq!(streams.window(page(at + 17), 1), 1, "nothing is to be read ahead");
        assert_eq!(streams.window(page(at + 18), 0), 1, "the page itself is always read");
    }

    #[test]
    fn eight_streams_are_followed_and_the_oldest_is_forgotten() {
        let mut streams = Streams::<Kib4>::new();
        let page = |stream: u64, number: u64| Ipa::new((stream * 1000 + number) * Kib4::SIZE);
        for (number, expected) in [(0, 1), (1, 2)] {
            (0..8).for_each(|stream| assert_eq!(streams.window(page(stream, number), 16), expected));
        }
        assert_eq!(streams.window(page(8, 0), 16), 1);
        assert_eq!(streams.window(page(1, 3), 16), 4);
        assert_eq!(streams.window(page(0, 3), 16), 1);
    }

    #[test]
    fn the_last_page_has_no_next() {
        let mut streams = Streams::<Kib4>::new();
        let last = Ipa::new(0u64.wrapping_sub(Kib4::SIZE));
        assert_eq!([streams.window(last, 16), streams.window(last, 16)], [1, 1]);
    }
}
