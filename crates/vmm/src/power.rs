// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The power states of a guest's vCPUs, and PSCI 1.1 (Arm DEN0022) as the way to change them.
//!
//! A state machine: a call and the caller go in, a [`Reply`] comes out, and the embedder carries it out. A guest has one
//! [`Power`] behind one lock, because its calls are rare and each changes a few words. It knows no CPU: a vCPU that is
//! switched on becomes runnable, and the scheduler decides where.
//!
//! | from | event | to |
//! |---|---|---|
//! | off | CPU_ON of another vCPU | on-pending, with entry and argument |
//! | on-pending | [`Power::begin`]: a CPU is about to run it | on |
//! | on | CPU_SUSPEND | suspended |
//! | suspended | [`Power::resume`]: an interrupt is signalled | on |
//! | on | CPU_OFF | off |
//! | any | SYSTEM_OFF, SYSTEM_RESET, SYSTEM_RESET2 | the guest has ended; [`Power::restart`] begins anew |
//!
//! A vCPU that switched itself off may be switched on before its CPU has left it. That is safe: its registers are set by
//! the CPU that calls `begin`, and the scheduler gives a vCPU to one CPU at a time.
//!
//! A suspended vCPU waits as for WFI: an interrupt that its interrupt controller signals ends the wait even if
//! PSTATE.I masks it, because an idle loop suspends with interrupts masked. What priority, group or enable bits hold
//! back does not end it.
//!
//! Invariants: exactly one CPU_ON wins an off vCPU. Of several calls that end the guest, the first counts, and after it
//! no call has an effect.

use alloc::vec::Vec;

use smccc::psci::{self, error};
use thiserror::Error;

/// The state of one vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It runs no instruction until another vCPU switches it on.
    Off,
    /// It was switched on, and has not begun.
    OnPending(Start),
    /// It executes instructions whenever it has a CPU.
    On,
    /// It waits for an interrupt in CPU_SUSPEND.
    Suspended,
}

/// Where a vCPU begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The address of its first instruction.
    pub entry: u64,
    /// The content of x0.
    pub argument: u64,
}

/// How a guest ended itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It switched itself off.
    PowerOff,
    /// It asked for a cold reset: RAM loses its content.
    ColdReset,
    /// It asked for a warm reset: RAM keeps its content, except where the images are.
    WarmReset,
}

/// What the embedder does after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The caller continues with this value in x0.
    Return(u64),
    /// The caller continues with this value in x0, and the vCPU of this number becomes runnable.
    Start(u64, usize),
    /// The caller waits for an interrupt, and then continues with this value in x0.
    Suspend(u64),
    /// The caller is off.
    Off,
    /// The guest has ended, by this call: all its vCPUs stop.
    End(End),
    /// The guest had ended before, or the caller is off: the caller stops, and nothing changes.
    Stop,
}

/// A saved state that no guest with this machine's vCPUs can have.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RestoreError {
    /// The number of vCPUs differs.
    #[error("the saved guest has {saved} vCPUs, this one {here}")]
    Count {
        /// vCPUs in the saved state.
        saved: usize,
        /// vCPUs of this guest.
        here: usize,
    },
    /// A vCPU is to begin where no instruction can be.
    #[error("vCPU {vcpu} is to begin at {entry:#x}, which is not a multiple of 4")]
    Entry {
        /// Its number.
        vcpu: usize,
        /// The address.
        entry: u64,
    },
}

/// The power states of one guest.
#[derive(Clone, Debug)]
pub struct Power {
    vcpus: Vec<Vcpu>,
    /// The first vCPU's, at the start and after each reset.
    boot: Start,
    end: Option<End>,
}

#[derive(Clone, Copy, Debug)]
struct Vcpu {
    affinity: u64,
    state: State,
}

/// [`Power`] as data, to be saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The state of each vCPU.
    pub states: Vec<State>,
    /// How the guest ended, if it did.
    pub end: Option<End>,
}

impl Power {
    /// A guest with vCPUs of these affinities (as in MPIDR_EL1, all different). The first one is about to begin at
    /// `boot`; the others are off.
    pub fn new(affinities: impl IntoIterator<Item = u64>, boot: Start) -> Self {
        let vcpus = affinities.into_iter().map(|affinity| Vcpu { affinity, state: State::Off }).collect();
        let mut power = Self { vcpus, boot, end: None };
        power.restart();
        power
    }

