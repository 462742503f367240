// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options that a user types. Each experiment reads its own once, into a plan, and passes them no further.

mod async_fault;
mod compare;
mod contiguous;
mod dirty_costs;
mod dirty_log;
mod dirty_table;
mod engine;
mod exits;
mod headline;
mod migrate;
mod migrate_model;
mod migrate_pass;
mod names;
mod oracle;
mod output;
mod page_table;
mod policies;
mod show;
mod size;

use clap::Subcommand;

pub use async_fault::{AsyncFaultOptions, BmGuest, FaultMode, MOST_TASKS};
pub use compare::CompareOptions;
pub use contiguous::ContiguousOptions;
pub use dirty_costs::DirtyCostsOptions;
pub use dirty_log::DirtyLogOptions;
pub use dirty_table::DirtyTableOptions;
pub use engine::{EngineOptions, GranuleOption, Steps};
pub use exits::ExitsOptions;
pub use headline::HeadlineOptions;
pub use migrate::{CompareRamOptions, Control, MigrateOptions, Packed};
pub use migrate_model::{Hot, MigrateModelOptions, Mix};
pub use migrate_pass::MigratePassOptions;
pub use oracle::OracleOptions;
pub use output::OutputOptions;
pub use page_table::PageTableOptions;
pub use policies::policies;
pub use show::ShowOptions;

/// The experiment to run
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Stage-2 engine on this CPU: nanoseconds per page table entry, with one thread and with two
    #[command(after_help = engine::HELP)]
    Engine(EngineOptions),
    /// The contiguous hint at stage 2: the TLB entries that a guest's memory takes, and the misses of a modelled TLB
    #[command(after_help = contiguous::HELP)]
    Contiguous(ContiguousOptions),
    /// Dirty logs on the hosted machine: keeps a copy of memory by what a log reports, and compares it
    #[command(after_help = oracle::HELP)]
    Oracle(OracleOptions),
    /// Dirty log on this CPU: microseconds per operation, with targets
    #[command(after_help = dirty_costs::HELP)]
    DirtyCosts(DirtyCostsOptions),
    /// Dirty log trackers by workload: the CPU time of guest and collector together
    #[command(after_help = dirty_table::HELP)]
    DirtyTable(DirtyTableOptions),
    /// Dirty logging from outside, as KVM's dirty_log_perf_test: the time to enable, write, read and clear
    #[command(after_help = dirty_log::HELP)]
    DirtyLog(Box<DirtyLogOptions>),
    /// Tables from outside, as KVM's kvm_page_table_test: the time of vCPUs that map, write and read the same memory
    #[command(after_help = page_table::HELP)]
    PageTable(Box<PageTableOptions>),
    /// Asynchronous page faults, as Natapov's bm: the work that a guest does while its pages are in a store
    #[command(after_help = async_fault::HELP)]
    AsyncFault(Box<AsyncFaultOptions>),
    /// Exits: what a call, an interrupt, a timer tick or a switch of vCPUs costs at EL2
    #[command(after_help = exits::HELP)]
    Exits(ExitsOptions),
    /// Live migration: a key-value store that moves between two processes while it serves requests
    #[command(after_help = migrate::HELP)]
    Migrate(Box<MigrateOptions>),
    /// The target of `migrate`: receives guests and sends them back, as its standard input says
    #[command(hide = true)]
    MigrateTarget,
    /// Compares the memory of a stopped source with a target's, page by page, for `migrate`
    #[command(hide = true)]
    MigrateCompare(CompareRamOptions),
    /// A guest that moves while it writes, with each tracker, in virtual time: its work, the migration, the downtime
    #[command(after_help = migrate_model::HELP)]
    MigrateModel(Box<MigrateModelOptions>),
    /// One pass over a stopped guest: each stage of a migration beside the library that it uses
    #[command(after_help = migrate_pass::HELP)]
    MigratePass(Box<MigratePassOptions>),
    /// Every published number of the sources, with ours next to it
    #[command(after_help = headline::HELP)]
    Headline(Box<HeadlineOptions>),
    /// Compares two result files: faster, slower, or no difference shown
    #[command(after_help = compare::HELP)]
    Compare(CompareOptions),
    /// Shows a result file again: tables, HTML report, CSV
    #[command(after_help = show::HELP)]
    Show(ShowOptions),
}
