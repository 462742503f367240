// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Table walks as hardware does them, written from the manual (Arm ARM DDI 0487K.a, D8.2 and D8.3) and not from the
//! engine: their only inputs are register values and memory. Both stages have any granule. Stage 2 has FEAT_LPA and
//! FEAT_LPA2 too, stage 1 neither.
//!
//! Invariant: a walk keeps no state between calls. Each descriptor comes from the caller, which decides which of the
//! values ever stored there the walk sees. Each update goes through the caller's compare-and-exchange.

mod format;
mod granule;
pub mod stage1;
pub mod stage2;
pub mod syndrome;
mod visit;

use core::ops::Deref;

pub use format::Format;
use granule::Granule;
pub use granule::Shape;
pub use twofold_stage2::fault::AccessKind;
pub use visit::Visited;

/// An access, with what its permission check depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The kind of the guest's instruction.
    pub kind: AccessKind,
    /// The exception level that executes it.
    pub el: El,
    /// The instruction's own access, or a table walk for it.
    pub purpose: Purpose,
}

/// The guest's exception levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum El {
    /// User mode.
    El0,
    /// The guest's kernel.
    El1,
}

/// The purpose of an access to guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The instruction's own access.
    Own,
    /// Hardware reads a stage-1 descriptor for the instruction.
    Stage1Walk,
    /// Hardware updates a stage-1 descriptor for the instruction.
    Stage1Update,
}

/// The kinds of fault that end a walk. The numbers are the syndrome's (xFSC\[5:2\]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// An address in a register or descriptor is wider than the output size.
    AddressSize = 0,
    /// Nothing is mapped.
    Translation = 1,
    /// The access flag is clear, and hardware does not set it.
    AccessFlag = 2,
    /// The entry does not allow the access.
    Permission = 3,
}

/// A setting that the architecture reserves, or that these walks do not model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {value:#x}: {why}")]
pub struct Unmodelled {
    /// The register or descriptor.
    pub what: &'static str,
    /// Its value.
    pub value: u64,
    /// The reason.
    pub why: &'static str,
}

/// The table descriptors of a walk, from the root on: at most those of levels 0 to 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tables<E> {
    entries: [E; 3],
    count: usize,
}

impl Access {
    /// An instruction's own access.
    pub const fn new(kind: AccessKind, el: El) -> Self {
        Self { kind, el, purpose: Purpose::Own }
    }

    /// The same access with this purpose.
    pub const fn with(self, purpose: Purpose) -> Self {
        Self { purpose, ..self }
    }

    /// Whether it reads memory. An update of a descriptor reads and writes.
    const fn reads(self) -> bool {
        !matches!((self.purpose, self.kind), (Purpose::Own, AccessKind::Write | AccessKind::Execute))
    }

    /// Whether it writes memory.
    const fn writes(self) -> bool {
        matches!((self.purpose, self.kind), (Purpose::Own, AccessKind::Write) | (Purpose::Stage1Update, _))
    }

    /// Whether it fetches an instruction.
    const fn executes(self) -> bool {
        matches!((self.purpose, self.kind), (Purpose::Own, AccessKind::Execute))
    }
}

impl<E> Tables<E> {
    fn push(&mut self, entry: E) {
        self.entries[self.count] = entry;
        self.count += 1;
    }
}

impl<E> Deref for Tables<E> {
    type Target = [E];

    fn deref(&self) -> &[E] {
        &self.entries[..self.count]
    }
}

/// The number of bytes that a stage-2 descriptor at `level` covers with the 4 KiB granule.
pub const fn span(level: u8) -> u64 {
    Format::KIB_4.span(level)
}

/// The access flag, in leaves of both stages.
const ACCESSED: u64 = 1 << 10;
/// DBM, in leaves of both stages.
const DIRTY_BY_HARDWARE: u64 = 1 << 51;
/// The contiguous bit.
pub(crate) const CONTIGUOUS: u64 = 1 << 52;

/// The number of address bits for a value of PS or IPS; 52 need FEAT_LPA or FEAT_LPA2.
const fn output_bits(field: u64) -> Option<u32> {
    const BITS: [u32; 6] = [32, 36, 40, 42, 44, 48];
    if field < 6 { Some(BITS[field as usize]) } else { None }
}

fn require(holds: bool, what: &'static str, value: u64, why: &'static str) -> Result<(), Unmodelled> {
    if holds { Ok(()) } else { Err(Unmodelled { what, value, why }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_access_needs() {
        use AccessKind::{Execute, Read, Write};
        use Purpose::{Own, Stage1Update, Stage1Walk};
        for (kind, purpose, needs) in [
            (Read, Own, [true, false, false]),
            (Write, Own, [false, true, false]),
            (Execute, Own, [false, false, true]),
            (Execute, Stage1Walk, [true, false, false]),
            (Write, Stage1Walk, [true, false, false]),
            (Read, Stage1Update, [true, true, false]),
            (Execute, Stage1Update, [true, true, false]),
        ] {
            let access = Access::new(kind, El::El0).with(purpose);
            assert_eq!([access.reads(), access.writes(), access.executes()], needs, "{access:?}");
        }
    }
}
