// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The image's own address space: stage 1 of EL2, every address mapped to itself.
//!
//! Invariant: no page is both writable and executable. The image's text is executable and its constants are read-only.
//! Its data and all other RAM are writable and not executable, and so are the devices, as Device-nGnRE. Everything else
//! is unmapped: the guard pages below the stacks, and the memory that the firmware keeps for itself (`no-map`).
//! SCTLR_EL2.WXN makes the CPU enforce this too.
//!
//! The tables are built once, offline, while the first map of `boot.s` is in use, and never change afterwards.

use core::arch::naked_asm;
use core::cell::UnsafeCell;
use core::ops::Range;

use thiserror::Error;

use crate::board::Board;
use crate::cpus;

/// Why the tables could not be built.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Error {
    /// The static pool is too small for this machine's map.
    #[error("all {TABLE_COUNT} table pages are used")]
    OutOfTables,
    /// The tables translate 48 bits.
    #[error("address {0:#x} is beyond 48 bits")]
    TooHigh(u64),
}

/// The memory that the image covers, `.bss` and stacks included.
#[must_use]
pub fn image() -> Range<u64> {
    address(&raw const image_start)..address(&raw const image_end)
}

/// Builds the tables and switches to them. They map the image, and the given parts of the machine.
pub(crate) fn init(board: Option<&Board>, uart: Option<&Range<u64>>) -> Result<(), Error> {
    // SAFETY: called once, by the boot CPU before any other runs; the tables are not in use yet.
    let mut tables = Tables { tables: unsafe { &mut *TABLES.0.get() }, used: 1 };

    for ram in board.iter().flat_map(|board| &board.ram) {
        tables.map(ram, DATA)?;
    }
    for kept in board.iter().flat_map(|board| &board.no_map) {
        tables.map(kept, UNMAPPED)?;
    }
    let image = image();
    let text = image.start..address(&raw const text_end);
    let constants = text.end..address(&raw const rodata_end);
    tables.map(&(constants.end..image.end), DATA)?;
    tables.map(&text, TEXT)?;
    tables.map(&constants, CONSTANTS)?;
    for guard in cpus::guards() {
        tables.map(&guard, UNMAPPED)?;
    }
    for device in board.iter().flat_map(|board| board.devices()).chain(uart) {
        tables.map(device, DEVICE)?;
    }

    // SAFETY: the new tables map the image, with its stack, as it is linked, and RAM where it was.
    unsafe { enable(TABLES.0.get().cast(), SCTLR) };
    Ok(())
}

/// Turns the MMU on with `root` as the level-0 table, after turning it off if it is on. It touches no memory except
/// constants in .text, so no access sees a mixture of the two maps.
///
/// # Safety
/// `root` must map the running code, its stack and all that it uses at their present addresses, and must not change.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn enable(root: *const Table, sctlr: u64) {
    naked_asm!(
        "dsb sy", // earlier stores, above all to the tables, are visible before the first walk
        "mrs x2, sctlr_el2",
        "bic x2, x2, #1",
        "msr sctlr_el2, x2",
        "isb",
        "tlbi alle2",
        "ic iallu",
        "dsb nsh",
        "mov x2, #{mair}",
        "msr mair_el2, x2",
        "ldr x2, ={tcr}",
        "mrs x3, id_aa64mmfr0_el1",
        "and x3, x3, #0xf", // PARange
        "mov x4, #5",       // at most 48 bits
        "cmp x3, x4",
        "csel x3, x3, x4, lo",
        "bfi x2, x3, #16, #3", // PS
        "msr tcr_el2, x2",
        "msr ttbr0_el2, x0",
        "isb",
        "msr sctlr_el2, x1",
        "isb",
        "ret",
        mair = const MAIR,
        tcr = const TCR,
    )
}

/// SCTLR_EL2 for the first map: MMU and caches on, RES1 bits set.
pub(crate) const SCTLR_BOOT: u64 = 0x30c5_1835;
/// SCTLR_EL2 of the final map: [`SCTLR_BOOT`] and WXN (writable is not executable).
pub(crate) const SCTLR: u64 = SCTLR_BOOT | 1 << 19;
/// A gigabyte of the first map: Normal memory, writable and executable.
pub(crate) const BOOT_BLOCK: u64 = LEAF | 1;

/// Attribute 0 is Device-nGnRE, attribute 1 is Normal memory, write-back.
const MAIR: u64 = 0xff04;
/// T0SZ=16 (48 bits), 4 KiB granule, walks inner shareable and write-back, RES1 bits 31 and 23; PS is added.
const TCR: u64 = 1 << 31 | 1 << 23 | 3 << 12 | 1 << 10 | 1 << 8 | 16;

