// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the calls into KVM from a program's output, and assigns them to phases (`peers/kvm/README.md` has the format).
//!
//! Invariant: the order of the calls determines the phases. An order that no experiment has is an error, so a figure is
//! never assigned to the wrong phase.

use std::collections::BTreeMap;

use anyhow::{Context, bail, ensure};
use serde::Serialize;

/// A counted call into KVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A vCPU ran until an exit to user space.
    Run {
        /// Instructions at EL2.
        instructions: u64,
    },
    /// A slot's log was switched on or off.
    Log {
        /// Whether it was switched on.
        on: bool,
        /// Pages of the slot.
        pages: u64,
        /// Instructions at EL2.
        instructions: u64,
    },
    /// A slot's log was read.
    Get {
        /// The bitmap that the call returned.
        bitmap: Bitmap,
        /// Instructions at EL2.
        instructions: u64,
    },
    /// Pages were cleared in a slot's log.
    Clear {
        /// The pages that the call cleared.
        bitmap: Bitmap,
        /// Instructions at EL2.
        instructions: u64,
    },
}

/// The properties by which two bitmaps are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bitmap {
    /// The number of bits.
    pub pages: u64,
    /// The number of set bits.
    pub dirty: u64,
    /// The 64-bit FNV-1a hash of its bytes.
    pub sum: u64,
}

/// An experiment with a dirty log, on one memslot. Figures are instructions at EL2, the sum of all vCPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DirtyLog {
    /// The pages of the memslot.
    pub pages: u64,
    /// Each page is written for the first time.
    pub populate: u64,
    /// The log is switched on.
    pub enable: u64,
    /// In each round the pages are written, and the log is read and cleared.
    pub rounds: Vec<Round>,
    /// The log is switched off.
    pub disable: u64,
}

/// One round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Round {
    /// The writes of the vCPUs.
    pub dirty: u64,
    /// The get; if get clears, it includes the write-protection.
    pub get: u64,
    /// The clear, if it is a separate call.
    pub clear: Option<u64>,
    /// The dirty pages.
    pub bitmap: Bitmap,
}

/// An experiment with a page table: one vCPU, one memslot, one page at a time. Figures are instructions at EL2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PageTable {
    /// The pages of the memslot.
    pub pages: u64,
    /// Each page is written for the first time.
    pub create: u64,
    /// Each page is written while a log runs.
    pub update: u64,
    /// Each page is read after the log is switched off.
    pub adjust: u64,
}

/// Reads the calls among `lines`, in order.
pub fn calls(lines: &[String]) -> anyhow::Result<Vec<Call>> {
    let reports = lines.iter().filter_map(|line| line.strip_prefix(PREFIX)).filter(|line| line.starts_with("call="));
    reports.map(|line| call(line).with_context(|| format!("`{PREFIX}{line}` is no call"))).collect()
}

const PREFIX: &str = "count: ";

fn call(line: &str) -> anyhow::Result<Call> {
    let words = Words::of(line);
    let instructions = words.number("instructions")?;
    Ok(match words.word("call")? {
        "run" => Call::Run { instructions },
        "log" => Call::Log { on: words.number("on")? != 0, pages: words.number("pages")?, instructions },
        "get" => Call::Get { bitmap: words.bitmap()?, instructions },
        "clear" => Call::Clear { bitmap: words.bitmap()?, instructions },
        other => bail!("unknown call `{other}`"),
    })
}

/// A line's words of the form `name=value`.
pub struct Words<'l>(BTreeMap<&'l str, &'l str>);

impl<'l> Words<'l> {
    /// Reads the words of `line`.
    pub fn of(line: &'l str) -> Self {
        Self(line.split_whitespace().filter_map(|word| word.split_once('=')).collect())
    }

    /// Returns the number `name`.
    pub fn number(&self, name: &str) -> anyhow::Result<u64> {
        Ok(self.word(name)?.parse()?)
    }

    /// Returns the bitmap of `pages`, `dirty` and `sum`.
    pub fn bitmap(&self) -> anyhow::Result<Bitmap> {
        let sum = u64::from_str_radix(self.word("sum")?, 16)?;
        Ok(Bitmap { pages: self.number("pages")?, dirty: self.number("dirty")?, sum })
    }

    fn word(&self, name: &str) -> anyhow::Result<&'l str> {
        self.0.get(name).copied().with_context(|| format!("it lacks {name}"))
    }
}

impl DirtyLog {
    /// Assigns these calls to phases.
    pub fn of(calls: &[Call]) -> anyhow::Result<Self> {
        let strange = || format!("these are not the calls of an experiment with a dirty log: {calls:?}");
        let (populate, rest) = runs(calls).with_context(strange)?;
        let [
            Call::Log { on: true, pages, instructions: enable },
            rounds @ ..,
            Call::Log { on: false, instructions: disable, .. },
        ] = rest
        else {
            bail!(strange());
        };
        let (mut rest, mut all) = (rounds, Vec::new());
        while !rest.is_empty() {
            let (dirty, after) = runs(rest).with_context(strange)?;
            let (round, left) = match *after {
                [
                    Call::Get { bitmap, instructions: get },
                    Call::Clear { bitmap: cleared, instructions: clear },
                    ref left @ ..,
                ] => {
                    ensure!(bitmap == cleared, "the cleared bitmap is not the one read: {cleared:?}, {bitmap:?}");
                    (Round { dirty, get, clear: Some(clear), bitmap }, left)
                }
                [Call::Get { bitmap, instructions: get }, ref left @ ..] => {
                    (Round { dirty, get, clear: None, bitmap }, left)
                }
                _ => bail!(strange()),
            };
            ensure!(round.bitmap.pages == *pages, "a bitmap of {} pages for a slot of {pages}", round.bitmap.pages);
            all.push(round);
            rest = left;
        }
        ensure!(!all.is_empty() && *pages > 0, "an experiment without a round or without a page");
        Ok(Self { pages: *pages, populate, enable: *enable, rounds: all, disable: *disable })
    }

