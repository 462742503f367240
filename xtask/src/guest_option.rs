// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The values of `--guest`: the kind of the guest that the other options describe, or one more guest.
//!
//! Invariant: a value without `=` is a kind; any other one is a guest with a name.

use std::str::FromStr;

use clap::ValueEnum;
use twofold_launch::spec::Spec;
use twofold_workspace::guest::Choice;

/// A value of `--guest`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuestOption {
    /// The kind of the guest of the other options.
    Kind(Choice),
    /// One more guest.
    More(Box<Spec>),
}

impl FromStr for GuestOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('=') {
            return text.parse().map(Box::new).map(Self::More);
        }
        let unknown = |_| format!("{text:?} is neither auto, linux or bare, nor a guest such as name=web,cpus=2");
        Choice::from_str(text, false).map(Self::Kind).map_err(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_a_kind() {
        assert_eq!("bare".parse(), Ok(GuestOption::Kind(Choice::Bare)));
        assert_eq!("linux".parse(), Ok(GuestOption::Kind(Choice::Linux)));
        assert!("bsd".parse::<GuestOption>().unwrap_err().contains("auto, linux or bare"));
        assert!(matches!("name=a".parse(), Ok(GuestOption::More(spec)) if spec.name.as_deref() == Some("a")));
    }
}
