// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The test programs that judge mutants of calls, built once with all mutants.
//!
//! No verdict depends on the host's scheduling of threads: concurrent CPUs take seeded turns, or the model checker
//! tries all orders.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use twofold_workspace::cargo::{self, Executable};
use twofold_workspace::{Workspace, subprocess};

use super::sites::Mutant;
use crate::judge::TestProgram;

/// The test programs of `packages` with these features.
struct Build {
    packages: &'static [&'static str],
    features: &'static [&'static str],
    flags: &'static str,
    /// A separate build directory, because other flags would invalidate every other build.
    directory: &'static str,
    /// The test programs that judge.
    judges: &'static [Asked],
    meetings_only: bool,
}

/// The tests of a test program that judge.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// The target's name.
    target: &'static str,
    /// Only tests with this text in their names judge.
    filter: &'static str,
    /// Tests with one of these in their names do not judge: they take minutes.
    except: &'static [&'static str],
    /// The number of preemptions that the model checker tries. With two, all those of the engine take
    /// minutes.
    preemptions: u32,
}

const fn all(target: &'static str) -> Asked {
    some(target, "")
}

const fn some(target: &'static str, filter: &'static str) -> Asked {
    Asked { target, filter, except: &[], preemptions: 1 }
}

/// Tests that compare with other projects' code do not judge. Neither do tests whose verdict depends on thread
/// scheduling.
const BUILDS: [Build; 2] = [
    Build {
        packages: &["twofold-stage2", "twofold-memory", "twofold-machine"],
        features: &["twofold-stage2/checked", "twofold-memory/baselines", "twofold-machine/strict"],
        flags: "--cfg mutants",
        directory: "tests",
        judges: &[
            some("strict", "judge_"),
            all("walk"),
            all("baselines"),
            all("sequences"),
            all("faults"),
            all("dirty"),
            Asked { except: &["races::", "no_page_waits"], ..all("swap") },
            all("async_fault"),
            all("model"),
            some("vm", "alone::"),
        ],
        meetings_only: false,
    },
    Build {
        packages: &["twofold-stage2", "twofold-memory"],
        features: &["twofold-stage2/checked"],
        flags: "--cfg mutants --cfg loom",
        directory: "loom",
        judges: &[
            some("twofold_stage2", "loom::"),
            Asked { target: "twofold_stage2", filter: "loom::reused", except: &[], preemptions: 2 },
            Asked { target: "twofold_memory", filter: "loom::", except: &[], preemptions: 2 },
        ],
        meetings_only: true,
    },
];

/// Instructions, and functions that consist of them, which only a machine can judge.
const INSTRUCTIONS: [&str; 13] = [
    "tlbi",
    "dsb",
    "isb",
    "dc_lines",
    "ic",
    "load_vttbr",
    "clean_lines",
    "before_map",
    "before_fetch",
    "clean_holes",
    "invalidate",
    "invalidate_vmid",
    "invalidate_local",
];

/// Builds all judges.
pub fn build(workspace: &Workspace) -> anyhow::Result<Vec<TestProgram>> {
    let mut judges = Vec::new();
    for build in &BUILDS {
        judges.extend(build.run(workspace)?);
    }
    if judges.is_empty() {
        bail!("there is no test program that judges");
    }
    Ok(judges)
}

/// Returns whether a test program can catch such a mutant at all.
pub fn is_for(program: &TestProgram, mutant: &Mutant) -> bool {
    !(program.meetings_only && INSTRUCTIONS.contains(&mutant.site.call.as_str()))
}

impl Build {
    fn run(&self, workspace: &Workspace) -> anyhow::Result<Vec<TestProgram>> {
        let mut command = Command::new("cargo");
        command.current_dir(workspace.root()).args(["test", "--no-run", "--message-format=json"]);
        if self.meetings_only {
            command.arg("--lib");
        } else {
            // Only the judges are built, to save time.
            command.args(self.judges.iter().flat_map(|asked| ["--test", asked.target]));
        }
        for package in self.packages {
            command.args(["--package", package]);
        }
        command.arg("--features").arg(self.features.join(","));
        command.env("RUSTFLAGS", self.flags).env("CARGO_TARGET_DIR", workspace.mutants().join(self.directory));
        // Optimized, but with the assertions of a debug build.
        command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "2").env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only");
        let typed = subprocess::shown(&command);
        let output = command.stdin(Stdio::null()).output().context("cargo does not start")?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let flags = self.flags;
            let errors: String = cargo::errors(&text).filter_map(|error| error.rendered).take(3).collect();
            bail!("`RUSTFLAGS=\"{flags}\" {typed}` failed\n{errors}{}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(self.judges_of(&text))
    }

    /// Returns the judges among the programs that Cargo reports.
    fn judges_of(&self, messages: &str) -> Vec<TestProgram> {
        let mut judges: Vec<_> = cargo::executables(messages)
            .flat_map(|Executable { target, file, package }| {
                let asked = self.judges.iter().filter(move |asked| asked.target == target);
                asked.map(move |asked| self.judge(asked, &file, &package))
            })
            .collect();
        // Cargo may report a program twice.
        judges.sort_by(|a, b| (&a.name, a.filter).cmp(&(&b.name, b.filter)));
        judges.dedup_by(|a, b| a.name == b.name);
        judges
    }

    fn judge(&self, asked: &Asked, program: &Path, directory: &Path) -> TestProgram {
        let package = directory.file_name().unwrap_or_default().to_string_lossy();
        // The model checker's tests are in the library's own test program, so the filter names them.
        let name = if self.meetings_only { asked.filter.trim_end_matches(':') } else { asked.target };
        TestProgram {
            name: format!("{package} {name}"),
            program: program.to_owned(),
            directory: directory.to_owned(),
            filter: asked.filter,
            except: asked.except,
            preemptions: asked.preemptions,
            meetings_only: self.meetings_only,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn judges_are_found_among_what_cargo_made() {
        let text = r#"
{"reason":"compiler-artifact","manifest_path":"/w/crates/stage2/Cargo.toml","target":{"name":"twofold_stage2"},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/w/crates/stage2/Cargo.toml","target":{"name":"sequences"},"executable":"/t/sequences-1"}
{"reason":"compiler-artifact","manifest_path":"/w/crates/machine/Cargo.toml","target":{"name":"strict"},"executable":"/t/strict-1"}
{"reason":"compiler-artifact","manifest_path":"/w/crates/machine/Cargo.toml","target":{"name":"trace"},"executable":"/t/trace-1"}
{"reason":"build-finished","success":true}"#;
        let judges = BUILDS[0].judges_of(text);
        let names: Vec<_> = judges.iter().map(|judge| (judge.name.as_str(), judge.filter)).collect();
        assert_eq!(names, [("machine strict", "judge_"), ("stage2 sequences", "")]);
        assert_eq!(judges[1].directory, std::path::Path::new("/w/crates/stage2"));
    }
}
