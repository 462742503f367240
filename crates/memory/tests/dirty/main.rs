// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Proves for each tracker: the log reports the pages that a guest or a device has written, and no others; a cleared
//! page is protected first, and reported again when it is written again; how many flushes that takes; and that no write
//! is lost if memory runs out, or if a call is invalid.
//!
//! The guest has no TLB here. Stale TLB entries are tested in the machine's strict mode.

#[path = "../machine/mod.rs"]
mod machine;

mod blocks;
mod costs;
mod dry;
mod preallocated;
mod refused;
mod rounds;
mod sections;
mod sequences;
mod slots;
mod unmapped;
mod world;
