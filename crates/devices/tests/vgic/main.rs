// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the interrupt controller over a strict fake of the virtual CPU interface.

mod basics;
#[expect(dead_code, reason = "the model test uses the rest")]
mod fake;
