// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `page-table`: those of KVM's `kvm_page_table_test`, with their meanings there, and ours.

use std::path::PathBuf;

use clap::Args;
use twofold_pattern::mode::Mode;

use super::dirty_log::mode;
use super::output::OutputOptions;
use super::size::Size;
use super::variants::Choice;
use crate::experiment::setup::Backing;
use crate::results::Platform;

/// Options of `page-table`.
#[derive(Args, Clone, Debug)]
pub struct PageTableOptions {
    /// Bytes of the memory, which all vCPUs go over (in `dirty-log` the same letter is each vCPU's): 512M, 1G. Rounded up to
    /// the backing's pages
    #[arg(short = 'b', long = "bytes", value_name = "SIZE", default_value = "1G", help_heading = GUEST)]
    pub bytes: Size,
    /// vCPUs, a thread each; those with even numbers write first, the others read: -v 8
    #[arg(short = 'v', long = "vcpus", value_name = "N", default_value_t = 1, help_heading = GUEST)]
    pub vcpus: usize,
    /// Guest mode, by name or by Linux 6.12's number: -m p40v48-4k, which is -m 6, and was -m 4 when S4 was measured; without it
    /// that one, and on KVM of x86-64 the only one there
    #[arg(short = 'm', long = "mode", value_name = "MODE", value_parser = mode, help_heading = GUEST)]
    pub mode: Option<Mode>,
    /// What the memory is made of, and so how large its mappings are: -s anonymous_hugetlb_1gb
    #[arg(short = 's', long = "backing", value_name = "KIND", value_enum, default_value = "anonymous", help_heading = GUEST)]
    pub backing: Backing,
    /// The guest's physical address of the memory, in bytes: -p 0x40000000. Without it, the end of what the mode has
    #[arg(short = 'p', long = "offset", value_name = "ADDRESS", help_heading = GUEST)]
    pub offset: Option<Size>,

    /// A technique as it is (first) or as it was before; several take turns in each run, and are compared: --policy
    /// cmo=on-abort,on-map. There are cmo=on-map|on-abort (on a CPU without forced write-back, with caches really cleaned),
    /// coalesce=install-first|free-first, tables=when-needed|always
    #[arg(long, value_name = "KEY=VALUE,...", help_heading = TECHNIQUES)]
    pub policy: Vec<Choice>,
    /// Nanoseconds that a fault's way out of the guest and back takes on the machine that is thought of, added for each fault:
    /// --exit-cost 1500. What has it in it is marked `modelled`
    #[arg(long, value_name = "NS", default_value_t = 0, help_heading = TECHNIQUES)]
    pub exit_cost: u64,

    /// Where the guest runs
    #[arg(long, value_name = "WHERE", value_enum, default_value = "machine", help_heading = MEASURING)]
    pub on: Platform,
    /// Runs of each variant that are counted, in turns, after one that is checked and not counted
    #[arg(long, value_name = "N", default_value_t = 7, help_heading = MEASURING, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub runs: u32,
    /// Maps a small piece of memory over and over, for sizes beyond this machine
    #[arg(long, help_heading = MEASURING)]
    pub sparse: bool,

    /// With --on hypervisor: where twofold.img and guest.img are; without it this workspace's, which are built where they are
    /// missing
    #[arg(long, value_name = "DIR", help_heading = MEASURING)]
    pub images: Option<PathBuf>,

    /// Where figures go.
    #[command(flatten)]
    pub output: OutputOptions,
}

const GUEST: &str = "The guest, as kvm_page_table_test has it";
const TECHNIQUES: &str = "Techniques";
const MEASURING: &str = "Measuring";

/// What stands below the options.
pub const HELP: &str = "\
All vCPUs go over the same memory, in three stages. `create`: each touches the first 8 bytes of each page of the backing.
`update`, while a dirty log runs: small pages are written; of huge ones the first 4 KiB, and the second half is read, 4 KiB by
4 KiB. `adjust`, when it has stopped: all is read, 4 KiB by 4 KiB, and blocks come back by faults. The log's start and stop are
in no stage. Nothing is split ahead, as in KVM unless it is told to: with all pages mapped, no block would come back by a fault.

KVM takes a block apart by an empty table; our engine maps all of its pages at once, and would have no fault in `update` but the
first. So memory in huge pages is unmapped when the log has started: then the stages have KVM's faults.

Times are told from outside, up to the slowest vCPU; CPU time is of all of them. The first run is not counted: after each of its
stages leaves and contents are looked at, and the command fails where they are not as they have to be.

Examples:
  cargo run --release -p twofold -- bench page-table -s anonymous_thp -b 1G -v 8
  cargo run --release -p twofold -- bench page-table -s anonymous_hugetlb_1gb -v 8 --policy cmo=on-abort,on-map    S4, patch 1
  cargo run --release -p twofold -- bench page-table -s anonymous_thp -v 4 --policy coalesce=free-first,install-first
  cargo run --release -p twofold -- bench page-table -m 4 -s anonymous_thp -b 20G -v 16 --sparse --exit-cost 1500";
