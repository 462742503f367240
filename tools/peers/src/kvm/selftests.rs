// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's own selftests of KVM: fetched from Debian, built unmodified for arm64, linked with our counter
//! (`peers/kvm`).
//!
//! The programs are GPL-2.0-only and stay below `target/`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use twofold_workspace::{Workspace, install, subprocess};

use crate::source::{PACKAGE, Source, Wanted, rename};

/// The selftests that are built.
pub const PROGRAMS: [&str; 2] = [DIRTY_LOG, PAGE_TABLE];
/// The selftest of dirty logging.
pub const DIRTY_LOG: &str = "dirty_log_perf_test";
/// The selftest that creates, updates and adjusts a page table.
pub const PAGE_TABLE: &str = "kvm_page_table_test";

/// The built programs.
#[derive(Debug)]
pub struct Programs {
    directory: PathBuf,
    /// The compiler's name and version.
    pub compiler: String,
}

impl Programs {
    /// Reads one of [`PROGRAMS`].
    pub fn read(&self, name: &str) -> anyhow::Result<Vec<u8>> {
        let path = self.directory.join(name);
        fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
    }
}

/// Returns the source from the cache. Fetches it from Debian if it is not cached or if `refresh` is set.
pub fn fetch(workspace: &Workspace, refresh: bool) -> anyhow::Result<Source> {
    let parts: Vec<_> = FOLDERS.into_iter().chain(HEADERS.map(|(part, _)| part)).chain(SYSTEM_REGISTERS).collect();
    let kept = PROGRAMS.map(|name| format!("{SELFTESTS}/{name}.c"));
    let kept = kept.each_ref().map(String::as_str);
    Wanted { name: "kvm", parts: &parts, kept: &kept, arrange }.fetch(workspace, refresh)
}

fn arrange(tree: &Path) -> anyhow::Result<PathBuf> {
    for (part, name) in HEADERS {
        rename(&tree.join(part), &tree.join(name))?;
    }
    generate_system_registers(tree)?;
    Ok(tree.to_owned())
}

/// Builds the programs, statically linked with the counter.
pub fn build(workspace: &Workspace, source: &Source) -> anyhow::Result<Programs> {
    install::arm64_compiler()?;
    let compiler = subprocess::read(Command::new(install::ARM64_COMPILER).arg("--version"))?;
    let compiler = compiler.lines().next().unwrap_or(install::ARM64_COMPILER).to_owned();
    let directory = workspace.peers().join("kvm-programs");
    fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    // Compiled freestanding, as in the kernel's makefile: else the compiler would turn the loop in memcmp into a call
    // of memcmp.
    let strings = directory.join("string_override.o");
    quiet(gcc(source).args(["-ffreestanding", "-c", STRINGS, "-o"]).arg(&strings), source)?;
    for program in PROGRAMS {
        let mut gcc = gcc(source);
        gcc.arg(format!("{program}.c")).args(LIBRARY).arg(&strings).arg(workspace.root().join("peers/kvm/count.c"));
        quiet(gcc.args(LINKED).arg("-o").arg(directory.join(program)), source)?;
    }
    Ok(Programs { directory, compiler })
}

const SELFTESTS: &str = "tools/testing/selftests/kvm";
/// Folders and files that keep their paths in the kernel's tree.
const FOLDERS: [&str; 6] = [
    SELFTESTS,
    "tools/testing/selftests/kselftest.h",
    "tools/testing/selftests/rseq",
    "tools/lib/rbtree.c",
    "tools/include",
    "tools/arch/arm64/include",
];
/// Headers that the kernel's `make headers_install` would put below `usr/include`, and of which the C library has too
/// old a version.
const HEADERS: [(&str, &str); 5] = [
    ("include/uapi/linux/kvm.h", "usr/include/linux/kvm.h"),
    ("include/uapi/linux/userfaultfd.h", "usr/include/linux/userfaultfd.h"),
    ("arch/arm64/include/uapi/asm/kvm.h", "usr/include/asm/kvm.h"),
    ("arch/arm64/include/uapi/asm/ptrace.h", "usr/include/asm/ptrace.h"),
    ("arch/arm64/include/uapi/asm/sve_context.h", "usr/include/asm/sve_context.h"),
];
/// The script and the table from which a header is generated.
const SYSTEM_REGISTERS: [&str; 2] = ["arch/arm64/tools/gen-sysreg.awk", "arch/arm64/tools/sysreg"];
const GENERATED: &str = "generated";

/// The flags of the selftests' makefile that affect the code.
const FLAGS: [&str; 14] = [
    "-O2",
    "-std=gnu99",
    "-D_GNU_SOURCE=",
    "-DCONFIG_64BIT",
    "-U_FORTIFY_SOURCE",
    "-fno-builtin-memcmp",
    "-fno-builtin-memcpy",
    "-fno-builtin-memset",
    "-fno-builtin-strnlen",
    "-fno-stack-protector",
    "-fno-PIE",
    "-fno-strict-aliasing",
    "-pthread",
    "-w",
];
const LINKED: [&str; 3] = ["-static", "-no-pie", "-Wl,--wrap=ioctl"];
const STRINGS: &str = "lib/string_override.c";
const LIBRARY: [&str; 20] = [
    "lib/assert.c",
    "lib/elf.c",
    "lib/guest_modes.c",
    "lib/guest_sprintf.c",
    "lib/io.c",
    "lib/kvm_util.c",
    "lib/memstress.c",
    "lib/rbtree.c",
    "lib/sparsebit.c",
    "lib/test_util.c",
    "lib/ucall_common.c",
    "lib/userfaultfd_util.c",
    "lib/aarch64/gic.c",
    "lib/aarch64/gic_v3.c",
    "lib/aarch64/gic_v3_its.c",
    "lib/aarch64/handlers.S",
    "lib/aarch64/processor.c",
    "lib/aarch64/spinlock.c",
    "lib/aarch64/ucall.c",
    "lib/aarch64/vgic.c",
];

/// Returns a call of the compiler in the selftests' folder, with their flags and headers.
fn gcc(source: &Source) -> Command {
    let mut gcc = Command::new(install::ARM64_COMPILER);
    gcc.current_dir(source.directory.join(SELFTESTS)).args(FLAGS);
    for place in ["tools/include", "tools/arch/arm64/include", "usr/include", GENERATED] {
        gcc.arg("-I").arg(source.directory.join(place));
    }
    gcc.args(["-Iinclude", "-Iinclude/aarch64", "-I../rseq", "-I.."]);
    gcc
}

fn quiet(gcc: &mut Command, source: &Source) -> anyhow::Result<()> {
    subprocess::quiet(gcc).with_context(|| format!("the selftests of {PACKAGE} {} do not compile", source.version))
}

/// Generates the header with the names of system registers, as the kernel's makefile does.
fn generate_system_registers(tree: &Path) -> anyhow::Result<()> {
    install::program("awk", "mawk")?;
    let mut awk = Command::new("awk");
    let header = subprocess::read(awk.arg("-f").args(SYSTEM_REGISTERS.map(|part| tree.join(part))))?;
    let directory = tree.join(GENERATED).join("asm");
    fs::create_dir_all(&directory)?;
    fs::write(directory.join("sysreg-defs.h"), header).context("cannot write a header")
}
