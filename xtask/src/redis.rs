// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Debian's Redis for a guest: its server, its benchmark, its client, and the libraries that these load.
//!
//! The programs name their libraries themselves (DT_NEEDED). Invariant: the cache is complete or absent, as for the
//! kernel ([`twofold_workspace::fetch`]).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, ensure};
use object::Endianness;
use object::elf::DT_NEEDED;
use object::read::elf::{ElfFile64, FileHeader};
use twofold_workspace::apt::Apt;
use twofold_workspace::fetch::Fetched;
use twofold_workspace::{Workspace, fetch, initramfs};

/// The files for the initramfs.
#[derive(Clone, Debug)]
pub struct Redis {
    /// Debian's version.
    pub version: String,
    /// Programs and libraries by their names in the initramfs: `bin/redis-server`, `lib/libc.so.6`.
    pub files: BTreeMap<String, Vec<u8>>,
}

/// Linux, Redis, and the initramfs with both.
pub fn guest(workspace: &Workspace, refresh: bool) -> anyhow::Result<(Fetched, Redis, PathBuf)> {
    let (linux, redis) = (fetch::fetch(workspace, refresh)?, fetch_redis(workspace, refresh)?);
    let initrd = initramfs::make(workspace, "redis.cpio", initramfs::GUEST, &linux.busybox, &redis.files)?;
    Ok((linux, redis, initrd))
}

/// Returns Redis from the cache. Fetches it from Debian if it is not cached or if `refresh` is set.
pub fn fetch_redis(workspace: &Workspace, refresh: bool) -> anyhow::Result<Redis> {
    let place = workspace.guest_cache().join(PLACE);
    if let (false, Ok(redis)) = (refresh, Redis::read(&place)) {
        return Ok(redis);
    }
    let cache = workspace.guest_cache();
    fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let directory = tempfile::Builder::new().prefix("fetch-").tempdir_in(&cache).context("cannot write the cache")?;
    let apt = Apt::new(directory.path())?;
    // The source that failed may not be the one with Redis. So the update's error counts only if unpacking fails.
    let updated = apt.update();
    let unpacked = apt.unpack_all(PACKAGE);
    let (tree, version) = match (unpacked, updated) {
        (Ok(unpacked), _) => unpacked,
        (Err(_), Err(error)) | (Err(error), Ok(())) => return Err(error),
    };
    let redis = Redis { version, files: gather(&tree)? };
    let new = directory.path().join("new");
    redis.write(&new).context("cannot write the cache")?;
    fetch::put(&new, &place, &directory.path().join("old"))?;
    Ok(redis)
}

const PLACE: &str = "redis";
const VERSION: &str = "version";
const PACKAGE: &str = "redis-server";
const PROGRAMS: [&str; 3] = ["redis-server", "redis-benchmark", "redis-cli"];
/// The directories of Debian's libraries and of the dynamic linker.
const LIBRARIES: [&str; 4] = ["lib/aarch64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib", "usr/lib"];

/// Reads the programs, and all libraries that they load, from a tree of unpacked packages.
fn gather(tree: &Path) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    let mut wanted: Vec<_> = PROGRAMS.iter().map(|name| ("bin", (*name).to_owned())).collect();
    while let Some((kind, name)) = wanted.pop() {
        let path = format!("{kind}/{name}");
        if files.contains_key(&path) {
            continue;
        }
        let places: &[&str] = if kind == "bin" { &["usr/bin", "bin"] } else { &LIBRARIES };
        let found = places.iter().map(|place| tree.join(place).join(&name)).find(|file| file.is_file());
        let found = found.ok_or_else(|| anyhow!("{PACKAGE} and what it depends on have no {name}"))?;
        let content = fs::read(&found).with_context(|| format!("cannot read {}", found.display()))?;
        let needed = needed(&content).with_context(|| format!("{name} is no arm64 program"))?;
        wanted.extend(needed.into_iter().map(|name| ("lib", name)));
        files.insert(path, content);
    }
    Ok(files)
}

/// Returns the libraries that a program or a library names.
fn needed(elf: &[u8]) -> anyhow::Result<Vec<String>> {
    let file: ElfFile64<'_, Endianness> = ElfFile64::parse(elf)?;
    let (endian, header) = (file.endian(), file.elf_header());
    let table = header.sections(endian, elf)?.dynamic_table(endian, elf)?;
    let names = table.iter().filter(|entry| entry.tag == DT_NEEDED).map(|entry| table.string(entry));
    names.map(|name| Ok(String::from_utf8_lossy(name?).into_owned())).collect()
}

impl Redis {
    fn read(place: &Path) -> anyhow::Result<Self> {
        let version = fs::read_to_string(place.join(VERSION))?;
        let mut files = BTreeMap::new();
        for directory in ["bin", "lib"] {
            for entry in fs::read_dir(place.join(directory))? {
                let entry = entry?;
                let name = entry.file_name().into_string().map_err(|name| anyhow!("{} is no name", name.display()))?;
                files.insert(format!("{directory}/{name}"), fs::read(entry.path())?);
            }
        }
        let missing = PROGRAMS.iter().find(|name| !files.contains_key(&format!("bin/{name}")));
        ensure!(missing.is_none(), "the cache has no {}", missing.unwrap_or(&""));
        Ok(Self { version, files })
    }

    fn write(&self, place: &Path) -> anyhow::Result<()> {
        for directory in ["bin", "lib"] {
            fs::create_dir_all(place.join(directory))?;
        }
        for (name, content) in &self.files {
            fs::write(place.join(name), content)?;
        }
        Ok(fs::write(place.join(VERSION), &self.version)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cached_is_what_was_fetched() {
        let directory = tempfile::tempdir().unwrap();
        let programs = PROGRAMS.map(|name| (format!("bin/{name}"), b"program".to_vec()));
        let mut files = BTreeMap::from(programs);
        files.insert("lib/libc.so.6".to_owned(), b"library".to_vec());
        let redis = Redis { version: "5:7.0".to_owned(), files };
        redis.write(directory.path()).unwrap();
        let read = Redis::read(directory.path()).unwrap();
        assert_eq!((read.version, read.files), (redis.version.clone(), redis.files.clone()));
        fs::remove_file(directory.path().join("bin").join(PROGRAMS[2])).unwrap();
        assert!(Redis::read(directory.path()).unwrap_err().to_string().contains(PROGRAMS[2]), "of an older version");
        redis.write(directory.path()).unwrap();
        fs::remove_file(directory.path().join(VERSION)).unwrap();
        assert!(Redis::read(directory.path()).is_err());
    }

    #[test]
    fn a_program_names_its_libraries() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        let needed = needed(&own).unwrap();
        assert!(needed.iter().any(|name| name.starts_with("libc.so")), "{needed:?}");
        assert!(super::needed(b"no ELF").is_err());
    }

    #[test]
    fn what_is_missing_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let error = gather(directory.path()).unwrap_err().to_string();
        assert!(error.contains("no redis-"), "{error}");
    }
}
