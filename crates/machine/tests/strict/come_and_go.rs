// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables that are linked and freed at once. Two guests share few table pages, so a page becomes the other guest's
//! table before a late lockless walk has seen that it left its own tree. And frames that change owners: each is zeroed
//! before it is mapped, and read when it is returned.

use std::cell::RefCell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use twofold_machine::program::{Exit, Instructions};
use twofold_machine::strict::{CpuHandle, Hosted, Knowledge, Program};
use twofold_stage2::fault::{Fault, FaultKind};
use twofold_stage2::{
    Access, Attributes, Broken, Coalesced, Error, Execute, Features, Ipa, Leaf, Level, Mapped, Pa, RemovalWatcher,
    Stage2, Unwatched,
};

use crate::random::{Scarce, operations, seed};
use crate::window::ByAddress as _;
use crate::world::{MIB_2, MODERN, PAGE, PLAIN, World};

const CPUS: usize = 4;
const GUESTS: u64 = 2;
const HUGE_PAGES: u64 = 2;
const START: u64 = 1 << 30;
/// The number of table pages: one of level 2 for each guest, and fewer of level 3 than both guests need.
const TABLES: u64 = 5;
/// The pages that are used in each 2 MiB.
const PAGES: [u64; 3] = [0, 1, 511];

#[test]
fn judge_tables_come_and_go() {
    tables_come_and_go(MODERN, operations(12_000).min(400_000), seed());
}

#[test]
fn judge_tables_come_and_go_without_zva() {
    let features = MODERN.with_zero_block(0).with_tlbi_range(false);
    tables_come_and_go(features, operations(12_000).min(400_000), seed());
}

#[test]
fn judge_frames_change_hands() {
    frames_change_hands(MODERN, operations(4_000).min(200_000), seed());
}

#[test]
fn judge_frames_change_hands_past_the_cache() {
    frames_change_hands(PLAIN, operations(4_000).min(200_000), seed());
}

/// Each page of each guest has one frame of its own.
fn frame(world: &World, guest: u64, ipa: u64) -> Pa {
    world.frame(guest * HUGE_PAGES * MIB_2 + (ipa - START))
}

fn tables_come_and_go(features: Features, total: u64, first_seed: u64) {
    const AT_ONCE: u64 = 4_000;
    let (mut done, mut seed) = (0, first_seed);
    while done < total {
        let world = World::narrow(features, CPUS, seed, (TABLES, if seed % 2 == 0 { 8 } else { 40 }));
        let guests = world.machine.alone(|cpu| {
            let guests: Vec<_> = (0..GUESTS).map(|guest| world.tables(guest, guest as u16 + 1, 40)).collect();
            guests.iter().for_each(|tables| cpu.load(tables.vttbr()));
            cpu.load(0);
            guests
        });
        let guests = guests.unwrap_or_else(|breach| panic!("{breach}"));
        let left = AtomicU64::new(AT_ONCE);
        let programs = (0..CPUS).map(|_| -> Program<'_> {
            Box::new(|cpu| {
                while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
                    come_or_go(cpu, &world, &guests);
                }
            })
        });
        world.machine.run(programs.collect()).unwrap_or_else(|breach| panic!("{breach}"));
        let ended = world.machine.alone(|_| {
            let in_trees: u64 =
                guests.iter().map(|tables| tables.audit().unwrap_or_else(|error| panic!("{error}"))).sum();
            assert_eq!(world.pages.out(), in_trees, "pages are lost");
            for tables in guests {
                tables.destroy(&mut &world.pages, Unwatched);
            }
            assert_eq!(world.pages.out(), 0, "pages are lost");
        });
        ended.unwrap_or_else(|breach| panic!("{breach}"));
        done += AT_ONCE;
        seed += 1;
    }
}

