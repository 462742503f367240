// SPDX-License-Identifier: Apache-2.0 OR MIT
//! No write is lost: a page without any record equals its last copy.
//!
//! Guests write through leaves in which hardware records it (DBM), while other CPUs split, coalesce, age, protect,
//! unmap and map again. Each record that an operation reports goes into a log. In each round one CPU collects what
//! hardware recorded. When the flush is complete and all CPUs rest, each page that is not in the log is compared with
//! its copy.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use twofold_machine::program::Instructions;
use twofold_machine::strict::{CpuHandle, Hosted, Program};
use twofold_stage2::{
    Access, Attributes, Broken, Coalesced, Features, Ipa, IpaRange, Leaf, Level, Mapped, Marked, RemovalWatcher,
    Stage2, Unwatched,
};

use super::{operations, seed};
use crate::window::ByAddress as _;
use crate::world::{MIB_2, MODERN, PAGE, PLAIN, World};

const CPUS: usize = 4;
const START: u64 = 1 << 30;
const RANGE: IpaRange = Ipa::new(START)..Ipa::new(START + 2 * MIB_2);
/// The pages that are written: in two huge pages (2 MiB), some adjacent.
const PAGES: [u64; 6] = [0, 1, 63, 511, 512, 1023];

#[test]
fn judge_no_write_is_lost() {
    no_write_is_lost(MODERN, operations(6_000).min(500_000), seed());
}

#[test]
fn judge_no_write_is_lost_on_armv8_0_with_dirty_state() {
    no_write_is_lost(PLAIN, operations(6_000).min(500_000), seed());
}

struct Log<'a> {
    world: &'a World,
    tables: &'a Stage2<Hosted>,
    /// Whether records are ended and restarted. That works on pages only, so there are no blocks then.
    ends_records: bool,
    written: Mutex<BTreeSet<u64>>,
    /// The content of each page's word at its last copy.
    copies: Mutex<[u64; PAGES.len()]>,
    /// The number of CPUs that rest. `rest` is whether they are to.
    resting: AtomicU64,
    /// The number of CPUs that have ended.
    ended: AtomicU64,
    rest: AtomicU64,
    left: AtomicU64,
    lost: AtomicU64,
    compared: AtomicU64,
}

/// Collects the removed leaves, in which hardware may have recorded writes.
struct Collect<'a>(&'a RefCell<Vec<Broken>>);

impl RemovalWatcher for Collect<'_> {
    const WATCHES: bool = true;

    fn leaf(&mut self, leaf: Broken) {
        self.0.borrow_mut().push(leaf);
    }
}

impl Log<'_> {
    fn note(&self, ipa: Ipa, span: u64) {
        let mut written = self.written.lock().unwrap();
        written
            .extend((0..span / PAGE).map(|page| (ipa.raw() - START) / PAGE + page).filter(|page| PAGES.contains(page)));
    }

    /// A leaf is writable here only by hardware's record, even if the record has ended.
    fn note_leaf(&self, leaf: &Leaf) {
        if leaf.descriptor.is_writable() {
            self.note(leaf.ipa, if leaf.level == Level::L3 { PAGE } else { MIB_2 });
        }
    }

    fn note_marked(&self, marked: &Marked) {
        let span = if marked.level == Level::L3 { PAGE } else { MIB_2 };
        marked.leaves(span).for_each(|ipa| self.note(ipa, span));
    }

    /// The address of a page's word: each page has one frame.
    fn word(&self, page: u64) -> twofold_stage2::Pa {
        self.world.frame(page * PAGE)
    }
}

fn no_write_is_lost(features: Features, total: u64, first_seed: u64) {
    const MOST_AT_ONCE: u64 = 25_000;
    let at_once = total.div_ceil(2).min(MOST_AT_ONCE);
    let (mut done, mut seed, mut compared) = (0, first_seed, 0);
    while done < total {
        let now = at_once.min(total - done);
        let world = World::narrow(features, CPUS, seed, (64, 5));
        let tables = world.machine.alone(|cpu| {
            let tables = world.tables(0, 1, 40);
            cpu.load(0);
            tables
        });
        let tables = tables.unwrap_or_else(|breach| panic!("{breach}"));
        let log = Log {
            world: &world,
            tables: &tables,
            ends_records: seed % 2 == 0,
            written: Mutex::default(),
            copies: Mutex::default(),
            resting: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            rest: AtomicU64::new(0),
            left: AtomicU64::new(now),
            lost: AtomicU64::new(0),
            compared: AtomicU64::new(0),
        };
        let programs = (0..CPUS).map(|number| -> Program<'_> {
            let log = &log;
            Box::new(move |cpu| if number == 0 { collect(cpu, log) } else { work(cpu, log) })
        });
        world.machine.run(programs.collect()).unwrap_or_else(|breach| panic!("{breach}"));
        compared += log.compared.load(Ordering::Relaxed);
        assert_eq!(log.lost.load(Ordering::Relaxed), 0, "writes were lost: TWOFOLD_SEED={seed} reproduces it");
        let ended = world.machine.alone(|_| {
            tables.destroy(&mut &world.pages, Unwatched);
        });
        ended.unwrap_or_else(|breach| panic!("{breach}"));
        assert_eq!(world.pages.out(), 0);
        done += now;
        seed += 1;
    }
    println!("{compared} pages compared, 0 lost");
}

