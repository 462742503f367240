// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The locks of a guest's memory: a CPU that asks for a held lock waits.
//!
//! One thread stops inside the lock, and another asks for it. The other one pauses, or it ends. Both are events, so
//! neither a clock nor the number of CPUs affects the result.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use twofold_machine::fast::FastPlatform;
use twofold_machine::interrupts::Interrupts;
use twofold_memory::{GuestFault, GuestMemory, Pages};
use twofold_stage2::fault::{AccessKind, FaultKind};
use twofold_stage2::platform::{Dc, Domain, Ic, Tlbi};
use twofold_stage2::{Pa, Platform, TableMetadata, TableSource};

use crate::programs::PAGE;
use crate::scenarios::{MIB_2, RAM, Room};
use crate::{FEATURES, machine};

type Memory = GuestMemory<Meets>;
/// An operation of a thread on the memory of a guest.
type Work = fn(&Memory, &Meeting);

/// The state of the two threads.
#[derive(Default)]
struct Meeting(AtomicU32);

impl Meeting {
    /// The first thread for which the engine asks for an address stops there.
    const TRACKED: u32 = 1;
    /// The first thread is inside the lock.
    const INSIDE: u32 = 2;
    /// The other thread paused.
    const WAITED: u32 = 3;
    /// The other thread ended without a pause.
    const ENDED: u32 = 4;

    fn moves(&self, from: u32, to: u32) -> bool {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn is(&self, state: u32) -> bool {
        self.0.load(Ordering::Acquire) == state
    }

    /// Stops a thread inside the lock until the other thread pauses or ends.
    fn stop(&self) {
        if self.moves(Self::TRACKED, Self::INSIDE) {
            while self.is(Self::INSIDE) {
                thread::yield_now();
            }
        }
    }
}

/// A platform that stops where the engine asks for an address, and notes a pause.
#[derive(Clone)]
struct Meets(FastPlatform, Arc<Meeting>);

// SAFETY: the inner platform does everything.
unsafe impl Platform for Meets {
    fn tlbi(&self, operation: Tlbi, operand: u64) {
        self.0.tlbi(operation, operand);
    }

    fn dsb(&self, domain: Domain) {
        self.0.dsb(domain);
    }

    fn isb(&self) {
        self.0.isb();
    }

    unsafe fn dc(&self, operation: Dc, address: usize) {
        // SAFETY: the caller promises it.
        unsafe { self.0.dc(operation, address) };
    }

    fn ic(&self, operation: Ic, address: usize) {
        self.0.ic(operation, address);
    }

    fn vttbr(&self) -> u64 {
        self.0.vttbr()
    }

    fn load_vttbr(&self, value: u64) {
        self.0.load_vttbr(value);
    }

    fn pointer(&self, pa: Pa) -> NonNull<u8> {
        self.1.stop();
        self.0.pointer(pa)
    }

    fn metadata(&self, pa: Pa) -> &TableMetadata {
        self.0.metadata(pa)
    }

    fn abandoned(&self, root: Pa) {
        self.0.abandoned(root);
    }

    fn pause(&self, yields: u32) {
        self.1.moves(Meeting::INSIDE, Meeting::WAITED);
        self.0.pause(yields);
    }
}

/// Whether `other` waits while `holder` is inside its lock.
fn waits(holder: Work, other: Work) -> bool {
    let machine = machine(1, 1);
    let meeting = Arc::new(Meeting::default());
    let platform = Meets(FastPlatform(Arc::clone(&machine)), Arc::clone(&meeting));
    let room = Room { arena: machine.arena(), platform, features: FEATURES, interrupts: Interrupts::new };
    let memory = room.memory(0, 1, Pages::Small);
    // The page has its frame, and is not mapped.
    memory.write(RAM, &[1; PAGE as usize]).unwrap();
    assert!(meeting.moves(0, Meeting::TRACKED));
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            holder(&memory, &meeting);
            assert!(!meeting.is(Meeting::TRACKED), "the thread was never inside the lock");
        });
        while meeting.is(Meeting::TRACKED) && !first.is_finished() {
            thread::yield_now();
        }
        other(&memory, &meeting);
        !meeting.moves(Meeting::INSIDE, Meeting::ENDED) && meeting.is(Meeting::WAITED)
    })
}

const WRITE: Work = |memory, _| memory.write(RAM, &[2; PAGE as usize]).unwrap();
const READ: Work = |memory, _| memory.read(RAM, &mut [0; PAGE as usize]).unwrap();
const FAULT: Work = |memory, _| {
    let (kind, access) = (FaultKind::Translation, AccessKind::Read);
    let _ = memory.fault(&GuestFault { ipa: RAM + PAGE, kind, access }).unwrap();
};
const HOLD_FRAMES: Work = |memory, meeting| {
    let _frames = memory.frames();
    meeting.stop();
};

#[test]
fn pages_that_ram_took_are_one_cpu_s_at_a_time() {
    for (holder, other) in [(WRITE, READ), (READ, WRITE), (WRITE, WRITE), (READ, READ), (WRITE, FAULT), (FAULT, READ)] {
        assert!(waits(holder, other));
    }
}

#[test]
fn frames_are_one_cpu_s_at_a_time() {
    assert!(waits(HOLD_FRAMES, HOLD_FRAMES));
    assert!(waits(HOLD_FRAMES, |memory, _| memory.tables().take().map_or((), |page| memory.tables().give(page))));
    // A huge page without frames takes some.
    assert!(waits(HOLD_FRAMES, |memory, _| memory.write(RAM + MIB_2, &[1]).unwrap()));
}

/// A page that has its frame needs no other.
#[test]
fn a_write_to_a_page_that_has_its_frame_does_not_wait_for_frames() {
    assert!(!waits(HOLD_FRAMES, WRITE));
}
