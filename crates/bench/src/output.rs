// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Output: lines on standard output, errors on standard error, files.
//!
//! Invariant: no write panics, and a file appears complete or not at all.

use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;
use tempfile::NamedTempFile;

/// Writes `text` and a line end to standard output.
pub fn line(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}")?;
    stdout.flush()?;
    Ok(())
}

/// Writes an error to standard error, if that is possible.
pub fn error(text: &str) {
    let _ = writeln!(io::stderr().lock(), "error: {text}");
}

/// Returns whether the error is that standard output is closed.
pub fn is_closed(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Writes `value` to `path` as JSON.
pub fn json(path: &Path, value: &impl Serialize) -> anyhow::Result<()> {
    whole(path, |file| Ok(serde_json::to_writer_pretty(&mut *file, value).map(|()| writeln!(file))??))
}

/// Writes `text` to `path`.
pub fn file(path: &Path, text: &str) -> anyhow::Result<()> {
    whole(path, |file| Ok(file.write_all(text.as_bytes())?))
}

/// A temporary file with the permissions of a normal one, less the umask. By default only its owner could read it.
fn readable() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.permissions(Permissions::from_mode(0o666));
    builder
}

fn whole(path: &Path, write: impl FnOnce(&mut NamedTempFile) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let all = || -> anyhow::Result<()> {
        let mut file = readable().tempfile_in(directory)?;
        write(&mut file)?;
        file.persist(path)?;
        Ok(())
    };
    all().with_context(|| format!("cannot write {}", path.display()))
}