fn come_or_go(cpu: &CpuHandle, world: &World, guests: &[Stage2<Hosted>]) {
    let guest = cpu.draw(GUESTS);
    let tables = &guests[guest as usize];
    let mut pages = Scarce { pages: &world.pages, cpu, one_in: 0 };
    let huge_page = START + cpu.draw(HUGE_PAGES) * MIB_2;
    let at = huge_page + PAGES[cpu.draw(PAGES.len() as u64) as usize] * PAGE;
    let (ipa, whole) = (Ipa::new(at), Ipa::new(huge_page)..Ipa::new(huge_page + MIB_2));
    let attributes = Attributes { dirty_by_hardware: cpu.draw(2) == 0, ..Attributes::ram(Access::READ_WRITE) };
    let check = |what: &str, leaf: Leaf| {
        let expected = frame(world, guest, leaf.ipa.raw());
        if leaf.descriptor.address() != expected {
            cpu.report(format!(
                "{what} reports {leaf:?}, and guest {guest} never had another frame there than {expected}"
            ));
        }
    };
    let tolerate = |what: &str, result: Result<(), Error>| match result {
        Ok(()) | Err(Error::NoTablePage { .. } | Error::NotMapped { .. } | Error::TableInTheWay { .. }) => {}
        Err(error) => cpu.report(format!("{what}: {error}")),
    };
    match cpu.draw(16) {
        0..3 => {
            let mapped = tables.map(ipa, frame(world, guest, at), Level::L3, &attributes, &mut pages);
            if let Ok(Mapped::Replaced(old)) = mapped {
                cpu.report(format!("map replaced {old:?} at {ipa}, which has only one frame"));
            }
            tolerate("map", mapped.map(|_| ()));
        }
        3..6 => {
            let removed = RefCell::default();
            let range = if cpu.draw(4) == 0 { ipa..ipa + PAGE } else { whole };
            match tables.unmap(range, &mut pages, Collect(&removed)) {
                Ok(pending) => {
                    let freed = pending.complete().free(&mut pages);
                    removed
                        .borrow()
                        .iter()
                        .filter_map(|leaf: &Broken| leaf.open(&freed))
                        .for_each(|leaf| check("unmap", leaf));
                }
                Err(error) => tolerate("unmap", Err(error)),
            }
        }
        6 => {
            let mapped = tables.map(whole.start, frame(world, guest, huge_page), Level::L2, &attributes, &mut pages);
            tolerate("map of a block", mapped.map(|_| ()));
        }
        7..9 => {
            let pa = frame(world, guest, huge_page);
            let mut removed = Vec::new();
            let coalesced =
                tables.coalesce(whole.start, pa, Level::L2, &attributes, &mut pages, &mut |leaf| removed.push(leaf));
            if let Ok(Coalesced::Mapped(Mapped::Replaced(old))) = coalesced {
                cpu.report(format!("coalesce replaced {old:?} at {ipa}, which has only one frame"));
            }
            tolerate("coalesce", coalesced.map(|_| ()));
            removed.into_iter().for_each(|leaf| check("coalesce", leaf));
        }
        9..11 => {
            let split = tables.split(whole, PAGE, &mut pages, |_, _| std::ops::ControlFlow::Continue(()));
            tolerate("split", split.map(|_| ()));
        }
        11 => tolerate("map of a range", {
            let range = ipa..ipa + PAGE * (1 + cpu.draw(3)).min((huge_page + MIB_2 - at) / PAGE);
            tables.map_range(range, frame(world, guest, at), Level::L3, &attributes, &mut pages)
        }),
        12 => tolerate("relax", tables.relax(ipa, Access::ALL).map(|_| ())),
        13 => match cpu.draw(3) {
            0 => {
                let _ = tables.write_protect(whole).unwrap().complete();
            }
            1 => {
                let _ = tables.clean(whole, &mut |_| ()).unwrap().complete();
            }
            _ => tables.age(whole, &mut |_| ()).unwrap(),
        },
        _ => {
            if let Some(leaf) = tables.look_up(ipa) {
                check("look_up", leaf);
            }
        }
    }
}

struct Collect<'a>(&'a RefCell<Vec<Broken>>);

impl RemovalWatcher for Collect<'_> {
    const WATCHES: bool = true;

    fn leaf(&mut self, leaf: Broken) {
        self.0.borrow_mut().push(leaf);
    }
}

/// Free frames. A returned frame is read.
struct Frames<'a> {
    world: &'a World,
    /// Each frame with the knowledge of the CPU that returned it, which the lock transfers.
    free: Mutex<Vec<(u64, Option<Knowledge>)>>,
}

/// The number of frames, which is more than that of the pages.
const FRAMES: u64 = 24;

impl Frames<'_> {
    fn take(&self, cpu: &CpuHandle) -> Option<u64> {
        let (offset, known) = self.free.lock().unwrap().pop()?;
        known.iter().for_each(|known| cpu.learn(known));
        Some(offset)
    }

    /// Returns a frame: no TLB may lead to it, and the guest's writes to it are visible.
    fn give(&self, cpu: &CpuHandle, pa: Pa) {
        cpu.reuse(pa, PAGE);
        cpu.reads(pa, PAGE);
        self.free.lock().unwrap().push((pa - self.world.frame(0), Some(cpu.knowledge())));
    }
}

