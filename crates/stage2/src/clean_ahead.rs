// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cleaning a block's memory ahead of its mapping, piece by piece.
//!
//! A mapping cleans its memory in one go (module `cache`): for 2 MiB, 32,768 lines of 64 bytes. A CPU that runs with
//! interrupts masked cleans it by [`CleanedPieces`] instead, and looks for an interrupt between two pieces. Then it maps
//! by [`Grant::map_cleaned`].
//!
//! * A1: clean a piece to the point of coherency, and complete that by `DSB ISH`.
//! * A2: note the piece, under a lock of the embedder.
//! * A3: a CPU that writes to the memory past the guest's tables takes that lock, and [forgets](CleanedPieces::forget) the
//!   piece.
//! * A4: when all pieces are noted, map without cleaning.
//!
//! Why that is enough: a mapping cleans so that no dirty line of EL2 is left when the leaf is made. A piece that is noted
//! at A4 has none: its lines were clean at A1, and a write after A1 would have forgotten it (A3). A write after A4 meets
//! a mapping that is being made, as it may without any pieces. Lines that EL2 fills by speculation meanwhile are clean.
//! Lines that the guest itself has written through another mapping are cleaned by the CPU that removes that mapping.

use crate::cache::{self, CacheMaintenance};
use crate::platform::Platform;
use crate::{
    Attributes, Descriptor, Error, Features, Grant, Granule, Ipa, Level, Mapped, Memory, Run, Stage2, TableSource,
};

/// The pieces of a block's memory, of 2 MiB, that were cleaned ahead of its mapping. The embedder keeps it beside that
/// memory, under a lock that each of its own writes there takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanedPieces(u64);

impl CleanedPieces {
    /// Bytes in a piece: 128 KiB.
    pub const PIECE: u64 = 128 << 10;
    /// Bytes in all pieces.
    pub const BLOCK: u64 = 2 << 20;

    /// Cleans the piece that begins `offset` bytes into the run, and notes it.
    ///
    /// # Panics
    ///
    /// If the run has no such piece.
    pub fn clean<P: Platform>(&mut self, platform: &P, features: &Features, run: &Run, offset: u64) {
        let is_piece = offset.is_multiple_of(Self::PIECE) && offset < Self::BLOCK;
        assert!(is_piece && offset + Self::PIECE <= run.size(), "no piece {offset:#x} bytes into {run:?}");
        cache::clean(platform, features, (run.pa() + offset, Self::PIECE));
        self.0 |= Self::bit(offset);
    }

    /// Whether the piece with the byte at `offset` is noted. From [`BLOCK`](Self::BLOCK) on there is none.
    pub fn has(self, offset: u64) -> bool {
        self.0 & Self::bit(offset) != 0
    }

    /// The piece with the byte at `offset` was written, or is about to be.
    pub fn forget(&mut self, offset: u64) {
        self.0 &= !Self::bit(offset);
    }

    /// Whether all pieces are noted.
    pub fn are_all(self) -> bool {
        self.0 == Self::ALL
    }

    /// The bits of all pieces.
    const ALL: u64 = (1 << (Self::BLOCK / Self::PIECE)) - 1;

    fn bit(offset: u64) -> u64 {
        1u64.unbounded_shl((offset / Self::PIECE).min(u64::BITS.into()) as u32)
    }
}

impl<P: Platform, G: Granule> Grant<'_, P, G> {
    /// [`map`](Self::map) of a level 2 block of normal memory, which was `cleaned` ahead. If a piece of it is not
    /// noted, all of the block is cleaned.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map).
    pub fn map_cleaned(
        self,
        attributes: &Attributes,
        cleaned: CleanedPieces,
        tables: &mut impl TableSource<G>,
    ) -> Result<Mapped<G>, Error> {
        let Self { stage2, ipa, pa, sample, .. } = self;
        let span = stage2.geometry().granule().span(Level::L2);
        if attributes.memory != Memory::Normal || span != CleanedPieces::BLOCK || !cleaned.are_all() {
            return self.map(Level::L2, attributes, tables);
        }
        self.check(span)?;
        stage2.check_leaf(ipa, pa, Level::L2)?;
        attributes.check::<G>(stage2.features())?;
        let new = Descriptor::leaf(pa, Level::L2, attributes, stage2.features());
        let maintenance = CacheMaintenance::new(stage2.features(), attributes).cleaned();
        stage2.map_with::<false>(ipa, new, sample, Level::L2, maintenance, tables)
    }
}

impl<P: Platform, G: Granule> Stage2<P, G> {
    /// Whether a level 2 block of normal memory at `ipa` would be cleaned as a whole when it is mapped: this CPU needs that,
    /// and nothing is mapped there. A hint: it may have changed when this returns.
    pub fn cleans_block(&self, ipa: Ipa) -> bool {
        if self.features().forced_write_back || ipa >= self.geometry().end() {
            return false;
        }
        self.lockless_walk(ipa, Level::L2).entry.is_vacant()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_forgotten_by_each_of_its_bytes() {
        const PIECE: u64 = CleanedPieces::PIECE;
        for piece in 0..CleanedPieces::BLOCK / PIECE {
            for offset in [piece * PIECE, (piece + 1) * PIECE - 1] {
                let mut pieces = CleanedPieces(CleanedPieces::ALL);
                assert!(pieces.are_all());
                pieces.forget(offset);
                assert!(!pieces.has(offset) && !pieces.are_all());
                assert_eq!((pieces.0 ^ CleanedPieces::ALL).count_ones(), 1);
            }
        }
        assert!(!CleanedPieces::default().are_all());
    }
}
