// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `linux`: whole guests, started as a user would.
//!
//! Each test runs this program's own `run` and judges what a user would see: exit status, text, figures. Counts are
//! exact, because counted runs are deterministic. Tests compare them with `==` and with budgets.

mod answers;
mod counts;
mod debian;
mod endings;
mod experiments;
mod granules;
mod guests;
mod kernels;
mod oracle;
mod readme;
mod redis;
mod suite;
mod vcpus;

use std::sync::Arc;

use libtest_mimic::Failed;
use twofold_workspace::{Workspace, build, fetch, install};

use super::harness::{self, Depth, Tally, harness};
use crate::arguments::TestOptions;
use suite::Suite;

/// Runs the suite.
pub fn run(workspace: &Workspace, depth: Depth, options: &TestOptions) -> anyhow::Result<Tally> {
    if !options.list {
        // Built once, here, so that no test's duration or time limit includes the build.
        install::target(install::TARGET)?;
        install::qemu()?;
        build::images(workspace, &[build::HYPERVISOR, build::MEASURING_HYPERVISOR, build::GUEST])?;
        // Two tests that begin together would both fetch the guest. If the fetch fails, the tests that need it report
        // why.
        let _ = fetch::fetch(workspace, false);
    }
    let suite = Arc::new(Suite::new(workspace)?);
    let trials: Vec<_> = TESTS
        .iter()
        .filter(|(_, at, _)| depth == Depth::Full || *at == Depth::Quick)
        .map(|(name, _, test)| {
            let suite = Arc::clone(&suite);
            harness::trial(name, move || test(&suite).map_err(|error| Failed::from(format!("{error:#}"))))
        })
        .chain(debian::trials(&suite, depth))
        .collect();
    // A QEMU with one CPU keeps one thread busy, so two of them fit two cores. In full, QEMUs have more CPUs, and
    // compared runs share files.
    harness(trials, if depth == Depth::Quick { 2 } else { 1 }, options)
}

type Test = fn(&Suite) -> anyhow::Result<()>;

