// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Splits a slot into pages, tracks the guest's writes, and copies only what was written: one round of a migration.
//!
//! ```text
//! cargo run -p twofold-stage2 --example dirty_track
//! ```

#![allow(clippy::print_stdout, reason = "printing is what it does")]

use std::error::Error;
use std::ops::ControlFlow;

use twofold_stage2::fault::{AccessKind, FaultKind};
use twofold_stage2::hosted::{Hosted, Taken, Vcpu};
use twofold_stage2::{Access, Attributes, Geometry, Ipa, Kib4, Level, Stage2, Unwatched, Vmid};

const PAGE: u64 = 4096;
const BLOCK: u64 = 2 << 20;
const PAGES: u64 = 2 * BLOCK / PAGE;

/// One bit for each page.
#[derive(Default)]
struct Log([u64; PAGES as usize / 64]);

impl Log {
    fn set(&mut self, page: u64) {
        self.0[page as usize / 64] |= 1 << (page % 64);
    }

    fn pages(&self) -> impl Iterator<Item = u64> {
        (0..PAGES).filter(|page| self.0[*page as usize / 64] >> (page % 64) & 1 == 1)
    }
}

/// The guest stores. A write that is refused is noted, and allowed.
fn store(vcpu: &mut Vcpu, stage2: &Stage2<Hosted>, log: &mut Log, ipa: Ipa, value: u64) -> Result<(), Box<dyn Error>> {
    while let Err(Taken { ipa, fault }) = vcpu.store(ipa, value) {
        assert_eq!((fault.kind, fault.access), (FaultKind::Permission, AccessKind::Write));
        // First the access, then the note. A collection in between would take the note, and miss the write.
        let _ = stage2.relax_page(ipa, Access::READ_WRITE)?;
        log.set((ipa - START) / PAGE);
    }
    Ok(())
}

const START: Ipa = Ipa::new(1 << 30);

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let (platform, memory) = Hosted::new(4 * BLOCK);
    let features = Hosted::features();
    let geometry = Geometry::new(Kib4, 40, &features)?;
    let (mut tables, root, ram) = platform.cut(memory, &geometry).ok_or("too little memory")?;
    let stage2 = Stage2::new(platform.clone(), features, geometry, Vmid::new(1), root)?;
    let slot = START.range(2 * BLOCK);
    let lent = stage2.lend(ram, START, slot.clone());
    for block in [START, START + BLOCK] {
        let grant = stage2.grant(&lent, block, BLOCK).ok_or("not lent")?;
        let _ = grant.map(Level::L2, &Attributes::ram(Access::READ_WRITE), &mut tables)?;
    }
    let mut vcpu = Vcpu::new(&stage2);
    let mut log = Log::default();

    // Start the log: pages instead of blocks, and no write unnoticed. The copy of the slot is complete after the flush.
    let split = stage2.split(slot.clone(), 1 << 30, &mut tables, |_, _| ControlFlow::Continue(()))?;
    println!("{} blocks are split", split.blocks);
    let _ = stage2.write_protect(slot.clone())?.complete();
    let mut copy: Vec<u64> = (0..PAGES).map(|page| platform.load(lent.run().pa() + page * PAGE)).collect();

    // The guest runs.
    for page in [3, 3, 700, 1023] {
        store(&mut vcpu, &stage2, &mut log, START + page * PAGE, page)?;
    }

    // Take the log: forget, protect, flush, and only then read. A write in between is in the next log.
    let taken = std::mem::take(&mut log);
    let words = taken.0.iter().zip(0..).filter(|(mask, _)| **mask != 0);
    let mut pending = None;
    for (mask, word) in words {
        let change = stage2.write_protect_mask(START + word * 64 * PAGE, *mask)?;
        match &mut pending {
            None => pending = Some(change),
            Some(pending) => pending.join(change),
        }
    }
    let _ = pending.map(|pending| pending.complete()); // one flush for all
    for page in taken.pages() {
        copy[page as usize] = platform.load(lent.run().pa() + page * PAGE);
    }
    println!("written: {:?}", taken.pages().collect::<Vec<_>>());
    assert_eq!(taken.pages().collect::<Vec<_>>(), [3, 700, 1023]);

    // What is written after that is in the next log.
    store(&mut vcpu, &stage2, &mut log, START + 3 * PAGE, 9)?;
    assert_eq!((log.pages().collect::<Vec<_>>(), copy[3]), (vec![3], 3));

    let (root, _) = stage2.destroy(&mut tables, Unwatched);
    let _ram = root.reclaim(lent).map_err(|_| "it is another root's")?;
    Ok(())
}
