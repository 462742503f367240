// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The published numbers: every number of a technique in the five sources (docs/sources.md), with its command.
//!
//! Invariant: a number is as its source printed it. Only the change from a before to an after is computed, if the
//! source leaves that to the reader. If both are printed and differ, both are shown. Every change is shown in the words
//! that ours have.

use super::subject::{Part, RedisFigure, Scenario, Subject, Technique};
use super::verdict::Owed;
use crate::experiment::page_table::Stage;
use crate::experiment::setup::Backing;
use crate::options::FaultMode;
use crate::report::words::{self, Noun};

/// A published number, and what was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// The source by author and year, as in `docs/sources.md`.
    pub source: &'static str,
    /// What was measured.
    pub what: &'static str,
    /// The command, as printed.
    pub command: &'static str,
    /// The number.
    pub figure: Figure,
    /// The measurement of ours that is comparable.
    pub subject: Subject,
}

impl Published {
    /// The gain that ours must show.
    ///
    /// The gains of Wang 2021 came from shorter waits for one lock around all faults, and from fewer exits while
    /// a hole was in the tables. Neither applies here: a fault waits only for the lock of the table that it changes.
    /// What remains is work that is not done: a block of 1 GiB is cleaned once, and not by each vCPU. The other gains
    /// are shown, but not required.
    pub fn owed(&self) -> Owed {
        match self.subject {
            Subject::Stage { technique: Technique::Cmo, backing: Backing::AnonymousHugetlb1G, stage, .. }
                if stage != Stage::Update =>
            {
                Owed::Gain
            }
            Subject::Stage { .. } => Owed::Shown,
            _ => Owed::by(self.figure.gain()),
        }
    }
}

/// A number, as printed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Figure {
    /// The change of a time in percent, less is better; with its standard deviation if printed: `-44.01 % (sd 2.80)`.
    Change(f64, Option<f64>),
    /// Before, after, their unit, and the gain in percent if printed.
    Pair(f64, f64, &'static str, Option<f64>),
    /// A score before and after; more is better.
    Score(f64, f64),
}

impl Figure {
    /// The gain: the part of the baseline's time that is saved. A loss is below 0.
    pub fn gain(self) -> f64 {
        match self {
            Self::Change(percent, _) => -percent / 100.0,
            Self::Pair(before, after, _, _) => (before - after) / before,
            // The gain in time for each unit of work.
            Self::Score(before, after) => 1.0 - before / after,
        }
    }

    /// The number for a table cell: the change in words, with as many digits as the source has, then the rest of what it
    /// printed.
    pub fn shown(self) -> String {
        let change = words::change(1.0 - self.gain(), Noun::TIME);
        match self {
            Self::Change(percent, None) => printed(percent),
            Self::Change(percent, Some(deviation)) => format!("{} (sd {deviation:.2})", printed(percent)),
            Self::Pair(before, after, unit, None) => format!("{change} ({before} to {after} {unit})"),
            Self::Pair(before, after, unit, Some(gain)) => format!("{} ({before} to {after} {unit})", printed(-gain)),
            Self::Score(..) => format!("{change} for the same work"),
        }
    }
}

/// A change of a time, as printed in percent.
fn printed(percent: f64) -> String {
    format!("{:.2} % {} time", percent.abs(), if percent < 0.0 { "less" } else { "more" })
}

