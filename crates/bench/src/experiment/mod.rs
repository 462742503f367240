// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The experiments: what the guest does, what its hypervisor does meanwhile, and which parts are timed. Each experiment
//! is written once, and runs on every [`Target`](target::Target).

pub mod continuous;
pub mod dirty_log;
pub mod hypervisor;
pub mod kvm;
pub mod machine;
pub mod outcome;
pub mod page_table;
pub mod progress;
pub mod record;
pub mod setup;
pub mod target;
pub mod threads;
pub mod window;

use anyhow::bail;

use crate::results::Platform;
use target::Targets;

/// The guests of a platform.
///
/// # Errors
///
/// The platform is not available.
pub fn on(platform: Platform) -> anyhow::Result<Box<dyn Targets>> {
    match platform {
        Platform::Machine => Ok(Box::new(machine::Machines::new())),
        Platform::Kvm => Ok(Box::new(kvm::Kvms::new()?)),
        Platform::Hypervisor => bail!("the hypervisor has experiments of its own"),
    }
}
