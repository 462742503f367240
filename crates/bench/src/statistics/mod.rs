// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is said of several runs.

mod quartiles;
mod ratio;
mod spread;

pub use quartiles::{Quartiles, short};
pub use ratio::{Random, Ratio};
pub use spread::Spread;
