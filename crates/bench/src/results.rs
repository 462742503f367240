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

use crate::host;
use crate::output;
use crate::statistics::{Quartiles, Ratio};

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
    /// What was published, and what it is here; most commands have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headline: Vec<HeadlineRow>,
    /// The figures.
    pub measurements: Vec<Measurement>,
    /// What changed over time.
    pub series: Vec<Series>,
    /// What a reader has to know.
    pub notes: Vec<String>,
    /// Whether somebody ended it before its time.
    pub interrupted: bool,
}

/// One published number, and ours beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeadlineRow {
    /// The document that it is from: `S0`.
    pub source: String,
    /// What it is of: `clear, already split`.
    pub what: String,
    /// The command that was published with it, as it was.
    pub command: String,
    /// The number, as it was: `-44.01% (sd 2.80)`.
    pub published: String,
    /// That as a gain: the part of the time before that is gone, 0.4401. `None` where it was not told.
    pub published_gain: Option<f64>,
    /// What `before` and `after` are in: `ms`.
    pub unit: String,
    /// Ours, with the technique off.
    pub before: Option<Quartiles>,
    /// With it.
    pub after: Option<Quartiles>,
    /// (before - after) / before, with the interval that holds it 95 times in 100. Negative: it costs.
    pub gain: Option<Ratio>,
    /// Where ours ran.
    pub platform: Platform,
    /// How ours came about.
    pub kind: Kind,
    /// What comes of the two.
    pub verdict: Verdict,
    /// What a reader has to know; empty where there is nothing.
    pub note: String,
}

/// Whether ours has the shape of what was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It gains where that gained.
    SameShape,
    /// The interval holds both a gain and none.
    Inconclusive,
    /// The interval excludes a gain that should be there.
    Differs,
    /// There is no figure of ours.
    NotMeasured,
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
    /// Faults of the guest's, of all kinds.
    Faults,
    /// Those at which nothing was mapped.
    TranslationFaults,
    /// Those at which what was mapped did not allow it.
    PermissionFaults,
    /// Those at which a mapping had not been used before.
    AccessFlagFaults,
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
    /// Of this command on this machine; nothing is measured yet.
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
            Self::TranslationFaults => "translation faults",
            Self::PermissionFaults => "permission faults",
            Self::AccessFlagFaults => "access flag faults",
            Self::Tlbi => "TLBI",
            Self::Dsb => "DSB",
            Self::LinesCleaned => "lines cleaned",
            Self::Tables => "table pages",
            Self::Pages => "dirty pages",
            Self::Rate => "accesses per second",
        }
    }

    /// Whether it is what a user waits or pays for, and not how that came about.
    pub const fn is_cost(self) -> bool {
        matches!(self, Self::Time | Self::CpuTime | Self::Instructions | Self::Rate)
    }

    /// Whether more of it is better.
    pub const fn more_is_better(self) -> bool {
        matches!(self, Self::Rate)
    }
}

impl HeadlineRow {
    /// Words for its verdict: a bar is reached or missed, and has no shape; nor has what lost there, and is to lose no
    /// more here.
    pub fn verdict(&self) -> &'static str {
        let theirs_lost = self.published_gain.is_some_and(|gain| gain < 0.0);
        match (self.verdict, self.source == BAR) {
            (Verdict::SameShape, false) if theirs_lost => "no worse",
            (Verdict::SameShape, false) => "same shape",
            (Verdict::SameShape, true) => "reached",
            (Verdict::Inconclusive, _) => "inconclusive",
            (Verdict::Differs, false) => "differs",
            (Verdict::Differs, true) => "missed",
            (Verdict::NotMeasured, _) => "not measured",
        }
    }
}

/// The source of a row that is a bar of ours.
pub const BAR: &str = "bar";

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

/// A command as it was typed, but for the path of the program, which is nobody's business.
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
        assert!(error("{}").contains("is no file of"));
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
