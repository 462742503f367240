// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files that the user names for results: checked before a long run, written after it.
//!
//! Invariant: a file appears whole or not at all, and nothing but a file is replaced.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::Value;
use tempfile::NamedTempFile;

/// Writes `value` to `path`, whole or not at all.
pub fn write_json(path: &Path, value: &Value) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", path.display());
    // Checked again, because the run took time: even root must not replace anything but a file.
    let target = target_of("--json", path)?;
    let file = temporary_beside(&target).with_context(failed)?;
    fs::write(file.path(), serde_json::to_string_pretty(value)? + "\n").with_context(failed)?;
    file.persist(target).with_context(failed)?;
    Ok(())
}

/// Checks that `path` can be written later, so that a long run does not fail at its end.
pub fn check_json(path: &Path) -> anyhow::Result<()> {
    check("--json", path)
}

/// Checks the same for the file of `option`.
pub fn check(option: &str, path: &Path) -> anyhow::Result<()> {
    let target = target_of(option, path)?;
    let directory = directory_of(&target);
    anyhow::ensure!(directory.is_dir(), "{option}: there is no directory {}; make it first", directory.display());
    // A file is made and dropped, because permissions alone do not show whether writing works.
    temporary_beside(&target)
        .with_context(|| format!("{option}: cannot write to the directory {}", directory.display()))?;
    Ok(())
}

/// Returns the file that `path` stands for. If `path` is a link, its target is replaced, never the link. An existing
/// target that is not a file is refused, because a rename would replace a device with a file.
fn target_of(option: &str, path: &Path) -> anyhow::Result<PathBuf> {
    let shown = path.display();
    if ["-", "/dev/stdout", "/dev/stderr"].iter().any(|name| path == Path::new(name)) {
        bail!("{option}: {shown} is where the table goes; name a file");
    }
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => bail!("{option}: {shown} is a directory; give a file"),
        Ok(metadata) if !metadata.is_file() => {
            bail!("{option}: {shown} is a device or a pipe, not a file; name a file")
        }
        Ok(_) => fs::canonicalize(path).with_context(|| format!("{option}: cannot follow {shown}")),
        Err(_) if path.is_symlink() => bail!("{option}: {shown} is a link to nothing; name a file"),
        // The caller reports a missing directory.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(path.to_owned()),
        Err(error) => Err(error).with_context(|| format!("{option}: cannot use {shown}")),
    }
}

fn temporary_beside(target: &Path) -> std::io::Result<NamedTempFile> {
    tempfile::Builder::new()
        // The usual mode, less the umask; the default of `tempfile` would be readable by the owner only.
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666))
        .tempfile_in(directory_of(target))
}

fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_report_is_written_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("figures.json");
        write_json(&path, &json!({"a": 1})).unwrap();
        write_json(&path, &json!({"b": {"c": 2}})).unwrap();
        let value: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(value, json!({"b": {"c": 2}}));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_place_that_cannot_be_is_refused_early() {
        let directory = tempfile::tempdir().unwrap();
        assert!(check_json(&directory.path().join("x.json")).is_ok());
        assert!(check_json(Path::new("x.json")).is_ok());
        assert!(check_json(directory.path()).is_err());
        assert!(check_json(&directory.path().join("no/x.json")).is_err());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        for name in ["-", "/dev/null", "/dev/stdout"] {
            assert!(check_json(Path::new(name)).unwrap_err().to_string().contains("name a file"), "{name}");
        }
    }

    #[test]
    fn a_link_stays_and_its_target_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("file"), directory.path().join("link"));
        symlink(&file, &link).unwrap();
        assert!(check_json(&link).unwrap_err().to_string().contains("a link to nothing"));
        fs::write(&file, "old").unwrap();
        check_json(&link).unwrap();
        write_json(&link, &json!(1)).unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "1\n");
    }
}
