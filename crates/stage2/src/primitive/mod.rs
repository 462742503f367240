// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The primitives of the engine: words that CPUs share, fences, and the architecture's instructions.
//!
//! No other module of this crate uses an atomic, or calls the platform for an instruction. Each function here is the one
//! instruction that it is named after, and a report is nothing at all. Test builds take module `instrumented` instead,
//! which has the same names: there each access is reported to an observer, run by a model checker, or left out.

mod claim;
#[cfg(not(any(feature = "checked", loom, mutants)))]
mod execute;
#[cfg(not(any(feature = "checked", loom, mutants)))]
mod guarded;
#[cfg(not(any(feature = "checked", loom, mutants)))]
mod word;

pub use core::sync::atomic::Ordering;

pub use claim::Claim;
#[cfg(not(any(feature = "checked", loom, mutants)))]
pub(crate) use execute::*;
#[cfg(not(any(feature = "checked", loom, mutants)))]
pub(crate) use guarded::*;
#[cfg(not(any(feature = "checked", loom, mutants)))]
pub use word::*;

#[cfg(any(feature = "checked", loom, mutants))]
pub use crate::instrumented::*;
