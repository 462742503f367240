// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask coverage`: which lines of `stage2` and `memory` the tests on the host execute.
//!
//! The compiler inserts the counters (`-C instrument-coverage`); the toolchain's own `llvm-cov` reads them. Invariant:
//! lines of tests are not counted, and the exit status is 0 only if each crate reaches [`LEAST`].

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use syn::spanned::Spanned;
use twofold_launch::Stop;
use twofold_workspace::steps::Steps;
use twofold_workspace::{Workspace, install, output, subprocess, table};

use crate::arguments::CoverageOptions;

/// The crates that are measured.
const CRATES: [&str; 2] = ["crates/stage2", "crates/memory"];
/// The percentage of each crate's lines that the tests must execute.
const LEAST: f64 = 90.0;
/// A file that is not compiled for the host, so its lines are not counted.
const ELSEWHERE: &str = "crates/stage2/src/arm64.rs";
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

/// `cargo xtask coverage`.
pub fn command(workspace: &Workspace, options: &CoverageOptions) -> anyhow::Result<ExitCode> {
    let tools = tools()?;
    let steps = Steps::new(Stop::clone(workspace.stop()));
    let measured = Measured { workspace, tools, directory: workspace.coverage() };
    let programs = steps.step("build", || {
        let programs = measured.build()?;
        let words = format!("{} test programs", programs.len());
        Ok((programs, words))
    })?;
    steps.step("tests", || Ok((measured.run()?, String::new())))?;
    let files = steps.step("read", || Ok((measured.read(&programs)?, String::new())))?;
    if let Some(directory) = &options.html {
        measured.html(&programs, directory)?;
    }
    output::line(&format!("\n{}", shown(&files)))?;
    output::line(&format!("\nnot counted: {ELSEWHERE}, which is not compiled for this machine, and the tests"))?;
    let mut good = true;
    for name in CRATES {
        let total = total(&files, name);
        output::line(&format!("{name}: {} of {} lines, {:.1} %", total.covered, total.lines, total.percent()))?;
        good &= total.percent() >= LEAST;
    }
    if !good {
        output::error(&format!("the tests execute less than {LEAST} % of a crate's lines"));
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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

struct Measured<'a> {
    workspace: &'a Workspace,
    tools: PathBuf,
    directory: PathBuf,
}

impl Measured<'_> {
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
    fn build(&self) -> anyhow::Result<Vec<PathBuf>> {
        #[derive(Deserialize)]
        struct Message {
            executable: Option<PathBuf>,
        }
        let mut command = self.cargo();
        command.args(["--no-run", "--message-format", "json-render-diagnostics"]);
        // Build scripts are instrumented too; their counts are discarded.
        command.env("LLVM_PROFILE_FILE", "/dev/null");
        let text = subprocess::read(&mut command)?;
        let messages = text.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok());
        Ok(messages.filter_map(|message| message.executable).collect())
    }

    /// Runs the tests, and adds up the counts of all processes.
    fn run(&self) -> anyhow::Result<()> {
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
    fn read(&self, programs: &[PathBuf]) -> anyhow::Result<BTreeMap<String, Lines>> {
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

    fn html(&self, programs: &[PathBuf], directory: &Path) -> anyhow::Result<()> {
        let mut command = self.llvm_cov("show", programs);
        command.arg("-format=html").arg(format!("-output-dir={}", directory.display())).stderr(Stdio::null());
        subprocess::quiet(&mut command)?;
        output::line(&format!("each line with its count: {}", directory.join("index.html").display()))
    }
}

/// The execution count of each line of a file.
#[derive(Debug, Default)]
struct Lines {
    counts: BTreeMap<usize, u64>,
}

/// The number of lines, and of executed lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Total {
    lines: usize,
    covered: usize,
}

impl Total {
    fn percent(self) -> f64 {
        if self.lines == 0 { 0.0 } else { 100.0 * self.covered as f64 / self.lines as f64 }
    }
}

impl Lines {
    fn total(&self) -> Total {
        Total { lines: self.counts.len(), covered: self.counts.values().filter(|count| **count > 0).count() }
    }

