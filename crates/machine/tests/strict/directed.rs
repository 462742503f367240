// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cases that a random run meets too rarely: one CPU's operation between two steps of another, and accesses that must
//! not fault.

use std::ops::ControlFlow;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use twofold_machine::program::Instructions;
use twofold_machine::strict::{CpuHandle, Hosted, Program, Withdrawn};
use twofold_stage2::{
    Access, Attributes, Downgrade, Execute, Ipa, IpaRange, Level, Mapped, Pending, Relaxed, Stage2, Unwatched,
};

use crate::window::ByAddress as _;
use crate::world::{MIB_2, MODERN, PAGE, PLAIN, World};

pub(super) const START: u64 = 1 << 30;

pub(super) fn page(number: u64) -> Ipa {
    Ipa::new(START + number * PAGE)
}

/// A guest with 64 pages mapped with these attributes, and loaded.
fn mapped(world: &World, cpu: &CpuHandle, attributes: &Attributes) -> Stage2<Hosted> {
    let tables = world.tables(0, 1, 40);
    cpu.load(tables.vttbr());
    for number in 0..64 {
        let mapped = tables.map(page(number), world.frame(number * PAGE), Level::L3, attributes, &mut &world.pages);
        assert_eq!(mapped, Ok(Mapped::New));
    }
    tables
}

#[test]
fn judge_what_was_mapped_or_allowed_does_not_fault() {
    for features in [MODERN, PLAIN] {
        let world = World::new(features, 1, 1, 64 << 20);
        let ended = world.machine.alone(|cpu| {
            let tables = mapped(&world, cpu, &Attributes::ram(Access::READ));
            let mut guest = cpu.enter(tables.vttbr(), tables.vtcr(), 0);
            for number in 0..64 {
                assert!(guest.load(page(number).raw()).is_ok(), "page {number} was mapped, and faults");
                let relax = if number % 2 == 0 { Stage2::relax } else { Stage2::relax_page };
                assert_eq!(relax(&tables, page(number), Access::READ_WRITE), Ok(Relaxed::Widened));
                cpu.expect_fresh(tables.vttbr(), page(number));
                guest.forget_fault();
                let stored = guest.store(page(number).raw(), 1);
                assert!(stored.is_ok(), "page {number} was made writable, and faults: {stored:?}");
            }
            // The first access in a new guest: its root is visible to walks.
            for vmid in 2..8 {
                let other = world.tables(1, vmid, 40);
                cpu.load(other.vttbr());
                let mut guest = cpu.enter(other.vttbr(), other.vtcr(), 0);
                assert!(guest.load(START).is_err());
                cpu.load(0);
                other.destroy(&mut &world.pages, Unwatched);
            }
            cpu.load(0);
            tables.destroy(&mut &world.pages, Unwatched);
        });
        ended.unwrap_or_else(|breach| panic!("{breach}"));
    }
}

/// The operations that change access, behind one interface.
fn change<'a>(
    which: usize,
    tables: &'a Stage2<Hosted>,
    world: &World,
    range: IpaRange,
) -> Pending<'a, Hosted, Downgrade> {
    match which {
        0 => tables.write_protect(range),
        1 => tables.write_protect_mask(range.start, u64::MAX >> (64 - (range.end - range.start) / PAGE)),
        2 => tables.protect(range, Access::READ, &mut &world.pages),
        3 => tables.clean(range, &mut |_| ()),
        4 => tables.clear_dbm_and_write(range, &mut |_| ()),
        5 => tables.set_dbm_clean(range),
        6 => tables.set_dbm_clean_mask(range.start, u64::MAX >> (64 - (range.end - range.start) / PAGE)),
        _ => tables.clear_dbm(range),
    }
    .unwrap()
}

/// The number of these operations.
const CHANGES: usize = 8;

