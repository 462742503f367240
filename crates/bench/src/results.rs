// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The results of an experiment. `--json` writes them, each report contains them, and `compare` reads them.
//!
//! Invariant: a measurement carries its full name (experiment, platform, configuration, phase, quantity) and each of
//! its runs. So two files can be compared without knowing the programs that wrote them. Runs that were taken in the
//! same turn have the same index in their lists.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::host;
use crate::output;
pub use crate::quantity::Quantity;
use crate::statistics::{Quartiles, Ratio};

/// The first field of a result file.
pub const FORMAT: &str = "twofold-bench 1";

/// Everything that one command measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`FORMAT`].
    pub format: String,
    /// The command, as it was typed.
    pub command: String,
    /// The program's version and build profile.
    pub program: String,
    /// The other conditions that the figures depend on: names and values, in display order. The machine's own name is
    /// left out.
    pub host: Vec<(String, String)>,
    /// Published numbers with ours next to them. Most commands have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headline: Vec<HeadlineRow>,
    /// The measurements.
    pub measurements: Vec<Measurement>,
    /// The values that were sampled over time.
    pub series: Vec<Series>,
    /// Notes that a reader of the figures needs.
    pub notes: Vec<String>,
    /// Whether a signal ended the command early.
    pub interrupted: bool,
}

/// A published number with ours next to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeadlineRow {
    /// The source by author and year, as in `docs/sources.md`: `Bras 2026`.
    pub source: String,
    /// What was measured: `clear, already split`.
    pub what: String,
    /// The published command, verbatim.
    pub command: String,
    /// The published number, or the target, in words: `44.01 % less time (sd 2.80)`.
    pub published: String,
    /// The published number as a gain: the part of the baseline's time that is saved, 0.4401. `None` if it was not
    /// published.
    pub published_gain: Option<f64>,
    /// The unit of `before` and `after`: `ms`.
    pub unit: String,
    /// Our baseline, with the technique off.
    pub before: Option<Quartiles>,
    /// Ours, with the technique on.
    pub after: Option<Quartiles>,
    /// (before - after) / before, with its 95 % confidence interval. A negative gain is a cost.
    pub gain: Option<Ratio>,
    /// The platform of our measurement.
    pub platform: Platform,
    /// How our figure was obtained.
    pub kind: Kind,
    /// The verdict on our figure.
    pub verdict: Verdict,
    /// A note that a reader needs. Empty if there is none.
    pub note: String,
}

/// Whether our figure is what a published gain, or a target, requires. `report::published` has the words,
/// with the sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The whole interval is where a published gain, or the target, requires it. The size of a gain may differ.
    #[serde(rename = "same_shape")]
    AsExpected,
    /// The interval contains both what is required and what is not.
    Inconclusive,
    /// The interval excludes the gain that is expected.
    Differs,
    /// We have no figure.
    NotMeasured,
}

/// One figure of one variant, with each run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// `dirty-log`, `page-table`.
    pub experiment: String,
    /// The platform.
    pub platform: Platform,
    /// The settings: `bytes`, `vcpus`, `mode`, `backing`, `tracker`, `split`, `cmo` ...
    pub configuration: BTreeMap<String, String>,
    /// `enable`, `dirty`, `get`, `clear`, `create` ...
    pub phase: String,
    /// The quantity that was measured.
    pub quantity: Quantity,
    /// How the figure was obtained.
    pub kind: Kind,
    /// The value of each run.
    pub runs: Vec<f64>,
}

/// A value of one variant over time: a line of a plot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The experiment.
    pub experiment: String,
    /// The platform.
    pub platform: Platform,
    /// The settings.
    pub configuration: BTreeMap<String, String>,
    /// The value's name: `writes per second`.
    pub name: String,
    /// Seconds since the start, and the value at that time.
    pub points: Vec<(f64, f64)>,
    /// Moments to mark: seconds since the start, and a label.
    pub events: Vec<(f64, String)>,
}

/// The platform that a guest runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Platform {
    /// The hosted machine in this process: any Linux, no privileges
    Machine,
    /// The hypervisor in QEMU: counts only, identical in each run
    Hypervisor,
    /// The real KVM of this host
    Kvm,
}