    /// The lines that were not executed: `12 15-17`.
    fn missed(&self) -> String {
        let mut ranges: Vec<RangeInclusive<usize>> = Vec::new();
        let mut before = None;
        for (line, count) in &self.counts {
            if *count == 0 {
                match ranges.last_mut() {
                    // Lines without code do not end a range.
                    Some(last) if before == Some(*last.end()) => *last = *last.start()..=*line,
                    _ => ranges.push(*line..=*line),
                }
            }
            before = Some(*line);
        }
        let shown = |range: &RangeInclusive<usize>| match (range.start(), range.end()) {
            (start, end) if start == end => start.to_string(),
            (start, end) => format!("{start}-{end}"),
        };
        ranges.iter().map(shown).collect::<Vec<_>>().join(" ")
    }
}

/// Reads `SF:` and `DA:` of the lcov format. Returns the files below `root`, by their paths relative to it.
fn lines(lcov: &str, root: &Path) -> BTreeMap<String, Lines> {
    let mut files: BTreeMap<String, Lines> = BTreeMap::new();
    let mut file = None;
    for line in lcov.lines() {
        if let Some(path) = line.strip_prefix("SF:") {
            let name = Path::new(path).strip_prefix(root).ok().map(|path| path.to_string_lossy().into_owned());
            file = name.filter(|name| name != ELSEWHERE);
        } else if let (Some(file), Some((number, count))) =
            (&file, line.strip_prefix("DA:").and_then(|data| data.split_once(',')))
            && let (Ok(number), Ok(count)) = (number.parse(), count.parse::<u64>())
        {
            *files.entry(file.clone()).or_default().counts.entry(number).or_default() += count;
        }
    }
    files
}

/// Returns the line ranges of tests: modules and functions under `#[cfg(test)]`.
fn test_lines(text: &str) -> anyhow::Result<Vec<RangeInclusive<usize>>> {
    let file = syn::parse_file(text)?;
    let tests = file.items.iter().filter_map(|item| match item {
        syn::Item::Mod(module) => is_test(&module.attrs).then(|| module.span()),
        syn::Item::Fn(function) => is_test(&function.attrs).then(|| function.span()),
        _ => None,
    });
    Ok(tests.map(|span| span.start().line..=span.end().line).collect())
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let condition = attribute.parse_args::<syn::Path>();
        attribute.path().is_ident("cfg") && condition.is_ok_and(|condition| condition.is_ident("test"))
    })
}

fn total(files: &BTreeMap<String, Lines>, name: &str) -> Total {
    let of = files.iter().filter(|(file, _)| Path::new(file).starts_with(name));
    of.map(|(_, lines)| lines.total())
        .fold(Total::default(), |a, b| Total { lines: a.lines + b.lines, covered: a.covered + b.covered })
}

fn shown(files: &BTreeMap<String, Lines>) -> String {
    let rows = files.iter().map(|(file, lines)| {
        let total = lines.total();
        let (percent, missed) = (format!("{:.1}", total.percent()), lines.missed());
        vec![file.clone(), total.lines.to_string(), total.covered.to_string(), percent, missed]
    });
    table::with_numbers(&["file", "lines", "covered", "%", "not covered"], rows, 1..4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LCOV: &str = "SF:/w/crates/stage2/src/a.rs\nFN:3,name\nDA:3,1\nDA:4,0\nDA:6,0\nDA:7,2\nDA:9,0\nend_of_record\n\
        SF:/w/crates/stage2/src/arm64.rs\nDA:1,0\nend_of_record\nSF:/elsewhere/b.rs\nDA:1,0\nend_of_record\n\
        SF:/w/crates/memory/src/a.rs\nDA:1,5\nend_of_record\n";

    #[test]
    fn lines_are_counted_by_file_and_crate() {
        let files = lines(LCOV, Path::new("/w"));
        assert_eq!(files.keys().collect::<Vec<_>>(), ["crates/memory/src/a.rs", "crates/stage2/src/a.rs"]);
        assert_eq!(total(&files, "crates/stage2"), Total { lines: 5, covered: 2 });
        assert_eq!(total(&files, "crates/memory").percent(), 100.0);
        assert_eq!(total(&files, "crates/stage").percent(), 0.0);
        assert_eq!(files["crates/stage2/src/a.rs"].missed(), "4-6 9");
    }

    #[test]
    fn tests_are_known_by_their_condition() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nmod c {}\n";
        assert_eq!(test_lines(text).unwrap(), [2..=5]);
    }
}