    /// Answers a PSCI call of vCPU `caller`. `function` is w0, `arguments` are x1 to x3, and `is_ram` returns whether an
    /// address is in the guest's RAM. Returns `None` if PSCI 1.1 has no such function, or this implementation lacks it.
    pub fn call(
        &mut self,
        caller: usize,
        function: u32,
        arguments: [u64; 3],
        is_ram: impl Fn(u64) -> bool,
    ) -> Option<Reply> {
        if !self.can_call(caller) {
            return Some(Reply::Stop);
        }
        let mask = argument_mask(function);
        let [first, second, third] = arguments.map(|argument| argument & mask);
        if let Some(value) = constant(function, first) {
            return Some(Reply::Return(value));
        }
        let reply = match function {
            psci::PSCI_CPU_ON_32 | psci::PSCI_CPU_ON_64 => {
                let start = Start { entry: second, argument: third };
                match self.cpu_on(first, start, is_ram) {
                    Ok(vcpu) => Reply::Start(SUCCESS as u64, vcpu),
                    Err(error) => returned(error),
                }
            }
            psci::PSCI_AFFINITY_INFO_32 | psci::PSCI_AFFINITY_INFO_64 => returned(self.affinity_info(first, second)),
            psci::PSCI_CPU_SUSPEND_32 | psci::PSCI_CPU_SUSPEND_64 => self.cpu_suspend(caller, first),
            psci::PSCI_CPU_OFF => {
                self.vcpus[caller].state = State::Off;
                Reply::Off
            }
            psci::PSCI_SYSTEM_OFF => self.end_by(End::PowerOff),
            psci::PSCI_SYSTEM_RESET => self.end_by(End::ColdReset),
            psci::PSCI_SYSTEM_RESET2_32 | psci::PSCI_SYSTEM_RESET2_64 => match first as u32 {
                WARM_RESET => self.end_by(End::WarmReset),
                // The other architectural types are reserved, and there is no vendor type.
                _ => returned(error::INVALID_PARAMETERS),
            },
            _ => return None,
        };
        Some(reply)
    }

    /// Called by the CPU that is about to run a vCPU. If the vCPU has been switched on and has not begun, it begins:
    /// the embedder resets its registers, and sets these. Otherwise `None`.
    pub fn begin(&mut self, vcpu: usize) -> Option<Start> {
        let vcpu = self.vcpus.get_mut(vcpu)?;
        let State::OnPending(start) = vcpu.state else { return None };
        if self.end.is_some() {
            return None;
        }
        vcpu.state = State::On;
        Some(start)
    }

    /// The interrupt controller signals an interrupt to this vCPU. Returns whether that ends a CPU_SUSPEND: the vCPU is
    /// runnable then. Before a caller of CPU_SUSPEND is blocked, the embedder calls this if an interrupt is signalled
    /// already.
    pub fn resume(&mut self, vcpu: usize) -> bool {
        match self.vcpus.get_mut(vcpu) {
            Some(vcpu) if vcpu.state == State::Suspended => {
                vcpu.state = State::On;
                true
            }
            _ => false,
        }
    }

    /// Begins the guest anew, after all its vCPUs have stopped: the first one is about to begin, the others are off.
    pub fn restart(&mut self) {
        self.end = None;
        for (number, vcpu) in self.vcpus.iter_mut().enumerate() {
            vcpu.state = if number == 0 { State::OnPending(self.boot) } else { State::Off };
        }
    }

    /// The state of a vCPU; `None` if there is no such vCPU.
    pub fn state(&self, vcpu: usize) -> Option<State> {
        Some(self.vcpus.get(vcpu)?.state)
    }

    /// How the guest ended itself, if it did.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// Whether every vCPU is off: no call can switch one on again.
    pub fn is_dead(&self) -> bool {
        self.vcpus.iter().all(|vcpu| vcpu.state == State::Off)
    }

    /// All state but what the configuration decides.
    pub fn save(&self) -> Saved {
        Saved { states: self.vcpus.iter().map(|vcpu| vcpu.state).collect(), end: self.end }
    }

    /// Takes a saved state. Nothing changes if it is refused.
    pub fn restore(&mut self, saved: &Saved) -> Result<(), RestoreError> {
        let (saved_count, here) = (saved.states.len(), self.vcpus.len());
        if saved_count != here {
            return Err(RestoreError::Count { saved: saved_count, here });
        }
        for (vcpu, state) in saved.states.iter().enumerate() {
            if let State::OnPending(Start { entry, .. }) = *state
                && !is_aligned(entry)
            {
                return Err(RestoreError::Entry { vcpu, entry });
            }
        }
        for (vcpu, state) in self.vcpus.iter_mut().zip(&saved.states) {
            vcpu.state = *state;
        }
        self.end = saved.end;
        Ok(())
    }

    /// Whether this vCPU executes instructions of a guest that has not ended.
    pub(crate) fn can_call(&self, vcpu: usize) -> bool {
        self.end.is_none() && self.state(vcpu) == Some(State::On)
    }

    fn cpu_on(&mut self, target: u64, start: Start, is_ram: impl Fn(u64) -> bool) -> Result<usize, i32> {
        let found = self.vcpus.iter().position(|vcpu| vcpu.affinity == target);
        let target = found.ok_or(error::INVALID_PARAMETERS)?;
        // Without RAM there, the vCPU would abort on its first fetch, and then on the first fetch of its vector, for ever.
        if !is_aligned(start.entry) || !is_ram(start.entry) {
            return Err(error::INVALID_ADDRESS);
        }
        let state = &mut self.vcpus[target].state;
        match state {
            State::Off => *state = State::OnPending(start),
            State::OnPending(_) => return Err(error::ON_PENDING),
            State::On | State::Suspended => return Err(error::ALREADY_ON),
        }
        Ok(target)
    }

