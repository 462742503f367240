// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine that runs the measurement, as far as the kernel describes it.

use std::fs;
use std::thread;

use serde::Serialize;

/// The machine's properties that figures depend on. The host's name is not among them.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The CPU's model, as the kernel names it; the architecture if the kernel has no name.
    pub cpu: String,
    /// CPUs that this process may run on.
    pub cpus: usize,
    /// Bytes of the largest cache of the first CPU.
    pub cache: Option<u64>,
    /// The kernel's release.
    pub kernel: Option<String>,
}

impl Machine {
    /// Returns this machine.
    pub fn this() -> Self {
        Self {
            cpu: model().unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cpus: thread::available_parallelism().map_or(1, usize::from),
            cache: largest_cache(),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").ok().map(|text| text.trim().to_owned()),
        }
    }

    /// Returns a description in one line.
    pub fn shown(&self) -> String {
        let cache = self.cache.map(|bytes| format!(", {} MiB of last-level cache", bytes >> 20)).unwrap_or_default();
        let kernel = self.kernel.as_ref().map(|release| format!(", Linux {release}")).unwrap_or_default();
        format!("{}, {} CPUs{cache}{kernel}", self.cpu, self.cpus)
    }
}

/// Returns how many bytes of this process's memory are in huge pages; `None` if the kernel does not report it.
pub fn huge_pages() -> Option<u64> {
    kib_after(&fs::read_to_string("/proc/self/smaps_rollup").ok()?, "AnonHugePages:")
}

/// Returns the bytes of a field of `/proc/meminfo`, such as `MemAvailable:`; `None` if there is no such field.
pub fn memory(name: &str) -> Option<u64> {
    kib_after(&fs::read_to_string("/proc/meminfo").ok()?, name)
}

fn model() -> Option<String> {
    model_in(&fs::read_to_string("/proc/cpuinfo").ok()?)
}

/// On x86 the kernel reports a model name; on arm64 the implementer and part number of MIDR_EL1.
fn model_in(text: &str) -> Option<String> {
    let value = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim())
    };
    let arm = || Some(format!("arm64, implementer {} part {}", value("CPU implementer")?, value("CPU part")?));
    value("model name").map(str::to_owned).or_else(arm)
}

fn largest_cache() -> Option<u64> {
    let caches = fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    let size = |path: std::path::PathBuf| {
        let text = fs::read_to_string(path.join("size")).ok()?;
        Some(text.trim().strip_suffix('K')?.parse::<u64>().ok()? << 10)
    };
    caches.flatten().filter_map(|entry| size(entry.path())).max()
}

fn kib_after(text: &str, key: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    Some(rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_has_a_model() {
        let text = |lines: &[&str]| model_in(&lines.join("\n"));
        assert_eq!(text(&["processor\t: 0", "model name\t: AMD EPYC"]).as_deref(), Some("AMD EPYC"));
        let arm = ["Features\t: fp", "CPU implementer\t: 0x48", "CPU variant\t: 0x1", "CPU part\t: 0xd01"];
        assert_eq!(text(&arm).as_deref(), Some("arm64, implementer 0x48 part 0xd01"));
        assert_eq!(text(&["processor : 0"]), None);
    }

    #[test]
    fn kibibytes_are_read() {
        assert_eq!(kib_after("Rss: 1 kB\nAnonHugePages:     34816 kB\n", "AnonHugePages:"), Some(34 << 20));
        assert_eq!(kib_after("Rss: 1 kB\n", "AnonHugePages:"), None);
    }
}
