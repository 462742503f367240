// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine's platform on this CPU, which counts the engine's instructions.
//!
//! All CPUs share the counters. The atomics are relaxed, because counting needs no order.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use twofold_stage2::arm64::{Arm64, IdentityMap};
use twofold_stage2::platform::{Dc, Domain, Ic, Platform, Tlbi};
use twofold_stage2::{Features, IdRegisters, MetadataMap, Pa, TableMetadata};

use crate::{cpus, read_sysreg};

/// The instructions of this CPU, counted.
pub struct Counted {
    arm64: Arm64<IdentityMap>,
    /// Lines of the instruction cache in one page.
    lines_per_page: u64,
    counts: InstructionCounts,
}

/// The number of times that each kind of instruction was executed for the engine.
#[derive(Default)]
pub struct InstructionCounts {
    tlbi: [AtomicU64; 8],
    dsb: AtomicU64,
    isb: AtomicU64,
    lines_cleaned: AtomicU64,
    lines_invalidated: AtomicU64,
    icache_all: AtomicU64,
}

/// The operations, in the order of their counters.
const TLBI: [(Tlbi, &str); 9] = [
    (Tlbi::Ipas2E1, "ipas2e1"),
    (Tlbi::Ipas2E1Is, "ipas2e1is"),
    (Tlbi::Ipas2Le1Is, "ipas2le1is"),
    (Tlbi::Ripas2E1Is, "ripas2e1is"),
    (Tlbi::Ripas2Le1Is, "ripas2le1is"),
    (Tlbi::VmallE1, "vmalle1"),
    (Tlbi::VmallE1Is, "vmalle1is"),
    (Tlbi::VmallS12E1Is, "vmalls12e1is"),
    (Tlbi::Alle1Is, "alle1is"),
];

impl Counted {
    /// The platform of a machine whose CPUs share `features`, with memory mapped one to one.
    ///
    /// # Safety
    ///
    /// As [`IdentityMap::new`].
    pub unsafe fn new(metadata: MetadataMap, features: &Features) -> Self {
        // SAFETY: promised by the caller.
        let arm64 = Arm64::new(unsafe { IdentityMap::new(metadata) });
        let lines_per_page = (PAGE / features.instruction_line).max(1);
        Self { arm64, lines_per_page, counts: InstructionCounts::default() }
    }

    /// The instructions executed so far.
    pub fn counts(&self) -> &InstructionCounts {
        &self.counts
    }
}

impl InstructionCounts {
    /// Calls `each` with every count's key and value.
    pub fn for_each(&self, mut each: impl FnMut(&str, &str, u64)) {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        for ((_, name), count) in TLBI.iter().zip(&self.tlbi) {
            each("tlbi", name, get(count));
        }
        each("barriers", "dsb", get(&self.dsb));
        each("barriers", "isb", get(&self.isb));
        each("cache", "lines_cleaned", get(&self.lines_cleaned));
        each("cache", "lines_invalidated", get(&self.lines_invalidated));
        each("cache", "icache_all", get(&self.icache_all));
    }
}

/// The features of this CPU.
pub fn features() -> Features {
    Features::from_registers(&id_registers())
}

/// The ID registers of this CPU that announce its features.
pub fn id_registers() -> IdRegisters {
    IdRegisters {
        id_aa64mmfr0: read_sysreg!(id_aa64mmfr0_el1),
        id_aa64mmfr1: read_sysreg!(id_aa64mmfr1_el1),
        id_aa64mmfr2: read_sysreg!(id_aa64mmfr2_el1),
        id_aa64isar0: read_sysreg!(id_aa64isar0_el1),
        ctr: read_sysreg!(ctr_el0),
        dczid: read_sysreg!(dczid_el0),
    }
}

/// Adds to a counter.
fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

const PAGE: u64 = 4096;

// SAFETY: everything is forwarded to `Arm64`, which is a platform.
unsafe impl Platform for Counted {
    #[inline(always)]
    fn tlbi(&self, operation: Tlbi, operand: u64) {
        if let Some(index) = TLBI.iter().position(|(other, _)| *other == operation) {
            count(&self.counts.tlbi[index], 1);
        }
        self.arm64.tlbi(operation, operand);
    }

    #[inline(always)]
    fn dsb(&self, domain: Domain) {
        count(&self.counts.dsb, 1);
        self.arm64.dsb(domain);
    }

    #[inline(always)]
    fn isb(&self) {
        count(&self.counts.isb, 1);
        self.arm64.isb();
    }

    #[inline(always)]
    unsafe fn dc(&self, operation: Dc, address: usize) {
        // SAFETY: promised by the caller.
        unsafe { self.dc_lines(operation, address, 1, 1) };
    }

    #[inline(always)]
    unsafe fn dc_lines(&self, operation: Dc, start: usize, size: u64, line: u64) {
        if operation == Dc::Civac {
            count(&self.counts.lines_cleaned, size.checked_div(line).unwrap_or(0));
        }
        // SAFETY: promised by the caller.
        unsafe { self.arm64.dc_lines(operation, start, size, line) };
    }

    #[inline(always)]
    fn ic(&self, operation: Ic, address: usize) {
        match operation {
            // The engine makes whole pages executable, line by line. Counting each line would cost more than the line
            // itself.
            Ic::Ivau if (address as u64).is_multiple_of(PAGE) => {
                count(&self.counts.lines_invalidated, self.lines_per_page);
            }
            Ic::Ivau => {}
            Ic::IallUis => count(&self.counts.icache_all, 1),
        }
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
    fn metadata(&self, pa: Pa) -> &TableMetadata {
        self.arm64.metadata(pa)
    }

    /// ISR_EL1 has the physical interrupts at EL2, whether or not they are masked (Arm ARM DDI 0487K.a, D19.2.82).
    #[inline]
    fn interrupt_is_pending(&self) -> bool {
        cpus::looks().look();
        read_sysreg!(ISR_EL1) & (IRQ | FIQ) != 0
    }
}

/// ISR_EL1: an FIQ is pending.
const FIQ: u64 = 1 << 6;
/// ISR_EL1: an IRQ is pending.
const IRQ: u64 = 1 << 7;
