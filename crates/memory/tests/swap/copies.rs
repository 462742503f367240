// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A page that came back keeps its copy in the store until it may be written. A page with a good copy is not written
//! again, and one whose copy is out of date always is.

use twofold_memory::dirty::Tracker;
use twofold_memory::swap::{PinnedFor, WrittenOut};
use twofold_stage2::fault::{AccessKind, FaultKind};

use twofold_memory::{Answer, GuestFault};

use crate::rig::{Rig, ipa};

/// A rig with page 1 in memory and a copy of it in the store. It has been written once.
fn with_copy() -> Rig {
    let rig = Rig::new();
    (0..4).for_each(|page| rig.write(page));
    rig.leave(1);
    rig.bring(1, 1);
    assert_eq!((rig.store.written(), rig.store.live()), (1, 1));
    rig
}

/// Checks that the page's copy was given up, and that the page is written when it leaves.
fn has_no_copy(rig: Rig, what: &str) {
    assert_eq!(rig.write_out(1), Ok(WrittenOut::Started), "{what}");
    assert_eq!(rig.store.live(), 1, "{what}: the old place is discarded");
    rig.end();
}

#[test]
fn a_page_that_was_only_read_is_not_written_again() {
    let rig = with_copy();
    rig.read(1);
    assert!(!rig.walk(1).unwrap().access().write, "its first write has to fault");
    let _ = rig.access(1, AccessKind::Execute).unwrap();
    rig.try_device_read(1).unwrap();
    assert_eq!(rig.write_out(1), Ok(WrittenOut::Freed));
    assert_eq!((rig.store.written(), rig.store.live()), (1, 1));
    rig.check();
    rig.bring(1, 1);
    rig.read(1);
    rig.end();
}

#[test]
fn a_write_of_the_guest_ends_the_copy() {
    let rig = with_copy();
    rig.write(1);
    assert!(rig.store.get().live.is_empty(), "the place is free at once");
    has_no_copy(rig, "mapped for a write");
    let rig = with_copy();
    rig.read(1);
    rig.write(1);
    has_no_copy(rig, "mapped for a read, then written");
}

/// The page leaves with a leaf that a log has made read-only after a write.
#[test]
fn a_write_before_a_log_ends_the_copy() {
    for tracker in Tracker::ALL {
        let rig = with_copy();
        rig.read(1);
        rig.write(1);
        rig.start_log(tracker);
        assert!(!rig.walk(1).unwrap().access().write, "{tracker:?}");
        has_no_copy(rig, tracker.name());
    }
}

/// Each write to the page would have ended it by a fault.
#[test]
fn a_log_without_dbm_leaves_the_copy() {
    for tracker in [Tracker::WriteProtect, Tracker::Manual] {
        let rig = with_copy();
        rig.start_log(tracker);
        rig.stop_log();
        assert_eq!(rig.write_out(1), Ok(WrittenOut::Freed), "{tracker:?}");
        assert_eq!((rig.store.written(), rig.store.live()), (1, 1));
        rig.end();
    }
}

/// With each tracker: a write during the log, that a clear has made clean again.
#[test]
fn a_write_during_a_log_ends_the_copy() {
    for tracker in Tracker::ALL {
        for is_mapped in [false, true] {
            let rig = with_copy();
            if is_mapped {
                rig.read(1);
            }
            rig.start_log(tracker);
            rig.write(1);
            assert_eq!(rig.take_dirty(tracker), [1], "{tracker:?}");
            assert!(!rig.walk(1).unwrap().access().write, "{tracker:?}");
            has_no_copy(rig, tracker.name());
        }
    }
}

/// The log has come and gone since the page arrived: what hardware recorded is nowhere any more.
#[test]
fn a_write_during_a_log_that_has_stopped_ends_the_copy() {
    for tracker in Tracker::ALL {
        let rig = with_copy();
        rig.read(1);
        rig.start_log(tracker);
        rig.write(1);
        assert_eq!(rig.take_dirty(tracker), [1], "{tracker:?}");
        rig.stop_log();
        rig.start_log(Tracker::WriteProtect);
        rig.stop_log();
        has_no_copy(rig, tracker.name());
    }
}

