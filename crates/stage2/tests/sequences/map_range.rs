// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mapping a range: the largest leaves that fit, in tables that are filled before they are linked.

use super::*;
use crate::platform::window::ByAddress as _;
use crate::platform::{KIB_4, MIB_2, frame, table};
use twofold_stage2::{Broken, Error, Kib4Lpa2, Memory};

/// The whole range is cleaned when it is mapped, if its type needs that. When it is unmapped, it is cleaned after the
/// flush.
#[test]
fn a_range_keeps_its_type() {
    // In a table that is linked already, and in one that is linked when it is full.
    let ranges = [range(BASE + 4 * KIB_4, 5 * KIB_4), range(BASE + MIB_2, MIB_2)];
    for (memory, mapped) in [Memory::NonCacheable, Memory::Normal]
        .into_iter()
        .zip([&ranges; 2])
        .flat_map(|(memory, ranges)| ranges.iter().map(move |range| (memory, range.clone())))
    {
        let is_cleaned = memory == Memory::NonCacheable;
        let mut guest = guest(HINTS);
        map_pages(&mut guest, BASE, frame(0), 1);
        let attributes = Attributes { memory, ..RAM };
        let first = frame(mapped.start - BASE);
        guest.stage2.map_range(mapped.clone(), first, Level::L3, &attributes, &mut guest.pool).unwrap();
        let cleans = |events: Vec<Event>| {
            events.into_iter().filter(|event| matches!(event, Event::Clean(..))).collect::<Vec<_>>()
        };
        let all = if is_cleaned { vec![Event::Clean(first, mapped.end - mapped.start)] } else { vec![] };
        assert_eq!(cleans(guest.events()), all);
        let leaves = guest.scan().leaves;
        let pages = 1 + (mapped.end - mapped.start) / KIB_4;
        assert_eq!(leaves.len() as u64, pages);
        assert!(leaves.iter().all(|leaf| leaf.pa() == frame(leaf.ipa - BASE)));
        let part = range(mapped.start, 5 * KIB_4);
        let pending = guest.stage2.unmap(part, &mut guest.pool, |_: Broken| ()).unwrap();
        let pages = (0..5).map(|number| (Tlbi::Ipas2Le1Is, Reach::At(mapped.start + number * KIB_4, Some(3))));
        let flush = by_ipa(&pages.collect::<Vec<_>>());
        let before = guest.machine.events();
        let _ = pending.complete();
        let each = (0..5).map(|number| Event::Clean(first + number * KIB_4, KIB_4)).collect::<Vec<_>>();
        if is_cleaned {
            assert!(before.starts_with(&flush), "{before:x?}");
            assert_eq!((cleans(before), guest.events()), (each, vec![]));
        } else {
            assert_eq!((before, guest.events()), (vec![], flush));
        }
    }
}

/// The table is not zeroed. A walk finds all of its entries, or none.
#[test]
fn a_table_of_a_range_is_linked_when_it_is_full() {
    let above = [Event::Take(table(0)), Event::Zero(table(0), KIB_4), Event::Dsb(Domain::IshSt)];
    for (size, largest, level, above) in [(MIB_2, Level::L3, 3, &above[..]), (GIB, Level::L2, 2, &[])] {
        let mut guest = guest(HINTS.with_zero_block(512));
        let last = BASE + (size - KIB_4);
        guest.watch(last);
        guest.stage2.map_range(range(BASE, size), frame(0), largest, &RAM, &mut guest.pool).unwrap();
        let full = Event::Take(table(u64::from(!above.is_empty())));
        let made = [full, sees(last, level, frame(size - KIB_4), Access::READ_WRITE)];
        assert_eq!(guest.events(), [above, &made, &[Event::Dsb(Domain::IshSt), Event::Dsb(Domain::IshSt)]].concat());
    }
}

/// The last page decides, for the IPA space and for the physical addresses.
#[test]
fn a_range_may_end_where_addresses_do() {
    let size = 3 * KIB_4;
    for behind in [0, KIB_4] {
        let mut guest = guest(HINTS);
        let pa = Pa::new((1 << 48) - size + behind);
        let mapped = range(Ipa::new((1 << IPA_BITS) - size), size);
        let outcome = guest.stage2.map_range(mapped, pa, Level::L1, &RAM, &mut guest.pool);
        let (expected, leaves) =
            if behind == 0 { (Ok(()), 3) } else { (Err(Error::OutsidePa { pa: Pa::new(1 << 48), bits: 48 }), 0) };
        assert_eq!((outcome, guest.scan().leaves.len()), (expected, leaves));
    }
}

