// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Linux's figures about its memory. This module only reads them.

use std::fs;
use std::path::{Path, PathBuf};

/// Linux, as its files in `/proc` and `/sys` describe it.
pub(super) struct System {
    root: PathBuf,
}

impl System {
    /// The host of this process.
    pub(super) fn this() -> Self {
        Self { root: "/".into() }
    }

    /// Bytes that this process can take without invoking the OOM killer: the host's available memory, or what the
    /// control groups of this process leave, whichever is less.
    pub(super) fn available(&self) -> Option<u64> {
        let free = self.value("proc/meminfo", "MemAvailable:")? << 10;
        Some(self.left_in_control_groups().map_or(free, |left| free.min(left)))
    }

    /// The number of huge pages of `size` bytes that are free and not reserved.
    pub(super) fn free_huge_pages(&self, size: u64) -> u64 {
        let pool = format!("sys/kernel/mm/hugepages/hugepages-{}kB", size >> 10);
        let count = |name| self.number(&Path::new(&pool).join(name)).unwrap_or(0);
        count("free_hugepages").saturating_sub(count("resv_hugepages"))
    }

    /// Whether memory that is advised to use transparent huge pages may get them.
    pub(super) fn has_transparent_huge_pages(&self) -> bool {
        let enabled = self.read(Path::new("sys/kernel/mm/transparent_hugepage/enabled"));
        enabled.is_some_and(|text| !text.contains("[never]"))
    }

    /// The number of mappings that a process may have.
    pub(super) fn most_mappings(&self) -> u64 {
        const DEFAULT: u64 = 65530;
        self.number(Path::new("proc/sys/vm/max_map_count")).unwrap_or(DEFAULT).max(2)
    }

    /// The least that any control group of this process leaves, in version 1 or 2.
    fn left_in_control_groups(&self) -> Option<u64> {
        let groups = self.read(Path::new("proc/self/cgroup"))?;
        let lines = groups.lines().filter_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            Some((fields.next()?, fields.next()?))
        });
        let left = lines.flat_map(|(controllers, path)| {
            let layouts: &[&Layout] = match controllers {
                "" => &[&UNIFIED, &UNIFIED_BESIDE],
                _ if controllers.split(',').any(|name| name == "memory") => &[&FIRST],
                _ => &[],
            };
            // Each group of the path has its own limit. In a container only the root may be visible.
            let at =
                |layout: &Layout| Path::new(path).ancestors().filter_map(|group| self.left_in(layout, group)).min();
            layouts.iter().filter_map(|layout| at(layout)).min()
        });
        left.min()
    }

    fn left_in(&self, layout: &Layout, group: &Path) -> Option<u64> {
        let group = Path::new(layout.mount).join(group.strip_prefix("/").unwrap_or(group));
        let limit = self.number(&group.join(layout.limit))?;
        let usage = self.number(&group.join(layout.usage))?;
        // Cached files count as used, but the kernel drops them when memory is needed.
        let cached = layout.cached.map(|name| self.value(group.join("memory.stat"), name).unwrap_or(0));
        Some(limit.saturating_sub(usage.saturating_sub(cached.iter().sum())))
    }

    /// The number after `name`, in a file with one name per line.
    fn value(&self, file: impl AsRef<Path>, name: &str) -> Option<u64> {
        let text = self.read(file.as_ref())?;
        let mut lines = text.lines().map(str::split_whitespace);
        lines.find_map(|mut words| (words.next()? == name).then(|| words.next()?.parse().ok())?)
    }

    fn number(&self, file: &Path) -> Option<u64> {
        self.read(file)?.trim().parse().ok()
    }

    fn read(&self, file: &Path) -> Option<String> {
        fs::read_to_string(self.root.join(file)).ok()
    }
}

/// The files in which a version of control groups has its figures.
struct Layout {
    mount: &'static str,
    limit: &'static str,
    usage: &'static str,
    cached: [&'static str; 2],
}

const UNIFIED: Layout = Layout {
    mount: "sys/fs/cgroup",
    limit: "memory.max",
    usage: "memory.current",
    cached: ["inactive_file", "active_file"],
};
const UNIFIED_BESIDE: Layout = Layout { mount: "sys/fs/cgroup/unified", ..UNIFIED };
const FIRST: Layout = Layout {
    mount: "sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cached: ["total_inactive_file", "total_active_file"],
};

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A system with these files.
    pub(in super::super) fn with(files: &[(&str, &str)]) -> (tempfile::TempDir, System) {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = root.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let system = System { root: root.path().into() };
        (root, system)
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal: 4096 kB\nMemFree: 1 kB\nMemAvailable:    2048 kB\n");

    #[test]
    fn without_control_groups_it_is_what_the_system_has() {
        let (_root, system) = with(&[MEMINFO]);
        assert_eq!(system.available(), Some(2 * MIB));
        let (_root, system) = with(&[]);
        assert_eq!(system.available(), None);
    }

    #[test]
    fn a_group_above_limits_too_and_cached_files_are_free() {
        let (_root, system) = with(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/memory.current", "4096\n"),
            ("sys/fs/cgroup/a/memory.max", "1048576\n"),
            ("sys/fs/cgroup/a/memory.current", "524288\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 7\ninactive_file 4096\nactive_file 8192\n"),
        ]);
        assert_eq!(system.available(), Some(MIB / 2 + 12288));
    }

    #[test]
    fn the_first_version_limits_too() {
        let limit = |path| {
            let (_root, system) = with(&[
                MEMINFO,
                ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/1\n0::/\n"),
                (&format!("sys/fs/cgroup/memory{path}/memory.limit_in_bytes"), "1048576\n"),
                (&format!("sys/fs/cgroup/memory{path}/memory.usage_in_bytes"), "1048000\n"),
            ]);
            system.available()
        };
        assert_eq!(limit("/docker/1"), Some(576));
        assert_eq!(limit(""), Some(576), "the view from inside a container");
        assert_eq!(limit("/x"), Some(2 * MIB), "the group of another process");
    }

    #[test]
    fn huge_pages_that_are_promised_are_not_free() {
        let pool = "sys/kernel/mm/hugepages/hugepages-2048kB";
        let (_root, system) =
            with(&[(&format!("{pool}/free_hugepages"), "7\n"), (&format!("{pool}/resv_hugepages"), "3\n")]);
        assert_eq!(system.free_huge_pages(2 * MIB), 4);
        assert_eq!(system.free_huge_pages(1024 * MIB), 0);
    }
}
