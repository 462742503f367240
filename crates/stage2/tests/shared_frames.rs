// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two guests that share frames read-only, with copy on write. No safe call lends memory to two trees, so the embedder vouches
//! for the shared frames by a window, and answers a write with a page of the guest's own.

use std::error::Error;

use twofold_stage2::fault::{AccessKind, FaultKind};
use twofold_stage2::hosted::{Hosted, Tables, Taken, Vcpu};
use twofold_stage2::{
    Access, Attributes, Geometry, Ipa, Kib4, Lent, Level, Mapped, Run, Stage2, Unwatched, Vmid, Window,
};

const PAGE: u64 = 4096;
const BLOCK: u64 = 2 << 20;
const RAM: Ipa = Ipa::new(1 << 30);

struct Guest {
    stage2: Stage2<Hosted>,
    tables: Tables,
    /// The page for the first copy.
    spare: Option<Run>,
    copies: Vec<Lent>,
}

impl Guest {
    fn new(platform: &Hosted, vmid: u16, memory: Run) -> Result<(Self, Run), Box<dyn Error>> {
        let geometry = Geometry::new(Kib4, 40, &Hosted::features())?;
        let (tables, root, rest) = platform.cut(memory, &geometry).ok_or("too little memory")?;
        let (spare, rest) = rest.split_at(BLOCK).map_err(|_| "too little memory")?;
        let (spare, _) = spare.split_at(PAGE).map_err(|_| "too little memory")?;
        let stage2 = Stage2::new(platform.clone(), Hosted::features(), geometry, Vmid::new(vmid), root)?;
        Ok((Self { stage2, tables, spare: Some(spare), copies: Vec::new() }, rest))
    }

    /// Gives the guest a page of its own with what the shared one holds, in place of that one.
    fn copy_on_write(&mut self, Taken { ipa, fault }: Taken) -> Result<(), Box<dyn Error>> {
        assert_eq!((fault.kind, fault.access), (FaultKind::Permission, AccessKind::Write));
        let (page, platform) = (ipa.align_down(PAGE), self.stage2.platform());
        let shared = self.stage2.look_up(page).and_then(|leaf| leaf.translate(page)).ok_or("not mapped")?;
        let own = self.spare.take().ok_or("no page")?;
        for offset in (0..PAGE).step_by(8) {
            platform.store(own.pa() + offset, platform.load(shared + offset));
        }
        let lent = self.stage2.lend(own, page, page.range(PAGE));
        let grant = self.stage2.grant(&lent, page, PAGE).ok_or("not lent")?;
        let mapped = grant.map(Level::L3, &Attributes::ram(Access::READ_WRITE), &mut self.tables)?;
        assert!(matches!(mapped, Mapped::Replaced(_)), "{mapped:?}");
        self.copies.push(lent);
        Ok(())
    }

    fn end(mut self) {
        let (root, _) = self.stage2.destroy(&mut self.tables, Unwatched);
        assert!(self.copies.into_iter().all(|copy| root.reclaim(copy).is_ok()));
    }
}

#[test]
fn a_guest_that_writes_a_shared_page_gets_its_own() -> Result<(), Box<dyn Error>> {
    let (platform, memory) = Hosted::new(6 * BLOCK);
    let (mut one, rest) = Guest::new(&platform, 1, memory)?;
    let (mut other, shared) = Guest::new(&platform, 2, rest)?;
    assert_eq!(shared.size(), 2 * BLOCK);
    for page in (0..BLOCK).step_by(PAGE as usize) {
        platform.store(shared.pa() + page, page);
    }
    // The run ends here: the memory has no other owner.
    let shared = shared.pa();
    // SAFETY: nothing else owns the memory, and no guest maps it writable.
    let window = unsafe { Window::new(shared, BLOCK) };
    for guest in [&mut one, &mut other] {
        let grant = guest.stage2.open(window, RAM);
        let _ = grant.map(Level::L2, &Attributes::ram(Access::READ), &mut guest.tables)?;
    }

    let ipa = RAM + 7 * PAGE;
    let taken = Vcpu::new(&one.stage2).store(ipa, 1).unwrap_err();
    one.copy_on_write(taken)?;
    let mut writer = Vcpu::new(&one.stage2);
    assert_eq!(writer.load(ipa)?, 7 * PAGE, "the copy holds what was shared");
    writer.store(ipa, 1)?;
    assert_eq!((writer.load(ipa)?, writer.load(ipa + PAGE)?), (1, 8 * PAGE));
    assert_eq!(Vcpu::new(&other.stage2).load(ipa)?, 7 * PAGE, "the other guest sees nothing of it");
    assert_eq!(one.stage2.count_leaves(RAM..RAM + BLOCK)?, [0, 0, 0, 512]);
    assert_eq!(other.stage2.count_leaves(RAM..RAM + BLOCK)?, [0, 0, 1, 0]);
    one.end();
    other.end();
    Ok(())
}
