// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine under a sequence of valid operations, compared with a plain model of each address. The operations, the
//! model and the machine are those of `stage2`'s own tests.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use arbitrary::{Result, Unstructured};
use twofold_stage2::{Access, Attributes, Error, Execute, Features, Ipa, Level, Mapped, Memory, Pa, Relaxed};

use crate::any;
use crate::machine::platform::{self, GIB, Guest, KIB_4, MIB_2, PLAIN, VMID};
use operation::{Action, Dry, Operation};
use plain::{Model, Page};
use platform::mmu::{Leaf, Scan};
use platform::tlb::RemoteTlb;

#[path = "../../../crates/stage2/tests/model/operation.rs"]
mod operation;
#[path = "../../../crates/stage2/tests/model/plain.rs"]
mod plain;

/// The most operations for which the table pages suffice: one operation takes at most 40.
const MOST_OPERATIONS: usize = 15;
const TABLE_PAGES: u64 = 640;
const WRITABLE: u64 = 1 << 7;
const ACCESSED: u64 = 1 << 10;
/// The VTTBR of another guest.
const OTHER: u64 = 0x0033_0000_4567_8000;

/// The tables agree with the model. No TLB holds an entry that the tables no longer contain. An operation that ran out
/// of table pages succeeds when repeated. Every page is returned.
pub fn engine(data: &[u8]) {
    if let Ok((features, ipa_bits, operations)) = scenario(&mut Unstructured::new(data)) {
        run(features, ipa_bits, &operations);
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
            observed(&mut guest, &mut model, &mut scan, operation).expect("the pool has pages now");
        }
    }
    let (Guest { stage2, mut pool, .. }, mapped) = (guest, model.mapped(0..model.end));
    let mut removed = 0;
    let tell = |leaf: twofold_stage2::Broken| removed += platform::mmu::span(leaf.level().raw());
    let _root = stage2.destroy(&mut pool, tell);
    assert_eq!((removed, std::mem::take(&mut pool.out)), (mapped, BTreeSet::new()));
}

/// Runs an operation on the engine and on the model, with another CPU's TLB observing, and compares. `scan` is the
/// content of the tables.
fn observed(
    guest: &mut Guest,
    model: &mut Model,
    scan: &mut Scan,
    operation: &Operation,
) -> std::result::Result<(), Dry> {
    let before = std::mem::take(scan);
    let tlb = Rc::new(RefCell::new(RemoteTlb::new(VMID, before.clone())));
    let other_cpu = tlb.clone();
    guest.machine.set_hook(move |event, vttbr| other_cpu.borrow_mut().observe(event, vttbr));
    let loaded = guest.machine.loaded();

    let outcome = operation.apply(guest, model, &before);

    let after = guest.scan();
    tlb.borrow().check(&after);
    model.check(guest, &after);
    assert_eq!(after.links.iter().map(|link| link.table).collect::<BTreeSet<_>>(), guest.pool.out);
    assert_eq!(guest.machine.loaded(), loaded);
    guest.events();
    *scan = after;
    outcome
}

fn scenario(u: &mut Unstructured<'_>) -> Result<(Features, u32, Vec<Operation>)> {
    // Caches are not checked here. The lines are large, so that a 1 GiB block does not take millions of them.
    let base = PLAIN.with_data_line(MIB_2).with_instruction_line(MIB_2);
    let features = any::features(u, base)?;
    // One size for each shape of the root.
    let ipa_bits = *u.choose(&[32, 36, 40, 43, 44, 48])?;
    let mut operations = Vec::new();
    while !u.is_empty() && operations.len() < MOST_OPERATIONS {
        let mut operation = operation(u)?;
        operation.fit(&features);
        operations.push(operation);
    }
    Ok((features, ipa_bits, operations))
}

/// Makes an operation with one of few places and sizes, so that operations overlap.
fn operation(u: &mut Unstructured<'_>) -> Result<Operation> {
    const SIZES: [u64; 10] =
        [KIB_4, 2 * KIB_4, 511 * KIB_4, MIB_2, MIB_2 + KIB_4, 3 * MIB_2, GIB, GIB + KIB_4, 2 * GIB, u64::MAX];
    const STEPS: [u64; 4] = [0, 1, 2, 511];
    let action = action(u)?;
    let offset = u.int_in_range(0..=1)? * GIB + *u.choose(&STEPS)? * MIB_2 + *u.choose(&STEPS)? * KIB_4;
    Ok(Operation {
        action,
        place: (u.int_in_range(0..=2)?, offset),
        size: *u.choose(&SIZES)?,
        pages: *u.choose(&[usize::MAX, usize::MAX, 0, 1, 2, 3])?,
        loaded: u.arbitrary()?,
    })
}

fn action(u: &mut Unstructured<'_>) -> Result<Action> {
    Ok(match u.int_in_range(0..=20)? {
        0 | 1 => Action::Map { level: u.int_in_range(1..=3)?, elsewhere: u.arbitrary()?, attributes: of_memory(u)? },
        2 => Action::MapRange {
            largest: u.int_in_range(1..=3)?,
            large: u.arbitrary()?,
            elsewhere: u.arbitrary()?,
            attributes: of_memory(u)?,
        },
        3 => Action::Unmap,
        4 => Action::Protect(any::access(u)?),
        5 => Action::WriteProtect,
        6 => Action::WriteProtectMask(u.arbitrary()?),
        7 => Action::Relax(any::access(u)?),
        8 => Action::MakeYoung,
        9 => Action::Age,
        10 => Action::Clean,
        11 => Action::Split(*u.choose(&[KIB_4, MIB_2, GIB])?),
        12 => Action::Coalesce { level: u.int_in_range(1..=2)?, attributes: of_memory(u)? },
        13 => Action::HardwareWrites,
        15 => Action::SetDbm,
        16 => Action::SetDbmClean,
        17 => Action::SetDbmCleanMask(u.arbitrary()?),
        18 => Action::ClearDbm,
        19 => Action::Look,
        20 => Action::RelaxPage(any::access(u)?),
        _ => Action::HardwareAccesses,
    })
}

/// Makes attributes of memory, because every mapping here leads to memory and not to a device.
fn of_memory(u: &mut Unstructured<'_>) -> Result<Attributes> {
    let attributes = any::attributes(u)?;
    let memory = if attributes.memory == Memory::Device { Memory::Normal } else { attributes.memory };
    Ok(Attributes { memory, ..attributes })
}
