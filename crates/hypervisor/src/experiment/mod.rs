// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What only experiments need. The rest of the hypervisor meets it at [`ExitObserver`], which sees each exit of the
//! guest, and at the types that are chosen here by feature.
//!
//! | file | contents |
//! |---|---|
//! | [`exit_observer`] | the moments of a guest that an experiment sees |
//! | [`observed_guest`] | what an experiment may use of the virtual machine |
//! | [`platform`] | the engine's platform, which an experiment may wrap |
//! | [`baselines`] | techniques replaced by their baselines: feature `baselines` |
//! | [`vendor`], [`log_calls`], [`phases`] | the calls by which a guest measures itself: any image, if the bundle allows them |
//! | `trace` | the engine's steps, line by line: feature `trace` |
//! | `oracle` | compares the dirty log with the guest's memory: feature `oracle` |
//! | `record` | keeps the pages of the dirty log: feature `record` |
//! | `translation_registers` | the guest's trapped writes to these registers, by which `oracle` and `record` enter EL2 |
//!
//! An image has at most one of the features `trace`, `oracle` and `record`.

pub mod baselines;
pub mod exit_observer;
pub mod log_calls;
pub mod observed_guest;
#[cfg(feature = "oracle")]
pub mod oracle;
pub mod phases;
pub mod platform;
#[cfg(feature = "record")]
pub mod record;
#[cfg(feature = "trace")]
pub mod trace;
#[cfg(any(feature = "oracle", feature = "record"))]
pub mod translation_registers;
pub mod vendor;

pub use exit_observer::ExitObserver;
pub use observed_guest::ObservedGuest;
pub use platform::EnginePlatform;

#[cfg(not(any(feature = "trace", feature = "oracle", feature = "record")))]
pub use exit_observer::NoObserver as Observer;
#[cfg(feature = "oracle")]
pub use oracle::Oracle as Observer;
#[cfg(feature = "record")]
pub use record::Recorder as Observer;
#[cfg(feature = "trace")]
pub use trace::Tracer as Observer;
