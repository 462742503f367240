// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine's operations with arbitrary arguments, valid or not: any address, any range, any level.

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};

use arbitrary::{Result, Unstructured};
use twofold_stage2::walk::{Entry, Visitor};
use twofold_stage2::{Access, Attributes, Error, Ipa, IpaRange, Level, Memory, Pa, Unwatched};

use crate::any;
use crate::machine::platform::mmu::Scan;
use crate::machine::platform::window::ByAddress as _;
use crate::machine::platform::{self, GIB, Guest, KIB_4, MIB_2, PLAIN};

const TABLE_PAGES: usize = 24;
const MOST_OPERATIONS: usize = 24;

/// Bad arguments are refused with the cause, and change nothing. Good arguments are not refused. No operation changes
/// mappings outside its range. An independent walk finds the same as the engine.
pub fn arguments(data: &[u8]) {
    let _ = run(&mut Unstructured::new(data));
}

fn run(u: &mut Unstructured<'_>) -> Result<()> {
    // With these features the engine never accesses frames, so a leaf may map any address.
    let base = PLAIN.with_pa_bits(u.int_in_range(36..=48)?);
    let features = any::features(u, base)?;
    let features = features.with_forced_write_back(true).with_instruction_cache_coherent(true);
    let ipa_bits = u.int_in_range(32..=features.pa_bits)?;
    // All mappings have one memory type: on a change of type the engine would clean the frame.
    let memory = *u.choose(&[Memory::Normal, Memory::Device])?;
    let mut guest = Guest::with_pages(features, ipa_bits, TABLE_PAGES as u64);
    let mut before = guest.scan();
    for _ in 0..MOST_OPERATIONS {
        if u.is_empty() {
            break;
        }
        guest.pool.limit = TABLE_PAGES - guest.pool.out.len();
        let call = call(u, ipa_bits, memory)?;
        let outcome = apply(&mut guest, &call);
        let after = guest.scan();
        judge(&guest, &call, outcome, (&before, &after));
        guest.events();
        before = after;
    }
    let Guest { stage2, mut pool, .. } = guest;
    let _root = stage2.destroy(&mut pool, Unwatched);
    assert_eq!(std::mem::take(&mut pool.out), BTreeSet::new(), "table pages are lost");
    Ok(())
}

#[derive(Debug)]
enum Operation {
    Map(Pa, Level, Attributes),
    MapRange(Pa, Level, Attributes),
    Unmap,
    Protect(Access),
    WriteProtect,
    WriteProtectMask(u64),
    Relax(Access),
    MakeYoung,
    Age,
    Clean,
    ClearDbmAndWrite,
    Split(u64),
    Coalesce(Pa, Level, Attributes),
    Walk,
    LookUp(Level),
}

#[derive(Debug)]
struct Call {
    operation: Operation,
    range: IpaRange,
}

fn apply(guest: &mut Guest, call: &Call) -> std::result::Result<(), Error> {
    let Guest { stage2, pool, .. } = guest;
    let (ipa, range) = (call.range.start, call.range.clone());
    match call.operation {
        Operation::Map(pa, level, ref attributes) => stage2.map(ipa, pa, level, attributes, pool).map(drop),
        Operation::MapRange(pa, level, ref attributes) => stage2.map_range(range, pa, level, attributes, pool),
        Operation::Unmap => stage2.unmap(range, pool, Unwatched).map(|pending| {
            pending.complete().free(pool);
        }),
        Operation::Protect(keep) => stage2.protect(range, keep, pool).map(|pending| drop(pending.complete())),
        Operation::WriteProtect => stage2.write_protect(range).map(|pending| drop(pending.complete())),
        Operation::WriteProtectMask(mask) => {
            stage2.write_protect_mask(ipa, mask).map(|pending| drop(pending.complete()))
        }
        Operation::Relax(access) => stage2.relax(ipa, access).map(drop),
        Operation::MakeYoung => stage2.make_young(ipa).map(drop),
        Operation::Age => stage2.age(range, &mut |_| ()),
        Operation::Clean => stage2.clean(range, &mut |_| ()).map(|pending| drop(pending.complete())),
        Operation::ClearDbmAndWrite => {
            stage2.clear_dbm_and_write(range, &mut |_| ()).map(|pending| drop(pending.complete()))
        }
        Operation::Split(chunk) => stage2.split(range, chunk, pool, |_, _| ControlFlow::Continue(())).map(|_| ()),
        Operation::Coalesce(pa, level, ref attributes) => {
            stage2.coalesce(ipa, pa, level, attributes, pool, &mut |_| ()).map(|_| ())
        }
        Operation::Walk => stage2.walk(range, &mut Visits),
        Operation::LookUp(level) => {
            let _ = stage2.tables_needed(ipa, level);
            let found = stage2.look_up(ipa).map(|leaf| (leaf.ipa, leaf.level.raw(), leaf.descriptor.raw()));
            let inside = ipa < stage2.geometry().end();
            let walked = inside.then(|| guest.walk(ipa)).flatten();
            assert_eq!(found, walked.map(|leaf| (leaf.ipa, leaf.level, leaf.raw)));
            Ok(())
        }
    }
}

