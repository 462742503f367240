// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What runs an experiment's guests, chosen by platform.

use std::path::Path;

use super::hypervisor::Hypervisor;
use super::kvm::Kvms;
use super::machine::Machines;
use super::progress::Progress;
use super::target::Targets;
use crate::results::{Platform, Results};
use crate::stop::Stop;

/// What runs an experiment's guests.
pub enum Runner {
    /// Its guests' operations are called one by one, and timed.
    Timed(Box<dyn Targets>),
    /// Its guest runs the whole experiment, and EL2 counts.
    Counted(Hypervisor),
}

impl Runner {
    /// The runner of a platform. `images` is the directory of the hypervisor's images; `None` is this workspace's.
    ///
    /// # Errors
    ///
    /// The platform is not available.
    pub fn find(platform: Platform, images: Option<&Path>, stop: &Stop, progress: &Progress) -> anyhow::Result<Self> {
        Ok(match platform {
            Platform::Machine => Self::Timed(Box::new(Machines::new())),
            Platform::Kvm => Self::Timed(Box::new(Kvms::new()?)),
            Platform::Hypervisor => Self::Counted(Hypervisor::find(images, stop, |what| progress.doing(what))?),
        })
    }

    /// Adds what a reader of the figures needs to know about the platform.
    pub fn describe(&self, results: &mut Results) {
        match self {
            Self::Timed(targets) => targets.describe(results),
            Self::Counted(hypervisor) => hypervisor.describe(results),
        }
    }
}
