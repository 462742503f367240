// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The crates that are published: their manifests, their packages, the least Rust version, and the licences below them.

use std::process::Command;

use anyhow::{Context, ensure};
use libtest_mimic::{Failed, Trial};
use serde_json::Value;
use twofold_workspace::{Workspace, install, output, subprocess};

use super::cargo::{cargo, step};
use super::harness::{Depth, trial};

/// The crates that are published. `workload` is: `memory` has it for a feature.
const CRATES: [&str; 6] =
    ["twofold-abi", "twofold-devices", "twofold-memory", "twofold-migration", "twofold-stage2", "twofold-workload"];

/// Returns the tests.
pub fn trials(workspace: &Workspace, depth: Depth) -> Vec<Trial> {
    let of = workspace.clone();
    let judge = move || manifests(&of).map_err(|error| Failed::from(format!("{error:#}")));
    let mut package = of_each(cargo(workspace, &["package", "--allow-dirty", "--quiet"]));
    if depth == Depth::Quick {
        // Building what was packaged takes as long as building the crates again.
        package.arg("--no-verify");
    }
    let mut trials = vec![trial("manifests_of_published_crates", judge), step("crates_are_packaged", package)];
    if subprocess::find("cargo-deny").is_some() {
        let checks = ["deny", "--log-level", "error", "check", "bans", "licenses", "sources"];
        trials.push(step("licences_and_sources", cargo(workspace, &checks)));
    }
    if depth == Depth::Full {
        let of = workspace.clone();
        let judge = move || least_rust(&of).map_err(|error| Failed::from(format!("{error:#}")));
        trials.push(trial("least_rust_version", judge));
        if subprocess::find("cargo-deny").is_some() {
            // It fetches the database of advisories.
            trials.push(step("advisories", cargo(workspace, &["deny", "--log-level", "error", "check", "advisories"])));
        }
    }
    trials
}

/// Says which of these tests cannot run here.
pub fn missing() -> anyhow::Result<()> {
    if subprocess::find("cargo-deny").is_none() {
        output::line(
            "not run: licences_and_sources, advisories. cargo-deny is missing: `cargo install cargo-deny --locked`",
        )?;
    }
    Ok(())
}

fn of_each(mut command: Command) -> Command {
    for name in CRATES {
        command.args(["--package", name]);
    }
    command
}

/// Checks that each manifest has what a reader of the registry needs, and that no feature is on by default.
fn manifests(workspace: &Workspace) -> anyhow::Result<()> {
    let text = subprocess::read(&mut cargo(workspace, &["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&text)?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    for name in CRATES {
        let package = packages.iter().find(|package| package["name"] == name).context(name)?;
        lacks(package).map_or(Ok(()), |what| Err(anyhow::anyhow!("{name}: {what}")))?;
    }
    // `publish = false` is an empty list of registries.
    let others = packages.iter().filter(|package| !CRATES.iter().any(|name| package["name"] == *name));
    for other in others {
        let nowhere = other["publish"].as_array().is_some_and(Vec::is_empty);
        ensure!(nowhere, "{} would be published", other["name"]);
    }
    Ok(())
}

/// Returns what a manifest lacks, if anything.
fn lacks(package: &Value) -> Option<&'static str> {
    let has = |field: &str| package[field].as_str().is_some_and(|text| !text.is_empty());
    let list = |field: &str| package[field].as_array().is_some_and(|list| !list.is_empty() && list.len() <= 5);
    let docs = package["metadata"]["docs"]["rs"]["targets"][0].as_str();
    let checks = [
        (has("description"), "no description"),
        (has("readme"), "no README"),
        (has("rust_version"), "no rust-version"),
        (has("license"), "no licence"),
        (list("keywords"), "no keywords, or more than five"),
        (list("categories"), "no categories, or more than five"),
        (package["features"]["default"].is_null(), "a default feature"),
        (docs.is_some_and(|target| target.starts_with("aarch64-")), "no arm64 target for docs.rs"),
    ];
    checks.iter().find(|(is_there, _)| !is_there).map(|(_, what)| *what)
}

/// Checks the crates with the Rust version that their manifests name.
fn least_rust(workspace: &Workspace) -> anyhow::Result<()> {
    let text = subprocess::read(&mut cargo(workspace, &["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&text)?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    let stage2 = packages.iter().find(|package| package["name"] == "twofold-stage2").context("no stage2")?;
    let version = stage2["rust_version"].as_str().context("no rust-version")?;
    let toolchain = if version.split('.').count() == 2 { format!("{version}.0") } else { version.to_owned() };
    install::toolchain(&toolchain)?;
    let mut check = Command::new("rustup");
    check.current_dir(workspace.root()).args(["run", &toolchain, "cargo", "check", "--target-dir"]);
    // A directory of its own: another compiler would build everything anew each time.
    check.arg(workspace.images().join("least-rust"));
    subprocess::quiet(&mut of_each(check))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_without_something_is_named() {
        let whole = serde_json::json!({
            "description": "d", "readme": "README.md", "rust_version": "1.91", "license": "MIT", "keywords": ["k"],
            "categories": ["no-std"], "features": {}, "metadata": {"docs": {"rs": {"targets": ["aarch64-unknown-none"]}}}
        });
        assert_eq!(lacks(&whole), None);
        for (field, value, what) in [
            ("description", Value::Null, "no description"),
            ("keywords", serde_json::json!(["a", "b", "c", "d", "e", "f"]), "no keywords, or more than five"),
            ("features", serde_json::json!({"default": ["x"]}), "a default feature"),
            ("metadata", Value::Null, "no arm64 target for docs.rs"),
        ] {
            let mut without = whole.clone();
            without[field] = value;
            assert_eq!(lacks(&without), Some(what));
        }
    }
}
