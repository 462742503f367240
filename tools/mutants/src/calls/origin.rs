// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a value comes from, as far as it determines the value's type.

use std::collections::BTreeMap;

use syn::{Expr, Member, Pat};

/// The origin of a value, as far as it determines the value's type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// `self`.
    This,
    /// A variable.
    Variable(String),
    /// The field of this name.
    Field(Box<Self>, String),
    /// The result of the method of this name, or of the function of this name, which has no owner.
    Returned(Box<Self>, String),
    /// A value of this type.
    Of(String),
    /// Anything else.
    Unknown,
}

/// The variables of a function, each with the origins of what it is bound to.
pub type Variables = BTreeMap<String, Vec<Origin>>;

/// Returns the origin of an expression's value.
pub fn origin(value: &Expr) -> Origin {
    match value {
        Expr::Path(path) => match path.path.get_ident().map(ToString::to_string) {
            Some(name) if name == "self" => Origin::This,
            Some(name) => Origin::Variable(name),
            None => Origin::Unknown,
        },
        Expr::Field(field) => {
            let name = match &field.member {
                Member::Named(name) => name.to_string(),
                Member::Unnamed(index) => index.index.to_string(),
            };
            Origin::Field(origin(&field.base).into(), name)
        }
        Expr::MethodCall(call) => Origin::Returned(origin(&call.receiver).into(), call.method.to_string()),
        Expr::Call(call) => match &*call.func {
            Expr::Path(path) => match path.path.segments.last() {
                Some(last) => Origin::Returned(Origin::Unknown.into(), last.ident.to_string()),
                None => Origin::Unknown,
            },
            _ => Origin::Unknown,
        },
        Expr::Reference(reference) => origin(&reference.expr),
        Expr::Paren(paren) => origin(&paren.expr),
        Expr::Try(attempt) => origin(&attempt.expr),
        Expr::Unary(unary) => origin(&unary.expr),
        _ => Origin::Unknown,
    }
}

/// Binds the variables of a pattern. A variable alone, or inside `Some` or `Ok`, is the whole value; others are parts
/// of it.
pub fn bind(pattern: &Pat, value: &Origin, variables: &mut Variables) {
    match pattern {
        Pat::Ident(ident) => variables.entry(ident.ident.to_string()).or_default().push(value.clone()),
        Pat::Type(typed) => bind(&typed.pat, value, variables),
        Pat::Reference(reference) => bind(&reference.pat, value, variables),
        Pat::TupleStruct(inside) if inside.elems.len() == 1 => bind(&inside.elems[0], value, variables),
        Pat::TupleStruct(inside) => {
            inside.elems.iter().for_each(|pattern| bind(pattern, &Origin::Unknown, variables));
        }
        Pat::Tuple(tuple) => tuple.elems.iter().for_each(|pattern| bind(pattern, &Origin::Unknown, variables)),
        Pat::Struct(parts) => {
            for part in &parts.fields {
                let origin = match &part.member {
                    Member::Named(name) => Origin::Field(value.clone().into(), name.to_string()),
                    Member::Unnamed(_) => Origin::Unknown,
                };
                bind(&part.pat, &origin, variables);
            }
        }
        _ => {}
    }
}
