// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `vm`: the command `twofold run` itself, with `attach`, `stat` and `snapshot` from other processes.
//!
//! Invariant: the test waits for what a process says or for its end, never for a time.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, ensure};
use twofold_workspace::{build, subprocess};

use super::machines::Machines;

/// Two guests run. One is stopped, goes on, begins anew and is ended by the monitor, through the run's socket, and the figures
/// say so each time. Then the monitor ends the machine.
pub fn run(machines: &Machines) -> anyhow::Result<()> {
    let runs = tempfile::tempdir()?;
    let twofold = Twofold::new(machines, &runs)?;
    let workspace = machines.workspace();

    let [image, guest] = [build::HYPERVISOR, build::GUEST].map(|program| program.image(workspace));
    let mut run =
        twofold.command(["run", "--name", "one", "--append", "pace=1000", "--memory", "64M", "--host-cpus", "2"]);
    run.arg("--image").arg(image).arg("--kernel").arg(guest).args(["--guest", "name=two", "--timeout", "900"]);
    let mut run = Running(run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn()?);
    let mut lines = BufReader::new(run.0.stdout.take().context("no standard output")?).lines();
    for prefix in ["[one] pace: ", "[two] pace: "] {
        let line = lines.find(|line| line.as_ref().is_ok_and(|line| line.starts_with(prefix)));
        line.with_context(|| format!("the run ended without a line {prefix}"))??;
    }
    ensure!(twofold.states()? == "one=running two=running", "{}", twofold.states()?);
    let monitor = |line: &str| twofold.said(["attach", "one", "--command", line]);
    ensure!(monitor("stop")?.1 == "stop: done\n");
    ensure!(twofold.states()? == "one=stopped two=running", "{}", twofold.states()?);
    let (is_done, refused) = monitor("stop")?;
    ensure!(!is_done && refused.starts_with("stop: refused: "), "{refused}");
    ensure!(monitor("cont")?.1 == "cont: done\n");
    let (is_done, refused) = monitor("dirty")?;
    ensure!(!is_done && refused.starts_with("dirty: refused: ") && refused.contains("does not run"), "{refused}");
    ensure!(monitor("dirty start two")?.1 == "dirty start: done\n");
    ensure!(monitor("dirty start")?.1 == "dirty start: done\n");
    let (_, dirty) = monitor("dirty two")?;
    ensure!(dirty.starts_with("dirty: done, ") && dirty.contains(" pages written since the last look, "), "{dirty}");
    let (_, metrics) = twofold.said(["stat", "--openmetrics"])?;
    for line in
        ["twofold_dirty_total{guest=\"one\",kind=\"pages\"} ", "twofold_leaves{guest=\"two\",kind=\"blocks_2m\"} "]
    {
        ensure!(metrics.contains(line), "{line}: {metrics}");
    }
    let (is_done, refused) = monitor("coalesce")?;
    ensure!(!is_done && refused.contains("stop it first"), "{refused}");
    ensure!(monitor("dirty stop")?.1 == "dirty stop: done\n");
    for (line, end) in [("split", " blocks split\n"), ("coalesce", " blocks made\n")] {
        let (_, blocks) = monitor(line)?;
        ensure!(blocks.starts_with(&format!("{line}: done, ")) && blocks.ends_with(end), "{blocks}");
    }
    ensure!(monitor("reset two")?.1 == "reset: done\n");
    ensure!(monitor("quit two")?.1 == "quit: done\n");
    ensure!(twofold.states()? == "one=running two=off", "{}", twofold.states()?);
    let (_, figures) = monitor("stat one")?;
    ensure!(
        figures.starts_with("one: running\n") && figures.contains("\n  exits.") && !figures.contains("two:"),
        "{figures}"
    );
    let (_, metrics) = twofold.said(["stat", "--openmetrics"])?;
    ensure!(
        metrics.contains("twofold_cpu_total{guest=\"one\",kind=\"ran\"} ") && metrics.ends_with("# EOF\n"),
        "{metrics}"
    );
    // A second terminal begins with what the guest wrote lately, and ends with the machine.
    let mut attached = twofold.command(["attach", "one"]);
    let mut attached = Running(attached.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?);
    let mut second = BufReader::new(attached.0.stdout.take().context("no standard output")?).lines();
    second
        .find(|line| line.as_ref().is_ok_and(|line| line.starts_with("pace: ")))
        .context("nothing on a second terminal")??;
    ensure!(monitor("quit")?.1 == "quit: done\n");
    ensure!(second.all(|line| line.is_ok()) && attached.0.wait()?.success(), "attach did not end well");
    lines.try_for_each(|line| line.map(drop))?;
    let status = run.0.wait()?;
    ensure!(status.success(), "twofold run: {status}");
    ensure!(!twofold.said(["stat", "--once"])?.0, "a run that has ended is found");
    Ok(())
}

