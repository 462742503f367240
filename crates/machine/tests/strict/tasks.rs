// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guest tasks in virtual time on the strict machine: pages leave and come while tasks wait for them, and no rule is
//! broken. The vCPUs share one CPU, so its TLB has entries of all of them.

#[path = "../tasks/guest.rs"]
mod guest;
#[path = "../tasks/leaving.rs"]
mod leaving;
#[path = "../tasks/swapped.rs"]
mod swapped;

use std::slice;

use twofold_machine::arena::{ArenaOptions, Backing};
use twofold_machine::strict::{Bbm, Machine, Options};
use twofold_machine::tasks::{Ended, Nanos, Privilege, TaskMachine};
use twofold_memory::async_fault::{Arrival, Mode};
use twofold_stage2::Features;

use self::guest::{Guest, KERNEL, Tasks, Touches, run};
use crate::world::{MODERN, PLAIN};

const PAGES: u64 = 12;

#[test]
fn pages_that_leave_while_tasks_wait_break_no_rule() {
    for (features, mode, flags) in [
        (MODERN, Mode::Off, None),
        (PLAIN, Mode::Off, None),
        (PLAIN, Mode::Halt, None),
        // Areas are in write-back memory (A1 of the protocol). This guest has its MMU off, so its CPU has to force that.
        (MODERN, Mode::Pv, Some(0)),
        (MODERN, Mode::Pv, Some(KERNEL)),
    ] {
        let machine = machine(features);
        let outcome = machine.alone(|cpu| {
            let guest = Guest::new(machine.platform(), machine.arena(), features, PAGES);
            let task = |first: u64| {
                let pages = (0..20).map(|at| ((first + at * 5) % PAGES, privilege(first + at)));
                Box::new(Touches::new(&guest.layout, pages.collect())) as Box<_>
            };
            let tasks: Tasks = vec![vec![task(0), task(3)], vec![task(1), task(7)]];
            let pager = guest.pager(5, Box::new(|asked| Some((Nanos::micros(asked * 7 % 500), Arrival::Present))));
            let vcpus = guest.vcpus(tasks, flags);
            let mut tasks = TaskMachine::new(slice::from_ref(cpu), &guest.memory, pager, mode, vcpus).unwrap();
            assert_eq!(run(&mut tasks, &guest.layout), Ok(Ended::Tasks), "{mode:?}");
            drop(tasks);
            let words = (0..PAGES).map(|page| guest.word(guest.layout.array.start + page * leaving::PAGE));
            assert_eq!(words.sum::<u64>(), 80, "{mode:?}");
            drop(guest.memory.destroy(drop));
        });
        outcome.unwrap_or_else(|breach| panic!("{mode:?}: {breach}"));
    }
}

#[test]
fn pages_that_are_written_out_and_read_break_no_rule() {
    for (features, mode, flags) in
        [(PLAIN, Mode::Halt, None), (MODERN, Mode::Off, None), (MODERN, Mode::Pv, Some(KERNEL))]
    {
        let machine = machine(features);
        let outcome = machine.alone(|cpu| {
            let guest = Guest::new(machine.platform(), machine.arena(), features, swapped::PAGES);
            swapped::pages_leave_and_come(guest, slice::from_ref(cpu), (mode, flags), Nanos::micros(70));
        });
        outcome.unwrap_or_else(|breach| panic!("{mode:?}: {breach}"));
    }
}

fn machine(features: Features) -> Machine {
    let memory = ArenaOptions::new(32 << 20, Backing::Anonymous);
    let options =
        Options { cpus: 1, seed: 1, events_between_switches: 24, features, bbm: Bbm::default(), memory, trace: None };
    Machine::new(options).unwrap_or_else(|error| panic!("{error}"))
}

fn privilege(at: u64) -> Privilege {
    if at.is_multiple_of(4) { Privilege::Kernel } else { Privilege::User }
}
