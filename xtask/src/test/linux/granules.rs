// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `linux`: guests whose stage 2 has pages of 16 KiB or 64 KiB, and all CPU models with 4 KiB.

use anyhow::{Context, ensure};
use twofold_launch::machine;

use super::suite::Suite;

/// Boots Linux, whose own pages are of 4 KiB, with a stage 2 of this granule: it checks itself and ends. Of its memory, EL2
/// maps pages of the granule, and nothing else.
pub fn boots(suite: &Suite, granule: &str, row: &str) -> anyhow::Result<()> {
    let ended = suite.run(&["--check", "--guest", "linux", "--granule", granule, "--cpus", "2"])?;
    let line = ended.lines().find(|line| line.contains(row)).with_context(|| format!("no {row:?} in\n{ended}"))?;
    let counts: Vec<_> = line.split_once(row).map_or("", |(_, counts)| counts).split_whitespace().collect();
    // As `0, 0, 14,000`.
    let pages: u64 = counts.get(2).map(|pages| pages.replace(',', "")).unwrap_or_default().parse()?;
    ensure!(counts[..2] == ["0,", "0,"] && pages > 500, "mapped: {line}");
    Ok(())
}

/// What the images with larger pages do not have, and what a CPU does not have, is refused by name.
pub fn refused(suite: &Suite) -> anyhow::Result<()> {
    let granule = |more: &[&str], words: &[&str]| {
        suite.refused(&[&["--check", "--guest", "bare", "--granule", "16k"], more].concat(), words)
    };
    granule(&["--count"], &["--granule", "--count"])?;
    granule(&["--resident", "64M"], &["--granule", "--resident"])?;
    granule(&["--pages", "blocks"], &["--granule", "--pages blocks"])?;
    granule(&["--memory", "67112960"], &["--memory 67112960", "16384"])?;
    granule(&["--cpu", "cortex-a57"], &["16 KiB"])
}

/// Boots Linux with pages of 4 KiB on the CPU models whose missing features lead to other code paths.
pub fn on_each_cpu(suite: &Suite) -> anyhow::Result<()> {
    for cpu in [machine::CPU_DEFAULT, "neoverse-n1", "cortex-a57"] {
        for pages in ["4k", "auto"] {
            suite.boots(&["--cpu", cpu, "--pages", pages]).with_context(|| format!("{cpu}, --pages {pages}"))?;
        }
    }
    Ok(())
}
