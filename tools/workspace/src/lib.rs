// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `xtask` and the tools beside it share: the checkout, and what is built, fetched and started in it.
//!
//! This crate judges nothing. It has these layers, and a file imports only from files of its own layer or above:
//!
//! | files | concept |
//! |---|---|
//! | [`output`], [`table`], [`mod@file`] | what a command prints, writes and reads |
//! | [`workspace`], [`subprocess`], [`cargo`], [`steps`] | the checkout's paths; other programs; what Cargo reports; the lines of a command's steps |
//! | [`install`], [`apt`], [`firmware`], [`initramfs`] | missing tools; Debian's packages for guests, and its firmware; a guest's first file system |
//! | [`kernels`], [`fetch`], [`packages`], [`root`], [`disk`] | Debian's kernels; the guest of most runs; packages without their scripts; a root file system; the disk of a run |
//! | [`build`], [`static_program`], [`linux_module`], [`linux_bm`] | the bare-metal images; programs that are one static file; the Linux module; a Linux that runs `bm` |
//! | [`guest`], [`commands`], [`boot`], [`kvm_host`] | the choice of a guest; commands that a Linux runs; a guest under the hypervisor; a Linux at EL2 that runs KVM |
//!
//! Invariant: all output is below `target/`. A program that was started here has ended when the call returns.

pub mod apt;
pub mod boot;
pub mod build;
pub mod cargo;
pub mod commands;
pub mod disk;
pub mod fetch;
pub mod file;
pub mod firmware;
pub mod guest;
pub mod initramfs;
pub mod install;
pub mod kernels;
pub mod kvm_host;
pub mod linux_bm;
pub mod linux_module;
pub mod output;
pub mod packages;
pub mod root;
pub mod static_program;
pub mod steps;
pub mod subprocess;
pub mod table;
pub mod workspace;

pub use workspace::Workspace;
