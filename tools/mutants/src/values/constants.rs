// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The integer constants of a crate, and which of them a path names.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Expr, Signature, Type};

use super::names::{is_elsewhere, name_of, squeezed};

/// The integer constants of a crate.
#[derive(Default)]
pub struct Constants {
    all: Vec<Constant>,
}

/// An integer constant.
pub struct Constant {
    pub file: String,
    /// The type or the function that the constant belongs to.
    pub owner: Option<String>,
    pub name: String,
    pub line: usize,
    pub column: usize,
    pub text: String,
    /// The constant's changes; empty until a use is found.
    pub values: Vec<(usize, String)>,
}

impl Constants {
    /// Reads the constants of a file.
    pub fn read(&mut self, file: &str, syntax: &syn::File) {
        struct Finder<'a> {
            constants: &'a mut Constants,
            file: &'a str,
            owner: Option<String>,
        }
        impl Finder<'_> {
            fn add(&mut self, name: &syn::Ident, kind: &Type, value: &Expr) {
                if is_integer(kind) {
                    let place = name.span().start();
                    self.constants.all.push(Constant {
                        file: self.file.to_owned(),
                        owner: self.owner.clone(),
                        name: name.to_string(),
                        line: place.line,
                        column: place.column + 1,
                        text: squeezed(&value.span().source_text().unwrap_or_default()),
                        values: Vec::new(),
                    });
                }
            }
        }
        impl<'ast> Visit<'ast> for Finder<'_> {
            fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
                if !is_elsewhere(&item.attrs) {
                    visit::visit_item_mod(self, item);
                }
            }
            fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
                let outer = std::mem::replace(&mut self.owner, name_of(&item.self_ty));
                visit::visit_item_impl(self, item);
                self.owner = outer;
            }
            fn visit_signature(&mut self, signature: &'ast Signature) {
                // A constant inside a function belongs to that function; the next function sets its own name.
                self.owner = Some(signature.ident.to_string());
            }
            fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
                let outer = self.owner.clone();
                visit::visit_item_fn(self, item);
                self.owner = outer;
            }
            fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
                let outer = self.owner.clone();
                visit::visit_impl_item_fn(self, item);
                self.owner = outer;
            }
            fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
                self.add(&item.ident, &item.ty, &item.expr);
            }
            fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
                self.add(&item.ident, &item.ty, &item.expr);
            }
        }
        Finder { constants: self, file, owner: None }.visit_file(syntax);
    }

    /// Returns the constant that `path` names in a function of `scope`, or `None` if that is ambiguous.
    pub fn find(&mut self, file: &str, scope: &Scope, path: &syn::Path) -> Option<&mut Constant> {
        let mut segments = path.segments.iter().rev().map(|segment| segment.ident.to_string());
        let name = segments.next()?;
        let qualifier = segments.next().map(|word| match word.as_str() {
            "Self" => scope.owner.clone().unwrap_or_default(),
            _ => word,
        });
        let all = &mut self.all;
        let indexes = |is: &dyn Fn(&Constant) -> bool| {
            let mut found = (0..all.len()).filter(|index| all[*index].name == name && is(&all[*index]));
            found.next().filter(|_| found.next().is_none())
        };
        let found = match &qualifier {
            None => indexes(&|one| one.file == file && one.owner == scope.function)
                .or_else(|| indexes(&|one| one.file == file && one.owner.is_none()))
                .or_else(|| indexes(&|one| one.owner.is_none())),
            Some(owner) => indexes(&|one| one.owner.as_ref() == Some(owner)).or_else(|| {
                let is_module = owner.chars().all(|c| c.is_lowercase() || c == '_');
                indexes(&|one| is_module && one.owner.is_none() && one.file.ends_with(&format!("{owner}.rs")))
            }),
        };
        found.map(|index| &mut self.all[index])
    }
}

/// The reader's position.
#[derive(Clone, Default)]
pub struct Scope {
    /// The type around the current function.
    pub owner: Option<String>,
    /// The function; `None` outside of all functions.
    pub function: Option<String>,
    pub is_const: bool,
    /// Whether the compiler evaluates the code.
    pub is_constant: bool,
}

fn is_integer(kind: &Type) -> bool {
    name_of(kind).is_some_and(|name| ["u8", "u16", "u32", "u64", "usize", "i64"].contains(&name.as_str()))
}
