// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A hosted machine in a Linux process, without privileges: real memory, vCPU threads that run guest programs, and a
//! software MMU that walks the engine's own tables.

pub mod arena;
pub mod fast;
pub mod file_store;
pub mod guest_tables;
pub mod interrupts;
pub mod key_value;
pub mod passes;
pub mod program;
pub mod relay;
#[cfg(feature = "strict")]
pub mod strict;
pub mod tasks;
pub mod tlbi;
#[cfg(feature = "strict")]
mod turns;
pub mod vm;
#[cfg(feature = "strict")]
mod waits;
pub mod walk;
