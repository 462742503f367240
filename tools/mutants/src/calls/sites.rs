// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The list of all mutants of calls, from the source.
//!
//! `stage2::instrumented` declares once what can be left out or weakened: by `step!`, and by calls of its module
//! `mutants`. This module follows these declarations up through the functions with `track_caller`. A call of such a
//! function from a function without `track_caller` is a site; `Location::caller()` returns its place. Invariant: a new
//! step is on the list, or the list is an error. No step is named here.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use anyhow::{bail, ensure};
use proc_macro2::LineColumn;

use super::excused::EXCUSES;
use super::reader;
use super::source::{Call, Function, Source, Words};
use crate::mutation::{Excuses, Mutation};

/// The kinds of change at a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The step is left out.
    Omit,
    /// A lock is not taken.
    Unlocked,
    /// The access is not an acquire.
    NoAcquire,
    /// The access is not a release.
    NoRelease,
    /// A read-modify-write becomes a load and a store.
    Apart,
    /// A compare-and-exchange does not compare.
    Force,
    /// An instruction reaches this CPU only.
    Local,
    /// A barrier waits for stores only.
    Stores,
    /// An invalidation does not remove walk entries.
    Leaf,
    /// An operand is shifted by one bit more.
    Shift,
    /// An operand is not shifted.
    Unshifted,
    /// An operand names the other security state's IPA space.
    OtherSpace,
    /// A VTTBR without its table.
    VmidOnly,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 13] = [
        Self::Omit,
        Self::Unlocked,
        Self::NoAcquire,
        Self::NoRelease,
        Self::Apart,
        Self::Force,
        Self::Local,
        Self::Stores,
        Self::Leaf,
        Self::Shift,
        Self::Unshifted,
        Self::OtherSpace,
        Self::VmidOnly,
    ];

    /// The kind's name in `TWOFOLD_MUTANT`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Omit => "omit",
            Self::Unlocked => "unlocked",
            Self::NoAcquire => "no-acquire",
            Self::NoRelease => "no-release",
            Self::Apart => "apart",
            Self::Force => "force",
            Self::Local => "local",
            Self::Stores => "stores",
            Self::Leaf => "leaf",
            Self::Shift => "shift",
            Self::Unshifted => "unshifted",
            Self::OtherSpace => "other-space",
            Self::VmidOnly => "vmid-only",
        }
    }
}

/// A call that a mutant changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The file, relative to the top of the checkout.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1, in characters.
    pub column: usize,
    /// The function that contains the call, with its type.
    pub function: String,
    /// The name of the called function.
    pub call: String,
    /// The ordinal of this call among equal calls in the function, from 1.
    pub number: usize,
}

/// One change at one site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// The site.
    pub site: Site,
    /// The kind of change.
    pub kind: Kind,
}

/// The mutant's name in `TWOFOLD_MUTANT`.
impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Site { file, line, column, .. } = &self.site;
        write!(f, "{file}:{line}:{column}:{}", self.kind.name())
    }
}

impl Mutation for Mutant {
    const EXCUSES: Excuses = EXCUSES;

    fn kinds() -> Vec<&'static str> {
        Kind::ALL.map(Kind::name).to_vec()
    }

    fn file(&self) -> &str {
        &self.site.file
    }

    /// Function, call and kind.
    fn label(&self) -> String {
        let Site { function, call, number, .. } = &self.site;
        let number = if *number > 1 { format!("#{number}") } else { String::new() };
        format!("{function}/{call}{number}/{}", self.kind.name())
    }

    fn kind(&self) -> &'static str {
        self.kind.name()
    }
}

/// The files of the primitives with hooks, which `stage2::primitive` re-exports.
const PRIMITIVES: [&str; 2] = ["crates/stage2/src/instrumented/execute.rs", "crates/stage2/src/instrumented/word.rs"];
/// The primitives without hooks, and the files that observe primitives and that mutate them.
const NOT_READ: [&str; 4] =
    ["primitive/execute.rs", "primitive/word.rs", "instrumented/observer.rs", "instrumented/mutants.rs"];
