// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists of a guest's pages, and the program that compares the memory of two of them ([`super::compare`] has the format).
//!
//! Invariant: a list is complete when its file has its name. Where the guest's tables map a page, they and the memory's
//! own state agree on its frame.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use twofold_machine::fast::FastPlatform;
use twofold_memory::{Error, GuestMemory, SlotId};
use twofold_migration::stream;
use twofold_stage2::{Ipa, Pa};

use super::compare::Compared;
use super::settings::{PAGE, Settings};

/// How long the other side may take to write its list.
const PATIENCE: Duration = Duration::from_secs(20);

/// The path of a side's list. `when` distinguishes several lists of one move.
pub fn path(settings: &Settings, number: u64, side: &str, when: &str) -> PathBuf {
    settings.directory.join(format!("pages-{number}-{side}-{when}"))
}

/// Writes the list of a guest that stands still, whose memory is in a file.
///
/// # Errors
///
/// The file cannot be written, or the tables lead to another frame than the memory has.
pub fn write(
    path: &Path,
    (file, base): (&Path, Pa),
    memory: &GuestMemory<FastPlatform>,
    slots: &[(SlotId, stream::Slot)],
) -> anyhow::Result<()> {
    let pages = slots.iter().flat_map(|(_, slot)| slot.first..slot.first + slot.pages);
    write_with(path, file, pages.map(|page| Ok((page * PAGE, content(memory, base, Ipa::new(page * PAGE))?))))
}

/// Writes the list of pages that came later: each page that is in `came` is at its own offset in the file, counted from
/// the first page of the first memslot.
///
/// # Errors
///
/// The file cannot be written.
pub fn write_later(path: &Path, file: &Path, slot: &stream::Slot, came: impl Fn(u64) -> bool) -> anyhow::Result<()> {
    let line = |page: u64| {
        let content = if came(page) { format!("{:x}", page * PAGE) } else { "later".to_owned() };
        Ok(((slot.first + page) * PAGE, content))
    };
    write_with(path, file, (0..slot.pages).map(line))
}

/// Writes a list of these lines: the address of a page, and where its content is.
///
/// # Errors
///
/// A line is an error, or the file cannot be written.
pub fn write_with(
    path: &Path,
    file: &Path,
    lines: impl Iterator<Item = anyhow::Result<(u64, String)>>,
) -> anyhow::Result<()> {
    let mut text = format!("{}\n", file.display());
    for line in lines {
        let (page, content) = line?;
        writeln!(text, "{page:x} {content}")?;
    }
    let new = path.with_extension("new");
    fs::write(&new, text)
        .and_then(|()| fs::rename(&new, path))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Where the content of a page is.
fn content(memory: &GuestMemory<FastPlatform>, base: Pa, page: Ipa) -> anyhow::Result<String> {
    let frame = match memory.frame_of(page) {
        Err(Error::Absent { .. }) => return Ok("later".to_owned()),
        frame => frame?,
    };
    let mapped = memory.stage2().look_up(page).map(|leaf| leaf.descriptor.address() + (page - leaf.ipa));
    match (mapped, frame) {
        (Some(mapped), frame) if frame != Some(mapped) => {
            bail!("the guest's tables map {page} to {mapped}, and its content is in {frame:?}")
        }
        (_, None) => Ok("zero".to_owned()),
        (_, Some(frame)) => Ok(format!("{:x}", frame - base)),
    }
}

/// Waits for a list of the other side.
///
/// # Errors
///
/// It does not come.
pub fn wait(path: &Path) -> anyhow::Result<()> {
    let begin = Instant::now();
    while !path.exists() {
        ensure!(begin.elapsed() < PATIENCE, "the other side has not written {}", path.display());
        thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

/// Has the program of its own compare the memory of two lists.
///
/// # Errors
///
/// It cannot, or a page differs.
pub fn compare(program: &Path, source: &Path, target: &Path) -> anyhow::Result<Compared> {
    let mut program = Command::new(program);
    program.args(["bench", "migrate-compare"]).args([source, target]).stdin(Stdio::null());
    let done = program.output().context("cannot start the program that compares the memory")?;
    let compared: Compared = serde_json::from_slice(&done.stdout).with_context(|| {
        let said = String::from_utf8_lossy(&done.stderr);
        format!("the program that compares the memory has ended with {}: {}", done.status, said.trim())
    })?;
    if compared.differ > 0 {
        let first: Vec<_> = compared.first.iter().map(|page| format!("{page:#x}")).collect();
        bail!(
            "{} of {} pages differ between the stopped source and the target: {}{}",
            compared.differ,
            compared.pages,
            first.join(", "),
            if compared.differ > first.len() as u64 { ", ..." } else { "" }
        );
    }
    ensure!(done.status.success(), "the program that compares the memory has ended with {}", done.status);
    Ok(compared)
}
