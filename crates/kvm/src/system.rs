// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Linux's files about itself and its memory, which are only read.

use std::fs;
use std::path::{Path, PathBuf};

/// Linux, as its files describe it.
pub(crate) struct System {
    root: PathBuf,
}

impl System {
    /// Returns the system that this process runs on.
    pub(crate) fn this() -> Self {
        Self { root: "/".into() }
    }

    /// Returns the bytes that can be taken without an out-of-memory kill.
    pub(crate) fn available(&self) -> Option<u64> {
        Some(self.kib("proc/meminfo", "MemAvailable:")? << 10)
    }

    /// Returns the bytes of a huge page of the default size.
    pub(crate) fn default_huge_page(&self) -> Option<u64> {
        Some(self.kib("proc/meminfo", "Hugepagesize:")? << 10)
    }

    /// Returns the bytes of a transparent huge page.
    pub(crate) fn transparent_huge_page(&self) -> Option<u64> {
        self.read("sys/kernel/mm/transparent_hugepage/hpage_pmd_size")?.parse().ok()
    }

    /// Returns how many huge pages of `size` bytes are free and not reserved.
    pub(crate) fn free_huge_pages(&self, size: u64) -> u64 {
        let count = |name| self.huge_pages(size, name).unwrap_or(0);
        count("free_hugepages").saturating_sub(count("resv_hugepages"))
    }

    /// Returns whether memory that asks for transparent huge pages can get some.
    pub(crate) fn has_transparent_huge_pages(&self) -> bool {
        let enabled = self.read("sys/kernel/mm/transparent_hugepage/enabled");
        enabled.is_some_and(|text| !text.contains("[never]"))
    }

    /// Returns a figure of the pool of huge pages of `size` bytes.
    pub(crate) fn huge_pages(&self, size: u64, name: &str) -> Option<u64> {
        self.read(format!("sys/kernel/mm/hugepages/hugepages-{}kB/{name}", size >> 10))?.parse().ok()
    }

    /// Returns the names in a directory, sorted; none if there is no such directory.
    pub(crate) fn names(&self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(directory)).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Returns the contents of a file, without white space around them.
    pub(crate) fn read(&self, file: impl AsRef<Path>) -> Option<String> {
        Some(fs::read_to_string(self.root.join(file)).ok()?.trim().to_owned())
    }

    /// Returns the number after a name, in a file with a name on each line.
    fn kib(&self, file: &str, name: &str) -> Option<u64> {
        let text = self.read(file)?;
        let mut lines = text.lines().map(str::split_whitespace);
        lines.find_map(|mut words| (words.next()? == name).then(|| words.next()?.parse().ok())?)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A system with these files.
    pub(crate) fn with(files: &[(&str, &str)]) -> (tempfile::TempDir, System) {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = root.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let system = System { root: root.path().into() };
        (root, system)
    }

    #[test]
    fn figures_are_read() {
        let pool = "sys/kernel/mm/hugepages/hugepages-2048kB";
        let (_root, system) = with(&[
            ("proc/meminfo", "MemTotal: 4096 kB\nMemAvailable:    2048 kB\nHugepagesize:       2048 kB\n"),
            (&format!("{pool}/free_hugepages"), "7\n"),
            (&format!("{pool}/resv_hugepages"), "3\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
        ]);
        assert_eq!(system.available(), Some(2 << 20));
        assert_eq!(system.default_huge_page(), Some(2 << 20));
        assert_eq!((system.free_huge_pages(2 << 20), system.free_huge_pages(1 << 30)), (4, 0));
        assert!(system.has_transparent_huge_pages());
        let (_root, system) = with(&[]);
        assert_eq!(system.available(), None);
        assert!(!system.has_transparent_huge_pages());
    }
}
