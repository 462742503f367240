// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `vm`: virtual machines with more vCPUs than CPUs, several of them at once, and their ends and resets.
//!
//! | file | contents |
//! |---|---|
//! | [`command`] | `twofold run`, with `attach` and `stat` from other processes |
//! | [`consoles`] | consoles on the control channel: both directions, unread, and with launchers that come back |
//! | [`firmware`] | a guest that starts in a firmware |
//! | [`loaders`], [`typed`] | the image started by U-Boot and by EFI; machines whose console is typed at |
//! | [`machines`] | what guests are made of, and how they are booted |
//! | [`moves`] | guests that move while they run |
//! | [`postcopy`] | guests that move before their memory |
//! | [`isolation`] | a hostile guest beside one with secrets |
//! | [`linux`] | Debian's kernel under load, alone and in pairs |
//! | [`commands`] | commands of a launcher: stop, continue, reset, quit, statistics |
//! | [`resets`] | guests that reset themselves, power off or fail beside another one |
//! | [`shares`] | what the scheduler gives to guests, and to vCPUs that contend for a lock |
//! | [`stolen`] | stolen time as guests read it |
//! | [`virtio`] | virtio devices, with bare-metal drivers |
//! | [`host_devices`] | files of the host, parts of them, and QEMU's network behind them |
//! | [`disk_errors`] | disks of the host that fail, become smaller, zero and discard |
//! | [`saved`] | guests that are saved, and restored in another machine |
//! | [`suspended`] | a guest that writes to a disk, moved by the command |
//! | [`program`] | a bare-metal program as an ELF file |
//!
//! Invariant: no test depends on how fast the machine is. What has to happen at set times runs in the deterministic mode.

pub(super) mod command;
mod commands;
mod consoles;
mod disk_errors;
mod firmware;
mod host_devices;
mod isolation;
pub(super) mod linux;
mod loaders;
pub(super) mod machines;
mod moves;
mod postcopy;
mod program;
mod resets;
mod saved;
mod shares;
mod stolen;
mod suspended;
mod typed;
mod virtio;

use std::sync::Arc;

use libtest_mimic::{Failed, Trial};
use twofold_launch::swap::Mode;
use twofold_workspace::{Workspace, build, install};

use super::harness::{self, Depth, Tally, harness};
use crate::arguments::TestOptions;
use machines::{Clock, Machines};

/// Runs the suite.
pub fn run(workspace: &Workspace, depth: Depth, options: &TestOptions) -> anyhow::Result<Tally> {
    let machines = prepare(workspace, options)?;
    let mut trials = trials(&machines, depth, TESTS);
    trials.extend(self::trials(&machines, depth, moves::TESTS));
    trials.extend(self::trials(&machines, depth, postcopy::TESTS));
    if depth == Depth::Full {
        trials.extend((1..=PARTS).map(|part| {
            let name = format!("isolation::every_system_register_beside_another_guest_{part:02}_of_{PARTS}");
            trial(&machines, &name, move |machines| isolation::system_registers(machines, PARTS, part))
        }));
    }
    // Most of the machines have two CPUs.
    harness(trials, 1, options)
}

/// Builds the images and fetches Linux, unless the tests are only listed.
pub(super) fn prepare(workspace: &Workspace, options: &TestOptions) -> anyhow::Result<Arc<Machines>> {
    if !options.list {
        install::target(install::TARGET)?;
        build::images(workspace, &[build::HYPERVISOR, build::GUEST])?;
    }
    Ok(Arc::new(Machines::new(workspace, options.list)?))
}

/// Those of the tests that belong to `depth`.
pub(super) fn trials(machines: &Arc<Machines>, depth: Depth, tests: &'static [Test]) -> Vec<Trial> {
    let chosen = tests.iter().filter(|(_, at, _)| depth == Depth::Full || *at == Depth::Quick);
    chosen.map(|(name, _, test)| trial(machines, name, test)).collect()
}

fn trial(
    machines: &Arc<Machines>,
    name: &str,
    test: impl FnOnce(&Machines) -> anyhow::Result<()> + Send + 'static,
) -> Trial {
    let machines = Arc::clone(machines);
    harness::trial(name, move || test(&machines).map_err(|error| Failed::from(format!("{error:#}"))))
}

/// The parts in which all system registers are tried.
const PARTS: u64 = 16;

