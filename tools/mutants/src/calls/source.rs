// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine's source: its functions, which of them have `track_caller`, the calls in each, and the types of values.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::LineColumn;

use super::origin::Origin;
use crate::aside::Aside;

/// The words of an expression, with those of the expressions that its local variables were bound to.
pub type Words = BTreeSet<String>;

/// The source that was read.
#[derive(Debug, Default)]
pub struct Source {
    /// All functions, in the order of the text.
    pub functions: Vec<Function>,
    /// For each field name: the types that have such a field, and the field's type in each.
    pub(super) fields: BTreeMap<String, BTreeMap<String, String>>,
    /// The files of tests and of the model checker.
    pub(super) aside: Aside,
}

/// A function.
#[derive(Debug, Default)]
pub struct Function {
    /// The file, relative to the top of the checkout.
    pub file: String,
    /// The module: the file's name, or its directory's name for `mod.rs`.
    pub module: String,
    /// The type that the function belongs to.
    pub owner: Option<String>,
    /// The function's name.
    pub name: String,
    /// The number of arguments, without `self`.
    pub arguments: usize,
    /// Whether it takes `self`.
    pub is_method: bool,
    /// Whether the function is `pub`.
    pub is_public: bool,
    /// Whether it has `track_caller`, so that its steps count as its caller's.
    pub tracks_caller: bool,
    /// Whether it can be left out as a whole (`step!`).
    pub is_step: bool,
    /// The calls in the function.
    pub calls: Vec<Call>,
    pub(super) returns: Option<String>,
    pub(super) variables: BTreeMap<String, Vec<Origin>>,
    pub(super) words: BTreeMap<String, Words>,
}

/// A call.
#[derive(Debug)]
pub struct Call {
    /// The place that `Location::caller()` returns: the method's name, or the start of a path.
    pub place: LineColumn,
    /// The last path segment before the function's name (a type or a module), if there is one.
    pub qualifier: Option<String>,
    /// The function's name.
    pub name: String,
    /// The receiver of a method call; `None` for a call by path.
    pub receiver: Option<Origin>,
    /// The words of each argument.
    pub arguments: Vec<Words>,
    /// Whether the call is in a closure. A closure has no `track_caller`, so the call's place is its own.
    pub in_closure: bool,
}

impl Source {
    /// Returns the type of a value in `function`, if it is certain.
    pub fn type_of(&self, origin: &Origin, function: &Function) -> Option<String> {
        self.type_within(origin, function, 8)
    }

    fn type_within(&self, origin: &Origin, function: &Function, depth: u32) -> Option<String> {
        let depth = depth.checked_sub(1)?;
        let types: BTreeSet<String> = match origin {
            Origin::This => return function.owner.clone(),
            Origin::Of(name) => return Some(name.clone()),
            Origin::Unknown => return None,
            Origin::Field(of, name) => {
                let of = self.type_within(of, function, depth);
                let fields = self.fields.get(name)?.iter();
                fields
                    .filter(|(owner, _)| of.as_ref().is_none_or(|of| of == *owner))
                    .map(|(_, kind)| kind.clone())
                    .collect()
            }
            Origin::Returned(of, name) => {
                let of = self.type_within(of, function, depth);
                let named = self.functions.iter().filter(|function| function.name == *name);
                // The owner may be a type parameter; its methods are those of its traits.
                let known = of.filter(|of| self.functions.iter().any(|function| function.owner.as_ref() == Some(of)));
                let named = named.filter(|function| known.is_none() || function.owner == known);
                named.map(|function| function.returns.clone()).collect::<Option<_>>()?
            }
            Origin::Variable(name) => {
                let origins = function.variables.get(name)?;
                origins.iter().map(|origin| self.type_within(origin, function, depth)).collect::<Option<_>>()?
            }
        };
        let mut types = types.into_iter();
        types.next().filter(|_| types.next().is_none())
    }
}
