// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hands the images their linker script.

fn main() {
    let directory = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    println!("cargo:rustc-link-arg-bins=-T{directory}/link.ld");
    println!("cargo:rerun-if-changed=link.ld");
}
