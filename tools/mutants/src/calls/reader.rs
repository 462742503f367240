// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the engine's source.
//!
//! Invariant: no call in a function is missing, even in a closure or among a macro's arguments. Tests are not read.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context;
use proc_macro2::LineColumn;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, FnArg, ItemFn, Pat, ReturnType, Signature, Token, Type, UseTree};

use super::origin::{Origin, bind, origin};
use super::source::{Call, Function, Source, Words};
use crate::syntax::{files, is_aside, is_of_mutants, words};

/// Reads the Rust files below `directory` of the checkout at `root`, except those that `skipped` names.
pub fn read(source: &mut Source, root: &Path, directory: &str, skipped: &[&str]) -> anyhow::Result<()> {
    for path in files(&root.join(directory))? {
        let file = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        if file.ends_with(".rs") && !skipped.iter().any(|name| file.ends_with(name)) {
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {file}"))?;
            read_text(source, &file, &text)?;
        }
    }
    let Source { functions, aside, .. } = source;
    functions.retain(|function| !aside.has(&function.file));
    Ok(())
}

/// Reads one file's text.
pub fn read_text(source: &mut Source, file: &str, text: &str) -> anyhow::Result<()> {
    let parsed = syn::parse_file(text).with_context(|| format!("cannot parse {file}"))?;
    let mut imports = Imports::default();
    imports.visit_file(&parsed);
    let mut reader = Reader { source, file, imports, owner: None, open: Vec::new(), closures: 0 };
    reader.visit_file(&parsed);
    Ok(())
}

struct Reader<'a> {
    source: &'a mut Source,
    file: &'a str,
    imports: Imports,
    owner: Option<String>,
    /// The functions around the current position, outermost first.
    open: Vec<Function>,
    closures: u32,
}

impl Reader<'_> {
    fn function(
        &mut self,
        attributes: &[Attribute],
        is_public: bool,
        signature: &Signature,
        body: Option<&syn::Block>,
    ) {
        if is_aside(attributes) {
            return;
        }
        let path = Path::new(self.file);
        let stem = path.file_stem().filter(|stem| *stem != "mod").or_else(|| path.parent()?.file_name());
        let receivers = signature.inputs.iter().filter(|input| matches!(input, FnArg::Receiver(_))).count();
        let mut function = Function {
            file: self.file.to_owned(),
            module: stem.unwrap_or_default().to_string_lossy().into_owned(),
            owner: self.owner.clone(),
            name: signature.ident.to_string(),
            arguments: signature.inputs.len() - receivers,
            is_method: receivers > 0,
            is_public,
            tracks_caller: attributes.iter().any(|attribute| words(&attribute.meta).contains("track_caller")),
            returns: match &signature.output {
                ReturnType::Type(_, kind) => self.head(kind),
                ReturnType::Default => None,
            },
            ..Function::default()
        };
        for input in &signature.inputs {
            if let FnArg::Typed(input) = input {
                let origin = self.head(&input.ty).map_or(Origin::Unknown, Origin::Of);
                bind(&input.pat, &origin, &mut function.variables);
            }
        }
        let closures = std::mem::take(&mut self.closures);
        self.open.push(function);
        body.into_iter().for_each(|body| self.visit_block(body));
        self.closures = closures;
        if let Some(function) = self.open.pop() {
            self.source.functions.push(function);
        }
    }

    /// Returns the name of a type without references; for `Option` and `Result`, the name of the inner type.
    fn head(&self, kind: &Type) -> Option<String> {
        match kind {
            Type::Reference(reference) => self.head(&reference.elem),
            Type::Path(path) => {
                let last = path.path.segments.last()?;
                match (last.ident.to_string().as_str(), &last.arguments) {
                    ("Option" | "Result", syn::PathArguments::AngleBracketed(inner)) => match inner.args.first()? {
                        syn::GenericArgument::Type(kind) => self.head(kind),
                        _ => None,
                    },
                    ("Self", _) => self.owner.clone(),
                    (name, _) => Some(name.to_owned()),
                }
            }
            _ => None,
        }
    }

    /// Returns an argument's words, and those of the expressions that its variables were bound to.
    fn words_of(&self, argument: &Expr) -> Words {
        let mut found = words(argument);
        let Some(function) = self.open.last() else { return found };
        let mut new: Vec<_> = found.iter().cloned().collect();
        while let Some(word) = new.pop() {
            for word in function.words.get(&word).into_iter().flatten() {
                if found.insert(word.clone()) {
                    new.push(word.clone());
                }
            }
        }
        found
    }

    fn call(&mut self, place: LineColumn, names: (Option<String>, String), receiver: Option<Origin>, list: &Arguments) {
        let arguments = list.iter().map(|argument| self.words_of(argument)).collect();
        let in_closure = self.closures > 0;
        if let Some(function) = self.open.last_mut() {
            let (qualifier, name) = names;
            function.calls.push(Call { place, qualifier, name, receiver, arguments, in_closure });
        }
    }

    fn bound(&mut self, pattern: &Pat, value: &Expr) {
        let found = words(value);
        if let Some(function) = self.open.last_mut() {
            let mut variables = BTreeMap::new();
            bind(pattern, &origin(value), &mut variables);
            for (name, origins) in variables {
                function.words.entry(name.clone()).or_default().extend(found.clone());
                function.variables.entry(name).or_default().extend(origins);
            }
        }
    }
}

