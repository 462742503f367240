// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Records the sample stream of this version: `record NAME` writes `tests/streams/NAME.stream`, and what its records are
//! to `NAME.txt` beside it. What was recorded once stays as it is: every later version has to read it.

#[path = "../tests/guest/mod.rs"]
mod guest;

use std::path::Path;
use std::{env, fs, io};

use twofold_migration::stream::Compression;

fn main() -> io::Result<()> {
    let name = env::args().nth(1).ok_or_else(|| io::Error::other("give the name of the new stream"))?;
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/streams");
    for (suffix, compression) in [("whole", Compression::Off), ("lz4", Compression::Lz4)] {
        let stream = guest::stream(compression);
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