/// Primitives that only notify an observer.
const NOTIFYING: [&str; 7] = ["page_taken", "page_freed", "data_written", "root", "about_to", "unrecorded", "claim"];

/// Returns all mutants of the checkout at `root`, in the order of files and lines.
pub fn all(root: &Path) -> anyhow::Result<Vec<Mutant>> {
    let mut source = Source::default();
    for directory in ["crates/stage2/src", "crates/memory/src"] {
        reader::read(&mut source, root, directory, &NOT_READ)?;
    }
    list_of(source)
}

fn list_of(mut source: Source) -> anyhow::Result<Vec<Mutant>> {
    let is_primitive = |function: &Function| PRIMITIVES.contains(&function.file.as_str());
    // Their callers know them by the module that re-exports them.
    source.functions.iter_mut().filter(|f| is_primitive(f)).for_each(|f| f.module = "primitive".to_owned());
    let source = &source;
    let mut mutants = Vec::new();
    let primitives = source.functions.iter().filter(|function| is_primitive(function) && function.tracks_caller);
    for function in primitives.filter(|function| !NOTIFYING.contains(&function.name.as_str())) {
        let none = changes(source, function, &mut Vec::new())?.is_empty();
        ensure!(!none, "{}: nothing in `{}` can be changed; add `step!` or a mutant", function.file, function.name);
    }
    // A primitive's closures are the access itself.
    let callers = source.functions.iter().filter(|function| !is_primitive(function) || !function.tracks_caller);
    for function in callers {
        let mut seen: Vec<&str> = Vec::new();
        for call in function.calls.iter().filter(|call| call.in_closure || !function.tracks_caller) {
            let Some(called) = callee(source, function, call)? else { continue };
            seen.push(&call.name);
            let mut kinds = BTreeSet::new();
            for change in changes(source, called, &mut Vec::new())? {
                let Some(found) = change.kinds(call) else {
                    bail!("{}: `{}` needs its {} by name", at(function, call.place), call.name, change.what());
                };
                kinds.extend(found);
            }
            let owner = function.owner.as_ref().unwrap_or(&function.module);
            let site = Site {
                file: function.file.clone(),
                line: call.place.line,
                column: call.place.column + 1,
                function: format!("{owner}::{}", function.name),
                call: call.name.clone(),
                number: seen.iter().filter(|name| **name == call.name).count(),
            };
            mutants.extend(kinds.into_iter().map(|kind| Mutant { site: site.clone(), kind }));
        }
    }
    mutants.sort_by(|a, b| (&a.site.file, a.site.line, a.site.column).cmp(&(&b.site.file, b.site.line, b.site.column)));
    Ok(mutants)
}

/// A possible change of a call, which may still depend on the words of the call's arguments.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Is(Kind),
    Ordering,
    Barrier,
    Invalidation,
}

impl Change {
    /// Returns the kinds of mutant for these arguments, or `None` if the arguments do not determine them.
    fn kinds(&self, call: &Call) -> Option<Vec<Kind>> {
        let has = |words: &Words, names: &[&str]| names.iter().any(|name| words.contains(*name));
        let is = |names: &[&str]| call.arguments.iter().any(|words| has(words, names));
        // If an ordering is named in the call, another argument's words count for nothing: a stored value may come from
        // a load with an ordering of its own.
        let is_named = |words: &&Words| words.len() == 2 && words.contains("Ordering");
        let named = call.arguments.iter().find(is_named);
        let orders = |names: &[&str]| named.map_or_else(|| is(names), |words| has(words, names));
        let (acquire, release) = (orders(&["Acquire", "AcqRel"]), orders(&["Release", "AcqRel"]));
        let (waits, broadcast) = (is(&["Ish", "Nsh"]), is(&["Ish", "IshSt"]));
        let pick = |kinds: &[(bool, Kind)]| kinds.iter().filter(|(is, _)| *is).map(|(_, kind)| *kind).collect();
        match self {
            Self::Is(kind) => Some(vec![*kind]),
            Self::Ordering if acquire || release || is(&["Relaxed"]) => {
                Some(pick(&[(acquire, Kind::NoAcquire), (release, Kind::NoRelease)]))
            }
            Self::Barrier if waits || broadcast || is(&["NshSt"]) => {
                Some(pick(&[(broadcast, Kind::Local), (waits, Kind::Stores)]))
            }
            Self::Invalidation if is(&["Tlbi"]) => {
                let local = is(&["Ipas2E1Is", "Ipas2Le1Is", "VmallE1Is"]);
                let everything = call.arguments.last().is_some_and(|operand| *operand == Words::from(["0".to_owned()]));
                let walks = is(&["Ipas2E1Is", "Ripas2E1Is"]);
                Some(pick(&[
                    (local, Kind::Local),
                    (walks, Kind::Leaf),
                    (!everything, Kind::Shift),
                    (!everything, Kind::Unshifted),
                    (!everything, Kind::OtherSpace),
                ]))
            }
            _ => None,
        }
    }

