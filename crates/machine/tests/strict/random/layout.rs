// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the memory of a guest is: some huge pages (blocks of level 2), and behind them a block of level 1, where the
//! machine has room for one.

use std::marker::PhantomData;

use twofold_machine::program::Stage1Registers;
use twofold_stage2::{Granule, Level, Pa};

use crate::world::World;

/// The huge pages of a guest.
pub const HUGE_PAGE_COUNT: u64 = 3;

/// The memory of each guest.
#[derive(Clone, Copy, Debug)]
pub struct Layout<G> {
    pub ipa_bits: u32,
    /// The address of the first huge page.
    pub start: u64,
    /// The address of the block of level 1, if there is one.
    pub giant: Option<u64>,
    granule: PhantomData<G>,
}

impl<G: Granule> Layout<G> {
    /// Memory from `start` on. The block of level 1 is at the next multiple of its size.
    pub fn new(ipa_bits: u32, start: u64, has_giant: bool) -> Self {
        let end = start + HUGE_PAGE_COUNT * Self::span(2);
        let giant = has_giant.then(|| end.next_multiple_of(Self::span(1)));
        Self { ipa_bits, start, giant, granule: PhantomData }
    }

    /// The same memory at the end of the IPA space.
    pub fn at_the_end(ipa_bits: u32, has_giant: bool) -> Self {
        let at_zero = Self::new(ipa_bits, 0, has_giant);
        let size = at_zero.giant.map_or(HUGE_PAGE_COUNT * Self::span(2), |giant| giant + Self::span(1));
        Self::new(ipa_bits, (1 << ipa_bits) - size, has_giant)
    }

    pub fn name(&self) -> String {
        format!("{:?}, {} bits of IPA, memory from {:#x} on", G::default(), self.ipa_bits, self.start)
    }

    /// The span of a leaf, by its level.
    pub fn span(level: u8) -> u64 {
        G::default().span(Level::new(level).unwrap())
    }

    /// The pages of a huge page that are used most: adjacent ones, and the edges of 64-page words.
    pub const PAGES: [u64; 8] = [0, 1, 2, 63, 64, 65, G::ENTRIES as u64 - 2, G::ENTRIES as u64 - 1];

    /// Whether an address is in the block of level 1.
    pub fn is_giant(&self, ipa: u64) -> bool {
        self.giant.is_some_and(|giant| ipa >= giant)
    }

    /// The end of the huge pages.
    pub fn end(&self) -> u64 {
        self.start + HUGE_PAGE_COUNT * Self::span(2)
    }

    /// One of the two frames of a guest's page.
    pub fn frame(&self, world: &World<G>, guest: usize, ipa: u64, choice: u64) -> Pa {
        let number = guest as u64 * 2 + choice;
        if let Some(giant) = self.giant.filter(|giant| ipa >= *giant) {
            return world.machine.arena().base() + (1 + number) * Self::span(1) + (ipa - giant);
        }
        let (huge_page, inside) = ((ipa - self.start) / Self::span(2), (ipa - self.start) % Self::span(2));
        world.frame((number * HUGE_PAGE_COUNT + huge_page) * Self::span(2) + inside)
    }

    /// The address of the guest's own table, of level 1: a page of the first huge page.
    pub fn table(&self) -> u64 {
        self.start + 100 * G::SIZE
    }

    /// The entries of the guest's own table: they map everything to itself, and their access flags are set on use.
    pub fn guest_table() -> [u64; 8] {
        std::array::from_fn(|entry| ((entry as u64) << 30) | 0b01 | (3 << 8))
    }

    /// The guest's registers: 39 bits, 4 KiB, one half, access flags by hardware. `None` where the guest's table does not
    /// map its memory.
    pub fn stage1(&self) -> Option<Stage1Registers> {
        let end = self.giant.map_or(self.end(), |giant| giant + Self::span(1));
        let tcr = 1 << 39 | 5 << 32 | 1 << 23 | 0x35 << 8 | 25;
        (end <= 8 << 30).then_some(Stage1Registers { sctlr: 1, tcr, ttbr0: self.table(), ttbr1: 0, mair: 0xff })
    }

    pub fn write_guest_tables(&self, world: &World<G>, guests: usize) {
        for (guest, choice) in (0..guests).flat_map(|guest| [(guest, 0), (guest, 1)]) {
            for (entry, raw) in (0..).zip(Self::guest_table()) {
                let at = self.frame(world, guest, self.table() + entry * 8, choice);
                world.machine.arena().store(at, raw).expect("the frame is there");
            }
        }
    }
}
