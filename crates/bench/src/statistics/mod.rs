// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Summaries of several runs.

mod mean;
mod quartiles;
mod ratio;
mod spread;

pub use mean::Mean;
pub use quartiles::{Quartiles, short};
pub use ratio::{Random, Ratio};
pub use spread::Spread;

/// With fewer runs than this, no change is claimed. If both sides are alike, all of one are above all of the other by
/// chance once in 10 times with 3 runs each, and once in 35 times with 4.
pub const ENOUGH: usize = 4;