    fn what(&self) -> &'static str {
        match self {
            Self::Is(_) => "kind",
            Self::Ordering => "ordering",
            Self::Barrier => "domain",
            Self::Invalidation => "operation",
        }
    }
}

/// Returns the possible changes of a call of `function`: its own, and those of the calls that it makes in its caller's
/// name.
fn changes(source: &Source, function: &Function, above: &mut Vec<String>) -> anyhow::Result<BTreeSet<Change>> {
    let name = full_name(function);
    let mut found = BTreeSet::new();
    if above.contains(&name) {
        return Ok(found);
    }
    above.push(name);
    if function.is_step {
        found.insert(Change::Is(Kind::Omit));
    }
    for call in function.calls.iter().filter(|call| !call.in_closure) {
        let inner = match (call.qualifier.as_deref(), call.name.as_str()) {
            (Some("mutants"), "leaves_lock_out") => BTreeSet::from([Change::Is(Kind::Unlocked)]),
            (Some("mutants"), "is_apart") => BTreeSet::from([Change::Is(Kind::Apart)]),
            (Some("mutants"), "is_forced") => BTreeSet::from([Change::Is(Kind::Force)]),
            (Some("mutants"), "vttbr") => BTreeSet::from([Change::Is(Kind::VmidOnly)]),
            (Some("mutants"), "ordering") => BTreeSet::from([Change::Ordering]),
            (Some("mutants"), "barrier") => BTreeSet::from([Change::Barrier]),
            (Some("mutants"), "invalidation") => BTreeSet::from([Change::Invalidation]),
            _ => match callee(source, function, call)? {
                Some(called) => changes(source, called, above)?,
                None => continue,
            },
        };
        for change in inner {
            match change.kinds(call) {
                Some(kinds) => found.extend(kinds.into_iter().map(Change::Is)),
                // The caller of this function determines the kinds.
                None => drop(found.insert(change)),
            }
        }
    }
    above.pop();
    Ok(found)
}

/// Returns the called function, if it has `track_caller`.
fn callee<'a>(source: &'a Source, from: &Function, call: &Call) -> anyhow::Result<Option<&'a Function>> {
    let is_meant = |function: &&Function| {
        let is_visible = function.is_public || same_crate(&function.file, &from.file);
        let arguments =
            call.arguments.len() - usize::from(call.receiver.is_none() && function.is_method).min(call.arguments.len());
        is_visible && function.name == call.name && function.arguments == arguments
    };
    let is_reachable = |function: &&Function| match (&call.receiver, &call.qualifier) {
        (Some(_), _) => function.is_method,
        (None, Some(qualifier)) => {
            // A path from `crate`, `self` or `super` may reach a re-export of any module.
            let is_module = function.module == *qualifier || ["crate", "self", "super"].contains(&qualifier.as_str());
            function.owner.as_ref() == Some(qualifier) || function.owner.is_none() && is_module
        }
        (None, None) => function.owner.is_none() && function.module == from.module,
    };
    let mut found: Vec<_> = source.functions.iter().filter(is_meant).filter(is_reachable).collect();
    if found.iter().all(|function| !function.tracks_caller) {
        return Ok(None);
    }
    if let Some(kind) = call.receiver.as_ref().and_then(|receiver| source.type_of(receiver, from)) {
        found.retain(|function| function.owner.as_ref() == Some(&kind));
    }
    match found[..] {
        [] => Ok(None),
        [one] => Ok(Some(one).filter(|function| function.tracks_caller)),
        _ => {
            let names: Vec<_> = found.iter().map(|function| full_name(function)).collect();
            bail!("{}: this call may be {}: rename one of them", at(from, call.place), names.join(" or "))
        }
    }
}

