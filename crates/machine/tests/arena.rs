// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The arena on the host of the tests: its mappings, and the sizes that it refuses.

use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use twofold_machine::arena::{Arena, ArenaError, ArenaOptions, Backing};
use twofold_stage2::Pa;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn options(dense: u64) -> ArenaOptions {
    ArenaOptions::new(dense, Backing::Anonymous)
}

/// Writes both ends of each backing that the host has, and reads them back.
#[test]
fn every_backing_is_memory_or_says_what_is_missing() {
    for backing in Backing::ALL {
        let arena = match Arena::new(&ArenaOptions::new(4 * MIB, backing)) {
            Ok(arena) => arena,
            Err(error @ ArenaError::NoHugePages { size, needed, free, instead }) => {
                assert!(matches!(backing, Backing::AnonymousHugetlb2M | Backing::AnonymousHugetlb1G), "{error}");
                assert_eq!((size, needed), (backing.page(), (4 * MIB).div_ceil(backing.page())));
                assert_ne!(instead, backing, "{error}");
                assert!(free < needed, "{error}");
                continue;
            }
            Err(ArenaError::NoTransparentHugePages { instead: Backing::Anonymous })
                if backing == Backing::AnonymousThp =>
            {
                continue;
            }
            Err(error) => panic!("{backing}: {error}"),
        };
        let last = arena.base() + (arena.dense() - 8);
        for pa in [arena.base(), last] {
            assert_eq!(arena.load(pa), Some(0), "{backing}");
            assert_eq!(arena.store(pa, pa.raw()), Some(()));
        }
        assert_eq!((arena.load(arena.base()), arena.load(last)), (Some(GIB), Some(last.raw())), "{backing}");
        assert_eq!(arena.compare_exchange(last, 1, 2), Some(Err(last.raw())));
        assert_eq!(arena.compare_exchange(last, last.raw(), 2), Some(Ok(last.raw())));
        assert_eq!(arena.load(last), Some(2));
        assert_eq!(arena.backing(), backing);
    }
}

/// What is written through the arena is read through the file, at the offset of its address.
#[test]
fn shared_memory_has_a_file_and_other_memory_has_none() {
    let arena = Arena::new(&ArenaOptions::new(2 * MIB, Backing::Shmem)).unwrap();
    arena.store(arena.base() + 0x1238, 0x1234_5678_9abc_def0).unwrap();
    let file = std::fs::File::from(arena.file().unwrap().try_clone_to_owned().unwrap());
    let mut word = [0; 8];
    file.read_exact_at(&mut word, 0x1238).unwrap();
    assert_eq!(u64::from_le_bytes(word), 0x1234_5678_9abc_def0);
    assert!(Arena::new(&options(2 * MIB)).unwrap().file().is_none());
}

#[test]
fn physical_and_virtual_addresses_agree_modulo_1_gib() {
    let base = Pa::new(3 * GIB);
    let arena = Arena::new(&ArenaOptions { base, ..options(2 * MIB) }).unwrap();
    let pointer = arena.pointer(base + 0x1238).unwrap();
    assert_eq!(pointer.addr().get() as u64 % GIB, 0x1238);
    assert_ne!(pointer.addr().get() as u64, base.raw() + 0x1238);
    assert_eq!(arena.pa_of(pointer.addr().get()), Some(base + 0x1238));
}

#[test]
fn what_is_outside_is_none() {
    let arena = Arena::new(&options(2 * MIB)).unwrap();
    let end = Pa::new(GIB + 2 * MIB);
    for pa in [Pa::new(0), Pa::new(GIB - 8), end, Pa::new(!7)] {
        assert!(arena.pointer(pa).is_none(), "{pa}");
        assert!(arena.word(pa).is_none(), "{pa}");
        assert!(arena.metadata(pa).is_none(), "{pa}");
        assert_eq!(arena.load(pa), None);
        assert_eq!(arena.store(pa, 1), None);
        assert_eq!(arena.compare_exchange(pa, 0, 1), None);
        assert!(!arena.is_sparse(pa));
    }
    let start = arena.pointer(arena.base()).unwrap().addr().get();
    assert_eq!((arena.pa_of(start - 1), arena.pa_of(start + 2 * MIB as usize)), (None, None));
    assert!(arena.word(arena.base() + 4).is_none(), "a word is aligned");
}