/// A test on these machines: its name, from which depth on it runs, and what it does.
pub(super) type Test = (&'static str, Depth, fn(&Machines) -> anyhow::Result<()>);

const TESTS: &[Test] = &[
    ("linux_with_1_vcpu_on_2_cpus", Depth::Full, |machines| linux::loaded(machines, &[1], 10)),
    ("linux_with_2_vcpus_on_2_cpus", Depth::Full, |machines| linux::loaded(machines, &[2], 10)),
    ("linux_with_4_vcpus_on_2_cpus", Depth::Quick, |machines| linux::loaded(machines, &[4], 1)),
    ("linux_with_4_vcpus_on_2_cpus_for_long", Depth::Full, |machines| linux::loaded(machines, &[4], 10)),
    ("two_linux_guests_with_2_vcpus_each", Depth::Full, |machines| linux::loaded(machines, &[2, 2], 5)),
    ("two_linux_guests_with_4_vcpus_each", Depth::Full, |machines| linux::loaded(machines, &[4, 4], 5)),
    ("reset_and_power_off_are_not_noticed", Depth::Quick, resets::not_noticed),
    ("reset_and_power_off_are_not_noticed_by_linux", Depth::Full, resets::not_noticed_by_linux),
    ("power_off_is_not_noticed_on_two_cpus", Depth::Quick, resets::power_off),
    ("failure_is_not_noticed", Depth::Quick, resets::failure),
    ("warm_resets_while_all_vcpus_spin", Depth::Quick, |machines| resets::warm(machines, 10, Clock::Real)),
    ("a_hundred_warm_resets_while_all_vcpus_spin", Depth::Full, |machines| resets::warm(machines, 100, Clock::Real)),
    ("a_hundred_warm_resets_with_a_cpu_for_each_vcpu", Depth::Full, |machines| {
        resets::warm(machines, 100, Clock::RealOnFour)
    }),
    ("cold_resets_in_a_row", Depth::Quick, |machines| resets::cold(machines, 10)),
    ("a_hundred_cold_resets_in_a_row", Depth::Full, |machines| resets::cold(machines, 100)),
    ("resets_of_two_guests_at_once", Depth::Full, |machines| resets::two_at_once(machines, 100)),
    ("commands_to_a_guest_that_spins", Depth::Quick, |machines| commands::commands(machines, "spin")),
    ("commands_to_a_guest_in_wfi", Depth::Full, |machines| commands::commands(machines, "interrupt")),
    ("commands_to_a_guest_in_cpu_suspend", Depth::Full, |machines| commands::commands(machines, "suspend")),
    ("commands_to_the_memory_of_a_guest", Depth::Quick, commands::memory),
    ("commands_to_a_guest_with_larger_pages", Depth::Full, commands::larger_pages),
    ("a_stopped_guest_has_wall_time", Depth::Quick, commands::wall_time),
    ("saved::a_watcher_moves", Depth::Quick, |machines| saved::watcher(machines, 3, 2)),
    ("saved::a_watcher_moves_20_times", Depth::Full, |machines| saved::watcher(machines, 3, 20)),
    ("saved::a_guest_without_a_clock_moves_100_times", Depth::Full, |machines| saved::without_a_clock(machines, 100)),
    ("saved::linux_with_2_vcpus_moves", Depth::Full, |machines| saved::linux(machines, 2, 5)),
    ("saved::cards::frames_come_once_while_a_guest_moves", Depth::Quick, |machines| saved::cards::frames(machines, 2)),
    ("saved::cards::frames_come_once_in_20_moves", Depth::Full, |machines| saved::cards::frames(machines, 20)),
    ("saved::cards::a_connection_of_linux_moves", Depth::Full, |machines| saved::cards::tcp(machines, 5)),
    ("saved::disks::requests_in_flight_move", Depth::Quick, |machines| saved::disks::busy(machines, 6, 2)),
    ("saved::disks::a_save_waits_for_the_disk", Depth::Quick, saved::disks::waits),
    ("saved::disks::requests_in_flight_move_20_times", Depth::Full, |machines| saved::disks::busy(machines, 60, 20)),
    ("saved::disks::files_of_linux_are_whole_after_moves", Depth::Full, |machines| saved::disks::linux(machines, 5)),
    ("saved::swapped::tasks_on_absent_pages_move", Depth::Quick, |machines| {
        saved::swapped::tasks(machines, Mode::Pv, 12, 2)
    }),
    ("saved::swapped::tasks_on_absent_pages_move_8_times", Depth::Full, |machines| {
        saved::swapped::tasks(machines, Mode::Pv, 48, 8)
    }),
    ("saved::swapped::vcpus_that_halt_move_5_times", Depth::Full, |machines| {
        saved::swapped::tasks(machines, Mode::Halt, 12, 5)
    }),
    ("saved::swapped::vcpus_that_wait_move_5_times", Depth::Full, |machines| {
        saved::swapped::tasks(machines, Mode::Off, 12, 5)
    }),
    ("saved::swapped::tasks_of_linux_move", Depth::Full, |machines| saved::swapped::linux(machines, 2)),
    ("saved::two_restores_end_alike", Depth::Full, saved::twice_the_same),
    ("saved::what_is_no_state_is_refused", Depth::Quick, saved::refusals),
    ("a_guest_beside_an_idle_cpu_is_stopped", Depth::Quick, commands::beside_an_idle_cpu),
    ("stops_and_resets_while_all_vcpus_spin", Depth::Full, |machines| commands::contended(machines, 20)),
    ("stops_and_resets_while_virtio_devices_work", Depth::Quick, |machines| commands::devices(machines, 3)),
    ("many_stops_and_resets_while_virtio_devices_work", Depth::Full, |machines| commands::devices(machines, 40)),
    ("two_guests_echo_what_they_are_sent", Depth::Quick, |machines| consoles::echo(machines, 32 << 10)),
    ("two_guests_echo_a_mebibyte_each", Depth::Full, |machines| consoles::echo(machines, 1 << 20)),
    ("a_console_that_nothing_reads_holds_up_its_guest_alone", Depth::Quick, consoles::unread),
    ("a_launcher_that_comes_back_loses_nothing", Depth::Quick, |machines| consoles::back(machines, 64 << 10, 20)),
    ("a_launcher_that_comes_back_often_loses_nothing", Depth::Full, |machines| {
        consoles::back(machines, 512 << 10, 200)
    }),
    ("lines_of_consoles_on_the_channel", Depth::Quick, consoles::lines),
    ("a_byte_of_a_console_on_the_channel_is_cheap", Depth::Quick, consoles::cost),
    ("the_command_runs_guests_and_its_socket_takes_commands", Depth::Quick, command::run),
    ("the_command_saves_linux_into_a_file_and_goes_on_from_there", Depth::Quick, command::snapshot),
    ("the_command_moves_a_guest_with_a_disk_through_a_file", Depth::Quick, suspended::disk),
    ("lost_time_is_stolen_time", Depth::Quick, stolen::lost_and_stolen),
    ("nothing_is_stolen_with_a_cpu_for_each_vcpu", Depth::Quick, stolen::nothing),
    ("linux_reads_stolen_time_4_on_1", Depth::Full, |machines| stolen::linux(machines, 4, Clock::Counted)),
    ("linux_reads_stolen_time_1_on_1", Depth::Full, |machines| stolen::linux(machines, 1, Clock::Counted)),
    ("linux_reads_stolen_time_4_on_2", Depth::Full, |machines| stolen::linux(machines, 4, Clock::Real)),
    ("linux_reads_stolen_time_2_on_2", Depth::Full, |machines| stolen::linux(machines, 2, Clock::Real)),
    ("isolation::a_short_attack", Depth::Quick, |machines| isolation::attack(machines, 3_000)),
    ("isolation::an_attack_of_a_minute", Depth::Full, |machines| isolation::attack(machines, 60_000)),
    ("isolation::a_sample_of_system_registers", Depth::Quick, |machines| isolation::system_registers(machines, 251, 1)),
    ("isolation::frames_of_an_ended_guest_are_zero_for_the_next", Depth::Quick, isolation::frames_of_an_ended_guest),
    ("isolation::a_guest_that_reaches_its_limit_ends_alone", Depth::Quick, isolation::limit),
    ("isolation::virtio_drivers_that_break_the_rules", Depth::Quick, |machines| isolation::virtio(machines, 2_000)),
    ("isolation::virtio_drivers_that_break_the_rules_for_long", Depth::Full, |machines| {
        isolation::virtio(machines, 20_000)
    }),
    ("isolation::hypercalls_at_random", Depth::Full, |machines| isolation::hypercalls(machines, 20_000)),
    ("files_and_a_card_behind_the_devices_of_two_guests", Depth::Quick, host_devices::files_and_uplink),
    ("parts_of_a_file_behind_the_disks_of_two_guests", Depth::Quick, host_devices::parts),
    ("errors_of_a_disk_reach_its_guest_and_nothing_else", Depth::Quick, disk_errors::reach_their_guest),
    ("a_disk_that_the_host_makes_smaller_is_smaller_for_its_guest", Depth::Quick, disk_errors::smaller),
    ("zeroes_and_discards_reach_the_disk_of_the_host", Depth::Quick, disk_errors::zeroes_and_discards),
    ("a_program_in_an_elf_file_goes_to_its_address", Depth::Quick, program::elf),
    ("virtio_devices_of_two_guests", Depth::Quick, |machines| virtio::two_guests(machines, Clock::Counted)),
    ("virtio_devices_of_two_guests_on_two_cpus", Depth::Quick, |machines| virtio::two_guests(machines, Clock::Real)),
    ("firmware::u_boot_is_a_guest", Depth::Quick, firmware::u_boot),
    ("loaders::u_boot_starts_the_image", Depth::Quick, loaders::u_boot),
    ("loaders::efi_starts_the_image", Depth::Quick, loaders::efi),
    ("loaders::efi_starts_the_image_from_a_volume", Depth::Full, loaders::efi_volume),
    ("loaders::efi_shows_why_the_image_is_refused", Depth::Quick, loaders::efi_refusals),
    ("guests_get_their_shares", Depth::Quick, shares::weights),
    ("a_lock_goes_round_among_more_vcpus_than_cpus", Depth::Quick, shares::lock),
    ("a_lock_is_never_lost", Depth::Full, shares::spin_lock),
];
