// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where `cargo xtask build` leaves the images of the checkout that this program was built from.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Returns the directory of the images. It need not be there: a program may run on another machine than its checkout.
pub fn images() -> PathBuf {
    images_in(std::env::var_os("CARGO_TARGET_DIR"))
}

/// Returns the top of the checkout.
pub fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The images' directory below this target directory of Cargo's. Xtask runs at the top of the checkout, so a relative one
/// begins there.
fn images_in(target: Option<OsString>) -> PathBuf {
    let target = target.filter(|path| !path.is_empty()).unwrap_or_else(|| "target".into());
    checkout().join(target).join("image")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_in_the_target_directory_that_cargo_has() {
        let shared = images_in(Some("/shared/target".into()));
        assert_eq!(shared, Path::new("/shared/target/image"));
        assert_eq!(images_in(Some("below".into())), checkout().join("below/image"));
        assert_eq!([images_in(None), images_in(Some("".into()))], [(); 2].map(|()| checkout().join("target/image")));
    }
}
