// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Recorded traces, corrupted at one place at a time. The checker must report each corruption by the rule that it
//! breaks, and must accept the unchanged traces.
//!
//! The test records traces of the hosted machine's random operations. `TWOFOLD_TRUE_TRACE=FILE` names another trace,
//! `TWOFOLD_SEED` another seed. For each corruption some places are chosen at random; `TWOFOLD_PLACES=1000000` takes
//! all.

use std::collections::BTreeMap;
use std::process::Command;
use std::{env, fs};

use twofold_abi::trace::{Line, is_comment};

use super::places::{self, Corruption, Edit};
use crate::rules::Rule;
use crate::state::Checker;

#[test]
fn corrupted_traces_are_refused() {
    let seed = number("TWOFOLD_SEED").unwrap_or(1);
    let most = number("TWOFOLD_PLACES").unwrap_or(5) as usize;
    println!("TWOFOLD_SEED={seed} TWOFOLD_PLACES={most}");
    let mut counts = BTreeMap::new();
    let mut accepted = Vec::new();
    let mut random = Random(seed);
    for text in true_traces(seed) {
        let lines: Vec<_> = text.lines().skip(1).filter(|line| !is_comment(line)).collect();
        let mut events: Vec<_> = lines.iter().map(|line| Line::parse(line).unwrap()).collect();
        events.sort_by_key(|event| event.seq);
        let mut edits: Vec<(usize, &str, Rule, Edit)> = Vec::new();
        for Corruption { name, rule, edits: places } in places::of(&events) {
            let count: &mut Count = counts.entry(name).or_default();
            count.places += places.len();
            let drawn = random.draw(places, most);
            count.tried += drawn.len();
            edits.extend(drawn.into_iter().map(|edit| (edit[0].0, name, rule, edit)));
        }
        edits.sort_by_key(|(at, ..)| *at);
        let mut edits = edits.into_iter().peekable();
        let mut checker = Checker::default();
        for (at, event) in events.iter().enumerate() {
            while let Some((_, name, rule, edit)) = edits.next_if(|(first, ..)| *first == at) {
                let found = refused_by(checker.clone(), &events, at, &edit, rule);
                if found.contains(&rule) {
                    counts.entry(name).or_default().refused += 1;
                } else {
                    let lines = lines_of(&events, &edit);
                    accepted.push(format!("{name}: {found:?} and not {rule:?} for {lines}: {edit:?}"));
                }
            }
            checker.event(at, event).unwrap();
            assert!(checker.breaches.is_empty(), "{}", checker.breaches[0].what);
        }
        println!("{} lines, accepted unchanged", events.len());
    }
    println!("places   tried refused");
    for (name, Count { places, tried, refused }) in &counts {
        println!("{places:>7} {tried:>7} {refused:>7} {name}");
    }
    assert!(accepted.is_empty(), "{} were not refused by their rule:\n{}", accepted.len(), accepted.join("\n"));
    let nowhere: Vec<_> = counts.iter().filter(|(_, count)| count.places == 0).map(|(name, _)| name).collect();
    assert!(nowhere.is_empty() || env::var_os("TWOFOLD_TRUE_TRACE").is_some(), "no place for {nowhere:?}");
}

#[derive(Default)]
struct Count {
    places: usize,
    tried: usize,
    refused: usize,
}

/// Continues a check at `first`, with the edited lines, and returns the rules that it reports. Stops at the expected
/// rule, or at the first breach after the last edited line.
fn refused_by(mut checker: Checker, events: &[Line<'_>], first: usize, edit: &Edit, expected: Rule) -> Vec<Rule> {
    let edit: BTreeMap<_, _> = edit.iter().copied().collect();
    let last = edit.keys().max().copied().unwrap_or(first);
    for (at, line) in events.iter().enumerate().skip(first) {
        let line = match edit.get(&at) {
            Some(None) => continue,
            Some(Some(event)) => Line { event: *event, ..*line },
            None => *line,
        };
        checker.event(at, &line).unwrap();
        let is_expected = checker.breaches.iter().any(|breach| breach.rule == expected);
        if is_expected || at >= last && !checker.breaches.is_empty() {
            break;
        }
    }
    checker.breaches.iter().map(|breach| breach.rule).collect()
}

fn lines_of(events: &[Line<'_>], edit: &Edit) -> String {
    edit.iter().take(2).map(|(at, _)| events[*at].to_string()).collect::<Vec<_>>().join("; ")
}

/// Returns the text of one trace for each kind of CPU.
fn true_traces(seed: u64) -> Vec<String> {
    if let Some(file) = env::var_os("TWOFOLD_TRUE_TRACE") {
        return vec![fs::read_to_string(file).unwrap()];
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("trace");
    let mut test = Command::new(env!("CARGO"));
    test.args(["test", "--package", "twofold-machine", "--features", "twofold-machine/strict"])
        .args(["--test", "strict", "--", "random::judge_random_operations", "--test-threads=1"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .env("TWOFOLD_OPERATIONS", number("TWOFOLD_OPERATIONS").unwrap_or(500).to_string())
        .env("TWOFOLD_SEED", seed.to_string())
        .env("TWOFOLD_TRACE", &file);
    let output = test.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    ["trace", "trace.1", "trace.2"].map(|name| fs::read_to_string(directory.path().join(name)).unwrap()).into()
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok()?.parse().ok()
}

/// A xorshift64* generator.
struct Random(u64);

impl Random {
    /// Chooses at most `most` of the edits at random.
    fn draw(&mut self, mut edits: Vec<Edit>, most: usize) -> Vec<Edit> {
        for drawn in 0..edits.len().min(most) {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            let other = drawn + (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % (edits.len() - drawn);
            edits.swap(drawn, other);
        }
        edits.truncate(most);
        edits
    }
}
