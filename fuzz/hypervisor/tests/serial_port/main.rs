// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The serial port's driver against a naive console.

mod bytes;
mod console;
mod control;
mod random;
mod refused;
