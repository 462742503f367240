// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `vm`: a guest that writes to a disk is moved by the command through a file, and its disk has one owner.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Output, Stdio};

use anyhow::{Context, ensure};
use twofold_workspace::build;

use super::command::{Running, Twofold};
use super::machines::Machines;

/// The guest goes on from the file once, with the disk that it had. Each other use is refused by name.
pub fn disk(machines: &Machines) -> anyhow::Result<()> {
    let runs = tempfile::tempdir()?;
    let twofold = Twofold::new(machines, &runs)?;
    let [image, guest] = [build::HYPERVISOR, build::GUEST].map(|program| program.image(machines.workspace()));
    let path = |name: &str| runs.path().join(name);
    let text = |path: &Path| path.to_str().map(str::to_owned).context("a temporary directory with a strange name");
    let (disk, snapshot) = (text(&path("disk"))?, text(&path("db.snapshot"))?);
    // Its pages are in a store, too.
    let pages = text(&path("pages"))?;
    File::create(&pages)?.set_len(66 << 20)?;
    let record = path("disk.owner");
    File::create(&disk)?.set_len(1 << 20)?;
    let run = |words: &[&str]| {
        let mut run = twofold.command(["run", "--timeout", "900", "--image"]);
        run.arg(&image).args(words);
        run
    };
    let boots = |rounds: &str| {
        let mut run = run(&["--name", "db", "--memory", "64M", "--append", rounds, "--disk", &disk]);
        run.args(["--resident", "2M", "--swap", &pages]);
        run.arg("--kernel").arg(&guest);
        run
    };

    let mut child = Running(boots("busy=40").stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?);
    let mut lines = BufReader::new(child.0.stdout.take().context("no standard output")?).lines();
    let begun = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("busy: round 3")));
    begun.context("the run ended before round 3")??;
    ensure!(!record.exists(), "a disk whose guest has never left has an owner record");
    let refused = twofold.command(["snapshot", "db", &snapshot]).output()?;
    has_failed(&refused, &format!("the guest writes to the disk {disk}"))?;
    ensure!(twofold.states()? == "db=running", "{}", twofold.states()?);
    let (is_done, said) = twofold.said(["snapshot", "--end", "db", &snapshot])?;
    ensure!(is_done && said.starts_with("db: "), "{said}");
    lines.try_for_each(|line| line.map(drop))?;
    ensure!(child.0.wait()?.success(), "the guest that was saved did not end well");
    ensure!(fs::read_to_string(&record)?.contains("epoch 0000000000000000"), "{}", fs::read_to_string(&record)?);

    // Another disk is not the guest's, and neither is a copy of another size.
    File::create(path("other"))?.set_len(1 << 20)?;
    let other = text(&path("other"))?;
    has_failed(&run(&["--from", &snapshot, "--disk", &other]).output()?, "no owner record")?;
    File::options().write(true).open(&other)?.set_len(1 << 19)?;
    has_failed(
        &run(&["--from", &snapshot, "--disk", &other]).output()?,
        "the disk had 2048 sectors, and has 1024 here",
    )?;

    let ended = run(&["--from", &snapshot]).output()?;
    let said = String::from_utf8_lossy(&ended.stdout);
    ensure!(ended.status.success() && said.contains("busy: 40 rounds"), "{ended:?}");
    ensure!(!said.lines().any(|line| line.trim_end().ends_with("round 2")), "the guest began anew: {said}");
    // It has written since.
    has_failed(&run(&["--from", &snapshot]).output()?, "has gone on with the disk")?;

    // This host's guest boots anew, with the next epoch, and no other host's does.
    ensure!(boots("busy=1").output()?.status.success(), "the guest does not boot");
    let mine = fs::read_to_string(&record)?;
    ensure!(mine.contains("epoch 0000000000000002"), "{mine}");
    let line = mine.lines().nth(1).context("the record is short")?;
    fs::write(&record, mine.replace(line, "host 0000000000000bad"))?;
    has_failed(&boots("busy=1").output()?, "belongs to host 0000000000000bad (epoch 2)")
}

fn has_failed(output: &Output, why: &str) -> anyhow::Result<()> {
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success() && said.contains(why), "not refused for {why:?}: {output:?}");
    Ok(())
}
