// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mutants of calls that no test can catch, and why.
//!
//! Every report names each of them with its reason, and counts it as not caught.

use crate::mutation::{Excused, Excuses};

/// The excused mutants of calls.
pub const EXCUSES: Excuses = Excuses { listed_in: "tools/mutants/src/calls/excused.rs", lists: &[EXCUSED] };

const EXCUSED: &[Excused] = &[
    Excused {
        file: "crates/memory/src/dirty/log.rs",
        mutants: &[("Tracking::running/load/no-acquire", LATE_START), ("Tracking::run/store/no-release", LATE_START)],
    },
    Excused {
        file: "crates/stage2/src/dbm.rs",
        mutants: &[(
            "dbm::clean_one_by_one/clear_bits/apart",
            "the leaf that was read is already dirty: hardware can add only an access flag, which may be lost",
        )],
    },
    Excused {
        file: "crates/stage2/src/coalesce.rs",
        mutants: &[(
            "Stage2::coalesce_to/make_busy/apart",
            "hardware records nothing in a table descriptor, so a plain store breaks it as well",
        )],
    },
    Excused {
        file: "crates/stage2/src/map.rs",
        mutants: &[(
            "Stage2::link/make_busy/apart",
            "hardware records nothing in an invalid entry, so a plain store does as well",
        )],
    },
    Excused { file: "crates/stage2/src/group.rs", mutants: &[("Stage2::remake/lock_whatever/no-acquire", ONE_GROUP)] },
    Excused {
        file: "crates/stage2/src/map_group.rs",
        mutants: &[("Stage2::fill_group/lock_whatever/no-acquire", ONE_GROUP)],
    },
    Excused {
        file: "crates/stage2/src/table_lock.rs",
        mutants: &[(
            "TableMetadata::reset/lock/no-acquire",
            "a CPU that held this lock before came too late, and wrote nothing that this CPU must see",
        )],
    },
    Excused {
        file: "crates/memory/src/give_up.rs",
        mutants: &[
            ("GuestMemory::free_huge_page/lock/unlocked", NOT_REACHED),
            ("GuestMemory::free_huge_page/lock/no-acquire", NOT_REACHED),
        ],
    },
    Excused {
        file: "crates/memory/src/release.rs",
        mutants: &[
            ("GuestMemory::release_huge_page/lock#2/unlocked", NOT_REACHED),
            ("GuestMemory::release_huge_page/lock#2/no-acquire", NOT_REACHED),
        ],
    },
];

const LATE_START: &str =
    "if a late start clears a bit that a fault has set, it protects that page later or has it in the log";
const ONE_GROUP: &str = "only another entry of the table can show it, and the model's tables hold one group; Busy::make takes the same lock";
const NOT_REACHED: &str =
    "not reached: a block of RAM is a huge page, so its withdrawal splits nothing and cannot fail";
