// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Steps of the switch between vCPUs that a test leaves out.
//!
//! A test chooses one step for its thread ([`leave_out`]). `cargo xtask mutants` chooses one for the whole program, by
//! `TWOFOLD_MUTANT=save:NAME` or `restore:NAME`; `TWOFOLD_REACHED=FILE` asks for the steps that a test executes.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::{Mutex, Once, OnceLock};

use crate::switch::simd;
use crate::switch::table::{Part, TABLE};

/// A step of a switch between vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A register is saved.
    Save,
    /// A register is restored.
    Restore,
}

thread_local! {
    static LEFT_OUT: Cell<Option<(Step, &'static str)>> = const { Cell::new(None) };
}

/// Returns all steps: each register's save and restore. Debug registers are never saved, because their accesses trap.
pub fn steps() -> impl Iterator<Item = (Step, &'static str)> {
    let is_debug = |part: Part| matches!(part, Part::debug | Part::debug_pairs);
    let saved = TABLE.iter().filter(move |row| !is_debug(row.part)).map(|row| row.name).chain(simd::NAMES);
    let restored = TABLE.iter().map(|row| row.name).chain(simd::NAMES);
    saved.map(|name| (Step::Save, name)).chain(restored.map(|name| (Step::Restore, name)))
}

/// The step's name as `cargo xtask mutants` gives it.
pub fn name(step: Step, register: &str) -> String {
    match step {
        Step::Save => format!("save:{register}"),
        Step::Restore => format!("restore:{register}"),
    }
}

/// Leaves this step out on this thread from now on.
pub fn leave_out(step: Option<(Step, &'static str)>) {
    LEFT_OUT.set(step);
}

/// Returns whether the step of this register is executed.
pub fn kept(step: Step, register: &'static str) -> bool {
    if LEFT_OUT.get() == Some((step, register)) {
        return false;
    }
    match choice() {
        Choice::None => true,
        Choice::Record(_) => {
            record(&name(step, register));
            true
        }
        Choice::LeaveOut(chosen) if *chosen == name(step, register) => {
            static SAID: Once = Once::new();
            SAID.call_once(|| eprintln!("mutant reached"));
            false
        }
        Choice::LeaveOut(_) => true,
    }
}

enum Choice {
    None,
    Record(String),
    LeaveOut(String),
}

fn choice() -> &'static Choice {
    static CHOICE: OnceLock<Choice> = OnceLock::new();
    CHOICE.get_or_init(|| match (std::env::var("TWOFOLD_REACHED"), std::env::var("TWOFOLD_MUTANT")) {
        (Ok(file), _) => Choice::Record(file),
        (_, Ok(step)) => Choice::LeaveOut(step),
        _ => Choice::None,
    })
}

fn record(step: &str) {
    static SEEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let Choice::Record(file) = choice() else { return };
    if SEEN.lock().is_ok_and(|mut seen| seen.insert(step.to_owned()))
        && let Ok(mut file) = OpenOptions::new().create(true).append(true).open(file)
    {
        // A failure to record shows as a step that no test reaches.
        let _ = writeln!(file, "{step} 1");
    }
}
