// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A vCPU as data: what a virtual machine keeps of it, and a turn changes.
//!
//! Invariant: the registers are those of the guest whenever the lock around a [`Vcpu`] is free.

use alloc::boxed::Box;

use twofold_vmm::scheduler::EntityId;

use super::pages::{Around, Pages};
use super::stolen::Stolen;
use super::time::Timers;
use crate::experiment::{ExitObserver, Observer};
use crate::gic::guest::Waiting;
use crate::swap::Swap;
use crate::switch::State;
use crate::vm::Vm;

/// A vCPU that no CPU has, or that is in its turn.
pub struct Vcpu {
    pub(super) registers: State,
    pub(super) own: Own,
}

/// What a vCPU has beside its registers.
pub(super) struct Own {
    pub(super) timers: Timers,
    /// A read of the interrupt controller that waits for other CPUs.
    pub(super) waiting: Option<Waiting>,
    pub(super) observer: Observer,
    pub(super) power: Power,
    pub(super) stolen: Stolen,
    /// Its absent pages, if its guest has a store.
    pub(super) pages: Option<Box<Pages>>,
}

/// The state of a vCPU, as far as its next turn depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Power {
    /// Its registers have no meaning: it begins when it is switched on.
    Off,
    On,
    /// It waits in CPU_SUSPEND.
    Suspended,
    /// It is on or suspended, comes from elsewhere, and has had no turn here.
    Arrived,
}

/// Why a turn ends. It fits into a register, because each exit returns one or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// The CPU does something else: [`ThisCpu::next`].
    Preempted,
    /// The vCPU waits for an interrupt.
    Wait,
    /// The vCPU waits for a page.
    Page,
    /// The vCPU has waited for a page while it was loaded, and the CPU does something else: [`ThisCpu::next`].
    Rested,
    /// The vCPU is off, or its guest has stopped.
    Stop,
}

impl Vcpu {
    /// vCPU `index`, which is off, and which the scheduler calls `entity`. `swap` is its guest's.
    #[must_use]
    pub fn new(index: usize, entity: EntityId, swap: Option<&Swap>) -> Self {
        let (observer, stolen) = (Observer::vcpu_starts(index), Stolen::new(index, entity));
        let pages = swap.map(Pages::new);
        let own = Own { timers: Timers::default(), waiting: None, observer, power: Power::Off, stolen, pages };
        Self { registers: State::new(0, 0), own }
    }

    /// Switches it off, for a guest that begins anew.
    pub(crate) fn switch_off(&mut self, vm: &Vm, index: usize) {
        self.own.power = Power::Off;
        if let (Some(pages), Some(swap)) = (&mut self.own.pages, vm.swap()) {
            pages.off(&mut Around::unloaded(vm, swap, index));
        }
        self.own.stolen.reset();
    }
}
