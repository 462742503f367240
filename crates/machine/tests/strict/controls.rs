// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Dirty logs with a known defect: a platform leaves out invalidations that a log relies on, and the machine reports
//! that. The same defects, and others that break no rule of the machine, lose pages in the oracle (`cargo xtask oracle
//! --controls`).

use std::ptr::NonNull;

use twofold_machine::arena::{ArenaOptions, Backing};
use twofold_machine::program::{Exit, Instructions};
use twofold_machine::strict::{Bbm, Breach, CpuHandle, Hosted, Machine, Options, Rule, Withdrawn};
use twofold_machine::vm::Vm;
use twofold_memory::dirty::{DirtyPages, LogOptions, Tracker};
use twofold_memory::{Frames, GuestFault, GuestMemory, Pages, Slot};
use twofold_stage2::fault::{Fault, ipa_from_hpfar};
use twofold_stage2::platform::{Dc, Domain, Ic, Tlbi};
use twofold_stage2::{Features, Geometry, Ipa, Kib4, Pa, Platform, TableMetadata, Vmid};

use crate::world::{MIB_2, MODERN, PAGE, PLAIN};

const RAM: Ipa = Ipa::new(0x4000_0000);
/// The number of pages that are written and cleared. After that, no write to them may go unrecorded.
const WRITTEN: u64 = 8;

#[test]
fn a_whole_flush_is_allowed() {
    for tracker in Tracker::ALL {
        clear_on_each_machine(
            tracker,
            |_| false,
            |ended| ended.unwrap_or_else(|breach| panic!("{tracker:?}: {breach}")),
        );
    }
}

#[test]
fn no_flush_is_reported() {
    for tracker in Tracker::ALL {
        clear_on_each_machine(tracker, reaches_all, |ended| is_reported(tracker, ended));
    }
}

#[test]
fn a_flush_of_stage_2_alone_is_reported() {
    for tracker in Tracker::ALL {
        let combined = |operation| operation == Tlbi::VmallE1Is;
        clear_on_each_machine(tracker, combined, |ended| is_reported(tracker, ended));
    }
}

/// Whether the invalidation is for all CPUs.
fn reaches_all(operation: Tlbi) -> bool {
    !matches!(operation, Tlbi::Ipas2E1 | Tlbi::VmallE1)
}

fn is_reported(tracker: Tracker, ended: Result<(), Breach>) {
    match ended {
        Ok(()) => panic!("{tracker:?}: no breach is reported"),
        Err(breach) => assert_eq!(breach.rule, Rule::StillCached, "{tracker:?}: {breach}"),
    }
}

/// A guest writes to pages, whose log is read and cleared: on CPUs with all features, and on CPUs with few.
fn clear_on_each_machine(tracker: Tracker, without: fn(Tlbi) -> bool, check: impl Fn(Result<(), Breach>)) {
    for features in [MODERN, PLAIN] {
        let memory = ArenaOptions::new(4 * MIB_2, Backing::Anonymous);
        let bbm = Bbm::default();
        let options = Options { cpus: 2, seed: 1, events_between_switches: 24, features, bbm, memory, trace: None };
        let machine = Machine::new(options).unwrap_or_else(|error| panic!("{error}"));
        check(machine.alone(|cpu| clear(&machine, cpu, (features, tracker), without)));
    }
}

fn clear(machine: &Machine, cpu: &CpuHandle, (features, tracker): (Features, Tracker), without: fn(Tlbi) -> bool) {
    let mut frames = Frames::new(features);
    frames.add(machine.arena().donate());
    let geometry = Geometry::new(Kib4, 40, &features).unwrap();
    let platform = Without { hosted: machine.platform(), without };
    let mut memory = GuestMemory::new(platform, geometry, Vmid::new(1), frames, Pages::Small).unwrap();
    let backing = twofold_memory::Backing::Ram;
    let slot = memory.add_slot(Slot { range: RAM..RAM + MIB_2, backing, writable: true }).unwrap();
    let written = RAM..RAM + WRITTEN * PAGE;

    write(&memory, cpu);
    let log = memory.dirty_log(slot).unwrap();
    // All pages are in the log, and none is protected: only the clear withdraws write access.
    let all_dirty = tracker != Tracker::WriteProtect;
    log.start(&LogOptions { all_dirty, ..LogOptions::new(tracker) }).unwrap();
    write(&memory, cpu);
    let mut dirty = DirtyPages::new();
    log.get(&mut dirty).unwrap();
    if tracker != Tracker::WriteProtect {
        log.clear_these(&dirty).unwrap();
    }
    cpu.expect_flushed(memory.stage2().vttbr(), &written, &cpu.knowledge(), Withdrawn::Writes);
    assert!((0..WRITTEN).all(|page| dirty.contains(page)));

    log.stop().unwrap();
    cpu.load(0);
    Vm::new(memory).destroy();
}

/// The guest writes to each page, and its faults are handled.
fn write(memory: &GuestMemory<Without>, cpu: &CpuHandle) {
    let mut guest = cpu.enter(memory.stage2().vttbr(), memory.stage2().vtcr(), 0);
    for page in 0..WRITTEN {
        while let Err(exit) = guest.store((RAM + page * PAGE).raw(), page) {
            let Exit::Abort(abort) = exit else { panic!("{exit:?}") };
            let fault = Fault::from_syndrome(abort.esr).unwrap();
            // The guest's stage 1 is off, so the IPA is the address of the store, even if HPFAR is not valid.
            let ipa = if fault.hpfar_is_valid() { ipa_from_hpfar(abort.hpfar) } else { RAM + page * PAGE };
            let _ = memory.fault(&GuestFault { ipa, kind: fault.kind, access: fault.access }).unwrap();
        }
    }
}

/// The machine's platform, without some invalidations.
#[derive(Clone)]
struct Without {
    hosted: Hosted,
    without: fn(Tlbi) -> bool,
}

// SAFETY: memory and metadata are the machine's. The machine has to report the missing invalidations.
unsafe impl Platform for Without {
    fn tlbi(&self, operation: Tlbi, operand: u64) {
        if !(self.without)(operation) {
            self.hosted.tlbi(operation, operand);
        }
    }

    fn dsb(&self, domain: Domain) {
        self.hosted.dsb(domain);
    }

    fn isb(&self) {
        self.hosted.isb();
    }

    unsafe fn dc(&self, operation: Dc, address: usize) {
        // SAFETY: the caller promises it.
        unsafe { self.hosted.dc(operation, address) };
    }

    unsafe fn dc_lines(&self, operation: Dc, start: usize, size: u64, line: u64) {
        // SAFETY: the caller promises it.
        unsafe { self.hosted.dc_lines(operation, start, size, line) };
    }

    fn ic(&self, operation: Ic, address: usize) {
        self.hosted.ic(operation, address);
    }

    fn vttbr(&self) -> u64 {
        self.hosted.vttbr()
    }

    fn load_vttbr(&self, value: u64) {
        self.hosted.load_vttbr(value);
    }

    fn pointer(&self, pa: Pa) -> NonNull<u8> {
        self.hosted.pointer(pa)
    }

    fn metadata(&self, pa: Pa) -> &TableMetadata {
        self.hosted.metadata(pa)
    }

    fn pause(&self, yields: u32) {
        self.hosted.pause(yields);
    }

    fn abandoned(&self, root: Pa) {
        self.hosted.abandoned(root);
    }
}
