// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a machine that ended by itself left behind.

use std::collections::VecDeque;

use crate::check::Check;
use crate::report::Control;

/// A machine that ended by itself.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// QEMU's exit status; `None` if a signal killed it.
    pub status: Option<i32>,
    /// The console; empty if it was on the terminal.
    pub console: Console,
    /// The hypervisor's lines.
    pub control: Control,
    /// QEMU's own messages.
    pub stderr: String,
}

/// The part of a console that is kept.
#[derive(Clone, Debug, Default)]
pub struct Console {
    /// The guest's result of its own check.
    pub check: Check,
    lines: VecDeque<String>,
}

impl Console {
    /// Adds one line.
    pub fn take(&mut self, line: &str) {
        self.check.take(line);
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
    fn only_the_last_lines_are_kept() {
        let mut console = Console::default();
        (0..1000).for_each(|number| console.take(&number.to_string()));
        assert_eq!(console.tail(2), ["998", "999"]);
        assert_eq!(console.tail(usize::MAX).len(), KEPT_LINES);
    }
}
