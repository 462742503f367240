// SPDX-License-Identifier: Apache-2.0 OR MIT
//! More guests than VMIDs: CPUs enter one guest after another, and change and flush the tables of others, while VMIDs are
//! given away. QEMU hides a VMID that is used too early, since it forgets all entries at each change of the VMID.

use std::sync::atomic::{AtomicU64, Ordering};

use twofold_machine::program::Instructions as _;
use twofold_machine::strict::{CpuHandle, Hosted, Program, Withdrawn};
use twofold_stage2::{
    Access, Attributes, Error, Features, Geometry, Ipa, Kib4, Level, Stage2, Unwatched, VmidInUse, VmidSlot, Vmids,
};

use crate::random::{operations, seed};
use crate::window::ByAddress as _;
use crate::world::{MODERN, PAGE, PLAIN, World};

const CPUS: usize = 3;
const GUESTS: u64 = 8;
const START: u64 = 1 << 30;
const PAGES: u64 = 3;
/// One to run a guest and one to flush, for each CPU.
const LEAST: usize = 2 * CPUS;

type Tables = Stage2<Hosted>;

#[test]
fn judge_vmids_change_hands() {
    vmids_change_hands(MODERN, LEAST, operations(6_000).min(400_000), seed());
}

#[test]
fn judge_vmids_change_hands_without_ranges() {
    vmids_change_hands(PLAIN, LEAST + 1, operations(6_000).min(400_000), seed());
}

fn vmids_change_hands(features: Features, count: usize, total: u64, first_seed: u64) {
    const AT_ONCE: u64 = 2_000;
    let (mut done, mut seed, mut generations) = (0, first_seed, 0);
    while done < total {
        let world = World::narrow(features, CPUS, seed, (4 * GUESTS, if seed % 2 == 0 { 8 } else { 40 }));
        let vmids = vmids(&world, count);
        let made = world.machine.alone(|_| (0..GUESTS).map(|number| tables(&world, vmids, number)).collect());
        let guests: Vec<Tables> = made.unwrap_or_else(|breach| panic!("{breach}"));
        let left = AtomicU64::new(AT_ONCE);
        let programs = (0..CPUS).map(|_| -> Program<'_> {
            Box::new(|cpu| {
                while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
                    step(cpu, &world, &guests);
                }
            })
        });
        world.machine.run(programs.collect()).unwrap_or_else(|breach| panic!("seed {seed}: {breach}"));
        generations += vmids.generations();
        let ended = world.machine.alone(|_| {
            for tables in guests {
                tables.destroy(&mut &world.pages, Unwatched);
            }
        });
        ended.unwrap_or_else(|breach| panic!("{breach}"));
        done += AT_ONCE;
        seed += 1;
    }
    println!("{generations} generations in {done} operations");
    assert!(generations > done / 200, "{generations} generations");
}

/// A CPU enters a guest, and goes on from there, or changes a guest that it does not run.
fn step(cpu: &CpuHandle, world: &World, guests: &[Tables]) {
    let guest = cpu.draw(GUESTS);
    if cpu.draw(2) == 0 {
        return change(cpu, world, guests, guest);
    }
    let tables = &guests[guest as usize];
    let in_use = tables.use_vmid().unwrap_or_else(|error| panic!("{error}"));
    // Each CPU has a vCPU of its own, so nothing is invalidated here, which would be a fence too.
    let mut running = cpu.enter(in_use.vttbr(), tables.vtcr(), cpu.number() as u32);
    for _ in 0..1 + cpu.draw(4) {
        let at = START + cpu.draw(PAGES) * PAGE;
        match running.load(at) {
            Ok(value) if value != 0 && value != mark(guest) => {
                cpu.report(format!("guest {guest} reads {value:#x}"));
            }
            Ok(_) => _ = running.store(at, mark(guest)),
            Err(_) => {}
        }
        running.forget_fault();
        if cpu.draw(2) == 0 {
            change(cpu, world, guests, if cpu.draw(2) == 0 { guest } else { cpu.draw(GUESTS) });
        }
    }
    drop(running);
    leave(cpu, tables, in_use);
}