type Arguments = Punctuated<Expr, Token![,]>;

/// The functions of other modules that a file imports: for each name in the file, the module's last path segment and
/// the name there.
#[derive(Default)]
struct Imports(BTreeMap<String, (String, String)>);

impl Imports {
    fn read(&mut self, module: Option<&str>, tree: &UseTree) {
        let mut add = |here: &syn::Ident, there: &syn::Ident| {
            module.map(|module| self.0.insert(here.to_string(), (module.to_owned(), there.to_string())))
        };
        match tree {
            UseTree::Path(path) => self.read(Some(&path.ident.to_string()), &path.tree),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.read(module, tree)),
            UseTree::Name(name) => drop(add(&name.ident, &name.ident)),
            UseTree::Rename(name) => drop(add(&name.rename, &name.ident)),
            UseTree::Glob(_) => {}
        }
    }
}

impl<'ast> Visit<'ast> for Imports {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.read(None, &item.tree);
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if module.content.is_none() {
            self.source.aside.declared(self.file, module);
        } else if !is_aside(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        for (index, field) in item.fields.iter().enumerate() {
            let name = field.ident.as_ref().map_or_else(|| index.to_string(), ToString::to_string);
            if let Some(kind) = self.head(&field.ty) {
                self.source.fields.entry(name).or_default().insert(item.ident.to_string(), kind);
            }
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let outer = self.owner.take();
        self.owner = self.head(&item.self_ty);
        visit::visit_item_impl(self, item);
        self.owner = outer;
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        // A function inside another one is not a method.
        let outer = self.owner.take();
        self.function(&item.attrs, is_public(&item.vis), &item.sig, Some(&item.block));
        self.owner = outer;
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.attrs, is_public(&item.vis), &item.sig, Some(&item.block));
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        let outer = self.owner.replace(item.ident.to_string());
        visit::visit_item_trait(self, item);
        self.owner = outer;
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.function(&item.attrs, true, &item.sig, item.default.as_ref());
    }

    fn visit_expr_closure(&mut self, closure: &'ast syn::ExprClosure) {
        self.closures += 1;
        visit::visit_expr_closure(self, closure);
        self.closures -= 1;
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if let Some(init) = &local.init {
            self.bound(&local.pat, &init.expr);
        }
        visit::visit_local(self, local);
    }

    fn visit_expr_let(&mut self, binding: &'ast syn::ExprLet) {
        self.bound(&binding.pat, &binding.expr);
        visit::visit_expr_let(self, binding);
    }

