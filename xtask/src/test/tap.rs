// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads a program's own checks in TAP (the Test Anything Protocol, versions 12 to 14).
//!
//! Invariant: the program passes only if it announced the number of checks, reported `ok` for each in order, and ended
//! with 0. At least one check must not be skipped.

use anyhow::{Context, bail, ensure};
use twofold_workspace::commands::Ran;

/// Judges a program's output; returns the number of checks that ran.
pub fn judge(ran: &Ran) -> anyhow::Result<u64> {
    let (mut plan, mut points, mut skipped, mut failed) = (None, 0, 0, Vec::new());
    for line in &ran.lines {
        if let Some(why) = line.strip_prefix("Bail out!") {
            bail!("`{}` gave up:{why}", ran.command);
        } else if let Some(count) = line.strip_prefix("1..") {
            let count = count.split_whitespace().next().unwrap_or("");
            let count = count.parse::<u64>().with_context(|| format!("`{line}` is no plan"))?;
            ensure!(plan.replace(count).is_none(), "`{}` has two plans", ran.command);
        } else if let Some(rest) = point(line, "ok") {
            points += 1;
            in_order(rest, points)?;
            skipped += u64::from(rest.to_ascii_uppercase().contains("# SKIP"));
        } else if let Some(rest) = point(line, "not ok") {
            points += 1;
            in_order(rest, points)?;
            failed.push(line.as_str());
        }
    }
    ensure!(failed.is_empty(), "`{}`:\n{}", ran.command, said(ran, &failed));
    ran.ended_well()?;
    let plan = plan.with_context(|| format!("`{}` has no plan", ran.command))?;
    ensure!(points == plan, "`{}` announced {plan} checks and made {points}", ran.command);
    ensure!(points > skipped, "`{}` skipped all of its {points} checks:\n{}", ran.command, ran.lines.join("\n"));
    Ok(points - skipped)
}

/// Returns the rest of a line that begins with `word`.
fn point<'a>(line: &'a str, word: &str) -> Option<&'a str> {
    line.strip_prefix(word).filter(|rest| rest.is_empty() || rest.starts_with(' '))
}

/// Checks a point's number. A number is optional; if present it must be the next one.
fn in_order(rest: &str, point: u64) -> anyhow::Result<()> {
    match rest.split_whitespace().next().and_then(|word| word.parse::<u64>().ok()) {
        Some(number) if number != point => bail!("check {point} calls itself {number}"),
        _ => Ok(()),
    }
}

/// Returns the failures with their diagnostics: the lines after each that start with `#`.
fn said(ran: &Ran, failed: &[&str]) -> String {
    let mut shown = Vec::new();
    let mut is_of_failure = false;
    for line in &ran.lines {
        is_of_failure = failed.contains(&line.as_str()) || (is_of_failure && line.starts_with('#'));
        if is_of_failure {
            shown.push(line.as_str());
        }
    }
    shown.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(status: i32, text: &str) -> Ran {
        Ran { command: "checks".to_owned(), status, lines: text.lines().map(str::to_owned).collect() }
    }

    #[test]
    fn all_that_was_announced_passed() {
        assert_eq!(judge(&ran(0, "TAP version 13\n1..2\n# words\nok 1 - a\nok 2 - b # SKIP no ring\n")).unwrap(), 1);
        assert_eq!(judge(&ran(0, "ok 1\nok\nok - c\n1..3\n")).unwrap(), 3);
    }

    #[test]
    fn whatever_is_missing_fails() {
        for (status, text, why) in [
            (0, "1..2\nok 1 - a\n", "announced 2"),
            (0, "ok 1 - a\n", "no plan"),
            (1, "1..1\nok 1 - a\n", "status 1"),
            (0, "1..1\nnot ok 1 - a\n# lost 3 pages\n", "lost 3 pages"),
            (0, "1..2\nok 2 - b\nok 1 - a\n", "calls itself 2"),
            (0, "1..1\n1..1\nok 1 - a\n", "two plans"),
            (0, "1..1\nok 1 - a # skip no KVM\n", "skipped all"),
            (4, "1..0 # SKIP no KVM\n", "status 4"),
            (0, "1..0\n", "skipped all"),
            (0, "1..1\nok 1\nBail out! no memory\n", "no memory"),
            (0, "", "no plan"),
            (0, "1..1\nokay\n", "announced 1"),
        ] {
            let error = format!("{:#}", judge(&ran(status, text)).unwrap_err());
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
