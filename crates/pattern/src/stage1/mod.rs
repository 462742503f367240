// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's own tables: what stage 1 of a guest mode is on arm64 (Arm ARM D8.2, D8.3), and the registers that say so.
//!
//! A [`Layout`] is a mode's shape, and knows how many tables a mapping takes before any memory is touched. [`Stage1`] builds
//! the tables in memory that is reached through [`TableMemory`]: a hosted machine's, a mapping of the host's behind KVM, or
//! the guest's own.
//!
//! Invariants: an entry goes from invalid to valid once and never changes again, so no TLB maintenance is due; a table is
//! linked when what is in it is written. What is mapped is read, written and executed at EL1 and nowhere else (devices are
//! not executed), has its access flag set, and is the same in all address spaces.
//!
//! Who builds tables while nobody walks them owes one `DSB ISHST; ISB`, or whatever lets a vCPU begin, between the last
//! [`Stage1::map`] and the first access; who adds to them later, the same.

mod error;
mod layout;

pub use error::{Error, RangeError, Unsupported};
pub use layout::{Layout, Leaves};

/// The memory that tables are in.
pub trait TableMemory {
    /// Why an access failed; [`Infallible`](core::convert::Infallible) where none can.
    type Error: core::error::Error;

    /// A page for a table: the IPA of `size` bytes, a multiple of `size`, that are all 0. `None`: there are none left.
    ///
    /// # Errors
    ///
    /// It cannot be made 0.
    fn take(&mut self, size: u64) -> Result<Option<u64>, Self::Error>;

    /// The entry at an IPA inside a page that was taken, a multiple of 8.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    fn read(&mut self, ipa: u64) -> Result<u64, Self::Error>;

    /// Writes one; as little-endian, where that makes a difference.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    fn write(&mut self, ipa: u64, entry: u64) -> Result<(), Self::Error>;
}

/// What memory is mapped as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Write-back, inner shareable.
    Normal,
    /// Device-nGnRE, never executed.
    Device,
}

/// What a vCPU's registers have to be, for its stage 1 to be on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// `SCTLR_EL1`: the MMU and both caches on, the stack pointer checked, little-endian.
    pub sctlr: u64,
    /// `TCR_EL1`: the lower half alone, walks write-back and inner shareable, no hardware updates, ASIDs of 8 bits.
    pub tcr: u64,
    /// `TTBR0_EL1`: the root, with ASID 0.
    pub ttbr0: u64,
    /// `MAIR_EL1`.
    pub mair: u64,
}

/// The tables of one address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage1 {
    layout: Layout,
    root: u64,
}

/// What is to be mapped by one table, or one below it.
#[derive(Clone, Copy)]
struct Piece {
    va: u64,
    ipa: u64,
    end: u64,
    attributes: u64,
}

impl Stage1 {
    /// An address space with nothing in it. It takes a page, for the root.
    ///
    /// # Errors
    ///
    /// There is no page, it is of no use, or memory fails.
    pub fn new<M: TableMemory>(layout: Layout, memory: &mut M) -> Result<Self, Error<M::Error>> {
        Ok(Self { layout, root: take(layout, 0, memory)? })
    }

    /// Its shape.
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// What a vCPU's registers have to be to use it.
    pub const fn registers(&self) -> Registers {
        /// Bits that are 1 where the newer feature is missing; then M, C, SA and I.
        const SCTLR: u64 = 0x30d0_0800 | 1 | 1 << 2 | 1 << 3 | 1 << 12;
        Registers { sctlr: SCTLR, tcr: self.layout.tcr(), ttbr0: self.root, mair: MAIR }
    }

    /// Maps `size` bytes from `va` on to those from `ipa` on, each a multiple of the granule, by the leaves of the layout.
    ///
    /// # Errors
    ///
    /// The range is of no use: nothing was changed. Something of it is mapped already, there is no page left for a table, or
    /// memory fails: some of what comes before that may be mapped.
    pub fn map<M: TableMemory>(
        &self,
        memory: &mut M,
        va: u64,
        ipa: u64,
        size: u64,
        kind: Memory,
    ) -> Result<(), Error<M::Error>> {
        self.layout.check(va, ipa, size)?;
        let attributes = match kind {
            Memory::Normal => NORMAL,
            Memory::Device => DEVICE,
        };
        self.fill(memory, self.root, self.layout.root_level(), Piece { va, ipa, end: va + size, attributes })
    }

    fn fill<M: TableMemory>(
        &self,
        memory: &mut M,
        table: u64,
        level: u32,
        piece: Piece,
    ) -> Result<(), Error<M::Error>> {
        let (span, Piece { mut va, mut ipa, end, attributes }) = (self.layout.span(level), piece);
        while va < end {
            let at = table + self.layout.index(va, level) * 8;
            let next = (va - va % span + span).min(end);
            let old = memory.read(at).map_err(Error::Memory)?;
            if level == 3 || self.layout.is_block(level) && next - va == span && ipa.is_multiple_of(span) {
                if old & VALID != 0 {
                    return Err(Error::Mapped { va });
                }
                let shape = if level == 3 { TABLE_OR_PAGE } else { VALID };
                memory.write(at, ipa | attributes | shape).map_err(Error::Memory)?;
            } else {
                let below = match old & TABLE_OR_PAGE {
                    TABLE_OR_PAGE => old & ADDRESS,
                    VALID => return Err(Error::Mapped { va }),
                    _ => take(self.layout, va, memory)?,
                };
                self.fill(memory, below, level + 1, Piece { va, ipa, end: next, attributes })?;
                if old & VALID == 0 {
                    memory.write(at, below | TABLE_OR_PAGE).map_err(Error::Memory)?;
                }
            }
            ipa += next - va;
            va = next;
        }
        Ok(())
    }
}

/// A page for a table on the way to `va`.
fn take<M: TableMemory>(layout: Layout, va: u64, memory: &mut M) -> Result<u64, Error<M::Error>> {
    let size = layout.granule().size();
    let table = memory.take(size).map_err(Error::Memory)?.ok_or(Error::NoTable { va })?;
    if layout.holds(table, size) { Ok(table) } else { Err(Error::BadTable { ipa: table, size }) }
}

const VALID: u64 = 0b01;
/// In levels above 3 a table, at level 3 a page.
const TABLE_OR_PAGE: u64 = 0b11;
/// Of a next table, whatever the granule: bits 47 to 12, of which those below the granule are 0.
const ADDRESS: u64 = 0x0000_ffff_ffff_f000;

/// Attributes 0: Device-nGnRE. Attributes 1: normal, write-back.
const MAIR: u64 = 0xff04;
const ACCESSED: u64 = 1 << 10;
const INNER_SHAREABLE: u64 = 0b11 << 8;
const EL1_EXECUTE_NEVER: u64 = 1 << 53;
const EL0_EXECUTE_NEVER: u64 = 1 << 54;
const NORMAL: u64 = 1 << 2 | INNER_SHAREABLE | ACCESSED | EL0_EXECUTE_NEVER;
const DEVICE: u64 = ACCESSED | EL1_EXECUTE_NEVER | EL0_EXECUTE_NEVER;

#[cfg(test)]
mod tests;
