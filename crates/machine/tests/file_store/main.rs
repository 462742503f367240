// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A page store in a file: pages come back as they left, clusters save calls, and a file that is full, short, damaged
//! or failing is reported with its figures while the guest goes on.

mod vcpus;
mod world;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use twofold_machine::file_store::{FileStore, FileStoreError, FileStoreOptions};
use twofold_memory::swap::{Located, Operation, StoreError, WriteOutError};

use world::{Failed, PAGE, Random, Watched, World, content, ipa};

const EBADF: i32 = 9;
const ENOSPC: i32 = 28;

fn file() -> File {
    tempfile::tempfile().unwrap()
}

#[test]
fn the_sizes_are_those_that_were_measured_to_be_best() {
    let gather = Duration::from_micros(100);
    let best = FileStoreOptions { pages: 7, cluster: 16, read_ahead: 16, gather, compress: false };
    assert_eq!(FileStoreOptions::new(7), best);
}

/// A guest in an eighth of its memory reads and writes pages, sequentially and at random.
#[test]
fn pages_come_back_as_they_left() {
    const PAGES: u64 = 512;
    for (cluster, read_ahead, compress, threads) in [(1, 1, false, 1), (16, 16, false, 2), (8, 4, true, 1)] {
        let options = FileStoreOptions { cluster, read_ahead, compress, ..FileStoreOptions::new(PAGES) };
        let world = World::new(PAGES, file(), &options);
        let mut random = Random(cluster as u64);
        let mut values = vec![0; PAGES as usize];
        world.run(threads, || {
            world.memory.set_limit(PAGES / 8).unwrap();
            for step in 1..4000 {
                // Half of the accesses are sequential.
                let page = if step / 500 % 2 == 0 { step % PAGES } else { random.below(PAGES) };
                if step < PAGES || random.below(3) == 0 {
                    world.write(page, step).unwrap();
                    values[page as usize] = step;
                } else if values[page as usize] > 0 {
                    world.check(page, values[page as usize]);
                }
                world.make_room();
            }
            let pages = (0..PAGES).zip(&values).filter(|(_, value)| **value > 0);
            pages.for_each(|(page, value)| world.check(page, *value));
        });
        let counts = world.store.counts();
        println!("{cluster} pages a cluster, {read_ahead} read at once, compressed: {compress}: {counts:?}");
        assert_eq!((world.take_failures(), counts.errors), (vec![], 0));
        assert!(counts.pages_written > PAGES && counts.pages_read > PAGES, "{counts:?}");
        assert_eq!(counts.pages_ahead > 0, read_ahead > 1, "{counts:?}");
        // 1 KiB of each page does not compress.
        let size = if compress { 1536 } else { PAGE };
        assert_eq!((counts.bytes_written, counts.bytes_used), (counts.pages_written * size, counts.places * size));
        if cluster == 1 {
            assert_eq!((counts.writes, counts.reads), (counts.pages_written, counts.pages_read));
        } else {
            assert!(counts.writes < counts.pages_written, "{counts:?}");
            assert!(counts.reads < counts.pages_read + counts.pages_ahead, "{counts:?}");
        }
        let World { memory, store, .. } = world;
        drop(memory.destroy(drop));
        assert_eq!((store.counts().places, store.counts().bytes_used), (0, 0), "places are lost");
    }
}

#[test]
fn zero_pages_and_clean_pages_are_not_written() {
    let world = World::new(64, file(), &FileStoreOptions::new(64));
    world.run(1, || {
        (0..8).for_each(|page| world.write(page, 1).unwrap());
        (8..16).for_each(|page| drop(world.read(page).unwrap()));
        world.leave(0..16).unwrap();
        assert_eq!(world.store.counts().pages_written, 8);
        // They come back, are read only, and leave again.
        (0..8).for_each(|page| world.check(page, 1));
        world.leave(0..8).unwrap();
        assert_eq!((world.store.counts().pages_written, world.store.counts().places), (8, 8));
        world.write(3, 2).unwrap();
        world.leave(0..8).unwrap();
        assert_eq!((world.store.counts().pages_written, world.store.counts().places), (9, 8));
        world.check(3, 2);
    });
}

