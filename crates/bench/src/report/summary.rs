// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Results in about twelve lines: what was measured, a row for each phase, what is uncertain, and one sentence.
//!
//! A row has one figure for each variant: the median of the runs. If several guest modes were measured, a run's figure
//! is the mean over them, as in Bras 2026. Invariant: the sentence claims a change only if the interval of the runs
//! shows one.

use super::explained;
use super::section::{Group, Member, Section, in_order};
use super::table::table;
use super::words::{self, Noun};
use crate::readable::{self, Unit};
use crate::results::{Kind, Quantity};
use crate::statistics::{ENOUGH, Quartiles, Ratio};

/// What one experiment on one platform showed.
#[derive(Debug)]
pub struct Summary {
    /// The experiment and its guest, in one line.
    title: String,
    /// The names of the variants, baselines first. One empty name if nothing is compared.
    variants: Vec<String>,
    phases: Vec<Phase>,
    /// Whether trackers are compared. They move costs between phases, so only the sum of the phases is compared.
    is_by_tracker: bool,
    /// Runs far from their median, in words.
    outliers: Vec<String>,
}

/// One phase, by one quantity.
#[derive(Debug)]
struct Phase {
    name: String,
    quantity: Quantity,
    kind: Kind,
    /// The variants that have this phase.
    members: Vec<One>,
}

/// One variant of a phase.
#[derive(Debug)]
struct One {
    variant: usize,
    /// A figure for each run.
    runs: Vec<f64>,
    quartiles: Quartiles,
    /// The place of the variant that it is compared with.
    before: Option<usize>,
    /// The ratio to that variant.
    ratio: Option<Ratio>,
}

impl Summary {
    /// Sums up a section.
    pub fn of(section: &Section<'_>) -> Self {
        let names = in_order(section.groups.iter().filter(|group| !group.is_zero()).map(|group| group.phase));
        let phases: Vec<_> = names.into_iter().filter_map(|name| Phase::of(section, name)).collect();
        Self {
            title: title(section, &phases),
            variants: section.variants.clone(),
            is_by_tracker: section.variant_keys.contains(&"tracker"),
            outliers: outliers(section, &phases),
            phases,
        }
    }

