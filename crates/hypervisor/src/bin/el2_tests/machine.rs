// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine that a test owns: its frames, and this CPU set up for a guest.
//!
//! Invariant: a frame belongs to the test until the end; only the engine gives frames back.

use alloc::vec::Vec;
use core::arch::asm;

use twofold_hypervisor::board::Board;
use twofold_hypervisor::experiment::{ExitObserver, Observer};
use twofold_hypervisor::registers::{self, Confinement};
use twofold_hypervisor::{memory, platform, vm};
use twofold_memory::Frames;
use twofold_stage2::{Donated, Features, MetadataMap, Pa};

use crate::check::{Failure, Outcome};

/// The machine.
pub struct Machine {
    /// The contents of the device tree.
    pub board: &'static Board,
    /// The features that the engine uses. A test may clear some before it makes a guest.
    pub features: Features,
    /// Memory for guests and tables.
    pub frames: Frames,
    /// The table metadata of all RAM.
    pub metadata: MetadataMap,
}

/// Memory of a guest that EL2 also reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    pub pa: Pa,
    pub size: u64,
}

/// Bytes of a page.
pub const PAGE: u64 = 4 << 10;
/// Bytes of a level 2 block.
pub const BLOCK_2M: u64 = 2 << 20;
/// Bytes of a level 1 block.
pub const BLOCK_1G: u64 = 1 << 30;

impl Machine {
    /// Takes the RAM over, and sets this CPU up for guests.
    pub fn take_over(board: &'static Board) -> Self {
        let features = platform::features();
        let mut frames = Frames::new(features);
        let taken = memory::take_over(board, Observer::RAM_PER_HEAP);
        taken.free.into_iter().for_each(|range| frames.add(range));
        // SAFETY: no guest has run on this CPU; the hypervisor itself uses this value.
        unsafe { registers::set_for(&Confinement { hcr: vm::hcr(&features), ..Confinement::default() }) };
        Self { board, features, frames, metadata: taken.metadata }
    }

    /// A page.
    pub fn page(&mut self) -> Outcome<Frame> {
        self.frame(PAGE)
    }

    /// `size` bytes, a power of two, aligned to `size`. Only the first word is cleared.
    pub fn frame(&mut self, size: u64) -> Outcome<Frame> {
        let run = self.frames.take(size / PAGE).ok_or_else(|| Failure::new("no memory is left"))?;
        let frame = Frame { pa: run.pa(), size };
        frame.write(0, 0);
        Ok(frame)
    }

    /// `size` bytes of frames for a guest. Each frame holds data that the guest must never see.
    pub fn used_frames(&mut self, size: u64) -> Outcome<Frames> {
        let frame = self.frame(size)?;
        for page in 0..size / PAGE {
            for word in [0, 8, PAGE - 8] {
                frame.write(page * PAGE + word, SECRET);
            }
        }
        let mut frames = Frames::new(self.features);
        // SAFETY: the memory was donated, and has just been taken; nothing else uses it.
        frames.add(unsafe { Donated::new(frame.pa, size) });
        Ok(frames)
    }

    /// `count` pages.
    pub fn pages(&mut self, count: usize) -> Outcome<Vec<Frame>> {
        (0..count).map(|_| self.page()).collect()
    }
}

/// The data in the frames of [`Machine::used_frames`].
pub const SECRET: u64 = 0x5ec2_e75e_c2e7_5ec2;

impl Frame {
    /// Reads the word at `offset`.
    pub fn read(&self, offset: u64) -> u64 {
        let word = self.word(offset);
        clean(word);
        // SAFETY: `word` checked that the word is inside; frames are mapped, aligned, and behind no reference.
        unsafe { word.read_volatile() }
    }

    /// Writes the word at `offset`, also for a guest that reads without the caches.
    pub fn write(&self, offset: u64, value: u64) {
        let word = self.word(offset);
        // SAFETY: as above.
        unsafe { word.write_volatile(value) };
        clean(word);
    }

    /// Copies `bytes` to the start.
    pub fn fill(&self, bytes: &[u8]) {
        for (index, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write(index as u64 * 8, u64::from_le_bytes(word));
        }
    }

    fn word(&self, offset: u64) -> *mut u64 {
        assert!(offset.is_multiple_of(8) && offset < self.size, "no word {offset:#x} bytes into {self:?}");
        core::ptr::with_exposed_provenance_mut((self.pa.raw() + offset) as usize)
    }
}

/// Cleans and invalidates a word's line, because a guest with its MMU off bypasses the caches.
fn clean(word: *mut u64) {
    // SAFETY: changes no data.
    unsafe { asm!("dc civac, {}", "dsb ish", in(reg) word, options(nostack, preserves_flags)) };
}
