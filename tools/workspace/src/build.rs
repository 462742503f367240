// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds the bare-metal images.
//!
//! Cargo links position-independent ELF files; a boot loader needs the bytes in their memory layout. Invariant: an
//! image holds each loadable segment at its physical address minus the lowest one, with zeros between segments. It ends
//! with the last file-backed byte. It begins with the arm64 Image header, which the linker puts first.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use object::Endianness;
use object::elf::{FileHeader64, PF_W, PT_LOAD};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use twofold_launch::image::Image;

use crate::install::TARGET;
use crate::subprocess;
use crate::workspace::Workspace;

/// The hypervisor.
pub const HYPERVISOR: Program = Program::new("twofold-hypervisor", "twofold");
/// The hypervisor that writes a trace.
pub const TRACING_HYPERVISOR: Program = Program { feature: Some("trace"), ..HYPERVISOR };
/// The hypervisor that compares its guest's dirty log with the guest's memory.
pub const ORACLE_HYPERVISOR: Program = Program { feature: Some("oracle"), ..HYPERVISOR };
/// The hypervisor that records which pages its guest writes.
pub const RECORDING_HYPERVISOR: Program = Program { feature: Some("record"), ..HYPERVISOR };
/// The hypervisor with the baseline policies.
pub const MEASURING_HYPERVISOR: Program = Program { feature: Some("baselines"), ..HYPERVISOR };
/// The hypervisor whose guests' tables have pages of 16 KiB.
pub const HYPERVISOR_16K: Program = Program { feature: Some("granule-16k"), ..HYPERVISOR };
/// The hypervisor whose guests' tables have pages of 64 KiB.
pub const HYPERVISOR_64K: Program = Program { feature: Some("granule-64k"), ..HYPERVISOR };
/// The tests of the engine at EL2.
pub const EL2_TESTS: Program = Program::new("twofold-hypervisor", "el2-tests");
/// The bare-metal guest.
pub const GUEST: Program = Program::new("twofold-guest", "guest");

/// A program that becomes an image.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The program's package.
    pub package: &'static str,
    /// The program's name, which is also the image's.
    pub name: &'static str,
    /// The feature of the package that the program is built with. Such a program has a build directory of its own.
    pub feature: Option<&'static str>,
}

impl Program {
    const fn new(package: &'static str, name: &'static str) -> Self {
        Self { package, name, feature: None }
    }

    /// The path of the program's image.
    pub fn image(self, workspace: &Workspace) -> PathBuf {
        self.directory(workspace).join(format!("{}.img", self.name))
    }

    /// The path of the program as the linker makes it.
    pub fn elf(self, workspace: &Workspace) -> PathBuf {
        self.directory(workspace).join(TARGET).join("release").join(self.name)
    }

    fn directory(self, workspace: &Workspace) -> PathBuf {
        self.feature.map_or_else(|| workspace.images(), |feature| workspace.images().join(feature))
    }
}

/// Builds `programs` as images; returns the sum of their sizes in bytes.
pub fn images(workspace: &Workspace, programs: &[Program]) -> anyhow::Result<u64> {
    for program in programs {
        // One build each: in one build Cargo would give the guest the features that the hypervisor enables in a shared
        // crate.
        let mut cargo = cargo(workspace, "build", *program);
        subprocess::show(cargo.args(["--bin", program.name]))?;
    }
    let mut size = 0;
    for program in programs {
        size += flatten_file(&program.elf(workspace), &program.image(workspace))?;
    }
    Ok(size)
}

/// Returns a call of Cargo: `command` on the package of `program`, for the bare-metal target and with its flags.
pub fn cargo(workspace: &Workspace, command: &str, program: Program) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(workspace.root()).args([command, "--release", "--package", program.package]);
    cargo.args(program.feature.iter().flat_map(|feature| ["--features", feature]));
    // A separate directory, because other flags would invalidate every host build.
    cargo.args(["--target", TARGET, "--target-dir"]).arg(program.directory(workspace));
    cargo.env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\x1f"));
    // Shared crates are compiled once for all programs. A Cargo before 1.91 compiles them for each program.
    cargo.env("CARGO_BUILD_BUILD_DIR", workspace.images().join("build"));
    cargo
}

/// The image is position-independent without a dynamic linker: it applies its own relocations. The report of a panic
/// needs the frame pointers. The packages' build scripts supply the linker scripts.
const FLAGS: [&str; 10] = [
    "-C",
    "relocation-model=pic",
    "-C",
    "link-arg=-pie",
    "-C",
    "link-arg=--no-dynamic-linker",
    "-C",
    "link-arg=-znotext",
    "-C",
    "force-frame-pointers=yes",
];