/// A row of pages is written by one call, and a guest that goes over it reads it by few.
#[test]
fn a_cluster_is_written_and_read_by_one_call() {
    // No thread before all are there, so nothing depends on time.
    let options = FileStoreOptions { cluster: 32, ..FileStoreOptions::new(64) };
    let world = World::new(64, file(), &options);
    (0..64).for_each(|page| world.write(page, page).unwrap());
    // The order in which they are chosen does not matter.
    (0..64).for_each(|number| world.begin_leaving(number * 37 % 64));
    world.run(1, || {
        world.leave(0..0).unwrap();
        let counts = world.store.counts();
        assert_eq!((counts.pages_written, counts.writes), (64, 2));
        (0..64).for_each(|page| world.check(page, page));
        let counts = world.store.counts();
        // 1, 2, 4, 8, 16, 16, 16 and one more.
        assert_eq!((counts.pages_read, counts.pages_ahead), (8, 56));
        assert_eq!(counts.reads, 8, "clusters are in the order of their pages");
    });
}

#[test]
fn writes_wait_for_a_cluster() {
    let options = FileStoreOptions { cluster: 4, gather: Duration::MAX, ..FileStoreOptions::new(64) };
    let world = World::new(64, file(), &options);
    world.run(1, || {
        (0..8).for_each(|page| world.write(page, 1).unwrap());
        world.leave(0..4).unwrap();
        world.begin_leaving(4);
        // The thread has work, but none that has to do with this page.
        (0..4).for_each(|page| world.check(page, 1));
        assert_eq!(world.store.counts().pages_written, 4);
        world.leave(5..8).unwrap();
        assert_eq!((world.store.counts().pages_written, world.store.counts().writes), (8, 2));
    });
}

/// Low pages that leave again and again do not hold up others.
#[test]
fn writes_go_around() {
    let options = FileStoreOptions { cluster: 2, ..FileStoreOptions::new(64) };
    let world = World::new(64, file(), &options);
    (0..8).for_each(|page| world.write(page, 1).unwrap());
    (2..7).for_each(|page| world.begin_leaving(page));
    let watched = Watched::new(&world, |page| match page {
        3 => [0, 1, 7].iter().for_each(|page| world.begin_leaving(*page)),
        1 => world.store.close(),
        _ => {}
    });
    world.store.serve(&watched);
    assert_eq!(watched.written(), [2, 3, 4, 5, 6, 7, 0, 1]);
}

/// Where no row is left that is long enough, a page is in pieces, each of which is written and read by a call.
#[test]
fn pages_in_pieces_come_back() {
    let options = FileStoreOptions { cluster: 2, gather: Duration::MAX, compress: true, ..FileStoreOptions::new(12) };
    let world = World::new(64, file(), &options);
    // They do not compress, and take 8 sectors; others take 3.
    let noise = |page| (0..4).flat_map(|part| content(page, part)[..1024].to_vec()).collect::<Vec<_>>();
    let [first, second] = [34, 35].map(noise);
    world.run(1, || {
        // Pages of 8 and of 3 sectors in turn.
        (0..8).for_each(|pair| world.put(2 * pair, &noise(pair)).unwrap());
        (0..8).for_each(|pair| world.write(2 * pair + 1, 1).unwrap());
        (0..8).for_each(|pair| world.leave(2 * pair..2 * pair + 2).unwrap());
        // The large ones end, and two small ones take the room of each, and that behind the last. That leaves 2 sectors.
        (0..8).for_each(|pair| world.write(2 * pair, 1).unwrap());
        (16..34).for_each(|page| world.write(page, 1).unwrap());
        (8..17).for_each(|pair| world.leave(2 * pair..2 * pair + 2).unwrap());
        let before = world.store.counts();
        world.put(34, &first).unwrap();
        world.put(35, &second).unwrap();
        world.leave(34..36).unwrap();
        assert_eq!(world.store.counts().writes - before.writes, 8);
        // Sequentially, so that the last two are read at once.
        world.check(33, 1);
        assert!(world.read(34) == Ok(first) && world.read(35) == Ok(second));
        let counts = world.store.counts();
        assert_eq!((counts.reads - before.reads, counts.pages_ahead - before.pages_ahead), (1 + 8, 1));
    });
}

