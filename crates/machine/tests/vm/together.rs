// SPDX-License-Identifier: Apache-2.0 OR MIT
//! vCPUs that touch pages at the same time, in either mode. Each page is zeroed once, whichever vCPU zeroes or maps it.
//! Each vCPU reads what all have written, and no frame is lost.

use std::sync::atomic::{AtomicU64, Ordering};

use twofold_machine::vm::{Vcpu, Vm};
use twofold_memory::{Counts, Frames, GuestMemory, Pages};
use twofold_stage2::{Ipa, IpaRange, Platform, Unwatched};

use super::programs::{Op, PAGE, Script, WorkingSet};
use super::scenarios::{MIB_2, RAM};

pub const VCPUS: u64 = 4;
/// The number of pages that all vCPUs touch. Each vCPU also has that number of its own.
const SHARED: u64 = 64;
/// Half of the shared pages are in one huge page, half in the next.
const START: u64 = RAM.raw() + MIB_2 - SHARED / 2 * PAGE;
/// The shared huge pages, and one for each vCPU.
const HUGE_PAGES: u64 = 2 + VCPUS;

/// The address at which a vCPU writes in a shared page.
fn shared(page: u64, vcpu: u64) -> u64 {
    START + page * PAGE + vcpu * 8
}

/// The address at which a vCPU writes in one of its own pages.
fn own(page: u64, vcpu: u64) -> u64 {
    RAM.raw() + (2 + vcpu) * MIB_2 + page * PAGE
}

/// Touches a shared page and one of its own, repeatedly, each time after all have met. Then checks what all have
/// written.
pub fn program(vcpu: u64) -> Script {
    let value = |page, vcpu| page << 8 | (vcpu + 1);
    let meet = |number| Op::Call([number; 4], 0);
    let touch = |page| {
        let word = value(page, vcpu);
        [meet(page), Op::Store(shared(page, vcpu), word), Op::Store(own(page, vcpu), word)]
    };
    let find = |page| {
        let all = (0..VCPUS).map(move |vcpu| Op::Load(shared(page, vcpu), value(page, vcpu)));
        all.chain([Op::Load(shared(page, VCPUS), 0), Op::Load(own(page, vcpu), value(page, vcpu))])
    };
    let mut operations: Vec<_> = (0..SHARED).flat_map(touch).collect();
    operations.push(meet(SHARED));
    operations.extend((0..SHARED).flat_map(find));
    Script::new(&operations)
}

/// A barrier of the vCPUs, implemented by the hypervisor's answers to their calls.
#[derive(Default)]
pub struct Meetings(AtomicU64);

impl Meetings {
    /// A vCPU arrives at the meeting of this number, and leaves when all have arrived.
    pub fn meet(&self, number: u64, platform: &impl Platform) {
        self.0.fetch_add(1, Ordering::Relaxed);
        while self.0.load(Ordering::Relaxed) < (number + 1) * VCPUS {
            platform.pause(1);
        }
    }
}

/// The figures before the programs run.
pub struct Before {
    free: u64,
    counts: Counts,
}

impl Before {
    pub fn new<H: Platform>(memory: &GuestMemory<H>) -> Self {
        Self { counts: memory.counts(), free: memory.frames().free() }
    }

    /// Checks that each frame was zeroed once and each leaf mapped once, and that every other frame is free, RAM or a
    /// table.
    pub fn check<H: Platform>(&self, memory: &GuestMemory<H>, pages: Pages) {
        let counts = memory.counts();
        let touched = SHARED * (1 + VCPUS);
        let (mapped, zeroed, tables) = match pages {
            Pages::Small => ([0, 0, 0, touched], touched, 1 + HUGE_PAGES),
            Pages::Largest => ([0, 0, HUGE_PAGES, 0], HUGE_PAGES * MIB_2 / PAGE, 1),
        };
        assert_eq!((counts.mapped, counts.frames_zeroed), (mapped, zeroed));
        // The vCPU that zeroes a page need not be the one that maps it.
        assert!(counts.first_touches.iter().sum::<u64>() <= mapped.iter().sum());
        assert_eq!(counts.tables_allocated - counts.tables_freed, self.counts.tables_allocated + tables);
        assert_eq!(memory.frames().free() + HUGE_PAGES * MIB_2 / PAGE + tables, self.free, "frames are lost");
    }

    /// The same check after everything is unmapped.
    pub fn check_destroyed(&self, frames: &Frames) {
        assert_eq!(frames.free(), self.free + self.counts.tables_allocated, "frames are lost");
    }
}

/// The range that [`unmap`] takes from a [`working_set`], repeatedly.
const WORKING_SET: IpaRange = RAM..Ipa::new(RAM.raw() + 2 * MIB_2);
/// Pages of a working set, in both huge pages.
const TOUCHED: u64 = 61;

/// A program on pages that are unmapped repeatedly.
pub fn working_set(vcpu: u64) -> WorkingSet {
    WorkingSet::new(START, TOUCHED, 3, (vcpu, VCPUS))
}

/// The number of frames that it needs.
pub fn zeroed(pages: Pages) -> u64 {
    if pages == Pages::Small { TOUCHED } else { (WORKING_SET.end - WORKING_SET.start) / PAGE }
}

/// Unmaps a working set while its vCPUs run. The vCPUs get the same content back.
pub fn unmap<H: Platform>(vm: &Vm<H>) {
    let (stage2, mut tables) = (vm.memory().stage2(), vm.memory().tables());
    stage2.unmap(WORKING_SET, &mut tables, Unwatched).unwrap().complete().free(&mut tables);
}

/// A program that checks the last word that each vCPU wrote.
pub fn check(vcpus: &[Vcpu<WorkingSet>]) -> Script {
    let words = |set: &WorkingSet| {
        let (vcpu, last) = (set.vcpu, set.rounds - 1);
        let word = |page| Op::Load(set.word(page, vcpu), WorkingSet::value(vcpu, page, last));
        (0..TOUCHED).map(word).collect::<Vec<_>>()
    };
    Script::new(&vcpus.iter().flat_map(|vcpu| words(vcpu.program())).collect::<Vec<_>>())
}
