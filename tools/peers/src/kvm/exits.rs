// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What exits cost under KVM: the bare-metal guest measures itself there, as it does under Twofold.
//!
//! The guest runs under `twofold bench exits --on kvm`, with KVM's own interrupt controller, timer and PSCI, and with a
//! UART and a clock in that program, as under any VMM. Its clock counts one instruction a nanosecond, those of KVM, of
//! the host's kernel and of the program alike. Invariant: every event has a figure.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use twofold_abi::exits::EVENTS;
use twofold_workspace::static_program;

/// The image's path in the host's file system.
pub const GUEST: &str = "guest.img";

/// The instructions of one event, by its name.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Exits(pub BTreeMap<String, f64>);

/// The command whose output [`Exits::of`] reads.
pub fn command() -> String {
    let program = format!("/bin/{} bench exits --on kvm --images / -n {COUNT}", static_program::TWOFOLD.name);
    format!("{program} --json /exits.json >/exits.txt 2>&1 || cat /exits.txt; cat /exits.json")
}

impl Exits {
    /// Reads the result file that the command prints.
    pub fn of(lines: &[String]) -> anyhow::Result<Self> {
        let text = lines.join("\n");
        let results: Results = serde_json::from_str(&text).with_context(|| format!("no result file:\n{text}"))?;
        let mut exits = BTreeMap::new();
        for measurement in results.measurements {
            let [each] = measurement.runs[..] else { anyhow::bail!("{} has more than one run", measurement.phase) };
            exits.insert(measurement.phase, each);
        }
        for event in EVENTS {
            ensure!(exits.contains_key(event.name), "the guest did not measure `{}`", event.what);
        }
        Ok(Self(exits))
    }
}

/// How often the guest measures each event.
const COUNT: u64 = 500;

/// The part of a result file that is read.
#[derive(Deserialize)]
struct Results {
    measurements: Vec<Measurement>,
}

#[derive(Deserialize)]
struct Measurement {
    phase: String,
    runs: Vec<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(names: impl Iterator<Item = &'static str>) -> Vec<String> {
        let rows: Vec<_> = names.map(|name| format!(r#"{{"phase": "{name}", "runs": [3100.5], "more": 1}}"#)).collect();
        format!("{{\n\"measurements\": [{}], \"format\": \"x\"\n}}", rows.join(",\n"))
            .lines()
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn every_event_has_a_figure() {
        let exits = Exits::of(&file(EVENTS.iter().map(|event| event.name))).unwrap();
        assert_eq!((exits.0.len(), exits.0["hvc"]), (EVENTS.len(), 3100.5));
        let error = Exits::of(&file(EVENTS.iter().skip(1).map(|event| event.name))).unwrap_err().to_string();
        assert!(error.contains(EVENTS[0].what), "{error}");
        assert!(Exits::of(&["error: no /dev/kvm here".to_owned()]).is_err());
    }
}
