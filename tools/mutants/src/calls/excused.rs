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
        file: "crates/stage2/src/group.rs",
        label: "Stage2::remake/lock_whatever/no-acquire",
        reason: "only another entry of the table can show it, and the model's tables hold one group; Busy::make takes the same lock",
    },
    Excused {
        file: "crates/stage2/src/map_group.rs",
        label: "Stage2::fill_group/lock_whatever/no-acquire",
        reason: "only another entry of the table can show it, and the model's tables hold one group; Busy::make takes the same lock",
    },
    Excused {
        file: "crates/stage2/src/table_lock.rs",
        label: "TableMetadata::reset/lock/no-acquire",
        reason: "a CPU that held this lock before came too late, and wrote nothing that this CPU must see",
    },
    Excused {
        file: "crates/memory/src/give_up.rs",
        label: "GuestMemory::free_huge_page/lock/unlocked",
        reason: "not reached: a block of RAM is a huge page, so its withdrawal splits nothing and cannot fail",
    },
    Excused {
        file: "crates/memory/src/give_up.rs",
        label: "GuestMemory::free_huge_page/lock/no-acquire",
        reason: "not reached: a block of RAM is a huge page, so its withdrawal splits nothing and cannot fail",
    },
    Excused {
        file: "crates/memory/src/release.rs",
        label: "GuestMemory::release_huge_page/lock#2/unlocked",
        reason: "not reached: a block of RAM is a huge page, so its withdrawal splits nothing and cannot fail",
    },
    Excused {
        file: "crates/memory/src/release.rs",
        label: "GuestMemory::release_huge_page/lock#2/no-acquire",
        reason: "not reached: a block of RAM is a huge page, so its withdrawal splits nothing and cannot fail",
    },
];