/// A table is filled with leaves that may be there: none above the largest level, and none that is not aligned.
#[test]
fn a_large_range_is_filled_with_leaves_that_fit() {
    // The shift of the memory, the largest level, the size, and the level that fits.
    for (shift, largest, size, level) in [
        (0, Level::L3, GIB, 3),
        (KIB_4, Level::L1, GIB, 3),
        (0, Level::L2, 512 * GIB, 2),
        (MIB_2, Level::L1, 512 * GIB, 2),
        (0, Level::L1, 512 * GIB, 1),
        // The frames begin at 64 GiB, and these at 512.
        (448 * GIB, Level::L0, 512 * GIB, 1),
    ] {
        let mut guest = Guest::new(HINTS, 48);
        let start = Ipa::new(512 * GIB);
        // The tables above, and two full ones.
        let above = usize::from(level) - 1;
        guest.pool.limit = above + 2;
        let outcome = guest.stage2.map_range(range(start, size), frame(shift), largest, &RAM, &mut guest.pool);
        assert_eq!(outcome.is_ok(), level == 1, "{outcome:?}");
        let leaves = guest.scan().leaves;
        assert_eq!(leaves.len(), if level == 1 { 512 } else { 1024 }, "{size:#x} by {largest:?}");
        for leaf in leaves {
            assert_eq!((leaf.level, leaf.pa()), (level, frame(leaf.ipa - start + shift)));
        }
    }
}

/// The largest leaves that fit are mapped. What is in their way is replaced leaf by leaf.
#[test]
fn a_range_is_mapped_by_the_largest_leaves_that_fit() {
    // The start, the size, the shift of the memory, the largest level, and the levels of some pages.
    let cases: [(u64, u64, u64, Level, [u8; 3]); 7] = [
        (0, GIB, 0, Level::L1, [1, 1, 1]),
        (0, GIB, 0, Level::L2, [2, 2, 2]),
        (0, GIB, MIB_2, Level::L1, [2, 2, 2]),
        (0, 4 * MIB_2, 0, Level::L3, [3, 3, 0]),
        (0, 4 * MIB_2, KIB_4, Level::L1, [3, 3, 0]),
        (MIB_2, 4 * MIB_2 + KIB_4, 0, Level::L1, [0, 2, 0]),
        (KIB_4, 4 * MIB_2, MIB_2 - KIB_4, Level::L1, [3, 3, 0]),
    ];
    for (start, size, shift, largest, levels) in cases {
        let mut guest = guest(HINTS);
        let mapped = range(BASE + start, size);
        guest.stage2.map_range(mapped.clone(), frame(start + shift), largest, &RAM, &mut guest.pool).unwrap();
        let level = |offset| guest.walk(BASE + offset).map_or(0, |leaf| leaf.level);
        assert_eq!([KIB_4, MIB_2 + KIB_4, GIB - KIB_4].map(level), levels, "{mapped:x?} to {largest:?}");
        for leaf in guest.scan().leaves {
            assert!(mapped.contains(&leaf.ipa) && leaf.pa() == frame(leaf.ipa - BASE + shift));
        }
        // Mapped again, to other memory: each leaf is replaced by one of the same size, if it fits.
        let elsewhere = frame(8 * GIB + start + shift);
        guest.stage2.map_range(mapped.clone(), elsewhere, largest, &RAM, &mut guest.pool).unwrap();
        let level = |offset| guest.walk(BASE + offset).map_or(0, |leaf| leaf.level);
        assert_eq!([KIB_4, MIB_2 + KIB_4, GIB - KIB_4].map(level), levels, "{mapped:x?} to {largest:?}, replaced");
        for leaf in guest.scan().leaves {
            assert!(mapped.contains(&leaf.ipa) && leaf.pa() == elsewhere + (leaf.ipa - mapped.start));
        }
        guest.events();
    }
    // A block is mapped, and the call asks for smaller leaves, or for memory that is not aligned to the block.
    for (offset, largest) in [(8 * GIB, Level::L3), (8 * GIB + KIB_4, Level::L1)] {
        let mut guest = guest(HINTS);
        map(&mut guest, BASE, frame(0), Level::L2, &RAM);
        guest.stage2.map_range(range(BASE, MIB_2), frame(offset), largest, &RAM, &mut guest.pool).unwrap();
        let leaves = guest.scan().leaves;
        assert!(leaves.len() == 512 && leaves.iter().all(|leaf| leaf.pa() == frame(offset + (leaf.ipa - BASE))));
    }
}

/// With FEAT_LPA2, the bits of an address from 50 on are at another place in the entry. Frames on both sides of that boundary
/// are mapped by one range: in a table that is filled before it is linked, and in one that is linked.
#[test]
fn a_range_of_frames_may_cross_a_boundary_of_the_entries() {
    const BOUNDARY: Pa = Pa::new(1 << 50);
    let features = HINTS.with_lpa2_4k(true).with_pa_bits(52);
    for (start, size, before) in [(BASE, MIB_2, 0x100), (BASE + KIB_4, 5 * KIB_4, 3)] {
        let mut guest = Guest::of(Kib4Lpa2, features, IPA_BITS, 24);
        let first = Pa::new(BOUNDARY.raw() - before * KIB_4);
        guest.stage2.map_range(range(start, size), first, Level::L3, &RAM, &mut guest.pool).unwrap();
        for offset in (0..size).step_by(KIB_4 as usize) {
            let leaf = guest.stage2.look_up(start + offset).unwrap();
            assert_eq!((leaf.level, leaf.pa()), (Level::L3, first + offset));
        }
    }
}
