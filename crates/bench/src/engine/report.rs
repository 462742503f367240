// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures as JSON and as a table.

use serde::Serialize;
use twofold_stage2::{Features, Granule, Kib4};

use super::guest::{Failure, IPA_BITS, geometry};
use super::platform::FEATURES;
use super::row::{PerUnit, Unit};
use super::threads;
use super::visits::Visits;
use crate::machine::{Machine, huge_pages};
use crate::readable;
use crate::report::table::table;
use crate::report::words::{self, Noun};
use crate::statistics::Spread;

/// All figures of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    operations: Vec<Measured>,
    limits: Vec<Measured>,
    /// `None` if there is only one CPU.
    threads: Option<Vec<threads::Measured>>,
    visits: Option<Visits>,
    configuration: Configuration,
    machine: Machine,
}

/// One row's figures.
#[derive(Debug, Serialize)]
pub struct Measured {
    /// The operation.
    pub name: &'static str,
    /// The unit of the figures.
    pub unit: Unit,
    /// Nanoseconds per unit.
    #[serde(flatten)]
    pub spread: Spread,
    /// Events per unit.
    #[serde(flatten)]
    pub counts: PerUnit,
}

/// The exact configuration of a run.
#[derive(Debug, Serialize)]
pub struct Configuration {
    version: &'static str,
    build: &'static str,
    guest_bytes: u64,
    page_bytes: u64,
    ipa_bits: u32,
    root_level: u8,
    features: String,
    threads: u32,
    runs: u32,
    huge_page_bytes: Option<u64>,
}

impl Configuration {
    /// Returns the configuration of a run. Call it while the run's memory is still mapped.
    pub fn new<G: Granule>(guest_bytes: u64, runs: u32) -> Result<Self, Failure> {
        Ok(Self {
            version: env!("CARGO_PKG_VERSION"),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            guest_bytes,
            page_bytes: G::SIZE,
            ipa_bits: IPA_BITS,
            root_level: geometry::<G>()?.root_level().raw(),
            features: features(&FEATURES),
            threads: 1,
            runs,
            huge_page_bytes: huge_pages(),
        })
    }

    /// What is missing with this granule. `None` with pages of 4 KiB.
    fn not_compared(&self) -> Option<String> {
        let is_compared = self.page_bytes == Kib4::SIZE;
        (!is_compared).then(|| {
            "Linux's own code (cargo xtask peers linux) and the targets of two threads are for pages of 4 KiB only"
                .to_owned()
        })
    }

    fn shown(&self) -> String {
        let huge =
            self.huge_page_bytes.map_or_else(String::new, |bytes| format!(", {} MiB in huge pages", bytes >> 20));
        format!(
            "{} build {}, {} GiB of guest memory in {} KiB pages, {} bits of IPA from level {}{huge}, {}, one thread, its \
             CPU time (two threads: wall-clock time), medians of {}; TLBI, DSB and cache operations cost nothing and are \
             counted",
            self.build,
            self.version,
            self.guest_bytes >> 30,
            self.page_bytes >> 10,
            self.ipa_bits,
            self.root_level,
            self.features,
            self.runs,
        )
    }
}

impl Report {
    /// Makes the report of these rows, on this machine.
    pub fn new(
        operations: Vec<Measured>,
        limits: Vec<Measured>,
        threads: Option<Vec<threads::Measured>>,
        visits: Option<Visits>,
        configuration: Configuration,
    ) -> Self {
        Self { operations, limits, threads, visits, configuration, machine: Machine::this() }
    }

    /// Formats the main rows, and a sentence. If rows were chosen by name, formats all of them.
    pub fn summary(&self) -> String {
        let has = |names: &[&str]| self.operations.iter().find(|row| names.contains(&row.name));
        let main: Vec<_> = MAIN.iter().filter_map(|names| has(names)).collect();
        let rows = if main.len() == MAIN.len() { main } else { self.operations.iter().collect() };
        let cells = rows.iter().map(|row| {
            let Spread { median, min, max } = row.spread;
            let range = format!("{} to {}", nanoseconds(min), nanoseconds(max));
            vec![row.name.to_owned(), row.unit.name().to_owned(), nanoseconds(median), range]
        });
        let mut parts = vec![table(&["operation", "unit", "median", "range of the runs"], cells, 2)];
        let disturbed = rows.iter().filter(|row| row.spread.max >= 2.0 * row.spread.median);
        let disturbed: Vec<_> = disturbed.map(|row| row.name).collect();
        if !disturbed.is_empty() {
            parts.push(format!("a run took twice the median or more: {}", disturbed.join(", ")));
        }
        let Configuration { build, page_bytes, .. } = self.configuration;
        parts.push(format!(
            "machine: {}; {build} build; pages of {}",
            self.machine.shown(),
            readable::bytes(page_bytes)
        ));
        parts.extend(self.configuration.not_compared());
        parts.push("more: --all prints every row, the counts, two threads, and the configuration".to_owned());
        parts.extend(self.sentence());
        parts.join("\n")
    }

    /// What the level-skipping split saves. `None` if it was not measured.
    fn sentence(&self) -> Option<String> {
        let median = |name: &str| Some(self.operations.iter().find(|row| row.name == name)?.spread.median);
        let (before, after) = (median("split_again_every_level")?, median("split_again")?);
        let change = words::rounded(after / before, Noun::TIME);
        let [before, after] = [before, after].map(nanoseconds);
        Some(format!(
            "records: splitting split memory again takes {change} than every-level, {after} against {before} ns an entry"
        ))
    }

