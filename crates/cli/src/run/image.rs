// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hypervisor's image: a file of the user's, the one in this command, or the one of the checkout.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use twofold_launch::built;
use twofold_launch::image::Image;

/// The image in this command; empty if it was built without.
static EMBEDDED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/twofold.img"));

/// Finds the image. The one in this command is written to `directory`.
pub fn find(given: Option<&Path>, directory: &Path) -> anyhow::Result<PathBuf> {
    if let Some(path) = given {
        Image::open(path).with_context(|| format!("--image {}: that is no image of the hypervisor", path.display()))?;
        return Ok(path.to_owned());
    }
    if !EMBEDDED.is_empty() {
        let path = directory.join("twofold.img");
        fs::write(&path, EMBEDDED).with_context(|| format!("cannot write {}", path.display()))?;
        return Ok(path);
    }
    let built = built::images().join("twofold.img");
    if built.is_file() {
        return Ok(built);
    }
    bail!(
        "this command has no image of the hypervisor: run `cargo xtask build` in its checkout, or give --image FILE; \
         `cargo xtask dist` builds a command that has one"
    )
}
