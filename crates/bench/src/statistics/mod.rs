// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is said of several runs.

mod quartiles;
mod ratio;
mod spread;

pub use quartiles::{Quartiles, short};
pub use ratio::{Random, Ratio};
pub use spread::Spread;

/// Fewer runs claim nothing: of 3 and 3, all of the one are above all of the other once in 10 times by chance, of 4 and 4 once
/// in 35 times.
pub const ENOUGH: usize = 4;