    /// The lines above the sentence.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![self.title.clone(), String::new(), self.table(), String::new()];
        lines.extend(self.outliers.iter().cloned());
        lines.extend(self.unclear());
        lines
    }

    /// The phases as rows, with the change if there are two variants, or with the middle half of the runs if there is
    /// one.
    fn table(&self) -> String {
        let is_pair = self.variants.len() == 2;
        let mut header = vec!["phase"];
        match &self.variants[..] {
            [_] => header.extend(["median", "middle half of the runs"]),
            many => header.extend(many.iter().map(String::as_str)),
        }
        header.extend(is_pair.then_some(["change", "95 %"]).into_iter().flatten());
        let rows = self.phases.iter().map(|phase| {
            let cell = |place| phase.member(place).map_or("-".to_owned(), |one| phase.figure(one.quartiles.median));
            let mut cells = vec![phase.name.clone()];
            cells.extend((0..self.variants.len()).map(cell));
            if let ([_], [one]) = (&self.variants[..], &phase.members[..]) {
                cells.push(phase.middle_half(one));
            }
            if is_pair {
                cells.extend(phase.member(1).map_or_else(Default::default, |one| phase.comparison(one)));
            }
            cells
        });
        table(&header, rows, 1)
    }

    /// A line for each comparison that shows no change: because the runs differ too much, or because there is none.
    fn unclear(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let pairs = in_order(self.compared().map(|(_, one, before)| (one.variant, before.variant)));
        for (variant, before) in pairs {
            let open = self.compared().filter(|(phase, one, other)| {
                (one.variant, other.variant) == (variant, before) && phase.is_open(one) && !phase.is_small()
            });
            let (noisy, same): (Vec<_>, Vec<_>) = open
                .map(|(phase, one, other)| (phase.name.as_str(), one.difference().max(other.difference())))
                .partition(|(_, difference)| *difference >= NOISE);
            let names = |of: &[(&str, f64)]| of.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
            let most = |of: &[(&str, f64)]| of.iter().map(|(_, difference)| difference * 100.0).fold(0.0, f64::max);
            let (variant, before) = (&self.variants[variant], &self.variants[before]);
            if !noisy.is_empty() {
                lines.push(format!(
                    "{}: the runs differ by {}{:.0} %: too noisy to tell {variant} from {before}",
                    names(&noisy),
                    if noisy.len() > 1 { "up to " } else { "" },
                    most(&noisy)
                ));
            }
            if !same.is_empty() {
                lines.push(format!(
                    "{}: no difference between {variant} and {before}; the runs agree within {:.0} %",
                    names(&same),
                    most(&same).ceil()
                ));
            }
        }
        lines
    }

    /// Each figure that is compared, with the one that it is compared with.
    fn compared(&self) -> impl Iterator<Item = (&Phase, &One, &One)> {
        let of = |phase: &'_ Phase| {
            let pair = |(at, one): (usize, &One)| {
                let before = phase.members.iter().position(|other| Some(other.variant) == one.before)?;
                one.ratio.map(|_| (at, before))
            };
            phase.members.iter().enumerate().filter_map(pair).collect::<Vec<_>>()
        };
        let all = self.phases.iter().flat_map(move |phase| of(phase).into_iter().map(move |places| (phase, places)));
        all.map(|(phase, (one, before))| (phase, &phase.members[one], &phase.members[before]))
    }

    /// What was shown, in one sentence.
    pub fn sentence(&self) -> String {
        if self.variants.len() == 1 {
            return self.plain_sentence();
        }
        let is_named = |phase: &Phase| match self.is_by_tracker {
            // A cost that moves from one phase to another is not saved.
            true => [WHOLE, "logged", "migration"].contains(&phase.name.as_str()),
            false => phase.name != WHOLE && !explained::UNAFFECTED.contains(&phase.name.as_str()),
        };
        let has_named = self.phases.iter().any(is_named);
        let shown = self.compared().filter(|(phase, one, _)| (!has_named || is_named(phase)) && !phase.is_open(one));
        let distance = |(_, one, before): &(&Phase, &One, &One)| (one.quartiles.median - before.quartiles.median).abs();
        match shown.max_by(|one, other| distance(one).total_cmp(&distance(other))) {
            Some((phase, one, before)) => self.claim(phase, one, before),
            None if self.compared().next().is_none() => {
                format!("{}: too few runs for a comparison, at least {ENOUGH} are needed", self.variants.join(" and "))
            }
            None => format!("no difference between {} was shown", self.variants.join(" and ")),
        }
    }

    /// For example, `records: enabling takes 86 % less time than every-level, 56 against 489 us`.
    fn claim(&self, phase: &Phase, one: &One, before: &One) -> String {
        let unit = phase.unit();
        let ratio = one.ratio.map_or(1.0, |ratio| ratio.median);
        let change = words::rounded(ratio, Noun::of(phase.quantity));
        let (variant, other) = (&self.variants[one.variant], &self.variants[before.variant]);
        let [figure, against] = [one, before].map(|one| whole(unit, one.quartiles.median));
        let (subject, verb) = explained::subject(&phase.name);
        let figures = format!("{figure} against {against} {}", unit.name);
        let verb = match phase.quantity {
            Quantity::Rate => "makes",
            Quantity::Work | Quantity::PagesBrought | Quantity::PagesWritten => "is",
            _ => verb,
        };
        let than = words::than(ratio);
        format!("{variant}: {subject} {verb} {change} {than} {other}, {}", figures.trim_end())
    }

    /// The sentence if nothing is compared: the phases that the user waits for.
    fn plain_sentence(&self) -> String {
        let is_part =
            |phase: &&Phase| !explained::UNAFFECTED.contains(&phase.name.as_str()) && phase.quantity != Quantity::Rate;
        let has_whole = self.phases.iter().any(|phase| phase.name == WHOLE);
        let is_in_whole = |phase: &&Phase| has_whole && ["dirty", "get", "clear"].contains(&phase.name.as_str());
        let named = self.phases.iter().filter(|phase| is_part(phase) && !is_in_whole(phase));
        let parts = named.filter(|phase| !phase.name.contains(' ')).map(|phase| {
            let (subject, verb) = explained::subject(&phase.name);
            let figure = phase.members.first().map(|one| phase.figure(one.quartiles.median)).unwrap_or_default();
            let noun = if phase.unit().name.is_empty() {
                format!(" {}", Noun::of(phase.quantity).name())
            } else {
                String::new()
            };
            format!("{subject} {verb} {figure}{noun}")
        });
        let parts: Vec<_> = parts.collect();
        match parts.split_last() {
            None => "nothing was measured".to_owned(),
            Some((only, [])) => only.clone(),
            Some((last, others)) => format!("{}, and {last}", others.join(", ")),
        }
    }
}

