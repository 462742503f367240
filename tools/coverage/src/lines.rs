// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lines of each file with their execution counts.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Meta, Token};

/// The crates that are measured.
pub const CRATES: [&str; 2] = ["crates/stage2", "crates/memory"];
/// A file that is not compiled for the host, so its lines are not counted.
pub const ELSEWHERE: &str = "crates/stage2/src/arm64.rs";

/// The execution count of each line of a file.
#[derive(Debug, Default)]
pub struct Lines {
    /// Each line's count.
    pub counts: BTreeMap<usize, u64>,
}

/// The number of lines, and of executed lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// All lines.
    pub lines: usize,
    /// The executed ones.
    pub covered: usize,
}

impl Total {
    /// The percentage of executed lines.
    pub fn percent(self) -> f64 {
        if self.lines == 0 { 0.0 } else { 100.0 * self.covered as f64 / self.lines as f64 }
    }
}

impl Lines {
    /// Returns the number of lines.
    pub fn total(&self) -> Total {
        Total { lines: self.counts.len(), covered: self.counts.values().filter(|count| **count > 0).count() }
    }

    /// The lines that were not executed: `12 15-17`.
    pub fn missed(&self) -> String {
        let mut ranges: Vec<RangeInclusive<usize>> = Vec::new();
        let mut before = None;
        for (line, count) in &self.counts {
            if *count == 0 {
                match ranges.last_mut() {
                    // Lines without code do not end a range.
                    Some(last) if before == Some(*last.end()) => *last = *last.start()..=*line,
                    _ => ranges.push(*line..=*line),
                }
            }
            before = Some(*line);
        }
        let shown = |range: &RangeInclusive<usize>| match (range.start(), range.end()) {
            (start, end) if start == end => start.to_string(),
            (start, end) => format!("{start}-{end}"),
        };
        ranges.iter().map(shown).collect::<Vec<_>>().join(" ")
    }
}

/// Reads `SF:` and `DA:` of the lcov format. Returns the files below `root`, by their paths relative to it.
pub fn lines(lcov: &str, root: &Path) -> BTreeMap<String, Lines> {
    let mut files: BTreeMap<String, Lines> = BTreeMap::new();
    let mut file = None;
    for line in lcov.lines() {
        if let Some(path) = line.strip_prefix("SF:") {
            let name = Path::new(path).strip_prefix(root).ok().map(|path| path.to_string_lossy().into_owned());
            file = name.filter(|name| name != ELSEWHERE);
        } else if let (Some(file), Some((number, count))) =
            (&file, line.strip_prefix("DA:").and_then(|data| data.split_once(',')))
            && let (Ok(number), Ok(count)) = (number.parse(), count.parse::<u64>())
        {
            *files.entry(file.clone()).or_default().counts.entry(number).or_default() += count;
        }
    }
    files
}

/// Returns the line ranges of tests: modules and functions under `#[cfg(test)]`, alone or with further conditions.
pub fn test_lines(text: &str) -> anyhow::Result<Vec<RangeInclusive<usize>>> {
    let file = syn::parse_file(text)?;
    let tests = file.items.iter().filter_map(|item| match item {
        syn::Item::Mod(module) => is_test(&module.attrs).then(|| module.span()),
        syn::Item::Fn(function) => is_test(&function.attrs).then(|| function.span()),
        _ => None,
    });
    Ok(tests.map(|span| span.start().line..=span.end().line).collect())
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    let conditions = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    conditions.filter_map(|attribute| attribute.parse_args().ok()).any(|condition| needs_test(&condition))
}

fn needs_test(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("all") => list
            .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
            .is_ok_and(|parts| parts.iter().any(needs_test)),
        _ => false,
    }
}

/// Returns the lines of the crate `name`.
pub fn total(files: &BTreeMap<String, Lines>, name: &str) -> Total {
    let of = files.iter().filter(|(file, _)| Path::new(file).starts_with(name));
    of.map(|(_, lines)| lines.total())
        .fold(Total::default(), |a, b| Total { lines: a.lines + b.lines, covered: a.covered + b.covered })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LCOV: &str = "SF:/w/crates/stage2/src/a.rs\nFN:3,name\nDA:3,1\nDA:4,0\nDA:6,0\nDA:7,2\nDA:9,0\nend_of_record\n\
        SF:/w/crates/stage2/src/arm64.rs\nDA:1,0\nend_of_record\nSF:/elsewhere/b.rs\nDA:1,0\nend_of_record\n\
        SF:/w/crates/memory/src/a.rs\nDA:1,5\nend_of_record\n";

    #[test]
    fn lines_are_counted_by_file_and_crate() {
        let files = lines(LCOV, Path::new("/w"));
        assert_eq!(files.keys().collect::<Vec<_>>(), ["crates/memory/src/a.rs", "crates/stage2/src/a.rs"]);
        assert_eq!(total(&files, "crates/stage2"), Total { lines: 5, covered: 2 });
        assert_eq!(total(&files, "crates/memory").percent(), 100.0);
        assert_eq!(total(&files, "crates/stage").percent(), 0.0);
        assert_eq!(files["crates/stage2/src/a.rs"].missed(), "4-6 9");
    }

    #[test]
    fn tests_are_known_by_their_condition() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nmod c {}\n\
            #[cfg(all(test, not(loom)))]\nfn d() {}\n#[cfg(not(test))]\nfn e() {}\n#[cfg(any(test, loom))]\nfn f() {}\n";
        assert_eq!(test_lines(text).unwrap(), [2..=5, 7..=8]);
    }
}