    /// Formats the report as text.
    pub fn shown(&self) -> String {
        let parts = [
            Some(self.operations_shown()),
            self.visits.map(visits_shown),
            self.threads_shown(),
            Some(format!("machine: {}\nwhat: {}", self.machine.shown(), self.configuration.shown())),
            self.configuration.not_compared(),
            self.sentence(),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join("\n\n")
    }

    fn operations_shown(&self) -> String {
        let rows = self.operations.iter().chain(&self.limits).map(|row| {
            let (spread, counts) = (row.spread, row.counts);
            let mut cells = vec![row.name.to_owned(), row.unit.name().to_owned()];
            cells.extend([spread.median, spread.min, spread.max].map(nanoseconds));
            cells.extend([counts.tlbi, counts.dsb, counts.lines_cleaned, counts.tables, counts.atomics].map(events));
            cells
        });
        let header = ["operation", "unit", "median", "min", "max", "tlbi", "dsb", "lines", "tables", "atomics"];
        table(&header, rows, 2)
    }

    fn threads_shown(&self) -> Option<String> {
        let Some(rows) = &self.threads else {
            return Some("two threads: not measured, because there is only one CPU".to_owned());
        };
        let rows = rows.iter().map(|row| {
            let (name, ratios, times, share) = row.cells();
            let ratios = ratios.map(|ratio| format!("{ratio:.2}"));
            let share = format!("{:.0} %", share * 100.0);
            std::iter::once(name.to_owned()).chain(ratios).chain(times.map(nanoseconds)).chain([share]).collect()
        });
        let header = ["two threads", "ratio", "min", "max", "target", "one ns/page", "two ns/page", "share of CPU"];
        (rows.len() > 0).then(|| table(&header, rows, 1))
    }
}

/// The rows of the summary, each with its names by granule.
const MAIN: [&[&str]; 8] = [
    &["map_pages"],
    &["map_range"],
    &["split_2m", "split_32m", "split_512m"],
    &["protect_sections"],
    &["relax"],
    &["lookup"],
    &["coalesce_2m", "coalesce_32m", "coalesce_512m"],
    &["unmap"],
];

fn visits_shown(visits: Visits) -> String {
    let Visits { every_level, leaves_skipped } = visits;
    format!("entries visited when all is split: {every_level} at every level, {leaves_skipped} with level 3 skipped")
}

/// Formats three significant digits, or all digits before the point if there are more.
fn nanoseconds(value: f64) -> String {
    match value {
        _ if value < 1.0 => format!("{value:.3}"),
        _ if value < 10.0 => format!("{value:.2}"),
        _ if value < 1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Formats a count: `-` if it is unknown, without a point if it is an integer.
fn events(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value.fract() == 0.0 => format!("{value:.0}"),
        Some(value) if value < 1e-4 => format!("{value:.1e}"),
        Some(value) => format!("{value:.4}"),
    }
}

fn features(features: &Features) -> String {
    let named = [
        (features.forced_write_back, "S2FWB"),
        (features.tlbi_range, "TLBIRANGE"),
        (features.tlbi_level_hint, "TTL"),
        (features.hardware_dirty_state, "HAFDBS"),
        (features.vmid_bits == 16, "VMID16"),
    ];
    named.iter().filter(|(has, _)| *has).map(|(_, name)| *name).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::rows;
    use super::*;
    use twofold_stage2::{Kib16, Kib64};

    #[test]
    fn figures_are_short() {
        assert_eq!([0.0312, 4.934, 44.86, 2_470_000.4].map(nanoseconds), ["0.031", "4.93", "44.9", "2470000"]);
        assert_eq!(
            [None, Some(0.0), Some(2.0), Some(0.001957), Some(4.8e-7)].map(events),
            ["-", "0", "2", "0.0020", "4.8e-7"]
        );
    }

    #[test]
    fn the_summary_has_its_rows_with_each_granule() {
        fn found<G: Granule>() -> usize {
            let has = |names: &&&[&str]| rows::rows::<G>().any(|row| names.contains(&row.name));
            MAIN.iter().filter(has).count()
        }
        assert_eq!([found::<Kib4>(), found::<Kib16>(), found::<Kib64>()], [MAIN.len(); 3]);
    }

    #[test]
    fn a_granule_without_comparison_is_said_to_have_none() {
        let configuration = Configuration::new::<Kib64>(1 << 30, 1).unwrap();
        assert!(
            configuration.shown().contains("64 KiB pages, 40 bits of IPA from level 2"),
            "{}",
            configuration.shown()
        );
        assert!(configuration.not_compared().is_some_and(|said| said.contains("4 KiB only")));
        assert_eq!(Configuration::new::<Kib4>(1 << 30, 1).unwrap().not_compared(), None);
    }

    #[test]
    fn a_row_has_the_keys_that_were_agreed() {
        let spread = Spread { median: 2.0, min: 1.0, max: 3.0 };
        let row =
            Measured { name: "x", unit: Unit::Page, spread, counts: PerUnit { tlbi: Some(1.0), ..PerUnit::default() } };
        let text = serde_json::to_string(&row).unwrap();
        let wanted = r#"{"name":"x","unit":"ns/pte","median":2.0,"min":1.0,"max":3.0,"tlbi":1.0,"dsb":null,"lines_cleaned":null,"tables":null,"atomics":null}"#;
        assert_eq!(text, wanted);
    }
}
