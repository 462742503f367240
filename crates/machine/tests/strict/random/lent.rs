// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that is lent to the guests, and withdrawn while other CPUs map it: a huge page (2 MiB) at once, or one page of
//! it. A frame that is back goes to the next address that wants one, of any guest.
//!
//! **Invariant.** A frame is in the pool, lent for one address, or on its way between the two on one CPU. When it is
//! back, nothing may lead to it, and it holds what was written at the address that it was lent for.

use std::cell::RefCell;
use std::collections::BTreeMap;

use twofold_machine::strict::{CpuHandle, Hosted};
use twofold_stage2::{Broken, Error, Grant, Granule, Ipa, IpaRange, Leaf, Lent, Lock, Root, Run, Stage2, TableSource};

use super::layout::{HUGE_PAGE_COUNT, Layout};
use super::operation::Collect;
use crate::world::{PAGE, World};

/// Where the pool's memory is among the guests' frames, behind all others that are not blocks of level 1, and its size: few
/// huge pages, since some are lent in pieces.
fn pool<G: Granule>() -> (u64, u64) {
    let huge_page = Layout::<G>::span(2);
    if G::SIZE == PAGE { (32 * huge_page, 16 * huge_page) } else { (12 * huge_page, 6 * huge_page) }
}

/// The lent memory of all guests, and the pool.
pub struct LentMemory {
    pool: Lock<Pool>,
    /// The memory that is lent for each huge page of each guest, in pieces.
    pieces: Vec<Lock<Vec<Lent>>>,
}

impl LentMemory {
    pub fn new<G: Granule>(world: &World<G>, _: &Layout<G>, guests: usize) -> Self {
        let mut pool = Pool::default();
        let (start, size) = self::pool::<G>();
        pool.give(world.run(start, size));
        let pieces = (0..guests * HUGE_PAGE_COUNT as usize).map(|_| Lock::new(Vec::new())).collect();
        Self { pool: Lock::new(pool), pieces }
    }

    fn pieces_at<G: Granule>(&self, layout: &Layout<G>, guest: usize, ipa: Ipa) -> &Lock<Vec<Lent>> {
        let huge_page = (ipa.raw() - layout.start) / Layout::<G>::span(2);
        &self.pieces[guest * HUGE_PAGE_COUNT as usize + huge_page as usize]
    }

    /// The right to map the memory that is lent for this range, if all of it is one piece.
    pub fn grant<'a, G: Granule>(
        &self,
        layout: &Layout<G>,
        guest: usize,
        tables: &'a Stage2<Hosted, G>,
        ipa: Ipa,
        size: u64,
    ) -> Option<Grant<'a, Hosted, G>> {
        let is_there = (layout.start..layout.end()).contains(&ipa.raw());
        let pieces = is_there.then(|| self.pieces_at(layout, guest, ipa))?.lock(tables.platform());
        pieces.iter().find_map(|lent| tables.grant(lent, ipa, size))
    }

    /// Lends memory for a page or a huge page, if the pool has some. Two CPUs may lend memory for one address.
    pub fn lend<G: Granule>(
        &self,
        world: &World<G>,
        layout: &Layout<G>,
        guest: usize,
        tables: &Stage2<Hosted, G>,
        (ipa, size): (Ipa, u64),
    ) {
        let platform = tables.platform();
        let Some(run) = self.pool.lock(platform).take(size) else { return };
        for page in used_pages(layout, ipa, size) {
            run.zero_page(platform, &world.features, page - ipa);
        }
        if (ipa..ipa + size).contains(&Ipa::new(layout.table())) {
            run.zero_page(platform, &world.features, Ipa::new(layout.table()) - ipa);
            let entries: Vec<u8> = Layout::<G>::guest_table().into_iter().flat_map(u64::to_le_bytes).collect();
            run.write(platform, Ipa::new(layout.table()) - ipa, &entries);
        }
        let lent = tables.lend(run, ipa, ipa..ipa + size);
        self.pieces_at(layout, guest, ipa).lock(platform).push(lent);
    }

    /// Withdraws the page, or all of the huge page. Returns the leaves that mapped it.
    pub fn withdraw<G: Granule>(
        &self,
        (cpu, layout): (&CpuHandle, &Layout<G>),
        guest: usize,
        tables: &Stage2<Hosted, G>,
        (ipa, size): (Ipa, u64),
        pages: &mut impl TableSource<G>,
    ) -> Result<Vec<Leaf<G>>, Error> {
        let pieces = self.pieces_at(layout, guest, ipa);
        let mut leaving = {
            let mut pieces = pieces.lock(tables.platform());
            if size == Layout::<G>::span(2) { core::mem::take(&mut *pieces) } else { cut_out(&mut pieces, ipa, size) }
        };
        let mut leaves = Vec::new();
        while let Some(lent) = leaving.pop() {
            let (range, removed) = (lent.range(), RefCell::default());
            let withdrawal = match tables.withdraw(lent, pages, Collect(&removed)) {
                Ok(withdrawal) => withdrawal,
                Err((error, lent)) => {
                    leaving.push(lent);
                    pieces.lock(tables.platform()).extend(leaving);
                    return Err(error);
                }
            };
            let (run, freed) = withdrawal.reclaim(pages);
            cpu.reuse(run.pa(), run.size());
            let removed = removed.into_inner().into_iter().filter_map(|leaf: Broken<G>| leaf.open(&freed));
            let inside = |leaf: &Leaf<G>| (run.pa()..run.pa() + run.size()).contains(&leaf.descriptor.address());
            for leaf in removed.filter(inside) {
                // Other CPUs may be about to clean what they unmapped.
                cpu.reads(leaf.descriptor.address(), G::SIZE);
                leaves.push(leaf);
            }
            check(cpu, layout, tables, &run, range);
            self.pool.lock(tables.platform()).give(run);
        }
        Ok(leaves)
    }

    /// Checks that a guest maps no memory of the pool but what is lent to it, at its address.
    pub fn check<G: Granule>(&self, world: &World<G>, layout: &Layout<G>, guest: usize, tables: &Stage2<Hosted, G>) {
        let (start, size) = pool::<G>();
        let all = world.frame(start)..world.frame(start) + size;
        for ipa in used_pages(layout, Ipa::new(layout.start), HUGE_PAGE_COUNT * Layout::<G>::span(2)) {
            let Some(leaf) = tables.look_up(ipa) else { continue };
            let pa = leaf.descriptor.address() + (ipa - leaf.ipa);
            let pieces = self.pieces_at(layout, guest, ipa).lock(tables.platform());
            let is_lent = |lent: &Lent| tables.grant(lent, ipa, G::SIZE).is_some_and(|grant| grant.pa() == pa);
            assert!(
                !all.contains(&pa) || pieces.iter().any(is_lent),
                "{ipa} of guest {guest} maps {pa}: it was withdrawn"
            );
        }
    }

    /// Takes all memory back from destroyed tables, and checks that all of it is there.
    pub fn end<G: Granule>(mut self, _: &Layout<G>, roots: &[Root]) {
        let pool = self.pool.get_mut();
        for (number, pieces) in self.pieces.iter_mut().enumerate() {
            let root = &roots[number / HUGE_PAGE_COUNT as usize];
            pieces.get_mut().drain(..).for_each(|lent| pool.give(root.reclaim(lent).unwrap()));
        }
        let sizes: Vec<_> = pool.0.values().map(Run::size).collect();
        assert_eq!(sizes, [self::pool::<G>().1], "lent memory is lost");
    }
}

