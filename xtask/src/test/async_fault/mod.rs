// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `async-fault`: guests with more memory than the machine gives them at a time, whose pages leave to a store.
//!
//! | file | contents |
//! |---|---|
//! | [`pages`] | bare-metal guests in each mode, virtio devices and the balloon, Linux without the module |
//! | [`measures`] | what a page that is on its way costs the bare-metal guest |
//! | [`linux`] | a Linux that knows asynchronous page faults, by its module |
//! | [`redis`] | Debian with Redis, whose data have to be those of a run without a store |
//! | [`shared`] | two guests that share what they may have in memory |
//! | [`statistics`] | what `twofold stat` learns |
//! | [`swap_device`] | stores on a disk that fails or stands still |
//! | [`wrong`] | guests that break the rules of asynchronous page faults |
//!
//! Invariant: no test depends on how fast the machine is, as in the suite `vm`, whose machines these are.

mod linux;
mod measures;
mod pages;
mod redis;
mod shared;
mod statistics;
mod swap_device;
mod wrong;

use twofold_launch::swap::Mode;
use twofold_workspace::Workspace;

use super::harness::{Depth, Tally, harness};
use super::vm::machines::Clock;
use super::vm::{self, Test};
use crate::arguments::TestOptions;

/// Runs the suite.
pub fn run(workspace: &Workspace, depth: Depth, options: &TestOptions) -> anyhow::Result<Tally> {
    let machines = vm::prepare(workspace, options)?;
    let mut trials = vm::trials(&machines, depth, TESTS);
    trials.extend(redis::trials(workspace, depth));
    // Most of the machines have two CPUs.
    harness(trials, 1, options)
}

const TESTS: &[Test] = &[
    ("pages::tasks_that_wait_off", Depth::Quick, |machines| pages::tasks(machines, Mode::Off, 1, Clock::Counted)),
    ("pages::tasks_that_wait_halted", Depth::Quick, |machines| pages::tasks(machines, Mode::Halt, 1, Clock::Counted)),
    ("pages::tasks_that_park", Depth::Quick, |machines| pages::tasks(machines, Mode::Pv, 1, Clock::Counted)),
    ("pages::tasks_that_wait_off_on_3_vcpus", Depth::Full, |machines| {
        pages::tasks(machines, Mode::Off, 3, Clock::Real)
    }),
    ("pages::tasks_that_wait_halted_on_3_vcpus", Depth::Full, |machines| {
        pages::tasks(machines, Mode::Halt, 3, Clock::Real)
    }),
    ("pages::tasks_that_park_on_3_vcpus", Depth::Quick, |machines| pages::tasks(machines, Mode::Pv, 3, Clock::Real)),
    ("pages::tasks_that_all_park_on_3_vcpus", Depth::Quick, pages::tasks_that_all_park),
    ("pages::buffers_of_virtio_devices", Depth::Quick, |machines| pages::buffers(machines, 1 << 20)),
    ("pages::buffers_of_virtio_devices_in_few_pages", Depth::Full, |machines| pages::buffers(machines, 64 << 10)),
    ("pages::balloon", Depth::Quick, |machines| pages::balloon(machines, false)),
    ("pages::balloon_beside_a_store", Depth::Quick, |machines| pages::balloon(machines, true)),
    ("pages::work_beside_faults", Depth::Full, pages::gains),
    ("measures::work_during_page_ins", Depth::Full, measures::work_during_page_ins),
    ("measures::interrupts_during_page_ins", Depth::Full, measures::interrupts_during_page_ins),
    ("measures::faults_submit_no_write", Depth::Full, measures::faults_submit_no_write),
    ("measures::pages_are_read_ahead", Depth::Quick, measures::pages_are_read_ahead),
    ("pages::linux_on_a_disk", Depth::Quick, |machines| pages::linux_on_a_disk(machines, Mode::Halt, 2)),
    ("pages::linux_off_on_1_vcpu", Depth::Full, |machines| pages::linux(machines, Mode::Off, 1)),
    ("pages::linux_off_on_2_vcpus", Depth::Full, |machines| pages::linux(machines, Mode::Off, 2)),
    ("pages::linux_halted_on_1_vcpu", Depth::Full, |machines| pages::linux(machines, Mode::Halt, 1)),
    ("pages::linux_halted_on_2_vcpus", Depth::Full, |machines| pages::linux(machines, Mode::Halt, 2)),
    ("linux::parks_tasks", Depth::Full, |machines| linux::parks(machines, 1, Clock::Counted)),
    ("linux::parks_tasks_on_2_vcpus", Depth::Quick, |machines| linux::parks(machines, 2, Clock::Real)),
    ("linux::loads_the_module_by_itself", Depth::Full, linux::loads_by_itself),
    ("linux::gains", Depth::Full, linux::gains),
    ("linux::the_module_comes_and_goes", Depth::Full, linux::comes_and_goes),
    ("linux::vcpus_come_and_go", Depth::Full, linux::hotplug),
    ("linux::parked_tasks_are_killed", Depth::Full, linux::killed),
    ("linux::reboots_with_pages_in_the_store", Depth::Full, |machines| linux::reboots(machines, Mode::Off)),
    ("linux::reboots_with_the_module", Depth::Full, |machines| linux::reboots(machines, Mode::Pv)),
    ("statistics::of_guests", Depth::Quick, statistics::of_guests),
    ("shared::with_an_idle_guest", Depth::Quick, shared::with_an_idle_guest),
    ("shared::with_less_memory_than_the_guests_have", Depth::Quick, shared::with_less_memory_than_the_guests_have),
    ("wrong::calls", Depth::Full, |machines| wrong::calls(machines, 1)),
    ("wrong::calls_on_3_vcpus", Depth::Quick, |machines| wrong::calls(machines, 3)),
    ("wrong::no_acknowledgements", Depth::Full, |machines| wrong::deaf(machines, 1)),
    ("wrong::no_acknowledgements_on_3_vcpus", Depth::Quick, |machines| wrong::deaf(machines, 3)),
    ("wrong::areas", Depth::Full, |machines| wrong::areas(machines, 1)),
    ("wrong::areas_on_3_vcpus", Depth::Quick, |machines| wrong::areas(machines, 3)),
    ("swap_device::that_is_too_small", Depth::Quick, swap_device::too_small),
    ("swap_device::that_is_full_beside_another_guest", Depth::Quick, swap_device::full),
    ("swap_device::that_fails_one_request_in_a_thousand", Depth::Quick, swap_device::one_in_a_thousand),
    ("swap_device::that_stands_still_for_a_second", Depth::Full, swap_device::a_pause),
    ("swap_device::that_fails_for_good_beside_another_guest", Depth::Full, swap_device::for_good),
    ("swap_device::whose_writes_fail_for_good_beside_another_guest", Depth::Quick, swap_device::writes_for_good),
];
