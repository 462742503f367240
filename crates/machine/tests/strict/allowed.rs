// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One CPU allows an access, and the guest of another CPU makes it.
//!
//! The other CPU may hold the old entry. It faults, finds the access allowed, and invalidates its own TLB, which is
//! enough only if its walks see the new leaf. The machine reports a guest that faults again and again (R11).

use std::sync::atomic::{AtomicBool, Ordering};

use twofold_machine::program::Instructions;
use twofold_machine::strict::Program;
use twofold_stage2::{Access, Attributes, Execute, Features, Ipa, Level, Mapped, Relaxed, Unwatched};

use crate::window::ByAddress as _;
use crate::world::{MODERN, PAGE, PLAIN, World};

const START: Ipa = Ipa::new(1 << 30);
const PAGES: u64 = 16;

/// Runs the two CPUs, and returns how often the second has faulted.
fn faults(features: Features, seed: u64, dirty_by_hardware: bool, allowed: Access) -> u64 {
    let world = World::narrow(features, 2, seed, (64, 4));
    let tables = world.machine.alone(|_| {
        let tables = world.tables(0, 1, 40);
        for offset in (0..PAGES).map(|page| page * PAGE) {
            let attributes = Attributes { dirty_by_hardware, ..Attributes::ram(Access::READ) };
            let mapped = tables.map(START + offset, world.frame(offset), Level::L3, &attributes, &mut &world.pages);
            assert_eq!(mapped, Ok(Mapped::New));
        }
        tables
    });
    let tables = tables.unwrap_or_else(|breach| panic!("{breach}"));
    let pages = || (0..PAGES).map(|page| START + page * PAGE);
    // Words of the host: they hand over nothing that the machine sees.
    let (is_loaded, is_allowed) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut faults = 0;
    let allows: Program<'_> = Box::new(|cpu| {
        cpu.load(tables.vttbr());
        while !is_loaded.load(Ordering::Relaxed) {
            cpu.pause();
        }
        pages().for_each(|page| assert_eq!(tables.relax(page, allowed), Ok(Relaxed::Widened)));
        is_allowed.store(true, Ordering::Relaxed);
        cpu.load(0);
    });
    let uses: Program<'_> = Box::new(|cpu| {
        cpu.load(tables.vttbr());
        let mut guest = cpu.enter(tables.vttbr(), tables.vtcr(), 0);
        is_loaded.store(true, Ordering::Relaxed);
        while !is_allowed.load(Ordering::Relaxed) {
            cpu.pause();
        }
        for page in pages() {
            loop {
                let used = match allowed.write {
                    true => guest.store(page.raw(), 1),
                    false => guest.fetch(page.raw()).map(drop),
                };
                if used.is_ok() {
                    break;
                }
                faults += 1;
                let _ = tables.relax(page, allowed).expect("the page is mapped");
            }
        }
        cpu.load(0);
    });
    let ended = world.machine.run(vec![allows, uses]);
    ended.unwrap_or_else(|breach| {
        panic!("seed {seed}, {allowed:?}, tracked by hardware: {dirty_by_hardware}: {breach}")
    });
    let ended = world.machine.alone(|_| {
        let _ = tables.destroy(&mut &world.pages, Unwatched);
    });
    ended.unwrap_or_else(|breach| panic!("{breach}"));
    faults
}

#[test]
fn judge_what_another_cpu_allowed_does_not_fault_for_ever() {
    let execute = Access { execute: Execute::ALWAYS, ..Access::READ };
    for features in [MODERN, PLAIN] {
        for (dirty_by_hardware, allowed) in [(false, Access::READ_WRITE), (false, execute), (true, execute)] {
            let faults: u64 = (1..=10).map(|seed| faults(features, seed, dirty_by_hardware, allowed)).sum();
            assert!(faults > PAGES, "{faults} faults: the guest has met no old entry");
        }
    }
}
