// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The calls of a guest by HVC or SMC (SMCCC, Arm DEN0028): which service a number belongs to, and what a guest can
//! discover.
//!
//! | range | service | answered by |
//! |---|---|---|
//! | 0x8000_xxxx | the architecture: version, features, workarounds | this module |
//! | 0x8400_0000 to 0x8400_001f, and 0xc400 | PSCI | [`power`] |
//! | 0x8400_0050 to 0x8400_005f, and 0xc400 | random numbers (DEN0098) | [`trng`] |
//! | 0xc500_0020, 0xc500_0021 | stolen time (DEN0057) | this module from [`abi`](twofold_abi::pv_time), and [`Host::stolen_time`] |
//! | 0x8600_ff01, 0x8600_ff03 | which hypervisor this is | this module, from [`abi`](twofold_abi::vendor) |
//! | 0x8600_xxxx, 0xc600_xxxx | the hypervisor's own | [`Host::vendor`] |
//!
//! Invariants: HVC and SMC have the same answers. Whatever the registers hold, a call returns, and a number without a
//! service returns NOT_SUPPORTED. After the guest's end no call has an effect. x1 to x3 keep their values, except after the calls that return something in them.

use smccc::arch::{self, error};
use twofold_abi::{pv_time, vendor};

use crate::power::{self, Power};
use crate::trng;

/// What the embedder knows and a call needs.
pub trait Host {
    /// Whether the guest has RAM at this intermediate physical address.
    fn is_ram(&self, address: u64) -> bool;
    /// Whether the guest has stolen time.
    fn has_stolen_time(&self) -> bool;
    /// This vCPU asks for its structure of stolen time. Returns its address; `None` if there is none.
    fn stolen_time(&mut self, vcpu: usize) -> Option<u64>;
    /// Whether there is a source of random numbers.
    fn has_random(&self) -> bool;
    /// 64 random bits; `None` if the source has none now.
    fn random(&mut self) -> Option<u64>;
    /// Answers a call of the hypervisor's own range: x0 to x3 of this vCPU. `None` if there is no such call.
    fn vendor(&mut self, vcpu: usize, arguments: [u64; 4]) -> Option<i64>;
    /// What this machine's CPUs need against a known weakness.
    fn mitigation(&self, workaround: Workaround) -> Mitigation;
}

/// The architecture's calls that mitigate a weakness of speculation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workaround {
    /// SMCCC_ARCH_WORKAROUND_1: branch target injection.
    BranchTarget,
    /// SMCCC_ARCH_WORKAROUND_2: speculative store bypass. x1 says whether the mitigation is on.
    StoreBypass,
    /// SMCCC_ARCH_WORKAROUND_3: branch history injection.
    BranchHistory,
}

/// What a CPU needs, as its firmware reports it. With several kinds of CPU, the most that any needs: a vCPU may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mitigation {
    /// Nothing is known: the guest decides by itself.
    Unknown,
    /// The CPU is not affected.
    NotNeeded,
    /// The guest has to call, and the embedder passes the call on.
    Call,
}

/// What the embedder does after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A change of power states, or a value for x0.
    Power(power::Reply),
    /// The caller continues with these values in x0 to x3.
    Values([u64; 4]),
    /// The embedder executes the workaround with this x1. The caller then continues, and no register changes.
    Mitigate(Workaround, u64),
}

/// Answers the call of vCPU `caller` with these values in x0 to x3.
#[inline]
pub fn call(power: &mut Power, host: &mut impl Host, caller: usize, arguments: [u64; 4]) -> Reply {
    let [function, first, second, third] = arguments;
    let function = function as u32;
    // PSCI is what guests call most.
    if power::is_call(function) {
        let reply = power.call(caller, function, [first, second, third], |address| host.is_ram(address));
        return reply.map_or(value(error::NOT_SUPPORTED.into()), Reply::Power);
    }
    if !power.can_call(caller) {
        return Reply::Power(power::Reply::Stop);
    }
    other(host, caller, [function.into(), first, second, third])
}

