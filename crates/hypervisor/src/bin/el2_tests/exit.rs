// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The outcome of an access that does not succeed, as data.

use core::fmt;

use twofold_hypervisor::read_sysreg;
use twofold_hypervisor::translate::{Translation, translate};
use twofold_stage2::Ipa;
use twofold_stage2::fault::{Fault, ipa_from_hpfar};

/// How the guest's access failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Stage 2 stopped it.
    Fault(Stopped),
    /// The guest took an exception to its own EL1.
    Exception(Exception),
    /// An exit that no test provokes.
    Unexpected {
        /// ESR_EL2.
        esr: u64,
        /// The guest's PC.
        pc: u64,
    },
}

/// A stage-2 fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// The fault by the syndrome.
    pub fault: Fault,
    /// The page of the fault.
    pub ipa: Ipa,
    /// ESR_EL2.
    pub esr: u64,
    /// FAR_EL2.
    pub far: u64,
}

/// An exception at EL1, as the guest's registers describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exception {
    /// The offset of the vector.
    pub vector: u64,
    /// ESR_EL1.
    pub esr: u64,
    /// FAR_EL1.
    pub far: u64,
    /// ELR_EL1.
    pub elr: u64,
}

impl Exit {
    /// Reads the registers of an exit that is not a call of the agent.
    pub fn read(esr: u64, pc: u64) -> Self {
        let far = read_sysreg!(FAR_EL2);
        let stopped = Fault::from_syndrome(esr).and_then(|fault| {
            let hpfar = fault.hpfar_is_valid().then(|| ipa_from_hpfar(read_sysreg!(HPFAR_EL2)));
            let ipa = hpfar.or_else(|| match translate(far, |_| None) {
                Translation::Page(ipa) => Some(ipa),
                Translation::Aborted(_) | Translation::Unmapped => None,
            });
            Some(Stopped { fault, ipa: ipa?, esr, far })
        });
        stopped.map_or(Self::Unexpected { esr, pc }, Self::Fault)
    }
}

impl Exception {
    /// The exception that was just taken through the vector at this offset.
    pub fn read(vector: u64) -> Self {
        Self { vector, esr: read_sysreg!(ESR_EL1), far: read_sysreg!(FAR_EL1), elr: read_sysreg!(ELR_EL1) }
    }

    /// The exception class (ESR_EL1.EC).
    pub fn class(&self) -> u64 {
        self.esr >> 26 & 0x3f
    }

    /// The fault status code (ESR_EL1.xFSC).
    pub fn status(&self) -> u64 {
        self.esr & 0x3f
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the guest's access failed: {self:x?}")
    }
}

impl core::error::Error for Exit {}
