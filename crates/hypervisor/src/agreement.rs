// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What all CPUs of a guest can do, and which CPU must not run it.
//!
//! One set of tables serves all CPUs, and one CPU maintains the caches for another. So the engine uses what all of them have,
//! with the smallest of their cache lines.
//!
//! Invariant: a CPU that enters the guest keeps every feature that the guest's tables and their maintenance rely on.

use thiserror::Error;
use twofold_stage2::{Features, IdRegisters};

/// A CPU that cannot run the guest.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Unfit {
    /// It did not report its ID registers in time.
    #[error("CPU {cpu} does not answer: use fewer vCPUs")]
    Silent {
        /// Its place among the CPUs.
        cpu: usize,
    },
    /// It cannot address all of the RAM that EL2 has mapped already.
    #[error("CPU {cpu} has physical addresses of {bits} bits, but there is RAM up to {end:#x}: use fewer vCPUs")]
    ShortAddresses {
        /// Its place among the CPUs.
        cpu: usize,
        /// Bits of its physical addresses.
        bits: u32,
        /// Where the RAM ends.
        end: u64,
    },
    /// It lacks what the guest's tables use already.
    #[error("CPU {cpu} has not the {feature} that this guest's tables use already")]
    Lacks {
        /// Its place among the CPUs.
        cpu: usize,
        /// The first feature that it lacks.
        feature: &'static str,
    },
}

/// The features that CPU 0 and all others have in common. `others` are the ID registers of CPU 1 and up, `None` for one that
/// did not report them; EL2 has mapped RAM up to `ram_end`.
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

/// Whether the CPU keeps the features that are in use.
pub fn check(cpu: usize, in_use: &Features, features: &Features) -> Result<(), Unfit> {
    match in_use.not_kept_by(features).next() {
        Some(feature) => Err(Unfit::Lacks { cpu, feature }),
        None => Ok(()),
    }
}
