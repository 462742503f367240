// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the phases of an experiment with a dirty log from the comments of `twofold bench dirty-log --tap`.
//!
//! Invariant: every phase appears once, in order of time, with its count. A phase without a count is an error, never a
//! figure of 0.

use anyhow::{Context, bail, ensure};

use super::calls::{DirtyLog, Round, Words};

/// Reads the experiment of these lines: one mode, one variant.
pub fn dirty_log(lines: &[String]) -> anyhow::Result<DirtyLog> {
    let mut phases = Vec::new();
    for comment in lines.iter().filter_map(|line| line.strip_prefix("# ")) {
        let (name, words) = comment.split_once(": ").with_context(|| format!("`{comment}` is no phase"))?;
        let words = Words::of(words);
        let instructions = words.number("instructions").with_context(|| format!("`{comment}` was not counted"))?;
        phases.push(Phase { name, words, instructions });
    }
    let mut phases = phases.into_iter().peekable();
    let mut next = |name: &str| match phases.next_if(|phase| phase.name == name) {
        Some(phase) => Ok(phase),
        None => {
            bail!("`{name}` is expected, found `{}`", phases.peek().map_or("nothing", |other| other.name))
        }
    };
    let (populate, enable) = (next("populate")?.instructions, next("enable")?.instructions);
    let mut rounds: Vec<Round> = Vec::new();
    let disable = loop {
        let number = rounds.len() + 1;
        if let (Ok(disable), false) = (next("disable"), rounds.is_empty()) {
            break disable.instructions;
        }
        let dirty = next(&format!("dirty {number}"))?.instructions;
        let get = next(&format!("get {number}"))?;
        let clear = next(&format!("clear {number}")).ok().map(|clear| clear.instructions);
        let bitmap = get.words.bitmap().with_context(|| format!("get {number}"))?;
        let pages = rounds.first().map_or(bitmap.pages, |first| first.bitmap.pages);
        ensure!(bitmap.pages == pages && pages > 0, "get {number} is of {} pages", bitmap.pages);
        rounds.push(Round { dirty, get: get.instructions, clear, bitmap });
    };
    if let Some(more) = phases.next() {
        bail!("`{}` follows the last phase", more.name);
    }
    Ok(DirtyLog { pages: rounds[0].bitmap.pages, populate, enable, rounds, disable })
}

struct Phase<'l> {
    name: &'l str,
    words: Words<'l>,
    instructions: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kvm::calls::Bitmap;

    const MANUAL: &str = "\
TAP version 14
1..1
ok 1 - dirty-log: what the log tells is what the guest wrote: p40v48-4k, manual
# populate: instructions=1000
# enable: instructions=70
# dirty 1: instructions=60
# get 1: pages=100 dirty=100 sum=f024277fb3c50b25 instructions=5
# clear 1: instructions=6
# dirty 2: instructions=400
# get 2: pages=100 dirty=99 sum=0 instructions=7
# clear 2: instructions=8
# disable: instructions=9
";

    fn parsed(text: &str) -> anyhow::Result<DirtyLog> {
        dirty_log(&text.lines().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn comments_are_the_phases() {
        let log = parsed(MANUAL).unwrap();
        assert_eq!((log.pages, log.populate, log.enable, log.disable), (100, 1000, 70, 9));
        assert_eq!(log.rounds[0].bitmap, Bitmap { pages: 100, dirty: 100, sum: 0xf024_277f_b3c5_0b25 });
        let bitmap = Bitmap { pages: 100, dirty: 99, sum: 0 };
        assert_eq!(log.rounds[1..], [Round { dirty: 400, get: 7, clear: Some(8), bitmap }]);
        let lines: Vec<_> = MANUAL.lines().filter(|line| !line.contains("clear")).collect();
        let clears: Vec<_> = parsed(&lines.join("\n")).unwrap().rounds.iter().map(|round| round.clear).collect();
        assert_eq!(clears, [None, None], "a get that clears is a round by itself");
    }

    #[test]
    fn what_is_missing_or_twice_is_refused() {
        let all: Vec<_> = MANUAL.lines().collect();
        for at in all.iter().position(|line| line.starts_with('#')).unwrap()..all.len() {
            let mut less = all.clone();
            let line = less.remove(at);
            let is_clear = line.starts_with("# clear");
            assert_eq!(parsed(&less.join("\n")).is_ok(), is_clear, "without {line}");
            let mut more = all.clone();
            more.insert(at, line);
            assert!(parsed(&more.join("\n")).is_err(), "{line} twice");
        }
    }

    #[test]
    fn what_was_not_counted_is_refused() {
        for (of, bad) in [
            ("# enable: instructions=70", "# enable: 70"),
            ("dirty=99 sum=0 instructions=7", "dirty=99 sum=0"),
            ("sum=0", "sum=xyz"),
            ("pages=100 dirty=99", "pages=64 dirty=64"),
            ("instructions=400", "instructions=-1"),
        ] {
            assert!(parsed(&MANUAL.replace(of, bad)).is_err(), "{bad}");
        }
        let error = parsed("TAP version 14\n1..0 # SKIP no /dev/kvm\n").unwrap_err().to_string();
        assert!(error.contains("`populate` is expected, found `nothing`"), "{error}");
    }
}