/// All published numbers, in the order of their rows.
pub const PUBLISHED: &[Published] = &[
    // Bras 2026: ThunderX2, 32 GB; mean and standard deviation of four modes. The script prints 64G; its author
    // corrected that to 16G.
    split("4K: log on", BRAS_4K_ENABLE, (-44.01, 2.80), Scenario::Enable, Backing::Anonymous),
    split("THP: log on", BRAS_THP_ENABLE, (-24.66, 1.21), Scenario::Enable, Backing::AnonymousThp),
    split("16 x 1G: log on", BRAS_1G_ENABLE, (-24.78, 0.85), Scenario::Enable, Backing::AnonymousHugetlb1G),
    split("4K: clear", BRAS_4K_CLEAR, (-38.98, 1.91), Scenario::Clear, Backing::Anonymous),
    split("THP: clear", BRAS_THP_CLEAR, (-25.49, 0.65), Scenario::Clear, Backing::AnonymousThp),
    split("16 x 1G: clear", BRAS_1G_CLEAR, (-24.24, 0.65), Scenario::Clear, Backing::AnonymousHugetlb1G),
    // Natapov 2010: 4 vCPUs, 2 GB, in a container of 512 MB.
    score("halt: non-PV guest", FaultMode::Halt, (122_789_420_615.0, 138_455_939_001.0)),
    score("PV guest", FaultMode::Pv, (122_789_420_615.0, 234_351_846_135.0)),
    // Bras RFC 2026: the same work before its review, on a software model (FVP), 1 GB.
    walk("4K: split alone", -97.33, Backing::Anonymous),
    walk("THP: split alone", -19.82, Backing::AnonymousThp),
    walk("1 x 1G: split alone", -20.65, Backing::AnonymousHugetlb1G),
    // Kolothum 2023: HiSilicon, Linux 6.5-rc5, no FEAT_TLBIRANGE, eager split in chunks of 2 MB.
    log("dirty", (4.22, 0.41), Part::Dirty),
    log("get", (0.00047, 3.25), Part::Get),
    log("clear", (0.48, 0.98), Part::Clear),
    redis("redis-benchmark, 5,000,000 requests", (79.428, 71.49, "s"), RedisFigure::Benchmark),
    redis("`info migrate`, total time", (8438.0, 9097.0, "ms"), RedisFigure::Migration),
    // Wang 2021, patch 1: Kunpeng 920, Linux 5.12-rc2, no FEAT_S2FWB.
    stage(
        "patch 1: 4K create",
        WANG_4K_80,
        (104.63, 97.30, 7.00),
        Technique::Cmo,
        at(Backing::Anonymous, 1, 80, Stage::Create),
    ),
    stage(
        "patch 1: 4K update",
        WANG_4K_80,
        (78.47, 77.18, 1.64),
        Technique::Cmo,
        at(Backing::Anonymous, 1, 80, Stage::Update),
    ),
    stage(
        "patch 1: THP create",
        WANG_THP_40,
        (15.70, 7.36, 53.12),
        Technique::Cmo,
        at(Backing::AnonymousThp, 20, 40, Stage::Create),
    ),
    stage(
        "patch 1: THP update",
        WANG_THP_40,
        (161.00, 135.03, 16.13),
        Technique::Cmo,
        at(Backing::AnonymousThp, 20, 40, Stage::Update),
    ),
    stage(
        "patch 1: THP rebuild",
        WANG_THP_40,
        (170.49, 145.46, 14.68),
        Technique::Cmo,
        at(Backing::AnonymousThp, 20, 40, Stage::Adjust),
    ),
    stage(
        "patch 1: 1G create",
        WANG_1G_40,
        (104.55, 3.69, 96.47),
        Technique::Cmo,
        at(Backing::AnonymousHugetlb1G, 20, 40, Stage::Create),
    ),
    stage(
        "patch 1: 1G update",
        WANG_1G_40,
        (160.67, 130.65, 18.68),
        Technique::Cmo,
        at(Backing::AnonymousHugetlb1G, 20, 40, Stage::Update),
    ),
    stage(
        "patch 1: 1G rebuild",
        WANG_1G_40,
        (103.95, 2.96, 97.15),
        Technique::Cmo,
        at(Backing::AnonymousHugetlb1G, 20, 40, Stage::Adjust),
    ),
    // Wang 2021, patch 2.
    stage(
        "patch 2: THP rebuild, 20 vCPUs",
        WANG_THP_20,
        (73.64, 57.75, 21.58),
        Technique::Coalesce,
        at(Backing::AnonymousThp, 20, 20, Stage::Adjust),
    ),
    stage(
        "patch 2: THP rebuild, 40 vCPUs",
        WANG_THP_40,
        (145.4, 130.8, 10.62),
        Technique::Coalesce,
        at(Backing::AnonymousThp, 20, 40, Stage::Adjust),
    ),
    stage(
        "patch 2: 1 x 1G rebuild, 80 vCPUs",
        WANG_1G_80,
        (0.166, 0.035, 78.92),
        Technique::Coalesce,
        at(Backing::AnonymousHugetlb1G, 1, 80, Stage::Adjust),
    ),
    stage(
        "patch 2: 20 x 1G rebuild, 20 vCPUs",
        WANG_1G_20,
        (2.875, 0.282, 90.20),
        Technique::Coalesce,
        at(Backing::AnonymousHugetlb1G, 20, 20, Stage::Adjust),
    ),
    stage(
        "patch 2: 20 x 1G rebuild, 40 vCPUs",
        WANG_1G_40,
        (2.965, 0.359, 87.55),
        Technique::Coalesce,
        at(Backing::AnonymousHugetlb1G, 20, 40, Stage::Adjust),
    ),
];

