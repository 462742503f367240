// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The judge of a move: it compares all of the guest on both sides when it is at the target, and has not entered it.
//!
//! Memory is compared by a program of its own, which reads both QEMUs' memory files and knows two lists of pages
//! ([`compare`](crate::experiment::migrate::compare)). State is compared as the sections that both hypervisors save. The source stands
//! still then, as the record has not yet said so to it, and keeps all it has.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, bail, ensure};
use twofold_abi::channel::Command;
use twofold_launch::frames::{self, Frame};
use twofold_launch::migrate::target::BeforeEntry;
use twofold_launch::session::Session;
use twofold_migration::stream::Slot;

use crate::experiment::host_clock::Moment;
use crate::experiment::migrate::lists;

/// What a judge needs to know.
pub struct Judge {
    /// The program that compares.
    pub program: PathBuf,
    /// For lists.
    pub directory: PathBuf,
    /// The number of the move.
    pub number: u64,
    /// The guest's memslots.
    pub slots: Vec<Slot>,
    /// The source, and the path of its machine's memory.
    pub source: (Arc<Session>, PathBuf),
    /// The path of the target's machine's memory.
    pub target: PathBuf,
    /// Whether a byte of the target is changed before, which has to be found.
    pub spoils: bool,
    /// Whether pages come after the guest's entry: then those of RAM cannot be compared before.
    pub follows: bool,
}

/// The guest was the same on both sides.
#[derive(Clone, Copy, Debug)]
pub struct Judged {
    /// When the comparison began, and when it ended.
    pub time: [Moment; 2],
    /// Pages that were compared.
    pub pages: u64,
}

/// What the judge has found, once it has.
pub type Found = Arc<Mutex<Option<Judged>>>;

impl Judge {
    /// Has the guest judged before its first entry.
    pub fn before_entry(self) -> (BeforeEntry, Found) {
        let found = Found::default();
        let to = Arc::clone(&found);
        let judge = move |target: &Session| {
            let begin = Moment::now();
            let pages = self.compare(target).map_err(|why| format!("{why:#}"))?;
            *to.lock().unwrap_or_else(PoisonError::into_inner) = Some(Judged { time: [begin, Moment::now()], pages });
            Ok(())
        };
        (Box::new(judge), found)
    }

    fn compare(&self, target: &Session) -> anyhow::Result<u64> {
        let (source, memory) = &self.source;
        let (here, there) = (saved(source).context("the source")?, saved(target).context("the target")?);
        ensure!(here == there, "a section of the stopped source and the target's differ");
        let lists = [(source.as_ref(), memory, "source"), (target, &self.target, "target")];
        let [source, target] = lists.map(|(session, memory, side)| self.list(session, memory, side));
        let [source, target] = [source?, target?];
        if self.spoils {
            spoil(&target, &self.target)?;
        }
        let compared = lists::compare(&self.program, &source, &target)?;
        ensure!((compared.later > 0) == self.follows, "{} pages have yet to come", compared.later);
        Ok(compared.pages)
    }

    /// Writes the list of a side.
    fn list(&self, session: &Session, memory: &Path, side: &str) -> anyhow::Result<PathBuf> {
        let path = self.directory.join(format!("pages-{}-{side}", self.number));
        let mut lines = Vec::new();
        frames::for_each(session, GUEST, &self.slots, |page, frame| {
            let content = match frame {
                Frame::At(offset) => format!("{offset:x}"),
                Frame::Zero => "zero".to_owned(),
                Frame::Absent => "later".to_owned(),
            };
            lines.push(Ok((page, content)));
        })
        .with_context(|| format!("where the {side}'s pages are"))?;
        lists::write_with(&path, memory, lines.into_iter())?;
        Ok(path)
    }
}

/// Changes a byte in the middle of the last page that has a frame, by this list.
fn spoil(list: &Path, memory: &Path) -> anyhow::Result<()> {
    let lines = fs::read_to_string(list)?;
    let offset = lines.lines().rev().find_map(|line| u64::from_str_radix(line.split_once(' ')?.1, 16).ok());
    let offset = offset.context("no page has a frame")? + 2048;
    let memory = File::options().read(true).write(true).open(memory)?;
    let mut byte = [0];
    memory.read_exact_at(&mut byte, offset)?;
    Ok(memory.write_all_at(&[byte[0] ^ 1], offset)?)
}

/// The sections of a stopped guest.
fn saved(session: &Session) -> anyhow::Result<Vec<u8>> {
    let answer = session.ask(Some(GUEST), Command::Save)?;
    if let Some(refusal) = answer.refusal {
        bail!("cannot save the guest: {}", refusal.text);
    }
    Ok(answer.content)
}

/// A host has one guest.
pub const GUEST: u16 = 0;
