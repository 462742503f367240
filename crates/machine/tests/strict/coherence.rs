// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that enters a guest, changes its type, or returns to its owner: each reads what the other wrote, in the caches,
//! past them, and as instructions.

use twofold_machine::program::Instructions;
use twofold_stage2::platform::{Dc, Domain};
use twofold_stage2::{
    Access, Attributes, Coalesced, Execute, Ipa, Level, Mapped, Memory, Platform, Relaxed, Unwatched,
};

use super::directed::{START, page};
use crate::window::ByAddress as _;
use crate::world::{MIB_2, MODERN, PAGE, PLAIN, World};

/// The instructions that a guest fetches are those that were written.
#[test]
fn judge_code_is_fetched_as_it_was_written() {
    for features in [MODERN, PLAIN] {
        for execute_later in [false, true] {
            let world = World::new(features, 1, 1, 64 << 20);
            let ended = world.machine.alone(|cpu| {
                let tables = world.tables(0, 1, 40);
                cpu.load(tables.vttbr());
                let all = Access { execute: Execute::ALWAYS, ..Access::READ };
                let access = if execute_later { Access::READ } else { all };
                let run = world.run(0, 64 * PAGE);
                for number in 0..64 {
                    run.zero_page(&world.machine.platform(), &features, number * PAGE);
                    let pa = world.frame(number * PAGE);
                    let mapped = tables.map(page(number), pa, Level::L3, &Attributes::ram(access), &mut &world.pages);
                    assert_eq!(mapped, Ok(Mapped::New));
                    if execute_later {
                        assert_eq!(tables.relax(page(number), all), Ok(Relaxed::Widened));
                    }
                    let mut guest = cpu.enter(tables.vttbr(), tables.vtcr(), 0);
                    assert_eq!(guest.fetch(page(number).raw()), Ok(0));
                }
                cpu.load(0);
                tables.destroy(&mut &world.pages, Unwatched);
            });
            ended.unwrap_or_else(|breach| panic!("{breach}"));
        }
    }
}

/// A block replaces pages. The memory that only the block maps is cleaned before the block is made, and all of it if
/// the guest may have written past the cache. Instructions in it are not stale.
#[test]
fn judge_a_block_that_takes_the_place_of_pages_is_clean() {
    let memories = [Memory::Normal, Memory::NonCacheable];
    for (type_of_memory, execute) in memories.into_iter().flat_map(|memory| [(memory, false), (memory, true)]) {
        let world = World::new(PLAIN, 1, 1, 64 << 20);
        let ended = world.machine.alone(|cpu| {
            let tables = world.tables(0, 1, 40);
            cpu.load(tables.vttbr());
            world.run(0, MIB_2).zero(&world.machine.platform(), &PLAIN);
            let attributes = Attributes { memory: type_of_memory, ..Attributes::ram(Access::READ_WRITE) };
            let mapped = tables.map(page(0), world.frame(0), Level::L3, &attributes, &mut &world.pages);
            assert_eq!(mapped, Ok(Mapped::New));
            let mut guest = cpu.enter(tables.vttbr(), tables.vtcr(), 0);
            guest.store(page(0).raw(), 1).unwrap();
            let normal = Attributes::ram(if execute { Access::ALL } else { Access::READ_WRITE });
            let done = tables.coalesce(page(0), world.frame(0), Level::L2, &normal, &mut &world.pages, &mut |_| ());
            assert!(done.is_ok());
            if type_of_memory == Memory::NonCacheable {
                cpu.reads(world.frame(0), PAGE);
            }
            // With the MMU off, the guest reads past the cache.
            assert_eq!(guest.load(page(7).raw()), Ok(0));
            assert!(!execute || guest.fetch(page(7).raw()) == Ok(0));
            cpu.load(0);
            tables.destroy(&mut &world.pages, Unwatched);
        });
        ended.unwrap_or_else(|breach| panic!("{breach}"));
    }
}

