// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A vCPU's stolen time: the model of `twofold_devices`, fed with the scheduler's count.
//!
//! The scheduler counts from the wake-up on ([`schedule::wake`]), and from the decision that takes the CPU away, to the
//! next one that gives the vCPU a CPU. A vCPU that is off, or waits in WFI or CPU_SUSPEND, is blocked there, so nothing is
//! counted. A vCPU whose WFI does not trap keeps its CPU.
//!
//! A vCPU of a guest that is stopped may be in a queue, and then the scheduler counts. A stop moves the guest's counters. So
//! if their offset is another one than at the last turn, nothing that was counted since then is stolen.
//!
//! Invariant: a guest that has not asked for the service costs a turn one load and one branch, and an exit nothing.

use core::num::NonZeroU64;

use twofold_abi::pv_time::structure;
use twofold_abi::virt::STOLEN_TIME_BASE;
use twofold_devices::{StateError, StolenTime};
use twofold_vmm::scheduler::EntityId;

use crate::granule::Memory;
use crate::guest_ram::Ram;
use crate::{read_sysreg, schedule};

/// The stolen time of one vCPU.
pub(super) struct Stolen {
    /// `None`: the machine's counter has no frequency, so no time can be reported.
    model: Option<StolenTime>,
    /// The guest has asked for it.
    is_asked: bool,
    entity: EntityId,
    /// How far the guest's counters were behind the machine's in the last turn.
    offset: u64,
}

impl Stolen {
    /// That of vCPU `index`, whose guest has not asked for it.
    pub(super) fn new(index: usize, entity: EntityId) -> Self {
        let area = STOLEN_TIME_BASE + index as u64 * structure::SIZE;
        let frequency = NonZeroU64::new(read_sysreg!(CNTFRQ_EL0));
        let model = frequency.and_then(|frequency| StolenTime::new(area, frequency).ok());
        Self { model, is_asked: false, entity, offset: 0 }
    }

    /// T1a. `offset` is how far the guest's counters are behind the machine's.
    #[inline(always)]
    pub(super) fn turn_begins(&mut self, memory: &Memory, offset: u64) {
        if self.is_asked {
            self.write(memory, offset);
        }
    }

    #[inline(never)]
    fn write(&mut self, memory: &Memory, offset: u64) {
        let Some(model) = &mut self.model else { return };
        let count = schedule::stolen(self.entity);
        if offset != self.offset {
            self.offset = offset;
            model.skip(count);
        }
        // If the page is absent, a later turn writes the value of that time.
        let _absent = model.enter(count, &Ram::new(memory));
    }

    pub(super) fn is_available(&self) -> bool {
        self.model.is_some()
    }

    /// The guest asks for the structure of this vCPU, which makes the call. Returns its address. `offset` as above.
    pub(super) fn ask(&mut self, memory: &Memory, offset: u64) -> Option<u64> {
        self.offset = offset;
        let model = self.model.as_mut()?;
        let area = model.ask(schedule::stolen(self.entity), &Ram::new(memory));
        self.is_asked = model.is_asked();
        area
    }

    /// The state, for a guest that goes elsewhere; `None` if no time can be reported here.
    pub(super) fn state(&self) -> Option<[u8; StolenTime::STATE_SIZE]> {
        self.model.as_ref().map(StolenTime::state)
    }

    /// Takes the state of a vCPU that comes from elsewhere. What is counted until its first turn here is not stolen: the
    /// guest's counters have another offset then.
    pub(super) fn restore(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        let none = StateError::Impossible("stolen time, which this machine cannot report");
        let frequency = NonZeroU64::new(read_sysreg!(CNTFRQ_EL0)).ok_or(none)?;
        let model = StolenTime::from_state(bytes, frequency, schedule::stolen(self.entity))?;
        self.is_asked = model.is_asked();
        self.model = Some(model);
        Ok(())
    }

    /// The guest begins anew.
    pub(super) fn reset(&mut self) {
        if let Some(model) = &mut self.model {
            model.reset();
            self.is_asked = false;
        }
    }
}
