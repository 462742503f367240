// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The crates with all mutants of values: a workspace below `target/`, made from this workspace's files.
//!
//! A change that does not compile is left out: for example, the difference of two addresses is not an address.
//! Invariant: no file outside that workspace is written. An unchanged file is not rewritten, so Cargo builds only what
//! changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use twofold_workspace::cargo::{self, Diagnostic, Executable};
use twofold_workspace::subprocess;

use super::rewrite::rewrite;
use super::sites::Sites;
use super::sources::{HOSTED_HYPERVISOR, judge_of, read};
use super::value::Value;
use crate::judge::TestProgram;
use crate::syntax::files;

/// The crates that are built: the mutated ones, those that the hypervisor's files need, and the machine, on which tests run.
const MEMBERS: [&str; 9] = [
    "crates/abi",
    "crates/devices",
    "crates/stage2",
    "crates/memory",
    "crates/migration",
    "crates/workload",
    "crates/machine",
    "crates/vmm",
    HOSTED_HYPERVISOR,
];
/// The mutated crates: the directory and the package's name.
const MUTATED_MEMBERS: [(&str, &str); 6] = [
    ("crates/stage2", "twofold-stage2"),
    ("crates/memory", "twofold-memory"),
    ("crates/migration", "twofold-migration"),
    ("crates/machine", "twofold-machine"),
    ("crates/vmm", "twofold-vmm"),
    (HOSTED_HYPERVISOR, "twofold-fuzz-hypervisor"),
];
/// The source of the switch's crate.
const SWITCH: &str = include_str!("switch.rs");

/// The workspace with mutants.
#[derive(Debug)]
pub struct Copy {
    place: PathBuf,
    target: PathBuf,
    texts: BTreeMap<String, String>,
    sites: Sites,
    /// Nodes that do not compile, by file and index.
    left_out: BTreeSet<(String, usize)>,
    /// The positions of nodes in the written files.
    written: BTreeMap<String, Vec<(usize, Range<usize>)>>,
}

impl Copy {
    /// Reads the sources of the checkout at `root`, and prepares the workspace at `place`.
    pub fn new(root: &Path, place: &Path) -> anyhow::Result<Self> {
        let (sites, texts) = read(root)?;
        let (left_out, written) = (BTreeSet::new(), BTreeMap::new());
        let copy = Self { place: place.join("source"), target: place.join("build"), texts, sites, left_out, written };
        copy.copy_members(root)?;
        fetch(root)?;
        Ok(copy)
    }

    /// Writes the sources, and leaves out changes that do not compile.
    pub fn compile(&mut self) -> anyhow::Result<()> {
        for _ in 0..MOST_ATTEMPTS {
            self.write_sources()?;
            let mut check = self.cargo(&["check", "--message-format=json"]);
            check.args(MUTATED_MEMBERS.iter().flat_map(|(_, package)| ["--package", package]));
            check.args(["--features", FEATURES]);
            let output = check.stdin(Stdio::null()).output().context("cargo does not start")?;
            if output.status.success() {
                return Ok(());
            }
            let errors: Vec<_> = cargo::errors(&String::from_utf8_lossy(&output.stdout)).collect();
            let before = self.left_out.len();
            for error in &errors {
                self.leave_out(error);
            }
            if self.left_out.len() == before {
                let texts: String = errors.iter().filter_map(|error| error.rendered.clone()).take(3).collect();
                let typed = subprocess::shown(&check);
                bail!("`{typed}` failed\n{texts}{}", String::from_utf8_lossy(&output.stderr));
            }
        }
        bail!("the mutants do not compile after {MOST_ATTEMPTS} attempts, each of which left some out")
    }