/// Cuts the piece of one page out of the pieces, if it is lent.
fn cut_out(pieces: &mut Vec<Lent>, ipa: Ipa, size: u64) -> Vec<Lent> {
    let Some(index) = pieces.iter().position(|piece| piece.range().contains(&ipa)) else { return Vec::new() };
    let piece = pieces.swap_remove(index);
    let before = ipa - piece.range().start;
    let (before, rest) = piece.split_at(before).unwrap();
    let (page, after) = rest.split_at(size).unwrap();
    pieces.extend([before, after].into_iter().filter(|piece| !piece.range().is_empty()));
    vec![page]
}

/// The pages that guests use in a range of whole pages.
fn used_pages<G: Granule>(_: &Layout<G>, ipa: Ipa, size: u64) -> impl Iterator<Item = Ipa> {
    let pages = (0..size / G::SIZE).map(move |page| ipa + page * G::SIZE);
    pages.filter(|page| Layout::<G>::PAGES.contains(&(page.raw() % Layout::<G>::span(2) / G::SIZE)))
}

/// Checks that a run that is back holds zeroes, or what was written at the addresses that it was lent for.
fn check<G: Granule>(cpu: &CpuHandle, layout: &Layout<G>, tables: &Stage2<Hosted, G>, run: &Run, range: IpaRange) {
    for page in used_pages(layout, range.start, run.size()) {
        for word in [0, 8] {
            let mut bytes = [0; 8];
            run.read(tables.platform(), page - range.start + word, &mut bytes);
            let value = u64::from_le_bytes(bytes);
            if value != 0 && value != page.raw() / G::SIZE {
                cpu.report(format!("{page} held {value:#x} when its memory came back, which was never written there"));
            }
        }
    }
}

/// Free memory, by address. Neighbours are joined.
#[derive(Default)]
struct Pool(BTreeMap<u64, Run>);

impl Pool {
    /// The smallest run that has these pages, so that huge pages stay whole for long.
    fn take(&mut self, size: u64) -> Option<Run> {
        let skip = |run: &Run| run.pa().raw().next_multiple_of(size) - run.pa().raw();
        let fits = |run: &&Run| skip(run) + size <= run.size();
        let start = self.0.values().filter(fits).min_by_key(|run| run.size())?.pa().raw();
        let run = self.0.remove(&start)?;
        let skipped = skip(&run);
        let (before, rest) = run.split_at(skipped).unwrap();
        let (taken, after) = rest.split_at(size).unwrap();
        self.0.extend([before, after].into_iter().filter(|run| !run.is_empty()).map(|run| (run.pa().raw(), run)));
        Some(taken)
    }

    fn give(&mut self, mut run: Run) {
        if let Some((_, before)) = self.0.range(..run.pa().raw()).next_back()
            && before.pa() + before.size() == run.pa()
        {
            let start = before.pa().raw();
            run = self.0.remove(&start).unwrap().join(run).unwrap();
        }
        if let Some(after) = self.0.remove(&(run.pa().raw() + run.size())) {
            run = run.join(after).unwrap();
        }
        self.0.insert(run.pa().raw(), run);
    }
}
