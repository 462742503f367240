// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sources whose values are mutated.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context;

use super::sites::Sites;
use crate::aside::Aside;
use crate::syntax::files;

/// The crate that compiles files of the hypervisor for the host.
pub const HOSTED_HYPERVISOR: &str = "fuzz/hypervisor";
/// The hypervisor's own files.
const HYPERVISOR: &str = "crates/hypervisor/src/";
/// The hypervisor's files that parse untrusted input. The fuzzer judges these.
const READERS: [&str; 1] = ["board.rs"];
/// The hypervisor's files that should be mutated; this requires that the host can compile them.
const WANTED: [&str; 3] = ["inject.rs", "vcpu.rs", "world.rs"];
/// The directories whose sources are all mutated, one for each crate. Of the machine, which is a test's apparatus, that is
/// the one part that keeps a guest's data.
const MUTATED: [&str; 5] = [
    "crates/stage2/src",
    "crates/memory/src",
    "crates/migration/src",
    "crates/machine/src/file_store",
    "crates/vmm/src",
];
/// Sources that are not mutated here: primitives, which have mutants of calls; baselines, which only benches use; and
/// parsers of untrusted input, which the fuzzer judges. Nor are files that are declared for tests or for the model
/// checker.
const NOT_MUTATED: [&str; 7] = [
    "/primitive/",
    "/instrumented/",
    "/arm64.rs",
    "/baselines",
    "/vmm/src/config.rs",
    "/vmm/src/device_tree.rs",
    "/vmm/src/load.rs",
];

/// Returns the mutants of the checkout at `root`, and the texts of the mutated files.
pub fn read(root: &Path) -> anyhow::Result<(Sites, BTreeMap<String, String>)> {
    let mut sites = Sites::default();
    let mut texts = BTreeMap::new();
    for directory in MUTATED {
        let (mut of_crate, mut aside) = (Vec::new(), Aside::default());
        for path in files(&root.join(directory))? {
            let file = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            if file.ends_with(".rs") && !NOT_MUTATED.iter().any(|name| file.contains(name)) {
                let text = fs::read_to_string(&path).with_context(|| format!("cannot read {file}"))?;
                aside.read(&file, &syn::parse_file(&text).with_context(|| format!("cannot parse {file}"))?);
                of_crate.push((file, text));
            }
        }
        of_crate.retain(|(file, _)| !aside.has(file));
        sites.read(&of_crate)?;
        texts.extend(of_crate);
    }
    let hypervisor = hosted(root)?;
    let read = |file: &String| Ok((file.clone(), fs::read_to_string(root.join(file))?));
    let hypervisor = hypervisor.iter().map(read).collect::<anyhow::Result<Vec<_>>>()?;
    sites.read(&hypervisor)?;
    texts.extend(hypervisor);
    Ok((sites, texts))
}

/// Returns the hypervisor's files that are mutated: those that the hosted hypervisor includes by path.
fn hosted(root: &Path) -> anyhow::Result<Vec<String>> {
    let library = root.join(HOSTED_HYPERVISOR).join("src/lib.rs");
    let text = fs::read_to_string(&library).with_context(|| format!("cannot read {}", library.display()))?;
    let mut found = Vec::new();
    for name in text.lines().filter_map(|line| line.split_once(HYPERVISOR)?.1.strip_suffix("\"]")) {
        match name.strip_suffix("mod.rs") {
            Some(directory) => {
                for file in files(&root.join(HYPERVISOR).join(directory))? {
                    found.push(file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned());
                }
            }
            None if READERS.contains(&name) => {}
            None => found.push(format!("{HYPERVISOR}{name}")),
        }
    }
    Ok(found)
}

/// Returns the files of [`WANTED`] that the host cannot compile.
pub fn missing(root: &Path) -> anyhow::Result<Vec<String>> {
    let hosted = hosted(root)?;
    let wanted = WANTED.iter().map(|name| format!("{HYPERVISOR}{name}"));
    Ok(wanted.filter(|file| !hosted.contains(file)).collect())
}

/// Returns the package whose tests judge a file's mutants: the file's own. If only another crate's tests catch a
/// mutant, they do so by luck.
pub fn judge_of(file: &str) -> &str {
    file.split('/').nth(1).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::Mutation;
    use crate::values::value::{Kind, Value};

    fn values() -> Vec<Value> {
        read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))).unwrap().0.values
    }

    #[test]
    fn each_excuse_stands_for_one_mutant() {
        Value::EXCUSES.check(&values()).unwrap();
    }

    /// A test that was changed is no mutant of the code.
    #[test]
    fn files_of_tests_and_of_the_model_checker_are_not_mutated() {
        let values = values();
        let aside = ["/loom", "/tests.rs", "/instrumented/"];
        assert!(values.iter().all(|value| !aside.iter().any(|name| value.file.contains(name))));
        assert!(values.iter().any(|value| value.file == "crates/memory/src/async_fault/arrivals.rs"));
    }

    /// A file, a function and a change name exactly one mutant; the excuses rely on that.
    #[test]
    fn names_are_unique() {
        let values = values();
        let names: std::collections::BTreeSet<_> = values.iter().map(|value| (&value.file, value.label())).collect();
        assert_eq!(names.len(), values.len());
        for kind in Kind::ALL {
            assert!(values.iter().filter(|value| value.kind == kind).count() > 50, "{kind:?}");
        }
    }
}
