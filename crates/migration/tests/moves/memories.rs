// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's memory as a migration uses it: its logs, its pages, and pages that wait for frames.

use twofold_memory::dirty::{LogError, LogOptions, Tracker};
use twofold_memory::swap::Located;
use twofold_migration::ram::{GuestRam, PageRead, PageWrite, Queued, RamError, SourceRam, TargetRam};
use twofold_migration::stream::Slot;
use twofold_stage2::Ipa;

use crate::guest::{Guest, PAGE, Swap, places};
use crate::store::Store;

/// Two memslots that the guest can write to, and one that it cannot.
fn slots() -> [Slot; 3] {
    let slot = |number, read_only, first, pages| Slot { number, read_only, first, pages };
    [slot(5, false, 0x1_0000, 70), slot(6, false, 0x2_0000, 5), slot(7, true, 0x3_0000, 3)]
}

fn read(ram: &impl SourceRam, slot: usize, page: u64) -> Vec<u8> {
    let mut bytes = vec![0xee; 4096];
    assert!(matches!(ram.read(slot, page, &mut bytes), Ok(PageRead::Done)));
    bytes
}

/// Whether the logs of the first two memslots run.
fn logs(guest: &Guest) -> [bool; 2] {
    [0, 1].map(|slot| guest.vm.memory().dirty_log(guest.ids[slot].0).unwrap().tracker().is_some())
}

#[test]
fn the_logs_of_all_memslots_run_or_none() {
    let [mut here, _] = places();
    let guest = here.make(&slots()).unwrap();
    let ram = guest.ram(Tracker::Manual);
    assert_eq!((ram.start(true), logs(&guest)), (Ok(()), [true, true]));
    ram.stop();
    assert_eq!(logs(&guest), [false, false]);
    let second = guest.vm.memory().dirty_log(guest.ids[1].0).unwrap();
    second.start(&LogOptions::new(Tracker::Manual)).unwrap();
    let refused = ram.start(true);
    assert!(matches!(refused, Err(RamError::Log { slot: 6, error: LogError::Running { .. } })), "{refused:?}");
    assert_eq!(logs(&guest), [false, true], "the other log is not the migration's");
}

#[test]
fn memslots_and_pages_that_are_not_there_are_named() {
    let [mut here, _] = places();
    let guest = here.make(&slots()).unwrap();
    let ram = guest.ram(Tracker::Manual);
    for (slot, page) in [(0, 70), (1, 5), (2, 3), (3, 0)] {
        let no_page = RamError::NoPage { slot, page };
        assert_eq!(ram.read(slot, page, &mut [0; 4096]).map(|_| ()), Err(no_page.clone()));
        assert_eq!(TargetRam::write(&ram, slot, page, None).map(|_| ()), Err(no_page));
    }
    assert_eq!(ram.get(3, &mut []), Err(RamError::NoPage { slot: 3, page: 0 }));
    let mut ids = guest.ids.clone();
    ids[1].1.pages = 6;
    let other = GuestRam::new(guest.vm.memory(), LogOptions::new(Tracker::Manual), &ids).map(|_| ());
    assert_eq!(other, Err(RamError::Pages { slot: 6, wanted: 6, here: 5 }));
}

/// Whatever its bytes are, and wherever the only one is that is not zero.
#[test]
fn a_page_is_zero_after_zeroes_have_come() {
    let [mut here, _] = places();
    let guest = here.make(&slots()).unwrap();
    let ram = guest.ram(Tracker::Manual);
    let one = |at: usize| (0..4096).map(|byte| u8::from(byte == at)).collect::<Vec<_>>();
    for bytes in [vec![1; 4096], vec![0; 4096], one(0), one(511), one(512), one(4095)] {
        assert!(matches!(ram.write(0, 69, Some(&bytes)), Ok(PageWrite::Done)));
        assert_eq!(read(&ram, 0, 69), bytes);
        assert!(matches!(ram.write(0, 69, None), Ok(PageWrite::Done)));
        assert_eq!(read(&ram, 0, 69), [0; 4096]);
    }
}

#[test]
fn a_page_that_finds_no_frame_is_written_when_one_is_free() {
    let [mut here, _] = places();
    let store = Store::new(0, 1);
    here.swap = Some(Swap::with(&store, Some(32)));
    let guest = here.make(&slots()).unwrap();
    let ram = guest.ram(Tracker::Manual);
    let mut queued = None;
    for page in 0..33 {
        match ram.write(0, page, Some(&[1 + page as u8; 4096])).unwrap() {
            PageWrite::Done => assert!(page < 32, "there is no frame for page {page}"),
            PageWrite::Later(later) => assert!(page == 32 && queued.replace(later).is_none(), "page {page} waits"),
        }
    }
    let mut queued = queued.unwrap();
    assert_eq!(queued.look(Some(&[33; 4096])), Ok(false));
    guest.finish();
    assert_eq!(queued.look(Some(&[33; 4096])), Ok(true));
    drop(queued);
    assert_eq!(read(&ram, 0, 32), [33; 4096]);
    // A page in the store needs no read, if there is a frame.
    guest.vm.memory().set_limit(64).unwrap();
    let is_away = |page: &u64| {
        let page = Ipa::new((slots()[0].first + page) * PAGE);
        matches!(guest.vm.memory().locate(page), Ok(Located::Absent(_)))
    };
    let away = (0..32).find(is_away).unwrap();
    assert!(matches!(ram.write(0, away, Some(&[9; 4096])), Ok(PageWrite::Done)));
    assert_eq!(read(&ram, 0, away), [9; 4096]);
}
