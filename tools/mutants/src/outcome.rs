// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The outcomes of mutants.
//!
//! Invariant: a mutant counts as caught only if a test that executed it failed. A test that reaches its time limit does
//! not catch it.

use serde::Serialize;

/// The outcome of a mutant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum Outcome {
    /// A judge's test failed.
    Caught {
        /// The judge.
        by: String,
        /// The judge's test, if known.
        test: Option<String>,
    },
    /// Judges executed the mutant, and all their tests passed.
    Survived {
        /// These judges.
        judges: Vec<String>,
    },
    /// A judge did not end, and no test failed.
    Hung {
        /// The first judge that did not end.
        judge: String,
    },
    /// No judge executed the mutant.
    NotReached,
}

impl Outcome {
    /// Returns whether the mutant was caught.
    pub fn is_caught(&self) -> bool {
        matches!(self, Self::Caught { .. })
    }

    /// Combines the outcomes of two sets of judges.
    pub fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Survived { judges }, Self::Survived { judges: others }) => {
                Self::Survived { judges: [judges, others].concat() }
            }
            (one, Self::NotReached) => one,
            (one @ Self::Hung { .. }, Self::Survived { .. }) => one,
            (_, other) => other,
        }
    }

    /// Returns the outcome's name.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Caught { .. } => "caught",
            Self::Survived { .. } => "survived",
            Self::Hung { .. } => "hung",
            Self::NotReached => "not reached",
        }
    }

    /// Describes the outcome.
    pub fn described(&self) -> String {
        match self {
            Self::Caught { by, test: Some(test) } => format!("caught by {by}: {test}"),
            Self::Caught { by, test: None } => format!("caught by {by}"),
            Self::Survived { judges } => format!("survived {}", judges.join(", ")),
            Self::Hung { judge } => format!("hung in {judge}"),
            Self::NotReached => "not reached".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_of_two_judgements_stays_unless_one_catches() {
        let survived = |judge: &str| Outcome::Survived { judges: vec![judge.to_owned()] };
        let caught = Outcome::Caught { by: "b".to_owned(), test: None };
        let hung = Outcome::Hung { judge: "a".to_owned() };
        assert_eq!(survived("a").or(survived("b")), Outcome::Survived { judges: vec!["a".to_owned(), "b".to_owned()] });
        assert_eq!(survived("a").or(Outcome::NotReached), survived("a"));
        assert_eq!(Outcome::NotReached.or(survived("b")), survived("b"));
        assert_eq!(hung.clone().or(survived("b")), hung);
        assert_eq!(hung.or(caught.clone()), caught);
    }
}
