// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `exits`.

use std::path::PathBuf;

use clap::Args;

use super::output::OutputOptions;
use crate::results::Platform;

/// Options of `exits`.
#[derive(Args, Clone, Debug)]
pub struct ExitsOptions {
    /// How often each event happens, after once that is not counted: -n 10000
    #[arg(short = 'n', long = "events", value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub events: u64,

    /// Where the guest runs: hypervisor, or the kvm of an arm64 host
    #[arg(long, value_name = "WHERE", value_enum, default_value = "hypervisor")]
    pub on: Platform,

    /// The directory of twofold.img and guest.img. Default: this workspace's, which are built if they are missing
    #[arg(long, value_name = "DIR")]
    pub images: Option<PathBuf>,

    /// Where figures go.
    #[command(flatten)]
    pub output: OutputOptions,
}

/// The help text below the options.
pub const HELP: &str = "\
What one event costs that a hypervisor has a hand in. A bare-metal guest measures itself by its virtual counter, from one
instruction before the event to one after it, so the same image measures any hypervisor. The few instructions of the guest
itself are included.

  hvc           HVC, and back                     tick       the virtual timer fires, is taken, is ended
  distributor   a read of the GIC's distributor   wake       WFI, from the timer's moment to the guest
  clock         a read of the clock (PL031)       sgi_other  SGI to a vCPU that is awake, until the sender goes on
  uart          a byte out of the UART            sgi_wake   SGI to a vCPU that sleeps, then WFI, until that one took it
  sgi_self      SGI to itself: sent, taken, ended switch     from WFI of one vCPU to the next vCPU on the same CPU

The last column needs two vCPUs on one CPU. The switch is a part of sgi_wake, without the SGI that woke the other vCPU: it
begins at the WFI and ends where that vCPU runs, with its interrupt pending.

With --on hypervisor QEMU counts one instruction a nanosecond, so the figures are instructions, and equal runs are equal.
With --on kvm they are nanoseconds of an arm64 host; `cargo xtask peers kvm` counts KVM's in the same emulator.

Examples:
  cargo run --release -p twofold -- bench exits
  cargo run --release -p twofold -- bench exits -n 100 --json exits.json

Exit status: 1 if an event costs more than its target.";
