// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Test apparatus: the primitives with a hook in each of them, and what judges the engine from inside.
//!
//! It is in no build for a CPU but that of an image that writes a trace (feature `checked`).
//!
//! * [`word`], [`guarded`] and [`execute`] replace the files of the same names in `primitive`. They are the one place
//!   that reports every access, with its ordering and call site, to an [`observer`] (feature `checked`): a model of what
//!   CPUs and walks may see, or a trace;
//! * `loom_atomic` replaces the real atomics by the model checker's (`--cfg loom`). The model checker's tests are in
//!   `loom`;
//! * `mutants` leaves out or weakens one step, to see whether a test fails (`--cfg mutants`);
//! * `audit` compares tables with their metadata (feature `checked`).
//!
//! `#[track_caller]` marks the functions that are steps of a protocol: `cargo xtask mutants` makes its list from their
//! call sites.

#[cfg(feature = "checked")]
pub(crate) mod audit;
mod execute;
mod guarded;
#[cfg(all(test, loom))]
mod loom;
#[cfg(loom)]
mod loom_atomic;
#[cfg(mutants)]
pub(crate) mod mutants;
#[cfg(feature = "checked")]
pub(crate) mod observer;
mod word;

pub(crate) use execute::*;
pub(crate) use guarded::*;
#[cfg(feature = "checked")]
pub use observer::{Access, Observer, observe};
pub use word::*;

#[cfg(all(mutants, not(feature = "checked")))]
compile_error!("mutants are chosen by call site: they need the feature `checked`");