/// One CPU changes access, and flushes later. Meanwhile another operation is asked for the same. Its flush has to cover
/// the change that it finds done.
#[test]
fn judge_a_cpu_that_finds_it_done_flushes_for_the_other() {
    for features in [MODERN, PLAIN] {
        for first in 0..CHANGES {
            for second in 0..CHANGES {
                let world = World::new(features, 1, 1, 64 << 20);
                let ended = world.machine.alone(|cpu| {
                    let tracked = Attributes { dirty_by_hardware: true, ..Attributes::ram(Access::READ) };
                    // Every operation changes entries in which hardware has recorded a write; only some collect the
                    // record.
                    let tables = mapped(&world, cpu, &tracked);
                    let mut guest = cpu.enter(tables.vttbr(), tables.vtcr(), 0);
                    (0..64).for_each(|number| guest.store(page(number).raw(), 1).unwrap());
                    let (range, withdrawn) = (page(0)..page(64), Withdrawn::Everything);
                    let pending = change(first, &tables, &world, range.clone());
                    // On the same CPU: it only matters that the first flush is not complete.
                    let other = change(second, &tables, &world, range.clone());
                    let seen = cpu.knowledge();
                    let _ = other.complete();
                    cpu.expect_flushed(tables.vttbr(), &range, &seen, withdrawn);
                    let _ = pending.complete();
                    // All is flushed: an operation that changes nothing flushes nothing.
                    let idle = change(second, &tables, &world, range.clone());
                    assert!(second == 3 || idle.is_empty());
                    let before = cpu.invalidations();
                    let _ = idle.complete();
                    assert_eq!(cpu.invalidations(), before, "changes {first} and {second}: no flush is pending");
                    cpu.load(0);
                    tables.destroy(&mut &world.pages, Unwatched);
                });
                ended.unwrap_or_else(|breach| panic!("changes {first} and {second}: {breach}"));
            }
        }
    }
}

/// The same on two CPUs: the second knows that the first one's flush is complete, or flushes itself.
#[test]
fn judge_a_cpu_that_relies_on_a_flush_knows_that_it_is_complete() {
    for seed in 1..=40 {
        let world = World::new(MODERN, 2, seed, 64 << 20);
        let tables = world.machine.alone(|cpu| {
            let tables = mapped(&world, cpu, &Attributes::ram(Access::READ_WRITE));
            let mut guest = cpu.enter(tables.vttbr(), tables.vtcr(), 0);
            (0..64).for_each(|number| guest.store(page(number).raw(), 1).unwrap());
            cpu.load(0);
            tables
        });
        let tables = tables.unwrap_or_else(|breach| panic!("{breach}"));
        let programs = (0..2).map(|_| -> Program<'_> {
            Box::new(|cpu| {
                for round in 0..40 {
                    let range = page(0)..page(8);
                    let takes_writes = [0, 1, 2, 5, 6];
                    let which = takes_writes[cpu.draw(takes_writes.len() as u64) as usize];
                    let pending = change(which, &tables, &world, range.clone());
                    let seen = cpu.knowledge();
                    let _ = pending.complete();
                    cpu.expect_flushed(tables.vttbr(), &range, &seen, Withdrawn::Writes);
                    if round % 4 == cpu.number() {
                        let _ = tables.relax(page(cpu.draw(8)), Access::READ_WRITE);
                    }
                }
            })
        });
        world.machine.run(programs.collect()).unwrap_or_else(|breach| panic!("{breach}"));
        let ended = world.machine.alone(|_| {
            tables.destroy(&mut &world.pages, Unwatched);
        });
        ended.unwrap_or_else(|breach| panic!("{breach}"));
    }
}

/// A VMID with more bits than the CPU has is refused.
#[test]
fn judge_a_vmid_fits_the_cpu() {
    let world = World::new(MODERN.with_vmid_bits(2), 1, 1, 64 << 20);
    let ended = world.machine.alone(|_| {
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.tables(0, 4, 40)));
        assert!(refused.is_err(), "VMID 4 is 0 on a CPU with 2 bits");
    });
    ended.unwrap_or_else(|breach| panic!("{breach}"));
}

