// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One change of a value: its names.

use std::fmt;

use super::excused::EXCUSES;
use crate::mutation::{Excuses, Mutation};

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The file, relative to the top of the checkout.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1, in characters.
    pub column: usize,
    /// The function that contains the expression, or the constant itself.
    pub function: String,
    /// The kind.
    pub kind: Kind,
    /// The expression, and its replacement.
    pub change: String,
    /// The ordinal among equal changes in the same function, from 1.
    pub number: usize,
}

/// The kinds of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The bound of a comparison: `<` as `<=`, `==` as `!=`, `min` as `max`.
    Bound,
    /// A condition, or one operand of `&&` or `||`, is left out.
    Condition,
    /// An arithmetic or logical operator is exchanged; a `!` or a compound assignment is left out.
    Operator,
    /// A literal.
    Literal,
    /// A named constant has its lowest bit cleared, or one bit more.
    Constant,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Bound, Self::Condition, Self::Operator, Self::Literal, Self::Constant];

    /// Returns the kind's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bound => "bound",
            Self::Condition => "condition",
            Self::Operator => "operator",
            Self::Literal => "literal",
            Self::Constant => "constant",
        }
    }
}

/// The form that `--only` takes.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}", self.file, self.line, self.column, self.label())
    }
}

impl Mutation for Value {
    const EXCUSES: Excuses = EXCUSES;

    fn kinds() -> Vec<&'static str> {
        Kind::ALL.map(Kind::name).to_vec()
    }

    fn file(&self) -> &str {
        &self.file
    }

    /// The function and the change.
    fn label(&self) -> String {
        let number = if self.number > 1 { format!(" #{}", self.number) } else { String::new() };
        format!("{}: {}{number}", self.function, self.change)
    }

    fn kind(&self) -> &'static str {
        self.kind.name()
    }
}
