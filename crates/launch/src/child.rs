// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A child that does not outlive its parent, however the parent ends; and what such a child inherits.
//!
//! A parent that is killed by SIGKILL runs no more code, so the kernel must end the child (`prctl(2)`,
//! PR_SET_PDEATHSIG). Invariant: the signal is set before the child's program starts.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Makes the kernel kill the child that `command` starts when the thread that starts it ends. That thread must
/// therefore wait for the child.
///
/// The child's own children are not killed with it, and a program that gains privileges (`sudo`) loses the signal.
pub fn dies_with_parent(command: &mut Command) {
    let parent = getpid();
    let bind = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // If the parent ended before the line above, the kernel sends no signal.
        if getppid() == Some(parent) { Ok(()) } else { Err(io::Error::from(io::ErrorKind::NotFound)) }
    };
    // SAFETY: between fork and exec only async-signal-safe functions may be called. `bind` makes two system calls; it neither
    // allocates nor locks.
    unsafe { command.pre_exec(bind) };
}

/// Hands `descriptor` to the child that `command` starts, under its number. No other child inherits it: in this process it
/// stays closed on exec. It is closed when `command` is dropped.
pub fn inherits(command: &mut Command, descriptor: OwnedFd) {
    let inherit = move || fcntl_setfd(&descriptor, FdFlags::empty()).map_err(io::Error::from);
    // SAFETY: between fork and exec only async-signal-safe functions may be called. `inherit` makes one system call; it
    // neither allocates nor locks.
    unsafe { command.pre_exec(inherit) };
}