/// A page that one CPU mapped does not fault on another CPU that knows of it. An access through new tables finds
/// nothing.
#[test]
fn judge_what_another_cpu_mapped_does_not_fault() {
    for seed in 1..=20 {
        let world = World::narrow(MODERN, 2, seed, (64, 4));
        let made = OnceLock::new();
        let reported = AtomicU64::new(0);
        let maps: Program<'_> = Box::new(|cpu| {
            let tables = made.get_or_init(|| world.tables(0, 1, 40));
            cpu.meet();
            reported.store(1, Ordering::Relaxed);
            for number in 1..32 {
                let (pa, attributes) = (world.frame(number * PAGE), Attributes::ram(Access::READ_WRITE));
                let mapped = tables.map(page(number), pa, Level::L3, &attributes, &mut &world.pages);
                assert_eq!(mapped, Ok(Mapped::New));
                cpu.meet();
                reported.store(number + 1, Ordering::Relaxed);
            }
        });
        let uses: Program<'_> = Box::new(|cpu| {
            while reported.load(Ordering::Relaxed) == 0 {
                cpu.pause();
            }
            let tables = made.get().unwrap();
            cpu.load(tables.vttbr());
            let mut guest = cpu.enter(tables.vttbr(), tables.vtcr(), 0);
            (0..32).for_each(|gib| assert!(guest.load(START + (gib << 30)).is_err(), "a page is mapped"));
            guest.forget_fault();
            for number in 1..32 {
                while reported.load(Ordering::Relaxed) <= number {
                    cpu.pause();
                }
                let stored = guest.store(page(number).raw(), 1);
                assert!(stored.is_ok(), "page {number} was mapped by another CPU, and faults: {stored:?}");
            }
            cpu.load(0);
        });
        world.machine.run(vec![maps, uses]).unwrap_or_else(|breach| panic!("{breach}"));
    }
}

/// Several CPUs withdraw write access from the same memory, while another CPU repeatedly splits it and maps it again,
/// read-only. When one of them is done, no page may be written, whichever CPU withdrew the access; or no page without
/// hardware's record; or nothing is recorded any more.
#[test]
fn judge_a_pass_misses_nothing() {
    for seed in 1..=120 {
        let takes = match seed {
            ..=60 => Takes::Writes,
            61..=90 => Takes::UnrecordedWrites,
            _ => Takes::Records,
        };
        let features = if seed % 2 == 0 { MODERN } else { PLAIN };
        let world = World::narrow(features, 4, seed, (64, 3));
        let whole = page(0)..page(512);
        let tables = world.machine.alone(|cpu| {
            let tables = world.tables(0, 1, 40);
            cpu.load(tables.vttbr());
            let attributes = Attributes { dirty_by_hardware: seed % 4 < 2, ..Attributes::ram(Access::READ_WRITE) };
            let mapped = tables.map(page(0), world.frame(0), Level::L2, &attributes, &mut &world.pages);
            assert_eq!(mapped, Ok(Mapped::New));
            let mut guest = cpu.enter(tables.vttbr(), tables.vtcr(), 0);
            guest.store(page(0).raw(), 1).unwrap();
            cpu.load(0);
            tables
        });
        let tables = tables.unwrap_or_else(|breach| panic!("{breach}"));
        let protects = |range: IpaRange| -> Program<'_> {
            let tables = &tables;
            Box::new(move |cpu| {
                for _ in 0..3 {
                    (0..cpu.draw(40)).for_each(|_| cpu.pause());
                    let pending = match takes {
                        Takes::Writes => tables.write_protect(range.clone()),
                        Takes::UnrecordedWrites => tables.set_dbm_clean(range.clone()),
                        Takes::Records => tables.clear_dbm(range.clone()),
                    };
                    let _ = pending.unwrap().complete();
                    cpu.meet();
                    let seen = cpu.knowledge();
                    let withdrawn = if takes == Takes::Records { Withdrawn::Records } else { Withdrawn::Writes };
                    cpu.expect_flushed(tables.vttbr(), &range, &seen, withdrawn);
                    for number in [0, 1, 100, 511] {
                        let is_left = |leaf: &twofold_stage2::Leaf| match takes {
                            Takes::Writes => leaf.descriptor.is_writable() || leaf.descriptor.is_hardware_tracked(),
                            Takes::UnrecordedWrites => leaf.descriptor.is_writable(),
                            Takes::Records => leaf.descriptor.is_hardware_tracked(),
                        };
                        let leaf =
                            tables.look_up(page(number)).filter(|leaf| range.contains(&leaf.ipa) && is_left(leaf));
                        assert!(leaf.is_none(), "page {number} was protected: {leaf:?}, seed {seed}");
                    }
                }
            })
        };
        let changes: Program<'_> = Box::new(|cpu| {
            for _ in 0..3 {
                let split = tables.split(whole.clone(), MIB_2, &mut &world.pages, |_, _| ControlFlow::Continue(()));
                assert!(split.is_ok());
                (0..cpu.draw(20)).for_each(|_| cpu.pause());
                let block = Attributes::ram(Access::READ);
                let done = tables.coalesce(page(0), world.frame(0), Level::L2, &block, &mut &world.pages, &mut |_| ());
                assert!(done.is_ok());
            }
        });
        let programs = vec![protects(whole.clone()), changes, protects(whole.clone()), protects(page(0)..page(512))];
        world.machine.run(programs).unwrap_or_else(|breach| panic!("{breach}"));
    }
}

