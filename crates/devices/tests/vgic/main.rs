// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the interrupt controller over a strict fake of the virtual CPU interface.

mod agreement;
mod basics;
mod elsewhere;
mod events;
mod fake;
mod model;
mod quiet;
mod random;
mod refused;
mod world;
