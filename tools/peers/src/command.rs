// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command `peers`.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use twofold_workspace::Workspace;

use crate::{kvm, linux};

/// Options of `peers`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The peer to measure
    #[command(subcommand)]
    pub peer: Peer,
}

/// A project whose code is measured beside ours.
#[derive(Clone, Debug, Subcommand)]
pub enum Peer {
    /// KVM's stage-2 page-table code, from Debian's package linux-source-6.12, timed on this machine
    #[command(after_help = linux::HELP)]
    Linux(linux::Options),
    /// KVM itself, at EL2 in QEMU: the kernel's own selftests in Debian's kernel, instructions counted
    #[command(after_help = kvm::HELP)]
    Kvm(kvm::Options),
}

/// `cargo xtask peers`.
pub fn command(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    match &options.peer {
        Peer::Linux(options) => linux::command(workspace, options),
        Peer::Kvm(options) => kvm::command(workspace, options),
    }
}
