// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What only experiments need.

#[cfg(feature = "baselines")]
pub mod baselines;
pub mod log_calls;
#[cfg(feature = "oracle")]
pub mod oracle;
pub mod phases;
#[cfg(feature = "record")]
pub mod record;
#[cfg(feature = "trace")]
pub mod trace;
#[cfg(any(feature = "oracle", feature = "record"))]
pub mod translation_registers;
pub mod vendor;
