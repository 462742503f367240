// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold-stage2` in the smallest program that a hypervisor could be: one CPU at EL2, no operating system, no allocator.
//!
//! **What it proves.** The program is linked at `-O3`, and `cargo xtask test host embedded` reads its symbols:
//!
//! * No function of `core::panicking` is in it. So mapping, splitting, write protection, unmapping and destruction have no
//!   path that panics, for any argument and any content of the tables.
//! * Its code fits 24 KiB.
//!
//! Then QEMU runs it on an emulated CPU with EL2. The CPU's own table walk (`AT S12E1R`, `AT S12E1W`) judges each step.
//!
//! **What it does not prove.** A limit for the code of other operations (coalesce, DBM, withdrawal), or of other granules:
//! the linker keeps what is called. Arithmetic that overflows wraps in a release build instead of a panic.

#![no_std]
#![no_main]

mod cpu;

use core::hint::black_box;
use core::ops::ControlFlow;

use twofold_stage2::arm64;
use twofold_stage2::{
    Access, Attributes, Donated, Features, Geometry, Ipa, IpaRange, Kib4, Lent, Level, Pa, Pool, Run, Stage2,
    TablePage, TableSource, Unwatched, Vmid,
};

use cpu::{Cpu, Step};

/// The guest's memory.
const RAM: u64 = 4 << 20;
/// Where the guest sees it.
const START: u64 = 1 << 30;
/// The pages for tables.
const TABLES: usize = 16;

/// Each number is the exit status of QEMU.
#[derive(Clone, Copy)]
enum Failure {
    /// The memory is too small, or not aligned.
    Memory = 2,
    /// The engine refused an operation.
    Engine = 3,
    /// The CPU translates otherwise than the tables should.
    Translation = 4,
    /// A panic. The linker leaves it out.
    Panic = 5,
}

impl From<twofold_stage2::Error> for Failure {
    fn from(_: twofold_stage2::Error) -> Self {
        Self::Engine
    }
}

type Tables = Stage2<Cpu, Kib4>;

/// Free table pages. The two calls are out of line, since the engine makes them at many places.
struct Pages(Pool<NoMore, TABLES>);

impl TableSource for Pages {
    #[inline(never)]
    fn take(&mut self) -> Option<TablePage> {
        self.0.take()
    }

    #[inline(never)]
    fn give(&mut self, page: TablePage) {
        self.0.give(page);
    }
}

/// The source behind the pool.
struct NoMore;

impl TableSource for NoMore {
    fn take(&mut self) -> Option<TablePage> {
        None
    }

    /// The pool has a place for each of its pages.
    fn give(&mut self, page: TablePage) {
        let _ = page;
    }
}

/// One guest's tables, from the first to the last use.
fn run(memory: Run, features: Features) -> Result<(), Failure> {
    let geometry = Geometry::new(Kib4, black_box(40).min(features.pa_bits), &features)?;
    let (ram, rest) = memory.split_at(RAM).map_err(|_| Failure::Memory)?;
    let (root, rest) = rest.split_at(geometry.root_size()).map_err(|_| Failure::Memory)?;
    let root = root.into_root(&geometry).map_err(|_| Failure::Memory)?;
    let mut pages = Pages(Pool::new(NoMore));
    for page in rest.into_pages().take(TABLES) {
        pages.give(page.into_table(&features).map_err(|_| Failure::Memory)?);
    }

    let stage2 = Stage2::new(Cpu, features, geometry, Vmid::new(1), root)?;
    let first = ram.pa();
    let range = black_box(Ipa::new(START)..Ipa::new(START + RAM));
    let lent = stage2.lend(ram, range.start, range.clone());
    cpu::load(stage2.vtcr(), stage2.vttbr());

    map(&stage2, &lent, range.clone(), Level::L2, &mut pages)?;
    expect(range.start, Step::Write, Some(first))?;
    let (page, next) = (range.start + 0x3000, range.start + 0x4000);
    let split = stage2.split(range.clone(), 1 << 30, &mut pages, |_, _| ControlFlow::Continue(()))?;
    if split.blocks != 2 || split.stopped.is_some() {
        return Err(Failure::Engine);
    }
    let _ = stage2.write_protect(page..next)?.complete();
    expect(page, Step::Read, Some(first + 0x3000))?;
    expect(page, Step::Write, None)?;
    expect(next, Step::Write, Some(first + 0x4000))?;
    stage2.unmap(page..next, &mut pages, Unwatched)?.complete().free(&mut pages);
    expect(page, Step::Read, None)?;
    map(&stage2, &lent, page..next, Level::L3, &mut pages)?;
    expect(page, Step::Write, Some(first + 0x3000))?;

    // The tables live as long as the machine.
    core::mem::forget(stage2);
    Ok(())
}

/// Maps `range` with leaves of `level`.
#[inline(never)]
fn map(stage2: &Tables, lent: &Lent, range: IpaRange, level: Level, pages: &mut Pages) -> Result<(), Failure> {
    let size = Kib4.span(black_box(level));
    let mut at = range.start;
    while at < range.end {
        let grant = stage2.grant(lent, at, size).ok_or(Failure::Engine)?;
        let _ = grant.map(level, &Attributes::ram(Access::ALL), pages)?;
        at = at + size;
    }
    Ok(())
}

/// Checks what the CPU's own walk finds.
#[inline(never)]
fn expect(ipa: Ipa, step: Step, found: Option<Pa>) -> Result<(), Failure> {
    if cpu::translate(ipa, step) == found { Ok(()) } else { Err(Failure::Translation) }
}

/// Called by `_start`, on a stack, with `.bss` zeroed.
#[unsafe(no_mangle)]
extern "C" fn main() -> ! {
    // SAFETY: this is the first and only call, and nothing else in the program uses this part of RAM (`link.ld`).
    let donated = unsafe { Donated::new(Pa::new(cpu::MEMORY), cpu::SIZE) };
    match run(donated.into_run(), arm64::features()) {
        Ok(()) => cpu::exit(0),
        Err(failure) => cpu::exit(failure as u64),
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    cpu::exit(Failure::Panic as u64)
}
