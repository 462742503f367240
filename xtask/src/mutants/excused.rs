// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mutants that cannot be caught, and why.
//!
//! Each is named with its reason in every report, and counts as not caught. Invariant: an entry stands for exactly one
//! mutant of the list; one that has none any more is an error.

use anyhow::bail;

use super::sites::Mutant;

/// A mutant that need not be caught.
#[derive(Debug)]
pub struct Excused {
    /// Its file, from the top of the checkout.
    pub file: &'static str,
    /// Its function, call and kind, as [`Mutant::label`] has them: lines move.
    pub label: &'static str,
    /// Why nothing can notice it.
    pub reason: &'static str,
}

/// All of them.
pub const EXCUSED: &[Excused] = &[
    Excused {
        file: "crates/memory/src/dirty/log.rs",
        label: "Tracking::running/load/no-acquire",
        reason: "a bit that a late start clears behind a fault's back is of a page that it protects after that, or has in the log",
    },
    Excused {
        file: "crates/memory/src/dirty/log.rs",
        label: "Tracking::run/store/no-release",
        reason: "a bit that a late start clears behind a fault's back is of a page that it protects after that, or has in the log",
    },
    Excused {
        file: "crates/stage2/src/arm.rs",
        label: "arm::clean_one_by_one/clear/apart",
        reason: "the leaf that was read is dirty already: hardware can add no more than an access flag, which may be lost",
    },
    Excused {
        file: "crates/stage2/src/coalesce.rs",
        label: "Stage2::coalesce_to/make_busy/apart",
        reason: "the entry is a table's, in which hardware records nothing: it is broken by a store as it is",
    },
    Excused {
        file: "crates/stage2/src/map.rs",
        label: "Stage2::link/make_busy/apart",
        reason: "the entry is invalid, and hardware records nothing in it: it is broken by a store as it is",
    },
    Excused {
        file: "crates/stage2/src/record.rs",
        label: "Record::reset/lock/no-acquire",
        reason: "who held the lock of that page came too late, and has changed nothing that is to be seen",
    },
    Excused {
        file: "crates/memory/src/guest.rs",
        label: "GuestMemory::counts/lock/unlocked",
        reason: "a number is read, and nothing is decided by it",
    },
    Excused {
        file: "crates/memory/src/guest.rs",
        label: "GuestMemory::counts/lock/no-acquire",
        reason: "a number is read, and nothing is decided by it",
    },
    Excused {
        file: "crates/memory/src/guest.rs",
        label: "GuestMemory::write/lock/no-acquire",
        reason: "who maps the page takes the lock after that, and sees all that was written",
    },
    // What it hands over beside pages is that a table has left its tree. Who goes down by an entry of its page's next table,
    // and does not know that yet, changes nothing there before it has the record's lock, and then knows.
    Excused {
        file: "crates/memory/src/guest.rs",
        label: "GuestMemory::frames/lock/no-acquire",
        reason: "the lock of a table page's record hands over what this one does; what is read without that is a hint",
    },
    Excused {
        file: "crates/memory/src/ram.rs",
        label: "ram::take/lock/no-acquire",
        reason: "what is taken is zeroed first, and whoever maps it takes the slot's lock after that",
    },
];

/// Why a mutant is excused, if it is.
pub fn reason(mutant: &Mutant) -> Option<&'static str> {
    EXCUSED.iter().find(|excused| stands_for(excused, mutant)).map(|excused| excused.reason)
}

/// Whether each entry stands for one of `mutants`, which are all there are.
pub fn check(mutants: &[Mutant]) -> anyhow::Result<()> {
    match EXCUSED.iter().find(|excused| mutants.iter().filter(|mutant| stands_for(excused, mutant)).count() != 1) {
        Some(Excused { file, label, .. }) => {
            bail!("mutants/excused.rs: {file} {label} is not one mutant; --list names all")
        }
        None => Ok(()),
    }
}

fn stands_for(excused: &Excused, mutant: &Mutant) -> bool {
    mutant.site.file == excused.file && mutant.label() == excused.label
}
