// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The smallest embedder: the tables of one guest, with a platform that prints each instruction instead of executing it.
//!
//! ```text
//! cargo run -p twofold-stage2 --example minimal
//! ```
//!
//! At EL2 the module `arm64` has the real instructions. What an embedder supplies is memory, a pointer to each frame of
//! it, and one `TableMetadata` for each frame that may become a table.

#![allow(clippy::print_stdout, reason = "printing is what it does")]

use std::alloc::{Layout, alloc_zeroed};
use std::ops::ControlFlow;
use std::ptr::NonNull;

use twofold_stage2::platform::{Dc, Domain, Ic, Tlbi};
use twofold_stage2::*;

// README from here
/// Maps 2 MiB at 1 GiB, splits it into pages, and takes it back.
fn run(cpu: impl Platform, features: Features, memory: Run) -> Result<(), Error> {
    let geometry = Geometry::new(Kib4, 40, &features)?;
    let (ram, rest) = memory.split_at(2 << 20).expect("4 MiB");
    let (root, rest) = rest.split_at(geometry.root_size()).expect("2 MiB");
    let root = root.into_root(&geometry).expect("aligned to 2 MiB");
    let mut pool = Tables(rest.into_pages().flat_map(|page| page.into_table(&features)).collect());

    let stage2 = Stage2::new(cpu, features, geometry, Vmid::new(1), root)?;
    let range = Ipa::new(1 << 30)..Ipa::new((1 << 30) + (2 << 20));
    let lent = stage2.lend(ram, range.start, range.clone());
    let grant = stage2.grant(&lent, range.start, 2 << 20).expect("lent");

    let _ = grant.map(Level::L2, &Attributes::ram(Access::ALL), &mut pool)?;
    let _ = stage2.split(range.clone(), 1 << 30, &mut pool, |_, _| ControlFlow::Continue(()))?;
    let flushed = stage2.unmap(range, &mut pool, Unwatched)?.complete(); // the flush
    flushed.free(&mut pool); // does not compile before it
    let (root, _) = stage2.destroy(&mut pool, Unwatched);
    let _ram = root.reclaim(lent).expect("nothing is mapped");
    Ok(())
}
// to here

/// Table pages that are free.
struct Tables(Vec<TablePage>);

impl TableSource for Tables {
    fn take(&mut self) -> Option<TablePage> {
        self.0.pop()
    }

    fn give(&mut self, page: TablePage) {
        self.0.push(page);
    }
}

/// A CPU that prints instructions, with 4 MiB of memory.
struct Printing {
    memory: NonNull<u8>,
    metadata: Vec<TableMetadata>,
}

const MEMORY: Pa = Pa::new(0x4000_0000);
const SIZE: usize = 4 << 20;

impl Printing {
    fn new() -> Self {
        let layout = Layout::from_size_align(SIZE, 2 << 20).expect("powers of two");
        // SAFETY: the size is not 0. The memory is never freed, so it outlives the platform.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("4 MiB of memory");
        Self { memory, metadata: (0..SIZE / 4096).map(|_| TableMetadata::new()).collect() }
    }
}

// SAFETY: the allocation belongs to the engine alone and is never freed, and each frame of it has its own metadata. No guest
// runs on these tables, so no instruction has an effect that printing it would lose.
unsafe impl Platform for Printing {
    fn tlbi(&self, operation: Tlbi, operand: u64) {
        println!("TLBI {operation:?}, {operand:#x}");
    }

    fn dsb(&self, domain: Domain) {
        println!("DSB  {domain:?}");
    }

    fn isb(&self) {
        println!("ISB");
    }

    unsafe fn dc(&self, operation: Dc, address: usize) {
        println!("DC   {operation:?}, {address:#x}");
    }

    fn ic(&self, operation: Ic, _address: usize) {
        println!("IC   {operation:?}");
    }

    fn vttbr(&self) -> u64 {
        0
    }

    fn load_vttbr(&self, value: u64) {
        println!("MSR  VTTBR_EL2, {value:#x}");
    }

    fn pointer(&self, pa: Pa) -> NonNull<u8> {
        let offset = (pa.raw() - MEMORY.raw()) as usize;
        assert!(offset < SIZE, "{pa} is no frame of this machine");
        // SAFETY: the offset is inside the allocation.
        unsafe { self.memory.add(offset) }
    }

    fn metadata(&self, pa: Pa) -> &TableMetadata {
        &self.metadata[((pa.raw() - MEMORY.raw()) / 4096) as usize]
    }
}

pub(crate) fn main() -> Result<(), Error> {
    // On a CPU: `Features::from_registers(&ids)`.
    let features = Features::NONE.with_forced_write_back(true).with_instruction_cache_coherent(true);
    // SAFETY: the platform's memory belongs to no other object, and is donated once.
    let memory = unsafe { Donated::new(MEMORY, SIZE as u64) };
    run(Printing::new(), features, memory.into_run())
}
