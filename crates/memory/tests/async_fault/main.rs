// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves that asynchronous page faults keep their protocol (`docs/async-page-fault.md`): each race driven by hand, the
//! guest's calls to the bit, and a simulated guest and store in random orders.

mod announced;
mod area;
mod calls;
mod cancelled;
mod halted;
mod moved;
mod ready;
mod rig;
mod simulated;