fn leave(cpu: &CpuHandle, tables: &Tables, in_use: VmidInUse) {
    cpu.load(0);
    tables.release_vmid(in_use);
}

/// Maps a page of a guest, or removes it or its writes, which is flushed at once.
fn change(cpu: &CpuHandle, world: &World, guests: &[Tables], guest: u64) {
    let (tables, number) = (&guests[guest as usize], cpu.draw(PAGES));
    let ipa = Ipa::new(START + number * PAGE);
    let (seen, range) = (cpu.knowledge(), ipa..ipa + PAGE);
    let flushed = |withdrawn| cpu.expect_flushed(tables.vttbr(), &range, &seen, withdrawn);
    let frame = world.frame((guest * PAGES + number) * PAGE);
    let attributes = Attributes::ram(Access::READ_WRITE);
    let done = match cpu.draw(4) {
        0 | 1 => tables.map(ipa, frame, Level::L3, &attributes, &mut &world.pages).map(drop),
        2 => tables.unmap(range.clone(), &mut &world.pages, Unwatched).map(|pending| {
            let freed = pending.complete();
            flushed(Withdrawn::Everything);
            let _ = freed.free(&mut &world.pages);
        }),
        _ => tables.write_protect(range.clone()).map(|pending| {
            let _ = pending.complete();
            flushed(Withdrawn::Writes);
        }),
    };
    if let Err(error) = done
        && !matches!(error, Error::NotMapped { .. })
    {
        cpu.report(error.to_string());
    }
}

/// A tree without a VMID gets one while two CPUs enter its guest, and a third one removes what the guest uses.
#[test]
fn judge_a_gift_meets_a_flush() {
    let rounds = operations(4_000).min(100_000);
    let world = World::narrow(MODERN, CPUS, seed(), (4 * GUESTS, 40));
    let vmids = vmids(&world, LEAST);
    let alone =
        |body: &(dyn Fn(&CpuHandle) + Sync)| world.machine.alone(body).unwrap_or_else(|breach| panic!("{breach}"));
    let made = world.machine.alone(|_| (0..GUESTS).map(|number| tables(&world, vmids, number)).collect());
    let guests: Vec<Tables> = made.unwrap_or_else(|breach| panic!("{breach}"));
    let (tables, others) = guests.split_last().expect("a guest");
    let (ipa, attributes) = (Ipa::new(START), Attributes::ram(Access::READ_WRITE));
    for _ in 0..rounds {
        alone(&|cpu| {
            // The others take all VMIDs.
            others.iter().for_each(|other| leave(cpu, other, other.use_vmid().unwrap()));
            let _ = tables.map(ipa, world.frame(0), Level::L3, &attributes, &mut &world.pages).unwrap();
        });
        let enter = |cpu: &CpuHandle| {
            let in_use = tables.use_vmid().unwrap_or_else(|error| panic!("{error}"));
            let mut running = cpu.enter(in_use.vttbr(), tables.vtcr(), cpu.number() as u32);
            (0..3).for_each(|_| _ = running.load(START));
            drop(running);
            leave(cpu, tables, in_use);
        };
        let remove = |cpu: &CpuHandle| {
            let (seen, range) = (cpu.knowledge(), ipa..ipa + PAGE);
            let pending = tables.unmap(range.clone(), &mut &world.pages, Unwatched).unwrap();
            let freed = pending.complete();
            cpu.expect_flushed(tables.vttbr(), &range, &seen, Withdrawn::Everything);
            let _ = freed.free(&mut &world.pages);
            cpu.reuse(world.frame(0), PAGE);
        };
        let programs: Vec<Program<'_>> = vec![Box::new(enter), Box::new(enter), Box::new(remove)];
        world.machine.run(programs).unwrap_or_else(|breach| panic!("{breach}"));
    }
    alone(&|_| println!("{} generations in {rounds} rounds", vmids.generations()));
    let ended = world.machine.alone(|_| {
        for tables in guests {
            tables.destroy(&mut &world.pages, Unwatched);
        }
    });
    ended.unwrap_or_else(|breach| panic!("{breach}"));
}

