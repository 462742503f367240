// SPDX-License-Identifier: Apache-2.0 OR MIT
//! README's example of the crate, compiled; and a test that README has it as it is here.

#![allow(dead_code, reason = "it is shown, and compiled")]

use std::ops::ControlFlow;

use twofold_stage2::*;

// README from here
fn guest<P: Platform>(cpu: P, ids: &IdRegisters, memory: Run) -> Result<Stage2<P>, Error> {
    let features = Features::from_registers(ids); // what this CPU can do, as data
    let geometry = Geometry::new(Granule::KIB_4, 40, &features)?;
    let wrong = Error::Root { root: memory.pa(), size: geometry.root_size() };
    let root = memory.into_root(&geometry).map_err(|_| wrong)?;
    Stage2::new(cpu, features, geometry, Vmid::new(1), root)
}

// Each of these takes `&self`: any CPU may call any of them at any time.
fn maintain<P: Platform>(
    stage2: &Stage2<P>,
    (lent, ipa): (&Lent, Ipa),
    (slot, other, mask): (IpaRange, Ipa, u64),
    tables: &mut impl TableSource,
) -> Result<(), Error> {
    // The right to map memory that was lent to these tables, for these addresses.
    let Some(grant) = stage2.grant(lent, ipa, 2 << 20) else { return Ok(()) };
    let _ = grant.map(Level::L2, &Attributes::ram(Access::READ_WRITE), tables)?;
    let _ = stage2.split(slot.clone(), 1 << 30, tables, |_, _| ControlFlow::Continue(()))?;

    let mut pending = stage2.write_protect(slot.clone())?; // what was written, 64 pages at a time ...
    pending.join(stage2.write_protect_mask(other, mask)?); // (an error here flushes what is pending)
    let _ = pending.complete(); // ... and one flush for all of it

    let mut removed = Vec::new();
    let pending = stage2.unmap(slot, tables, |leaf| removed.push(leaf))?;
    let flushed = pending.complete(); // barrier, TLBI, barrier, TLBI, barrier
    let freed = flushed.free(tables); // does not compile without the line above,
    for leaf in removed.iter().filter_map(|leaf| leaf.open(&freed)) {
        println!("{} is free", leaf.descriptor.address()); // nor does this without `freed`
    }
    Ok(())
}
// to here

#[test]
fn readme_shows_what_is_compiled() {
    let shown = include_str!("../../../README.md").split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
    let compiled = include_str!("readme.rs").split("// README from here\n").nth(1);
    let compiled = compiled.and_then(|rest| rest.split("// to here\n").next());
    assert_eq!(shown, compiled);
}
