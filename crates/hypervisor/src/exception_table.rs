// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The exception table: the instructions of EL2 that a guest can make abort, each with the place where EL2 continues.
//!
//! EL2 executes such an instruction on a guest's behalf, so its abort is not a defect of EL2. The table pairs the
//! address of each such instruction with its *landing*. After an exception at EL2 whose return address is in the table,
//! EL2 continues at the landing. Every other one is fatal ([`panic`](mod@crate::panic)). An instruction joins the table by
//! `exception_table_entry!` in its own `asm!`; [`at`](crate::at) is the example to follow.
//!
//! The state at a landing:
//! * All general registers, SP and PSTATE are as they were at the instruction.
//! * `ESR_EL2` and `FAR_EL2` describe the abort. EL2 has to read the values of the guest's exit before the instruction.
//! * **`TPIDR_EL0`, a register of the guest, is overwritten**, because the vector needs one scratch register. The code
//!   around the instruction saves it, and the landing restores it.
//!
//! An asynchronous abort, an SError, needs no entry. `HCR_EL2` has AMO and TGE clear, so EL2 takes no physical SError:
//! it stays pending, and the guest that caused it takes it at EL1. With `SCTLR2_EL2.EASE` a *synchronous* abort uses
//! the SError vector, so both vectors consult the table.
//!
//! Invariant: only `exception_table_entry!` writes to the section `.exception_table`.

/// A line of `asm!`: the instruction at the label `$instruction` may abort, and EL2 then continues at the label
/// `$landing`.
macro_rules! exception_table_entry {
    ($instruction:literal, $landing:literal) => {
        concat!(
            ".pushsection .exception_table, \"a\"\n",
            ".balign 4\n",
            ".long ",
            $instruction,
            " - .\n",
            ".long ",
            $landing,
            " - .\n",
            ".popsection"
        )
    };
}
pub(crate) use exception_table_entry;

/// Where EL2 continues after the exception that `esr` describes and that would return to `elr`; `None` if it is fatal.
pub(crate) fn landing(esr: u64, elr: u64) -> Option<u64> {
    const DATA_ABORT_AT_EL2: u64 = 0x25;
    if esr >> 26 & 0x3f != DATA_ABORT_AT_EL2 {
        return None;
    }
    entries().iter().find(|entry| entry.instruction.address() == elr).map(|entry| entry.landing.address())
}

/// An instruction and its landing. Both addresses are relative, so the table needs no relocation.
#[repr(C)]
struct Entry {
    instruction: Relative,
    landing: Relative,
}

/// An address in the image, as an offset from the address of this field.
#[repr(transparent)]
struct Relative(i32);

impl Relative {
    fn address(&self) -> u64 {
        (&raw const *self as u64).wrapping_add_signed(self.0.into())
    }
}

fn entries() -> &'static [Entry] {
    let (start, end) = (&raw const exception_table_start, &raw const exception_table_end);
    let count = (end as usize - start as usize) / size_of::<Entry>();
    // SAFETY: `link.ld` puts the symbols around the section, which contains only entries (the invariant). It is aligned
    // to 8, mapped read-only, and never changes.
    unsafe { core::slice::from_raw_parts(start.cast(), count) }
}

unsafe extern "C" {
    // Set by link.ld; only their addresses are used.
    static exception_table_start: u8;
    static exception_table_end: u8;
}
