// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A memory balloon, and what becomes of the pages that its guest gives up: their frames are free, for this guest, or for
//! all guests that share frames with it.
//!
//! With a store, each page becomes free by itself. Without one, whole huge pages do: when all of a huge page is in the
//! balloon, or is reported.
//!
//! Invariant: a bit is set only while its page is in the balloon, and while its driver uses no page of the balloon. So a
//! huge page whose bits are all set is not in use.

use alloc::boxed::Box;

use twofold_abi::virt::RAM_BASE;
use twofold_devices::virtio::Next;
use twofold_devices::virtio::balloon::{self, PAGE, Pages};
use twofold_devices::{InterruptLine, RamError};
use twofold_memory::HUGE_PAGE;

use crate::guest_ram::Ram;

/// A guest's balloon.
pub struct Balloon {
    pub(super) device: balloon::Balloon,
    inside: Inside,
    /// Frames that have become free.
    pub(super) given_up: u64,
}

/// The pages that are in the balloon.
struct Inside {
    /// Pages of the guest's RAM.
    count: u64,
    /// A bit for each of them.
    bits: Box<[u64]>,
}

/// Takes pages for one piece of the device's work.
struct Taker<'a> {
    inside: &'a mut Inside,
    given_up: &'a mut u64,
    ram: &'a Ram<'a>,
}

impl Balloon {
    /// The balloon of a guest with this number of bytes of RAM.
    pub(super) fn new(memory: u64) -> Self {
        let count = memory / PAGE;
        let bits = alloc::vec![0; count.div_ceil(64) as usize].into_boxed_slice();
        Self { device: balloon::Balloon::new(), inside: Inside { count, bits }, given_up: 0 }
    }

    /// Takes the pages that the guest gives up.
    pub(super) fn work(&mut self, ram: &Ram<'_>, line: &mut impl InterruptLine) -> Next {
        let mut taker = Taker { inside: &mut self.inside, given_up: &mut self.given_up, ram };
        self.device.poll(ram, &mut taker, line)
    }

    /// Asks the guest to keep this number of bytes of its RAM.
    pub(super) fn keep(&mut self, bytes: u64, line: &mut impl InterruptLine) {
        let pages = self.inside.count.saturating_sub(bytes / PAGE);
        self.device.ask_for(u32::try_from(pages).unwrap_or(u32::MAX), line);
    }
}

impl Balloon {
    /// The pages in the balloon: a bit for each page of RAM.
    pub(super) fn bits(&self) -> &[u64] {
        &self.inside.bits
    }

    /// The same, for a guest that comes from elsewhere.
    pub(super) fn bits_mut(&mut self) -> &mut [u64] {
        &mut self.inside.bits
    }
}

impl Inside {
    /// The place of the page's bit: a word, and a mask.
    fn place(&self, page: u64) -> Result<(usize, u64), RamError> {
        let number = page.checked_sub(RAM_BASE).map(|offset| offset / PAGE).filter(|number| *number < self.count);
        number.map(|number| ((number / 64) as usize, 1 << (number % 64))).ok_or(RamError::NotRam(page))
    }

    /// Whether all of the huge page around this page is here.
    fn has_huge_page(&self, page: u64) -> bool {
        const WORDS: usize = (HUGE_PAGE / PAGE / 64) as usize;
        let first = ((page - RAM_BASE) / HUGE_PAGE) as usize * WORDS;
        self.bits.get(first..first + WORDS).is_some_and(|words| words.iter().all(|word| *word == u64::MAX))
    }
}

impl Taker<'_> {
    /// Returns how many bytes were dealt with.
    fn give_up(&mut self, start: u64, length: u64) -> Result<u64, RamError> {
        let (done, frames) = self.ram.give_up(start, length)?;
        *self.given_up += frames;
        Ok(done)
    }
}

impl Pages for Taker<'_> {
    fn inflate(&mut self, page: u64, is_announced: bool) -> Result<bool, RamError> {
        let (word, bit) = self.inside.place(page)?;
        if is_announced {
            self.inside.bits[word] |= bit;
            if self.inside.has_huge_page(page) {
                let start = page - (page - RAM_BASE) % HUGE_PAGE;
                return Ok(self.give_up(start, HUGE_PAGE)? == HUGE_PAGE);
            }
        }
        Ok(self.give_up(page, PAGE)? == PAGE)
    }

    fn deflate(&mut self, page: u64) {
        if let Ok((word, bit)) = self.inside.place(page) {
            self.inside.bits[word] &= !bit;
        }
    }

    fn report(&mut self, address: u64, length: u32) -> Result<u32, RamError> {
        // No more than the length.
        Ok(self.give_up(address, length.into())? as u32)
    }

    fn forget(&mut self) {
        self.inside.bits.fill(0);
    }
}
