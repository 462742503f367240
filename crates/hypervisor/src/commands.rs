// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The launcher's commands (`docs/control.md`): the work of the control channel's task, in pieces.
//!
//! The task is woken by the port's interrupt, and reads until there is nothing more. So it costs nothing while the launcher
//! is silent.

use twofold_abi::channel::{GuestState, Reason};
use twofold_vmm::session::Guests;

use crate::channel::{self, Polled};
use crate::schedule::cpu::Progress;
use crate::vm::Vm;

/// What is done for the launcher.
pub(crate) struct Commands {
    guests: All,
}

/// The guests as the launcher sees them.
struct All(&'static [Vm]);

impl Commands {
    pub(crate) fn new(guests: &'static [Vm]) -> Self {
        Self { guests: All(guests) }
    }

    /// A piece of the work.
    pub(crate) fn work(&mut self) -> Progress {
        match channel::poll(&self.guests) {
            Polled::Nothing => return Progress::Finished,
            Polled::More => {}
            Polled::Command(asked) => {
                let _ = channel::with_session(|session, launcher| {
                    asked.refused(Reason::Failed, format_args!("this hypervisor has no commands"), session, launcher);
                });
            }
        }
        Progress::More
    }
}

impl Guests for All {
    fn count(&self) -> u16 {
        self.0.len() as u16
    }

    fn state(&self, guest: u16) -> GuestState {
        match self.0.get(usize::from(guest)) {
            Some(vm) if !vm.has_stopped() => GuestState::Running,
            _ => GuestState::Off,
        }
    }
}
