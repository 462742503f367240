// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gives the linker the layout of the program.

fn main() {
    let manifest = std::env::var("CARGO_MANIFEST_DIR").expect("Cargo sets CARGO_MANIFEST_DIR");
    println!("cargo:rustc-link-arg-bins=-T{manifest}/link.ld");
    println!("cargo:rerun-if-changed=link.ld");
}
