// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The virtio devices, driven by the specification, by a hostile guest, by an independent driver, and over memory whose
//! pages come and go.

mod absent;
mod balloon;
mod block;
mod console;
mod disk;
mod driver;
mod drivers_crate;
mod hostile;
mod model_disk;
mod net;
mod numbers;
mod once;
mod order;
mod ram;
mod random;
mod registers;
mod resets;
mod rng;
mod states;
