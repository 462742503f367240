// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's own word on its check, read from its console.
//!
//! Invariant: a failure is never taken back by a later line.

/// The line by which a guest says that its own check passed.
pub const CHECK_OK: &str = "guest check: ok";
/// The start of the line by which a guest says that its own check failed.
pub const CHECK_FAILED: &str = "guest check: FAILED";

/// What the guest's console said of its own check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Check {
    /// Nothing.
    #[default]
    Missing,
    /// [`CHECK_OK`], and nothing to the contrary.
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
