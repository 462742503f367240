// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Searches all that can happen in a commit: no state has two runners, and from each a state with exactly one can be
//! reached without further failures. Then each step of the protocol is weakened, and the search finds what breaks.
//!
//! `stateright` searches for states that break a property. It has no property of the kind "can still be reached from
//! here" (its `eventually` follows paths without cycles only), so [`stuck`] searches for that, over the same model.

mod controls;
mod world;

use std::collections::{HashMap, HashSet};

use stateright::{Checker, HasDiscoveries, Model};
use world::{Commit, Happens, World};

/// How often the guest is moved, and how often a side crashes. The larger ones are for optimised builds.
const SEARCHED: &[(u8, u8)] =
    if cfg!(debug_assertions) { &[(3, 0), (2, 1), (1, 2)] } else { &[(4, 0), (3, 1), (2, 2)] };

#[test]
fn never_two_sides_run_and_one_does_in_the_end() {
    for &(moves, crashes) in SEARCHED {
        let commit = Commit { moves, crashes, ..Commit::default() };
        let checker = commit.clone().checker().spawn_bfs().join();
        checker.assert_properties();
        let (states, stuck) = stuck(&commit);
        eprintln!("{moves} moves, {crashes} crashes: {states} states");
        assert_eq!(states, checker.unique_state_count(), "both searches see the same states");
        assert_eq!(stuck, None);
    }
}

/// Whether a state breaks a property.
fn breaks(commit: &Commit, property: &'static str) -> bool {
    let checker = commit.clone().checker().finish_when(HasDiscoveries::AnyOf([property].into())).spawn_bfs().join();
    checker.discovery(property).is_some()
}

/// Searches for a state from which no state with exactly one runner can be reached, if nothing fails any more. Returns
/// the number of states, and such a state.
///
/// What can be reached with some messages can be reached with more. So for each state it is enough to look at the same
/// state with all messages lost.
fn stuck(commit: &Commit) -> (usize, Option<World>) {
    let (worlds, _) = explore(commit, commit.init_states(), |_| true);
    let calm = worlds.iter().map(World::calm).collect::<HashSet<_>>().into_iter().collect();
    let (calm, steps) = explore(commit, calm, Happens::is_good);
    let mut before = vec![Vec::new(); calm.len()];
    for (from, to) in steps {
        before[to].push(from);
    }
    let mut reaches: Vec<_> = calm.iter().map(|world| world.runners() == 1).collect();
    let mut todo: Vec<_> = (0..calm.len()).filter(|&at| reaches[at]).collect();
    while let Some(at) = todo.pop() {
        for &from in &before[at] {
            if !std::mem::replace(&mut reaches[from], true) {
                todo.push(from);
            }
        }
    }
    (worlds.len(), reaches.iter().position(|reaches| !reaches).map(|at| calm[at].clone()))
}

/// Returns all states that can be reached from some by actions that are `allowed`, and the steps between them.
fn explore(commit: &Commit, roots: Vec<World>, allowed: fn(Happens) -> bool) -> (Vec<World>, Vec<(usize, usize)>) {
    let mut numbers: HashMap<World, usize> = HashMap::new();
    let (mut worlds, mut steps) = (Vec::new(), Vec::new());
    let mut number = |world: World, worlds: &mut Vec<World>| {
        *numbers.entry(world).or_insert_with_key(|world| {
            worlds.push(world.clone());
            worlds.len() - 1
        })
    };
    for world in roots {
        number(world, &mut worlds);
    }
    let (mut at, mut actions) = (0, Vec::new());
    while let Some(world) = worlds.get(at).cloned() {
        commit.actions(&world, &mut actions);
        for action in actions.drain(..).filter(|&action| allowed(action)) {
            if let Some(next) = commit.next_state(&world, action) {
                steps.push((at, number(next, &mut worlds)));
            }
        }
        at += 1;
    }
    (worlds, steps)
}