const WHOLE: &str = "iteration";
/// Runs that differ by less are not noisy.
const NOISE: f64 = 0.05;
/// A run that takes this many times the median is reported.
const FAR: f64 = 2.0;

impl Phase {
    /// The phase by its first quantity that people wait for, or that is counted.
    fn of(section: &Section<'_>, name: &str) -> Option<Self> {
        let groups: Vec<_> = section.groups.iter().filter(|group| group.phase == name && !group.is_zero()).collect();
        let quantity =
            QUANTITIES.into_iter().find(|quantity| groups.iter().any(|group| group.quantity == *quantity))?;
        let groups: Vec<_> = groups.into_iter().filter(|group| group.quantity == quantity).collect();
        let kind = groups.first()?.kind;
        let members = (0..section.variants.len()).filter_map(|variant| One::of(&groups, variant));
        let mut phase = Self { name: name.to_owned(), quantity, kind, members: members.collect() };
        let ratios: Vec<_> = phase.members.iter().map(|one| phase.ratio(one)).collect();
        phase.members.iter_mut().zip(ratios).for_each(|(one, ratio)| one.ratio = ratio);
        Some(phase)
    }

    fn member(&self, variant: usize) -> Option<&One> {
        self.members.iter().find(|one| one.variant == variant)
    }

    fn ratio(&self, one: &One) -> Option<Ratio> {
        let before = self.member(one.before?)?;
        if before.runs.contains(&0.0) {
            return None;
        }
        let ratio = if self.kind == Kind::Counted { Ratio::counted } else { Ratio::of };
        ratio(&one.runs, &before.runs)
    }

    /// Whether the runs show no change.
    fn is_open(&self, one: &One) -> bool {
        one.ratio.is_none_or(|ratio| ratio.holds_one())
    }

    /// Whether each figure is below a microsecond. The clock itself takes a part of that.
    fn is_small(&self) -> bool {
        self.quantity == Quantity::Time && self.members.iter().all(|one| one.quartiles.median < 1e3)
    }

    /// One unit for the whole row.
    fn unit(&self) -> Unit {
        Unit::of(self.quantity, self.members.iter().map(|one| one.quartiles.median).fold(0.0, f64::max))
    }

    fn figure(&self, value: f64) -> String {
        let unit = self.unit();
        let value = if unit.name.is_empty() { value.round() } else { value };
        format!("{} {}", unit.shown(value), unit.name).trim_end().to_owned()
    }

    fn middle_half(&self, one: &One) -> String {
        match self.kind {
            Kind::Counted => "the same in each run".to_owned(),
            _ if one.runs.len() < ENOUGH => super::section::TOO_FEW.to_owned(),
            _ => format!("{} {}", self.unit().spread(one.quartiles), self.unit().name),
        }
    }

    /// The change and its interval.
    fn comparison(&self, one: &One) -> [String; 2] {
        let noun = Noun::of(self.quantity);
        match one.ratio {
            None if self.kind != Kind::Counted && one.runs.len() < ENOUGH => {
                [super::section::TOO_FEW.to_owned(), String::new()]
            }
            None => Default::default(),
            Some(ratio) if self.kind == Kind::Counted => [words::change(ratio.median, noun), "exact".to_owned()],
            Some(ratio) if self.is_open(one) => ["none shown".to_owned(), words::interval(&ratio, noun)],
            Some(ratio) => [words::rounded(ratio.median, noun), words::interval(&ratio, noun)],
        }
    }
}

