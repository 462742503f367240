// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest mode that an experiment asks for. Its tables are built in free RAM while those of `mmu.rs` are in use;
//! then the guest changes to them.

use core::arch::asm;
use core::convert::Infallible;
use core::ops::Range;

use twofold_abi::virt::{TEST_VA, UART_BASE, UART_SIZE};
use twofold_workload::mode::{Granule, Mode};
use twofold_workload::stage1::{self, Layout, Leaves, Registers, Stage1, TableMemory, Unsupported};

use crate::memory::{self, Memory};

/// Why the mode's tables cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Mode(#[from] Unsupported),
    #[error("this CPU has no {granule:?} granule at stage 1 (ID_AA64MMFR0_EL1 is {register:#x})")]
    Granule { granule: Granule, register: u64 },
    #[error("no RAM is free for tables")]
    NoMemory,
    #[error("RAM up to {0:#x} is in the way of the test memory")]
    InTheWay(u64),
    #[error("{0}")]
    Tables(#[from] stage1::Error<Infallible>),
}

/// Changes to tables of this mode. RAM and the UART stay where they were. The `size` bytes of test memory from `at` on
/// are mapped at [`TEST_VA`]. Physical addresses have `ipa_bits` bits.
pub fn enter(memory: &Memory, mode: &Mode, ipa_bits: u32, at: u64, size: u64) -> Result<(), Failure> {
    check_granule(mode.granule)?;
    let layout = Layout::new(mode, ipa_bits, Leaves::Pages)?;
    let granule = mode.granule.size();
    let mut free = Free(memory.free().max_by_key(|range| range.end - range.start).ok_or(Failure::NoMemory)?);
    let tables = Stage1::new(layout, &mut free)?;
    let uart = UART_BASE..UART_BASE + UART_SIZE;
    let ram = memory.banks().iter().map(|bank| (bank, stage1::Memory::Normal));
    for (range, kind) in ram.chain([(&uart, stage1::Memory::Device)]) {
        let (start, end) = (range.start / granule * granule, range.end.next_multiple_of(granule));
        if end > TEST_VA {
            return Err(Failure::InTheWay(end));
        }
        tables.map(&mut free, start, start, end - start, kind)?;
    }
    tables.map(&mut free, TEST_VA, at, size, stage1::Memory::Normal)?;
    // SAFETY: all RAM stays mapped at its address, and the program uses nothing else but the UART.
    unsafe { change_to(&tables.registers()) };
    Ok(())
}

/// Free RAM, taken table by table from its start.
struct Free(Range<u64>);

impl TableMemory for Free {
    type Error = Infallible;

    fn take(&mut self, size: u64) -> Result<Option<u64>, Infallible> {
        let table = self.0.start.next_multiple_of(size);
        if table >= self.0.end || size > self.0.end - table {
            return Ok(None);
        }
        self.0.start = table + size;
        for entry in (table..table + size).step_by(8) {
            // SAFETY: a word of free RAM.
            unsafe { memory::write(entry, 0) };
        }
        Ok(Some(table))
    }

    fn read(&mut self, ipa: u64) -> Result<u64, Infallible> {
        // SAFETY: a word of a table that `take` returned: its IPA is its address.
        Ok(unsafe { memory::read(ipa) })
    }

    fn write(&mut self, ipa: u64, entry: u64) -> Result<(), Infallible> {
        // SAFETY: as in `read`; the table holds nothing else.
        unsafe { memory::write(ipa, entry) };
        Ok(())
    }
}

/// Changes the tables in use.
///
/// # Safety
///
/// Everything that the program uses stays mapped at its address.
unsafe fn change_to(registers: &Registers) {
    let Registers { sctlr, tcr, ttbr0, mair } = *registers;
    // SAFETY: by the caller's promise the program continues where it is. The MMU is off while the granule changes, and
    // the TLBs lose the entries of the old tables (Arm ARM DDI 0487K.a, D8.16). Nothing in between accesses data.
    unsafe {
        asm!(
            "dsb ish",
            "msr sctlr_el1, {off}",
            "isb",
            "msr mair_el1, {mair}",
            "msr tcr_el1, {tcr}",
            "msr ttbr0_el1, {ttbr0}",
            "isb",
            "tlbi vmalle1",
            "dsb nsh",
            "isb",
            "msr sctlr_el1, {sctlr}",
            "isb",
            off = in(reg) sctlr & !1, mair = in(reg) mair, tcr = in(reg) tcr, ttbr0 = in(reg) ttbr0,
            sctlr = in(reg) sctlr, options(nostack, preserves_flags)
        );
    }
}

/// Arm ARM DDI 0487K.a, D24.2: ID_AA64MMFR0_EL1.TGran4, TGran64, TGran16.
fn check_granule(granule: Granule) -> Result<(), Failure> {
    let register: u64;
    // SAFETY: reading the register changes nothing.
    unsafe { asm!("mrs {}, id_aa64mmfr0_el1", out(reg) register, options(nomem, nostack, preserves_flags)) };
    let is_there = match granule {
        Granule::Kib4 => register >> 28 & 0xf != 0xf,
        Granule::Kib64 => register >> 24 & 0xf != 0xf,
        Granule::Kib16 => register >> 20 & 0xf != 0,
    };
    if is_there { Ok(()) } else { Err(Failure::Granule { granule, register }) }
}
