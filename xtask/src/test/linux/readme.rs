// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares what README.md shows of `run --check --count` with what it prints.
//!
//! The comparison ignores numbers and the width of gaps, so that it holds on every machine and for every kernel of
//! the series; names of rows, heads of columns and words must be the same.

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};

/// Compares the table in the README below `root` with the one in `printed`.
pub fn compare(root: &Path, printed: &str) -> anyhow::Result<()> {
    let readme = fs::read_to_string(root.join("README.md")).context("cannot read README.md")?;
    let shown = shown(&readme).context("README.md has no fenced block after `<!-- run --check --count -->`")?;
    let (shown, printed) = (shape(&shown), shape(printed));
    ensure!(
        shown == printed,
        "README.md shows another table than is printed; copy it again.\nShown:\n{}\nPrinted:\n{}",
        shown.join("\n"),
        printed.join("\n")
    );
    Ok(())
}

const MARK: &str = "<!-- run --check --count -->";

fn shown(readme: &str) -> Option<String> {
    let (_, after) = readme.split_once(MARK)?;
    let mut lines = after.lines().skip_while(|line| !line.trim_start().starts_with("```"));
    lines.next()?;
    let block: Vec<_> = lines.take_while(|line| !line.trim_start().starts_with("```")).collect();
    Some(block.join("\n"))
}

/// The table and what follows it, with every number as `#`. The steps before it differ: what is cached in one run is
/// fetched in another.
fn shape(text: &str) -> Vec<String> {
    let lines = text.lines().skip_while(|line| !line.starts_with("figure "));
    lines
        .map(|line| {
            let digits = line.replace(|character: char| character.is_ascii_digit(), "#");
            let words = digits.split_whitespace().map(without_runs);
            words.collect::<Vec<_>>().join(" ")
        })
        .filter(|line| !line.is_empty())
        .collect()
}

/// `#,###,###` and `##.#` become `#`.
fn without_runs(word: &str) -> String {
    let mut short = String::new();
    for character in word.chars() {
        match character {
            '#' | ',' | '.' if short.ends_with('#') => {}
            _ => short.push(character),
        }
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "\
guest        0.1 s  cached

figure              Twofold  KVM
guest kernel   6.12.117+deb12-cloud-arm64
exits: wfi        1,234,567    -

Next: nothing
guest check: ok
";

    #[test]
    fn numbers_and_gaps_do_not_count() {
        let other =
            PRINTED.replace("1,234,567", "89").replace("6.12.117", "6.12.9").replace("0.1 s  cached", "9 s  fetched");
        assert_eq!(shape(PRINTED), shape(&other));
        assert_eq!(shape(PRINTED).len(), 5);
    }

    #[test]
    fn names_count() {
        for (from, to) in [("wfi", "wfe"), ("KVM", "Xen"), ("Next", "Then"), ("-\n", "8\n")] {
            assert_ne!(shape(PRINTED), shape(&PRINTED.replacen(from, to, 1)), "{from}");
        }
    }

    #[test]
    fn the_block_after_the_mark_is_found() {
        let readme = format!("# A\n```\nnot this\n```\n{MARK}\n\n```text\n{PRINTED}```\nmore\n");
        assert_eq!(shown(&readme).unwrap() + "\n", PRINTED);
        assert_eq!(shown("```\nnone\n```"), None);
    }
}
