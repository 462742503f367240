// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The suite `el2`: the tests in the image `el2-tests`, each in a QEMU of its own.
//!
//! The image lists its tests when its command line is `list`, and runs one for `run=NAME`. Invariant: a test
//! passes only when QEMU's exit status and the image's own line both say so.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, bail};
use libtest_mimic::{Failed, Trial};
use twofold_launch::{Launch, Loaded, Machine, Outcome, Qemu, Verdict, machine};

use super::{Tally, harness};
use crate::arguments::TestOptions;
use crate::build;
use crate::install;
use crate::workspace::Workspace;

/// Runs the suite; it is quick as a whole.
pub fn run(workspace: &Workspace, options: &TestOptions) -> anyhow::Result<Tally> {
    install::target()?;
    let image = Arc::new(Image { workspace: workspace.clone(), qemu: install::qemu()? });
    build::images(workspace, &[build::EL2_TESTS])?;
    let listed = image.run("list", |_| Ok(()))?;
    let tests = listed.control.tests;
    if tests.is_empty() {
        bail!("the test image lists no test");
    }
    let trials = tests.into_iter().map(|name| {
        let image = Arc::clone(&image);
        Trial::test(name.clone(), move || image.test(&name).map_err(|error| Failed::from(format!("{error:#}"))))
    });
    Ok(harness(trials.collect(), PARALLEL, options))
}

/// QEMUs at a time: each has two CPUs to itself.
const PARALLEL: usize = 2;
/// A limit against hangs; a test takes about a second.
const LIMIT: Duration = Duration::from_secs(60);

struct Image {
    workspace: Workspace,
    qemu: Qemu,
}

impl Image {
    fn test(&self, name: &str) -> anyhow::Result<()> {
        let passed = |outcome: &Outcome| {
            if outcome.control.passed.iter().any(|passed| passed == name) {
                return Ok(());
            }
            Err(anyhow!("the image ended well, but without saying that {name} passed"))
        };
        self.run(&format!("run={name}"), passed).map(drop)
    }

    /// Boots the image; its logs become part of the error when it does not end well or `check` refuses it.
    fn run(&self, append: &str, check: impl FnOnce(&Outcome) -> anyhow::Result<()>) -> anyhow::Result<Outcome> {
        let directory = tempfile::Builder::new().prefix("el2-").tempdir_in(self.workspace.runs()?)?;
        let machine = Machine {
            image: self.workspace.image(build::EL2_TESTS.name),
            loaded: Loaded::Nothing,
            append: Some(append.to_owned()),
            cpu: machine::CPU_DEFAULT.to_owned(),
            cpus: 2,
            deterministic: false,
        };
        let launch = Launch {
            qemu: &self.qemu,
            machine: &machine,
            directory: directory.path(),
            timeout: Some(LIMIT),
            stop: self.workspace.stop().clone(),
        };
        let judged =
            launch.run(|_| ()).map_err(anyhow::Error::from).and_then(|outcome| match Verdict::new(&outcome, false) {
                Verdict::Ok => check(&outcome).map(|()| outcome),
                verdict => Err(anyhow!("{verdict}")),
            });
        judged.map_err(|error| anyhow!("{error:#}{}", logs(directory.path())))
    }
}

fn logs(directory: &Path) -> String {
    use twofold_launch::run::{CONSOLE_LOG, CONTROL_LOG};
    let mut text = String::new();
    for name in [CONTROL_LOG, CONSOLE_LOG] {
        let log = fs::read(directory.join(name)).unwrap_or_default();
        if !log.is_empty() {
            text.push_str(&format!("\n--- {name}\n{}", String::from_utf8_lossy(&log).trim_end()));
        }
    }
    text
}
