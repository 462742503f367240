// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mutants of `crates/vmm`.

use super::LOOK;
use crate::mutation::Excused;

pub(super) const EXCUSED: &[Excused] = &[
    Excused {
        file: "crates/vmm/src/balance.rs",
        mutants: &[("rate::SCALE: 1 << 20 => a bit more", "the scale only limits how far a rate is rounded")],
    },
    Excused {
        file: "crates/vmm/src/console.rs",
        mutants: &[
            ("Console::new: false => true", "a session begins with a grant, which clears it"),
            ("console::NEVER: u64::MAX => its lowest bit clear", "no byte has that number either"),
            ("console::NEVER: u64::MAX => a bit more", ALL_BITS),
        ],
    },
    Excused {
        file: "crates/vmm/src/memory_store.rs",
        mutants: &[
            ("memory_store::NEVER: u64::MAX => its lowest bit clear", "no transfer ends that late either"),
            ("memory_store::NEVER: u64::MAX => a bit more", ALL_BITS),
            ("MemoryStore::end_next: first > now => false", LOOK),
        ],
    },
    Excused {
        file: "crates/vmm/src/scheduler/group.rs",
        mutants: &[
            ("Group::new: 0 => 1 #2", "only the differences between times of a group's clock are read"),
            ("group::tick: 1 => 2", CLOCK_RATE),
            ("group::tick: 32 => 33", CLOCK_RATE),
        ],
    },
    Excused {
        file: "crates/vmm/src/scheduler/mod.rs",
        mutants: &[
            ("Scheduler::new: 0 => 1 #4", VIRTUAL_UNIT),
            ("Scheduler::add: 0 => 1", VIRTUAL_UNIT),
            ("Scheduler::ran: 0 => 1", "an entity that runs is its CPU's"),
        ],
    },
    Excused {
        file: "crates/vmm/src/scheduler/queue.rs",
        mutants: &[
            ("Queue::remove: only.entity == entity => false", "the search of all finds the same"),
            ("Queue::rise: self.0[above] <= self.0[place] => self.0[above] < self.0[place]", "no two items are equal"),
        ],
    },
    Excused {
        file: "crates/vmm/src/scheduler/run.rs",
        mutants: &[
            (
                "Scheduler::block_for_next: virtual_time + least < next.virtual_time => virtual_time + least <= next.virtual_time",
                "one that is behind by a slice exactly is lifted by nothing",
            ),
            ("Scheduler::pick_again: 0 => 1", VIRTUAL_UNIT),
            ("Scheduler::preferred: own.entity != first.entity => true", "both are the same"),
            (
                "Scheduler::is_kept: own.virtual_time <= first.virtual_time + kept => own.virtual_time < first.virtual_time + kept",
                AT_EQUALITY,
            ),
            ("Scheduler::is_kept: own.virtual_time < running => own.virtual_time <= running", AT_EQUALITY),
        ],
    },
];

const VIRTUAL_UNIT: &str = "a tick has thousands of units of virtual time, and only differences are read";
const AT_EQUALITY: &str = "at equal virtual times either choice keeps the bounds";
const CLOCK_RATE: &str = "all clocks of groups run twice as fast, and only their ratios count";
const ALL_BITS: &str = "the value already has all bits";
