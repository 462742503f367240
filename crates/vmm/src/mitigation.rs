// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What mitigates weaknesses of speculation, as the machine's firmware reports it (Arm DEN0028, SMCCC_ARCH_FEATURES of the
//! workarounds), and what follows from it for a guest and for a switch between guests.
//!
//! Firmware answers for the CPU that asks. It alone knows which CPUs are affected; this module has no list of CPUs. A machine
//! whose firmware has no such calls says nothing: then ID_AA64PFR0_EL1.CSV2 and CSV3, and SSBS, are what a guest can know,
//! and it reads them itself.
//!
//! | firmware's answer | branch target (1), branch history (3) | store bypass (2) |
//! |---|---|---|
//! | 0 | the CPU needs the call | the CPU needs the mitigation, and the call switches it |
//! | 1 | the CPU is not affected | the CPU is not affected |
//! | -2 | (not defined) | no CPU is affected |
//! | anything else | unknown, and the call must not be made | the same |
//!
//! A guest's vCPU may move, so a guest is answered for all CPUs together ([`Needs::and`]).
//!
//! * **Branch target and branch history**: the call is made when a CPU changes from the tables of one guest to those of
//!   another ([`Tables`]), and for each guest that makes it. The call for the history mitigates the target too, so it is the
//!   only one on a CPU that needs both.
//! * **Store bypass**: a state of the CPU, which would have to follow each vCPU. So the mitigation is switched on before the
//!   first guest, and stays on. A guest is answered that it need not do anything.
//!
//! Invariant: no call is made on a CPU whose firmware has not announced it there.

use crate::calls::{Mitigation, Workaround};

/// What one CPU needs, or several together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    branch_target: Answer,
    store_bypass: Answer,
    branch_history: Answer,
}

/// Firmware's answer on one workaround.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    NotNeeded,
    Unknown,
    Needed,
}

impl Needs {
    /// Firmware says nothing.
    pub const UNKNOWN: Self =
        Self { branch_target: Answer::Unknown, store_bypass: Answer::Unknown, branch_history: Answer::Unknown };

    /// What a CPU needs. `features` returns firmware's answer to SMCCC_ARCH_FEATURES there, `None` if it has no such call.
    pub fn ask(mut features: impl FnMut(Workaround) -> Option<i32>) -> Self {
        let mut answer = |workaround| match (features(workaround), workaround) {
            (Some(0), _) => Answer::Needed,
            (Some(1), _) | (Some(NOT_REQUIRED), Workaround::StoreBypass) => Answer::NotNeeded,
            _ => Answer::Unknown,
        };
        Self {
            branch_target: answer(Workaround::BranchTarget),
            store_bypass: answer(Workaround::StoreBypass),
            branch_history: answer(Workaround::BranchHistory),
        }
    }

    /// What this CPU and another need together.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        use Answer::{Needed, NotNeeded, Unknown};
        // A guest that calls loses nothing on a CPU where that is unknown.
        let called = |one, another| match (one, another) {
            (Needed, _) | (_, Needed) => Needed,
            (Unknown, _) | (_, Unknown) => Unknown,
            (NotNeeded, NotNeeded) => NotNeeded,
        };
        // The mitigation that stays on is not there on a CPU where it is unknown.
        let stays = |one, another| match (one, another) {
            (Unknown, _) | (_, Unknown) => Unknown,
            (Needed, _) | (_, Needed) => Needed,
            (NotNeeded, NotNeeded) => NotNeeded,
        };
        Self {
            branch_target: called(self.branch_target, other.branch_target),
            store_bypass: stays(self.store_bypass, other.store_bypass),
            branch_history: called(self.branch_history, other.branch_history),
        }
    }

    /// What a guest is answered that runs on these CPUs.
    #[must_use]
    pub fn for_guest(&self, workaround: Workaround) -> Mitigation {
        match (self.of(workaround), workaround) {
            (Answer::Unknown, _) => Mitigation::Unknown,
            (Answer::NotNeeded, _) | (Answer::Needed, Workaround::StoreBypass) => Mitigation::NotNeeded,
            (Answer::Needed, _) => Mitigation::Call,
        }
    }

    /// Whether a guest's call is passed on to the firmware of this one CPU.
    #[must_use]
    pub fn passes_on(&self, workaround: Workaround) -> bool {
        workaround != Workaround::StoreBypass && self.of(workaround) == Answer::Needed
    }

    /// Whether the mitigation against store bypass is switched on for good on this one CPU.
    #[must_use]
    pub fn store_bypass_stays_on(&self) -> bool {
        self.store_bypass == Answer::Needed
    }

    /// The call between two guests on this one CPU.
    fn between_guests(&self) -> Option<Workaround> {
        let needed = |workaround: &Workaround| self.of(*workaround) == Answer::Needed;
        [Workaround::BranchHistory, Workaround::BranchTarget].into_iter().find(needed)
    }

    fn of(&self, workaround: Workaround) -> Answer {
        match workaround {
            Workaround::BranchTarget => self.branch_target,
            Workaround::StoreBypass => self.store_bypass,
            Workaround::BranchHistory => self.branch_history,
        }
    }
}

const NOT_REQUIRED: i32 = smccc::arch::error::NOT_REQUIRED;

/// The guest's tables that one CPU loaded last.
#[derive(Clone, Copy, Debug)]
pub struct Tables {
    /// Their number, which is not that of another guest's; 0: none.
    last: u64,
    between: Option<Workaround>,
}

impl Tables {
    /// None, on a CPU with these needs.
    #[must_use]
    pub fn new(needs: &Needs) -> Self {
        Self { last: 0, between: needs.between_guests() }
    }

    /// The tables with this number, which is not 0, are about to be loaded. If they are another guest's than the last ones,
    /// `workaround` gets the call that is needed in between. Returns whether they are others than the last ones.
    #[inline(always)]
    pub fn load(&mut self, number: u64, workaround: impl FnOnce(Workaround)) -> bool {
        let changes = self.last != number;
        if changes {
            // Before its first guest, a CPU has learned nothing from another one.
            if let Some(between) = self.between.filter(|_| self.last != 0) {
                workaround(between);
            }
            self.last = number;
        }
        changes
    }
}
