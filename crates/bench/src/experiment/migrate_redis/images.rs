// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Linux guest that serves Redis, as `cargo xtask build --linux-redis` makes it.

use std::path::{Path, PathBuf};

use crate::experiment::hypervisor::images;

/// The guest's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisImages {
    /// Its kernel.
    pub kernel: PathBuf,
    /// Its initrd.
    pub initrd: PathBuf,
}

impl RedisImages {
    /// The guest of `directory`, or of this workspace. `doing` is called with a message before a long build.
    ///
    /// # Errors
    ///
    /// A file is missing, and cannot be made.
    pub fn find(directory: Option<&Path>, doing: impl Fn(&str)) -> anyhow::Result<Self> {
        let [kernel, initrd] =
            images::made_by(&["build", "--linux-redis"], ["redis-linux.img", "redis.cpio"], directory, || {
                doing("making a Linux guest with Redis (cargo xtask build --linux-redis)");
            })?;
        Ok(Self { kernel, initrd })
    }
}
