// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests the scheduler in simulated time: shares, bounds on waiting, wake-ups, handing on, stolen time.

mod entities;
mod following;
mod locks;
mod machine;
mod one_call;
mod races;
mod shares;
mod slices;
mod stolen;
mod waits;