/// What a phase is shown by, in the order of preference.
const QUANTITIES: [Quantity; 12] = [
    Quantity::Time,
    Quantity::Instructions,
    Quantity::Rate,
    Quantity::CpuTime,
    Quantity::Work,
    Quantity::PagesBrought,
    Quantity::PagesWritten,
    Quantity::RequestRate,
    Quantity::Requests,
    Quantity::PagesSent,
    Quantity::Rounds,
    Quantity::Bytes,
];

impl One {
    /// The mean of each run over the scenes. `None` if the variant does not have this figure.
    fn of(groups: &[&Group<'_>], variant: usize) -> Option<Self> {
        let members: Vec<&Member<'_>> =
            groups.iter().flat_map(|group| &group.members).filter(|member| member.variant == variant).collect();
        let count = members.iter().map(|member| member.runs.len()).min().filter(|count| *count > 0)?;
        let mean = |run: usize| members.iter().map(|member| member.runs[run]).sum::<f64>() / members.len() as f64;
        let runs: Vec<f64> = (0..count).map(mean).collect();
        let quartiles = Quartiles::of(runs.iter().copied());
        Some(Self { variant, runs, quartiles, before: members.first()?.before, ratio: None })
    }

    /// The part of the median that the middle half of the runs spans.
    fn difference(&self) -> f64 {
        (self.quartiles.upper - self.quartiles.lower) / self.quartiles.median.max(f64::MIN_POSITIVE)
    }
}

/// The experiment, its guest, and the number of runs.
fn title(section: &Section<'_>, phases: &[Phase]) -> String {
    let is_named = |key: &str, value: &str| {
        // A technique that is on needs no words; a baseline does.
        !explained::is_usual(key, value) && !["iterations", "chunk", "seed"].contains(&key)
    };
    let fixed = section.fixed.iter().filter(|(key, value)| is_named(key, value));
    let mut parts: Vec<_> = fixed.map(|(key, value)| readable::setting(key, value)).collect();
    let scenes = in_order(section.groups.iter().map(|group| &group.scene));
    if scenes.len() > 1 {
        let names = scenes.iter().map(|scene| section.scene(scene)).collect::<Vec<_>>().join(", ");
        parts.push(format!("mean over {names}"));
    }
    let runs = phases.iter().flat_map(|phase| &phase.members).map(|one| one.runs.len()).max().unwrap_or(0);
    let is_counted = phases.iter().all(|phase| phase.kind == Kind::Counted);
    parts.push(if is_counted { "counted".to_owned() } else { format!("{runs} runs") });
    if phases.iter().any(|phase| phase.kind == Kind::Modelled) {
        parts.push("modelled".to_owned());
    }
    format!("{}: {}", section.title(), parts.join("; "))
}

/// A line for the two phases with the farthest runs.
fn outliers(section: &Section<'_>, phases: &[Phase]) -> Vec<String> {
    let mut lines: Vec<(f64, String)> = Vec::new();
    let is_time = |phase: &&Phase| matches!(phase.quantity, Quantity::Time | Quantity::CpuTime);
    for phase in phases.iter().filter(is_time).filter(|phase| phase.kind != Kind::Counted && !phase.is_small()) {
        let groups =
            section.groups.iter().filter(|group| group.phase == phase.name && group.quantity == phase.quantity);
        let members: Vec<_> = groups.flat_map(|group| &group.members).collect();
        let all: usize = members.iter().map(|member| member.runs.len()).sum();
        let far = members.iter().flat_map(|member| {
            let median = member.quartiles.median;
            member.runs.iter().map(move |run| run / median).filter(|times| times.is_finite() && *times >= FAR)
        });
        let far: Vec<f64> = far.collect();
        let most = far.iter().copied().fold(0.0, f64::max);
        let times = if (1.95..2.05).contains(&most) { "twice".to_owned() } else { format!("{most:.1} times") };
        match far.len() {
            0 => {}
            1 => lines.push((most, format!("{}: one of {all} runs took {times} the median", phase.name))),
            many => lines.push((most, format!("{}: {many} of {all} runs took up to {times} the median", phase.name))),
        }
    }
    lines.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    lines.into_iter().take(2).map(|(_, line)| line).collect()
}

/// A figure for a sentence: without decimals from ten on.
fn whole(unit: Unit, value: f64) -> String {
    let scaled = unit.scale(value);
    if unit.name.is_empty() || scaled < 9.95 { unit.shown(value) } else { format!("{scaled:.0}") }
}

#[cfg(test)]
mod tests {
    use super::super::section::sections;
    use super::*;
    use crate::results::{Measurement, Platform, Results};

