// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command `peers kvm`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use twofold_workspace::steps::Steps;
use twofold_workspace::{Workspace, file, output};

use super::measure::Peer;
use super::report;

/// Options of `peers kvm`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Writes the figures to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Seconds after which a Linux that has not ended counts as hung; 0 for no limit
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    pub timeout: u64,
    /// Fetches the kernel and its source again, even if they are in the cache
    #[arg(long)]
    pub refresh: bool,
}

/// The last lines of the command's help.
pub const HELP: &str = "\
Debian's arm64 kernel boots in QEMU at EL2, in the deterministic mode, and runs the kernel's own dirty_log_perf_test and
kvm_page_table_test, which are built unmodified from its source package. A small file of ours (peers/kvm), linked with them,
counts the instructions at EL2 of each call into KVM: a run to the next exit to user space, a get, a clear. Equal runs
print equal figures. The report also has the figures of KVM that README and the targets use. The guest of `--on kvm` repeats
each experiment with a dirty log. It must find the same pages dirty, at the same cost within 10 %.

Examples:
  cargo xtask peers kvm
  cargo xtask peers kvm --json kvm.json

Exit status: 1 if the guest of `--on kvm` and the selftests do not agree.

Environment:
  TWOFOLD_QEMU, TWOFOLD_APT_GET, TWOFOLD_GUEST_CACHE   as for `run`";

/// `cargo xtask peers kvm`.
pub fn command(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    if let Some(path) = &options.json {
        file::check_json(path)?;
    }
    let limit = (options.timeout > 0).then(|| Duration::from_secs(options.timeout));
    let steps = Steps::new(workspace.stop().clone());
    let peer = Peer::prepare(workspace, options.refresh, &steps)?;
    let measured = peer.measure(workspace, limit, &steps)?;
    output::line(&format!("\n{}", report::shown(&measured)))?;
    if let Some(path) = &options.json {
        file::write_json(path, &report::json(&peer, &measured))?;
    }
    measured.check_agreement().context("`--on kvm` and the kernel's own program do not agree")?;
    Ok(ExitCode::SUCCESS)
}
