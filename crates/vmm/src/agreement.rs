// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The features that all CPUs of a guest share, and the CPUs that must not run the guest.
//!
//! One set of tables serves all CPUs, and one CPU does cache maintenance for another. So the engine uses the features
//! that all of them have, with the smallest of their cache lines.
//!
//! Invariant: a CPU that enters the guest keeps every feature that the guest's tables and their maintenance rely on.

use thiserror::Error;
use twofold_stage2::{Features, IdRegisters};

/// A CPU that cannot run the guest.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Unfit {
    /// The CPU did not report its ID registers in time.
    #[error("CPU {cpu} does not answer: use fewer vCPUs")]
    Silent {
        /// Its place among the CPUs.
        cpu: usize,
    },
    /// The CPU cannot address all of the RAM that EL2 has already mapped.
    #[error("CPU {cpu} has physical addresses of {bits} bits, but there is RAM up to {end:#x}: use fewer vCPUs")]
    ShortAddresses {
        /// Its place among the CPUs.
        cpu: usize,
        /// Bits of its physical addresses.
        bits: u32,
        /// The end of the RAM.
        end: u64,
    },
    /// The CPU lacks a feature that the guest's tables already use.
    #[error("CPU {cpu} lacks {feature}, which this guest's tables already use")]
    Lacks {
        /// Its place among the CPUs.
        cpu: usize,
        /// The first feature that it lacks.
        feature: &'static str,
    },
    /// The CPU lacks a feature that the guest's ID registers announce.
    #[error("CPU {cpu} has less than the guest was shown in {register}.{field}")]
    Less {
        /// Its place among the CPUs.
        cpu: usize,
        /// The ID register.
        register: &'static str,
        /// The first field in which the CPU has less.
        field: &'static str,
    },
}

/// The features that CPU 0 and all others share. `others` are the ID registers of CPU 1 and up, `None` for a CPU that
/// did not report them. EL2 has mapped RAM up to `ram_end`.
pub fn agree(
    boot: Features,
    others: impl IntoIterator<Item = Option<IdRegisters>>,
    ram_end: u64,
) -> Result<Features, Unfit> {
    others.into_iter().zip(1..).try_fold(boot, |common, (registers, cpu)| {
        let features = Features::from_registers(&registers.ok_or(Unfit::Silent { cpu })?);
        if ram_end > 1 << features.pa_bits {
            return Err(Unfit::ShortAddresses { cpu, bits: features.pa_bits, end: ram_end });
        }
        Ok(common.common(&features))
    })
}

/// Checks that the CPU has the features that are in use.
pub fn check(cpu: usize, in_use: &Features, features: &Features) -> Result<(), Unfit> {
    match in_use.not_kept_by(features).next() {
        Some(feature) => Err(Unfit::Lacks { cpu, feature }),
        None => Ok(()),
    }
}