fn frames_change_hands(features: Features, total: u64, first_seed: u64) {
    const AT_ONCE: u64 = 4_000;
    let (mut done, mut seed) = (0, first_seed);
    while done < total {
        let world = World::narrow(features, CPUS, seed, (64, 12));
        let frames =
            Frames { world: &world, free: Mutex::new((0..FRAMES).map(|number| (number * PAGE, None)).collect()) };
        let tables = world.machine.alone(|cpu| {
            let tables = world.tables(0, 1, 40);
            cpu.load(0);
            tables
        });
        let tables = tables.unwrap_or_else(|breach| panic!("{breach}"));
        let left = AtomicU64::new(AT_ONCE);
        let programs = (0..CPUS).map(|_| -> Program<'_> {
            Box::new(|cpu| {
                while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
                    change_hands(cpu, &frames, &tables);
                }
                cpu.load(0);
            })
        });
        world.machine.run(programs.collect()).unwrap_or_else(|breach| panic!("{breach}"));
        let removed = world.machine.alone(|_| {
            let removed = RefCell::default();
            tables.destroy(&mut &world.pages, Collect(&removed));
            removed.into_inner().len()
        });
        let there = frames.free.into_inner().unwrap().len() + removed.unwrap_or_else(|breach| panic!("{breach}"));
        assert_eq!(there as u64, FRAMES, "a frame is lost, or was returned twice");
        done += AT_ONCE;
        seed += 1;
    }
}

fn change_hands(cpu: &CpuHandle, frames: &Frames<'_>, tables: &Stage2<Hosted>) {
    let world = frames.world;
    let mut pages = &world.pages;
    let number = cpu.draw(16);
    let ipa = Ipa::new(START + number * PAGE);
    if cpu.draw(4) == 0 {
        let removed = RefCell::default();
        let whole = Ipa::new(START)..Ipa::new(START + MIB_2);
        let range = if cpu.draw(6) == 0 { whole } else { ipa..ipa + PAGE * (1 + cpu.draw(16 - number)) };
        let freed = tables.unmap(range, &mut pages, Collect(&removed)).unwrap().complete().free(&mut pages);
        let removed = removed.into_inner().into_iter().filter_map(|leaf: Broken| leaf.open(&freed));
        removed.for_each(|leaf| frames.give(cpu, leaf.descriptor.address()));
        return;
    }
    if cpu.draw(16) == 0 {
        // Another frame, while the guest uses the first.
        if let Some(offset) = frames.take(cpu) {
            world.run(offset, PAGE).zero(&world.machine.platform(), &world.features);
            let mapped = tables.map(ipa, world.frame(offset), Level::L3, &Attributes::ram(Access::READ), &mut pages);
            match mapped.unwrap() {
                Mapped::New => {}
                Mapped::Replaced(old) => frames.give(cpu, old.address()),
                Mapped::Already(_) => cpu.report(format!("{ipa} is mapped to a frame that was free")),
            }
        }
        return;
    }
    cpu.load(tables.vttbr());
    // A vCPU for each CPU.
    let mut guest = cpu.enter(tables.vttbr(), tables.vtcr(), cpu.number() as u32);
    let what = cpu.draw(3);
    for _ in 0..8 {
        let done = match what {
            0 => guest.load(ipa.raw()).map(|value| {
                if value != 0 && value != ipa.raw() {
                    cpu.report(format!("{ipa} holds {value:#x}, which is another page's"));
                }
            }),
            1 => guest.store(ipa.raw(), ipa.raw()),
            _ => guest.fetch(ipa.raw()).map(|_| ()),
        };
        let Err(Exit::Abort(abort)) = done else { return };
        guest.forget_fault();
        match Fault::from_syndrome(abort.esr).unwrap().kind {
            FaultKind::Translation => {
                let Some(offset) = frames.take(cpu) else { return };
                world.run(offset, PAGE).zero(&world.machine.platform(), &world.features);
                let execute = if what == 2 { Execute::ALWAYS } else { Execute::NEVER };
                let attributes = Attributes::ram(Access { execute, ..Access::READ });
                match tables.map(ipa, world.frame(offset), Level::L3, &attributes, &mut pages).unwrap() {
                    Mapped::New => {}
                    Mapped::Replaced(old) => frames.give(cpu, old.address()),
                    Mapped::Already(_) => cpu.report(format!("{ipa} is mapped to a frame that was free")),
                }
            }
            _ => {
                let wanted = if what == 1 { Access::READ_WRITE } else { Access::ALL };
                let _ = tables.relax(ipa, wanted);
            }
        }
    }
}
