// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's result of its own check, read from its console.
//!
//! Invariant: a failure is never taken back by a later line.

/// The line by which a guest reports that its own check passed.
pub const CHECK_OK: &str = "guest check: ok";
/// The start of the line by which a guest reports that its own check failed.
pub const CHECK_FAILED: &str = "guest check: FAILED";

/// The guest's result of its own check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Check {
    /// No result.
    #[default]
    Missing,
    /// [`CHECK_OK`], and no failure.
    Ok,
    /// The text of a line that starts with [`CHECK_FAILED`].
    Failed(String),
}

impl Check {
    /// Takes one line of the console into account.
    pub fn take(&mut self, line: &str) {
        let line = line.trim();
        if line.starts_with(CHECK_FAILED) {
            *self = Self::Failed(line.to_owned());
        } else if line == CHECK_OK && *self == Self::Missing {
            *self = Self::Ok;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_line_may_end_in_a_carriage_return() {
        let mut check = Check::default();
        check.take("guest check: ok\r");
        assert_eq!(check, Check::Ok);
    }
}