/// A page that arrives while a hardware-tracked log runs may be written without a fault.
#[test]
fn no_copy_is_kept_while_hardware_records() {
    for tracker in Tracker::ALL {
        let rig = with_copy();
        assert_eq!(rig.write_out(1), Ok(WrittenOut::Freed));
        rig.start_log(tracker);
        rig.bring(1, 1);
        let kept = usize::from(!tracker.needs_dirty_state());
        assert_eq!(rig.store.live(), kept, "{tracker:?}");
        rig.read(1);
        rig.write(1);
        assert_eq!(rig.take_dirty(tracker), [1], "{tracker:?}");
        has_no_copy(rig, tracker.name());
    }
}

/// A page that is needed while it is written: where no copy is kept, its place is not needed any more.
#[test]
fn a_page_that_is_needed_again_gives_its_place_back() {
    for tracker in Tracker::ALL {
        let rig = Rig::new();
        rig.write(1);
        rig.start_log(tracker);
        rig.store.get().waits = true;
        assert_eq!(rig.write_out(1), Ok(WrittenOut::Started));
        rig.bring(1, 1);
        rig.store.finish_write(&*rig.memory, 0, Ok(()));
        assert_eq!(rig.store.live(), usize::from(!tracker.needs_dirty_state()), "{tracker:?}");
        rig.end();
    }
}

/// What hardware recorded is in the log when the page has left, whatever the tracker.
#[test]
fn what_was_written_is_in_the_log_when_the_page_has_left() {
    for tracker in Tracker::ALL {
        let rig = with_copy();
        rig.start_log(tracker);
        rig.write(1);
        rig.write(2);
        assert_eq!(rig.take_dirty(tracker), [1, 2], "{tracker:?}");
        rig.write(2);
        let _ = rig.access(3, AccessKind::Read).unwrap();
        for page in 1..4 {
            rig.leave(page);
        }
        assert_eq!(rig.take_dirty(tracker), [2], "{tracker:?}");
        rig.end();
    }
}

#[test]
fn a_write_of_a_device_ends_the_copy() {
    let rig = with_copy();
    rig.try_device_write(1).unwrap();
    has_no_copy(rig, "write");
    let rig = with_copy();
    let pinned = rig.memory.pin(ipa(1)..ipa(2), PinnedFor::Writing).unwrap();
    rig.memory.unpin(pinned);
    has_no_copy(rig, "pin for writing");
    let rig = with_copy();
    let pinned = rig.memory.pin(ipa(1)..ipa(2), PinnedFor::Reading).unwrap();
    rig.memory.unpin(pinned);
    assert_eq!(rig.write_out(1), Ok(WrittenOut::Freed), "pinned for reading");
    rig.end();
}

/// `DC IVAC` destroys what is in the cache only.
#[test]
fn cache_maintenance_that_needs_write_permission_ends_the_copy() {
    let rig = with_copy();
    rig.read(1);
    let fault = GuestFault { ipa: ipa(1), kind: FaultKind::Permission, access: AccessKind::Maintenance };
    assert!(matches!(rig.memory.fault(&fault), Ok(Answer::Retry(_))));
    has_no_copy(rig, "maintenance");
}

/// A page that is needed again while it is written keeps the copy that was written.
#[test]
fn a_page_that_is_rescued_has_a_copy() {
    let rig = Rig::new();
    rig.write(1);
    rig.store.get().waits = true;
    assert_eq!(rig.write_out(1), Ok(WrittenOut::Started));
    rig.bring(1, 1);
    rig.store.finish_write(&*rig.memory, 0, Ok(()));
    assert_eq!(rig.reports.arrived().len(), 1);
    rig.read(1);
    assert_eq!(rig.write_out(1), Ok(WrittenOut::Freed));
    rig.end();
}

/// A page that has become zero gives its place back.
#[test]
fn a_page_that_became_zero_needs_no_copy() {
    let rig = with_copy();
    rig.write_zero(1);
    assert_eq!(rig.write_out(1), Ok(WrittenOut::Freed));
    assert!(rig.store.get().live.is_empty());
    rig.end();
}

/// An unmap takes what hardware recorded into the log, and the page leaves after that.
#[test]
fn an_unmap_hides_no_write() {
    for tracker in Tracker::ALL {
        let rig = with_copy();
        rig.read(1);
        rig.start_log(tracker);
        rig.write(1);
        rig.memory.unmap(rig.slot, ipa(0)..ipa(4)).unwrap();
        rig.stop_log();
        has_no_copy(rig, tracker.name());
    }
}