/// Answers a call that is not PSCI's.
#[inline(never)]
fn other(host: &mut impl Host, caller: usize, [function, first, second, third]: [u64; 4]) -> Reply {
    let function = function as u32;
    let first_masked = first & power::argument_mask(function);
    if let Some(workaround) = workaround(function) {
        return match host.mitigation(workaround) {
            Mitigation::Call => Reply::Mitigate(workaround, first_masked),
            Mitigation::NotNeeded => value(SUCCESS),
            Mitigation::Unknown => value(error::NOT_SUPPORTED.into()),
        };
    }
    match function {
        arch::SMCCC_VERSION => value(VERSION),
        arch::SMCCC_ARCH_FEATURES => value(features(host, first as u32)),
        pv_time::FEATURES => value(match first as u32 {
            pv_time::FEATURES | pv_time::STOLEN_TIME if host.has_stolen_time() => pv_time::SUCCESS,
            _ => pv_time::NOT_SUPPORTED,
        }),
        pv_time::STOLEN_TIME => {
            value(host.stolen_time(caller).map_or(pv_time::NOT_SUPPORTED, |address| address as i64))
        }
        _ if trng::is_call(function) => match host.has_random() {
            true => Reply::Values(trng::call(function, first_masked, || host.random())),
            false => value(error::NOT_SUPPORTED.into()),
        },
        vendor::CALL_UID => Reply::Values(vendor::UID.map(u64::from)),
        vendor::CALL_REVISION => {
            let [major, minor] = vendor::REVISION.map(u64::from);
            Reply::Values([major, minor, 0, 0])
        }
        _ if is_vendor(function) => {
            // The number is in w0; the embedder need not look at the other half.
            let arguments = [function.into(), first, second, third];
            value(host.vendor(caller, arguments).unwrap_or(error::NOT_SUPPORTED.into()))
        }
        _ => value(error::NOT_SUPPORTED.into()),
    }
}

const SUCCESS: i64 = 0;
/// SMCCC 1.1.
const VERSION: i64 = 1 << 16 | 1;

/// SMCCC_ARCH_FEATURES.
fn features(host: &impl Host, function: u32) -> i64 {
    if let Some(asked) = workaround(function) {
        return match (host.mitigation(asked), asked) {
            (Mitigation::Unknown, _) => error::NOT_SUPPORTED.into(),
            (Mitigation::Call, _) => SUCCESS,
            // This workaround has a value of its own for "no CPU needs it".
            (Mitigation::NotNeeded, Workaround::StoreBypass) => error::NOT_REQUIRED.into(),
            (Mitigation::NotNeeded, _) => CALL_HAS_NO_EFFECT,
        };
    }
    match function {
        arch::SMCCC_VERSION | arch::SMCCC_ARCH_FEATURES => SUCCESS,
        pv_time::FEATURES if host.has_stolen_time() => SUCCESS,
        _ => error::NOT_SUPPORTED.into(),
    }
}

const CALL_HAS_NO_EFFECT: i64 = 1;

fn workaround(function: u32) -> Option<Workaround> {
    match function {
        arch::SMCCC_ARCH_WORKAROUND_1 => Some(Workaround::BranchTarget),
        arch::SMCCC_ARCH_WORKAROUND_2 => Some(Workaround::StoreBypass),
        arch::SMCCC_ARCH_WORKAROUND_3 => Some(Workaround::BranchHistory),
        _ => None,
    }
}

/// Whether a number is in the range of the vendor's hypervisor services, as a fast call of 32 or 64 bits.
fn is_vendor(function: u32) -> bool {
    matches!(function >> 16, 0x8600 | 0xc600)
}

fn value(value: i64) -> Reply {
    Reply::Power(power::Reply::Return(value as u64))
}