const TESTS: &[(&str, Depth, Test)] = &[
    ("boot_with_4k_pages", Depth::Quick, |suite| suite.boots(&["--pages", "4k"])),
    ("boot_with_blocks", Depth::Full, |suite| suite.boots(&["--pages", "blocks"])),
    ("boot_with_16k_pages_of_stage_2", Depth::Full, |suite| {
        granules::boots(suite, "16k", "mapped: 64G blocks, 32M blocks, 16K pages")
    }),
    ("boot_with_64k_pages_of_stage_2", Depth::Full, |suite| {
        granules::boots(suite, "64k", "mapped: 4T blocks, 512M blocks, 64K pages")
    }),
    ("boot_on_each_cpu", Depth::Full, granules::on_each_cpu),
    ("bad_granules", Depth::Full, granules::refused),
    ("boot_with_two_cpus", Depth::Full, |suite| suite.boots(&["--cpus", "2"])),
    ("boot_with_2_gib", Depth::Full, |suite| suite.boots(&["--memory", "2G"])),
    ("budget_with_4k_pages", Depth::Quick, |suite| counts::budget(suite.small()?, 17_500_000)),
    ("budget_with_blocks", Depth::Quick, |suite| counts::budget(suite.blocks()?, 7_000_000)),
    ("budget_of_masked_interrupts", Depth::Quick, counts::masked),
    ("budget_of_a_first_touch", Depth::Quick, counts::first_touch),
    ("budget_of_a_write_fault", Depth::Quick, counts::write_fault),
    ("budget_of_a_dirty_iteration", Depth::Quick, counts::dirty_iteration),
    ("budgets_of_exits", Depth::Quick, counts::exits),
    ("budget_of_redis", Depth::Full, redis::budget),
    ("counts_repeat_with_4k_pages", Depth::Full, |suite| counts::repeats(suite, "4k")),
    ("counts_repeat_with_blocks", Depth::Full, |suite| counts::repeats(suite, "blocks")),
    ("counts_are_no_matter_of_the_guests", Depth::Quick, counts::counts_are_kept),
    ("readme_shows_what_is_printed", Depth::Quick, |suite| {
        readme::compare_lines(suite.workspace.root(), &suite.run(&["--check", "--count"])?)
    }),
    ("results_show_what_is_printed", Depth::Full, |suite| {
        readme::compare(suite.workspace.root(), &suite.run(&["--check", "--count", "--counters"])?)
    }),
    ("fallback_to_the_bare_metal_guest", Depth::Quick, answers::fallback),
    ("fallback_is_an_error_for_guest_linux", Depth::Quick, answers::no_fallback),
    ("bare_metal_guest", Depth::Quick, |suite| suite.run(&["--check", "--guest", "bare"]).map(drop)),
    ("bad_kernel", Depth::Quick, answers::bad_kernel),
    ("bad_initrd", Depth::Quick, answers::bad_initrd),
    ("bad_memory", Depth::Quick, answers::bad_memory),
    ("bad_combinations", Depth::Quick, answers::bad_combinations),
    ("bad_qemu", Depth::Quick, answers::bad_qemu),
    ("bad_machine", Depth::Quick, answers::bad_machine),
    ("guest_that_hangs", Depth::Quick, endings::hang),
    ("guest_that_resets", Depth::Quick, |suite| {
        suite
            .refused(&["--check", "--guest", "bare", "--append", "touch=100G"], &["asked for a reset", "touch: FAILED"])
    }),
    ("access_where_nothing_is", Depth::Quick, guests::wild),
    ("devices_of_the_virtual_machine", Depth::Quick, guests::devices),
    ("trace_of_a_run", Depth::Quick, guests::trace),
    ("oracle_of_each_tracker", Depth::Full, oracle::each_tracker),
    ("oracle_sees_what_is_not_reported", Depth::Full, oracle::deaf),
    ("experiments_are_refused_unless_allowed", Depth::Quick, experiments::not_allowed),
    ("experiments_report_what_was_written", Depth::Quick, experiments::report_what_was_written),
    ("experiments_repeat", Depth::Quick, experiments::repeat),
    ("experiment_with_combined_is_worth_it", Depth::Quick, experiments::combined_is_worth_it),
    ("experiment_with_page_tables", Depth::Quick, experiments::page_table),
    ("experiment_with_given_memory", Depth::Quick, experiments::given),
    ("experiments_with_techniques_of_before", Depth::Quick, experiments::baselines),
    ("experiments_are_refused_with_a_reason", Depth::Quick, experiments::refused),
    ("vcpus_that_come_and_go_leave_nothing", Depth::Quick, |suite| vcpus::restart(suite, 300)),
    ("vcpus_that_come_and_go_ten_thousand_times", Depth::Full, |suite| vcpus::restart(suite, 10_000)),
    ("vcpus_start_in_ram_only", Depth::Quick, vcpus::nowhere),
    ("vcpus_that_end_together_report_once", Depth::Quick, |suite| vcpus::together(suite, 3)),
    ("vcpus_that_end_together_report_once_each_time", Depth::Full, |suite| vcpus::together(suite, 50)),
    ("refused_calls_are_counted", Depth::Quick, vcpus::refused),
    ("panic_at_el2", Depth::Quick, guests::panic),
    ("guest_reaches_no_file_of_the_host", Depth::Quick, guests::semihosting),
    ("guest_runs_no_command_of_the_host", Depth::Quick, guests::host_command),
    ("interrupted_run_leaves_nothing", Depth::Quick, endings::interrupt),
    ("interrupted_fetch_ends_at_once", Depth::Quick, endings::interrupt_fetch),
    ("killed_run_leaves_nothing", Depth::Quick, endings::kill),
];
