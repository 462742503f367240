// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The platform of the tests: the real instructions, of which one kind can be left out.
//!
//! So a test runs the engine's own operation twice: once complete, and once with one step left out. Only if the second
//! run goes wrong does the first one prove anything. The executed invalidations are recorded, for the cases that this
//! machine's behaviour cannot show.

use alloc::vec::Vec;
use core::arch::asm;
use core::cell::{Cell, RefCell};
use core::ptr::NonNull;

use twofold_stage2::arm64::{Arm64, FrameMap, IdentityMap};
use twofold_stage2::platform::{Dc, Domain, Ic, Platform, Tlbi};
use twofold_stage2::{MetadataMap, Pa, TableMetadata, Vmids};

/// The instructions that are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOut {
    /// None.
    Nothing,
    /// All TLB invalidations.
    EveryTlbi,
    /// TLB invalidations of stage-2 entries, by IPA or by range.
    Stage2Tlbi,
    /// TLB invalidations of stage-1 and combined entries.
    CombinedTlbi,
    /// The broadcast: invalidations reach only this CPU.
    Broadcast,
    /// The load of the guest's VTTBR.
    VttbrSwitch,
}

/// A TLB invalidation that was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Executed {
    /// The operation.
    pub operation: Tlbi,
    /// VTTBR_EL2: it names the guest whose entries were invalidated.
    pub vttbr: u64,
}

/// The instructions of this CPU, except those that are left out.
pub struct Omit<M = IdentityMap> {
    arm64: Arm64<M>,
    left_out: Cell<LeftOut>,
    executed: RefCell<Vec<Executed>>,
}

impl Omit {
    /// A platform with nothing left out.
    ///
    /// # Safety
    ///
    /// As [`IdentityMap::new`]. A caller of [`leave_out`](Self::leave_out) must ensure that stale entries lead only to
    /// frames of that guest.
    pub unsafe fn new(metadata: MetadataMap) -> Self {
        // SAFETY: promised by the caller.
        unsafe { Self::over(IdentityMap::new(metadata)) }
    }
}

impl<M: FrameMap> Omit<M> {
    /// The same over this map of frames.
    ///
    /// # Safety
    ///
    /// As [`new`](Omit::new), for a caller of [`leave_out`](Self::leave_out).
    pub unsafe fn over(frames: M) -> Self {
        Self { arm64: Arm64::new(frames), left_out: Cell::new(LeftOut::Nothing), executed: RefCell::default() }
    }

    /// Leaves these instructions out from now on.
    pub fn leave_out(&self, what: LeftOut) {
        self.left_out.set(what);
    }

    /// Returns the invalidations executed since the last call.
    pub fn take_executed(&self) -> Vec<Executed> {
        self.executed.take()
    }

    fn execute(&self, operation: Tlbi, operand: u64) {
        self.executed.borrow_mut().push(Executed { operation, vttbr: self.arm64.vttbr() });
        self.arm64.tlbi(operation, operand);
    }

    /// Executes the same operation for this CPU alone. The engine has a local operation only for a single page. For the
    /// others a wider one is enough: its excess does not affect the CPU under test.
    fn execute_locally(&self, operation: Tlbi, operand: u64) {
        match operation {
            Tlbi::Ipas2E1 | Tlbi::Ipas2E1Is | Tlbi::Ipas2Le1Is => self.execute(Tlbi::Ipas2E1, operand),
            Tlbi::VmallE1 | Tlbi::VmallE1Is => self.execute(Tlbi::VmallE1, operand),
            Tlbi::Ripas2E1Is | Tlbi::Ripas2Le1Is | Tlbi::VmallS12E1Is => {
                // SAFETY: invalidating more of this CPU's TLB than needed changes no memory.
                unsafe { asm!("tlbi vmalls12e1", options(nostack, preserves_flags)) };
            }
            // SAFETY: as above.
            Tlbi::Alle1Is => unsafe { asm!("tlbi alle1", options(nostack, preserves_flags)) },
        }
    }
}

// SAFETY: everything except TLB invalidations and VTTBR is forwarded to `Arm64`, which is a platform; `new` states the
// condition for leaving those out.
unsafe impl<M: FrameMap> Platform for Omit<M> {
    fn tlbi(&self, operation: Tlbi, operand: u64) {
        let combined = matches!(operation, Tlbi::VmallE1 | Tlbi::VmallE1Is | Tlbi::VmallS12E1Is);
        match self.left_out.get() {
            LeftOut::EveryTlbi => {}
            // This one instruction invalidates both kinds, so the other half of it remains.
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

    fn metadata(&self, pa: Pa) -> &TableMetadata {
        self.arm64.metadata(pa)
    }

    fn vmids(&self) -> Option<&Vmids<'_>> {
        self.arm64.vmids()
    }
}
