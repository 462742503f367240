// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine's platform on this CPU, which counts what the engine asks for.
//!
//! Whoever owns the engine owns the counts: they are plain cells, and the engine's lock is theirs.

use core::cell::Cell;
use core::ptr::NonNull;

use twofold_stage2::arm64::{Arm64, IdentityMap};
use twofold_stage2::platform::{Dc, Domain, Ic, Platform, Tlbi};
use twofold_stage2::{Features, IdRegisters, Pa, Record, Records};

use crate::read_sysreg;

/// The instructions of this CPU, counted.
pub struct Counted {
    arm64: Arm64<IdentityMap>,
    counts: InstructionCounts,
}

/// What the engine runs on: counted, and in images with the feature `trace` told of as well.
#[cfg(not(feature = "trace"))]
pub type EnginePlatform = Counted;
/// What the engine runs on: counted, and in images with the feature `trace` told of as well.
#[cfg(feature = "trace")]
pub type EnginePlatform = crate::trace::Traced<Counted>;

/// How often each kind of instruction was executed for the engine.
#[derive(Default)]
pub struct InstructionCounts {
    tlbi: [Cell<u64>; 8],
    dsb: Cell<u64>,
    isb: Cell<u64>,
    lines_cleaned: Cell<u64>,
    lines_invalidated: Cell<u64>,
    icache_all: Cell<u64>,
}

/// The operations, in the order in which they are counted.
const TLBI: [(Tlbi, &str); 8] = [
    (Tlbi::Ipas2E1, "ipas2e1"),
    (Tlbi::Ipas2E1Is, "ipas2e1is"),
    (Tlbi::Ipas2Le1Is, "ipas2le1is"),
    (Tlbi::Ripas2E1Is, "ripas2e1is"),
    (Tlbi::Ripas2Le1Is, "ripas2le1is"),
    (Tlbi::VmallE1, "vmalle1"),
    (Tlbi::VmallE1Is, "vmalle1is"),
    (Tlbi::VmallS12E1Is, "vmalls12e1is"),
];

impl Counted {
    /// The platform of this machine, with memory mapped one to one.
    ///
    /// # Safety
    ///
    /// As [`IdentityMap::new`].
    pub unsafe fn new(records: Records) -> Self {
        // SAFETY: promised by the caller.
        Self { arm64: Arm64::new(unsafe { IdentityMap::new(records) }), counts: InstructionCounts::default() }
    }

    /// What was executed so far.
    pub fn counts(&self) -> &InstructionCounts {
        &self.counts
    }
}

impl InstructionCounts {
    /// Calls `each` with every count's key and value.
    pub fn for_each(&self, mut each: impl FnMut(&str, &str, u64)) {
        for ((_, name), count) in TLBI.iter().zip(&self.tlbi) {
            each("tlbi", name, count.get());
        }
        each("barriers", "dsb", self.dsb.get());
        each("barriers", "isb", self.isb.get());
        each("cache", "lines_cleaned", self.lines_cleaned.get());
        each("cache", "lines_invalidated", self.lines_invalidated.get());
        each("cache", "icache_all", self.icache_all.get());
    }
}

/// The features of this CPU.
pub fn features() -> Features {
    Features::from_registers(&IdRegisters {
        id_aa64mmfr0: read_sysreg!(id_aa64mmfr0_el1),
        id_aa64mmfr1: read_sysreg!(id_aa64mmfr1_el1),
        id_aa64mmfr2: read_sysreg!(id_aa64mmfr2_el1),
        id_aa64isar0: read_sysreg!(id_aa64isar0_el1),
        ctr: read_sysreg!(ctr_el0),
        dczid: read_sysreg!(dczid_el0),
    })
}

/// One more.
fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

// SAFETY: everything is forwarded to `Arm64`, which is a platform.
unsafe impl Platform for Counted {
    #[inline(always)]
    fn tlbi(&self, operation: Tlbi, operand: u64) {
        if let Some(index) = TLBI.iter().position(|(other, _)| *other == operation) {
            count(&self.counts.tlbi[index]);
        }
        self.arm64.tlbi(operation, operand);
    }

    #[inline(always)]
    fn dsb(&self, domain: Domain) {
        count(&self.counts.dsb);
        self.arm64.dsb(domain);
    }

    #[inline(always)]
    fn isb(&self) {
        count(&self.counts.isb);
        self.arm64.isb();
    }

    #[inline(always)]
    unsafe fn dc(&self, operation: Dc, address: usize) {
        if operation == Dc::Civac {
            count(&self.counts.lines_cleaned);
        }
        // SAFETY: promised by the caller.
        unsafe { self.arm64.dc(operation, address) };
    }

    #[inline(always)]
    fn ic(&self, operation: Ic, address: usize) {
        count(match operation {
            Ic::Ivau => &self.counts.lines_invalidated,
            Ic::IallUis => &self.counts.icache_all,
        });
        self.arm64.ic(operation, address);
    }

    #[inline(always)]
    fn vttbr(&self) -> u64 {
        self.arm64.vttbr()
    }

    #[inline(always)]
    fn load_vttbr(&self, value: u64) {
        self.arm64.load_vttbr(value);
    }

    #[inline(always)]
    fn pointer(&self, pa: Pa) -> NonNull<u8> {
        self.arm64.pointer(pa)
    }

    #[inline(always)]
    fn record(&self, pa: Pa) -> &Record {
        self.arm64.record(pa)
    }
}
