// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Maps a block and two pages, translates addresses, and prints what is mapped.
//!
//! ```text
//! cargo run -p twofold-stage2 --example map_and_translate
//! ```

#![allow(clippy::print_stdout, reason = "printing is what it does")]

use std::error::Error;

use twofold_stage2::hosted::{Hosted, Vcpu};
use twofold_stage2::{Access, Attributes, Geometry, Ipa, Kib4, Level, Stage2, Unwatched, Vmid};

const PAGE: u64 = 4096;
const BLOCK: u64 = 2 << 20;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let (platform, memory) = Hosted::new(4 * BLOCK);
    let features = Hosted::features();
    let geometry = Geometry::new(Kib4, 40, &features)?;
    let (mut tables, root, ram) = platform.cut(memory, &geometry).ok_or("too little memory")?;
    let stage2 = Stage2::new(platform, features, geometry, Vmid::new(1), root)?;
    println!("VTCR_EL2 {:#x}, VTTBR_EL2 {:#x}", stage2.vtcr(), stage2.vttbr());

    // The guest's memory begins at 1 GiB.
    let start = Ipa::new(1 << 30);
    let slot = start.range(ram.size());
    let lent = stage2.lend(ram, start, slot.clone());
    let map = |ipa: Ipa, level, access, tables: &mut _| {
        let grant = stage2.grant(&lent, ipa, Kib4.span(level)).ok_or("not lent")?;
        Ok::<_, Box<dyn Error>>(grant.map(level, &Attributes::ram(access), tables)?)
    };
    let _ = map(start, Level::L2, Access::ALL, &mut tables)?;
    let _ = map(start + BLOCK, Level::L3, Access::READ, &mut tables)?;
    let _ = map(start + BLOCK + PAGE, Level::L3, Access::READ_WRITE, &mut tables)?;

    for leaf in stage2.leaves(slot.clone())? {
        println!("{leaf}");
    }
    let [_, _, blocks, pages] = stage2.count_leaves(slot.clone())?;
    assert_eq!((blocks, pages), (1, 2));

    // As the hypervisor translates, and as the guest's CPU does.
    let ipa = start + 0x12_3458;
    let leaf = stage2.look_up(ipa).ok_or("not mapped")?;
    println!("{ipa} is at {}", leaf.translate(ipa).ok_or("not in its leaf")?);
    let mut vcpu = Vcpu::new(&stage2);
    vcpu.store(ipa, 42)?;
    assert_eq!(stage2.platform().load(leaf.pa() + (ipa - leaf.ipa)), 42);
    println!("{}", vcpu.store(start + BLOCK, 42).expect_err("the page is read-only"));
    println!("{}", vcpu.load(start + 2 * BLOCK).expect_err("nothing is mapped"));

    let (root, _) = stage2.destroy(&mut tables, Unwatched);
    let ram = root.reclaim(lent).map_err(|_| "it is another root's")?;
    println!("{:#x} bytes are free again", ram.size());
    Ok(())
}
