// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Records the sample streams of this version: `record NAME` writes `tests/streams/NAME-*.stream`, and what its records
//! are to `.txt` files beside them. A stream that an earlier version wrote in the same way is recorded already. What was recorded once stays as it is: every later version has to read it.

#[path = "../tests/guest/mod.rs"]
mod guest;

use std::path::Path;
use std::{env, fs, io};

use twofold_migration::stream::Compression;

fn main() -> io::Result<()> {
    let name = env::args().nth(1).ok_or_else(|| io::Error::other("give the name of the new stream"))?;
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/streams");
    let streams = [
        ("whole", guest::stream(Compression::Off)),
        ("lz4", guest::stream(Compression::Lz4)),
        ("absent", guest::stream_with_absent(Compression::Lz4)),
    ];
    for (suffix, stream) in streams {
        if is_recorded(&directory, &stream)? {
            println!("{suffix}: an earlier version has recorded the same");
            continue;
        }
        let (came, result) = guest::read(&stream);
        result.map_err(io::Error::other)?;
        let path = directory.join(format!("{name}-{suffix}.stream"));
        if path.exists() {
            return Err(io::Error::other(format!("{} is there; a recorded stream never changes", path.display())));
        }
        fs::write(&path, stream)?;
        fs::write(path.with_extension("txt"), came.lines.join("\n") + "\n")?;
    }
    Ok(())
}

/// Whether a recorded stream has these bytes.
fn is_recorded(directory: &Path, stream: &[u8]) -> io::Result<bool> {
    for entry in fs::read_dir(directory)? {
        if fs::read(entry?.path())? == stream {
            return Ok(true);
        }
    }
    Ok(false)
}
