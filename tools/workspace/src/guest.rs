// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Selects the guest of a run: Debian's Linux, the bare-metal guest, or a kernel of the user's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::ValueEnum;

use crate::build;
use crate::fetch::{self, Versions};
use crate::initramfs;
use crate::linux_module;
use crate::workspace::Workspace;

/// The guest that a command asks for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The guest, where no kernel is given.
    pub choice: Choice,
    /// A kernel of the user's.
    pub kernel: Option<PathBuf>,
    /// An initrd of the user's.
    pub initrd: Option<PathBuf>,
    /// Whether the packages are fetched even if they are in the cache.
    pub refresh: bool,
    /// Whether Debian's Linux loads the module by which tasks sleep on absent pages.
    pub has_module: bool,
}

/// A guest of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Choice {
    /// Linux, or the bare-metal guest if Linux cannot be fetched
    Auto,
    /// Linux, or an error if it cannot be fetched
    Linux,
    /// The bare-metal guest
    Bare,
}

impl Wanted {
    /// Debian's Linux with the built-in initrd.
    pub fn linux() -> Self {
        Self { choice: Choice::Linux, kernel: None, initrd: None, refresh: false, has_module: false }
    }
}

/// The guest that was chosen.
#[derive(Clone, Debug)]
pub struct Selected {
    /// The kind of guest.
    pub kind: Kind,
    /// The kernel.
    pub kernel: PathBuf,
    /// The initrd.
    pub initrd: Option<PathBuf>,
    /// The disk of each guest that has one, by the guest's name.
    pub disks: BTreeMap<String, PathBuf>,
    /// The packages that were fetched for the guest.
    pub versions: Option<Versions>,
    /// A short description for the user.
    pub words: String,
    /// The reason why the bare-metal guest replaced Linux, if it did.
    pub fallback: Option<String>,
}

/// The kinds of guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Debian's kernel.
    Linux,
    /// The bare-metal guest.
    Bare,
    /// The kernel that `--kernel` names.
    Own,
}

/// Returns the wanted guest, and fetches it if needed.
pub fn select(workspace: &Workspace, wanted: &Wanted) -> anyhow::Result<Selected> {
    match (wanted.choice, &wanted.kernel, &wanted.initrd) {
        (Choice::Bare, None, None) => Ok(bare(workspace, "bare-metal guest".to_owned())),
        (Choice::Bare, ..) => {
            bail!("`--guest bare` has a kernel and no initrd of its own; leave out --kernel and --initrd")
        }
        (_, Some(kernel), Some(initrd)) => Ok(own(kernel, Some(initrd.clone()))),
        (_, Some(kernel), None) => {
            let fetched = fetch::fetch(workspace, wanted.refresh)
                .context("no busybox for an initrd (give one with --initrd)")?;
            Ok(own(kernel, Some(initramfs::make(workspace, INITRD, initramfs::GUEST, &fetched.busybox, &BTreeMap::new())?)))
        }
        (guest, None, initrd) => match fetch::fetch(workspace, wanted.refresh) {
            Ok(fetched) => linux(workspace, fetched, wanted),
            Err(error) if workspace.stop().is_requested() => Err(error),
            Err(error) if guest == Choice::Auto && initrd.is_none() => {
                let why = fetch::in_one_line(&error);
                let why = format!("Debian's kernel cannot be fetched: {why}");
                let selected = bare(workspace, format!("bare-metal guest, because {why}"));
                Ok(Selected { fallback: Some(why), ..selected })
            }
            Err(error) => Err(error.context(
                "Debian's kernel cannot be fetched (give one with --kernel, or run the bare-metal guest with --guest bare)",
            )),
        },
    }
}

/// The bare-metal guest.
pub fn bare(workspace: &Workspace, words: String) -> Selected {
    let kernel = workspace.image(build::GUEST.name);
    Selected { kind: Kind::Bare, kernel, initrd: None, disks: BTreeMap::new(), versions: None, words, fallback: None }
}

impl Kind {
    /// The kind's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Linux => "linux",
            Self::Bare => "bare",
            Self::Own => "own",
        }
    }
}

fn linux(workspace: &Workspace, fetched: fetch::Fetched, wanted: &Wanted) -> anyhow::Result<Selected> {
    let initrd = match &wanted.initrd {
        Some(initrd) => initrd.clone(),
        None if wanted.has_module => {
            let files = linux_module::files(workspace)?;
            initramfs::make(workspace, INITRD_WITH_MODULE, initramfs::GUEST, &fetched.busybox, &files)?
        }
        None => initramfs::make(workspace, INITRD, initramfs::GUEST, &fetched.busybox, &BTreeMap::new())?,
    };
    let source = if fetched.cached { "cached" } else { "fetched" };
    let packages: Vec<_> =
        fetched.versions.packages.iter().map(|(package, version)| format!("{package} {version}")).collect();
    Ok(Selected {
        kind: Kind::Linux,
        kernel: fetched.kernel,
        initrd: Some(initrd),
        disks: BTreeMap::new(),
        versions: Some(fetched.versions),
        words: format!("{} ({source})", packages.join(", ")),
        fallback: None,
    })
}

fn own(kernel: &Path, initrd: Option<PathBuf>) -> Selected {
    let words = kernel.display().to_string();
    Selected {
        kind: Kind::Own,
        kernel: kernel.to_owned(),
        initrd,
        disks: BTreeMap::new(),
        versions: None,
        words,
        fallback: None,
    }
}

const INITRD: &str = "initramfs.cpio";
const INITRD_WITH_MODULE: &str = "initramfs-apf.cpio";
