// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest on the machine: its memory, and a CPU that runs it. The CPU reads the tables by a walk of its own, and takes
//! the faults that follow.

use std::rc::Rc;

use twofold_memory::{Answer, Backing, Error, Frames, GuestFault, GuestMemory, Pages, Slot, SlotId};
use twofold_stage2::fault::{AccessKind, FaultKind};
use twofold_stage2::platform::{Domain, Tlbi};
use twofold_stage2::{Access, Execute, Features, Geometry, Ipa, Kib4, Pa, Vmid};

use super::platform::mmu::{Leaf, Scan};
use super::platform::tlb::Reach;
use super::platform::{Event, VMID};
use super::{HUGE_PAGE, Host, Machine, RAM};

/// The root is at level 1 and has two tables. A page takes two more.
pub const IPA_BITS: u32 = 40;

pub struct RunningGuest {
    pub machine: Rc<Machine>,
    pub memory: GuestMemory<Host>,
}

/// How an access of the guest ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It reaches this byte, after these answers.
    Reaches(Pa, Vec<Answer>),
    /// It gets an external abort.
    Aborts,
    /// It is skipped.
    Skipped,
}

impl RunningGuest {
    /// A guest with `huge_pages` times 2 MiB of memory.
    pub fn new(features: Features, pages: Pages, huge_pages: u64) -> Self {
        Self::with_ipa_bits(features, pages, huge_pages, IPA_BITS)
    }

    pub fn with_ipa_bits(features: Features, pages: Pages, huge_pages: u64, ipa_bits: u32) -> Self {
        let machine = Machine::new(features, &[(RAM, huge_pages * HUGE_PAGE)]);
        let mut frames = Frames::new(features);
        frames.add(machine.donate(RAM, huge_pages * HUGE_PAGE));
        Self::on(machine, frames, pages, ipa_bits)
    }

    pub fn on(machine: Rc<Machine>, frames: Frames, pages: Pages, ipa_bits: u32) -> Self {
        let geometry = Geometry::new(Kib4, ipa_bits, &machine.features).unwrap();
        let memory = GuestMemory::new(machine.platform(), geometry, Vmid::new(VMID), frames, pages).unwrap();
        machine.enter(memory.stage2().vttbr(), memory.stage2().vtcr());
        machine.events();
        Self { machine, memory }
    }

    pub fn add(&mut self, start: Ipa, size: u64, backing: Backing, writable: bool) -> SlotId {
        self.memory.add_slot(Slot { range: start..start + size, backing, writable }).unwrap()
    }

    pub fn add_ram(&mut self, start: Ipa, size: u64) {
        self.add(start, size, Backing::Ram, true);
    }

    pub fn fault(&mut self, ipa: Ipa, kind: FaultKind, access: AccessKind) -> Result<Answer, Error> {
        self.memory.fault(&GuestFault { ipa, kind, access })
    }

    /// The fault that a CPU with an empty TLB takes, or `None`.
    pub fn fault_of(&self, ipa: Ipa, access: AccessKind) -> Option<FaultKind> {
        let Some(leaf) = self.walk(ipa) else { return Some(FaultKind::Translation) };
        if !leaf.accessed() && !self.machine.features.hardware_access_flag {
            return Some(FaultKind::AccessFlag);
        }
        (!leaf.access().covers(needed(access))).then_some(FaultKind::Permission)
    }

    /// Does the guest's access, with all faults that it takes. Panics if they do not end.
    pub fn touch(&mut self, ipa: Ipa, access: AccessKind) -> Result<Outcome, Error> {
        let mut answers = Vec::new();
        while let Some(kind) = self.fault_of(ipa, access) {
            assert!(answers.len() < 2, "{access:?} at {ipa} makes no progress: {answers:?}, then {kind:?}");
            match self.fault(ipa, kind, access)? {
                Answer::ExternalAbort => return Ok(Outcome::Aborts),
                Answer::Skip => return Ok(Outcome::Skipped),
                answer => answers.push(answer),
            }
        }
        Ok(Outcome::Reaches(self.walk(ipa).unwrap().output(ipa), answers))
    }

    /// The byte that the access reaches. Panics if it reaches none.
    pub fn reach(&mut self, ipa: Ipa, access: AccessKind) -> Pa {
        match self.touch(ipa, access) {
            Ok(Outcome::Reaches(pa, _)) => pa,
            other => panic!("{access:?} at {ipa}: {other:?}"),
        }
    }

    /// The leaf that a walk for `ipa` finds.
    pub fn walk(&self, ipa: Ipa) -> Option<Leaf> {
        if ipa >= self.memory.stage2().geometry().end() {
            return None;
        }
        self.machine.mmu().translate(&|pa| self.machine.read(pa), ipa).ok()
    }

    /// All leaves and tables.
    pub fn scan(&self) -> Scan {
        self.machine.mmu().scan(&|pa| self.machine.read(pa))
    }

    /// The address of the root table.
    pub fn root(&self) -> Pa {
        Pa::new(self.memory.stage2().vttbr() & 0xffff_ffff_f000)
    }

    pub fn level(&self, ipa: Ipa) -> Option<u8> {
        self.walk(ipa).map(|leaf| leaf.level)
    }

    pub fn access(&self, ipa: Ipa) -> Option<Access> {
        self.walk(ipa).map(|leaf| leaf.access())
    }
}

pub fn needed(access: AccessKind) -> Access {
    match access {
        AccessKind::Read | AccessKind::Maintenance => Access::READ,
        AccessKind::Write => Access { write: true, ..Access::NONE },
        AccessKind::Execute => Access { execute: Execute::ALWAYS, ..Access::NONE },
    }
}

/// The invalidation of this CPU's entries for the leaf at `ipa`, combined ones included.
pub fn local_invalidation(ipa: Ipa) -> [Event; 6] {
    local_invalidation_at(ipa, None)
}

/// The same with a level hint.
pub fn local_invalidation_at(ipa: Ipa, hint: Option<u8>) -> [Event; 6] {
    [
        Event::Dsb(Domain::NshSt),
        Event::Tlbi(Tlbi::Ipas2E1, Reach::At(ipa, hint)),
        Event::Dsb(Domain::Nsh),
        Event::Tlbi(Tlbi::VmallE1, Reach::Vmid),
        Event::Dsb(Domain::Nsh),
        Event::Isb,
    ]
}