fn full_name(function: &Function) -> String {
    format!("{}::{}", function.owner.as_ref().unwrap_or(&function.module), function.name)
}

fn same_crate(one: &str, other: &str) -> bool {
    let name = |file: &str| file.split('/').nth(1).map(str::to_owned);
    name(one) == name(other)
}

fn at(function: &Function, place: LineColumn) -> String {
    format!("{}:{}:{}", function.file, place.line, place.column + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORD: &str = "
        pub struct Word(AtomicU64);
        impl Word {
            #[cfg_attr(feature = \"checked\", track_caller)]
            fn load(&self, order: Ordering) -> u64 {
                #[cfg(mutants)]
                let order = mutants::ordering(order, Location::caller());
                observed!(o => o.load(&self.0), self.0.load(order))
            }
            #[cfg_attr(feature = \"checked\", track_caller)]
            fn store(&self, value: u64, order: Ordering) {
                step!(());
                #[cfg(mutants)]
                let order = mutants::ordering(order, Location::caller());
            }
            #[cfg_attr(feature = \"checked\", track_caller)]
            fn replace(&self, value: u64, order: Ordering) {
                #[cfg(mutants)]
                if mutants::is_apart(Location::caller()) { self.store(value, order); }
                #[cfg(mutants)]
                let order = mutants::ordering(order, Location::caller());
            }
            #[cfg_attr(feature = \"checked\", track_caller)]
            fn unlock(&self, value: u64) {
                let order = Ordering::Release;
                #[cfg(mutants)]
                let order = mutants::ordering(order, Location::caller());
            }
        }
        #[cfg_attr(feature = \"checked\", track_caller)]
        fn tlbi(p: &P, operation: Tlbi, operand: u64) { step!(()); mutants::invalidation(operation, operand, here()); }
        #[cfg_attr(feature = \"checked\", track_caller)]
        fn dsb(p: &P, domain: Domain) { step!(()); mutants::barrier(domain, here()); }
        #[cfg_attr(feature = \"checked\", track_caller)]
        fn root(p: &P) {}
    ";

    fn list(text: &str) -> anyhow::Result<Vec<String>> {
        let mut source = Source::default();
        reader::read_text(&mut source, PRIMITIVES[1], WORD)?;
        reader::read_text(&mut source, "crates/stage2/src/thing.rs", text)?;
        Ok(list_of(source)?.into_iter().map(|mutant| mutant.label()).collect())
    }

    #[test]
    fn kinds_follow_from_what_is_written() {
        let text =
            "fn f(w: &Word) { w.load(Ordering::Acquire); w.load(Ordering::Relaxed); w.store(1, Ordering::Release);
            w.replace(1, Ordering::AcqRel); let v = w.load(Ordering::Acquire) | 1; w.store(v, Ordering::Relaxed);
            primitive::tlbi(p, Tlbi::VmallE1Is, 0); primitive::tlbi(p, Tlbi::Ipas2E1, x);
            primitive::dsb(p, Domain::Ish); primitive::dsb(p, Domain::NshSt); }";
        let expected = [
            "thing::f/load/no-acquire",
            "thing::f/store/omit",
            "thing::f/store/no-release",
            "thing::f/replace/no-acquire",
            "thing::f/replace/no-release",
            "thing::f/replace/apart",
            "thing::f/load#3/no-acquire",
            "thing::f/store#2/omit",
            "thing::f/tlbi/omit",
            "thing::f/tlbi/local",
            "thing::f/tlbi#2/omit",
            "thing::f/tlbi#2/shift",
            "thing::f/tlbi#2/unshifted",
            "thing::f/tlbi#2/other-space",
            "thing::f/dsb/omit",
            "thing::f/dsb/local",
            "thing::f/dsb/stores",
            "thing::f/dsb#2/omit",
        ];
        assert_eq!(list(text).unwrap(), expected);
    }

    #[test]
    fn a_step_that_is_imported_is_found() {
        let calls = "fn f(p: &P) { dsb(p, Domain::Ish); } fn g(p: &P) { wait(p, Domain::NshSt); }";
        for import in ["primitive::{Tlbi, dsb, dsb as wait}", "{super::dsb, crate::dsb as wait}"] {
            let found = list(&format!("use {import}; {calls}")).unwrap();
            assert_eq!(found, ["thing::f/dsb/omit", "thing::f/dsb/local", "thing::f/dsb/stores", "thing::g/dsb/omit"]);
        }
        assert_eq!(list(calls).unwrap(), [""; 0], "a closure may have the name of a step");
    }

    #[test]
    fn the_site_is_where_no_caller_passes_it_on() {
        let text = "struct Cell { word: Word }
            impl Cell {
                #[cfg_attr(feature = \"checked\", track_caller)]
                fn look(&self) -> u64 { self.word.load(Ordering::Acquire) }
                #[cfg_attr(feature = \"checked\", track_caller)]
                fn later(&self) { let f = || self.look(); f() }
            }
            fn above(cell: &Cell) { cell.look(); cell.later(); }";
        assert_eq!(list(text).unwrap(), ["Cell::later/look/no-acquire", "thing::above/look/no-acquire"]);
    }

    #[test]
    fn calls_are_distinguished_by_type() {
        let text = "struct TableMetadata { state: Word }
            impl TableMetadata { fn unlock(&self, counts: Counts) { self.state.unlock(counts.0); } }
            fn f(metadata: &TableMetadata) { metadata.unlock(c); }";
        assert_eq!(list(text).unwrap(), ["TableMetadata::unlock/unlock/no-release"]);
        let error = list(&format!("{text} fn g() {{ what().unlock(c); }}")).unwrap_err().to_string();
        assert!(error.contains("thing.rs:3:") && error.contains("Word::unlock or TableMetadata::unlock"), "{error}");
    }

    #[test]
    fn an_ambiguous_call_is_an_error() {
        let error = list("fn f(w: &Word, order: Ordering) { w.load(order); }").unwrap_err().to_string();
        assert!(error.contains("thing.rs:1:") && error.contains("ordering by name"), "{error}");
    }

    #[test]
    fn a_primitive_without_a_mutant_is_an_error() {
        let mut source = Source::default();
        let text = "#[cfg_attr(feature = \"checked\", track_caller)] fn fresh(p: &P) { p.fresh(); }";
        reader::read_text(&mut source, PRIMITIVES[1], text).unwrap();
        assert!(list_of(source).unwrap_err().to_string().contains("nothing in `fresh` can be changed"));
    }

    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
    }

    #[test]
    fn the_engine_has_mutants_of_every_kind() {
        let mutants = all(root()).unwrap();
        for kind in Kind::ALL {
            assert!(mutants.iter().any(|mutant| mutant.kind == kind), "{kind:?}");
        }
        let names: BTreeSet<_> = mutants.iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), mutants.len());
    }

    /// The run-time code has its own list of kinds; both lists must agree.
    #[test]
    fn every_kind_is_known_at_run_time() {
        let text = std::fs::read_to_string(root().join("crates/stage2/src/instrumented/mutants.rs")).unwrap();
        for kind in Kind::ALL {
            assert!(text.contains(&format!("(\"{}\", Kind::{kind:?})", kind.name())), "{kind:?}");
        }
        assert_eq!(text.matches("\", Kind::").count(), Kind::ALL.len());
    }
}
