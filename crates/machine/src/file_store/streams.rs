// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How far to read ahead: not at all for a page alone, and twice as far each time that a guest goes on where the last read
//! of it ended. So random accesses bring no page for nothing, and sequential ones soon bring whole clusters.

use twofold_stage2::Ipa;

use super::packed::PAGE;

/// How many sequential streams are followed at once.
const COUNT: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Streams {
    /// The one that was used last is the last.
    streams: Vec<Stream>,
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The page that is wanted next if the accesses are sequential.
    next: Ipa,
    window: usize,
}

impl Streams {
    /// How many pages to read from `page` on, at most `most`.
    pub(super) fn window(&mut self, page: Ipa, most: usize) -> usize {
        let span = |pages: usize| (pages * PAGE) as u64;
        // Pages of the window that were in memory are skipped, so the next read may begin behind its end.
        let goes_on = |stream: &Stream| page >= stream.next && page - stream.next < span(stream.window);
        let window = match self.streams.iter().position(goes_on) {
            Some(at) => (2 * self.streams.remove(at).window).min(most),
            None => 1,
        };
        if self.streams.len() == COUNT {
            self.streams.remove(0);
        }
        if let Some(next) = page.checked_add(span(window)) {
            self.streams.push(Stream { next, window });
        }
        window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_grow_while_accesses_go_on() {
        let mut streams = Streams::default();
        let page = |number: u64| Ipa::new(number * PAGE as u64);
        let (mut at, mut other) = (10, 1000);
        for expected in [1, 2, 4, 8, 16, 16] {
            assert_eq!(streams.window(page(at), 16), expected);
            // Another stream, and pages alone.
            assert_eq!(streams.window(page(other), 16), expected);
            assert_eq!(streams.window(page(at * 5000 + 777), 16), 1);
            at += expected as u64;
            other += expected as u64;
        }
        assert_eq!(streams.window(page(at + 16), 16), 1, "too far");
        assert_eq!(streams.window(page(at + 17), 1), 1, "nothing is to be read ahead");
    }

    #[test]
    fn eight_streams_are_followed_and_the_oldest_is_forgotten() {
        let mut streams = Streams::default();
        let page = |stream: u64, number: u64| Ipa::new((stream * 1000 + number) * PAGE as u64);
        for (number, expected) in [(0, 1), (1, 2)] {
            (0..8).for_each(|stream| assert_eq!(streams.window(page(stream, number), 16), expected));
        }
        assert_eq!(streams.window(page(8, 0), 16), 1);
        assert_eq!(streams.window(page(1, 3), 16), 4);
        assert_eq!(streams.window(page(0, 3), 16), 1);
    }
}