#[test]
fn a_full_store_is_reported_with_its_figures() {
    let world = World::new(64, file(), &FileStoreOptions::new(5));
    world.run(1, || {
        (0..8).for_each(|page| world.write(page, 1).unwrap());
        assert_eq!(world.leave(0..8), Err(WriteOutError::StoreFull { page: ipa(5) }));
        let errors = world.store.take_errors();
        assert_eq!(errors[0], FileStoreError::Full { page: ipa(5), used: 5, pages: 5 });
        assert_eq!(
            errors[0].to_string(),
            format!("the store is full: 5 of 5 pages are in use, and the page at {} has no place", ipa(5))
        );
        (0..8).for_each(|page| world.check(page, 1));
        // A page that is written again has no copy any more, so there is room.
        world.write(0, 2).unwrap();
        world.leave(5..6).unwrap();
        assert_eq!(world.leave(6..7), Err(WriteOutError::StoreFull { page: ipa(6) }));
        (1..8).for_each(|page| world.check(page, 1));
        world.check(0, 2);
        assert_eq!(world.take_failures(), []);
    });
}

#[test]
fn the_last_64_errors_are_kept_and_all_are_counted() {
    let world = World::new(128, file(), &FileStoreOptions::new(1));
    world.run(1, || {
        (0..71).for_each(|page| world.write(page, 1).unwrap());
        world.leave(0..1).unwrap();
        (1..71).for_each(|page| {
            assert_eq!(world.leave(page..page + 1), Err(WriteOutError::StoreFull { page: ipa(page) }))
        });
        let full = |page| FileStoreError::Full { page: ipa(page), used: 1, pages: 1 };
        assert_eq!(world.store.take_errors(), (7..71).map(full).collect::<Vec<_>>());
        assert_eq!((world.store.take_errors(), world.store.counts().errors), (vec![], 70));
    });
}

/// `/dev/full` takes no byte: a file system that is full before the store is.
#[test]
fn a_file_with_less_room_than_promised_is_reported() {
    let full = OpenOptions::new().read(true).write(true).open("/dev/full").unwrap();
    let world = World::new(64, full, &FileStoreOptions { cluster: 4, ..FileStoreOptions::new(64) });
    // Single frames only.
    world.memory.set_limit(64).unwrap();
    // The first half fails to be written. The store has no room for the second any more.
    (0..8).for_each(|page| world.write(page, 1).unwrap());
    (0..8).for_each(|page| world.begin_leaving(page));
    // Until the last failure is counted.
    world.run(1, || ());
    let failures = world.take_failures();
    assert_eq!(failures.len(), 8);
    let is_it = |cause| cause == StoreError::Device { code: ENOSPC };
    assert!(failures.iter().all(|failure| failure.operation == Operation::Write && is_it(failure.cause)));
    let smaller = FileStoreError::Smaller { promised: 64, found: 0, code: ENOSPC };
    assert_eq!(world.store.take_errors(), vec![smaller; 8]);
    // From now on it is full.
    assert_eq!(world.leave(0..1), Err(WriteOutError::StoreFull { page: ipa(0) }));
    assert_eq!(world.store.take_errors(), [FileStoreError::Full { page: ipa(0), used: 0, pages: 0 }]);
    (0..8).for_each(|page| world.check(page, 1));
    // A guest that needs a frame stops, and goes on when it may have one.
    world.memory.set_limit(16).unwrap();
    (8..16).for_each(|page| world.write(page, 1).unwrap());
    assert_eq!(world.write(16, 1), Err(Failed));
    world.memory.set_limit(17).unwrap();
    world.write(16, 1).unwrap();
    (0..17).for_each(|page| world.check(page, 1));
}