struct Visits;

impl Visitor for Visits {
    type Error = Error;

    fn leaf(&mut self, entry: &Entry) -> std::result::Result<(), Error> {
        assert_eq!(entry.ipa.raw() % entry.span, 0);
        Ok(())
    }
}

fn judge(guest: &Guest, call: &Call, outcome: std::result::Result<(), Error>, (before, after): (&Scan, &Scan)) {
    assert_eq!(after.links.iter().map(|link| link.table).collect::<BTreeSet<_>>(), guest.pool.out);
    let refused = refusal(guest, call);
    match outcome {
        Ok(()) => assert!(refused.is_none(), "{call:x?} is invalid ({refused:?}), but was not refused"),
        // The part that was done before the pool ran out remains.
        Err(Error::NoTablePage { .. }) => assert!(guest.pool.limit == 0 && refused.is_none(), "{call:x?}"),
        Err(Error::TableInTheWay { ipa, level }) => {
            let below = before.leaves.iter().any(|leaf| leaf.ipa.align_down(platform::mmu::span(level.raw())) == ipa);
            let linked = before.links.iter().any(|link| (link.ipa, link.level) == (ipa, level.raw()));
            assert!(refused.is_none() && (below || linked), "{call:x?}");
            assert_eq!(before, after);
        }
        Err(Error::NotMapped { ipa }) => {
            assert!(refused.is_none() && (ipa >= guest.stage2.geometry().end() || guest.walk(ipa).is_none()));
            assert_eq!(before, after);
        }
        Err(error) => {
            assert!(refused.is_some(), "{call:x?} is valid, but was refused: {error}");
            assert_eq!(before, after, "{call:x?} was refused ({error}), but changed the tables");
        }
    }
    elsewhere(guest, call, before);
}

/// Checks that mappings outside the call's range are unchanged.
fn elsewhere(guest: &Guest, call: &Call, before: &Scan) {
    let Range { start, end } = reach(call);
    for leaf in &before.leaves {
        // A leaf that the range cuts may be split, or changed as a whole.
        if leaf.ipa.raw() < end && start < leaf.end().raw() {
            continue;
        }
        let now = guest.walk(leaf.ipa);
        assert_eq!(now.as_ref(), Some(leaf), "{call:x?}");
    }
}

/// Returns the addresses that the call may change.
fn reach(call: &Call) -> Range<u64> {
    let start = call.range.start.raw();
    let sized = |size: u64| start..start.saturating_add(size);
    match call.operation {
        Operation::Map(_, level, _) | Operation::Coalesce(_, level, _) => sized(platform::mmu::span(level.raw())),
        Operation::Relax(_) | Operation::MakeYoung => sized(1),
        Operation::WriteProtectMask(_) => sized(64 * KIB_4),
        Operation::LookUp(_) | Operation::Walk => start..start,
        _ => start..call.range.end.raw(),
    }
}

