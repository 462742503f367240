// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An expression that is rewritten, so that one build has it with all its changes.

use std::ops::Range;

/// An expression that is rewritten.
#[derive(Clone, Debug)]
pub struct Node {
    /// The expression's bytes.
    pub bytes: Range<usize>,
    /// The form of the rewriting.
    pub shape: Shape,
}

/// The form in which an expression is rewritten. Each alternative has the index of its [`Value`].
#[derive(Clone, Debug)]
pub enum Shape {
    /// `left op right`, with these other operators.
    Binary {
        /// The operator's bytes.
        operator: Range<usize>,
        /// Whether the operands are compared by reference, because a value may not be movable.
        by_reference: bool,
        /// Other operators.
        others: Vec<(usize, &'static str)>,
    },
    /// `left.name(right)`, with this other name.
    Method {
        /// The bytes from the dot to the parenthesis, both included.
        middle: Range<usize>,
        /// The method.
        name: String,
        /// The other method.
        other: (usize, &'static str),
    },
    /// A condition that is replaced by true, by false, or by either.
    Condition {
        /// The value that makes it always true.
        yes: Option<usize>,
        /// The value that makes it always false.
        no: Option<usize>,
    },
    /// `!operand` without the `!`.
    Not(usize),
    /// A statement that is left out.
    Dropped(usize),
    /// Other expressions that replace it.
    Instead(Vec<(usize, String)>),
}

impl Shape {
    /// Returns the indexes of the values that the node changes.
    pub fn values(&self) -> Vec<usize> {
        match self {
            Self::Binary { others, .. } => others.iter().map(|(index, _)| *index).collect(),
            Self::Method { other: (index, _), .. } | Self::Not(index) | Self::Dropped(index) => vec![*index],
            Self::Condition { yes, no } => yes.iter().chain(no).copied().collect(),
            Self::Instead(others) => others.iter().map(|(index, _)| *index).collect(),
        }
    }
}
