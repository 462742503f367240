// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Debian's kernels of two series in three flavours: each boots as Debian ships it, and the guest checks itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use libtest_mimic::{Failed, Trial};
use twofold_launch::GuestSettings;
use twofold_workspace::kernels::Kernel;
use twofold_workspace::{fetch, initramfs};

use super::harness::{self, Depth};
use super::suite::Suite;

/// Returns the tests of this depth. The kernel of most other tests is not among them.
pub fn trials(suite: &Arc<Suite>, depth: Depth) -> Vec<Trial> {
    let others = Kernel::ALL.into_iter().filter(|kernel| *kernel != Kernel::DEFAULT);
    let chosen = others.filter(|kernel| depth == Depth::Full || *kernel == QUICK);
    let trial = |kernel: Kernel| {
        let suite = Arc::clone(suite);
        let name = format!("kernel_of_debian_{}_{}", kernel.series, kernel.flavour);
        harness::trial(&name, move || boots(&suite, kernel).map_err(|error| Failed::from(format!("{error:#}"))))
    };
    chosen.map(trial).collect()
}

/// The smallest of the older series.
const QUICK: Kernel = Kernel { series: "6.1", flavour: "cloud-arm64" };
/// The time limit against hangs. The plain kernels start many drivers.
const TIMEOUT: Duration = Duration::from_secs(300);

fn boots(suite: &Suite, kernel: Kernel) -> anyhow::Result<()> {
    let fetched = kernel.fetch(&suite.workspace, false)?;
    let busybox = fetch::fetch(&suite.workspace, false)?.busybox;
    let name = format!("{}-{}.cpio", kernel.series, kernel.flavour);
    let initrd = initramfs::make(&suite.workspace, &name, initramfs::GUEST, &busybox, &BTreeMap::new())?;
    let guest = GuestSettings {
        kernel: fetched.kernel,
        initrd: Some(initrd),
        memory: 512 << 20,
        // The kernel's first line is a notice.
        ..suite.bare_guest("console=ttyAMA0 panic=-1 loglevel=6 twofold.check", 0)
    };
    let outcome = suite.boot_checked(guest, TIMEOUT)?;
    let console = outcome.console.tail(usize::MAX);
    let first = format!("Linux version {} ", fetched.versions.kernel);
    ensure!(console.iter().any(|line| line.contains(&first)), "no {first:?} in:\n{}", console.join("\n"));
    Ok(())
}
