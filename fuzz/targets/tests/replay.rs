// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replays the corpora, on any toolchain.

use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use twofold_fuzz_targets::TARGETS;

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn entries(directory: PathBuf) -> Vec<PathBuf> {
    let entries = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut entries: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    entries
}

#[test]
fn every_input_that_is_kept_still_passes() {
    let mut failed = Vec::new();
    for (name, target) in TARGETS {
        let inputs = entries(fuzz().join("corpus").join(name));
        assert!(!inputs.is_empty(), "{name} has no corpus");
        for input in inputs {
            let bytes = fs::read(&input).unwrap();
            if catch_unwind(|| target(&bytes)).is_err() {
                failed.push(format!(
                    "cargo run --package twofold-fuzz-targets --example replay {name} {}",
                    input.display()
                ));
            }
        }
    }
    assert!(failed.is_empty(), "the output of each is above; to reproduce one:\n{}", failed.join("\n"));
}

/// Each run of the tests replays every corpus, so a corpus has only few inputs: those that cover the most code.
#[test]
fn a_corpus_stays_small() {
    for (name, _) in TARGETS {
        let inputs = entries(fuzz().join("corpus").join(name)).len();
        assert!(inputs <= MOST_INPUTS, "{name} has {inputs} inputs; keep the {MOST_INPUTS} that cover the most code");
    }
}

const MOST_INPUTS: usize = 20;

#[test]
fn bytes_that_say_nothing_pass() {
    for (_, target) in TARGETS {
        target(&[]);
        target(&[0; 64]);
        target(&[0xff; 4096]);
    }
}

/// The list of targets, the programs, the manifest and the corpora must agree.
#[test]
fn targets_programs_and_corpora_are_the_same() {
    let names: BTreeSet<_> = TARGETS.iter().map(|(name, _)| name.to_string()).collect();
    let stems = |directory: &str| {
        let entries = entries(fuzz().join(directory)).into_iter();
        entries.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect::<BTreeSet<_>>()
    };
    assert_eq!(names.len(), TARGETS.len());
    assert_eq!((stems("fuzz_targets"), stems("corpus")), (names.clone(), names.clone()));
    let manifest = fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
    let programs =
        manifest.lines().filter_map(|line| line.strip_prefix("path = \"fuzz_targets/")?.strip_suffix(".rs\""));
    assert_eq!(programs.map(str::to_owned).collect::<BTreeSet<_>>(), names);
}
