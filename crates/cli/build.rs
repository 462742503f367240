// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Puts the hypervisor's image into the command. `cargo xtask dist` names it in `TWOFOLD_IMAGE`; in a build without it, the
//! command has none.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-env-changed=TWOFOLD_IMAGE");
    let image = match env::var_os("TWOFOLD_IMAGE") {
        Some(path) => {
            println!("cargo::rerun-if-changed={}", path.display());
            fs::read(&path).unwrap_or_else(|why| panic!("TWOFOLD_IMAGE: cannot read {}: {why}", path.display()))
        }
        None => Vec::new(),
    };
    let out = env::var_os("OUT_DIR").map(PathBuf::from).expect("Cargo sets OUT_DIR");
    fs::write(out.join("twofold.img"), image).expect("Cargo's directory can be written");
}