    /// Builds the test programs of the crates that have `values`.
    pub fn build<'a>(&self, values: impl IntoIterator<Item = &'a Value>) -> anyhow::Result<Vec<TestProgram>> {
        let mut command = self.cargo(&["test", "--no-run", "--message-format=json", "--lib"]);
        let wanted: BTreeSet<_> = values.into_iter().map(|value| judge_of(&value.file)).collect();
        let members = MUTATED_MEMBERS.iter().filter(|(member, _)| wanted.iter().any(|name| member.ends_with(name)));
        command.args(members.flat_map(|(_, package)| ["--package", package]));
        let mut judges = self.judges()?;
        judges.retain(|judge| wanted.contains(judge.of));
        let targets: BTreeSet<_> = judges.iter().map(|judge| judge.target.as_str()).collect();
        command.args(targets.iter().filter(|target| !target.starts_with("twofold_")).flat_map(|name| ["--test", name]));
        // Cargo refuses a feature of a package that is not built.
        let features =
            FEATURES.split(',').filter(|feature| wanted.iter().any(|name| feature.contains(&format!("-{name}/"))));
        command.arg("--features").arg(features.collect::<Vec<_>>().join(","));
        let output = command.stdin(Stdio::null()).output().context("cargo does not start")?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            bail!("the tests with mutants do not build\n{}", String::from_utf8_lossy(&output.stderr));
        }
        let mut programs = Vec::new();
        for Executable { target: made, file, package: directory } in cargo::executables(&text) {
            let package = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if let Some(judge) = judges.iter().find(|judge| judge.of == package && judge.target == made) {
                programs.push(program(format!("{package} {made}"), file, directory, (judge.filter, judge.except)));
            }
        }
        ensure!(programs.len() == judges.len(), "{} test programs instead of {}", programs.len(), judges.len());
        Ok(programs)
    }

    /// Builds the model checker's tests, which judge concurrent accesses.
    pub fn build_orders(&self) -> anyhow::Result<TestProgram> {
        let package = ["--package", "twofold-stage2", "--features", "twofold-stage2/checked"];
        let mut command = self.cargo(&["test", "--no-run", "--message-format=json", "--lib"]);
        command.args(package).env("RUSTFLAGS", "--cap-lints allow --cfg loom");
        // A separate directory, because other flags would invalidate every other build.
        command.env("CARGO_TARGET_DIR", self.target.with_file_name("loom"));
        let output = command.stdin(Stdio::null()).output().context("cargo does not start")?;
        if !output.status.success() {
            bail!("the orders with mutants do not build\n{}", String::from_utf8_lossy(&output.stderr));
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let made = cargo::executables(&text).find(|made| made.target == "twofold_stage2");
        let Executable { file, package, .. } = made.context("Cargo names no program of stage2")?;
        Ok(program("stage2 loom".to_owned(), file, package, ("loom::", &[])))
    }

    /// Returns the test programs that judge: those of [`of_crates`], and each test of `vmm` and of the hosted hypervisor.
    fn judges(&self) -> anyhow::Result<Vec<Judge>> {
        let mut judges = of_crates();
        for (of, member) in [("vmm", "crates/vmm"), ("hypervisor", HOSTED_HYPERVISOR)] {
            let tests = tests_in(&self.place.join(member).join("tests"))?;
            judges.extend(tests.iter().map(|test| all(of, test)));
        }
        Ok(judges)
    }

    /// Returns a call of Cargo in the workspace.
    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("cargo");
        command.current_dir(&self.place).args(arguments).args(["--offline"]);
        command.env("CARGO_TARGET_DIR", &self.target);
        // Lints are off, because the generated code is not for reading.
        command.env("RUSTFLAGS", "--cap-lints allow");
        // Only the switch needs an unstable feature: a const function with a different body at run time.
        command.env("RUSTC_BOOTSTRAP", "twofold_mutant");
        // Level 1 is a little faster than a debug build, keeps the assertions, and builds in half the time of level 2.
        command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1").env("CARGO_PROFILE_DEV_DEBUG", "none");
        command
    }

    /// Returns the mutants, each with the number that selects it; the number of sites that cannot be switched; and the
    /// number of changes that do not compile.
    pub fn mutants(&self) -> (Vec<(u32, Value)>, usize, usize) {
        let open = self.sites.nodes.iter().flat_map(|(file, nodes)| {
            nodes.iter().enumerate().filter(|(index, _)| !self.left_out.contains(&(file.clone(), *index)))
        });
        let inside: BTreeSet<_> = open.flat_map(|(_, node)| node.shape.values()).collect();
        let all = self.sites.values.iter().enumerate().filter(|(index, _)| inside.contains(index));
        let all: Vec<_> = all.map(|(index, value)| (index as u32 + 1, value.clone())).collect();
        let lost = self.sites.values.len() - all.len();
        (all, self.sites.skipped, lost)
    }

    fn copy_members(&self, root: &Path) -> anyhow::Result<()> {
        // Some of the hypervisor's files are in the hosted hypervisor by their path. Its tests read a document.
        for member in MEMBERS.iter().chain(&["crates/hypervisor", "docs"]) {
            remove_stale(root, &self.place, member)?;
            for file in files(&root.join(member))? {
                let name = file.strip_prefix(root).unwrap_or(&file);
                if !self.texts.contains_key(&*name.to_string_lossy()) {
                    let bytes = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
                    write(&self.place.join(name), &bytes)?;
                }
            }
        }
        for name in ["Cargo.toml", "Cargo.lock"] {
            let text = fs::read_to_string(root.join(name)).with_context(|| format!("cannot read {name}"))?;
            write(&self.place.join(name), if name == "Cargo.toml" { workspace(&text)? } else { text }.as_bytes())?;
        }
        for (member, _) in MUTATED_MEMBERS {
            let path = self.place.join(member).join("Cargo.toml");
            let text = fs::read_to_string(root.join(member).join("Cargo.toml"))?;
            ensure!(text.contains("\n[dependencies]\n"), "{member}/Cargo.toml has no [dependencies]");
            let with = text.replacen(
                "[dependencies]\n",
                "[dependencies]\ntwofold-mutant = { path = \"../../crates/mutant\" }\n",
                1,
            );
            write(&path, with.as_bytes())?;
        }
        write(&self.place.join("crates/mutant/src/lib.rs"), SWITCH.as_bytes())?;
        write(&self.place.join("crates/mutant/Cargo.toml"), SWITCH_MANIFEST.as_bytes())
    }

    fn write_sources(&mut self) -> anyhow::Result<()> {
        for (file, text) in &self.texts {
            let nodes = self.sites.nodes.get(file).map_or(&[][..], Vec::as_slice);
            let new = rewrite(text, nodes, |index| !self.left_out.contains(&(file.clone(), index)));
            write(&self.place.join(file), new.text.as_bytes())?;
            self.written.insert(file.clone(), new.nodes);
        }
        Ok(())
    }

    /// Leaves out the innermost node around each place of a compiler error.
    fn leave_out(&mut self, error: &Diagnostic) {
        for span in error.spans.iter().filter(|span| span.is_primary) {
            let file = plain(&span.file_name);
            let around = |bytes: &Range<usize>| bytes.start <= span.byte_start && span.byte_end <= bytes.end;
            let nodes = self.written.get(&file).into_iter().flatten();
            let innermost = nodes.filter(|(_, bytes)| around(bytes)).min_by_key(|(_, bytes)| bytes.len());
            if let Some((index, _)) = innermost {
                self.left_out.insert((file.clone(), *index));
            }
        }
    }
}

