// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The world switch between vCPUs: a whole vCPU into a CPU's registers, and out again.
//!
//! `world::enter` switches only what EL2 itself overwrites, on every exit. This module switches the rest, and only when
//! a CPU changes its vCPU: a vCPU that stays pays nothing.
//!
//! | file | contents |
//! |---|---|
//! | [`table`] | the registers: name, encoding, when each exists, why it is switched |
//! | [`left`] | the registers that are not switched, with reasons |
//! | [`has`] | the groups of registers that a CPU has |
//! | [`cpu`] | load and put, and the order of their steps |
//! | [`state`] | a vCPU's registers as data, out and in |
//! | [`debug`] | the debug registers, which trap |
//! | [`simd`] | the vector registers, which are switched on first use |

pub mod cpu;
pub mod debug;
pub mod has;
pub mod left;
pub mod simd;
pub mod state;
pub mod table;

pub use cpu::{LastVcpu, Running, Seat, Switch};
pub use has::Has;
pub use state::{Record, State, StateError};