/// What a pass ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    Writes,
    UnrecordedWrites,
    Records,
}

/// Each unlinked table is counted, even if another CPU unlinks one meanwhile: a lockless walk that began before has to
/// see the count.
#[test]
fn judge_each_table_that_is_taken_out_is_counted() {
    const ROUNDS: u64 = 30;
    for seed in 1..=20 {
        let world = World::narrow(MODERN, 2, seed, (64, 4));
        let huge_page = |cpu: u64, number: u64| Ipa::new(START + (cpu << 30) + number * MIB_2);
        let attributes = Attributes::ram(Access::READ_WRITE);
        let map = |tables: &Stage2<Hosted>, ipa| {
            let mapped = tables.map(ipa, world.frame(0), Level::L3, &attributes, &mut &world.pages);
            assert_eq!(mapped, Ok(Mapped::New));
        };
        let tables = world.machine.alone(|_| {
            let tables = world.tables(0, 1, 40);
            // The tables above stay linked.
            (0..2).for_each(|cpu| map(&tables, huge_page(cpu, 1)));
            tables
        });
        let tables = tables.unwrap_or_else(|breach| panic!("{breach}"));
        let before = tables.unlink_count();
        let programs = (0..2).map(|_| -> Program<'_> {
            Box::new(|cpu| {
                let ipa = huge_page(cpu.number() as u64, 0);
                for _ in 0..ROUNDS {
                    map(&tables, ipa);
                    let unmapped = tables.unmap(ipa..ipa + MIB_2, &mut &world.pages, Unwatched);
                    unmapped.unwrap().complete().free(&mut &world.pages);
                }
            })
        });
        world.machine.run(programs.collect()).unwrap_or_else(|breach| panic!("{breach}"));
        let ended = world.machine.alone(|_| {
            assert_eq!(tables.unlink_count() - before, 2 * ROUNDS, "seed {seed}");
            tables.destroy(&mut &world.pages, Unwatched);
        });
        ended.unwrap_or_else(|breach| panic!("{breach}"));
    }
}

