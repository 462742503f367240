// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `--dtb-dump`: the device trees that the guests get, from the bundle that they would be started with.
//!
//! The hypervisor's own code makes them. What it takes from a CPU is not in them, so the bytes are the same.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use twofold_vmm::bundle::Bundle;
use twofold_vmm::device_tree;
use twofold_vmm::load::Layout;

/// Writes the device tree of each guest of a bundle, and returns the files.
pub fn dump(bundle: &Path, to: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let bytes = fs::read(bundle).with_context(|| format!("cannot read {}", bundle.display()))?;
    let bundle = Bundle::read(&bytes).map_err(|why| anyhow!("{why}"))?;
    let mut files = Vec::new();
    for guest in &bundle.guests {
        let layout = Layout::new(&guest.config).map_err(|why| anyhow!("guest {}: {why}", guest.name))?;
        let affinities: Vec<u64> = (0..u64::from(guest.config.cpus)).map(device_tree::affinity).collect();
        let file = match bundle.guests.len() {
            1 => to.to_owned(),
            _ => {
                let name = to.file_name().unwrap_or_default().to_string_lossy();
                to.with_file_name(format!("{}.{name}", guest.name))
            }
        };
        fs::write(&file, device_tree::build(&guest.config, &layout, &affinities))
            .with_context(|| format!("--dtb-dump: cannot write {}", file.display()))?;
        files.push(file);
    }
    Ok(files)
}
