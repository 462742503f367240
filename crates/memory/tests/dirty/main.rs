// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves of each tracker that what a guest, or a device, has written is told, and nothing else; that what is cleared is
//! protected first, and told again when it is written again; what that costs in flushes; and that nothing is lost where
//! memory is, or where somebody asks for what makes no sense.
//!
//! The guest has no TLB here: what may be left in one is for the unforgiving machine's tests.

#[path = "../machine/mod.rs"]
mod machine;

mod blocks;
mod costs;
mod dry;
mod given;
mod refused;
mod rounds;
mod sections;
mod sequences;
mod slots;
mod unmapped;
mod world;
