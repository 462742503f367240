// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Live migration and snapshots of a guest.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod commit;
pub mod plan;
pub mod stream;
