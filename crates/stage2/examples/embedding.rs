// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The code of the guide "Replace your stage-2 code" (docs/embedding.md), in its order.
//!
//! ```text
//! cargo run -p twofold-stage2 --example embedding
//! ```

// The guide from here
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU64, Ordering};

use twofold_stage2::fault::{AccessKind, Fault, FaultKind};
use twofold_stage2::*;

const PAGE: u64 = 4096;
const BLOCK: u64 = 2 << 20;
const RAM: Ipa = Ipa::new(1 << 30); // where the guest sees its memory

struct Guest<P: Platform> {
    stage2: Stage2<P>,
    ram: Lent,
    written: [AtomicU64; 32], // one bit for each of 2048 pages
}

impl<P: Platform> Guest<P> {
    /// `ram` is aligned to 2 MiB, so that blocks of that size can map it. What the log has no bits for stays unused.
    fn new(cpu: P, cpus: Features, vmid: Vmid, root: Run, ram: Run) -> Result<Self, Error> {
        let geometry = Geometry::new(Kib4, 40, &cpus)?;
        let size = geometry.root_size();
        let root = root.into_root(&geometry).map_err(|run| Error::Root { root: run.pa(), size })?;
        let stage2 = Stage2::new(cpu, cpus, geometry, vmid, root)?;
        stage2.invalidate_all(); // what an earlier guest with this VMID left in TLBs
        let range = RAM.range(ram.size().min(4 * BLOCK));
        Ok(Self { ram: stage2.lend(ram, RAM, range), stage2, written: Default::default() })
    }

    /// Returns whether the guest tries again. If not, it accessed a device, or nothing at all.
    fn fault(&self, fault: Fault, ipa: Ipa, tables: &mut impl TableSource) -> Result<bool, Error> {
        let page = ipa.align_down(PAGE);
        let done = match (fault.kind, fault.access) {
            (FaultKind::Translation, _) => match self.map(ipa.align_down(BLOCK), Level::L2, tables) {
                // The log has split this block, and this page of it is not mapped.
                Err(Error::TableInTheWay { .. }) => self.map(page, Level::L3, tables),
                done => done,
            },
            (FaultKind::AccessFlag, _) => self.stage2.make_young(ipa).map(|_| true),
            (FaultKind::Permission, AccessKind::Write) => {
                self.stage2.relax_page(ipa, Access::READ_WRITE).map(|_| self.note(page, PAGE)).map(|()| true)
            }
            (FaultKind::Permission, _) => Ok(false),
        };
        match done {
            // Another CPU was faster. The guest's next access finds what that CPU made.
            Err(Error::NotMapped { .. } | Error::Withdrawn { .. }) => Ok(true),
            Err(Error::BlockInTheWay { .. }) => self.log(page.range(PAGE), tables).map(|()| true),
            done => done,
        }
    }

    /// Returns whether the guest has memory there.
    fn map(&self, ipa: Ipa, level: Level, tables: &mut impl TableSource) -> Result<bool, Error> {
        let size = Kib4.span(level);
        let Some(grant) = self.stage2.grant(&self.ram, ipa, size) else { return Ok(false) };
        let _ = grant.map(level, &Attributes::ram(Access::ALL), tables)?;
        self.note(ipa, size);
        Ok(true)
    }

    /// Notes that these pages may be written from now on.
    fn note(&self, ipa: Ipa, size: u64) {
        let first = (ipa - RAM) / PAGE;
        for page in first..first + size / PAGE {
            self.written[page as usize / 64].fetch_or(1 << (page % 64), Ordering::Release);
        }
    }

    /// From now on, each page is noted at its first write after a collection.
    fn log(&self, range: IpaRange, tables: &mut impl TableSource) -> Result<(), Error> {
        let split = self.stage2.split(range.clone(), 1 << 30, tables, |_, _| ControlFlow::Continue(()))?;
        if split.stopped.is_some() {
            return Err(Error::NoTablePage { ipa: split.done, level: Level::L3 });
        }
        let _ = self.stage2.write_protect(range)?.complete();
        Ok(())
    }

    /// Calls `copy` with each page that may have been written since the last call.
    fn collect(&self, mut copy: impl FnMut(Ipa)) -> Result<(), Error> {
        for (word, number) in self.written.iter().zip(0..) {
            let (mask, first) = (word.swap(0, Ordering::Acquire), RAM + number * 64 * PAGE);
            if mask != 0 {
                let _ = self.stage2.write_protect_mask(first, mask)?.complete();
                (0..64).filter(|bit| mask >> bit & 1 == 1).for_each(|bit| copy(first + bit * PAGE));
            }
        }
        Ok(())
    }

