// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands for all of the RAM of guests, in pieces of [`sweep`](crate::vm::sweep).

use twofold_abi::channel::Reason;
use twofold_vmm::session::Asked;

use super::{All, UnderWay, done, refuse};
use crate::channel;
use crate::vm::Vm;
use crate::vm::sweep::{Sweep, Unswept};

/// A command for the RAM of guests, which was carried out in part.
pub(super) struct Sweeping {
    asked: Asked,
    sweep: Sweep,
    /// The guest, and the page of its RAM that is next.
    guest: usize,
    page: u64,
    /// What was found in this guest.
    found: u64,
    /// Whether it was carried out on one, or why not on the last one.
    carried_out: Result<bool, Unswept>,
}

impl Sweeping {
    /// Before the first piece.
    pub(super) fn begin(asked: Asked, sweep: Sweep) -> Self {
        let guest = asked.guest().map_or(0, usize::from);
        Self { asked, sweep, guest, page: 0, found: 0, carried_out: Ok(false) }
    }

    /// A piece. `None`: it was the last one, and the command is answered.
    pub(super) fn piece(mut self, guests: All) -> Option<UnderWay> {
        let Some(vm) =
            guests.0.get(self.guest).filter(|_| self.asked.guest().is_none_or(|one| one == self.guest as u16))
        else {
            match self.carried_out {
                Ok(_) => done(self.asked),
                Err(why) => refuse_sweep(self.asked, &why),
            }
            return None;
        };
        match vm.sweep(self.sweep, self.page) {
            Ok(swept) => {
                self.found += swept.found;
                if let Some(next) = swept.next {
                    self.page = next;
                    return Some(UnderWay::Sweep(self));
                }
                if self.sweep == Sweep::Start {
                    (self.sweep, self.page) = (Sweep::Protect, 0);
                    return Some(UnderWay::Sweep(self));
                }
                self.send(vm);
                self.carried_out = Ok(true);
            }
            Err(why)
                if self.asked.guest().is_none() && self.page == 0 && self.sweep != Sweep::Protect && why.is_state() =>
            {
                // Another guest may be in a state for it.
                if !matches!(self.carried_out, Ok(true)) {
                    self.carried_out = Err(why);
                }
            }
            Err(why) => {
                refuse_sweep(self.asked, &why);
                return None;
            }
        }
        if self.sweep == Sweep::Protect {
            self.sweep = Sweep::Start;
        }
        (self.guest, self.page, self.found) = (self.guest + 1, 0, 0);
        Some(UnderWay::Sweep(self))
    }

    /// Sends what was found in a guest.
    fn send(&self, vm: &Vm) {
        let found = match self.sweep {
            Sweep::Start | Sweep::Protect => return,
            Sweep::Collect => "dirty.found",
            Sweep::Split => "split.blocks",
            Sweep::Coalesce => "coalesce.blocks",
        };
        let collected = vm.collected().filter(|_| self.sweep == Sweep::Collect);
        let _ = channel::with_session(|session, launcher| {
            let mut figure = |key, value| self.asked.figure(Some(self.guest as u16), key, value, session, launcher);
            figure(found, self.found);
            if let Some(collected) = collected {
                figure("dirty.pages", collected);
            }
        });
    }
}

pub(super) fn refuse_sweep(asked: Asked, why: &Unswept) {
    let reason = if why.is_state() { Reason::State } else { Reason::Failed };
    refuse(asked, reason, format_args!("{why}"));
}