#[test]
fn room_that_is_reserved_is_there_or_is_refused() {
    let options = FileStoreOptions::new(1 << 50);
    let refused = FileStore::reserve(file(), &options).unwrap_err();
    assert!(matches!(refused, FileStoreError::Smaller { promised: 0x4_0000_0000_0000, found: 0, .. }), "{refused}");
    let file = file();
    file.set_len(3 * PAGE + 100).unwrap();
    let refused = FileStore::reserve(file.try_clone().unwrap(), &options).unwrap_err();
    assert!(matches!(refused, FileStoreError::Smaller { found: 3, .. }), "{refused}");
    let _store = FileStore::reserve(file.try_clone().unwrap(), &FileStoreOptions::new(100)).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 100 * PAGE);
    for (pages, cluster, read_ahead) in [(0, 1, 1), (1, 0, 1), (1, 1, 0)] {
        let options = FileStoreOptions { cluster, read_ahead, ..FileStoreOptions::new(pages) };
        for make in [FileStore::new, FileStore::reserve] {
            let refused = make(file.try_clone().unwrap(), &options).unwrap_err();
            assert_eq!(refused, FileStoreError::Empty { pages, cluster, read_ahead });
        }
    }
}

/// The file is cut, and mended: its pages come as soon as they can, and the guest uses the others meanwhile.
#[test]
fn a_file_that_was_cut_or_changed_is_noticed() {
    let file = file();
    // Each page alone, so that the offsets are known.
    let options = FileStoreOptions { cluster: 1, ..FileStoreOptions::new(64) };
    let world = World::new(64, file.try_clone().unwrap(), &options);
    world.run(1, || {
        (0..8).for_each(|page| world.write(page, 1).unwrap());
        (0..6).for_each(|page| world.leave(page..page + 1).unwrap());
        let Located::Absent(place) = world.memory.locate(ipa(4)).unwrap() else { panic!() };
        let mut saved = vec![0; 6 * PAGE as usize];
        file.read_exact_at(&mut saved, 0).unwrap();
        file.set_len(4 * PAGE + 100).unwrap();
        assert_eq!((world.read(4), world.read(4)), (Err(Failed), Err(Failed)));
        let short = FileStoreError::Short { place, wanted: 5 * PAGE, end: 4 * PAGE + 100 };
        assert_eq!(world.store.take_errors(), [short.clone(), short]);
        [0, 6, 7].iter().for_each(|page| world.check(*page, 1));
        file.write_all_at(&saved, 0).unwrap();
        world.check(4, 1);

        file.write_all_at(&[!saved[2 * PAGE as usize + 7]], 2 * PAGE + 7).unwrap();
        assert_eq!(world.read(2), Err(Failed));
        let Located::Absent(place) = world.memory.locate(ipa(2)).unwrap() else { panic!() };
        assert_eq!(world.store.take_errors(), [FileStoreError::Damaged { place, offset: 2 * PAGE }]);
        let causes: Vec<_> = world.take_failures().iter().map(|failure| (failure.page, failure.cause)).collect();
        let damaged = |page| (ipa(page), StoreError::Damaged);
        assert_eq!(causes, [damaged(4), damaged(4), damaged(2)]);
        file.write_all_at(&saved, 0).unwrap();
        (0..8).for_each(|page| world.check(page, 1));
    });
}

