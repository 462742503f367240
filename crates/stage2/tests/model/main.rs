// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves for random operations, on tables of every shape:
//!
//! * a hardware walk of the tables translates as a plain model does;
//! * no TLB holds a translation that the tables no longer have;
//! * an operation that found no table page has done no harm, and can be repeated;
//! * every table page comes back in the end.
//!
//! There are 32 cases for each shape, or `PROPTEST_CASES`. A failure prints its smallest case and its seed;
//! `PROPTEST_RNG_SEED` takes the seed to repeat it. Failures are not kept in files.

#[path = "../platform/mod.rs"]
mod platform;

mod any;
mod dry;
mod operation;
mod plain;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

use operation::{Action, Dry, Operation};
use plain::{Model, Page};
use platform::mmu::{Leaf, Scan};
use platform::tlb::RemoteTlb;
use platform::{GIB, Guest, KIB_4, MIB_2, PLAIN, VMID};
use twofold_stage2::{
    Access, Attributes, Error, Execute, Features, Ipa, Level, Mapped, Memory, Pa, Relaxed, Shareability,
};

const MOST_OPERATIONS: usize = 60;
const TABLE_PAGES: u64 = 640;
const WRITABLE: u64 = 1 << 7;
const ACCESSED: u64 = 1 << 10;
/// Another guest's `VTTBR_EL2`.
const OTHER: u64 = 0x0033_0000_4567_8000;

#[test]
fn ipa_32_with_a_root_of_4_tables_at_level_2() {
    agree(32);
}

#[test]
fn ipa_36_with_a_small_root_at_level_1() {
    agree(36);
}

#[test]
fn ipa_40_with_a_root_of_2_tables_at_level_1() {
    agree(40);
}

#[test]
fn ipa_43_with_a_root_of_16_tables_at_level_1() {
    agree(43);
}

#[test]
fn ipa_44_with_a_small_root_at_level_0() {
    agree(44);
}

#[test]
fn ipa_48_with_a_full_root_at_level_0() {
    agree(48);
}

fn agree(ipa_bits: u32) {
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { ProptestConfig::default().cases } else { 32 };
    let seed = match ProptestConfig::default().rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => RandomState::new().hash_one(0),
    };
    let config = ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let scenario = (any::any_features(), prop::collection::vec(any::any_operation(), 1..=MOST_OPERATIONS));
    let outcome = TestRunner::new(config).run(&scenario, |(features, mut operations)| {
        operations.iter_mut().for_each(|operation| operation.fit(&features));
        run(features, ipa_bits, &operations);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("PROPTEST_RNG_SEED={seed}: {error}");
    }
}

fn run(features: Features, ipa_bits: u32, operations: &[Operation]) {
    let mut guest = Guest::with_pages(features, ipa_bits, TABLE_PAGES);
    let mut model = Model::new(1 << ipa_bits, operations);
    guest.events();
    let mut scan = guest.scan();
    for operation in operations {
        guest.machine.load(if operation.loaded { guest.stage2.vttbr() } else { OTHER });
        guest.pool.limit = operation.pages;
        if observed(&mut guest, &mut model, &mut scan, operation).is_err() {
            guest.pool.limit = usize::MAX;
            observed(&mut guest, &mut model, &mut scan, operation).expect("there are pages now");
        }
    }
    let (Guest { stage2, mut pool, .. }, mapped) = (guest, model.mapped(0..model.end));
    let mut removed = 0;
    let tell = |leaf: twofold_stage2::Broken| removed += platform::mmu::span(leaf.level().raw());
    let _root = stage2.destroy(&mut pool, tell);
    assert_eq!((removed, std::mem::take(&mut pool.out)), (mapped, BTreeSet::new()));
}

/// Runs the operation on the engine and on the model, with another CPU's TLB, and compares them. `scan` is what the
/// tables hold.
fn observed(guest: &mut Guest, model: &mut Model, scan: &mut Scan, operation: &Operation) -> Result<(), Dry> {
    let before = std::mem::take(scan);
    let tlb = Rc::new(RefCell::new(RemoteTlb::new(VMID, before.clone())));
    let other_cpu = tlb.clone();
    guest.machine.set_hook(move |event, vttbr| other_cpu.borrow_mut().observe(event, vttbr));
    let loaded = guest.machine.loaded();

    let outcome = operation.apply(guest, model, &before);

    let after = guest.scan();
    #[cfg(feature = "checked")]
    guest.stage2.audit().unwrap();
    tlb.borrow().check(&after);
    model.check(guest, &after);
    assert_eq!(after.links.iter().map(|link| link.table).collect::<BTreeSet<_>>(), guest.pool.out);
    assert_eq!(guest.machine.loaded(), loaded);
    guest.events();
    *scan = after;
    outcome
}
