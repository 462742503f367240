// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `page-table`: those of KVM's `kvm_page_table_test`, with the same meanings, and our own.

use std::path::PathBuf;

use clap::Args;
use twofold_workload::mode::Mode;

use super::names::mode;
use super::output::OutputOptions;
use super::policies::Choice;
use super::size::Size;
use crate::experiment::setup::Backing;
use crate::results::Platform;

/// Options of `page-table`.
#[derive(Args, Clone, Debug)]
pub struct PageTableOptions {
    /// Bytes of the memory that all vCPUs share (in `dirty-log` the same option is each vCPU's): 512M, 1G. Rounded up
    /// to the backing's pages
    #[arg(short = 'b', long = "bytes", value_name = "SIZE", default_value = "1G", help_heading = GUEST)]
    pub bytes: Size,
    /// vCPUs, one thread each; those with even numbers write first, the others read: -v 8
    #[arg(short = 'v', long = "vcpus", value_name = "N", default_value_t = 1, help_heading = GUEST)]
    pub vcpus: usize,
    /// Guest mode, by name or by its number in Linux 6.12. Default: p40v48-4k, which is -m 6 today and was -m 4 in Wang
    /// 2021; on KVM of x86-64, its only mode
    #[arg(short = 'm', long = "mode", value_name = "MODE", value_parser = mode, help_heading = GUEST)]
    pub mode: Option<Mode>,
    /// Kind of the memory, which sets the size of its mappings: -s anonymous_hugetlb_1gb
    #[arg(short = 's', long = "backing", value_name = "KIND", value_enum, default_value = "anonymous", help_heading = GUEST)]
    pub backing: Backing,
    /// Guest physical address of the memory, in bytes: -p 0x40000000. Default: the end of the mode's address space
    #[arg(short = 'p', long = "offset", value_name = "ADDRESS", help_heading = GUEST)]
    pub offset: Option<Size>,

    /// Selects a technique (the first of its values) or its baseline; several take turns in each run, and are compared:
    /// --policy cmo=on-abort,on-map. There are cmo=on-map|on-abort (on a CPU without forced write-back, with real cache
    /// maintenance), coalesce=install-first|free-first, tables=when-needed|always
    #[arg(long, value_name = "KEY=VALUE,...", help_heading = TECHNIQUES)]
    pub policy: Vec<Choice>,
    /// Modelled cost of a fault's exit and re-entry, in nanoseconds, added for each fault: --exit-cost 1500. Figures
    /// that include it are marked `modelled`
    #[arg(long, value_name = "NS", default_value_t = 0, help_heading = TECHNIQUES)]
    pub exit_cost: u64,

    /// Where the guest runs
    #[arg(long, value_name = "WHERE", value_enum, default_value = "machine", help_heading = MEASURING)]
    pub on: Platform,
    /// Runs of each variant, in turns, after one run that is checked and not counted
    #[arg(long, value_name = "N", default_value_t = 7, help_heading = MEASURING, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub runs: u32,
    /// Maps a small piece of memory repeatedly, for sizes beyond this machine
    #[arg(long, help_heading = MEASURING)]
    pub sparse: bool,

    /// With --on hypervisor: the directory of twofold.img and guest.img. Default: this workspace's, which are built if
    /// they are missing
    #[arg(long, value_name = "DIR", help_heading = MEASURING)]
    pub images: Option<PathBuf>,

    /// Where figures go.
    #[command(flatten)]
    pub output: OutputOptions,
}

const GUEST: &str = "The guest, as kvm_page_table_test has it";
const TECHNIQUES: &str = "Techniques";
const MEASURING: &str = "Measuring";

/// The help text below the options.
pub const HELP: &str = "\
All vCPUs access the same memory, in three stages. `create`: each vCPU touches the first 8 bytes of each page of the
backing. `update`, while a dirty log runs: small pages are written; of each huge page the first 4 KiB are written, and
the second half is read in steps of 4 KiB. `adjust`, after the log has stopped: all memory is read in steps of 4 KiB,
and faults restore the blocks. The log's start and stop are in no stage. Nothing is split ahead, as in KVM by default:
if all pages were mapped, no fault would restore a block.

KVM replaces a block by an empty table. Our engine maps all of the block's pages at once, so `update` would have no
fault after the first. Memory in huge pages is therefore unmapped after the log has started. Then the stages have the
same faults as in KVM.

Times are measured from outside, until the slowest vCPU is done; CPU time is that of all vCPUs. The first run is not
counted: after each of its stages leaves and contents are checked, and the command fails if they are wrong.

A summary of about twelve lines is printed, which ends with one sentence. --all prints every row.

Examples:
  cargo run --release -p twofold -- bench page-table -s anonymous_thp -b 1G -v 8
  cargo run --release -p twofold -- bench page-table -s anonymous_hugetlb_1gb -v 8 --policy cmo=on-abort,on-map  patch 1
  cargo run --release -p twofold -- bench page-table -s anonymous_thp -v 4 --policy coalesce=free-first,install-first
  cargo run --release -p twofold -- bench page-table -m 4 -s anonymous_thp -b 20G -v 16 --sparse --exit-cost 1500";
