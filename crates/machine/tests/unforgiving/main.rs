// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine on the unforgiving machine.

mod basics;
mod random;
mod rules;
mod world;