/// Repeatedly collects, waits until all rest, compares and copies.
fn collect(cpu: &CpuHandle, log: &Log<'_>) {
    while log.left.load(Ordering::Relaxed) > 0 {
        let range = if cpu.draw(2) == 0 { RANGE } else { RANGE.start..RANGE.start + MIB_2 };
        let pending = log.tables.clean(range, &mut |marked| log.note_marked(&marked)).unwrap();
        let _ = pending.complete();
        log.rest.store(1, Ordering::Relaxed);
        while log.resting.load(Ordering::Relaxed) + log.ended.load(Ordering::Relaxed) < CPUS as u64 - 1 {
            cpu.pause();
        }
        cpu.meet();
        let mut copies = log.copies.lock().unwrap();
        let mut written = log.written.lock().unwrap();
        for (copy, page) in copies.iter_mut().zip(PAGES) {
            let ipa = Ipa::new(START + page * PAGE);
            let now = log.world.machine.arena().load(log.word(page)).unwrap();
            let recorded = log.tables.look_up(ipa).is_some_and(|leaf| leaf.descriptor.is_hardware_dirty());
            if *copy != now && !written.contains(&page) && !recorded {
                log.lost.fetch_add(1, Ordering::Relaxed);
            }
            log.compared.fetch_add(1, Ordering::Relaxed);
            // The next round finds what hardware still records.
            if written.remove(&page) && !recorded {
                *copy = now;
            } else if recorded {
                written.insert(page);
            }
        }
        drop((copies, written));
        log.rest.store(0, Ordering::Relaxed);
        while log.resting.load(Ordering::Relaxed) > 0 {
            cpu.pause();
        }
    }
    log.rest.store(0, Ordering::Relaxed);
}

/// Lets the guest write, and changes the tables.
fn work(cpu: &CpuHandle, log: &Log<'_>) {
    let (world, tables) = (log.world, log.tables);
    let mut pages = &world.pages;
    let tracked = Attributes { dirty_by_hardware: true, ..Attributes::ram(Access::READ) };
    let mut value = cpu.number() as u64;
    while log.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
        if log.rest.load(Ordering::Relaxed) == 1 {
            log.resting.fetch_add(1, Ordering::Relaxed);
            while log.rest.load(Ordering::Relaxed) == 1 {
                cpu.pause();
            }
            log.resting.fetch_sub(1, Ordering::Relaxed);
        }
        let page = PAGES[cpu.draw(PAGES.len() as u64) as usize];
        let ipa = Ipa::new(START + page * PAGE);
        let huge_page = Ipa::new(ipa.raw() & !(MIB_2 - 1));
        let whole = huge_page..huge_page + MIB_2;
        match cpu.draw(14) {
            0..6 => {
                // Each CPU has a vCPU of its own, which returns to its CPU.
                cpu.load(tables.vttbr());
                let mut guest = cpu.enter(tables.vttbr(), tables.vtcr(), cpu.number() as u32);
                value += 8;
                if guest.store(ipa.raw(), value).is_err() {
                    let mapped = tables.map(ipa, log.word(page), Level::L3, &tracked, &mut pages);
                    if let Ok(Mapped::Replaced(old)) = mapped {
                        log.note_leaf(&Leaf { ipa, level: Level::L3, descriptor: old });
                    }
                }
            }
            6 => {
                let split = tables.split(whole, MIB_2, &mut pages, |_, _| ControlFlow::Continue(()));
                assert!(split.is_ok());
            }
            7 if !log.ends_records => {
                let pa = world.frame(huge_page.raw() - START);
                let coalesced =
                    tables.coalesce(huge_page, pa, Level::L2, &tracked, &mut pages, &mut |leaf| log.note_leaf(&leaf));
                if let Ok(Coalesced::Mapped(Mapped::Replaced(old))) = coalesced {
                    log.note_leaf(&Leaf { ipa: huge_page, level: Level::L2, descriptor: old });
                }
            }
            8 => tables.age(whole, &mut |_| ()).unwrap(),
            9 if cpu.draw(3) == 0 => {
                let cleared =
                    tables.clear_dbm_and_write(ipa..ipa + PAGE, &mut |marked| log.note_marked(&marked)).unwrap();
                let _ = cleared.complete();
            }
            9 => {
                let keep = Access { write: true, ..Access::READ };
                let _ = tables.protect(ipa..ipa + PAGE, keep, &mut pages).map(|pending| pending.complete());
            }
            10 => {
                let removed = RefCell::<Vec<Broken>>::default();
                let range = if cpu.draw(4) == 0 { whole } else { ipa..ipa + PAGE };
                if let Ok(pending) = tables.unmap(range, &mut pages, Collect(&removed)) {
                    let freed = pending.complete().free(&mut pages);
                    removed.borrow().iter().filter_map(|leaf| leaf.open(&freed)).for_each(|leaf| log.note_leaf(&leaf));
                }
            }
            11 if log.ends_records => {
                // Until the records restart, writes leave none, so every page that may be written counts as written.
                let range = if cpu.draw(4) == 0 { whole } else { ipa..ipa + PAGE };
                let _ = tables.clear_dbm(range.clone()).unwrap().complete();
                tables.written(range.clone(), &mut |marked| log.note_marked(&marked)).unwrap();
                tables.set_dbm(range).unwrap();
            }
            12 => {
                let _ = tables.relax_page(ipa, Access { execute: twofold_stage2::Execute::ALWAYS, ..Access::READ });
            }
            _ => {
                let _ = tables.relax(ipa, Access { execute: twofold_stage2::Execute::ALWAYS, ..Access::READ });
            }
        }
    }
    log.ended.fetch_add(1, Ordering::Relaxed);
    cpu.load(0);
}
