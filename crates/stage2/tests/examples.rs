// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The examples run. Each checks its own results.

#![allow(clippy::print_stdout, dead_code, reason = "programs, whose `main` is called below")]

#[path = "../examples/dirty_track.rs"]
mod dirty_track;
#[path = "../examples/map_and_translate.rs"]
mod map_and_translate;
#[path = "../examples/minimal.rs"]
mod minimal;
#[path = "../examples/own_platform.rs"]
mod own_platform;

#[test]
fn map_and_translate_runs() {
    map_and_translate::main().unwrap();
}

#[test]
fn dirty_track_runs() {
    dirty_track::main().unwrap();
}

#[test]
fn own_platform_runs() {
    own_platform::main().unwrap();
}

#[test]
fn minimal_runs() {
    minimal::main().unwrap();
}
