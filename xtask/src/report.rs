// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of a run as JSON.
//!
//! Invariant: the hypervisor's figures keep their keys, nested at each dot. The run's description has separate keys
//! beside them.

use std::process::Command;

use serde_json::{Map, Value, json};
use twofold_launch::{Qemu, Report};
use twofold_peers::recorded;
use twofold_workspace::guest::{Kind, Selected};
use twofold_workspace::subprocess;

use crate::dirty_log::DirtyLogs;
use crate::figures::{FirstTouch, LongestMasked};

/// The description of a run.
#[derive(Debug)]
pub struct Described<'a> {
    /// The guest.
    pub selected: &'a Selected,
    /// The QEMU.
    pub qemu: &'a Qemu,
    /// Mapping size.
    pub pages: &'a str,
    /// Guest memory in bytes.
    pub memory: u64,
    /// vCPUs.
    pub cpus: u32,
    /// CPU model.
    pub cpu: &'a str,
    /// The guest's command line.
    pub command_line: &'a str,
    /// Whether instructions were counted.
    pub deterministic: bool,
    /// The guest's own check: `ok`.
    pub check: &'a str,
    /// The figures of the run that only touches pages.
    pub touch: Option<FirstTouch>,
    /// The figures of the run that measures dirty logs.
    pub logs: Option<DirtyLogs>,
}

/// Returns the whole report.
pub fn json(report: &Report, described: &Described<'_>) -> Value {
    let mut root = report.to_json();
    let packages = described.selected.versions.clone().unwrap_or_default();
    let package = |name: &str| {
        packages.packages.iter().find(|(package, _)| package.starts_with(name)).map(|(_, version)| version.clone())
    };
    root.insert(
        "versions".to_owned(),
        json!({
            "twofold": env!("CARGO_PKG_VERSION"),
            "qemu": described.qemu.version().to_string(),
            "guest_kernel": (described.selected.kind == Kind::Linux).then_some(&packages.kernel),
            "guest_kernel_package": package("linux-image"),
            "busybox": package("busybox"),
            "rustc": subprocess::read(Command::new("rustc").arg("--version")).ok().map(|text| text.trim().to_owned()),
        }),
    );
    root.insert(
        "configuration".to_owned(),
        json!({
            "guest": described.selected.kind.name(),
            "pages": described.pages,
            "memory": described.memory,
            "cpus": described.cpus,
            "cpu": described.cpu,
            "command_line": described.command_line,
            "deterministic": described.deterministic,
        }),
    );
    root.insert("check".to_owned(), described.check.into());
    if let Some(touch) = described.touch {
        root.insert(
            "first_touch".to_owned(),
            json!({
                "pages": touch.pages,
                "instructions_per_page": touch.per_page(),
                "kvm_with_host_kernel": recorded::FIRST_TOUCH,
            }),
        );
    }
    if let Some(longest) = LongestMasked::of(report) {
        let stretch = json!({"instructions": longest.instructions, "exit": longest.exit()});
        root.insert("longest_masked_stretch".to_owned(), stretch);
    }
    if let Some(logs) = &described.logs {
        root.insert("dirty_log".to_owned(), logs.json());
    }
    if let (Some(Value::Object(instructions)), Some(touch)) =
        (root.get_mut("el2_instructions"), FirstTouch::of(report).or(described.touch))
    {
        instructions.insert("per_first_touch".to_owned(), touch.per_page().into());
    }
    Value::Object(Map::from_iter(root))
}