#[test]
fn each_frame_that_may_be_a_table_has_its_own_record() {
    let arena = Arena::new(&ArenaOptions { tables: Some(3 * 4096), ..options(2 * MIB) }).unwrap();
    let base = arena.base();
    let mut seen = Vec::new();
    for frame in 0..3 {
        let metadata = arena.metadata(base + frame * 4096).unwrap();
        let address = std::ptr::from_ref(metadata).addr();
        assert_eq!(std::ptr::from_ref(arena.metadata(base + frame * 4096 + 4095).unwrap()).addr(), address);
        assert_eq!(arena.frame_of_metadata(address), Some(base + frame * 4096));
        assert!(!seen.contains(&address));
        seen.push(address);
    }
    // The mapping has whole pages: 256 frames' metadata.
    assert!(arena.metadata(base + 256 * 4096).is_none());
    assert_eq!(arena.frame_of_metadata(seen[0] - 1), None);
}

/// One frame has many addresses, more than the host has memory for. Tables are only where each address has its own
/// frame.
#[test]
fn sparse_memory_is_one_piece_over_and_over() {
    let arena = Arena::new(&ArenaOptions { sparse: 256 * GIB, ..options(2 * MIB) }).unwrap();
    let start = arena.base() + arena.dense();
    assert!(arena.sparse() >= 256 * GIB);
    assert!(arena.is_sparse(start) && !arena.is_sparse(arena.base()));
    arena.store(start + 0x18, 7).unwrap();
    let same = (MIB * 2..arena.sparse()).step_by(2 << 20).find(|&at| arena.load(start + (at + 0x18)) == Some(7));
    let chunk = same.expect("no other address has the frame");
    assert!(chunk.is_power_of_two());
    assert_eq!(arena.load(start + (arena.sparse() - chunk + 0x18)), Some(7));
    arena.word(start + (arena.sparse() - chunk + 0x18)).unwrap().store(8, Ordering::Relaxed);
    assert_eq!(arena.load(start + 0x18), Some(8));

    let last = start + (arena.sparse() - 1);
    assert!(arena.is_sparse(last) && arena.pointer(last).is_some() && arena.pointer(last + 1).is_none());
    let (dense, sparse) = (arena.donate(), arena.donate_sparse().unwrap());
    assert_eq!((dense.start(), dense.size()), (arena.base(), 2 * MIB));
    assert_eq!((sparse.start(), sparse.size()), (start, arena.sparse()));
    assert!(arena.metadata(start).is_none(), "a table in sparse memory");
}

#[test]
fn dense_memory_alone_shares_nothing() {
    let arena = Arena::new(&options(2 * MIB)).unwrap();
    assert_eq!(arena.sparse(), 0);
    assert!(arena.donate_sparse().is_none());
}

/// The error comes before anything is touched, and its figures hold.
#[test]
fn too_little_memory_is_an_error_and_no_kill() {
    for backing in [Backing::Anonymous, Backing::Shmem] {
        let refused = Arena::new(&ArenaOptions::new(1 << 46, backing)).unwrap_err();
        let ArenaError::NoMemory { needed, free, instead } = refused else { panic!("{refused}") };
        assert!(needed > 1 << 46 && free < 1 << 46 && instead < free, "{refused}");
        assert!(refused.to_string().contains("MiB would fit"), "{refused}");
        let arena = Arena::new(&ArenaOptions::new(instead / 2, backing)).unwrap();
        assert!(arena.dense() >= instead / 2);
    }
}

#[test]
fn sizes_that_make_no_sense_are_refused() {
    let refused = |options: ArenaOptions| Arena::new(&options).unwrap_err();
    assert_eq!(refused(options(0)), ArenaError::Empty);
    for base in [Pa::new(0), Pa::new(GIB + 4096)] {
        assert_eq!(refused(ArenaOptions { base, ..options(MIB) }), ArenaError::Base { base });
    }
    for (dense, sparse) in [(u64::MAX, 0), (MIB, u64::MAX), (MIB, 1 << 52), (1 << 52, 0)] {
        let error = refused(ArenaOptions { sparse, ..options(dense) });
        assert!(matches!(error, ArenaError::TooWide { .. }), "{error}");
    }
    let far = Pa::new(1 << 52);
    assert!(matches!(refused(ArenaOptions { base: far, ..options(MIB) }), ArenaError::TooWide { .. }));
}
