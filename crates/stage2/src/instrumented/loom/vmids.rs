// SPDX-License-Identifier: Apache-2.0 OR MIT
//! VMIDs that trees share: a flush finds the VMID of a guest that may hold what it removes, or the guest finds the removal; and
//! a flush without a VMID comes after the invalidation that took it.

use std::sync::Arc;

use super::machine::{Machine, Watch};
use super::model;
use crate::primitive::{self, Ordering, Word};
use crate::vmids::TreeVmid;
use crate::{Features, VmidSlot, Vmids};

struct Shared {
    machine: Machine,
    vmids: Vmids<'static>,
    trees: [TreeVmid; 2],
    /// An entry of the first tree: 0 is a mapping.
    entry: Word,
}

impl Shared {
    fn new(slots: usize) -> Arc<Self> {
        let slots = Vec::leak((0..slots).map(|_| VmidSlot::default()).collect());
        let vmids = Vmids::new(slots, &Features::NONE).expect("a slot");
        let machine = Machine::new(1, Watch::Flushes);
        Arc::new(Self { machine, vmids, trees: Default::default(), entry: Word::default() })
    }

    /// Runs the guest of a tree, which walks. Returns what it found.
    fn run(&self, tree: usize) -> u64 {
        let slot = self.vmids.use_or_give(&self.trees[tree], &self.machine).expect("a VMID");
        let found = self.entry.load(Ordering::Relaxed);
        self.vmids.release(slot, &self.machine);
        found
    }

    /// Removes the mapping, and returns whether a TLB has to be flushed.
    fn remove(&self) -> bool {
        self.entry.store(1, Ordering::Relaxed);
        primitive::full_fence();
        let slot = self.vmids.try_use(&self.trees[0], &self.machine);
        slot.into_iter().for_each(|slot| self.vmids.release(slot, &self.machine));
        slot.is_some()
    }

    fn flushes(&self) -> u64 {
        self.machine.0.flushes.as_ref().expect("flushes").load(Ordering::Relaxed)
    }
}

#[test]
fn a_flush_finds_the_vmid_or_the_guest_finds_the_change() {
    model(3, || {
        let shared = Shared::new(2);
        let [first, second] = [0; 2].map(|_| {
            let shared = shared.clone();
            loom::thread::spawn(move || shared.run(0))
        });
        let flushed = shared.remove();
        for found in [first, second].map(|guest| guest.join().expect("no panic")) {
            assert!(flushed || found == 1, "a TLB holds what was removed, and no VMID was flushed");
        }
    });
}

#[test]
fn a_flush_without_a_vmid_comes_after_the_invalidation_of_everything() {
    model(3, || {
        let shared = Shared::new(1);
        shared.run(0);
        let other = shared.clone();
        let other = loom::thread::spawn(move || other.run(1));
        if !shared.remove() {
            assert_eq!(shared.flushes(), 2, "the VMID went to the other guest, and everything was not invalidated yet");
        }
        other.join().expect("no panic");
    });
}

/// Two CPUs give a VMID each. They are different ones.
#[test]
fn two_gifts_are_two_vmids() {
    model(3, || {
        let shared = Shared::new(2);
        let other = shared.clone();
        let other = loom::thread::spawn(move || other.vmids.use_or_give(&other.trees[1], &other.machine));
        let here = shared.vmids.use_or_give(&shared.trees[0], &shared.machine).expect("a VMID");
        assert_ne!(other.join().expect("no panic").expect("a VMID"), here);
    });
}
