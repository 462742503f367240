// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the model charges, and why: every price is here, each with its source.
//!
//! The prices were fixed before the first run, and none was changed for a result. Prices of the hypervisor are those of
//! KVM and of measured hardware, not ours. Where a source leaves a choice, the price is the one that is worse for
//! hardware's dirty state.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Sub};

use super::events::Events;

/// Picoseconds of virtual time: a moment since the migration began, or a span. Sums of prices are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Picos(u64);

impl Picos {
    /// No time.
    pub const ZERO: Self = Self(0);

    /// This many picoseconds.
    pub const fn new(picos: u64) -> Self {
        Self(picos)
    }

    /// This many nanoseconds.
    pub const fn nanos(nanos: u64) -> Self {
        Self(nanos * 1000)
    }

    /// The number of picoseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// In nanoseconds, for reports.
    pub fn as_nanos(self) -> f64 {
        self.0 as f64 / 1000.0
    }
}

impl Add for Picos {
    type Output = Self;

    /// 2^64 ps are 213 days.
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Picos {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Picos {
    type Output = Self;

    /// No span is below zero.
    fn sub(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl Mul<u64> for Picos {
    type Output = Self;

    fn mul(self, count: u64) -> Self {
        Self(self.0 * count)
    }
}

impl Sum for Picos {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::ZERO, Add::add)
    }
}

/// The prices of one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prices {
    /// A write fault: exit, handler, entry. It includes the handler's own atomics, but no TLBI and no barrier.
    pub fault: Picos,
    /// A TLB invalidation that goes to all CPUs.
    pub tlbi: Picos,
    /// A `DSB ISH`, which waits until such invalidations are complete.
    pub dsb: Picos,
    /// A TLB invalidation of this CPU alone.
    pub local_tlbi: Picos,
    /// A `DSB NSH`.
    pub local_dsb: Picos,
    /// An entry that a pass over the tables visits.
    pub entry: Picos,
    /// An atomic read-modify-write, of an entry, a lock or a count.
    pub atomic: Picos,
    /// Hardware's record of a write: it sets S2AP\[1\] of a clean, hardware-tracked page.
    pub record: Picos,
    /// Stopping the guest: each vCPU is kicked out.
    pub stop: Picos,
    /// State of devices and vCPUs, and the commit.
    pub state: Picos,
}

/// A price with its source, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stated {
    /// What it is paid for.
    pub what: &'static str,
    /// The price.
    pub price: Picos,
    /// The source.
    pub source: &'static str,
}

/// 3,980 instructions: KVM's write fault on a write-protected page, with the host kernel's memory management, counted at
/// EL2 in QEMU's deterministic mode; at 3 GHz, an instruction a cycle.
const FAULT: Picos = Picos::new(3_980 * 1000 / 3);
/// Ananta's series for FEAT_TLBIRANGE (Linux 6.6) measured an unmap of 128 GiB in 4 KiB pages, 64.65 s without ranges and
/// 14.39 s with them. Each of the 33,554,432 invalidations that were saved took 1,498 ns: twice a TLBI to all CPUs and the
/// DSB that waits for it. How these share 750 ns is assumed. The engine nearly always executes them in pairs too.
const TLBI: Picos = Picos::nanos(250);
/// See [`TLBI`].
const DSB: Picos = Picos::nanos(500);
/// Assumed: a tenth of the broadcast, because no other CPU has to answer.
const LOCAL_TLBI: Picos = Picos::nanos(25);
/// See [`LOCAL_TLBI`].
const LOCAL_DSB: Picos = Picos::nanos(50);
/// 2.4 ns: Zhu's scan of 64 GiB for dirty state on a Kunpeng 920 took 40 ms on one thread (2020). The engine takes 0.31 ns
/// for a clean entry on the machine of docs/adaptive.md.
const ENTRY: Picos = Picos::new(2_400);
/// 10 to 20 ns on Arm CPUs (docs/adaptive.md); 7.3 ns were measured here.
const ATOMIC: Picos = Picos::nanos(20);
/// The table walker does such an atomic too.
const RECORD: Picos = ATOMIC;
/// An exit, priced as a fault.
const STOP: Picos = FAULT;
/// 1 ms: a choice, the same for all trackers.
const STATE: Picos = Picos::nanos(1_000_000);

impl Prices {
    /// The prices that the experiment charges.
    pub const STATED: Self = Self {
        fault: FAULT,
        tlbi: TLBI,
        dsb: DSB,
        local_tlbi: LOCAL_TLBI,
        local_dsb: LOCAL_DSB,
        entry: ENTRY,
        atomic: ATOMIC,
        record: RECORD,
        stop: STOP,
        state: STATE,
    };

    /// What the engine's instructions and entries cost, as the migration's thread pays for them.
    pub fn of(&self, events: &Events) -> Picos {
        self.instructions(events) + self.entry * events.entries + self.atomic * events.atomics
    }

    /// What a fault costs its vCPU. The price of a fault includes its own atomics. Those of a pass that it starts, to set
    /// DBM on other pages, are added.
    pub fn of_fault(&self, events: &Events) -> Picos {
        let atomics = if events.entries == 0 { 0 } else { events.atomics };
        self.fault + self.of(&Events { atomics, ..*events })
    }

    fn instructions(&self, events: &Events) -> Picos {
        self.tlbi * events.tlbis
            + self.dsb * events.dsbs
            + self.local_tlbi * events.local_tlbis
            + self.local_dsb * events.local_dsbs
    }

    /// The prices with their sources.
    pub fn stated(&self) -> [Stated; 10] {
        let stated = |what, price, source| Stated { what, price, source };
        [
            stated("write fault", self.fault, "KVM's, 3,980 instructions at 3 GHz"),
            stated(
                "TLBI to all CPUs",
                self.tlbi,
                "with its DSB half of 1,498 ns, Ananta's FEAT_TLBIRANGE series, 2023",
            ),
            stated("DSB ISH", self.dsb, "as the TLBI to all CPUs"),
            stated("local TLBI", self.local_tlbi, "assumed: a tenth of the broadcast"),
            stated("DSB NSH", self.local_dsb, "assumed: a tenth of DSB ISH"),
            stated("entry visited", self.entry, "40 ms for 64 GiB on a Kunpeng 920, Zhu 2020"),
            stated("atomic", self.atomic, "Arm CPUs, docs/adaptive.md"),
            stated("hardware's record of a write", self.record, "as an atomic"),
            stated("stopping a vCPU", self.stop, "as a fault"),
            stated("state and commit", self.state, "chosen"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_pays_for_the_atomics_of_its_pass_alone() {
        let prices = Prices::STATED;
        let plain = Events { local_tlbis: 2, local_dsbs: 2, atomics: 3, ..Events::default() };
        assert_eq!(prices.of_fault(&plain), prices.fault + Picos::nanos(150));
        let around = Events { entries: 64, ..plain };
        assert_eq!(prices.of_fault(&around), prices.fault + Picos::nanos(150 + 60) + Picos::new(64 * 2_400));
        assert_eq!(prices.of(&plain), Picos::nanos(150 + 60));
    }

    #[test]
    fn each_price_is_stated() {
        let prices = Prices::STATED;
        assert_eq!(prices.fault.get() / 1000, 1_326);
        assert_eq!((prices.tlbi + prices.dsb) * 2, Picos::nanos(1_500));
        assert!(prices.stated().iter().all(|one| one.price > Picos::ZERO && !one.source.is_empty()));
    }
}
