// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fuzzes the parsers of untrusted input with cargo-fuzz: the targets of `fuzz/`, starting from the inputs in its
//! corpus.
//!
//! Invariant: a run writes below `target/fuzz` only. With `--keep` it also adds files to `fuzz/corpus`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, bail, ensure};
use twofold_workspace::steps::Steps;
use twofold_workspace::table::thousands;
use twofold_workspace::{Workspace, output, subprocess};

use crate::arguments::FuzzOptions;

/// `cargo xtask fuzz`.
pub fn command(workspace: &Workspace, options: &FuzzOptions) -> anyhow::Result<ExitCode> {
    let fuzz = Fuzz::new(workspace);
    let all = fuzz.targets()?;
    let targets: Vec<_> = match &options.target {
        Some(target) => {
            ensure!(all.contains(target), "there is no target `{target}`; there are {}", all.join(", "));
            vec![target.clone()]
        }
        None => all,
    };
    let steps = Steps::new(workspace.stop().clone());
    steps.step("tools", || Ok(((), tools()?)))?;
    steps.step("build", || {
        subprocess::show(fuzz.cargo("build").args(&options.target))?;
        Ok(((), String::new()))
    })?;
    let mut found = Vec::new();
    for target in &targets {
        let ran = steps.step(target, || {
            let ran = fuzz.run(target, options.seconds)?;
            let kept = if options.keep && ran.crashes.is_empty() { Some(fuzz.keep(target)?) } else { None };
            let words = ran.words(kept);
            Ok((ran, words))
        })?;
        found.extend(ran.crashes.into_iter().map(|input| (target, input)));
    }
    for (target, input) in &found {
        let input = workspace.shown(input).display();
        output::line(&format!(
            "\n{target} fails with {input}. To reproduce it:\n  \
             cargo run --package twofold-fuzz-targets --example replay {target} {input}\n\
             and if that passes, with the sanitizer:\n  \
             cargo +{TOOLCHAIN} fuzz run --fuzz-dir fuzz {target} {input}"
        ))?;
    }
    Ok(if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Only a nightly compiler has the instrumentation.
const TOOLCHAIN: &str = "nightly";
const CARGO_FUZZ: &str = "0.13.1";
/// The longest input in bytes. Longer inputs reach no further code.
const INPUT_MAX: u32 = 4096;
/// An input that takes this long counts as a hang; a good input takes less than a second.
const INPUT_SECONDS: u32 = 30;

/// Installs the toolchain and cargo-fuzz if they are missing; returns their versions.
fn tools() -> anyhow::Result<String> {
    if subprocess::find("rustup").is_none() {
        bail!("rustup is missing, and cargo-fuzz needs a nightly toolchain beside the stable one; install rustup");
    }
    let compiler = || subprocess::read(Command::new("rustup").args(["run", TOOLCHAIN, "rustc", "--version"]));
    if compiler().is_err() {
        install(Command::new("rustup").args(["toolchain", "install", TOOLCHAIN, "--profile", "minimal"]))?;
    }
    let wanted = format!("cargo-fuzz {CARGO_FUZZ}");
    let there = subprocess::read(Command::new("cargo").args(["fuzz", "--version"]));
    if !there.is_ok_and(|version| version.trim() == wanted) {
        install(Command::new("cargo").args(["install", "--locked", "--force", "cargo-fuzz", "--version", CARGO_FUZZ]))?;
    }
    Ok(format!("{wanted}, {}", compiler()?.trim()))
}

fn install(command: &mut Command) -> anyhow::Result<()> {
    let typed = subprocess::shown(command);
    output::line(&format!("missing: running `{typed}`"))?;
    subprocess::show(command).with_context(|| format!("`{typed}` failed; run it by hand to see why"))
}

/// The directories of the fuzz package and of its output.
struct Fuzz {
    source: PathBuf,
    place: PathBuf,
}

/// The result of fuzzing one target.
struct Ran {
    executions: u64,
    corpus: u64,
    /// The files of the inputs that failed.
    crashes: Vec<PathBuf>,
}

impl Fuzz {
    fn new(workspace: &Workspace) -> Self {
        Self { source: workspace.root().join("fuzz"), place: workspace.images().with_file_name("fuzz") }
    }

    fn targets(&self) -> anyhow::Result<Vec<String>> {
        let programs = files(&self.source.join("fuzz_targets"))?;
        Ok(programs.iter().filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect())
    }

    /// Returns a call of cargo-fuzz with `command`, which builds below `target/`.
    fn cargo(&self, command: &str) -> Command {
        let mut cargo = Command::new("cargo");
        cargo.arg(format!("+{TOOLCHAIN}")).args(["fuzz", command, "--fuzz-dir"]).arg(&self.source);
        cargo.arg("--target-dir").arg(self.place.join("build"));
        cargo
    }

    fn run(&self, target: &str, seconds: u32) -> anyhow::Result<Ran> {
        let (artifacts, new) = (self.directory("artifacts", target)?, self.directory("corpus", target)?);
        let before = failures(&artifacts)?;
        let mut fuzz = self.cargo("run");
        // The fuzzer writes new inputs to the first of the two directories.
        fuzz.arg(target).arg(new).arg(self.kept(target)).arg("--").args([
            format!("-max_total_time={seconds}"),
            format!("-max_len={INPUT_MAX}"),
            format!("-timeout={INPUT_SECONDS}"),
            format!("-artifact_prefix={}/", artifacts.display()),
            "-print_final_stats=1".to_owned(),
        ]);
        let output = fuzz.stdin(Stdio::null()).output().context("cargo-fuzz does not start")?;
        let text = String::from_utf8_lossy(&output.stderr);
        let crashes: Vec<_> = failures(&artifacts)?.difference(&before).cloned().collect();
        if !output.status.success() && crashes.is_empty() {
            bail!("{target} ended with {}, and left no input:\n{}", output.status, end(&text));
        }
        let (executions, corpus) = statistics(&text);
        Ok(Ran { executions, corpus, crashes })
    }

    /// Copies the inputs that reach code that the checkout's inputs do not; returns their number.
    fn keep(&self, target: &str) -> anyhow::Result<usize> {
        let kept = self.kept(target);
        let before = files(&kept)?.len();
        let mut merge = self.cargo("run");
        merge.arg(target).arg(&kept).arg(self.directory("corpus", target)?);
        // Inputs count by the code they reach, not by how often: each run of the tests replays the whole corpus.
        subprocess::quiet(merge.args(["--", "-set_cover_merge=1", "-use_counters=0"]))?;
        Ok(files(&kept)?.len() - before)
    }

    fn kept(&self, target: &str) -> PathBuf {
        self.source.join("corpus").join(target)
    }

    fn directory(&self, kind: &str, target: &str) -> anyhow::Result<PathBuf> {
        let path = self.place.join(kind).join(target);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }
}

impl Ran {
    fn words(&self, kept: Option<usize>) -> String {
        let Self { executions, corpus, crashes } = self;
        let crashes = if crashes.is_empty() { "no crash".to_owned() } else { format!("{} crashed", crashes.len()) };
        let kept = kept.map_or_else(String::new, |kept| format!(", {kept} new ones kept in fuzz/corpus"));
        format!("{} executions, corpus of {} inputs, {crashes}{kept}", thousands(*executions), thousands(*corpus))
    }
}

/// Returns the inputs that ended a run.
fn failures(directory: &Path) -> anyhow::Result<BTreeSet<PathBuf>> {
    let fails = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        ["crash-", "leak-", "oom-", "timeout-"].iter().any(|kind| name.starts_with(kind))
    };
    Ok(files(directory)?.into_iter().filter(fails).collect())
}

fn files(directory: &Path) -> anyhow::Result<BTreeSet<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// Returns the executions and the inputs in the corpus from libFuzzer's output; 0 for a figure that it lacks.
fn statistics(text: &str) -> (u64, u64) {
    let executions = text.lines().rev().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    let corpus = text.lines().rev().find_map(|line| line.split_once(" corp: ")?.1.split('/').next());
    let number = |text: Option<&str>| text.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    (number(executions), number(corpus))
}

fn end(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_libfuzzer_says_is_read() {
        let text = "#2\tINITED cov: 4 ft: 5 corp: 1/1b exec/s: 0 rss: 40Mb\n\
                    #836491\tDONE   cov: 44 ft: 363 corp: 90/1652b lim: 4096 exec/s: 52280 rss: 131Mb\n\
                    Done 836491 runs in 16 second(s)\n\
                    stat::number_of_executed_units: 836491\nstat::average_exec_per_sec:     52280\n";
        assert_eq!(statistics(text), (836_491, 90));
        assert_eq!(statistics("error: it does not build"), (0, 0));
    }

    #[test]
    fn a_slow_input_is_no_failure() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["slow-unit-1", "crash-2", "timeout-3"] {
            fs::write(directory.path().join(name), "").unwrap();
        }
        let names: Vec<_> = failures(directory.path()).unwrap().into_iter().collect();
        assert_eq!(names, ["crash-2", "timeout-3"].map(|name| directory.path().join(name)));
    }

    #[test]
    fn there_are_targets_to_find() {
        let workspace = Workspace::find(Default::default()).unwrap();
        let targets = Fuzz::new(&workspace).targets().unwrap();
        assert!(targets.contains(&"engine".to_owned()) && targets.is_sorted(), "{targets:?}");
    }
}
