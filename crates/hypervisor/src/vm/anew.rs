// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a guest begins anew, and how what an ended one had is released: the steps of [`restart`] and of [`release`] on a
//! guest.

use twofold_abi::{bundle, exit, virt};
use twofold_memory::{Error, HUGE_PAGE};
use twofold_stage2::{Ipa, IpaRange};
use twofold_vmm::restart::Why;

use super::Vm;
use super::end::End;
use crate::restart::Piece;
use crate::schedule::cpu::Progress;
use crate::{control, release, restart, schedule, swap};

impl Vm {
    /// The guest asks for a reset. It begins anew, if the bundle says so; otherwise it ends.
    pub(crate) fn reset(&self, why: Why) {
        if self.flags & bundle::flags::RESTART == 0 {
            return self.end(End::Reset);
        }
        if self.life.change(|life, _| life.changes_itself(None)) {
            self.begin_anew(why);
        }
    }

    /// The guest's life is *anew*: its vCPUs stop, and its task restarts it.
    pub(super) fn begin_anew(&self, why: Why) {
        control::log(format_args!("guest{}: reset", self.called()));
        self.restart.begin(why);
        self.devices.gic.kick_all();
        self.announce();
        schedule::wake(self.task);
    }

    /// A piece of the work of a restart, or of the release of what an ended guest had.
    pub(crate) fn restart(&self) -> Progress {
        match self.release.work(self) {
            Ok(Some(progress)) => return progress,
            Ok(None) => {}
            Err(error) => control::error(format_args!("the memory of the ended guest{} stays: {error}", self.called())),
        }
        self.restart.work(self).unwrap_or_else(|error| {
            if self.life.change(|life, _| life.cannot_begin()) {
                control::error(format_args!("the guest{} cannot begin anew: {error}", self.called()));
                self.last_words(("error", exit::CANNOT_START));
            }
            // The release.
            Progress::More
        })
    }

    /// Gives up the pages of `range`, whose content is not needed: what is in the store need not come. Returns the part that
    /// is done, which is shorter than `range` if an interrupt came.
    fn forget_pages(&self, range: IpaRange) -> Result<IpaRange, Error> {
        if self.swap.is_none() {
            return Ok(range);
        }
        let given_up = self.memory.give_up(range.clone())?;
        Ok(range.start..given_up.end)
    }

    /// The piece of a restart that ended with `done`, the number of bytes it handled. A page that has to come first is asked
    /// for, and wakes the restart's task.
    fn or_awaits(&self, done: Result<u64, Error>) -> Result<Piece, Error> {
        match done {
            Ok(bytes) => Ok(Piece::Part(bytes)),
            Err(error @ Error::Absent { page, .. }) => {
                self.memory.bring(page, swap::RESTART).map_err(|_| error)?;
                self.pages_asked_for();
                Ok(Piece::Awaited)
            }
            Err(error) => Err(error),
        }
    }
}

impl restart::Guest for Vm {
    fn is_anew(&self) -> bool {
        self.life.change(|life, _| life.is_anew())
    }

    fn has_turns(&self) -> bool {
        // A vCPU's lock is free only between two turns, and a turn that begins after this looked sees that the guest has
        // stopped. So it is with the I/O task's, and with a piece of a sweep.
        let vcpus = self.vcpus.iter().any(|vcpu| vcpu.state.try_lock().is_none());
        vcpus || self.devices.virtio.has_turn() || self.sweeps.has_turn()
    }

    fn clear_ram(&self, offset: u64, most: u64) -> Result<Piece, Error> {
        let size = self.restart.ram_size();
        if offset >= size {
            let start = Ipa::new(virt::STOLEN_TIME_BASE);
            self.memory.clear(self.stolen, start..start + virt::STOLEN_TIME_SIZE)?;
            return Ok(Piece::Last);
        }
        let start = Ipa::new(virt::RAM_BASE) + offset;
        let forgotten = self.forget_pages(start..start + most.min(size - offset));
        self.or_awaits(forgotten.and_then(|range| {
            let bytes = range.end - range.start;
            self.memory.clear(self.ram, range).map(|()| bytes)
        }))
    }

    fn write(&self, at: Ipa, bytes: &[u8]) -> Result<Piece, Error> {
        self.or_awaits(self.memory.write(at, bytes).map(|()| bytes.len() as u64))
    }

    fn reset_devices(&self) {
        self.devices.reset(&self.memory);
    }

    fn invalidate(&self) {
        self.memory.stage2().invalidate_all();
    }

    fn begin_again(&self) {
        for (index, vcpu) in self.vcpus.iter().enumerate() {
            vcpu.state.lock().switch_off(self, index);
        }
        self.power.lock().restart();
        let runs = self.life.change(|life, now| life.has_begun(now));
        self.announce();
        if runs == Some(true) {
            schedule::wake(self.vcpus[0].entity);
            self.devices.virtio.go_on();
        }
    }
}

impl release::Ended for Vm {
    fn has_turns(&self) -> bool {
        restart::Guest::has_turns(self)
    }

    fn release_ram(&self, offset: u64) -> Result<bool, Error> {
        let start = Ipa::new(virt::RAM_BASE) + offset;
        if let Some(beyond) = offset.checked_sub(self.restart.ram_size().next_multiple_of(HUGE_PAGE)) {
            if let Some(flash) = self.flash.filter(|_| beyond < virt::FLASH_SIZE) {
                let start = Ipa::new(virt::FLASH_BASE) + beyond;
                self.memory.release(flash, start..start + HUGE_PAGE)?;
                return Ok(true);
            }
            let start = Ipa::new(virt::STOLEN_TIME_BASE);
            self.memory.release(self.stolen, start..start + virt::STOLEN_TIME_SIZE)?;
            return Ok(false);
        }
        self.memory.release(self.ram, start..start + HUGE_PAGE)?;
        Ok(true)
    }

    fn release_tables(&self) {
        let left = self.memory.release_tables();
        control::log(format_args!("guest{}: its memory is free, but {} MiB", self.called(), (left * HUGE_PAGE) >> 20));
    }
}
