// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds the tests with counters, runs them, and reads the counts.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use twofold_workspace::{Workspace, cargo, install, output, subprocess};

use super::lines::{CRATES, Lines, lines, test_lines};

/// The tests of the crates, and of the hosted machine, which runs the crates.
const TESTS: [&str; 8] = [
    "--package",
    "twofold-stage2",
    "--package",
    "twofold-memory",
    "--package",
    "twofold-machine",
    "--features",
    "twofold-stage2/checked,twofold-memory/baselines,twofold-machine/strict",
];

/// A measurement of the tests.
pub struct Measured<'a> {
    workspace: &'a Workspace,
    /// The directory of the toolchain's LLVM tools.
    tools: PathBuf,
    directory: PathBuf,
}

impl<'a> Measured<'a> {
    /// Prepares a measurement. Installs the toolchain's LLVM tools if they are missing.
    pub fn new(workspace: &'a Workspace) -> anyhow::Result<Self> {
        Ok(Self { workspace, tools: tools()?, directory: workspace.coverage() })
    }

    fn cargo(&self) -> Command {
        let mut command = Command::new("cargo");
        command.current_dir(self.workspace.root()).args(["test", "--lib", "--tests"]).args(TESTS);
        command.env("RUSTFLAGS", "-C instrument-coverage").env("CARGO_TARGET_DIR", &self.directory);
        // Each process writes a file of its own.
        command.env("LLVM_PROFILE_FILE", self.profiles().join("%p-%m.profraw")).env("RUST_BACKTRACE", "0");
        // At level 1 each count still belongs to one source line, and the tests are fast enough.
        command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
        command
    }

    fn profiles(&self) -> PathBuf {
        self.directory.join("profiles")
    }

    fn merged(&self) -> PathBuf {
        self.directory.join("merged.profdata")
    }

    /// Builds the tests; returns the paths of the test programs.
    pub fn build(&self) -> anyhow::Result<Vec<PathBuf>> {
        let mut command = self.cargo();
        command.args(["--no-run", "--message-format", "json-render-diagnostics"]);
        // Build scripts are instrumented too; their counts are discarded.
        command.env("LLVM_PROFILE_FILE", "/dev/null");
        let text = subprocess::read(&mut command)?;
        Ok(cargo::executables(&text).map(|made| made.file).collect())
    }

    /// Runs the tests, and adds up the counts of all processes.
    pub fn run(&self) -> anyhow::Result<()> {
        let profiles = self.profiles();
        // Profiles of an earlier run belong to other programs.
        let _ = fs::remove_dir_all(&profiles);
        fs::create_dir_all(&profiles).with_context(|| format!("cannot make {}", profiles.display()))?;
        subprocess::quiet(&mut self.cargo())?;
        let mut merge = Command::new(self.tools.join("llvm-profdata"));
        merge.args(["merge", "-sparse"]).arg(&profiles).arg("-o").arg(self.merged());
        subprocess::quiet(&mut merge)
    }

    fn llvm_cov(&self, what: &str, programs: &[PathBuf]) -> Command {
        let mut command = Command::new(self.tools.join("llvm-cov"));
        command.arg(what).arg(format!("-instr-profile={}", self.merged().display()));
        for (number, program) in programs.iter().enumerate() {
            // The tool takes the first program without an option.
            command.args((number > 0).then_some("-object")).arg(program);
        }
        command.args(CRATES.map(|name| self.workspace.root().join(name).join("src")));
        command
    }

    /// Returns the lines of each file with their counts, without the lines of tests.
    pub fn read(&self, programs: &[PathBuf]) -> anyhow::Result<BTreeMap<String, Lines>> {
        let mut command = self.llvm_cov("export", programs);
        command.arg("-format=lcov").stderr(Stdio::null());
        let mut files = lines(&subprocess::read(&mut command)?, self.workspace.root());
        for (file, lines) in &mut files {
            let path = self.workspace.root().join(file);
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            for tests in test_lines(&text).with_context(|| format!("cannot parse {file}"))? {
                lines.counts.retain(|line, _| !tests.contains(line));
            }
        }
        // A file that holds only tests is left out.
        files.retain(|_, lines| !lines.counts.is_empty());
        if files.is_empty() {
            bail!("llvm-cov reports no line");
        }
        Ok(files)
    }

    /// Writes each line with its count to `directory`, as HTML.
    pub fn html(&self, programs: &[PathBuf], directory: &Path) -> anyhow::Result<()> {
        let mut command = self.llvm_cov("show", programs);
        command.arg("-format=html").arg(format!("-output-dir={}", directory.display())).stderr(Stdio::null());
        subprocess::quiet(&mut command)?;
        output::line(&format!("each line with its count: {}", directory.join("index.html").display()))
    }
}

/// Returns the directory of the toolchain's LLVM tools, and installs them if they are missing.
fn tools() -> anyhow::Result<PathBuf> {
    let libraries = subprocess::read(Command::new("rustc").args(["--print", "target-libdir"]))?;
    let tools = Path::new(libraries.trim()).with_file_name("bin");
    if !tools.join("llvm-cov").is_file() {
        // `component` looks for a subcommand of Cargo. These tools have none, so it always installs them.
        install::component("llvm-tools", "llvm-tools")?;
    }
    ensure!(tools.join("llvm-cov").is_file(), "there is no llvm-cov in {}", tools.display());
    Ok(tools)
}
