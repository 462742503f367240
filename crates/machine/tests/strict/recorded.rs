// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Recorded runs, whose traces are read back (`docs/trace.md`): the lines describe the run.
//!
//! `cargo xtask trace-check` checks whether the run was correct.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;
use std::process::Command;

use twofold_abi::trace::{Dc, Event, Header, KINDS, Line, Source, is_comment};
use twofold_machine::arena::{ArenaOptions, Backing};
use twofold_machine::strict::{Bbm, Machine, MachineError, Options};
use twofold_stage2::Features;

use crate::random::{CPUS, MEMORY, random_operations};
use crate::world::{MODERN, PAGE, PLAIN, World};

#[test]
fn random_operations_are_traced_line_by_line() {
    let directory = tempfile::tempdir().unwrap();
    let mut kinds = BTreeSet::new();
    for (features, operations) in [(MODERN, 1500), (PLAIN, 500)] {
        let file = directory.path().join("trace");
        random_operations(|seed| World::recorded(features, CPUS, seed, MEMORY, file.clone()), operations, 1);
        let text = fs::read_to_string(file).unwrap();
        let mut memory = Memory::default();
        each_line(&text, |line| memory.take(line));
        memory.end(&features);
        kinds.extend(text.lines().skip(1).filter_map(|line| line.split(' ').nth(2).map(str::to_owned)));
    }
    // In this run no line is ever lost.
    let kind = |(kind, _): &(&'static str, _)| *kind;
    let expected = KINDS.iter().map(kind).filter(|kind| *kind != "lost");
    assert_eq!(kinds, expected.map(str::to_owned).collect());
}

#[test]
fn the_environment_names_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("trace");
    // Two machines in one process.
    let mut test = Command::new(std::env::current_exe().unwrap());
    let ended =
        test.args(["--exact", "basics::a_page_is_mapped_used_and_unmapped"]).env("TWOFOLD_TRACE", &file).output();
    assert!(ended.unwrap().status.success());
    for (file, features) in [(file.clone(), MODERN), (file.with_extension("1"), PLAIN)] {
        let text = fs::read_to_string(file).unwrap();
        let mut declared = HashMap::new();
        each_line(&text, |line| {
            if let Event::Feature { name, value } = line.event {
                declared.insert(name, value);
            }
        });
        assert_eq!(declared, HashMap::from(features.named()));
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
}

#[test]
fn a_file_that_cannot_be_written_is_an_error() {
    let memory = ArenaOptions::new(64 << 20, Backing::Anonymous);
    let trace = Some(Path::new("no/such/directory/trace").to_owned());
    let (features, bbm) = (MODERN, Bbm::default());
    let refused = Machine::new(Options { cpus: 1, seed: 1, events_between_switches: 24, features, bbm, memory, trace });
    let error = refused.err().expect("there is no such directory");
    assert!(matches!(error, MachineError::Trace { .. }));
    assert!(error.to_string().contains("no/such/directory/trace"), "{error}");
}

/// Each line can be read, is equal to what its type writes, and has a number above the one before.
fn each_line<'a>(text: &'a str, mut take: impl FnMut(&Line<'a>)) {
    let mut lines = text.lines();
    assert_eq!(Header::parse(lines.next().unwrap()), Ok(Header { source: Source::Machine }));
    let mut last = 0;
    for text in lines.filter(|text| !is_comment(text)) {
        let line = Line::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(line.to_string(), text);
        assert!(line.seq > last && line.cpu < CPUS as u32, "{text}");
        last = line.seq;
        take(&line);
    }
}

/// The state that a reader derives from the trace.
#[derive(Default)]
struct Memory {
    words: HashMap<u64, u64>,
    tables: BTreeSet<u64>,
    locks: HashMap<u64, u32>,
    roots: BTreeSet<u64>,
    inside: HashMap<u32, u32>,
    features: HashMap<String, u64>,
}

impl Memory {
    fn take(&mut self, line: &Line<'_>) {
        let place = || line.to_string();
        let by_hardware = matches!(line.event, Event::Hardware { .. } | Event::GuestLeft { .. });
        assert_eq!(line.site.is_none(), by_hardware, "{}", place());
        match line.event {
            Event::Feature { name, value } => drop(self.features.insert(name.to_owned(), value)),
            Event::RootMade { pa, .. } => assert!(self.roots.insert(pa), "{}", place()),
            Event::RootFreed { pa } => assert!(self.roots.remove(&pa), "{}", place()),
            Event::TableTaken { pa } => {
                assert!(self.tables.insert(pa), "{}", place());
                // Software may have written the page since it was last a table.
                self.words.retain(|word, _| !(pa..pa + PAGE).contains(word));
            }
            Event::TableFreed { pa } => assert!(self.tables.remove(&pa), "{}", place()),
            Event::LockTaken { pa } => assert_eq!(self.locks.insert(pa, line.cpu), None, "{}", place()),
            Event::LockReleased { pa } => assert_eq!(self.locks.remove(&pa), Some(line.cpu), "{}", place()),
            Event::Write { pa, old, new, .. } => self.change(pa, old, new, &place),
            Event::Hardware { pa, old, new } => {
                assert!(self.inside.contains_key(&line.cpu), "{}", place());
                self.change(pa, old, new, &place);
            }
            Event::Dc { operation: Dc::Zva, pa, size } => {
                for word in (pa..pa + size).step_by(8) {
                    self.words.insert(word, 0);
                }
            }
            Event::GuestEntered { vcpu, .. } => assert_eq!(self.inside.insert(line.cpu, vcpu), None, "{}", place()),
            Event::GuestLeft { vcpu } => assert_eq!(self.inside.remove(&line.cpu), Some(vcpu), "{}", place()),
            _ => assert!(!self.inside.contains_key(&line.cpu), "{}", place()),
        }
    }

    /// The old value of each change is the one that the trace left in that word.
    fn change(&mut self, pa: u64, old: u64, new: u64, place: &dyn Fn() -> String) {
        if let Some(known) = self.words.insert(pa, new) {
            assert_eq!(known, old, "{}", place());
        }
    }

    /// Checks that the test has returned everything.
    fn end(&self, features: &Features) {
        assert!(self.tables.is_empty() && self.roots.is_empty() && self.locks.is_empty() && self.inside.is_empty());
        let declared = features.named().map(|(name, value)| (name.to_owned(), value));
        assert_eq!(self.features, HashMap::from(declared));
    }
}
