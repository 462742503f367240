// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Virtio devices over MMIO, version 2 (VIRTIO 1.2), with split virtqueues.
//!
//! A device is registers and queues ([`Virtio`]) around a model. The embedder forwards the guest's accesses to
//! [`Virtio::read`] and [`Virtio::write`], which touch no memory of the guest. The work is done by each device's `poll`:
//! after a write that returns true, and when the far end has data, room or a completion. The far end is a trait of data
//! in and data out, which never waits: [`block::Disk`], [`console::Terminal`], [`net::Port`], [`rng::Entropy`],
//! [`balloon::Pages`].
//!
//! # Invariants
//!
//! * **The guest is not trusted.** Each descriptor is read once, checked as it was read, and used as it was checked
//!   (`chain.rs`). Each access of memory goes through [`GuestRam`](crate::GuestRam), which checks it against the memslots
//!   and marks what is written. A guest that breaks a rule finds DEVICE_NEEDS_RESET, or its request fails.
//! * **A poll is bounded**: at most [`SEGMENTS`] descriptors a chain, and a fixed number of chains and bytes. If there is
//!   more to do, it returns [`Next::Again`]. After each chain it does so if the embedder
//!   [asks for a pause](crate::GuestRam::should_pause).
//! * **Absent pages lose nothing.** A poll that meets one returns [`Next::Absent`]. What the guest can see and what the
//!   far end was given are then from before the step that failed, or the step is in the state: the next poll does it.
//!   A step that has an effect outside comes after all that can fail, or before a debt that is kept (`queue.rs`).
//! * **After a reset, nothing of before.** A request that the far end still works on is an orphan: its completion
//!   touches nothing.
//! * **Nothing is allocated**, and the state is data: [`Virtio::state`], [`Virtio::with_state`].
//!
//! The order of accesses, in labelled steps, heads `queue.rs`.

pub mod balloon;
pub mod block;
mod chain;
pub mod console;
mod device;
pub mod layout;
pub mod net;
mod next;
mod queue;
pub mod rng;
mod snapshot;
mod state;
mod transport;

pub use balloon::Balloon;
pub use block::Block;
pub use chain::SEGMENTS;
pub use console::Console;
pub use device::Virtio;
pub use net::Net;
pub use next::{Fault, Next};
pub use rng::Rng;

#[doc(hidden)]
pub use device::Model;
