// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program of its own that compares the memory of a guest that stopped with the memory of the guest that came of it.
//!
//! It knows two lists of pages and the memory files behind them, and nothing else: no dirty log, no stream, no round. A
//! list's first line is the path of the memory file. Each other line is a page: its address in the guest, and the offset
//! of its content in the file, `zero` if no frame holds it, or `later` if it has yet to come.
//!
//! Invariant: a page is counted as compared only if all of its bytes were read from both files, or are zero by a list.
//! Both lists must have the same pages.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::options::CompareRamOptions;
use crate::output;

/// What was compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compared {
    /// Pages that were compared.
    pub pages: u64,
    /// Pages that have yet to come.
    pub later: u64,
    /// Pages that differ.
    pub differ: u64,
    /// The addresses of the first of them.
    pub first: Vec<u64>,
}

/// `twofold bench migrate-compare`: prints what was compared, as JSON.
///
/// # Errors
///
/// A list or a memory file cannot be read, or the lists have different pages.
pub fn command(options: &CompareRamOptions) -> anyhow::Result<ExitCode> {
    let compared = compare(&options.source, &options.target)?;
    output::line(&serde_json::to_string(&compared)?)?;
    Ok(if compared.differ == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn compare(source: &Path, target: &Path) -> anyhow::Result<Compared> {
    let (mut source, mut target) = (List::open(source)?, List::open(target)?);
    let (mut one, mut other) = (vec![0; PAGE], vec![0; PAGE]);
    let mut compared = Compared::default();
    let mut last = None;
    loop {
        let (here, there) = match (source.next()?, target.next()?) {
            (Some(here), Some(there)) => (here, there),
            (None, None) => break,
            _ => bail!("one list has more pages than the other, after {:#x}", last.unwrap_or(0)),
        };
        ensure!(here.0 == there.0, "the source has a page at {:#x}, and the target at {:#x}", here.0, there.0);
        ensure!(last < Some(here.0), "the pages are not in ascending order at {:#x}", here.0);
        last = Some(here.0);
        if there.1 == Content::Later {
            compared.later += 1;
            continue;
        }
        source.read(here.1, &mut one)?;
        target.read(there.1, &mut other)?;
        compared.pages += 1;
        if one != other {
            compared.differ += 1;
            if compared.first.len() < SHOWN {
                compared.first.push(here.0);
            }
        }
    }
    ensure!(compared.pages + compared.later > 0, "the lists have no pages");
    Ok(compared)
}

/// Bytes of a page.
const PAGE: usize = 4096;
/// How many of the pages that differ are named.
const SHOWN: usize = 8;

/// Where the content of a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    At(u64),
    Zero,
    Later,
}

/// A list of pages, and the file that has their content.
struct List {
    name: String,
    lines: BufReader<File>,
    memory: File,
}

impl List {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let mut lines = BufReader::new(File::open(path).with_context(|| format!("cannot read {name}"))?);
        let mut memory = String::new();
        lines.read_line(&mut memory)?;
        let memory = memory.trim_end();
        let memory = File::open(memory).with_context(|| format!("cannot read the memory {memory} of {name}"))?;
        Ok(Self { name, lines, memory })
    }

    fn next(&mut self) -> anyhow::Result<Option<(u64, Content)>> {
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let strange = || format!("{} has the line {line:?}", self.name);
        let (page, content) = line.trim_end().split_once(' ').with_context(strange)?;
        let number = |text| u64::from_str_radix(text, 16).with_context(strange);
        let content = match content {
            "zero" => Content::Zero,
            "later" => Content::Later,
            offset => Content::At(number(offset)?),
        };
        Ok(Some((number(page)?, content)))
    }

    fn read(&self, content: Content, bytes: &mut [u8]) -> anyhow::Result<()> {
        match content {
            Content::Zero => bytes.fill(0),
            Content::At(offset) => {
                let read = self.memory.read_exact_at(bytes, offset);
                read.with_context(|| format!("the memory of {} ends before {offset:#x}", self.name))?;
            }
            Content::Later => bail!("{} has a page that has yet to come: the source has all", self.name),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Compares two memories of three pages by these lists.
    fn compared(memories: [&[u8]; 2], lists: [&str; 2]) -> Result<Compared, String> {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = directory.path().join(name);
            fs::write(&path, bytes).unwrap();
            path
        };
        let lists: Vec<_> = (0..2)
            .map(|at| {
                let memory = file(&format!("memory {at}"), memories[at]);
                file(&format!("list {at}"), format!("{}\n{}", memory.display(), lists[at]).as_bytes())
            })
            .collect();
        compare(&lists[0], &lists[1]).map_err(|error| format!("{error:#}"))
    }

    fn pages(fill: [u8; 3]) -> Vec<u8> {
        fill.into_iter().flat_map(|byte| [byte; PAGE]).collect()
    }

    #[test]
    fn each_byte_of_each_page_counts() {
        let source = pages([1, 2, 3]);
        let (here, there) = ("1000 0\n2000 1000\n3000 2000\n", "1000 2000\n2000 1000\n3000 0\n");
        let same = pages([3, 2, 1]);
        assert_eq!(compared([&source, &same], [here, there]), Ok(Compared { pages: 3, ..Compared::default() }));
        for byte in [0, PAGE - 1, PAGE, 3 * PAGE - 1] {
            let mut other = same.clone();
            other[byte] ^= 1;
            let found = compared([&source, &other], [here, there]).unwrap();
            let page = [0x3000, 0x2000, 0x1000][byte / PAGE];
            assert_eq!((found.differ, found.first), (1, vec![page]), "byte {byte}");
        }
    }

    #[test]
    fn a_page_without_a_frame_is_zero_and_nothing_else() {
        let (zero, other) = (pages([0; 3]), pages([0, 0, 5]));
        let wanted = Compared { pages: 2, ..Compared::default() };
        assert_eq!(compared([&zero, &zero], ["1000 zero\n2000 0\n", "1000 0\n2000 zero\n"]), Ok(wanted));
        assert_eq!(compared([&other, &zero], ["1000 2000\n", "1000 zero\n"]).unwrap().differ, 1);
        assert_eq!(compared([&zero, &other], ["1000 zero\n", "1000 2000\n"]).unwrap().differ, 1);
    }

    #[test]
    fn pages_that_have_yet_to_come_are_counted_apart() {
        let all = pages([1, 2, 3]);
        let found = compared([&all, &all], ["1000 0\n2000 1000\n", "1000 later\n2000 1000\n"]);
        assert_eq!(found, Ok(Compared { pages: 1, later: 1, ..Compared::default() }));
    }

    #[test]
    fn what_leaves_out_a_page_is_refused() {
        let all = pages([1, 2, 3]);
        for (lists, why) in [
            (["1000 0\n2000 0\n", "1000 0\n"], "more pages"),
            (["1000 0\n", "2000 0\n"], "the target at 0x2000"),
            (["2000 0\n1000 0\n", "2000 0\n1000 0\n"], "ascending"),
            (["1000 0\n1000 0\n", "1000 0\n1000 0\n"], "ascending"),
            (["", ""], "no pages"),
            (["1000 3000\n", "1000 0\n"], "ends before"),
            (["1000 later\n", "1000 0\n"], "the source has all"),
            (["1000\n", "1000 0\n"], "has the line"),
            (["x 0\n", "1000 0\n"], "has the line"),
        ] {
            let error = compared([&all, &all], lists).unwrap_err();
            assert!(error.contains(why), "{lists:?}: {error}");
        }
    }
}
