// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A trace from any source.

use twofold_abi::trace::{Header, Line, is_comment};

/// A line is refused, or is written as a line that parses to the same event.
pub fn trace(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for text in text.lines().filter(|text| !is_comment(text)) {
        if let Ok(header) = Header::parse(text) {
            assert_eq!(Header::parse(&header.to_string()), Ok(header));
        }
        if let Ok(line) = Line::parse(text) {
            assert_eq!(Line::parse(&line.to_string()), Ok(line));
        }
    }
}
