// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A CPU of the hosted machine that counts what the engine executes.
//!
//! Invariant: [`Counters::take`] returns each event once. The model takes the events after each thing that a vCPU or the
//! migration's thread did, so each is charged to one clock.

use std::ops::AddAssign;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use twofold_machine::fast::{FastMachine, FastPlatform, FastVcpu, VcpuError};
use twofold_machine::interrupts::{Interrupts, Woken};
use twofold_machine::vm::{Cpu, FastCpu, Vcpu};
use twofold_stage2::platform::{Dc, Domain, Ic, Platform, Tlbi};
use twofold_stage2::{Pa, TableMetadata};

/// What the engine executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// TLB invalidations that go to all CPUs.
    pub tlbis: u64,
    /// `DSB ISH`. Those for stores only are not counted: they wait for no other CPU.
    pub dsbs: u64,
    /// TLB invalidations of one CPU.
    pub local_tlbis: u64,
    /// `DSB NSH`.
    pub local_dsbs: u64,
    /// Entries that passes visited.
    pub entries: u64,
    /// Atomic read-modify-writes.
    pub atomics: u64,
}

impl AddAssign for Events {
    fn add_assign(&mut self, other: Self) {
        self.tlbis += other.tlbis;
        self.dsbs += other.dsbs;
        self.local_tlbis += other.local_tlbis;
        self.local_dsbs += other.local_dsbs;
        self.entries += other.entries;
        self.atomics += other.atomics;
    }
}

/// The events since they were last taken. Relaxed accesses, because one thread does everything.
#[derive(Debug, Default)]
pub struct Counters {
    tlbis: AtomicU64,
    dsbs: AtomicU64,
    local_tlbis: AtomicU64,
    local_dsbs: AtomicU64,
    entries: AtomicU64,
    atomics: AtomicU64,
}

impl Counters {
    /// Returns the events since the last call.
    pub fn take(&self) -> Events {
        let take = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        Events {
            tlbis: take(&self.tlbis),
            dsbs: take(&self.dsbs),
            local_tlbis: take(&self.local_tlbis),
            local_dsbs: take(&self.local_dsbs),
            entries: take(&self.entries),
            atomics: take(&self.atomics),
        }
    }

    fn count(counter: &AtomicU64, events: u64) {
        counter.fetch_add(events, Ordering::Relaxed);
    }
}

/// The engine's platform.
#[derive(Clone, Debug)]
pub struct CountedPlatform {
    inner: FastPlatform,
    counters: Arc<Counters>,
}

impl CountedPlatform {
    /// The platform of this machine.
    pub fn new(machine: Arc<FastMachine>, counters: Arc<Counters>) -> Self {
        Self { inner: FastPlatform(machine), counters }
    }
}

// SAFETY: each call is handed on to a platform that keeps the contract. Counting touches no memory of the engine's.
unsafe impl Platform for CountedPlatform {
    fn tlbi(&self, operation: Tlbi, operand: u64) {
        let is_local = matches!(operation, Tlbi::Ipas2E1 | Tlbi::VmallE1);
        let counter = if is_local { &self.counters.local_tlbis } else { &self.counters.tlbis };
        Counters::count(counter, 1);
        self.inner.tlbi(operation, operand);
    }

    fn dsb(&self, domain: Domain) {
        match domain {
            Domain::Ish => Counters::count(&self.counters.dsbs, 1),
            Domain::Nsh => Counters::count(&self.counters.local_dsbs, 1),
            Domain::IshSt | Domain::NshSt => {}
        }
        self.inner.dsb(domain);
    }

    fn isb(&self) {
        self.inner.isb();
    }

    unsafe fn dc(&self, operation: Dc, address: usize) {
        // SAFETY: the caller's promise is handed on.
        unsafe { self.inner.dc(operation, address) }
    }

    unsafe fn dc_lines(&self, operation: Dc, start: usize, size: u64, line: u64) {
        // SAFETY: the caller's promise is handed on.
        unsafe { self.inner.dc_lines(operation, start, size, line) }
    }

    fn ic(&self, operation: Ic, address: usize) {
        self.inner.ic(operation, address);
    }

    fn vttbr(&self) -> u64 {
        self.inner.vttbr()
    }

    fn load_vttbr(&self, value: u64) {
        self.inner.load_vttbr(value);
    }

    fn pointer(&self, pa: Pa) -> NonNull<u8> {
        self.inner.pointer(pa)
    }

    fn metadata(&self, pa: Pa) -> &TableMetadata {
        self.inner.metadata(pa)
    }

    fn pause(&self, yields: u32) {
        self.inner.pause(yields);
    }

    fn abandoned(&self, root: Pa) {
        self.inner.abandoned(root);
    }

    fn on_atomic(&self) {
        Counters::count(&self.counters.atomics, 1);
    }

    fn on_entries(&self, count: usize) {
        Counters::count(&self.counters.entries, count as u64);
    }
}

/// A CPU whose guest has that platform.
#[derive(Clone, Debug)]
pub struct CountedCpu(pub FastCpu);

impl Cpu for CountedCpu {
    type Host = CountedPlatform;
    type Entered<'a> = FastVcpu;

    fn number(&self) -> usize {
        self.0.number()
    }

    fn enter<P>(&self, registers: (u64, u64), vcpu: &Vcpu<P>) -> Result<FastVcpu, VcpuError> {
        self.0.enter(registers, vcpu)
    }

    fn leave(&self) {
        self.0.leave();
    }

    fn wait(&self, interrupts: &Interrupts) -> Woken {
        self.0.wait(interrupts)
    }
}
