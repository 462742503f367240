// SPDX-License-Identifier: Apache-2.0 OR MIT
#![doc = include_str!("../README.md")]
//!
//! A model is data: it has no thread, no clock and no lock, and touches nothing of the machine that it runs on. Its
//! embedder passes in what it needs with each call: an access of the guest, the time, the guest's memory
//! ([`GuestRam`]), the device's interrupt line ([`InterruptLine`]). So the same model runs at EL2, on the hosted machine,
//! and under property tests and fuzzers.
//!
//! # The rules that this crate keeps
//!
//! * No access of a guest panics, whatever its offset, width and value.
//! * A model's work for one access is bounded.
//! * What a model allocates is fixed when it is made.
//! * Each model gives its whole state and takes it back, and refuses a state that no device could have reached.
//! * A page of the guest may be absent at any time ([`RamError::Absent`]). A model that meets one changes nothing that
//!   the guest can see, and does the same work again when the embedder says that the page is back.
#![no_std]
#![forbid(unsafe_code)]

pub mod access;
mod fifo;
pub mod line;
pub mod pl011;
pub mod pl031;
mod primecell;
pub mod ram;
pub mod state;
pub mod stolen_time;
pub mod vgic;
pub mod virtio;

pub use access::Width;
pub use line::InterruptLine;
pub use pl011::Pl011;
pub use pl031::Pl031;
pub use ram::{Barrier, GuestRam, RamError};
pub use state::StateError;
pub use stolen_time::StolenTime;