/// The code of a program, as its image begins with it. Nothing writes there while it runs.
pub fn code(workspace: &Workspace, program: Program) -> anyhow::Result<Vec<u8>> {
    let path = program.elf(workspace);
    let elf = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let file: ElfFile64<'_, Endianness> = ElfFile64::parse(&*elf)?;
    let endian = file.endian();
    let segments = file.elf_header().program_headers(endian, &*elf)?;
    let code = segments.iter().find(|segment| segment.p_type(endian) == PT_LOAD && segment.p_paddr(endian) == 0);
    let code = code.filter(|segment| !segment.p_flags(endian).contains(PF_W)).context("it does not begin with code")?;
    code.data(endian, &*elf).map(<[u8]>::to_vec).map_err(|()| anyhow::anyhow!("its code lies outside the file"))
}

fn flatten_file(elf: &Path, image: &Path) -> anyhow::Result<u64> {
    let bytes = fs::read(elf).with_context(|| format!("cannot read {}", elf.display()))?;
    let flat = flatten(&bytes).with_context(|| format!("{} cannot be made an image", elf.display()))?;
    let size = flat.len() as u64;
    if let Err(what) = Image::parse(&flat[..flat.len().min(64)], size) {
        bail!("{} has no arm64 Image header in its first bytes: {what}", elf.display());
    }
    // The file is renamed into place, because another `run` may be reading the old one. An unchanged image is not
    // rewritten.
    if fs::read(image).is_ok_and(|old| old == flat) {
        return Ok(size);
    }
    let directory = image.parent().unwrap_or(Path::new("."));
    let file = tempfile::NamedTempFile::new_in(directory).context("cannot write the image")?;
    fs::write(file.path(), &flat).context("cannot write the image")?;
    file.persist(image).context("cannot write the image")?;
    Ok(size)
}

/// A larger image means that the linker script is wrong.
const IMAGE_MAX: u64 = 64 << 20;

fn flatten(elf: &[u8]) -> anyhow::Result<Vec<u8>> {
    let file: ElfFile64<'_, Endianness> = ElfFile64::parse(elf)?;
    let endian = file.endian();
    let header: &FileHeader64<Endianness> = file.elf_header();
    let segments: Vec<_> = header
        .program_headers(endian, elf)?
        .iter()
        .filter(|segment| segment.p_type(endian) == PT_LOAD && segment.p_filesz(endian) > 0)
        .collect();
    let Some(start) = segments.iter().map(|segment| segment.p_paddr(endian)).min() else {
        bail!("it has no loadable segment; does its build script give a linker script?");
    };
    let mut flat = Vec::new();
    for segment in segments {
        let offset = segment.p_paddr(endian) - start;
        let Ok(data) = segment.data(endian, elf) else { bail!("a segment lies outside the file") };
        let end = offset.saturating_add(data.len() as u64);
        ensure!(end <= IMAGE_MAX, "its segments span {end} bytes; is the linker script in use?");
        let (offset, end) = (offset as usize, end as usize);
        if flat.len() < end {
            flat.resize(end, 0);
        }
        flat[offset..end].copy_from_slice(data);
    }
    Ok(flat)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file with segments of (physical address, bytes, size in memory).
    fn elf(segments: &[(u64, &[u8], u64)]) -> Vec<u8> {
        let mut file = vec![0; 64 + segments.len() * 56];
        file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        file[16..18].copy_from_slice(&3u16.to_le_bytes());
        file[18..20].copy_from_slice(&183u16.to_le_bytes());
        file[20] = 1;
        file[32..40].copy_from_slice(&64u64.to_le_bytes());
        file[52..54].copy_from_slice(&64u16.to_le_bytes());
        file[54..56].copy_from_slice(&56u16.to_le_bytes());
        file[56..58].copy_from_slice(&(segments.len() as u16).to_le_bytes());
        for (index, (address, bytes, memory)) in segments.iter().enumerate() {
            let at = 64 + index * 56;
            let offset = file.len() as u64;
            file[at..at + 4].copy_from_slice(&1u32.to_le_bytes());
            let numbers = [offset, *address, *address, bytes.len() as u64, *memory, 1];
            for (number, value) in numbers.iter().enumerate() {
                let place = at + 8 + number * 8;
                file[place..place + 8].copy_from_slice(&value.to_le_bytes());
            }
            file.extend_from_slice(bytes);
        }
        file
    }

    #[test]
    fn segments_lie_at_their_distance() {
        let file = elf(&[(0x1004, b"data", 4), (0x1000, b"ab", 2)]);
        assert_eq!(flatten(&file).unwrap(), b"ab\0\0data");
    }

    #[test]
    fn zero_initialised_memory_is_not_in_the_file() {
        let file = elf(&[(0, b"code", 0x1000), (0x1000, b"", 0x8000)]);
        assert_eq!(flatten(&file).unwrap(), b"code");
    }

    #[test]
    fn an_absurd_span_is_refused() {
        let error = flatten(&elf(&[(0, b"a", 1), (1 << 40, b"b", 1)])).unwrap_err().to_string();
        assert!(error.contains("linker script"), "{error}");
        assert!(flatten(&elf(&[])).is_err());
        assert!(flatten(b"no ELF").is_err());
    }
}
