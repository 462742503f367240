// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a change is named, and which code has none: names of types and modules, texts in one line, conditions.

use syn::{Attribute, Type};

use crate::syntax::is_aside;

/// Returns whether the code belongs to tests, to observers, to benches, or to another processor.
pub fn is_elsewhere(attributes: &[Attribute]) -> bool {
    let names = ["mutants", "\"baselines\"", "target_arch"];
    let conditions = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    let is_named = |attribute: &Attribute| {
        let text = quote::ToTokens::to_token_stream(attribute).to_string();
        !text.contains("not") && names.iter().any(|name| text.contains(name))
    };
    is_aside(attributes) || conditions.into_iter().any(is_named)
}

/// Returns the last segment of a type's path.
pub fn name_of(kind: &Type) -> Option<String> {
    match kind {
        Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
        Type::Reference(reference) => name_of(&reference.elem),
        _ => None,
    }
}

/// Returns the module of a file: the file's name, or its directory's name for `mod.rs`.
pub fn module(file: &str) -> String {
    let mut parts = file.trim_end_matches(".rs").trim_end_matches("/mod").rsplit('/');
    parts.next().unwrap_or_default().to_owned()
}

/// Joins a text to one line with single spaces.
pub fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