/// Bras 2026: the level-skipping split.
pub const BRAS: &str = "Bras 2026";
/// The first version of the same work, and its review.
pub const BRAS_RFC: &str = "Bras RFC 2026";
/// Kolothum 2023: the combined dirty log.
pub const KOLOTHUM: &str = "Kolothum 2023";
/// Natapov 2010: asynchronous page faults.
pub const NATAPOV: &str = "Natapov 2010";
/// Wang 2021: the efficiency of stage 2.
pub const WANG: &str = "Wang 2021";
const BRAS_4K_ENABLE: &str = "./dirty_log_perf_test -g -b 64G";
const BRAS_THP_ENABLE: &str = "./dirty_log_perf_test -g -b 64G -s anonymous_thp";
const BRAS_1G_ENABLE: &str = "./dirty_log_perf_test -g -b 64G -s shared_hugetlb";
const BRAS_4K_CLEAR: &str = "./dirty_log_perf_test -b 64G";
const BRAS_THP_CLEAR: &str = "./dirty_log_perf_test -b 64G -s anonymous_thp";
const BRAS_1G_CLEAR: &str = "./dirty_log_perf_test -b 64G -s shared_hugetlb";
const NATAPOV_COMMAND: &str = "./bm -f 4 -w 4 -t 60";
const BRAS_RFC_COMMAND: &str = "(none: timed in the kernel, on a software model, 1 GB)";
const KOLOTHUM_COMMAND: &str = "./dirty_log_perf_test -b 512MB -v 96 -i 5 -m 2 -s anonymous_thp";
const KOLOTHUM_REDIS: &str = "redis-benchmark -t set -c 900 -n 5000000 --threads 96";
const WANG_4K_80: &str = "./kvm_page_table_test -m 4 -s anonymous -b 1G -v 80";
const WANG_THP_40: &str = "./kvm_page_table_test -m 4 -s anonymous_thp -b 20G -v 40";
const WANG_THP_20: &str = "./kvm_page_table_test -m 4 -s anonymous_thp -b 20G -v 20";
const WANG_1G_40: &str = "./kvm_page_table_test -m 4 -s anonymous_hugetlb_1gb -b 20G -v 40";
const WANG_1G_20: &str = "./kvm_page_table_test -m 4 -s anonymous_hugetlb_1gb -b 20G -v 20";
const WANG_1G_80: &str = "./kvm_page_table_test -m 4 -s anonymous_hugetlb_1gb -b 1G -v 80";

const fn split(
    what: &'static str,
    command: &'static str,
    (percent, deviation): (f64, f64),
    scenario: Scenario,
    backing: Backing,
) -> Published {
    let figure = Figure::Change(percent, Some(deviation));
    Published { source: BRAS, what, command, figure, subject: Subject::Split { scenario, backing } }
}

const fn walk(what: &'static str, percent: f64, backing: Backing) -> Published {
    let subject = Subject::SplitAlone { backing };
    Published { source: BRAS_RFC, what, command: BRAS_RFC_COMMAND, figure: Figure::Change(percent, None), subject }
}

const fn score(what: &'static str, mode: FaultMode, (before, after): (f64, f64)) -> Published {
    let (figure, subject) = (Figure::Score(before, after), Subject::AsyncFault { mode });
    Published { source: NATAPOV, what, command: NATAPOV_COMMAND, figure, subject }
}

const fn log(what: &'static str, (before, after): (f64, f64), part: Part) -> Published {
    let figure = Figure::Pair(before, after, "s", None);
    Published { source: KOLOTHUM, what, command: KOLOTHUM_COMMAND, figure, subject: Subject::Log { part } }
}

const fn redis(what: &'static str, (before, after, unit): (f64, f64, &'static str), figure: RedisFigure) -> Published {
    Published {
        source: KOLOTHUM,
        what,
        command: KOLOTHUM_REDIS,
        figure: Figure::Pair(before, after, unit, None),
        subject: Subject::Redis { figure },
    }
}

/// Backing, total GiB, vCPUs and stage of the published experiment.
type At = (Backing, u64, usize, Stage);

const fn at(backing: Backing, gib: u64, vcpus: usize, stage: Stage) -> At {
    (backing, gib, vcpus, stage)
}

