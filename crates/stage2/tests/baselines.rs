// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves that each baseline differs from the engine by its one rule: in what it visits, cleans, frees, or takes in
//! vain.

mod platform;

use platform::window::{ByAddress as _, device};
use platform::{Event, GIB, Guest, KIB_4, MIB_2, PLAIN, frame};
use twofold_stage2::baselines::{EveryLevel, SkipChildren, SkipLeaves, SplitPolicy};
use twofold_stage2::platform::Domain;
use twofold_stage2::{Access, Attributes, Coalesced, Features, Ipa, Level, Mapped, Pool};

const FORCED: Features = PLAIN.with_forced_write_back(true);
const RAM: Attributes = Attributes::ram(Access::READ_WRITE);
const BASE: Ipa = Ipa::new(4 * GIB);

/// Four blocks of 2 MiB, in a root of level 1.
fn blocks(features: Features) -> Guest {
    let mut guest = Guest::new(features, 40);
    for at in (0..4 * MIB_2).step_by(MIB_2 as usize) {
        let mapped = guest.stage2.map(BASE + at, frame(at), Level::L2, &RAM, &mut guest.pool);
        assert_eq!(mapped, Ok(Mapped::New));
    }
    guest.events();
    guest
}

/// The number of entries of the four blocks that the policy visits: while it splits them, and after they are split.
fn visits<S: SplitPolicy>() -> (u64, u64) {
    let mut guest = blocks(FORCED);
    let mut split = || guest.stage2.split_by::<S>(BASE..BASE + 4 * MIB_2, &mut guest.pool).unwrap();
    let visits = (split(), split());
    assert_eq!(guest.scan().leaves.len(), 4 * 512);
    visits
}

/// The root's entry and the four below it are always visited.
#[test]
fn a_split_visits_what_its_policy_says() {
    assert_eq!(visits::<EveryLevel>(), (5 + 4 * 512, 5 + 4 * 512));
    assert_eq!(visits::<SkipChildren>(), (5, 5 + 4 * 512));
    assert_eq!(visits::<SkipLeaves>(), (5, 5));
}

#[test]
fn a_split_without_pages_says_so_and_goes_on_later() {
    let mut guest = blocks(FORCED);
    guest.pool.limit = 2;
    let range = BASE..BASE + 4 * MIB_2;
    assert!(guest.stage2.split_by::<SkipLeaves>(range.clone(), &mut guest.pool).is_err());
    guest.pool.limit = usize::MAX;
    assert!(guest.stage2.split_by::<SkipLeaves>(range, &mut guest.pool).is_ok());
    assert_eq!(guest.scan().leaves.len(), 4 * 512);
}

#[test]
fn cleaning_on_abort_cleans_what_is_mapped_already() {
    let mut guest = blocks(PLAIN);
    let already = guest.stage2.map(BASE, frame(0), Level::L2, &RAM, &mut guest.pool);
    assert!(matches!(already, Ok(Mapped::Already(_))));
    assert_eq!(guest.events(), []);
    let before = guest.stage2.open(device(frame(0)), BASE).map_cleaning_on_abort(Level::L2, &RAM, &mut guest.pool);
    assert!(matches!(before, Ok(Mapped::Already(_))));
    // The barrier makes the CPU that maps wait for the lines, and all CPUs see them.
    let cleaned = [Event::Clean(frame(0), MIB_2), Event::Dsb(Domain::Ish)];
    assert!(guest.events().windows(2).any(|events| events == cleaned));
}

/// A fault for a table that is to become a block has cleaned the whole block. The coalesce does not clean it once more.
#[test]
fn what_was_cleaned_on_abort_is_coalesced_as_it_is() {
    for cleaned in [false, true] {
        let mut guest = Guest::new(PLAIN, 40);
        let mapped = guest.stage2.map(BASE, frame(0), Level::L3, &RAM, &mut guest.pool);
        assert_eq!(mapped, Ok(Mapped::New));
        guest.events();
        let Guest { stage2, pool, .. } = &mut guest;
        let coalesced = if cleaned {
            stage2.open(device(frame(0)), BASE).coalesce_cleaned::<false>(Level::L2, &RAM, pool, &mut |_| ())
        } else {
            stage2.coalesce(BASE, frame(0), Level::L2, &RAM, pool, &mut |_| ())
        };
        assert_eq!(coalesced, Ok(Coalesced::Done { tables: 1 }));
        let cleans = guest.events().iter().any(|event| matches!(event, Event::Clean(..)));
        assert_eq!(cleans, !cleaned);
    }
}

/// Free-first gives the page back before a walk sees the block.
#[test]
fn freeing_first_frees_while_nothing_is_mapped() {
    for free_first in [false, true] {
        let mut guest = Guest::new(FORCED, 40);
        let mapped = guest.stage2.map(BASE, frame(0), Level::L3, &RAM, &mut guest.pool);
        assert_eq!(mapped, Ok(Mapped::New));
        guest.watch(BASE);
        let Guest { stage2, pool, .. } = &mut guest;
        let coalesced = if free_first {
            stage2.open(device(frame(0)), BASE).coalesce_freeing_first(Level::L2, &RAM, pool, &mut |_| ())
        } else {
            stage2.coalesce(BASE, frame(0), Level::L2, &RAM, pool, &mut |_| ())
        };
        assert_eq!(coalesced, Ok(Coalesced::Done { tables: 1 }));
        let events = guest.events();
        let position = |wanted: &dyn Fn(&Event) -> bool| events.iter().position(wanted).unwrap();
        let given = position(&|event| matches!(event, Event::Give(_)));
        let seen = position(&|event| matches!(event, Event::Sees(_, Some(sight)) if sight.level == 2));
        assert_eq!(given < seen, free_first);
    }
}

#[test]
fn topping_up_always_takes_unneeded_pages() {
    let mut guest = Guest::new(FORCED, 40);
    for page in 0..2 {
        let mapped = guest.stage2.map(BASE + page * KIB_4, frame(page * KIB_4), Level::L3, &RAM, &mut guest.pool);
        assert_eq!(mapped, Ok(Mapped::New));
    }
    assert_eq!(guest.stage2.tables_needed(BASE + 2 * KIB_4, Level::L3), 0);
    assert_eq!(guest.pool.out.len(), 2);
    let mut pool: Pool<_, 8> = Pool::new(&mut guest.pool);
    let at = 2 * KIB_4;
    let grant = guest.stage2.open(device(frame(at)), BASE + at);
    let mapped = grant.map_topping_up_always(Level::L3, &RAM, &mut pool);
    assert_eq!((mapped, pool.ready()), (Ok(Mapped::New), 2));
}