    /// Unmaps the pages. They stay lent to the guest: its next access faults, and `fault` maps them again.
    fn unmap(&self, range: IpaRange, tables: &mut impl TableSource) -> Result<(), Error> {
        let flushed = self.stage2.unmap(range, tables, Unwatched)?.complete();
        flushed.free(tables); // the table pages; does not compile before the flush
        Ok(())
    }

    /// The root's memory, and the guest's.
    fn destroy(self, tables: &mut impl TableSource) -> Option<(Run, Run)> {
        let (root, _) = self.stage2.destroy(tables, Unwatched);
        let ram = root.reclaim(self.ram).ok()?;
        Some((root.into_run(), ram))
    }
}

#[cfg(target_arch = "aarch64")]
mod el2 {
    use twofold_stage2::arm64::{Arm64, IdentityMap};
    use twofold_stage2::*;

    const FIRST: Pa = Pa::new(0x4400_0000);
    static METADATA: [TableMetadata; 0x4000] = [const { TableMetadata::new() }; 0x4000];
    static RANGES: [MetadataRange; 1] = [MetadataRange { first: FIRST, metadata: &METADATA }];

    /// # Safety
    ///
    /// Called once. Nothing else uses the 64 MiB from `FIRST` on, which are mapped at their physical addresses.
    pub unsafe fn platform() -> (Arm64<IdentityMap>, Run) {
        // SAFETY: promised by the caller.
        let map = unsafe { IdentityMap::new(MetadataMap::new(&RANGES)) };
        // SAFETY: promised by the caller.
        (Arm64::new(map), unsafe { Donated::new(FIRST, 64 << 20) }.into_run())
    }
}

struct Shared<'a, P, T>(&'a P, &'a Lock<T>);

impl<P: Platform, T: TableSource> TableSource for Shared<'_, P, T> {
    fn take(&mut self) -> Option<TablePage> {
        self.1.lock(self.0).take()
    }

    fn give(&mut self, page: TablePage) {
        self.1.lock(self.0).give(page);
    }
}

/// The guest on the host.
pub fn main() -> Result<(), Box<dyn core::error::Error>> {
    use twofold_stage2::hosted::{Hosted, Vcpu};

    let (cpu, memory) = Hosted::new(4 * BLOCK);
    let geometry = Geometry::new(Kib4, 40, &Hosted::features())?;
    let (mut tables, root, ram) = cpu.cut(memory, &geometry).ok_or("too little memory")?;
    let guest = Guest::new(cpu.clone(), Hosted::features(), Vmid::new(1), root.into_run(), ram)?;
    let slot = RAM.range(2 * BLOCK);

    // One CPU: the guest tries again until no fault is left.
    let mut vcpu = Vcpu::new(&guest.stage2);
    while let Err(taken) = vcpu.store(RAM, 7) {
        assert!(guest.fault(taken.fault, taken.ipa, &mut tables)?);
    }
    guest.log(slot.clone(), &mut tables)?;
    guest.collect(|page| assert!(slot.contains(&page)))?; // all that was ever mapped

    // Two vCPUs write each page of 4 MiB, while the log is collected.
    let (tables, mut seen) = (Lock::new(tables), std::collections::BTreeSet::new());
    let write = |page: u64| {
        let mut vcpu = Vcpu::new(&guest.stage2);
        while let Err(taken) = vcpu.store(RAM + page * PAGE, page) {
            assert_eq!(guest.fault(taken.fault, taken.ipa, &mut Shared(&cpu, &tables)), Ok(true));
        }
    };
    std::thread::scope(|scope| {
        let vcpus = [0, 1].map(|first| scope.spawn(move || (first..1024).step_by(2).for_each(write)));
        while !vcpus.iter().all(|vcpu| vcpu.is_finished()) {
            guest.collect(|page| _ = seen.insert(page))?;
        }
        guest.collect(|page| _ = seen.insert(page)) // the last round: no vCPU runs
    })?;
    assert_eq!(seen.len(), 1024);

    let _ = guest.stage2.protect(slot.clone(), Access::READ, &mut Shared(&cpu, &tables))?.complete();
    guest.unmap(slot, &mut Shared(&cpu, &tables))?;
    assert!(guest.destroy(&mut Shared(&cpu, &tables)).is_some());
    Ok(())
}
