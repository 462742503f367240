// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks in the Test Anything Protocol, version 14, which kernel developers' harnesses read.
//!
//! Invariant: a name, a comment or a message cannot be taken for a directive or for another line.

use std::fmt::Write;

/// Formats a line for each check, and below it its comments, or the message if it failed.
pub fn tap(checks: &[(String, Result<Vec<String>, String>)]) -> String {
    let mut text = format!("{VERSION}\n1..{}\n", checks.len());
    for (number, (name, outcome)) in (1..).zip(checks) {
        let not = if outcome.is_ok() { "" } else { "not " };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{not}ok {number} - {}", description(name));
        let _ = match outcome {
            Ok(comments) => comments.iter().try_for_each(|comment| writeln!(text, "# {}", line(comment))),
            // A JSON string is also a YAML string.
            Err(message) => writeln!(text, "  ---\n  message: {}\n  ...", serde_json::Value::from(message.as_str())),
        };
    }
    text
}

/// Formats a plan without checks, with the reason.
pub fn tap_skipped(reason: &str) -> String {
    format!("{VERSION}\n1..0 # SKIP {}\n", description(reason))
}

const VERSION: &str = "TAP version 14";

/// Returns one line in which `#` and `\` are escaped, so that they form no directive.
fn description(text: &str) -> String {
    line(text).replace('\\', r"\\").replace('#', r"\#")
}

fn line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_numbered_lines() {
        let checks = [
            ("dirty in round 0".to_owned(), Ok(vec!["get 1: dirty=7\nnot ok 1".to_owned()])),
            ("slot #1 \\ more".to_owned(), Err("page 7: \"lost\"\nok 3".to_owned())),
        ];
        let wanted = concat!(
            "TAP version 14\n1..2\nok 1 - dirty in round 0\n# get 1: dirty=7 not ok 1\nnot ok 2 - slot \\#1 \\\\ more\n",
            "  ---\n  message: \"page 7: \\\"lost\\\"\\nok 3\"\n  ...\n"
        );
        assert_eq!(tap(&checks), wanted);
    }

    #[test]
    fn nothing_was_checked() {
        assert_eq!(tap_skipped("there is no\n/dev/kvm"), "TAP version 14\n1..0 # SKIP there is no /dev/kvm\n");
        assert_eq!(tap(&[]), "TAP version 14\n1..0\n");
    }
}
