// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `twofold snapshot`: writes a guest that runs into a file.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use twofold_bench::output;
use twofold_launch::socket::Remote;

/// Options of `snapshot`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The guest's name, as `twofold run --name` gave it
    pub name: String,
    /// The file. One that is there is replaced when the snapshot is whole
    pub file: PathBuf,
    /// Ends the guest when it is in the file. A guest that writes to a disk needs this: the disk's content is not in the file,
    /// and it fits only while nothing writes to the disk
    #[arg(long)]
    pub end: bool,
}

/// What `--help` has at its end.
pub const HELP: &str = "\
The guest stands still meanwhile, and then goes on, or ends with --end. The file has its memory, the state of its vCPUs and devices, its settings
and its images, so `twofold run --from FILE` needs nothing else: there it goes on from where it was. Network cards lead to where
they led, and disks are where they were: their contents are not in the file. A guest with --disk memory:SIZE cannot be
saved yet.

Examples:
  twofold snapshot web web.snapshot
  twofold run --from web.snapshot
  twofold snapshot --end db db.snapshot

Exit status: 0 if the file is whole, 1 if there is no such guest, or the guest cannot be saved.";

/// `twofold snapshot`.
pub fn command(options: &Options) -> anyhow::Result<ExitCode> {
    let remote = Remote::find(Some(&options.name))?;
    // The run has a working directory of its own.
    let file = std::path::absolute(&options.file)?;
    let bytes = remote.snapshot(&options.name, &file, options.end)?;
    output::line(&format!("{}: {} in {}", options.name, mebibytes(bytes), Path::new(&options.file).display()))?;
    Ok(ExitCode::SUCCESS)
}

/// A size for people.
fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
