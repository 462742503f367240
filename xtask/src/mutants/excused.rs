// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mutants that no test can catch, and why.
//!
//! Every report names each of them with its reason, and counts it as not caught. Invariant: an entry stands for exactly
//! one mutant of the list; an entry without its mutant is an error.

use anyhow::bail;

use super::sites::Mutant;

/// A mutant that need not be caught.
#[derive(Debug)]
pub struct Excused {
    /// The mutant's file, relative to the top of the checkout.
    pub file: &'static str,
    /// The mutant's function, call and kind, as [`Mutant::label`] formats them. Line numbers would change too often.
    pub label: &'static str,
    /// The reason why no test can catch it.
    pub reason: &'static str,
}

/// All excused mutants.
pub const EXCUSED: &[Excused] = &[
    Excused {
        file: "crates/memory/src/dirty/log.rs",
        label: "Tracking::running/load/no-acquire",
        reason: "if a late start clears a bit that a fault has set, it protects that page later or has it in the log",
    },
    Excused {
        file: "crates/memory/src/dirty/log.rs",
        label: "Tracking::run/store/no-release",
        reason: "if a late start clears a bit that a fault has set, it protects that page later or has it in the log",
    },
    Excused {
        file: "crates/stage2/src/dbm.rs",
        label: "dbm::clean_one_by_one/clear/apart",
        reason: "the leaf that was read is already dirty: hardware can add only an access flag, which may be lost",
    },
    Excused {
        file: "crates/stage2/src/coalesce.rs",
        label: "Stage2::coalesce_to/make_busy/apart",
        reason: "hardware records nothing in a table descriptor, so a plain store breaks it as well",
    },
    Excused {
        file: "crates/stage2/src/map.rs",
        label: "Stage2::link/make_busy/apart",
        reason: "hardware records nothing in an invalid entry, so a plain store does as well",
    },
    Excused {
        file: "crates/stage2/src/metadata.rs",
        label: "TableMetadata::reset/lock/no-acquire",
        reason: "a CPU that held this lock before came too late, and wrote nothing that this CPU must see",
    },
    Excused {
        file: "crates/memory/src/guest.rs",
        label: "GuestMemory::counts/lock/unlocked",
        reason: "the call reads a number, and no decision depends on it",
    },
    Excused {
        file: "crates/memory/src/guest.rs",
        label: "GuestMemory::counts/lock/no-acquire",
        reason: "the call reads a number, and no decision depends on it",
    },
    Excused {
        file: "crates/memory/src/guest.rs",
        label: "GuestMemory::write/lock/no-acquire",
        reason: "the CPU that maps the page takes the lock later, and so sees the write",
    },
    // Beside pages, this lock hands over the fact that a table has left its tree. A CPU may walk by an entry of the
    // page's next table without that fact. It changes nothing there before it takes the table's lock, which also hands
    // the fact over.
    Excused {
        file: "crates/memory/src/guest.rs",
        label: "GuestMemory::frames/lock/no-acquire",
        reason: "the lock of a table page hands over the same; a read without that lock is only a hint",
    },
    Excused {
        file: "crates/memory/src/ram.rs",
        label: "ram::take/lock/no-acquire",
        reason: "a taken frame is zeroed first, and the CPU that maps it takes the memslot's lock later",
    },
];

/// Returns the reason why a mutant is excused, if it is.
pub fn reason(mutant: &Mutant) -> Option<&'static str> {
    EXCUSED.iter().find(|excused| stands_for(excused, mutant)).map(|excused| excused.reason)
}

/// Checks that each entry stands for exactly one of `mutants`, the complete list.
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
