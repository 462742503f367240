// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What experiments came to: written by `--json`, kept inside each report, read again by `compare`.
//!
//! Invariant: a measurement carries all that names it (experiment, platform, configuration, phase, quantity) and each of its
//! runs, so two files are compared without a word of the programs that wrote them. Runs of measurements that were taken in
//! turns stand at the same place of their lists.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::output;

/// What the first field of a file says.
pub const FORMAT: &str = "twofold-bench 1";

/// All that one command measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`FORMAT`].
    pub format: String,
    /// The command, as it was typed.
    pub command: String,
    /// The program's version, and how it was compiled.
    pub program: String,
    /// What the figures depend on besides: names and values, in the order in which they are shown. No machine's own name.
    pub host: Vec<(String, String)>,
    /// The figures.
    pub measurements: Vec<Measurement>,
    /// What changed over time.
    pub series: Vec<Series>,
    /// What a reader has to know.
    pub notes: Vec<String>,
    /// Whether somebody ended it before its time.
    pub interrupted: bool,
}

/// One figure of one variant, run by run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// `dirty-log`, `page-table`.
    pub experiment: String,
    /// Where it ran.
    pub platform: Platform,
    /// What was set, and to what: `bytes`, `vcpus`, `mode`, `backing`, `tracker`, `split`, `cmo` ...
    pub configuration: BTreeMap<String, String>,
    /// `enable`, `dirty`, `get`, `clear`, `create` ...
    pub phase: String,
    /// What was measured of it.
    pub quantity: Quantity,
    /// How.
    pub kind: Kind,
    /// Each run.
    pub runs: Vec<f64>,
}

/// What changed over time in one variant: a line of a plot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Its experiment.
    pub experiment: String,
    /// Where it ran.
    pub platform: Platform,
    /// What was set, and to what.
    pub configuration: BTreeMap<String, String>,
    /// What is told: `writes per second`.
    pub name: String,
    /// Seconds since the start, and the value there.
    pub points: Vec<(f64, f64)>,
    /// Moments to mark: seconds since the start, and what happened.
    pub events: Vec<(f64, String)>,
}

/// Where a guest runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Platform {
    /// The machine in this process: no privileges, any Linux
    Machine,
    /// The hypervisor in QEMU: counts alone, the same in each run
    Hypervisor,
    /// The real KVM of this host
    Kvm,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Nanoseconds on the wall.
    Time,
    /// Nanoseconds of CPU time, of all threads that took part.
    CpuTime,
    /// Instructions of the hypervisor (at EL2; of the host's kernel).
    Instructions,
    /// Faults of the guest's.
    Faults,
    /// TLB invalidations.
    Tlbi,
    /// Data synchronization barriers.
    Dsb,
    /// Data cache lines cleaned.
    LinesCleaned,
    /// Table pages taken.
    Tables,
    /// Pages that were dirty.
    Pages,
    /// Accesses of the guest's per second.
    Rate,
}

/// How a figure came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Measured as it is.
    Native,
    /// Counted: the same in each run.
    Counted,
    /// With a stated price for what costs nothing here.
    Modelled,
}

impl Results {
    /// Reads a file that `--json` wrote.
    ///
    /// # Errors
    ///
    /// There is none, or it is none of ours.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let strange = || format!("{} is no file of `twofold bench ... --json`", path.display());
        let results: Self = serde_json::from_str(&text).with_context(strange)?;
        if results.format != FORMAT {
            bail!(
                "{} has the format `{}`, and `{FORMAT}` is the one that is read here",
                path.display(),
                results.format
            );
        }
        Ok(results)
    }

    /// Writes it.
    ///
    /// # Errors
    ///
    /// The file cannot be written; then there is none, or the one before.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        output::json(path, self)
    }
}

impl Measurement {
    /// Whether `other` is of the same thing, in another file or with another program.
    pub fn is_same(&self, other: &Self) -> bool {
        let name = |one: &Self| (one.experiment.clone(), one.platform, one.phase.clone(), one.quantity);
        name(self) == name(other) && self.configuration == other.configuration
    }
}

impl Platform {
    /// Its name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Hypervisor => "hypervisor",
            Self::Kvm => "kvm",
        }
    }
}

impl Quantity {
    /// What it is, for a table's head.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::CpuTime => "CPU time",
            Self::Instructions => "instructions",
            Self::Faults => "faults",
            Self::Tlbi => "TLBI",
            Self::Dsb => "DSB",
            Self::LinesCleaned => "lines cleaned",
            Self::Tables => "table pages",
            Self::Pages => "dirty pages",
            Self::Rate => "accesses per second",
        }
    }

    /// Whether more of it is better.
    pub const fn more_is_better(self) -> bool {
        matches!(self, Self::Rate)
    }
}

impl Kind {
    /// A word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Counted => "counted",
            Self::Modelled => "modelled",
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Results {
        let configuration = BTreeMap::from([("bytes".to_owned(), "1073741824".to_owned())]);
        let (experiment, platform) = ("dirty-log".to_owned(), Platform::Machine);
        Results {
            format: FORMAT.to_owned(),
            command: "twofold bench dirty-log".to_owned(),
            program: "0.1.0, release build".to_owned(),
            host: vec![("CPU".to_owned(), "any".to_owned())],
            measurements: vec![Measurement {
                experiment: experiment.clone(),
                platform,
                configuration: configuration.clone(),
                phase: "clear".to_owned(),
                quantity: Quantity::CpuTime,
                kind: Kind::Native,
                runs: vec![1.5, 2.0, 0.1 + 0.2],
            }],
            series: vec![Series {
                experiment,
                platform,
                configuration,
                name: "writes per second".to_owned(),
                points: vec![(0.0, 1e9)],
                events: vec![(0.5, "get".to_owned())],
            }],
            notes: vec!["a note".to_owned()],
            interrupted: false,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results.json");
        results().write(&path).unwrap();
        assert_eq!(Results::read(&path).unwrap(), results());
    }

    #[test]
    fn what_is_none_of_ours_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results.json");
        let error = |text: &str| {
            fs::write(&path, text).unwrap();
            format!("{:#}", Results::read(&path).unwrap_err())
        };
        assert!(error("{}").contains("is no file of"));
        let newer = Results { format: "twofold-bench 2".to_owned(), ..results() };
        assert!(error(&serde_json::to_string(&newer).unwrap()).contains("the format `twofold-bench 2`"));
        assert!(format!("{:#}", Results::read(&directory.path().join("none")).unwrap_err()).contains("cannot read"));
    }

    #[test]
    fn measurements_are_the_same_by_what_names_them() {
        let one = results().measurements.remove(0);
        assert!(one.is_same(&Measurement { runs: vec![], kind: Kind::Modelled, ..one.clone() }));
        assert!(!one.is_same(&Measurement { phase: "get".to_owned(), ..one.clone() }));
        assert!(!one.is_same(&Measurement { configuration: BTreeMap::new(), ..one.clone() }));
    }
}
