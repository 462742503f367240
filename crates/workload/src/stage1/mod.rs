// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stage-1 tables of a guest mode on arm64 (Arm ARM DDI 0487K.a, D8.2 and D8.3), and the register values that enable
//! them.
//!
//! A [`Layout`] describes a mode's tables. It knows how many tables a mapping needs before any memory is touched.
//! [`Stage1`] builds the tables in memory that it reaches through [`TableMemory`]: a hosted machine's memory, a host
//! mapping of a KVM guest's memory, or the guest's own memory.
//!
//! Invariants:
//!
//! * An entry changes once, from invalid to valid. So no TLB maintenance is needed.
//! * A table is linked only after its entries are written.
//! * A mapping is readable, writable and, except for devices, executable at EL1 only. Its access flag is set, and it is
//!   global.
//!
//! The caller must execute `DSB ISHST; ISB`, or rely on the synchronization that starts a vCPU, between the last
//! [`Stage1::map`] and the first access to what it mapped. This holds for the first mapping and for later additions.

mod error;
mod layout;

pub use error::{Error, RangeError, Unsupported};
pub use layout::{Layout, Leaves};

/// The memory that holds the tables.
pub trait TableMemory {
    /// The reason why an access failed. [`Infallible`](core::convert::Infallible) if none can fail.
    type Error: core::error::Error;

    /// Takes a page for a table. Returns the IPA of `size` bytes, aligned to `size` and all 0; `None` if no page is
    /// left.
    ///
    /// # Errors
    ///
    /// The page cannot be zeroed.
    fn take(&mut self, size: u64) -> Result<Option<u64>, Self::Error>;

    /// Reads the entry at an IPA inside a page that was taken. The IPA is a multiple of 8.
    ///
    /// # Errors
    ///
    /// The entry cannot be read.
    fn read(&mut self, ipa: u64) -> Result<u64, Self::Error>;

    /// Writes an entry. It is little-endian in memory.
    ///
    /// # Errors
    ///
    /// The entry cannot be written.
    fn write(&mut self, ipa: u64, entry: u64) -> Result<(), Self::Error>;
}

/// The memory type of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Write-back, inner shareable.
    Normal,
    /// Device-nGnRE, never executed.
    Device,
}

/// The register values that enable stage 1 on a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// `SCTLR_EL1`: MMU and both caches on, stack alignment checked, little-endian.
    pub sctlr: u64,
    /// `TCR_EL1`: lower half only, walks write-back and inner shareable, no hardware updates, 8-bit ASIDs.
    pub tcr: u64,
    /// `TTBR0_EL1`: the root table, with ASID 0.
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

/// The part of a range that one table, and the tables below it, map.
#[derive(Clone, Copy)]
struct Piece {
    va: u64,
    ipa: u64,
    end: u64,
    attributes: u64,
}

impl Stage1 {
    /// Creates an empty address space. It takes one page, for the root.
    ///
    /// # Errors
    ///
    /// No page is left, the page cannot be a table, or the memory fails.
    pub fn new<M: TableMemory>(layout: Layout, memory: &mut M) -> Result<Self, Error<M::Error>> {
        Ok(Self { layout, root: take(layout, 0, memory)? })
    }

    /// The layout of the tables.
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The register values with which a vCPU uses these tables.
    pub const fn registers(&self) -> Registers {
        /// The RES1 bits of an implementation without the newer features; then M, C, SA and I.
        const SCTLR: u64 = 0x30d0_0800 | 1 | 1 << 2 | 1 << 3 | 1 << 12;
        Registers { sctlr: SCTLR, tcr: self.layout.tcr(), ttbr0: self.root, mair: MAIR }
    }

    /// Maps `size` bytes at `va` to `ipa`, with the leaves of the layout. Each of the three must be a multiple of the
    /// granule.
    ///
    /// # Errors
    ///
    /// If the range cannot be mapped, nothing was changed. If part of it is mapped already, no page is left for a
    /// table, or the memory fails, then the part before the failure may be mapped.
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

/// Takes a page for a table that maps `va`.
fn take<M: TableMemory>(layout: Layout, va: u64, memory: &mut M) -> Result<u64, Error<M::Error>> {
    let size = layout.granule().size();
    let table = memory.take(size).map_err(Error::Memory)?.ok_or(Error::NoTable { va })?;
    if layout.holds(table, size) { Ok(table) } else { Err(Error::BadTable { ipa: table, size }) }
}

const VALID: u64 = 0b01;
/// A table at levels 0 to 2, a page at level 3.
const TABLE_OR_PAGE: u64 = 0b11;
/// The next-level table address for every granule: bits 47 to 12. The bits below the granule are 0.
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
