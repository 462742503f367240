// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Linux's stage-2 page-table code: fetched from Debian, built unmodified, with headers of our own (`peers/linux`).
//!
//! The resulting programs are GPL-2.0-only, stay below `target/` and print JSON.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use twofold_workspace::{Workspace, install, subprocess};

use crate::source::{PACKAGE, Source, Wanted, rename};

/// The operations of the driver.
#[cfg(test)]
pub const OPERATIONS: &[&str] = &[
    "map_pages",
    "map_pages_scattered",
    "map_range",
    "split_2m",
    "split_1g",
    "split_again",
    "split_again_sections",
    "protect",
    "protect_sections",
    "protect_again",
    "protect_split_sections",
    "relax",
    "relax_scattered",
    "young",
    "age",
    "lookup",
    "coalesce_2m",
    "coalesce_1g",
    "unmap",
    "unmap_pages",
    "destroy",
    "unmap_harvest",
];

/// The code, and the headers that belong only to it: in the kernel's tree, and in the cache.
const FILES: [(&str, &str); 3] = [
    ("arch/arm64/kvm/hyp/pgtable.c", "pgtable.c"),
    ("arch/arm64/include/asm/kvm_pgtable.h", "asm/kvm_pgtable.h"),
    ("arch/arm64/include/asm/stage2_pgtable.h", "asm/stage2_pgtable.h"),
];
/// The kernel's own flags that affect this code.
const FLAGS: [&str; 5] = ["-O2", "-std=gnu11", "-fno-strict-aliasing", "-Wall", "-Werror"];
const DRIVER: [&str; 2] = ["driver.c", "memory.c"];

/// The built programs.
#[derive(Debug)]
pub struct Programs {
    /// The program that measures times.
    pub timing: PathBuf,
    /// The program that counts events.
    pub counting: PathBuf,
    /// The compiler's name and version.
    pub compiler: String,
}

/// Returns the source from the cache. Fetches it from Debian if it is not cached or if `refresh` is set.
pub fn fetch(workspace: &Workspace, refresh: bool) -> anyhow::Result<Source> {
    let (parts, kept) = (FILES.map(|(part, _)| part), FILES.map(|(_, kept)| kept));
    Wanted { name: "linux", parts: &parts, kept: &kept, arrange }.fetch(workspace, refresh)
}

fn arrange(tree: &Path) -> anyhow::Result<PathBuf> {
    let new = tree.with_file_name("new");
    for (part, name) in FILES {
        rename(&tree.join(part), &new.join(name))?;
    }
    Ok(new)
}

/// Builds the driver with the source twice: to measure times, and to count events.
pub fn build(workspace: &Workspace, source: &Source) -> anyhow::Result<Programs> {
    install::program(COMPILER, "gcc")?;
    let compiler = subprocess::read(Command::new(COMPILER).arg("--version"))?;
    let compiler = compiler.lines().next().unwrap_or(COMPILER).to_owned();
    let ours = workspace.root().join("peers/linux");
    let compile = |name: &str, flags: &[&str]| {
        let program = source.directory.join(name);
        let mut gcc = Command::new(COMPILER);
        // The compiler searches our headers first, then the kernel's headers that belong to this code.
        gcc.args(FLAGS).args(flags).arg("-I").arg(ours.join("include")).arg("-I").arg(&source.directory);
        gcc.arg("-o").arg(&program).args(DRIVER.map(|file| ours.join(file))).arg(source.directory.join("pgtable.c"));
        let built = subprocess::quiet(&mut gcc);
        built.with_context(|| format!("{PACKAGE} {} does not compile with our headers", source.version))?;
        anyhow::Ok(program)
    };
    Ok(Programs {
        timing: compile("twofold-linux-timing", &[])?,
        counting: compile("twofold-linux-counting", &["-DCOUNT"])?,
        compiler,
    })
}

const COMPILER: &str = "gcc";

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    use crate::linux::targets::{ROWS, Target};

    #[test]
    fn the_driver_has_the_operations_that_are_asked_of_it() {
        // The driver's own table, which is C.
        let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../peers/linux/driver.c")).unwrap();
        let names = text.lines().filter_map(|line| line.trim_start().strip_prefix("{ \"")?.split('"').next());
        assert_eq!(names.collect::<Vec<_>>(), OPERATIONS);
        for row in ROWS {
            assert!(row.peer.is_none_or(|peer| OPERATIONS.contains(&peer)), "{}", row.name);
            assert_eq!(matches!(row.target, Target::Ratio(..)), row.peer.is_some(), "{}", row.name);
        }
    }
}
