// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The switch between mutants: a crate of its own, beside the rewritten copies of the others.
//!
//! `TWOFOLD_MUTANT=N` chooses mutant N. `TWOFOLD_REACHED=FILE` writes to the file which mutants are evaluated, and how many
//! evaluations there are. `TWOFOLD_EVALUATIONS=N` ends the process after N of them: that is how an endless loop is found
//! without a clock.

#![feature(const_eval_select, core_intrinsics)]
#![allow(internal_features, missing_docs)]

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// Whether mutant `id` is chosen; in what the compiler evaluates none is.
#[inline(always)]
pub const fn on(id: u32) -> bool {
    const fn constant(_: u32) -> bool {
        false
    }
    core::intrinsics::const_eval_select((id,), constant, is_chosen)
}

/// Not known yet.
const UNKNOWN: u32 = u32::MAX;
/// None is chosen, and each evaluation is recorded.
const RECORDED: u32 = u32::MAX - 1;

static CHOSEN: AtomicU32 = AtomicU32::new(UNKNOWN);
static EVALUATIONS: AtomicU64 = AtomicU64::new(0);
static LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);

#[inline(always)]
fn is_chosen(id: u32) -> bool {
    let chosen = CHOSEN.load(Relaxed);
    // Two threads may lose a count between them: the limit is far above what is usual.
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
            // A test may have filled the heap: the line is made on the stack. It is written in one piece, since threads
            // share the file.
            let mut line = [0; 40];
            let mut rest = &mut line[..];
            let _ = writeln!(rest, "{id} {evaluations}");
            let left = rest.len();
            let _ = file.write_all(&line[..line.len() - left]);
        }
    }
}
