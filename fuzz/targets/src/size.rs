// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A number of bytes, in the form of an option of `cargo xtask`.

use twofold_launch::guest;
use twofold_launch::size::Size;

/// Any text is refused with advice, or is a number. The number, written as text, is read back as the same.
pub fn size(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match text.parse::<Size>() {
        Ok(size) => {
            same(size.bytes());
            assert_eq!(size.to_string(), guest::size(size.bytes()));
        }
        Err(advice) => assert!(!advice.is_empty()),
    }
    same(data.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte)));
}

fn same(bytes: u64) {
    let text = guest::size(bytes);
    assert_eq!(text.parse().map(Size::bytes), Ok(bytes), "{text}");
}
