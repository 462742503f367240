// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The conditions of a figure besides the program: the CPU, its caches, the kernel and how it treats memory.
//!
//! Invariant: a value that the kernel does not report is left out, never guessed. The host's name is left out too. The
//! kernel's command line is recorded whole, because a part of it does not help a reader who repeats the experiment. It
//! may hold private data, so its owner should read a result file before giving it away.

use std::fs;
use std::path::PathBuf;

use crate::machine::Machine;
use crate::readable;

/// The name of the kernel's command line, which may hold private data.
pub const COMMAND_LINE: &str = "kernel command line";

/// The name of the value that differs from run to run on the same machine.
pub const FREE_MEMORY: &str = "free memory";

/// Returns the names and values of this machine, in the order in which they are shown.
pub fn this() -> Vec<(String, String)> {
    let machine = Machine::this();
    let files = Files(PathBuf::from("/"));
    let mut facts = vec![("CPU", Some(machine.cpu.clone())), ("CPUs", Some(machine.cpus.to_string()))];
    facts.extend(files.facts());
    facts.extend([
        ("architecture", Some(std::env::consts::ARCH.to_owned())),
        ("kernel", machine.kernel.map(|release| format!("Linux {release}"))),
        (COMMAND_LINE, files.text("proc/cmdline")),
    ]);
    let known =
        |(name, value): (&str, Option<String>)| Some((name.to_owned(), value.filter(|value| !value.is_empty())?));
    facts.into_iter().filter_map(known).collect()
}

/// The kernel's files, below a root directory.
struct Files(PathBuf);

