// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the tables, as a walk reads them, with the model, and the record of a fault with the maintenance that its
//! change needs.

use twofold_memory::{Answer, Done};
use twofold_stage2::platform::{Domain, Tlbi};
use twofold_stage2::{Ipa, Memory, Pa};

use crate::machine::guest::{RunningGuest, local_invalidation_at};
use crate::machine::platform::Event;
use crate::machine::platform::mmu::Leaf;
use crate::machine::{HUGE_PAGE, PAGE};
use crate::plain::Model;

/// Tables of the root.
const ROOT_TABLES: u64 = 2;

/// Checks that the tables, the counts and the frames are what the model says. The model learns the address of RAM when
/// it is first mapped.
pub fn tables(guest: &RunningGuest, model: &mut Model, donated: u64) {
    let scan = guest.scan();
    assert_eq!(scan.leaves.len(), model.leaves.len());
    let mut used: Vec<(Pa, u64)> = scan.links.iter().map(|link| (link.table, PAGE)).collect();
    used.push((guest.root(), ROOT_TABLES * PAGE));
    for (leaf, (ipa, expected)) in scan.leaves.iter().zip(&mut model.leaves) {
        let memory = if expected.device { Memory::Device } else { Memory::Normal };
        let found = (leaf.ipa, leaf.level, leaf.access(), leaf.memory(guest.machine.features.forced_write_back));
        assert_eq!(found, (*ipa, expected.level, expected.access, memory));
        assert!(leaf.accessed() && !leaf.dirty_by_hardware() && leaf.software() == 0, "{leaf:x?}");
        // A page that was mapped once never moves.
        assert_eq!(leaf.pa(), *expected.pa.get_or_insert(leaf.pa()), "{leaf:x?}");
        if !expected.device {
            let aligned = leaf.pa().raw() % HUGE_PAGE == leaf.ipa.raw() % HUGE_PAGE;
            assert!(
                aligned || model.slots.iter().any(|slot| slot.is_preallocated() && slot.range.contains(&leaf.ipa)),
                "{leaf:x?}"
            );
            used.push((leaf.pa(), leaf.span()));
        }
    }
    used.sort();
    for pair in used.windows(2) {
        assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{:x?} and {:x?} share frames", pair[0], pair[1]);
    }
    assert!(used.iter().all(|(pa, size)| guest.machine.is_ram(*pa) && guest.machine.is_ram(*pa + (size - 1))));

    let counts = guest.memory.counts();
    assert_eq!((counts.mapped, counts.frames_zeroed), (model.counts.mapped, model.counts.frames_zeroed));
    assert_eq!(counts.first_touches, model.counts.first_touches);
    assert_eq!((counts.tables_allocated, counts.tables_freed), (ROOT_TABLES + scan.links.len() as u64, 0));
    let taken = model.backed.len() as u64 * (HUGE_PAGE / PAGE) + counts.tables_allocated;
    assert_eq!(guest.memory.frames().free() + taken, donated, "frames are lost");
}

/// Checks that the maintenance is enough for the change, in the right order, and that no leaf was broken for it.
pub fn maintenance(guest: &RunningGuest, ipa: Ipa, answer: Answer, before: Option<Leaf>, record: &[Event]) {
    let own = [Tlbi::Ipas2E1, Tlbi::VmallE1];
    let broadcast = |event: &Event| matches!(event, Event::Tlbi(operation, _) if !own.contains(operation));
    assert!(!record.iter().any(broadcast), "no leaf is broken: {record:?}");
    let after = guest.walk(ipa);
    match answer {
        Answer::Absent => panic!("an absent page, without a page store"),
        Answer::Retry(Done::Interrupted) => panic!("no interrupt is pending on this machine"),
        Answer::ExternalAbort | Answer::Skip => assert_eq!((record, after), (&[][..], before)),
        Answer::Retry(Done::Mapped { .. }) => {
            assert_eq!(before, None);
            assert!(record.ends_with(&[Event::Dsb(Domain::IshSt)]), "not visible to walks: {record:?}");
        }
        Answer::Retry(Done::Widened | Done::WidenedAround | Done::Stale) => match before {
            // A leaf that is gone may still be in this CPU's TLB.
            None => assert_eq!((record, after), (&local_invalidation_at(ipa.align_down(PAGE), None)[..], None)),
            Some(leaf) => {
                let hint = guest.machine.features.tlbi_level_hint.then_some(leaf.level);
                assert!(record.ends_with(&local_invalidation_at(leaf.ipa, hint)), "{record:?}");
            }
        },
    }
    code(guest, ipa, before, after, record);
}

/// Checks that the instruction cache was completely invalidated before memory became executable.
fn code(guest: &RunningGuest, ipa: Ipa, before: Option<Leaf>, after: Option<Leaf>, record: &[Event]) {
    let invalidation = |event: &Event| matches!(event, Event::InvalidateAllCode | Event::InvalidateCode(..));
    let new =
        before.is_none_or(|leaf| !leaf.access().execute.any()) && after.is_some_and(|leaf| leaf.access().execute.any());
    if !new || guest.machine.features.instruction_cache_coherent {
        assert!(!record.iter().any(invalidation), "needless: {record:?}");
        return;
    }
    let (at, leaf) = (record.iter().position(invalidation), after.unwrap());
    let at = at.unwrap_or_else(|| panic!("not invalidated: {record:?}"));
    if let Event::InvalidateCode(pa, size) = record[at] {
        assert!(guest.machine.features.instruction_cache_pipt);
        assert_eq!((pa, size), (leaf.pa(), leaf.span()));
    }
    assert_eq!(record[at + 1], Event::Dsb(Domain::Ish));
    let page = ipa.align_down(PAGE);
    let visible =
        |event: &Event| matches!(event, Event::Sees(at, Some(sight)) if *at == page && sight.access.execute.any());
    assert!(record.iter().position(visible).unwrap() > at, "executable before it was invalidated: {record:?}");
}
