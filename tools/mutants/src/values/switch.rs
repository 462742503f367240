// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The switch between mutants: a separate crate beside the rewritten copies of the others.
//!
//! `TWOFOLD_MUTANT=N` selects mutant N. `TWOFOLD_REACHED=FILE` writes the evaluated mutants and the number of
//! evaluations to the file. `TWOFOLD_EVALUATIONS=N` ends the process after N evaluations, which finds an endless loop
//! without a clock.

#![feature(const_eval_select, core_intrinsics)]
#![allow(internal_features, missing_docs)]

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// Returns whether mutant `id` is selected. Returns false in code that the compiler evaluates.
#[inline(always)]
pub const fn on(id: u32) -> bool {
    const fn constant(_: u32) -> bool {
        false
    }
    core::intrinsics::const_eval_select((id,), constant, is_chosen)
}

/// The environment was not read yet.
const UNKNOWN: u32 = u32::MAX;
/// No mutant is selected, and each evaluation is recorded.
const RECORDED: u32 = u32::MAX - 1;

static CHOSEN: AtomicU32 = AtomicU32::new(UNKNOWN);
static EVALUATIONS: AtomicU64 = AtomicU64::new(0);
static LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);

#[inline(always)]
fn is_chosen(id: u32) -> bool {
    let chosen = CHOSEN.load(Relaxed);
    // Two threads may lose a count. That is harmless, because the limit is far above the usual number.
    let evaluations = EVALUATIONS.load(Relaxed) + 1;
    EVALUATIONS.store(evaluations, Relaxed);
    if chosen >= RECORDED || chosen == id || evaluations > LIMIT.load(Relaxed) { rare(id, evaluations) } else { false }
}

#[cold]
fn rare(id: u32, evaluations: u64) -> bool {
    let mut chosen = CHOSEN.load(Relaxed);
    if chosen == UNKNOWN {
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
        LIMIT.store(number("TWOFOLD_EVALUATIONS").unwrap_or(u64::MAX), Relaxed);
        let is_recorded = std::env::var_os("TWOFOLD_REACHED").is_some();
        chosen = if is_recorded { RECORDED } else { number("TWOFOLD_MUTANT").unwrap_or(0) as u32 };
        CHOSEN.store(chosen, Relaxed);
    }
    if evaluations > LIMIT.load(Relaxed) {
        eprintln!("mutant does not end: {evaluations} evaluations");
        std::process::exit(101);
    }
    if chosen == RECORDED {
        record(id, evaluations);
    }
    if chosen == id {
        static SAID: AtomicBool = AtomicBool::new(false);
        if !SAID.swap(true, Relaxed) {
            eprintln!("mutant reached");
        }
    }
    chosen == id
}

fn record(id: u32, evaluations: u64) {
    static SEEN: [AtomicBool; 1 << 14] = [const { AtomicBool::new(false) }; 1 << 14];
    static FILE: OnceLock<Option<File>> = OnceLock::new();
    let is_new = !SEEN[id as usize].load(Relaxed) && !SEEN[id as usize].swap(true, Relaxed);
    if is_new || evaluations.is_power_of_two() {
        let open = || OpenOptions::new().create(true).append(true).open(std::env::var_os("TWOFOLD_REACHED")?).ok();
        if let Some(mut file) = FILE.get_or_init(open).as_ref() {
            // A test may have filled the heap, so the line is formatted on the stack. It is written by one call,
            // because threads share the file.
            let mut line = [0; 40];
            let mut rest = &mut line[..];
            let _ = writeln!(rest, "{id} {evaluations}");
            let left = rest.len();
            let _ = file.write_all(&line[..line.len() - left]);
        }
    }
}