/// A leaf without its type: AF, inner shareable, AP[1] (RES1), Normal memory.
const LEAF: u64 = 1 << 10 | 3 << 8 | 1 << 6 | 1 << 2;
const READ_ONLY: u64 = 1 << 7;
const EXECUTE_NEVER: u64 = 1 << 54;

const TEXT: u64 = LEAF | READ_ONLY;
const CONSTANTS: u64 = LEAF | READ_ONLY | EXECUTE_NEVER;
const DATA: u64 = LEAF | EXECUTE_NEVER;
const DEVICE: u64 = (LEAF & !(7 << 2)) | EXECUTE_NEVER;
const UNMAPPED: u64 = 0;

const ADDRESS: u64 = 0x0000_ffff_ffff_f000;
const TABLE: u64 = 0b11;
const BLOCK: u64 = 0b01;
const PAGE: u64 = 0b11;

const ENTRIES: usize = 512;
/// The image takes about eight; each range of RAM, or of what the firmware keeps of it, and each device up to four.
const TABLE_COUNT: usize = 128;

/// One translation table.
#[derive(Clone, Copy)]
#[repr(C, align(4096))]
pub(crate) struct Table([u64; ENTRIES]);

/// The pool, with the root in front. Written by [`init`] only.
pub(crate) struct Pool(UnsafeCell<[Table; TABLE_COUNT]>);

// SAFETY: the boot CPU writes it before any other CPU runs; after that only MMUs read it.
unsafe impl Sync for Pool {}

pub(crate) static TABLES: Pool = Pool(UnsafeCell::new([Table([0; ENTRIES]); TABLE_COUNT]));

struct Tables<'a> {
    tables: &'a mut [Table; TABLE_COUNT],
    used: usize,
}

impl Tables<'_> {
    /// Maps the pages that `range` touches with `attributes`, and replaces any earlier mapping.
    fn map(&mut self, range: &Range<u64>, attributes: u64) -> Result<(), Error> {
        if range.end > 1 << 48 {
            return Err(Error::TooHigh(range.end));
        }
        let pages = range.start & !0xfff..range.end.next_multiple_of(4096);
        self.map_below(0, 0, 0, pages, attributes)
    }

    /// As [`map`](Self::map), for the part of `range` that `table` covers: a table of `level`, for addresses from `base`.
    fn map_below(
        &mut self,
        table: usize,
        level: u32,
        base: u64,
        range: Range<u64>,
        attributes: u64,
    ) -> Result<(), Error> {
        let shift = 39 - 9 * level;
        let mut from = range.start;
        while from < range.end {
            let index = ((from - base) >> shift) as usize;
            let start = base + ((index as u64) << shift);
            let end = start + (1 << shift);
            let to = range.end.min(end);
            if level > 0 && from == start && to == end {
                self.tables[table].0[index] = leaf(start, level, attributes);
            } else {
                let below = self.table_below(table, index, level)?;
                self.map_below(below, level + 1, start, from..to, attributes)?;
            }
            from = to;
        }
        Ok(())
    }

    /// The table below an entry, made if there is none. A block becomes a table that maps the same.
    fn table_below(&mut self, table: usize, index: usize, level: u32) -> Result<usize, Error> {
        let entry = self.tables[table].0[index];
        if entry & 0b11 == TABLE {
            let pool = self.tables.as_ptr() as u64;
            return Ok(((entry & ADDRESS) - pool) as usize / size_of::<Table>());
        }
        let new = self.used;
        let Some(child) = self.tables.get_mut(new) else { return Err(Error::OutOfTables) };
        self.used += 1;
        let attributes = if entry == UNMAPPED { UNMAPPED } else { entry & !ADDRESS & !0b11 };
        let shift = 30 - 9 * level;
        for (place, below) in child.0.iter_mut().enumerate() {
            *below = leaf((entry & ADDRESS) + ((place as u64) << shift), level + 1, attributes);
        }
        self.tables[table].0[index] = &raw const self.tables[new] as u64 | TABLE;
        Ok(new)
    }
}

/// The descriptor that maps `output` with `attributes` at `level`.
fn leaf(output: u64, level: u32, attributes: u64) -> u64 {
    match (attributes, level) {
        (UNMAPPED, _) => UNMAPPED,
        (_, 3) => output | attributes | PAGE,
        _ => output | attributes | BLOCK,
    }
}

unsafe extern "C" {
    // Set by link.ld; only their addresses are used.
    static image_start: u8;
    static text_end: u8;
    static rodata_end: u8;
    static image_end: u8;
}

fn address(symbol: *const u8) -> u64 {
    symbol as u64
}