/// What a guest writes.
fn mark(guest: u64) -> u64 {
    0x1000 + guest
}

#[test]
fn judge_a_tree_keeps_its_vmid_until_another_needs_it() {
    let world = World::narrow(MODERN, 1, 1, (2 * GUESTS, 40));
    let vmids = vmids(&world, 2);
    let ended = world.machine.alone(|cpu| {
        let trees: Vec<_> = (0..3).map(|number| tables(&world, vmids, number)).collect();
        let vmid = |tree: usize| {
            let in_use = trees[tree].use_vmid().unwrap();
            let vmid = in_use.vttbr() >> 48;
            leave(cpu, &trees[tree], in_use);
            (vmid, vmids.generations())
        };
        assert_eq!([0, 1, 0, 1].map(vmid), [(1, 1), (2, 1), (1, 1), (2, 1)]);
        // The third needs a generation. The second's is still its own then.
        assert_eq!([2, 1, 2].map(vmid), [(1, 2), (2, 2), (1, 2)]);
        assert_eq!(vmid(0).1, 3);
        let [first, second] = [0, 1].map(|tree| trees[tree].use_vmid().unwrap());
        assert_eq!(trees[2].use_vmid().unwrap_err(), Error::NoVmid { slots: 2 });
        leave(cpu, &trees[0], first);
        let third = trees[2].use_vmid().unwrap();
        leave(cpu, &trees[1], second);
        leave(cpu, &trees[2], third);
        for tree in trees {
            tree.destroy(&mut &world.pages, Unwatched);
        }
    });
    ended.unwrap_or_else(|breach| panic!("{breach}"));
}

#[test]
fn judge_a_tree_without_a_vmid_is_flushed_by_nothing() {
    let world = World::narrow(MODERN, 1, 1, (2 * GUESTS, 40));
    let vmids = vmids(&world, 1);
    let ended = world.machine.alone(|cpu| {
        let trees: Vec<_> = (0..2).map(|number| tables(&world, vmids, number)).collect();
        let invalidations = |tree: usize| {
            let before = cpu.invalidations();
            trees[tree].invalidate_all();
            cpu.invalidations() - before
        };
        let run = |tree: usize| leave(cpu, &trees[tree], trees[tree].use_vmid().unwrap());
        assert_eq!(invalidations(0), 0);
        run(0);
        assert_eq!(invalidations(0), 1);
        run(1);
        assert_eq!([0, 1].map(invalidations), [0, 1]);
        for tree in trees {
            tree.destroy(&mut &world.pages, Unwatched);
        }
    });
    ended.unwrap_or_else(|breach| panic!("{breach}"));
}

/// The empty tables of a guest. The caller has to be a CPU of the machine.
fn tables(world: &World, vmids: &'static Vmids<'static>, number: u64) -> Tables {
    let geometry = Geometry::new(Kib4, 40, &world.features).unwrap();
    let root = world.machine.arena().donate_part(number * 16 * PAGE, geometry.root_size()).unwrap();
    let root = root.into_run().into_root(&geometry).unwrap();
    Stage2::sharing_vmids(world.machine.platform().sharing(vmids), world.features, geometry, root).unwrap()
}

/// This number of VMIDs to share.
fn vmids(world: &World, count: usize) -> &'static Vmids<'static> {
    let slots: &[VmidSlot] = Vec::leak((0..count).map(|_| VmidSlot::new()).collect());
    Box::leak(Box::new(Vmids::new(slots, &world.features).unwrap()))
}
