// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replays one input on any toolchain: `replay TARGET FILE`. It panics if the target fails.

use std::env;
use std::process::ExitCode;

use twofold_fuzz_targets::TARGETS;

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [name, path] = &arguments[..] else { return refuse("give a target and a file") };
    let Some((_, target)) = TARGETS.iter().find(|(target, _)| target == name) else {
        return refuse(&format!("there is no target `{name}`; there are {}", TARGETS.map(|(name, _)| name).join(", ")));
    };
    match std::fs::read(path) {
        Ok(bytes) => target(&bytes),
        Err(error) => return refuse(&format!("cannot read {path}: {error}")),
    }
    println!("{name} passes with {path}");
    ExitCode::SUCCESS
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("error: {why}");
    ExitCode::FAILURE
}