/// Pages of a cluster fail one by one: the others come.
#[test]
fn a_damaged_page_fails_alone() {
    let file = file();
    let world = World::new(64, file.try_clone().unwrap(), &FileStoreOptions::new(64));
    (0..16).for_each(|page| world.write(page, 1).unwrap());
    (0..16).for_each(|page| world.begin_leaving(page));
    world.run(1, || {
        world.leave(0..0).unwrap();
        assert_eq!(world.store.counts().writes, 1);
        file.write_all_at(&[0; 8], 5 * PAGE).unwrap();
        for page in 0..16 {
            match page {
                5 => assert_eq!(world.read(5), Err(Failed)),
                _ => world.check(page, 1),
            }
        }
        // And cut behind page 9, in the middle of a cluster.
        world.leave(0..5).unwrap();
        assert!(world.failures(Operation::Read) > 0 && world.failures(Operation::Write) == 0);
    });
}

/// A file that cannot be read, and one that cannot be written.
#[test]
fn a_failing_file_is_reported_with_the_systems_number() {
    let named = tempfile::NamedTempFile::new().unwrap();
    let write_only = OpenOptions::new().write(true).open(named.path()).unwrap();
    let world = World::new(64, write_only, &FileStoreOptions::new(64));
    world.run(1, || {
        world.write(0, 1).unwrap();
        world.write(1, 1).unwrap();
        world.leave(0..1).unwrap();
        let Located::Absent(place) = world.memory.locate(ipa(0)).unwrap() else { panic!() };
        assert_eq!(world.read(0), Err(Failed));
        assert_eq!(world.store.take_errors(), [FileStoreError::Read { place, offset: 0, code: EBADF }]);
        assert_eq!(world.memory.locate(ipa(0)), Ok(Located::Absent(place)), "it is still there");
        world.check(1, 1);
    });
    let read_only = File::open(named.path()).unwrap();
    let world = World::new(64, read_only, &FileStoreOptions::new(64));
    (0..4).for_each(|page| world.write(page, 1).unwrap());
    (0..4).for_each(|page| world.begin_leaving(page));
    world.run(1, || ());
    let errors = world.store.take_errors();
    let offsets = errors.iter().map(|error| match error {
        FileStoreError::Write { offset, code: EBADF, .. } => *offset,
        other => panic!("{other}"),
    });
    assert_eq!(offsets.collect::<Vec<_>>(), [0, PAGE, 2 * PAGE, 3 * PAGE]);
    assert_eq!(world.failures(Operation::Write), 4);
    (0..4).for_each(|page| world.check(page, 1));
    assert_eq!((world.store.counts().places, world.store.counts().bytes_used), (0, 0));
}

/// Nothing serves it, so whatever it accepted would wait.
#[test]
fn a_closed_store_accepts_nothing() {
    let world = World::new(64, file(), &FileStoreOptions::new(64));
    world.write(1, 1).unwrap();
    world.store.close();
    world.begin_leaving(1);
    assert_eq!((world.memory.frame_use().leaving, world.take_failures().len()), (0, 1));
    world.check(1, 1);
}

#[test]
fn a_closed_store_fails_what_comes_later() {
    let world = World::new(64, file(), &FileStoreOptions::new(64));
    world.run(1, || {
        (0..2).for_each(|page| world.write(page, 1).unwrap());
        world.leave(0..1).unwrap();
    });
    world.leave(1..2).unwrap();
    assert_eq!((world.read(0), world.take_failures().len()), (Err(Failed), 2));
    world.check(1, 1);
}

#[test]
fn a_closed_store_writes_what_waits_for_a_cluster() {
    let options = FileStoreOptions { gather: Duration::MAX, ..FileStoreOptions::new(64) };
    let world = World::new(64, file(), &options);
    (0..3).for_each(|page| world.write(page, 1).unwrap());
    (0..3).for_each(|page| world.begin_leaving(page));
    world.run(1, || {
        world.store.close();
        world.leave(0..0).unwrap();
        assert_eq!((world.store.counts().pages_written, world.take_failures()), (3, vec![]));
    });
}
