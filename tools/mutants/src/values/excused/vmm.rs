// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mutants of `crates/vmm`.

use super::{LOOK, NAME};
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
            ("Queue::rise: self.0[above] <= self.0[place] => self.0[above] < self.0[place]", NONE_EQUAL),
            ("Queue::sink: self.0[*least] < self.0[place] => self.0[*least] <= self.0[place]", NONE_EQUAL),
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
            (
                "Scheduler::settle: virtual_time < first.virtual_time => virtual_time <= first.virtual_time",
                "one that is level with the first is lifted by nothing",
            ),
            ("Scheduler::preferred: own.entity != first.entity => true", "both are the same"),
            (
                "Scheduler::is_kept: own.virtual_time <= first.virtual_time + kept => own.virtual_time < first.virtual_time + kept",
                AT_EQUALITY,
            ),
            ("Scheduler::is_kept: own.virtual_time < running => own.virtual_time <= running", AT_EQUALITY),
            ("Scheduler::first: !self.contended.is_running() => false", "no queue has an entity then"),
            ("Scheduler::victim: from < furthest.0 => from <= furthest.0", AT_EQUALITY),
        ],
    },
    Excused {
        file: "crates/vmm/src/session.rs",
        mutants: &[
            ("Session::new: 0 => 1", NAME),
            ("Session::new: 0 => 1 #2", "any guest may be the first whose output is sent"),
            ("Session::announce: 1 => 2", "a guest that is not there yet has no state that the launcher knows"),
            ("Session::send: self.open.is_none() => false", "without a session, no console sends or grants anything"),
            ("Session::send: 0 => 1 #2", "the console overwrites what is sent"),
            ("Session::send: count.min(self.turn + 1) => count.max(self.turn + 1)", ASKED_TWICE),
            ("Session::send: 1 => 2 #2", ASKED_TWICE),
            (
                "Open::keep: content.try_reserve(bytes.len()).is_err() => false",
                "where the heap is full, the content would end the process instead",
            ),
            ("session::take: 1 => 2", NAME),
            ("session::begin: 0 => 1 #2", "content that is empty is of any guest"),
            ("session::refuse: 0 => 1", "only the bytes that were written are sent"),
        ],
    },
    Excused {
        file: "crates/vmm/src/switch/mod.rs",
        mutants: &[
            ("Switch::new: 0 => 1 #2", "a buffer that was not filled is refused with that length, too"),
            ("Switch::new: 0 => 1 #3", "a buffer that was not filled is refused, whatever it holds"),
            ("Buffer::fill: 0 => 1", "a frame that is too long is refused with that length, too"),
        ],
    },
    Excused {
        file: "crates/vmm/src/switch/table.rs",
        mutants: &[
            ("Table::new: 0 => 1 #2", "the places of a window are taken in turn, from any of them on"),
            ("Table::learn: false => true #2", "the switch has found the port before"),
            ("Table::find: is_group(destination) => false", "no address of a group is ever learned"),
            ("table::number: 8 => 9", "the numbers of two addresses still differ"),
        ],
    },
    Excused {
        file: "crates/vmm/src/trng.rs",
        mutants: &[
            ("trng::NOT_SUPPORTED: -1 => a bit more", SAME_NUMBER),
            ("trng::INVALID_PARAMETERS: -2 => a bit more", SAME_NUMBER),
            ("trng::take: 0 => 1 #4", "the last register always has bits of the answer"),
        ],
    },
];

const SAME_NUMBER: &str = "all higher bits are set already, so the number is the same";
const ASKED_TWICE: &str = "a guest whose console has nothing is asked twice";
const VIRTUAL_UNIT: &str = "a tick has thousands of units of virtual time, and only differences are read";
const NONE_EQUAL: &str = "no two items of a queue are equal";
const AT_EQUALITY: &str = "at equal virtual times either choice keeps the bounds";
const CLOCK_RATE: &str = "all clocks of groups run twice as fast, and only their ratios count";
const ALL_BITS: &str = "the value already has all bits";
