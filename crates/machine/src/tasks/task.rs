// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest's task is to the machine: a sequence of steps, each with at most one access to memory and a cost.
//!
//! Invariant: a step is drawn once. If its access faults, the same step is repeated, by the same instruction, until its
//! access completes.

use super::time::Nanos;

/// A task of the guest.
pub trait Task {
    /// The next step; `None` when the task ends.
    fn step(&mut self) -> Option<Step>;
}

/// One step of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The address of the instruction that makes the access.
    pub pc: u64,
    /// How the task runs meanwhile.
    pub privilege: Privilege,
    /// The access.
    pub access: Access,
    /// The virtual time that the step takes once its access completes.
    pub cost: Nanos,
}

/// An access to the guest's memory, in words of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// None.
    No,
    /// Reads the word.
    Load {
        /// Its address.
        at: u64,
    },
    /// Writes the word.
    Store {
        /// Its address.
        at: u64,
        /// The new value.
        value: u64,
    },
    /// Adds to the word: a load and a store.
    Add {
        /// Its address.
        at: u64,
        /// What is added.
        value: u64,
    },
}

/// How a task runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// At EL0.
    User,
    /// At EL1 on the task's behalf: it may sleep.
    Kernel,
    /// At EL1 with pre-emption off: it takes interrupts, and may not sleep.
    Atomic,
    /// At EL1 with interrupts masked.
    Masked,
}

impl Privilege {
    /// Whether the scheduler may take the vCPU away from the task.
    pub fn may_sleep(self) -> bool {
        matches!(self, Self::User | Self::Kernel)
    }

    /// The exception level, as an announcement names it.
    pub fn level(self) -> u32 {
        u32::from(self != Self::User)
    }

    /// The PSTATE of the task.
    pub fn pstate(self) -> u64 {
        match self {
            Self::User => super::lines::pstate::USER,
            Self::Kernel | Self::Atomic => super::lines::pstate::KERNEL,
            Self::Masked => super::lines::pstate::MASKED,
        }
    }
}
