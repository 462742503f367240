// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The paths of this checkout.
//!
//! Invariant: all build output, fetched files and logs are below `target/`, and paths are absolute.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use twofold_launch::Stop;

/// The checkout, and the request to stop.
#[derive(Clone, Debug)]
pub struct Workspace {
    root: PathBuf,
    target: PathBuf,
    command: PathBuf,
    stop: Stop,
}

impl Workspace {
    /// Finds the checkout: Cargo sets its path, else it is the current directory or above it.
    pub fn find(stop: Stop) -> anyhow::Result<Self> {
        let here = env::current_dir().context("the current directory is gone")?;
        let manifest = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
        let start = manifest.as_deref().unwrap_or(&here);
        let Some(root) = start.ancestors().find(|path| path.join("xtask").join("Cargo.toml").is_file()) else {
            bail!("this is not a checkout of Twofold; change to one and call `cargo xtask` there");
        };
        let target = match env::var_os("CARGO_TARGET_DIR") {
            Some(path) if !path.is_empty() => here.join(path),
            _ => root.join("target"),
        };
        // The path is read now: Cargo may replace the running program (`test` builds the workspace), and the path
        // remains valid.
        let command = env::current_exe().context("cannot find this program's own file")?;
        Ok(Self { root: root.to_owned(), target, command, stop })
    }

    /// The top of the checkout.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The path of this program.
    pub fn command(&self) -> &Path {
        &self.command
    }

    /// The request to stop.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Returns `path` for display: relative to the top of the checkout, if it is below it.
    pub fn shown<'a>(&self, path: &'a Path) -> &'a Path {
        path.strip_prefix(&self.root).unwrap_or(path)
    }

    /// Cargo's directories for programs that contain mutants.
    pub fn mutants(&self) -> PathBuf {
        self.target.join("mutants")
    }

    /// Cargo's directory for instrumented programs, with their counts.
    pub fn coverage(&self) -> PathBuf {
        self.target.join("coverage")
    }

    /// The images, and Cargo's directory for them.
    pub fn images(&self) -> PathBuf {
        self.target.join("image")
    }

    /// The image of a program: `twofold`, `el2-tests` or `guest`.
    pub fn image(&self, name: &str) -> PathBuf {
        self.images().join(format!("{name}.img"))
    }

    /// The cache of files fetched for guests.
    pub fn guest_cache(&self) -> PathBuf {
        match env::var_os("TWOFOLD_GUEST_CACHE") {
            Some(path) if !path.is_empty() => self.root.join(path),
            _ => self.target.join("guest"),
        }
    }

    /// The disks of guests, which are kept from run to run.
    pub fn disks(&self) -> anyhow::Result<PathBuf> {
        let path = self.target.join("disks");
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }

    /// The files for release, and Cargo's directory for them.
    pub fn dist(&self) -> PathBuf {
        self.target.join("dist")
    }

    /// The cache of peers' sources, and the programs built from them.
    pub fn peers(&self) -> PathBuf {
        self.target.join("peers")
    }

    /// The recorded writes of Redis.
    pub fn recording(&self) -> PathBuf {
        self.target.join("redis.rounds")
    }

    /// The logs of the latest run, and the directories of current runs.
    pub fn runs(&self) -> anyhow::Result<PathBuf> {
        let path = self.target.join("run");
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }
}