    fn visit_expr_if(&mut self, condition: &'ast syn::ExprIf) {
        // The code of a mutant is not a step of the protocol.
        if condition.attrs.iter().any(is_of_mutants) {
            self.visit_expr(&condition.cond);
        } else {
            visit::visit_expr_if(self, condition);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let names = (None, call.method.to_string());
        self.call(call.method.span().start(), names, Some(origin(&call.receiver)), &call.args);
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let Expr::Path(function) = &*call.func {
            let mut segments = function.path.segments.iter().rev().map(|segment| segment.ident.to_string());
            let name = segments.next().unwrap_or_default();
            let qualifier = match &function.qself {
                Some(own) => self.head(&own.ty),
                None => segments.next(),
            };
            let (qualifier, name) = match self.imports.0.get(&name) {
                Some((module, name)) if qualifier.is_none() => (Some(module.clone()), name.clone()),
                _ => (qualifier, name),
            };
            let qualifier = if qualifier.as_deref() == Some("Self") { self.owner.clone() } else { qualifier };
            self.call(call.func.span().start(), (qualifier, name), None, &call.args);
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        let name = invocation.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default();
        match name.as_str() {
            "step" => self.open.iter_mut().last().into_iter().for_each(|function| function.is_step = true),
            // The access itself, and the observer that replaces it.
            "observed" => {}
            _ => {
                if let Ok(arguments) = invocation.parse_body_with(Arguments::parse_terminated) {
                    arguments.iter().for_each(|argument| self.visit_expr(argument));
                }
            }
        }
    }
}

fn is_public(visibility: &syn::Visibility) -> bool {
    matches!(visibility, syn::Visibility::Public(_))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn read(text: &str) -> Source {
        let mut source = Source::default();
        read_text(&mut source, "crates/x/src/thing.rs", text).unwrap();
        source
    }

    fn places(source: &Source, function: &str) -> Vec<(String, usize, usize, bool)> {
        let function = source.functions.iter().find(|found| found.name == function).unwrap();
        let place = |call: &Call| (call.name.clone(), call.place.line, call.place.column + 1, call.in_closure);
        function.calls.iter().map(place).collect()
    }

    /// Compares the places that were read with those that the compiler gives to `Location::caller()`.
    #[test]
    fn a_call_is_where_the_compiler_says() {
        use std::cell::RefCell;
        use std::panic::Location;
        std::thread_local!(static SEEN: RefCell<Vec<(usize, usize)>> = const { RefCell::new(Vec::new()) });
        struct Word;
        impl Word {
            #[track_caller]
            fn look(&self) -> bool {
                let here = Location::caller();
                SEEN.with_borrow_mut(|seen| seen.push((here.line() as usize, here.column() as usize)));
                true
            }
        }
        unsafe fn touch<T>(word: &Word, _: T) {
            word.look();
        }
        fn calls(word: &Word) {
            word.look();
            let _ = (word, "é").0.look();
            assert!(word.look(), "{}", Word::look(word));
            Some(word).into_iter().for_each(|word| assert!(word.look()));
            // SAFETY: it is safe.
            unsafe { touch::<u8>(word, 1) };
        }
        calls(&Word);
        let source = read(include_str!("reader.rs"));
        assert!(source.functions.iter().all(|function| function.name != "calls"), "tests are not read");
        let text = include_str!("reader.rs").replace("#[cfg(test)]", "            ");
        let source = read(&text);
        let mut found = places(&source, "calls");
        found.extend(places(&source, "touch"));
        let looks: BTreeSet<_> =
            found.iter().filter(|call| call.0 == "look").map(|(_, line, column, _)| (*line, *column)).collect();
        // `assert!` evaluates its message only if it fails.
        let seen: BTreeSet<_> = SEEN.with_borrow(|seen| seen.iter().copied().collect());
        assert_eq!((seen.len(), looks.len()), (5, 6));
        assert!(seen.is_subset(&looks), "{seen:?} {looks:?}");
    }

    #[test]
    fn closures_and_macros_are_read() {
        let source = read("fn f() { let x = || a.b(1); assert!(c::d(2, 3), \"{}\", e()); }");
        let names: Vec<_> = places(&source, "f").into_iter().map(|(name, .., closure)| (name, closure)).collect();
        assert_eq!(names, [("b".to_owned(), true), ("d".to_owned(), false), ("e".to_owned(), false)]);
    }

    #[test]
    fn what_only_tests_is_not_read() {
        let source = read(
            "#[cfg(test)] fn a() {} #[cfg(all(test, loom))] fn b() {} #[cfg(feature = \"checked\")] fn c() {}
             #[cfg(not(loom))] fn d() {} #[cfg(not(miri))] fn e() {} #[cfg(any(test, mutants))] fn f() {}
             mod g { #[cfg(loom)] mod h { fn i() {} } fn j() {} }",
        );
        let names: String = source.functions.iter().map(|function| function.name.as_str()).collect();
        assert_eq!(names, "defj");

        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("lib.rs"), "#[cfg(all(test, loom))] mod loom; mod thing;").unwrap();
        std::fs::write(directory.path().join("thing.rs"), "fn k() {}").unwrap();
        std::fs::create_dir(directory.path().join("loom")).unwrap();
        std::fs::write(directory.path().join("loom/mod.rs"), "fn l() {}").unwrap();
        let mut source = Source::default();
        super::read(&mut source, directory.path(), ".", &[]).unwrap();
        let names: Vec<_> = source.functions.iter().map(|function| function.name.as_str()).collect();
        assert_eq!(names, ["k"]);
    }

    #[test]
    fn types_are_followed() {
        let source = read(
            "struct A { state: Word } struct Word;
             impl A { fn find(&self) -> Option<&A> { self.other() }
                      fn f(&self, b: &Word) { let Some(x) = self.find() else { return }; x.go(); b.go(); self.state.go(); y.go() } }",
        );
        let function = source.functions.iter().find(|function| function.name == "f").unwrap();
        let types: Vec<_> = function
            .calls
            .iter()
            .filter(|call| call.name == "go")
            .map(|call| source.type_of(call.receiver.as_ref().unwrap(), function))
            .collect();
        assert_eq!(types, [Some("A".to_owned()), Some("Word".to_owned()), Some("Word".to_owned()), None]);
    }

    #[test]
    fn an_argument_has_the_words_of_its_variables() {
        let source = read("fn f() { let op = if x { Tlbi::One } else { Tlbi::Two }; tlbi(p, op, 0); }");
        let call = &source.functions[0].calls[0];
        assert!(call.arguments[1].is_superset(&["One", "Two"].map(str::to_owned).into()));
        assert_eq!(call.arguments[2], Words::from(["0".to_owned()]));
    }
}
