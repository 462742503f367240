// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Streams that earlier versions wrote. Every later version reads them, and finds in them what was sent.
//!
//! `cargo run -p twofold-migration --example record NAME` records this version's. A recorded stream never changes.

mod guest;

use std::fs;
use std::path::Path;

use twofold_migration::stream::wire::{OLDEST, Preamble, VERSION};
use zerocopy::FromBytes;

#[test]
fn every_recorded_stream_is_read() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/streams");
    let mut versions = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "stream") {
            let stream = fs::read(&path).unwrap();
            let (came, result) = guest::read(&stream);
            assert_eq!(result, Ok(()), "{}", path.display());
            let wanted = fs::read_to_string(path.with_extension("txt")).unwrap();
            assert_eq!(came.lines.join("\n") + "\n", wanted, "{}", path.display());
            assert_eq!(came.offer, Some(guest::OFFER));
            versions.push(Preamble::read_from_prefix(&stream).unwrap().0.version.get());
        }
    }
    versions.sort_unstable();
    versions.dedup();
    assert_eq!(versions, (OLDEST..=VERSION).collect::<Vec<_>>(), "each version that is read has a recorded stream");
}
