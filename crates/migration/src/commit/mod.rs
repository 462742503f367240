// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The commit.

mod ownership;

pub use ownership::{Owner, Ownership, Request, arbitrate};
