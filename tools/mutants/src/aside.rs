// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files whose code never runs on a CPU: those of tests and of the model checker.
//!
//! Invariant: a file is aside only if each declaration of its module, or of a module around it, has a condition that
//! says so. A file that is never declared is not aside.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use syn::{Item, ItemMod};

use crate::syntax::is_aside;

/// The modules that have files of their own: paths without an extension, and whether all declarations so far are aside.
#[derive(Debug, Default)]
pub struct Aside(BTreeMap<PathBuf, bool>);

impl Aside {
    /// Adds the modules that a file declares at its top.
    pub fn read(&mut self, file: &str, syntax: &syn::File) {
        for item in &syntax.items {
            if let Item::Mod(module) = item
                && module.content.is_none()
            {
                self.declared(file, module);
            }
        }
    }

    /// Adds a module without a body, which `file` declares.
    pub fn declared(&mut self, file: &str, module: &ItemMod) {
        let path = Path::new(file);
        let is_root = ["lib.rs", "mod.rs"].iter().any(|name| path.ends_with(name));
        let inside = if is_root { path.with_file_name("") } else { path.with_extension("") };
        let all = self.0.entry(inside.join(module.ident.to_string())).or_insert(true);
        *all &= is_aside(&module.attrs);
    }

    /// Returns whether a file's code never runs on a CPU.
    pub fn has(&self, file: &str) -> bool {
        let path = Path::new(file).with_extension("");
        path.ancestors().any(|module| self.0.get(module) == Some(&true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_aside_by_each_of_its_declarations() {
        let mut aside = Aside::default();
        for (file, text) in [
            ("x/lib.rs", "#[cfg(all(test, loom))] mod loom; mod thing; #[cfg(test)] mod both;"),
            ("x/thing.rs", "#[cfg(test)] mod tests; #[cfg(not(loom))] mod real; #[cfg(test)] mod here { mod no; }"),
            ("x/deep/mod.rs", "#[cfg(loom)] mod loom;"),
        ] {
            aside.read(file, &syn::parse_file(text).unwrap());
        }
        for file in ["x/loom.rs", "x/loom/mod.rs", "x/loom/more.rs", "x/thing/tests.rs", "x/deep/loom.rs"] {
            assert!(aside.has(file), "{file}");
        }
        for file in ["x/lib.rs", "x/thing.rs", "x/thing/real.rs", "x/thing/loom.rs", "x/deep/mod.rs", "x/looms.rs"] {
            assert!(!aside.has(file), "{file}");
        }
        assert!(aside.has("x/both.rs"));
        aside.read("x/mod.rs", &syn::parse_file("mod both;").unwrap());
        assert!(!aside.has("x/both.rs"), "one declaration is for a CPU");
    }
}