const fn stage(
    what: &'static str,
    command: &'static str,
    (before, after, gain): (f64, f64, f64),
    technique: Technique,
    (backing, gib, vcpus, stage): At,
) -> Published {
    let figure = Figure::Pair(before, after, "s", Some(gain));
    let subject = Subject::Stage { technique, backing, gib, vcpus, stage };
    Published { source: WANG, what, command, figure, subject }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(source: &str) -> Vec<&'static Published> {
        PUBLISHED.iter().filter(|published| published.source == source).collect()
    }

    #[test]
    fn sources_are_cited_as_the_page_of_sources_names_them() {
        let page = include_str!("../../../../docs/sources.md");
        for published in PUBLISHED {
            assert!(page.contains(&format!("\n| [{}](", published.source)), "{published:?}");
        }
    }
    #[test]
    fn bras_2026_has_six_cells_and_all_gain() {
        let cells: Vec<_> = of(BRAS).iter().map(|published| published.subject).collect();
        let backings = [Backing::Anonymous, Backing::AnonymousThp, Backing::AnonymousHugetlb1G];
        for scenario in [Scenario::Enable, Scenario::Clear] {
            for backing in backings {
                assert_eq!(cells.iter().filter(|cell| **cell == Subject::Split { scenario, backing }).count(), 1);
            }
        }
        assert_eq!(cells.len(), 6);
        assert!(of(BRAS).iter().all(|published| (0.2..0.5).contains(&published.figure.gain())));
        // With `-g`, enabling the log splits.
        assert!(of(BRAS).iter().all(|published| {
            let enable = matches!(published.subject, Subject::Split { scenario: Scenario::Enable, .. });
            published.command.contains(" -g ") == enable
        }));
    }

    #[test]
    fn wang_2021_has_all_rows_of_both_patches_and_its_commands_say_what_they_are_of() {
        let count = |wanted: Technique| {
            let is = |published: &&&Published| matches!(published.subject, Subject::Stage { technique, .. } if technique == wanted);
            of(WANG).iter().filter(is).count()
        };
        assert_eq!((count(Technique::Cmo), count(Technique::Coalesce)), (8, 5));
        for published in of(WANG) {
            let Subject::Stage { backing, gib, vcpus, stage, .. } = published.subject else { panic!("{published:?}") };
            let name = match backing {
                Backing::Anonymous => "anonymous",
                Backing::AnonymousThp => "anonymous_thp",
                _ => "anonymous_hugetlb_1gb",
            };
            let literal = format!("./kvm_page_table_test -m 4 -s {name} -b {gib}G -v {vcpus}");
            assert_eq!(published.command, literal);
            let word = if stage == Stage::Adjust { "rebuild" } else { stage.name() };
            assert!(published.what.contains(word), "{published:?}");
        }
    }

    /// The printed gains agree with the printed times, up to rounding. Wang 2021 prints 10.62 where its times give
    /// 10.04; both are shown.
    #[test]
    fn printed_gains_are_what_their_figures_give() {
        for published in PUBLISHED {
            if let Figure::Pair(_, _, _, Some(printed)) = published.figure {
                let error = (published.figure.gain() * 100.0 - printed).abs();
                assert!(error < 0.7, "{published:?}: {error}");
            }
        }
    }

    #[test]
    fn kolothum_2023_moves_what_it_saves() {
        let gains: Vec<_> = of(KOLOTHUM).iter().take(3).map(|published| published.figure.gain()).collect();
        assert!(gains[0] > 0.9 && gains[1] < -6000.0 && gains[2] < -1.0);
    }

    #[test]
    fn figures_are_shown_in_the_words_that_ours_have() {
        assert_eq!(Figure::Change(-44.01, Some(2.8)).shown(), "44.01 % less time (sd 2.80)");
        assert_eq!(Figure::Pair(104.63, 97.3, "s", Some(7.0)).shown(), "7.00 % less time (104.63 to 97.3 s)");
        assert_eq!(Figure::Pair(0.00047, 3.25, "s", None).shown(), "6915 times the time (0.00047 to 3.25 s)");
        assert_eq!(Figure::Pair(8438.0, 9097.0, "ms", None).shown(), "7.8 % more time (8438 to 9097 ms)");
        assert_eq!(Figure::Score(100.0, 125.0).shown(), "20.0 % less time for the same work");
    }
}
