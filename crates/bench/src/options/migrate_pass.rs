// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `migrate-pass`.

use clap::Args;

use super::output::OutputOptions;
use super::size::Size;

/// Options of `migrate-pass`.
#[derive(Args, Clone, Debug)]
pub struct MigratePassOptions {
    /// The guest's memory, with K, M or G (powers of 1024): --memory 512M. Rounded up to whole parts of at most 64 MiB
    #[arg(short = 'm', long, value_name = "SIZE", default_value = "6G")]
    pub memory: Size,

    /// How often a guest of 256 MiB that writes is moved on the host's clock, with each load; 0: not at all
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub moves: u32,

    /// Where figures go.
    #[command(flatten)]
    pub output: OutputOptions,
}

/// The help text below the options.
pub const HELP: &str = "\
One pass over a stopped guest, of which a third is zero, a third compressible and a third random: what each stage of a
migration costs beside the library that it uses, alone, over the same bytes. The guest is cut into parts of 64 MiB, which
are larger than most last-level caches. In each part a stage and its library take turns. Times are CPU time of the thread.

  read           pages out of the guest's memory          memcpy
  scan           find zero pages, checksum, records       XXH3
  read and scan  both, by the driver                      memcpy and XXH3
  send           what a socket with a buffer adds to that the socket
  compress       zero test, lz4, checksum, records        lz4
  encrypt        records through a sealed link            ChaCha20-Poly1305

Then a guest of 256 MiB whose vCPU writes at 20 and at 80 percent of 1 GB/s is sent through a socket at that rate, with
the adaptive tracker and 5 ms of downtime, on the host's clock. Nothing takes it, so the commit is not in its downtime.

Examples:
  cargo run --release -p twofold -- bench migrate-pass
  cargo run --release -p twofold -- bench migrate-pass --memory 512M

Exit status: 1 if an interval excludes 1.5 times the library's time, or 5 ms of downtime.";
