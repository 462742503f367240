// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The content of a breach's report, and its reproduction by the seed.

use std::collections::HashSet;

use twofold_machine::program::Instructions;
use twofold_machine::strict::{Bbm, Breach, Rule};
use twofold_stage2::{Access, Attributes, Level, Pa};

use super::SEEDS;
use super::hand::{BASE, Hand, Machinery, READ, READ_WRITE, ipa, pages};
use crate::window::ByAddress as _;
use crate::world::MODERN;

#[test]
fn a_report_names_rule_entry_changes_and_seed() {
    let machinery = Machinery::new(MODERN, Bbm::default(), 2, 42);
    let line = line!();
    let breach = machinery.alone(|hand| {
        hand.locked(hand.entry(5), || {
            hand.cpu.write_entry(hand.entry(5), hand.leaf(0, &READ), std::sync::atomic::Ordering::Release);
            hand.cpu.write_entry(hand.entry(5), hand.leaf(1, &READ), std::sync::atomic::Ordering::Release);
        });
    });
    let Breach { rule, ipa: at, cpu, seed, site, changes, .. } = breach.clone().unwrap_err();
    assert_eq!((rule, at, cpu, seed), (Rule::LiveChange, Some(ipa(5)), 0, machinery.world.machine.seed()));
    let here = |site: Option<&std::panic::Location>| site.map(|site| (site.file() == file!(), site.line()));
    assert_eq!(here(site), Some((true, line + 4)));
    let entry = machinery.tree.level_3 + 5 * 8;
    let seen: Vec<_> = changes.iter().map(|change| (change.entry, change.cpu, here(change.site))).collect();
    assert_eq!(seen, [(entry, 0, Some((true, line + 3))), (entry, 0, Some((true, line + 4)))]);
    assert!(changes[0].step < changes[1].step && changes[0].new == changes[1].old);
    let text = breach.unwrap_err().to_string();
    for part in [
        "R1",
        "LiveChange",
        &format!("{entry}"),
        &format!("{}", ipa(5)),
        "CPU 0",
        file!(),
        "TWOFOLD_SEED=",
        "mmu-rules",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// The changes include hardware's.
#[test]
fn a_report_names_what_hardware_changed() {
    let machinery = Machinery::new(MODERN, Bbm::default(), 1, 1);
    let breach = machinery.alone(|hand| {
        hand.make(hand.entry(0), hand.leaf(0, &super::hand::TRACKED));
        hand.enter(0).store(BASE, 7).unwrap();
        hand.set(hand.entry(0), hand.leaf(1, &READ));
    });
    let breach = breach.unwrap_err();
    let by_hardware = breach.changes.iter().filter(|change| change.site.is_none());
    assert_eq!(by_hardware.map(|change| change.new ^ change.old).collect::<Vec<_>>(), [super::hand::WRITE]);
    assert!(breach.to_string().contains("by hardware"));
}

/// Two CPUs change one entry at once. In most runs, the change of one of them is no break-before-make.
fn race(seed: u64) -> Option<Breach> {
    let remap = |hand: &Hand| {
        let mine = 1 + hand.cpu.number() as u64;
        for _ in 0..10 {
            hand.set(hand.entry(0), 0);
            hand.set(hand.entry(0), hand.leaf(mine, &READ_WRITE));
        }
    };
    Machinery::new(MODERN, Bbm::default(), 2, seed).race(remap, remap).err()
}

#[test]
fn the_same_seed_gives_the_same_report() {
    for seed in 0..10 {
        let text = |breach: Option<Breach>| breach.map(|breach| breach.to_string());
        assert_eq!(text(race(seed)), text(race(seed)), "seed {seed}");
    }
}

#[test]
fn another_seed_gives_another_interleaving() {
    if std::env::var_os("TWOFOLD_SEED").is_some() {
        return;
    }
    let steps: HashSet<_> = (0..SEEDS).filter_map(race).map(|breach| (breach.rule, breach.cpu, breach.step)).collect();
    assert!(steps.len() > 5, "{steps:?}");
}

/// A change by the engine is reported with its place in the engine.
#[test]
fn a_report_names_the_engine_s_place() {
    let machinery = Machinery::new(MODERN, Bbm::default(), 2, 1);
    let breach = machinery.alone(|hand| {
        let (stage2, tables) = (hand.world.tables(1, 4, 40), &hand.world.pages);
        hand.cpu.load(stage2.vttbr());
        let attributes = Attributes::ram(Access::READ_WRITE);
        assert!(stage2.map(ipa(0), hand.frame(0), Level::L3, &attributes, &mut &*tables).is_ok());
        std::mem::forget(stage2.unmap(pages(0..1), &mut &*tables, twofold_stage2::Unwatched));
        hand.cpu.reuse(hand.frame(0), 4096);
    });
    let breach = breach.unwrap_err();
    assert_eq!((breach.rule, breach.ipa), (Rule::FrameReusedTooEarly, Some(ipa(0))));
    let sites = breach.changes.iter().map(|change| change.site.expect("software's").file());
    assert!(sites.clone().count() >= 2 && sites.clone().all(|file| file.starts_with("crates/stage2/src/")), "{breach}");
    assert!(breach.changes.iter().all(|change| change.entry > Pa::new(0)));
}