    /// The state of all vCPUs that share the affinity fields from `lowest_level` up.
    fn affinity_info(&self, target: u64, lowest_level: u64) -> i32 {
        const ON: i32 = 0;
        const OFF: i32 = 1;
        const ON_PENDING: i32 = 2;
        let Some(mask) = LEVELS.get(lowest_level as usize) else { return error::INVALID_PARAMETERS };
        // The fields below the level are ignored; a reserved bit that is set names no vCPU.
        let named = self.vcpus.iter().filter(|vcpu| vcpu.affinity & mask == target & (mask | !AFFINITY));
        let info = named.map(|vcpu| match vcpu.state {
            State::On | State::Suspended => ON,
            State::OnPending(_) => ON_PENDING,
            State::Off => OFF,
        });
        // One vCPU that is on makes the group on, and one that is pending makes it pending.
        info.min_by_key(|info| [ON, ON_PENDING, OFF].iter().position(|one| one == info))
            .unwrap_or(error::INVALID_PARAMETERS)
    }

    fn cpu_suspend(&mut self, caller: usize, power_state: u64) -> Reply {
        // In the original format 0 is the standby state of the vCPU alone. There is no power-down state, and none of
        // several vCPUs together.
        if power_state as u32 != 0 {
            return returned(error::INVALID_PARAMETERS);
        }
        self.vcpus[caller].state = State::Suspended;
        Reply::Suspend(SUCCESS as u64)
    }

    fn end_by(&mut self, end: End) -> Reply {
        self.end = Some(end);
        Reply::End(end)
    }
}

/// The answer of a call that depends on no state, so that it needs no lock: w0 and x1. `None` for any other call.
#[inline]
#[must_use]
pub fn constant(function: u32, first: u64) -> Option<u64> {
    match function {
        psci::PSCI_VERSION => Some(VERSION),
        psci::PSCI_FEATURES => Some(i64::from(features(first as u32)) as u64),
        psci::PSCI_MIGRATE_INFO_TYPE => Some(NO_MIGRATION_NEEDED),
        _ => None,
    }
}

/// Whether a call belongs to PSCI: its 32 numbers, with 32 or 64-bit arguments.
pub(crate) fn is_call(function: u32) -> bool {
    const CALL_64: u32 = 1 << 30;
    matches!(function & !CALL_64, 0x8400_0000..=0x8400_001f)
}

/// The bits of an argument that a function reads: a 32-bit call has 32-bit arguments.
pub(crate) fn argument_mask(function: u32) -> u64 {
    const CALL_64: u32 = 1 << 30;
    if function & CALL_64 == 0 { u32::MAX.into() } else { u64::MAX }
}

const SUCCESS: i32 = 0;
/// Version 1.1.
const VERSION: u64 = 1 << 16 | 1;
/// MIGRATE_INFO_TYPE: no trusted operating system that a vCPU's move would concern.
const NO_MIGRATION_NEEDED: u64 = 2;
/// The architectural type SYSTEM_WARM_RESET.
const WARM_RESET: u32 = 0;
/// Aff3 and Aff2 to Aff0.
const AFFINITY: u64 = 0xff_00ff_ffff;
/// The affinity fields from each level up.
const LEVELS: [u64; 4] = [AFFINITY, 0xff_00ff_ff00, 0xff_00ff_0000, 0xff_0000_0000];

/// PSCI_FEATURES: what exists, and its flags. CPU_SUSPEND's are 0: the original format, and no mode in which the guest
/// coordinates the states of several vCPUs.
fn features(function: u32) -> i32 {
    match function {
        psci::PSCI_VERSION
        | psci::PSCI_FEATURES
        | psci::PSCI_MIGRATE_INFO_TYPE
        | psci::PSCI_CPU_ON_32
        | psci::PSCI_CPU_ON_64
        | psci::PSCI_AFFINITY_INFO_32
        | psci::PSCI_AFFINITY_INFO_64
        | psci::PSCI_CPU_SUSPEND_32
        | psci::PSCI_CPU_SUSPEND_64
        | psci::PSCI_CPU_OFF
        | psci::PSCI_SYSTEM_OFF
        | psci::PSCI_SYSTEM_RESET
        | psci::PSCI_SYSTEM_RESET2_32
        | psci::PSCI_SYSTEM_RESET2_64
        // A guest discovers the version of the calling convention through this one (Arm DEN0028).
        | smccc::arch::SMCCC_VERSION => SUCCESS,
        _ => error::NOT_SUPPORTED,
    }
}

/// Whether an A64 instruction can be there.
fn is_aligned(entry: u64) -> bool {
    entry.is_multiple_of(4)
}

fn returned(value: i32) -> Reply {
    Reply::Return(i64::from(value) as u64)
}