/// Returns the reason why the call must be refused, whatever is mapped.
fn refusal(guest: &Guest, call: &Call) -> Option<&'static str> {
    let (features, geometry) = (guest.stage2.features(), guest.stage2.geometry());
    let Range { start, end } = call.range.start.raw()..call.range.end.raw();
    let limit = geometry.end().raw();
    let aligned = |address: u64| address.is_multiple_of(KIB_4);
    let pages =
        |start: u64, end: u64| (!aligned(start) || !aligned(end) || start >= end || end > limit).then_some("the range");
    let output = |pa: Pa, size: u64| {
        let last = pa.raw().checked_add(size - 1);
        last.is_none_or(|last| last >> features.pa_bits != 0).then_some("the output address")
    };
    let sayable = |access: Access| access.check(features).err().map(|_| "the access");
    match call.operation {
        Operation::Map(pa, level, ref attributes) | Operation::Coalesce(pa, level, ref attributes) => {
            let span = platform::mmu::span(level.raw());
            let block = matches!(call.operation, Operation::Coalesce(..)) && level == Level::L3;
            let none = level == Level::L0 || level < geometry.root_level() || block;
            let odd = start % span != 0 || pa.raw() % span != 0 || start >= limit;
            none.then_some("the level")
                .or(odd.then_some("an address"))
                .or(output(pa, span))
                .or(sayable(attributes.access))
        }
        Operation::MapRange(pa, _, ref attributes) => pages(start, end)
            .or((!aligned(pa.raw())).then_some("the output address"))
            .or_else(|| output(pa, end - start))
            .or(sayable(attributes.access)),
        Operation::Split(chunk) => {
            pages(start, end).or((!chunk.is_power_of_two() || chunk < KIB_4).then_some("the chunk"))
        }
        Operation::WriteProtectMask(mask) => {
            // An empty mask changes nothing, but its address is still checked.
            let (first, bits) = (mask.trailing_zeros() % 64, (64 - mask.leading_zeros()).max(1));
            let at = |bit: u32| start.checked_add(u64::from(bit) * KIB_4);
            at(first).zip(at(bits)).map_or(Some("the range"), |(start, end)| pages(start, end))
        }
        Operation::Relax(access) => sayable(access),
        Operation::MakeYoung | Operation::LookUp(_) => None,
        _ => pages(start, end),
    }
}

fn call(u: &mut Unstructured<'_>, ipa_bits: u32, memory: Memory) -> Result<Call> {
    let start = address(u, ipa_bits)?;
    let end = if u.arbitrary()? {
        address(u, ipa_bits)?
    } else {
        start.wrapping_add(*u.choose(&[0, 1, KIB_4, 3 * KIB_4, MIB_2, 3 * MIB_2 / 2, GIB, 3 * GIB, 1 << 40])?)
    };
    let range = Ipa::new(start)..Ipa::new(end);
    let level = |u: &mut Unstructured<'_>| Ok(Level::new(u.int_in_range(0..=3)?).expect("four levels"));
    let pa = |u: &mut Unstructured<'_>| address(u, ipa_bits).map(Pa::new);
    let operation = match u.int_in_range(0..=15)? {
        0 | 1 => Operation::Map(pa(u)?, level(u)?, attributes(u, memory)?),
        2 => Operation::MapRange(pa(u)?, level(u)?, attributes(u, memory)?),
        3 => Operation::Unmap,
        4 => Operation::Protect(any::access(u)?),
        5 => Operation::WriteProtect,
        6 => Operation::WriteProtectMask(u.arbitrary()?),
        7 => Operation::Relax(any::access(u)?),
        8 => Operation::MakeYoung,
        9 => Operation::Age,
        10 => Operation::Clean,
        11 => Operation::ClearDbmAndWrite,
        12 => Operation::Split(if u.arbitrary()? { u.arbitrary()? } else { 1 << u.int_in_range(0..=63)? }),
        13 => Operation::Coalesce(pa(u)?, level(u)?, attributes(u, memory)?),
        14 => Operation::Walk,
        _ => Operation::LookUp(level(u)?),
    };
    Ok(Call { operation, range })
}

/// Makes attributes of a memory type that needs no cleaning: see [`run`].
fn attributes(u: &mut Unstructured<'_>, memory: Memory) -> Result<Attributes> {
    Ok(Attributes { memory, ..any::attributes(u)? })
}

/// Makes any address, mostly one that other calls use too.
fn address(u: &mut Unstructured<'_>, ipa_bits: u32) -> Result<u64> {
    let any: u32 = u.arbitrary()?;
    let near = u64::from(any >> 16 & 3) * GIB + u64::from(any >> 8 & 3) * MIB_2 + u64::from(any & 3) * KIB_4;
    Ok(match any >> 28 {
        0..=8 => near,
        9 | 10 => (1 << ipa_bits) - near,
        11 => u64::MAX - near,
        12 => near + 1,
        13 => u.arbitrary::<u64>()? & !0xfff & ((1 << ipa_bits) - 1),
        14 => u64::from(any) << 20,
        _ => u.arbitrary()?,
    })
}
