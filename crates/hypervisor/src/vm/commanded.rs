// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a launcher's commands do to a guest, by the steps of [`life`](crate::life). The guest's life decides first: a command
//! that does not fit it has no effect.

use core::fmt;

use twofold_abi::channel::GuestState;
use twofold_abi::exit;
use twofold_vmm::life::{NotNow, State};
use twofold_vmm::restart::Why;

use super::Vm;
use crate::restart::Guest;
use crate::virtio::Around;
use crate::{schedule, tick};

/// A guest that a command has ended.
#[must_use = "the guest is still counted as one that runs"]
pub(crate) struct Quit<'a>(&'a Vm);

/// Why a guest cannot be asked for its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoBalloon {
    has_ended: bool,
}

impl fmt::Display for NoBalloon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.has_ended { "the guest does not run" } else { "the guest has no balloon" })
    }
}

impl Quit<'_> {
    /// If it was the last guest, this reports, and exits.
    pub(crate) fn end(self) {
        self.0.report();
        self.0.last_words(("quit", exit::POWER_OFF));
    }
}

impl Vm {
    /// Whether a command to stop is under way.
    pub(crate) fn is_stopping(&self) -> bool {
        self.life.change(|life, _| life.is_stopping())
    }

    /// The guest's counter, and for how long it has stood still.
    pub(crate) fn counter(&self) -> (u64, u64) {
        self.life.change(|life, now| (life.counter(now), life.stood_still(now)))
    }

    /// For how many ticks its vCPUs ran, and could run and had no CPU.
    pub(crate) fn times(&self) -> (u64, u64) {
        schedule::times(self.vcpus.iter().map(|vcpu| vcpu.entity))
    }

    /// The command to stop: H1 and H2. The vCPUs leave; [`settle`](Self::settle) finds when they have left.
    pub(crate) fn stop(&self) -> Result<(), NotNow> {
        self.life.change(|life, _| life.stop())?;
        self.devices.gic.kick_all();
        Ok(())
    }

    /// H4 and H5, if a command to stop is under way. Returns whether it waits for a vCPU that is about to leave its CPU.
    pub(crate) fn settle(&self) -> bool {
        if self.life.change(|life, _| life.state()) != State::Stopping {
            return false;
        }
        if self.has_turns() {
            return true;
        }
        if self.life.change(|life, now| life.vcpus_left(now)) {
            self.announce();
        }
        false
    }

    /// The command to continue: G1 and G2.
    pub(crate) fn go_on(&self) -> Result<(), NotNow> {
        tick::wait();
        self.life.change(|life, now| life.go_on(now))?;
        self.announce();
        for vcpu in &self.vcpus {
            schedule::wake(vcpu.entity);
        }
        self.devices.virtio.go_on();
        Ok(())
    }

    /// The command to reset. The guest begins anew, whether or not its own resets end it.
    pub(crate) fn reset_by_command(&self) -> Result<(), NotNow> {
        self.life.change(|life, _| life.reset())?;
        self.begin_anew(Why::ColdReset);
        Ok(())
    }

    /// The command to keep this number of bytes of RAM.
    pub(crate) fn keep(&self, bytes: u64) -> Result<(), NoBalloon> {
        let has_ended = matches!(self.state(), GuestState::Off | GuestState::Failed | GuestState::Reset);
        if has_ended || !self.devices.virtio.keep(bytes, Around { vm: self, here: None }) {
            return Err(NoBalloon { has_ended });
        }
        Ok(())
    }

    /// The command to quit. Its vCPUs stop. What is left to do is the answer's, which comes before the image may end.
    pub(crate) fn quit(&self) -> Result<Quit<'_>, NotNow> {
        self.life.change(|life, _| life.quit())?;
        self.devices.gic.kick_all();
        Ok(Quit(self))
    }
}
