// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A network switch outside of QEMU.
//!
//! QEMUs plug in by `-netdev stream`, and so does every program that speaks the same: each frame is preceded by its length, 4
//! bytes in network order. A connection between two guests, or with the host, outlives the QEMU in which a guest runs: the
//! guest moves to another port of the switch, which learns that from its next frame.
//!
//! | module | purpose |
//! |---|---|
//! | [`listen`] | where the switch listens, and the connections of its ports |
//! | [`framing`] | frames in a stream of bytes |
//! | [`ports`] | the switch of `twofold_vmm`, with ports that come and go |
//! | [`gateway`] | an end of the network in this process: TCP to and from programs of the host, addresses by DHCP |
//! | [`server`] | the loop that waits for all of them |
//!
//! # Invariants
//!
//! * One thread, which waits in one place only. Nothing that one port does makes another one wait.
//! * Memory is bounded: a fixed number of ports, of frames that wait for each, and of connections through the gateway. A port
//!   that does not take its frames loses them.
//! * What comes from a port is not trusted: a frame with an impossible length ends that connection, and no other.
#![forbid(unsafe_code)]

pub mod framing;
pub mod gateway;
pub mod listen;
pub mod ports;
pub mod server;

pub use gateway::{Forward, Network, Serve};
pub use listen::Address;
pub use server::{Server, Settings, SwitchError};
