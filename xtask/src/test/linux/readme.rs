// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the copies of `cargo xtask run`'s output in README.md and docs/results.md with the real output.
//!
//! The comparison ignores numbers and the width of gaps, so that it holds on every machine and for every kernel of the
//! series. Row names, column headings and text must be equal.

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};

/// Compares the table in docs/results.md below `root` with `printed`, the output of `run --check --count --counters`.
pub fn compare(root: &Path, printed: &str) -> anyhow::Result<()> {
    let (shown, printed) = (shape(&block(root, "docs/results.md", COUNTERS)?), shape(printed));
    ensure!(
        shown == printed,
        "docs/results.md shows a different table than the one printed; copy it again.\nShown:\n{}\nPrinted:\n{}",
        shown.join("\n"),
        printed.join("\n")
    );
    Ok(())
}

/// Checks that `printed`, the output of `run --check --count`, has each line that README.md below `root` shows, in
/// order.
pub fn compare_lines(root: &Path, printed: &str) -> anyhow::Result<()> {
    let printed = shape(printed);
    let mut rest = printed.iter();
    let shown = block(root, "README.md", TEN_ROWS)?;
    ensure!(!shown.trim().is_empty(), "README.md shows no line of the output");
    for line in shown.lines().map(shape_of_line) {
        ensure!(
            rest.any(|other| *other == line),
            "README.md shows `{line}`, which the output does not have in this order; copy it again.\nPrinted:\n{}",
            printed.join("\n")
        );
    }
    Ok(())
}

const COUNTERS: &str = "<!-- run --check --count --counters -->";
const TEN_ROWS: &str = "<!-- run --check --count -->";

fn block(root: &Path, file: &str, mark: &str) -> anyhow::Result<String> {
    let text = fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {file}"))?;
    shown(&text, mark).with_context(|| format!("{file} has no fenced block after `{mark}`"))
}

fn shown(text: &str, mark: &str) -> Option<String> {
    let (_, after) = text.split_once(mark)?;
    let mut lines = after.lines().skip_while(|line| !line.trim_start().starts_with("```"));
    lines.next()?;
    let block: Vec<_> = lines.take_while(|line| !line.trim_start().starts_with("```")).collect();
    Some(block.join("\n"))
}

/// Returns the table and the lines after it, with every number as `#`. The lines before the table differ, because one
/// run may fetch what another has cached.
fn shape(text: &str) -> Vec<String> {
    let lines = text.lines().skip_while(|line| !line.starts_with("figure "));
    lines.map(shape_of_line).filter(|line| !line.is_empty()).collect()
}

fn shape_of_line(line: &str) -> String {
    let digits = line.replace(|character: char| character.is_ascii_digit(), "#");
    let words = digits.split_whitespace().map(without_runs);
    words.collect::<Vec<_>>().join(" ")
}

/// Shortens `#,###,###` and `##.#` to `#`.
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
        let text = format!("# A\n```\nnot this\n```\n{COUNTERS}\n\n```text\n{PRINTED}```\nmore\n");
        assert_eq!(shown(&text, COUNTERS).unwrap() + "\n", PRINTED);
        assert_eq!(shown("```\nnone\n```", COUNTERS), None);
    }

    #[test]
    fn lines_of_the_readme_are_printed_ones_in_their_order() {
        let directory = tempfile::tempdir().unwrap();
        let found = |lines: &str| {
            let readme = format!("{TEN_ROWS}\n```\n{lines}\n```\n");
            fs::write(directory.path().join("README.md"), readme).unwrap();
            compare_lines(directory.path(), PRINTED).is_ok()
        };
        assert!(found("exits: wfi   89  -\nguest check: ok"));
        assert!(!found("guest check: ok\nexits: wfi   89  -"), "another order");
        assert!(!found("exits: wfe   89  -"), "another row");
        assert!(!found(""), "nothing");
    }
}
