// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's virtio devices: what is behind the models of `twofold_devices::virtio`.
//!
//! | file | contents |
//! |---|---|
//! | [`host`] | what the machine's disks and cards have to do for those of guests |
//! | [`network`] | a network between guests, and its lock |

pub mod host;
pub mod network;