/// A test program, of whose tests those judge that `filter` and `except` select.
fn program(
    name: String,
    program: PathBuf,
    directory: PathBuf,
    (filter, except): (&'static str, &'static [&'static str]),
) -> TestProgram {
    TestProgram { name, program, directory, filter, except, preemptions: 1, meetings_only: false }
}

/// Downloads the packages of the lock file. The workspace is then built offline, so that its copy of the lock file
/// changes only by the switch's crate.
fn fetch(root: &Path) -> anyhow::Result<()> {
    let mut command = Command::new("cargo");
    command.current_dir(root).args(["fetch", "--locked"]);
    subprocess::quiet(&mut command)
}

/// The tests of a test program that judge.
struct Judge {
    /// The package, as [`judge_of`] names it.
    of: &'static str,
    target: String,
    /// Only tests with this text in their names judge.
    filter: &'static str,
    /// Tests with one of these in their names do not judge: their verdict depends on thread scheduling.
    except: &'static [&'static str],
}

fn all(of: &'static str, target: &str) -> Judge {
    Judge { of, target: target.to_owned(), filter: "", except: &[] }
}

/// Returns the names of the test programs of a directory: each is a file, or a directory with the file `main.rs`.
fn tests_in(directory: &Path) -> anyhow::Result<BTreeSet<String>> {
    let names = files(directory)?.into_iter().filter_map(|file| {
        let first = file.strip_prefix(directory).ok()?.components().next()?;
        Some(Path::new(&first).file_stem()?.to_string_lossy().into_owned())
    });
    Ok(names.collect())
}

/// Returns the test programs that judge the crates' own mutants.
fn of_crates() -> Vec<Judge> {
    vec![
        all("stage2", "twofold_stage2"),
        all("stage2", "walk"),
        all("stage2", "sequences"),
        all("stage2", "model"),
        all("memory", "twofold_memory"),
        all("memory", "faults"),
        all("memory", "dirty"),
        all("memory", "swap"),
        all("memory", "async_fault"),
        all("memory", "heap"),
        all("memory", "model"),
        all("migration", "twofold_migration"),
        all("migration", "absent"),
        all("migration", "commit"),
        all("migration", "heap"),
        all("migration", "limits"),
        Judge { except: &["threads::"], ..all("migration", "moves") },
        all("migration", "plan"),
        all("migration", "recorded"),
        all("migration", "sealed"),
        all("migration", "stream"),
        all("vmm", "twofold_vmm"),
        Judge { filter: "file_store::", ..all("machine", "twofold_machine") },
        Judge { except: &["vcpus::"], ..all("machine", "file_store") },
    ]
}

/// The features that the tests of the copy need.
const FEATURES: &str = "twofold-stage2/checked,twofold-memory/baselines,twofold-migration/sealed";
const MOST_ATTEMPTS: u32 = 40;
const SWITCH_MANIFEST: &str = "\
[package]
name = \"twofold-mutant\"
version = \"0.0.0\"
edition = \"2024\"
publish = false
";

/// Removes `..` from a path: the path of a module that is included by path has some.
fn plain(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

/// Returns the workspace's manifest with fewer members.
fn workspace(text: &str) -> anyhow::Result<String> {
    let rest = text.split_once("[workspace.package]").context("Cargo.toml has no [workspace.package]")?.1;
    let members = MEMBERS.iter().map(|member| format!("\"{member}\", "));
    let members: String = members.chain(["\"crates/mutant\"".to_owned()]).collect();
    Ok(format!("[workspace]\nresolver = \"3\"\nmembers = [{members}]\n\n[workspace.package]{rest}"))
}

/// Removes the copies of files that the checkout does not have any more: a module's file may have become a folder.
fn remove_stale(root: &Path, place: &Path, member: &str) -> anyhow::Result<()> {
    let copied = place.join(member);
    if !copied.is_dir() {
        return Ok(());
    }
    for file in files(&copied)? {
        let name = file.strip_prefix(place).unwrap_or(&file);
        if !root.join(name).exists() {
            fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
        }
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    if fs::read(path).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    let words = || format!("cannot write {}", path.display());
    fs::create_dir_all(path.parent().unwrap_or(path)).with_context(words)?;
    fs::write(path, bytes).with_context(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cargo reads the manifest of each crate that a member depends on, also for its tests alone.
    #[test]
    fn each_crate_that_a_member_needs_is_a_member() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let manifest = |member: &str| fs::read_to_string(root.join(member).join("Cargo.toml")).unwrap();
        let all = manifest("");
        let place = |name: &str| all.split_once(&format!("\n{name} = {{ path = \""))?.1.split('"').next();
        let mut needed = BTreeSet::new();
        for member in MEMBERS {
            let text = manifest(member);
            let names = text.lines().filter_map(|line| line.split_once([' ', '.']));
            needed.extend(names.filter_map(|(name, _)| place(name)).map(str::to_owned));
        }
        assert!(needed.len() > 4, "{needed:?}");
        let missing: Vec<_> = needed.iter().filter(|name| !MEMBERS.contains(&name.as_str())).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn a_directory_of_tests_is_one_program() {
        let directory = tempfile::tempdir().unwrap();
        for file in ["clock.rs", "devices/main.rs", "devices/bus.rs"] {
            write(&directory.path().join(file), b"").unwrap();
        }
        assert_eq!(tests_in(directory.path()).unwrap(), ["clock".to_owned(), "devices".to_owned()].into());
    }

    /// A test program that is renamed would end the run after a build of minutes.
    #[test]
    fn each_test_program_that_judges_exists() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        for Judge { of, target, .. } in of_crates() {
            let tests = tests_in(&root.join("crates").join(of).join("tests")).unwrap();
            assert!(target == format!("twofold_{of}") || tests.contains(&target), "{of} has no test {target}");
        }
    }

    #[test]
    fn copies_of_files_that_are_gone_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let (root, place) = (directory.path().join("root"), directory.path().join("place"));
        for file in [root.join("a/src/kept.rs"), place.join("a/src/kept.rs"), place.join("a/src/gone.rs")] {
            write(&file, b"").unwrap();
        }
        remove_stale(&root, &place, "a").unwrap();
        remove_stale(&root, &place, "never copied").unwrap();
        let left: Vec<_> = files(&place).unwrap();
        assert_eq!(left, [place.join("a/src/kept.rs")]);
    }
}