/// Hardware records a write at the moment when an operation ends its records, or clears access flags. The write is
/// reported, or still recorded.
#[test]
fn judge_no_write_is_lost_at_the_moment() {
    for seed in 1..=600 {
        let world = World::narrow(MODERN, 2, seed, (64, 2));
        let tracked = Attributes { dirty_by_hardware: true, ..Attributes::ram(Access::READ) };
        let tables = world.machine.alone(|cpu| {
            let tables = world.tables(0, 1, 40);
            cpu.load(tables.vttbr());
            let level = if seed % 9 == 5 { Level::L2 } else { Level::L3 };
            let mapped = tables.map(page(0), world.frame(0), level, &tracked, &mut &world.pages);
            assert_eq!(mapped, Ok(Mapped::New));
            let mut guest = cpu.enter(tables.vttbr(), tables.vtcr(), 0);
            guest.load(page(0).raw()).unwrap();
            cpu.load(0);
            tables
        });
        let tables = tables.unwrap_or_else(|breach| panic!("{breach}"));
        let reported = AtomicU64::new(0);
        let writes: Program<'_> = Box::new(|cpu| {
            cpu.load(tables.vttbr());
            let mut guest = cpu.enter(tables.vttbr(), tables.vtcr(), 0);
            (0..cpu.draw(12)).for_each(|_| cpu.pause());
            // If the store faults, nothing was written.
            let _ = guest.store(page(0).raw(), 1);
            cpu.load(0);
        });
        let ends: Program<'_> = Box::new(|cpu| {
            let (range, mut report) = (page(0)..page(1), |_| reported.store(1, Ordering::Relaxed));
            match seed % 9 {
                0 => tables.age(range, &mut |_| ()).unwrap(),
                1 => {
                    let _ = tables.clear_dbm_and_write(range, &mut report).unwrap().complete();
                }
                2 => {
                    let _ = tables.protect(range, Access::READ_WRITE, &mut &world.pages).unwrap().complete();
                }
                // A page is changed in place; a block is broken and made again.
                3 | 5 => {
                    let _ = tables.relax(page(0), Access { execute: Execute::EL1, ..Access::READ });
                }
                6 => {
                    let _ = tables.relax_page(page(0), Access { execute: Execute::EL1, ..Access::READ });
                }
                // The pages recorded when the records ended may still be written. In case 8, DBM is set again at once.
                7 | 8 => {
                    let pending = tables.clear_dbm(range.clone()).unwrap();
                    if seed % 9 == 8 {
                        tables.set_dbm(range.clone()).unwrap();
                    }
                    let _ = pending.complete();
                    tables.written(range, &mut report).unwrap();
                }
                _ => {
                    let replaced = tables.map(page(0), world.frame(PAGE), Level::L3, &tracked, &mut &world.pages);
                    if let Ok(Mapped::Replaced(old)) = replaced
                        && old.is_hardware_dirty()
                    {
                        reported.store(1, Ordering::Relaxed);
                    }
                }
            }
            let _ = cpu;
        });
        world.machine.run(vec![writes, ends]).unwrap_or_else(|breach| panic!("{breach}"));
        let ended = world.machine.alone(|_| {
            let written = world.machine.arena().load(world.frame(0)) == Some(1);
            let leaf = tables.look_up(page(0)).unwrap();
            let recorded = leaf.descriptor.is_hardware_dirty() && leaf.descriptor.address() == world.frame(0);
            assert!(
                !written || recorded || reported.load(Ordering::Relaxed) == 1,
                "seed {seed}: a write is lost: {leaf:?}"
            );
        });
        ended.unwrap_or_else(|breach| panic!("{breach}"));
    }
}

/// Memory is read after the flush. Hardware records every later write, or the write does not happen.
#[test]
fn judge_what_is_read_after_the_flush_is_not_written_unseen() {
    // The operations that leave nothing writable.
    const CLEANING: [usize; 7] = [0, 1, 2, 3, 4, 5, 6];
    for seed in 1..=420 {
        let world = World::narrow(MODERN, 2, seed, (64, 3));
        let tracked = Attributes { dirty_by_hardware: true, ..Attributes::ram(Access::READ) };
        let tables = world.machine.alone(|cpu| {
            let tables = mapped(&world, cpu, &tracked);
            cpu.load(0);
            tables
        });
        let tables = tables.unwrap_or_else(|breach| panic!("{breach}"));
        let value = || world.machine.arena().load(world.frame(0)).unwrap();
        let copy = AtomicU64::new(0);
        let writes: Program<'_> = Box::new(|cpu| {
            cpu.load(tables.vttbr());
            let mut guest = cpu.enter(tables.vttbr(), tables.vtcr(), 0);
            for number in 1..12 {
                (0..cpu.draw(4)).for_each(|_| cpu.pause());
                if guest.store(page(0).raw(), number).is_err() {
                    break;
                }
            }
            cpu.load(0);
        });
        let reads: Program<'_> = Box::new(|cpu| {
            (0..cpu.draw(20)).for_each(|_| cpu.pause());
            let which = CLEANING[seed as usize % CLEANING.len()];
            let _ = change(which, &tables, &world, page(0)..page(1)).complete();
            copy.store(value(), Ordering::Relaxed);
        });
        world.machine.run(vec![writes, reads]).unwrap_or_else(|breach| panic!("{breach}"));
        let leaf =
            world.machine.alone(|_| tables.look_up(page(0)).unwrap()).unwrap_or_else(|breach| panic!("{breach}"));
        let seen = value() == copy.load(Ordering::Relaxed) || leaf.descriptor.is_hardware_dirty();
        assert!(seen, "seed {seed}: a write came after the flush, without a record: {leaf:?}");
    }
}
