// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The accesses of a guest between the operations on its tables, and the answers to its faults.
//!
//! Each page of a guest is mapped to one of two frames of its own, so a value that is read there was written there.

use twofold_machine::program::{Abort, Exit, Instructions};
use twofold_machine::strict::StrictVcpu;
use twofold_stage2::fault::{AccessKind, Fault, FaultKind, ipa_from_hpfar};
use twofold_stage2::{Access, Error, Execute, Granule, Ipa, Level};

use super::operation::{Kind, Worker, span_of};

impl<'a, G: Granule> Worker<'a, G> {
    fn enter(&mut self, number: usize) -> StrictVcpu<'a> {
        let tables = &self.tables[number];
        let vcpu = self.cpu.draw(2) as u32;
        self.cpu.load(tables.vttbr());
        if self.vcpus[number].is_some_and(|last| last != vcpu) {
            tables.invalidate_for_other_vcpu();
        }
        self.vcpus[number] = Some(vcpu);
        let mut guest = self.cpu.enter(tables.vttbr(), tables.vtcr(), vcpu);
        if let (0, Some(stage1)) = (self.cpu.draw(2), self.layout.stage1()) {
            *guest.stage1() = stage1;
        }
        guest
    }

    /// A store of the guest's, which may fault.
    pub(super) fn store_once(&mut self, number: usize, ipa: u64) {
        let mut guest = self.enter(number);
        if guest.store(ipa, ipa / G::SIZE).is_ok() {
            self.counts.stores += 1;
        }
    }

    /// Some accesses of the guest's. Most of their faults are handled.
    pub(super) fn run_guest(&mut self, number: usize) {
        let mut guest = self.enter(number);
        for _ in 0..1 + self.cpu.draw(6) {
            let ipa = self.page() + 8 * self.cpu.draw(2);
            guest.forget_fault();
            let what = self.cpu.draw(8);
            while let Err(exit) = self.access_once(&mut guest, ipa, what) {
                self.counts.faults += 1;
                let Exit::Abort(abort) = exit else { self.cpu.report(format!("the guest left for {exit:?}")) };
                if self.cpu.draw(8) == 0 || !self.answer(number, &abort, &mut guest) {
                    break;
                }
            }
        }
    }

    fn access_once(&mut self, guest: &mut StrictVcpu<'_>, ipa: u64, what: u64) -> Result<(), Exit> {
        match what {
            0..4 => {
                guest.store(ipa, ipa / G::SIZE)?;
                self.counts.stores += 1;
            }
            4..7 => {
                let value = guest.load(ipa)?;
                if value != 0 && value != ipa / G::SIZE {
                    self.cpu.report(format!("{ipa:#x} holds {value:#x}, which was never written there"));
                }
                self.counts.loads += 1;
            }
            _ => {
                guest.fetch(ipa)?;
                self.counts.fetches += 1;
            }
        }
        Ok(())
    }

    /// Handles a fault as a hypervisor does; returns whether the guest may continue.
    fn answer(&mut self, number: usize, abort: &Abort, guest: &mut StrictVcpu<'_>) -> bool {
        let tables = &self.tables[number];
        let fault = Fault::from_syndrome(abort.esr).unwrap_or_else(|| panic!("{abort:?}"));
        // The guest's own tables map everything to itself, so `AT` would return the address in FAR_EL2.
        let ipa = if fault.hpfar_is_valid() { ipa_from_hpfar(abort.hpfar) } else { Ipa::new(abort.far & !0xfff) };
        let wanted = match fault.access {
            AccessKind::Read | AccessKind::Maintenance => Access::READ,
            AccessKind::Write => Access::READ_WRITE,
            AccessKind::Execute => Access { execute: Execute::ALWAYS, ..Access::READ },
        };
        let answered = match fault.kind {
            FaultKind::Translation => {
                let (level, start) = self.leaf_around(ipa.raw());
                let attributes = self.attributes();
                let grant = self.grant(Kind::Map, number, Ipa::new(start), span_of::<G>(level.raw()));
                match grant.map(level, &attributes, &mut self.pages) {
                    Err(Error::TableInTheWay { .. }) => {
                        let grant = self.grant(Kind::Map, number, ipa.align_down(G::SIZE), G::SIZE);
                        grant.map(Level::L3, &attributes, &mut self.pages).map(|_| ())
                    }
                    mapped => mapped.map(|_| ()),
                }
            }
            FaultKind::AccessFlag => tables.make_young(ipa).map(|_| ()),
            FaultKind::Permission => tables.relax(ipa, wanted).map(|_| ()),
        };
        match answered {
            Ok(()) => true,
            // The CPU that unmapped it still has to flush. Until then the guest may hit the entry that its TLB holds.
            Err(Error::NotMapped { .. }) => {
                guest.forget_fault();
                true
            }
            // The guest faults again, and gets the frame that is there then.
            Err(Error::Withdrawn { .. }) => {
                self.counts.withdrawn += 1;
                guest.forget_fault();
                true
            }
            Err(Error::NoTablePage { .. }) => false,
            Err(error) => self.cpu.report(format!("{fault:?} at {ipa}: {error}")),
        }
    }
}
