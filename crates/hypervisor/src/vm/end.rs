// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a guest ends, and what is said of it.
//!
//! The others go on. The image ends with the last guest.

use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use twofold_abi::exit;
use twofold_vmm::life::State;
use twofold_vmm::name::Name;

use super::{GUESTS, Vm, all};
use crate::{control, power, schedule, shutdown, stats};

/// How a guest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The guest switched itself off.
    PowerOff,
    /// The guest asked for a reset.
    Reset,
}

impl Vm {
    /// The guest has ended itself. Its vCPUs stop. If it was the last guest, this reports, and exits.
    pub(crate) fn end(&self, end: End) {
        if !self.life.change(|life, _| life.changes_itself(Some(State::Off))) {
            return;
        }
        self.report();
        self.last_words(match end {
            End::PowerOff => ("power-off", exit::POWER_OFF),
            End::Reset => ("reset", exit::RESET),
        });
    }

    /// The guest cannot continue, for a reason that is not a defect of EL2. Its vCPUs stop; if it was the last guest, the
    /// image ends.
    pub(crate) fn stop_for(&self, why: fmt::Arguments) {
        if !self.life.change(|life, _| life.changes_itself(Some(State::Failed))) {
            return;
        }
        control::error(format_args!("the guest{} cannot go on: {why}", self.called()));
        self.last_words(("error", exit::CANNOT_START));
    }

    /// Neither this guest nor another one can continue.
    pub(crate) fn fail(&self, why: fmt::Arguments) -> ! {
        fail(why)
    }

    pub(super) fn report(&self) {
        if let Some(vendor) = &self.vendor {
            vendor.report(self);
        }
        self.refusals.report(control::log);
    }

    /// This guest has ended: the others go on, or the image ends.
    pub(super) fn last_words(&self, (how, status): (&str, i32)) {
        self.devices.gic.kick_all();
        self.announce();
        let left = GUESTS.get().map_or(1, |guests| guests.left.fetch_sub(1, Ordering::AcqRel));
        if left > 1 {
            control::log(format_args!("guest{}: {how}", self.called()));
            self.release.begin();
            return schedule::wake(self.task);
        }
        shutdown::guests_have_ended();
        stats::report(&all().iter().map(Self::figures).collect::<Vec<_>>());
        control::end(how);
        shutdown::exit(status)
    }

    /// Its name, if there are several.
    pub(super) fn called(&self) -> Called {
        Called((all().len() > 1).then_some(self.name))
    }
}

/// A guest's name in a message, with a space before it.
pub(super) struct Called(Option<Name>);

impl fmt::Display for Called {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(name) => write!(f, " {name:?}"),
            None => Ok(()),
        }
    }
}

/// No guest can continue. One CPU says why, and ends the image.
pub(super) fn fail(why: fmt::Arguments) -> ! {
    static END: AtomicBool = AtomicBool::new(false);
    if END.swap(true, Ordering::AcqRel) {
        power::park();
    }
    control::error(format_args!("the guest cannot go on: {why}"));
    control::end("error");
    shutdown::exit(exit::CANNOT_START)
}