impl Files {
    fn facts(&self) -> Vec<(&'static str, Option<String>)> {
        vec![
            ("MIDR", self.text("sys/devices/system/cpu/cpu0/regs/identification/midr_el1")),
            ("under a hypervisor", self.under_a_hypervisor()),
            ("caches", self.caches()),
            ("memory", self.memory("MemTotal:")),
            (FREE_MEMORY, self.memory("MemAvailable:")),
            ("transparent huge pages", self.chosen("sys/kernel/mm/transparent_hugepage/enabled")),
            ("huge page pools", self.pools()),
            ("frequency governor", self.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
            ("/dev/kvm", Some(if self.0.join("dev/kvm").exists() { "there" } else { "not there" }.to_owned())),
        ]
    }

    fn text(&self, path: &str) -> Option<String> {
        Some(fs::read_to_string(self.0.join(path)).ok()?.trim().to_owned())
    }

    /// Returns the word in brackets, in a file that lists all choices.
    fn chosen(&self, path: &str) -> Option<String> {
        let text = self.text(path)?;
        Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
    }

    /// x86 has a CPU flag for a hypervisor. arm64 has none, but a device tree may have a node for it.
    fn under_a_hypervisor(&self) -> Option<String> {
        let flags = self.text("proc/cpuinfo")?;
        let flags = flags.lines().find(|line| line.starts_with("flags"));
        let by_tree = self.0.join("proc/device-tree/hypervisor").exists();
        let is_under = flags.is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor")) || by_tree;
        (is_under || flags.is_some()).then(|| if is_under { "yes" } else { "no" }.to_owned())
    }

    /// Returns, for example, `L1d 48 KiB, L1i 32 KiB, L2 2 MiB, L3 32 MiB`, for the first CPU.
    fn caches(&self) -> Option<String> {
        let of = |directory: PathBuf| {
            let text = |name| Some(fs::read_to_string(directory.join(name)).ok()?.trim().to_owned());
            let kind = match text("type")?.as_str() {
                "Data" => "d",
                "Instruction" => "i",
                _ => "",
            };
            let kib: u64 = text("size")?.strip_suffix('K')?.parse().ok()?;
            Some(format!("L{}{kind} {}", text("level")?, readable::bytes(kib << 10)))
        };
        let directory = fs::read_dir(self.0.join("sys/devices/system/cpu/cpu0/cache")).ok()?;
        let mut caches: Vec<String> = directory.flatten().filter_map(|entry| of(entry.path())).collect();
        caches.sort();
        Some(caches.join(", "))
    }

    /// Returns, for example, `7.6 GiB`.
    fn memory(&self, key: &str) -> Option<String> {
        let text = self.text("proc/meminfo")?;
        let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
        let kib = rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
        Some(format!("{:.1} GiB", kib as f64 / f64::from(1 << 20)))
    }

    /// Returns, for example, `2 MiB: 0 of 0 free, 1 GiB: 16 of 64 free`.
    fn pools(&self) -> Option<String> {
        let of = |directory: PathBuf| {
            let kib: u64 =
                directory.file_name()?.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let number = |name| fs::read_to_string(directory.join(name)).ok()?.trim().parse::<u64>().ok();
            let (free, all) = (number("free_hugepages")?, number("nr_hugepages")?);
            Some((kib, format!("{}: {free} of {all} free", readable::bytes(kib << 10))))
        };
        let directory = fs::read_dir(self.0.join("sys/kernel/mm/hugepages")).ok()?;
        let mut pools: Vec<_> = directory.flatten().filter_map(|entry| of(entry.path())).collect();
        pools.sort();
        Some(pools.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Makes a machine of files.
    fn files(given: &[(&str, &str)]) -> (tempfile::TempDir, Files) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in given {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
            fs::write(path, text).unwrap();
        }
        let files = Files(root.path().to_owned());
        (root, files)
    }

    fn value(files: &Files, name: &str) -> Option<String> {
        files.facts().into_iter().find(|(other, _)| *other == name).unwrap().1
    }

    #[test]
    fn a_server_tells_what_it_is() {
        let cache = "sys/devices/system/cpu/cpu0/cache";
        let pool = "sys/kernel/mm/hugepages";
        let (_root, files) = files(&[
            ("sys/devices/system/cpu/cpu0/regs/identification/midr_el1", "0x00000000481fd010\n"),
            (&format!("{cache}/index0/level"), "1\n"),
            (&format!("{cache}/index0/type"), "Data\n"),
            (&format!("{cache}/index0/size"), "64K\n"),
            (&format!("{cache}/index3/level"), "3\n"),
            (&format!("{cache}/index3/type"), "Unified\n"),
            (&format!("{cache}/index3/size"), "32768K\n"),
            ("proc/meminfo", "MemTotal: 33554432 kB\nMemFree: 1 kB\nMemAvailable: 16777216 kB\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
            (&format!("{pool}/hugepages-1048576kB/nr_hugepages"), "64\n"),
            (&format!("{pool}/hugepages-1048576kB/free_hugepages"), "16\n"),
            (&format!("{pool}/hugepages-2048kB/nr_hugepages"), "0\n"),
            (&format!("{pool}/hugepages-2048kB/free_hugepages"), "0\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
            ("proc/cpuinfo", "processor : 0\nFeatures : fp asimd\n"),
            ("dev/kvm", ""),
        ]);
        let fact = |name| value(&files, name).unwrap();
        assert_eq!(fact("MIDR"), "0x00000000481fd010");
        assert_eq!(fact("caches"), "L1d 64 KiB, L3 32 MiB");
        assert_eq!(fact("memory"), "32.0 GiB");
        assert_eq!(fact(FREE_MEMORY), "16.0 GiB");
        assert_eq!(fact("transparent huge pages"), "madvise");
        assert_eq!(fact("huge page pools"), "2 MiB: 0 of 0 free, 1 GiB: 16 of 64 free");
        assert_eq!(fact("frequency governor"), "performance");
        assert_eq!(fact("/dev/kvm"), "there");
        assert_eq!(value(&files, "under a hypervisor"), None, "arm64 has no flag");
    }

    #[test]
    fn a_flag_tells_of_a_hypervisor() {
        let (_root, under) = files(&[("proc/cpuinfo", "flags\t\t: fpu hypervisor nx\n")]);
        assert_eq!(value(&under, "under a hypervisor").unwrap(), "yes");
        let (_root, bare) = files(&[("proc/cpuinfo", "flags\t\t: fpu nx\n")]);
        assert_eq!(value(&bare, "under a hypervisor").unwrap(), "no");
        assert_eq!(value(&bare, "memory"), None);
    }

    #[test]
    fn this_machine_has_a_cpu_and_no_name() {
        let facts = this();
        assert_eq!(facts[0].0, "CPU");
        assert!(facts.iter().all(|(_, value)| !value.is_empty()));
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        assert!(facts.iter().all(|(key, value)| key == COMMAND_LINE || name.trim().is_empty() || value != name.trim()));
    }
}
