// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine on the strict machine.

mod allowed;
mod basics;
mod coherence;
mod come_and_go;
mod controls;
mod directed;
mod granules;
mod groups;
mod interrupted;
mod log;
mod log_judges;
mod random;
mod recorded;
mod rules;
#[allow(dead_code, reason = "the tests of migration use more of it")]
mod store;
mod swap;
mod tasks;
mod vm;
mod vmids;
#[path = "../../../stage2/tests/platform/window.rs"]
mod window;
mod withdrawn;
mod world;
