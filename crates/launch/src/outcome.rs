// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a machine that ended by itself left behind.

use std::collections::VecDeque;

use crate::check::Check;
use crate::report::Control;

/// A machine that ended by itself.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// QEMU's exit status, or the image's own if QEMU ended with 0; `None` if a signal killed QEMU.
    pub status: Option<i32>,
    /// The console; empty if it was on the terminal.
    pub console: Console,
    /// The hypervisor's lines.
    pub control: Control,
    /// QEMU's own messages.
    pub stderr: String,
}

/// The part of a console that is kept.
#[derive(Clone, Debug)]
pub struct Console {
    /// Each guest's result of its own check, with the start of its lines.
    checks: Vec<(String, Check)>,
    lines: VecDeque<String>,
}

impl Default for Console {
    fn default() -> Self {
        Self::of(&[])
    }
}

impl Console {
    /// The console of guests with these names, which share it line by line; without names, of one guest.
    pub fn of(several: &[String]) -> Self {
        let prefixes = several.iter().map(|name| format!("[{name}] "));
        let mut checks: Vec<_> = prefixes.map(|prefix| (prefix, Check::Missing)).collect();
        if checks.is_empty() {
            checks.push((String::new(), Check::Missing));
        }
        Self { checks, lines: VecDeque::new() }
    }

    /// The result of all guests' checks: a failure if one failed, and a success only of all.
    pub fn check(&self) -> Check {
        let all = || self.checks.iter().map(|(_, check)| check);
        let failed = all().find(|check| matches!(check, Check::Failed(_)));
        let missing = || all().find(|check| **check == Check::Missing);
        failed.or_else(missing).cloned().unwrap_or(Check::Ok)
    }

    /// Adds one line.
    pub fn take(&mut self, line: &str) {
        for (prefix, check) in &mut self.checks {
            if let Some(line) = line.strip_prefix(prefix.as_str()) {
                check.take(line);
            }
        }
        if self.lines.len() == KEPT_LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line.to_owned());
    }

    /// The last `count` lines, or as many as there are.
    pub fn tail(&self, count: usize) -> Vec<&str> {
        self.lines.iter().skip(self.lines.len().saturating_sub(count)).map(String::as_str).collect()
    }
}

/// Lines of a console that are kept.
pub(crate) const KEPT_LINES: usize = 400;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_guest_has_to_pass_its_check() {
        let mut console = Console::of(&["one".to_owned(), "two".to_owned()]);
        for line in ["[one] guest check: ok", "guest check: ok", "[three] guest check: ok", "[one] guest check: ok"] {
            console.take(line);
            assert_eq!(console.check(), Check::Missing, "{line}");
        }
        console.take("[two] guest check: ok");
        assert_eq!(console.check(), Check::Ok);
        console.take("[one] guest check: FAILED: sums differ");
        assert_eq!(console.check(), Check::Failed("guest check: FAILED: sums differ".to_owned()));
    }

    #[test]
    fn only_the_last_lines_are_kept() {
        let mut console = Console::default();
        (0..1000).for_each(|number| console.take(&number.to_string()));
        assert_eq!(console.tail(2), ["998", "999"]);
        assert_eq!(console.tail(usize::MAX).len(), KEPT_LINES);
    }
}
