// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The platform of the tests: the real instructions, one kind of which can be left out.
//!
//! So the engine's own operation runs twice, once complete and once with one step missing; only where the second run
//! goes wrong does the first one prove anything. What is executed is recorded, for what this machine cannot show.

use alloc::vec::Vec;
use core::arch::asm;
use core::cell::{Cell, RefCell};
use core::ptr::NonNull;

use twofold_stage2::arm64::{Arm64, IdentityMap};
use twofold_stage2::platform::{Dc, Domain, Ic, Platform, Tlbi};
use twofold_stage2::{Pa, Record, Records};

/// What is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOut {
    /// Everything is.
    Nothing,
    /// TLB invalidations of any kind.
    EveryTlbi,
    /// Those of stage-2 entries, by IPA or by range.
    Stage2Tlbi,
    /// Those of stage-1 and combined entries.
    CombinedTlbi,
    /// The broadcast: they reach this CPU only.
    Broadcast,
    /// The loading of the guest's VTTBR.
    VttbrSwitch,
}

/// A TLB invalidation that was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Executed {
    /// The operation.
    pub operation: Tlbi,
    /// Whose entries it named: VTTBR_EL2.
    pub vttbr: u64,
}

/// The instructions of this CPU, but for those that are left out.
pub struct Omit {
    arm64: Arm64<IdentityMap>,
    left_out: Cell<LeftOut>,
    executed: RefCell<Vec<Executed>>,
}

impl Omit {
    /// The platform with nothing left out.
    ///
    /// # Safety
    ///
    /// As [`IdentityMap::new`]. Who leaves something out takes care that no stale entry leads to memory that is
    /// anything but a frame of that guest's.
    pub unsafe fn new(records: Records) -> Self {
        // SAFETY: promised by the caller.
        let arm64 = Arm64::new(unsafe { IdentityMap::new(records) });
        Self { arm64, left_out: Cell::new(LeftOut::Nothing), executed: RefCell::default() }
    }

    /// Leaves this out from now on.
    pub fn leave_out(&self, what: LeftOut) {
        self.left_out.set(what);
    }

    /// The invalidations that were executed since this was last asked.
    pub fn take_executed(&self) -> Vec<Executed> {
        self.executed.take()
    }

    fn execute(&self, operation: Tlbi, operand: u64) {
        self.executed.borrow_mut().push(Executed { operation, vttbr: self.arm64.vttbr() });
        self.arm64.tlbi(operation, operand);
    }

    /// The same operation for this CPU alone. A single page's is all that has a name in the engine; for the others a
    /// wider one will do, since what it does too many is not on the CPU that a test looks at.
    fn execute_locally(&self, operation: Tlbi, operand: u64) {
        match operation {
            Tlbi::Ipas2E1 | Tlbi::Ipas2E1Is | Tlbi::Ipas2Le1Is => self.execute(Tlbi::Ipas2E1, operand),
            Tlbi::VmallE1 | Tlbi::VmallE1Is => self.execute(Tlbi::VmallE1, operand),
            Tlbi::Ripas2E1Is | Tlbi::Ripas2Le1Is | Tlbi::VmallS12E1Is => {
                // SAFETY: invalidating more of this CPU's TLB than needed changes no memory.
                unsafe { asm!("tlbi vmalls12e1", options(nostack, preserves_flags)) };
            }
        }
    }
}

// SAFETY: everything but TLB invalidations and VTTBR is forwarded to `Arm64`, which is a platform; `new` says what
// follows from leaving those out.
unsafe impl Platform for Omit {
    fn tlbi(&self, operation: Tlbi, operand: u64) {
        let combined = matches!(operation, Tlbi::VmallE1 | Tlbi::VmallE1Is | Tlbi::VmallS12E1Is);
        match self.left_out.get() {
            LeftOut::EveryTlbi => {}
            // One instruction for both kinds; what is left is the other half.
            LeftOut::Stage2Tlbi if operation == Tlbi::VmallS12E1Is => self.execute(Tlbi::VmallE1Is, 0),
            LeftOut::Stage2Tlbi if !combined => {}
            LeftOut::CombinedTlbi if combined => {}
            LeftOut::Broadcast => self.execute_locally(operation, operand),
            _ => self.execute(operation, operand),
        }
    }

    fn dsb(&self, domain: Domain) {
        self.arm64.dsb(domain);
    }

    fn isb(&self) {
        self.arm64.isb();
    }

    unsafe fn dc(&self, operation: Dc, address: usize) {
        // SAFETY: promised by the caller.
        unsafe { self.arm64.dc(operation, address) };
    }

    fn ic(&self, operation: Ic, address: usize) {
        self.arm64.ic(operation, address);
    }

    fn vttbr(&self) -> u64 {
        self.arm64.vttbr()
    }

    fn load_vttbr(&self, value: u64) {
        if self.left_out.get() != LeftOut::VttbrSwitch {
            self.arm64.load_vttbr(value);
        }
    }

    fn pointer(&self, pa: Pa) -> NonNull<u8> {
        self.arm64.pointer(pa)
    }

    fn record(&self, pa: Pa) -> &Record {
        self.arm64.record(pa)
    }
}