/// How a figure was obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Measured as it is.
    Native,
    /// Counted: identical in each run.
    Counted,
    /// Measured in an emulator, at the pace of this host: only runs in turns can be compared.
    Emulated,
    /// Measured, plus a stated price for an event that costs nothing here.
    Modelled,
}

impl Results {
    /// The measurement of the same thing as `new`, or `new` itself, which has no runs yet.
    pub fn measurement(&mut self, new: Measurement) -> &mut Measurement {
        let all = &mut self.measurements;
        let at = all.iter().position(|old| old.is_same(&new)).unwrap_or(all.len());
        if at == all.len() {
            all.push(new);
        }
        &mut all[at]
    }

    /// Empty results of this command on this machine.
    pub fn begin() -> Self {
        Self {
            format: FORMAT.to_owned(),
            command: command(std::env::args()),
            program: format!("twofold {}, {} build", env!("CARGO_PKG_VERSION"), build()),
            host: host::this(),
            headline: Vec::new(),
            measurements: Vec::new(),
            series: Vec::new(),
            notes: Vec::new(),
            interrupted: false,
        }
    }

    /// Reads a file that `--json` wrote.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is not a result file of this program.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let strange = || format!("{} is not a file of `twofold bench ... --json`", path.display());
        let results: Self = serde_json::from_str(&text).with_context(strange)?;
        if results.format != FORMAT {
            bail!("{} has the format `{}`; this program reads `{FORMAT}`", path.display(), results.format);
        }
        Ok(results)
    }

    /// Writes the results to a file.
    ///
    /// # Errors
    ///
    /// The file cannot be written. Then an earlier file at that path is unchanged.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        output::json(path, self)
    }
}

impl Measurement {
    /// Whether `other` measures the same thing, perhaps in another file or with another program.
    pub fn is_same(&self, other: &Self) -> bool {
        let name = |one: &Self| (one.experiment.clone(), one.platform, one.phase.clone(), one.quantity);
        name(self) == name(other) && self.configuration == other.configuration
    }
}

impl Platform {
    /// The platform's name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Hypervisor => "hypervisor",
            Self::Kvm => "kvm",
        }
    }
}

/// The source of a row that is a target of our own.
pub const TARGET: &str = "target";

impl Kind {
    /// The name of the kind.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Counted => "counted",
            Self::Emulated => "emulated",
            Self::Modelled => "modelled",
        }
    }
}

/// The command as typed, without the path of the program, which is private.
fn command(arguments: impl Iterator<Item = String>) -> String {
    let quoted = |argument: String| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_=,./:+%@".contains(&byte);
        let plain = !argument.is_empty() && argument.bytes().all(is_plain);
        if plain { argument } else { format!("'{}'", argument.replace('\'', r"'\''")) }
    };
    let arguments = arguments.skip(1).map(quoted);
    std::iter::once("twofold".to_owned()).chain(arguments).collect::<Vec<_>>().join(" ")
}

const fn build() -> &'static str {
    if cfg!(debug_assertions) { "debug" } else { "release" }
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
            headline: vec![],
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
        assert!(error("{}").contains("is not a file of"));
        let newer = Results { format: "twofold-bench 2".to_owned(), ..results() };
        assert!(error(&serde_json::to_string(&newer).unwrap()).contains("the format `twofold-bench 2`"));
        assert!(format!("{:#}", Results::read(&directory.path().join("none")).unwrap_err()).contains("cannot read"));
    }

    #[test]
    fn a_command_can_be_typed_again() {
        let typed = ["/home/me/twofold", "bench", "dirty-log", "-b", "1G", "--json", "it's mine.json", ""];
        let wanted = r"twofold bench dirty-log -b 1G --json 'it'\''s mine.json' ''";
        assert_eq!(command(typed.map(str::to_owned).into_iter()), wanted);
    }

    #[test]
    fn measurements_are_the_same_by_what_names_them() {
        let one = results().measurements.remove(0);
        assert!(one.is_same(&Measurement { runs: vec![], kind: Kind::Modelled, ..one.clone() }));
        assert!(!one.is_same(&Measurement { phase: "get".to_owned(), ..one.clone() }));
        assert!(!one.is_same(&Measurement { configuration: BTreeMap::new(), ..one.clone() }));
    }
}
