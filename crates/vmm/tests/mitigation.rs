// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests the decisions on mitigations: what firmware's answers mean, for one CPU and for several, and that a call is made
//! exactly between two guests.

use proptest::prelude::*;
use twofold_vmm::calls::{Mitigation, Workaround};
use twofold_vmm::mitigation::{Needs, Tables};

const ALL: [Workaround; 3] = [Workaround::BranchTarget, Workaround::StoreBypass, Workaround::BranchHistory];

/// A CPU whose firmware answers this for each workaround.
fn cpu(answers: [Option<i32>; 3]) -> Needs {
    Needs::ask(|asked| answers[ALL.iter().position(|workaround| *workaround == asked).unwrap()])
}

fn guest(needs: &Needs) -> [Mitigation; 3] {
    ALL.map(|workaround| needs.for_guest(workaround))
}

/// The calls that a CPU makes between two guests.
fn between(needs: &Needs) -> Vec<Workaround> {
    let (mut tables, mut calls) = (Tables::new(needs), Vec::new());
    tables.load(1, |workaround| calls.push(workaround));
    tables.load(2, |workaround| calls.push(workaround));
    calls
}

#[test]
fn each_answer_has_its_consequence() {
    use Mitigation::{Call, NotNeeded, Unknown};
    for (answer, target, bypass, history) in [
        (None, Unknown, Unknown, Unknown),
        (Some(-1), Unknown, Unknown, Unknown),
        (Some(-3), Unknown, Unknown, Unknown),
        (Some(2), Unknown, Unknown, Unknown),
        (Some(i32::MIN), Unknown, Unknown, Unknown),
        (Some(-2), Unknown, NotNeeded, Unknown),
        (Some(1), NotNeeded, NotNeeded, NotNeeded),
        (Some(0), Call, NotNeeded, Call),
    ] {
        let needs = cpu([answer; 3]);
        assert_eq!(guest(&needs), [target, bypass, history], "{answer:?}");
        assert_eq!(needs.store_bypass_stays_on(), answer == Some(0), "{answer:?}");
        let passed = ALL.map(|workaround| needs.passes_on(workaround));
        assert_eq!(passed, [answer == Some(0), false, answer == Some(0)], "{answer:?}");
    }
    assert_eq!(cpu([None; 3]), Needs::UNKNOWN);
}

#[test]
fn one_call_is_made_between_guests_and_it_is_the_stronger_one() {
    for (target, history, expected) in [
        (0, 0, Some(Workaround::BranchHistory)),
        (1, 0, Some(Workaround::BranchHistory)),
        (0, 1, Some(Workaround::BranchTarget)),
        (0, -1, Some(Workaround::BranchTarget)),
        (1, 1, None),
        (-1, -1, None),
    ] {
        // What store bypass needs is no call between guests.
        for bypass in [-2, -1, 0, 1] {
            let needs = cpu([Some(target), Some(bypass), Some(history)]);
            assert_eq!(between(&needs), expected.into_iter().collect::<Vec<_>>(), "{target}, {history}");
        }
    }
}

fn answer() -> impl Strategy<Value = Option<i32>> {
    prop_oneof![Just(None), (-3..=2).prop_map(Some)]
}

proptest! {
    /// Several CPUs: a guest calls if one of them needs it, is free of it if none of them does, and learns of no
    /// mitigation that one of them may lack.
    #[test]
    fn a_guest_is_answered_for_all_cpus(cpus in prop::collection::vec([answer(), answer(), answer()], 1..6)) {
        let needs: Vec<_> = cpus.iter().map(|answers| cpu(*answers)).collect();
        let all = needs.iter().skip(1).fold(needs[0], Needs::and);
        for (place, workaround) in ALL.into_iter().enumerate() {
            let each: Vec<_> = needs.iter().map(|needs| needs.for_guest(workaround)).collect();
            let has = |mitigation| each.contains(&mitigation);
            let expected = match (has(Mitigation::Call), has(Mitigation::Unknown)) {
                (true, _) => Mitigation::Call,
                (_, true) => Mitigation::Unknown,
                _ => Mitigation::NotNeeded,
            };
            prop_assert_eq!(all.for_guest(workaround), expected, "{:?}", workaround);
            // No call on a CPU whose firmware has not announced it.
            for (needs, answers) in needs.iter().zip(&cpus) {
                prop_assert!(answers[place] == Some(0) || !needs.passes_on(workaround));
            }
        }
        let mut reversed = needs;
        reversed.reverse();
        prop_assert_eq!(reversed.iter().skip(1).fold(reversed[0], Needs::and), all);
    }

    /// One call for each change to another guest, none between vCPUs of one guest, and none before the first.
    #[test]
    fn a_call_is_made_at_each_change_of_guests_alone(guests in prop::collection::vec(1_u64..4, 0..50), needed: bool) {
        let (mut tables, mut calls) = (Tables::new(&cpu([Some(if needed { 0 } else { 1 }); 3])), 0);
        let mut last = None;
        for guest in guests {
            let before = calls;
            let changes = tables.load(guest << 48 | 0x4000, |_| calls += 1);
            prop_assert_eq!(changes, last != Some(guest));
            prop_assert_eq!(calls - before, u32::from(needed && last.is_some_and(|last| last != guest)));
            last = Some(guest);
        }
    }
}
