// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What both lists of mutants read of Rust's syntax: source files, words, and conditions of compilation.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use syn::punctuated::Punctuated;
use syn::{Attribute, Meta, Token};

/// Returns the files below a directory, in order.
pub fn files(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))? {
        let path = entry?.path();
        if path.is_dir() { found.extend(files(&path)?) } else { found.push(path) }
    }
    found.sort();
    Ok(found)
}

/// Returns the identifiers and literals of a piece of source.
pub fn words(tokens: &impl quote::ToTokens) -> BTreeSet<String> {
    fn collect(stream: proc_macro2::TokenStream, words: &mut BTreeSet<String>) {
        for token in stream {
            match token {
                proc_macro2::TokenTree::Group(group) => collect(group.stream(), words),
                proc_macro2::TokenTree::Ident(ident) => drop(words.insert(ident.to_string())),
                proc_macro2::TokenTree::Literal(literal) => drop(words.insert(literal.to_string())),
                proc_macro2::TokenTree::Punct(_) => {}
            }
        }
    }
    let mut found = BTreeSet::new();
    collect(tokens.to_token_stream(), &mut found);
    found
}

/// Returns whether the code never runs on a CPU: code of tests, of the model checker, or of checks.
pub fn is_aside(attributes: &[Attribute]) -> bool {
    let conditions = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    conditions.filter_map(|attribute| attribute.parse_args().ok()).any(|condition| holds(&condition) == Some(false))
}

/// Returns whether a condition holds for the code whose mutants are listed; `None` if it may or may not.
fn holds(condition: &Meta) -> Option<bool> {
    let parts = |list: &syn::MetaList| {
        let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
        parts.into_iter().flatten().map(|part| holds(&part)).collect::<Vec<_>>()
    };
    match condition {
        Meta::Path(path) if path.is_ident("test") || path.is_ident("loom") => Some(false),
        Meta::NameValue(pair)
            if pair.path.is_ident("feature")
                && ["\"checked\"", "\"hosted\""].into_iter().any(|feature| words(&pair.value).contains(feature)) =>
        {
            Some(false)
        }
        Meta::List(list) if list.path.is_ident("not") => parts(list).into_iter().next().flatten().map(|part| !part),
        Meta::List(list) if list.path.is_ident("all") => parts(list).contains(&Some(false)).then_some(false),
        Meta::List(list) if list.path.is_ident("any") => {
            parts(list).iter().all(|part| *part == Some(false)).then_some(false)
        }
        _ => None,
    }
}

/// Returns whether an attribute is `#[cfg(mutants)]`.
pub fn is_of_mutants(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg") && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("mutants"))
}