    /// Returns the last round.
    pub fn last(&self) -> &Round {
        // `of` guarantees at least one round.
        &self.rounds[self.rounds.len() - 1]
    }
}

/// Returns the sum of the leading runs (one for each vCPU) and the calls after them. Returns `None` if there is no run.
fn runs(calls: &[Call]) -> Option<(u64, &[Call])> {
    let each = |call: &Call| if let Call::Run { instructions } = call { Some(*instructions) } else { None };
    let runs: Vec<_> = calls.iter().map_while(each).collect();
    (!runs.is_empty()).then(|| (runs.iter().sum(), &calls[runs.len()..]))
}

impl PageTable {
    /// Assigns these calls to phases.
    pub fn of(calls: &[Call]) -> anyhow::Result<Self> {
        let [
            // The guest has started and waits.
            Call::Run { .. },
            Call::Run { instructions: create },
            Call::Log { on: true, pages, .. },
            Call::Run { instructions: update },
            Call::Log { on: false, .. },
            Call::Run { instructions: adjust },
        ] = *calls
        else {
            bail!("these are not the calls of an experiment with a page table: {calls:?}");
        };
        ensure!(pages > 0, "an experiment without a page");
        Ok(Self { pages, create, update, adjust })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    const MANUAL: &str = "\
Populate memory time: 0.261477744s
count: reading instructions=1444
count: call=run instructions=1000
count: call=log slot=1 pages=100 on=1 instructions=70
count: call=run instructions=60
count: call=get slot=1 pages=100 dirty=100 sum=f024277fb3c50b25 instructions=5
count: call=clear slot=1 pages=100 dirty=100 sum=f024277fb3c50b25 instructions=6
count: call=run instructions=400
count: call=get slot=1 pages=100 dirty=99 sum=0 instructions=7
count: call=clear slot=1 pages=100 dirty=99 sum=0 instructions=8
count: call=log slot=1 pages=100 on=0 instructions=9
";

    #[test]
    fn calls_are_the_phases_of_an_experiment() {
        let log = DirtyLog::of(&calls(&lines(MANUAL)).unwrap()).unwrap();
        assert_eq!((log.pages, log.populate, log.enable, log.disable), (100, 1000, 70, 9));
        assert_eq!(log.rounds.len(), 2);
        assert_eq!(log.rounds[0].bitmap, Bitmap { pages: 100, dirty: 100, sum: 0xf024_277f_b3c5_0b25 });
        let bitmap = Bitmap { pages: 100, dirty: 99, sum: 0 };
        assert_eq!(*log.last(), Round { dirty: 400, get: 7, clear: Some(8), bitmap });
    }

    #[test]
    fn a_get_that_clears_is_a_round_by_itself() {
        let text: String =
            MANUAL.lines().filter(|line| !line.contains("clear")).map(|line| format!("{line}\n")).collect();
        let log = DirtyLog::of(&calls(&lines(&text)).unwrap()).unwrap();
        assert_eq!(log.rounds.iter().map(|round| round.clear).collect::<Vec<_>>(), [None, None]);
    }

    #[test]
    fn vcpus_are_summed() {
        let two = MANUAL.replace(
            "count: call=run instructions=400\n",
            "count: call=run instructions=400\ncount: call=run instructions=1\n",
        );
        let log = DirtyLog::of(&calls(&lines(&two)).unwrap()).unwrap();
        assert_eq!((log.rounds.len(), log.last().dirty), (2, 401));
    }

    #[test]
    fn calls_in_another_order_are_refused() {
        let all = lines(MANUAL);
        for lost in 2..all.len() {
            let less: Vec<_> =
                all.iter().enumerate().filter(|(line, _)| *line != lost).map(|(_, line)| line.clone()).collect();
            let is_clear = all[lost].contains("clear");
            assert_eq!(DirtyLog::of(&calls(&less).unwrap()).is_ok(), is_clear, "without {}", all[lost]);
        }
        let cleared = MANUAL.replacen("clear slot=1 pages=100 dirty=100", "clear slot=1 pages=100 dirty=90", 1);
        assert!(DirtyLog::of(&calls(&lines(&cleared)).unwrap()).is_err());
        let other = MANUAL.replace("get slot=1 pages=100", "get slot=1 pages=64");
        assert!(DirtyLog::of(&calls(&lines(&other)).unwrap()).is_err());
        assert!(DirtyLog::of(&[]).is_err());
    }

    #[test]
    fn lines_that_are_no_calls_are_refused() {
        for bad in [
            "count: call=run",
            "count: call=run instructions=-1",
            "count: call=walk instructions=1",
            "count: call=get slot=1 pages=1 dirty=1 sum=xyz instructions=1",
            "count: call=log slot=1 pages=1 instructions=1",
        ] {
            assert!(calls(&lines(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_page_table_has_its_stages() {
        let text = "\
count: call=run instructions=1
count: call=run instructions=20
count: call=log slot=1 pages=4 on=1 instructions=3
count: call=run instructions=40
count: call=log slot=1 pages=4 on=0 instructions=5
count: call=run instructions=60
";
        let all = calls(&lines(text)).unwrap();
        assert_eq!(PageTable::of(&all).unwrap(), PageTable { pages: 4, create: 20, update: 40, adjust: 60 });
        assert!(PageTable::of(&all[1..]).is_err());
    }
}
