// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mutants of calls that no test can catch, and why.
//!
//! Every report names each of them with its reason, and counts it as not caught.

use crate::mutation::{Excused, Excuses};

/// The excused mutants of calls.
pub const EXCUSES: Excuses = Excuses { listed_in: "tools/mutants/src/calls/excused.rs", all: EXCUSED };

const EXCUSED: &[Excused] = &[
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
        label: "dbm::clean_one_by_one/clear_bits/apart",
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
        file: "crates/stage2/src/table_lock.rs",
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
        label: "GuestMemory::write_in_page/lock/no-acquire",
        reason: "no write is made before the lock is read, and a CPU that maps or takes away the page locks later",
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