/// Each change of a page's memory type, by each operation that can make it. The guest writes before and after; in the
/// end the owner reads. The test does the maintenance that a caller owes for RAM that it maps as a device.
#[test]
fn judge_memory_may_change_its_type() {
    const TYPES: [Memory; 3] = [Memory::Normal, Memory::NonCacheable, Memory::Device];
    for (features, coalesce) in [(MODERN, false), (MODERN, true), (PLAIN, false), (PLAIN, true)] {
        for (old, new) in TYPES.into_iter().flat_map(|old| TYPES.map(|new| (old, new))) {
            let world = World::new(features, 1, 1, 64 << 20);
            let ended = world.machine.alone(|cpu| {
                let tables = world.tables(0, 1, 40);
                cpu.load(tables.vttbr());
                let platform = world.machine.platform();
                let clean = || {
                    let start = platform.pointer(world.frame(0)).addr().get();
                    // SAFETY: the frame is in the arena, and donated.
                    unsafe { platform.dc_lines(Dc::Civac, start, PAGE, features.data_line) };
                    platform.dsb(Domain::Ish);
                };
                world.run(0, MIB_2).zero(&platform, &features);
                if old == Memory::Device {
                    clean();
                }
                let [before, after] =
                    [old, new].map(|memory| Attributes { memory, ..Attributes::ram(Access::READ_WRITE) });
                let (ipa, pa) = (page(0), world.frame(0));
                let mapped = tables.map(ipa, pa, Level::L3, &before, &mut &world.pages);
                assert_eq!(mapped, Ok(Mapped::New));
                let mut guest = cpu.enter(tables.vttbr(), tables.vtcr(), 0);
                guest.store(ipa.raw(), 1).unwrap();
                if coalesce {
                    let done = tables.coalesce(ipa, pa, Level::L2, &after, &mut &world.pages, &mut |_| ());
                    assert!(matches!(done, Ok(Coalesced::Done { .. })));
                } else {
                    assert!(tables.map(ipa, pa, Level::L3, &after, &mut &world.pages).is_ok());
                }
                assert_eq!(guest.load(ipa.raw()), Ok(1));
                guest.store(ipa.raw() + 8, 2).unwrap();
                let range = ipa..ipa + if coalesce { MIB_2 } else { PAGE };
                tables.unmap(range, &mut &world.pages, Unwatched).unwrap().complete().free(&mut &world.pages);
                if new == Memory::Device {
                    clean();
                }
                cpu.reads(pa, PAGE);
                cpu.load(0);
                tables.destroy(&mut &world.pages, Unwatched);
            });
            let context = format!("{old:?} becomes {new:?}, FWB {}, coalesce {coalesce}", features.forced_write_back);
            ended.unwrap_or_else(|breach| panic!("{context}: {breach}"));
        }
    }
}

/// The guest used memory past the caches, and its owner gets it back: by pages, in a table that is freed, and in part
/// of a block.
#[test]
fn judge_memory_that_was_not_cacheable_is_read_by_its_owner() {
    for (features, level, unmapped) in [MODERN, PLAIN]
        .into_iter()
        .flat_map(|features| [(Level::L3, PAGE), (Level::L3, MIB_2), (Level::L2, PAGE)].map(|(a, b)| (features, a, b)))
    {
        let world = World::new(features, 1, 1, 64 << 20);
        let ended = world.machine.alone(|cpu| {
            let tables = world.tables(0, 1, 40);
            cpu.load(tables.vttbr());
            let attributes = Attributes { memory: Memory::NonCacheable, ..Attributes::ram(Access::READ_WRITE) };
            let whole = page(0)..page(0) + MIB_2;
            tables.map_range(whole, world.frame(0), level, &attributes, &mut &world.pages).unwrap();
            let mut guest = cpu.enter(tables.vttbr(), tables.vtcr(), 0);
            (0..512).step_by(73).for_each(|number| guest.store(page(number).raw(), 1).unwrap());
            let range = page(0)..page(0) + unmapped;
            tables.unmap(range, &mut &world.pages, Unwatched).unwrap().complete().free(&mut &world.pages);
            cpu.reads(world.frame(0), unmapped);
            cpu.load(0);
            tables.destroy(&mut &world.pages, Unwatched);
            cpu.reads(world.frame(0), MIB_2);
        });
        ended.unwrap_or_else(|breach| panic!("FWB {}, {level:?}: {breach}", features.forced_write_back));
    }
}

/// The same for memory that is mapped by ranges, into new tables and into existing ones.
#[test]
fn judge_a_range_is_clean_when_it_is_mapped() {
    for size in [PAGE, 8 * PAGE, MIB_2, 2 * MIB_2] {
        for largest in [Level::L2, Level::L3] {
            for execute in [Execute::NEVER, Execute::ALWAYS] {
                let world = World::new(PLAIN, 1, 1, 64 << 20);
                let ended = world.machine.alone(|cpu| {
                    let tables = world.tables(0, 1, 40);
                    cpu.load(tables.vttbr());
                    world.run(0, 4 * MIB_2).zero(&world.machine.platform(), &PLAIN);
                    let attributes = Attributes::ram(Access { execute, ..Access::READ_WRITE });
                    for start in [0, 2 * MIB_2 - size.min(MIB_2)] {
                        let ipa = Ipa::new(START + start);
                        let mapped = tables.map_range(
                            ipa..ipa + size,
                            world.frame(start),
                            largest,
                            &attributes,
                            &mut &world.pages,
                        );
                        assert_eq!(mapped, Ok(()));
                        let mut guest = cpu.enter(tables.vttbr(), tables.vtcr(), 0);
                        for at in [0, size - PAGE] {
                            assert_eq!(guest.load((ipa + at).raw()), Ok(0));
                            assert!(execute == Execute::NEVER || guest.fetch((ipa + at).raw()) == Ok(0));
                        }
                    }
                    cpu.load(0);
                    tables.destroy(&mut &world.pages, Unwatched);
                });
                ended.unwrap_or_else(|breach| panic!("{breach}"));
            }
        }
    }
}