/// A guest is saved into a file while it runs, and goes on. From the file it goes on again, to the end of its check, in a run
/// that is given nothing else. A file that is cut, or was changed, starts nothing.
pub fn snapshot(machines: &Machines) -> anyhow::Result<()> {
    let runs = tempfile::tempdir()?;
    let twofold = Twofold::new(machines, &runs)?;
    let workspace = machines.workspace();
    let (kernel, initrd) = machines.linux_files()?;
    let image = build::HYPERVISOR.image(workspace);
    let mut run = twofold.command([
        "run",
        "--name",
        "web",
        "--cpus",
        "2",
        "--memory",
        "256M",
        "--net",
        "user",
        "--timeout",
        "900",
    ]);
    run.args(["--append", "console=ttyAMA0 panic=-1 loglevel=7 twofold.stress=5 twofold.check"]);
    run.arg("--image").arg(&image).arg("--kernel").arg(kernel).arg("--initrd").arg(initrd);
    let mut run = Running(run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn()?);
    let mut lines = BufReader::new(run.0.stdout.take().context("no standard output")?).lines();
    let begun = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains(BEGUN)));
    begun.with_context(|| format!("the run ended without a line {BEGUN}"))??;
    let file = runs.path().join("web.snapshot");
    let path = file.to_str().context("a temporary directory with a strange name")?;
    let (is_done, said) = twofold.said(["snapshot", "web", path])?;
    ensure!(is_done && said.starts_with("web: ") && said.contains(" MiB in "), "{said}");
    ensure!(twofold.states()? == "web=running", "{}", twofold.states()?);
    ensure!(!runs.path().join("web.snapshot.partial").exists(), "a part of a snapshot is left");
    let mode = std::fs::metadata(&file)?.permissions().mode() & 0o777;
    ensure!(mode == 0o600, "others may read the guest's memory: {mode:o}");
    ensure!(twofold.said(["attach", "web", "--command", "quit"])?.1 == "quit: done\n");
    lines.try_for_each(|line| line.map(drop))?;
    ensure!(run.0.wait()?.success(), "the guest that was saved did not end well");

    let bytes = std::fs::read(&file)?;
    let go_on = |file: &std::path::Path| {
        let mut run = twofold.command(["run", "--timeout", "900", "--from"]);
        run.arg(file).arg("--image").arg(&image);
        run.output()
    };
    let bad = runs.path().join("bad");
    std::fs::write(&bad, &bytes[..bytes.len() / 2])?;
    let cut = go_on(&bad)?;
    ensure!(!cut.status.success() && String::from_utf8_lossy(&cut.stderr).contains("the stream is cut"), "{cut:?}");
    let mut changed = bytes.clone();
    changed[bytes.len() - 100] ^= 1;
    std::fs::write(&bad, changed)?;
    let changed = go_on(&bad)?;
    let said = String::from_utf8_lossy(&changed.stderr);
    ensure!(!changed.status.success() && said.contains("is no whole snapshot of a guest"), "{changed:?}");
    let ended = go_on(&file)?;
    let said = String::from_utf8_lossy(&ended.stdout);
    ensure!(ended.status.success() && said.contains("guest check: ok"), "{ended:?}");
    ensure!(!said.contains("Booting Linux"), "the guest booted: {said}");
    Ok(())
}

/// Debian's kernel has booted, and the check begins.
const BEGUN: &str = "Run /init as init process";

pub struct Twofold {
    program: PathBuf,
    /// Where runs are found.
    runs: PathBuf,
}

/// A child that is killed and reaped when its owner drops it.
pub struct Running(pub Child);

impl Twofold {
    /// Builds the command. Its runs are found in `runs` alone.
    pub fn new(machines: &Machines, runs: &tempfile::TempDir) -> anyhow::Result<Self> {
        let workspace = machines.workspace();
        let mut cargo = Command::new("cargo");
        // As the suite `host` builds it, so that nothing is built again: `--package` would choose other features of libraries.
        subprocess::quiet(cargo.current_dir(workspace.root()).args(["test", "--no-run", "--test", "command"]))?;
        Ok(Self { program: workspace.root().join("target/debug/twofold"), runs: runs.path().to_owned() })
    }

    pub fn command<const N: usize>(&self, words: [&str; N]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).env("XDG_RUNTIME_DIR", &self.runs);
        command
    }

    /// Whether it ended with 0, and what it printed.
    pub fn said<const N: usize>(&self, words: [&str; N]) -> anyhow::Result<(bool, String)> {
        let output = self.command(words).output()?;
        Ok((output.status.success(), String::from_utf8(output.stdout)?))
    }

    /// Each guest's name and state; empty: there is no run.
    pub fn states(&self) -> anyhow::Result<String> {
        let (is_done, json) = self.said(["stat", "--json", "--once"])?;
        if !is_done && json.is_empty() {
            return Ok(String::new());
        }
        let sample: serde_json::Value = serde_json::from_str(&json).with_context(|| format!("`{json}`"))?;
        let guests = sample["guests"].as_array().context("no guests")?;
        let word = |guest: &serde_json::Value, key: &str| guest[key].as_str().unwrap_or_default().to_owned();
        Ok(guests.iter().map(|guest| word(guest, "name") + "=" + &word(guest, "state")).collect::<Vec<_>>().join(" "))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