    /// A variant's name, and the times of its phases.
    type Timed<'a> = (&'a str, [(&'a str, [f64; 7]); 2]);

    /// A dirty log by these variants of a technique, with a time in microseconds for each phase and run.
    fn summary(key: &str, variants: &[Timed<'_>]) -> Summary {
        let mut results = Results { measurements: Vec::new(), ..Results::begin() };
        for (variant, phases) in variants {
            for (phase, runs) in phases {
                let settings = [("bytes", "1073741824"), ("coalesce", "install-first"), (key, *variant)];
                let settings = settings.map(|(key, value)| (key.to_owned(), value.to_owned()));
                results.measurements.push(Measurement {
                    experiment: "dirty-log".to_owned(),
                    platform: Platform::Machine,
                    configuration: settings.into(),
                    phase: (*phase).to_owned(),
                    quantity: Quantity::Time,
                    kind: Kind::Native,
                    runs: runs.map(|us| us * 1e3).to_vec(),
                });
            }
        }
        Summary::of(&sections(&results)[0])
    }

    const NOISY: [f64; 7] = [20.0, 30.0, 25.0, 22.0, 28.0, 24.0, 26.0];
    const TURNED: [f64; 7] = [26.0, 24.0, 28.0, 22.0, 25.0, 30.0, 20.0];

    #[test]
    fn the_sentence_has_the_change_and_both_figures() {
        let before = ("every-level", [("enable", [489.0; 7]), ("get", NOISY)]);
        let after = ("records", [("enable", [56.0; 7]), ("get", TURNED)]);
        let summary = summary("split", &[before, after]);
        assert_eq!(summary.sentence(), "records: enabling takes 89 % less time than every-level, 56 against 489 us");
        let lines = summary.lines().join("\n");
        assert!(lines.starts_with("dirty-log on the machine: 1 GiB; 7 runs\n"), "{lines}");
        assert!(lines.contains("get: the runs differ by 16 %: too noisy to tell records from every-level"), "{lines}");
        assert!(lines.contains("none shown") && lines.contains("89 % less time"), "{lines}");
        assert!(lines.lines().count() <= 12, "{lines}");
    }

    #[test]
    fn what_is_not_shown_is_not_claimed() {
        let summary = summary(
            "split",
            &[
                ("every-level", [("enable", NOISY), ("get", [9.0; 7])]),
                ("records", [("enable", TURNED), ("get", [9.0; 7])]),
            ],
        );
        assert_eq!(summary.sentence(), "no difference between every-level and records was shown");
        let lines = summary.lines().join("\n");
        assert!(
            lines.contains("get: no difference between records and every-level; the runs agree within 0 %"),
            "{lines}"
        );
    }

    #[test]
    fn trackers_are_compared_by_the_sum_of_their_phases() {
        let before = ("write-protect", [("dirty", [900.0; 7]), ("iteration", [1000.0; 7])]);
        let after = ("combined", [("dirty", [100.0; 7]), ("iteration", [1200.0; 7])]);
        let wanted = "combined: a round of dirty, get and clear takes 20 % more time than write-protect, 1.20 against \
                      1.00 ms";
        assert_eq!(summary("tracker", &[before, after]).sentence(), wanted);
    }

    #[test]
    fn a_run_far_from_the_median_is_named() {
        let mut enable = [56.0; 7];
        enable[3] = 112.0;
        let lines = summary("split", &[("records", [("enable", enable), ("iteration", [1000.0; 7])])]);
        assert!(
            lines.lines().contains(&"enable: one of 7 runs took twice the median".to_owned()),
            "{:?}",
            lines.lines()
        );
        assert_eq!(lines.sentence(), "enabling takes 56.0 us, and a round of dirty, get and clear takes 1.00 ms");
    }
}
