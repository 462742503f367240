// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Results in reading order: one section for each experiment and platform, and the comparisons in it.
//!
//! A setting that is the same in a whole section is stated once. If a technique (`TECHNIQUES`) varies, its values are
//! variants, which are compared with each other. If another setting varies, its values are scenes, which are not.
//!
//! Invariant: each measurement and each series is in one section, once.

use std::collections::BTreeSet;

use super::explained;
use super::words::{self, Noun};
use crate::readable::{self, Unit};
use crate::results::{Kind, Measurement, Platform, Quantity, Results, Series};
use crate::statistics::{ENOUGH, Quartiles, Ratio};

/// Settings that select a technique or its baseline.
const TECHNIQUES: [&str; 7] = ["split", "cmo", "coalesce", "tables", "tracker", "async", "variant"];

/// The baseline of each technique.
const BEFORE: [&str; 7] = ["every-level", "on-abort", "free-first", "always", "write-protect", "off", "before"];

/// The experiments that compare a part of their figures with published ones.
pub const BESIDE_PUBLISHED: [&str; 3] = ["async-fault", "migrate-model", "migrate-pass"];

/// The text in place of a change, if there are too few runs to claim one.
pub const TOO_FEW: &str = "too few runs";

/// One experiment on one platform.
#[derive(Debug)]
pub struct Section<'a> {
    /// The experiment's name.
    pub experiment: &'a str,
    /// The platform.
    pub platform: Platform,
    /// Settings that are the same in the whole section.
    pub fixed: Vec<(&'a str, &'a str)>,
    /// Settings that vary and are not techniques.
    pub scene_keys: Vec<&'a str>,
    /// Techniques that vary.
    pub variant_keys: Vec<&'a str>,
    /// The values of these techniques.
    values: Vec<(&'a str, &'a str)>,
    /// The names of the variants; the baseline comes first. If no technique varies, there is one with an empty name.
    pub variants: Vec<String>,
    /// The figures, each with its variants.
    pub groups: Vec<Group<'a>>,
    /// The series over time.
    pub series: Vec<Over<'a>>,
}

/// The variants of one figure.
#[derive(Debug)]
pub struct Group<'a> {
    /// Values of the section's [`scene_keys`](Section::scene_keys); empty if a key is not set.
    pub scene: Vec<&'a str>,
    /// The phase.
    pub phase: &'a str,
    /// The quantity.
    pub quantity: Quantity,
    /// How it was obtained.
    pub kind: Kind,
    /// The variants that have this figure, ordered by their place in [`Section::variants`].
    pub members: Vec<Member<'a>>,
}

/// A variant of a figure.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// Its place in [`Section::variants`].
    pub variant: usize,
    /// Each run.
    pub runs: &'a [f64],
    /// Their quartiles.
    pub quartiles: Quartiles,
    /// The variant that it is compared with: the first earlier one of the group that differs in one technique. `None`
    /// if there is none.
    pub before: Option<usize>,
    /// The ratio to that variant, by interleaved runs. `None` if that variant has a 0, or one of the two has too few
    /// runs.
    pub ratio: Option<Ratio>,
    /// Whether the comparison has too few runs to claim a change.
    pub is_too_few: bool,
}

/// A variant over time.
#[derive(Debug)]
pub struct Over<'a> {
    /// The same as [`Group::scene`].
    pub scene: Vec<&'a str>,
    /// Its place in [`Section::variants`].
    pub variant: usize,
    /// The series.
    pub series: &'a Series,
}

/// Returns all sections, in the order in which their experiments were measured.
pub fn sections(results: &Results) -> Vec<Section<'_>> {
    let of_measurement = results.measurements.iter().map(|one| (one.experiment.as_str(), one.platform));
    let of_series = results.series.iter().map(|one| (one.experiment.as_str(), one.platform));
    let names = in_order(of_measurement.chain(of_series));
    names.into_iter().map(|(experiment, platform)| Section::of(results, experiment, platform)).collect()
}

impl<'a> Section<'a> {
    fn of(results: &'a Results, experiment: &'a str, platform: Platform) -> Self {
        let is_ours = |of: &str, on: Platform| of == experiment && on == platform;
        let measurements: Vec<_> =
            results.measurements.iter().filter(|one| is_ours(&one.experiment, one.platform)).collect();
        let series: Vec<_> = results.series.iter().filter(|one| is_ours(&one.experiment, one.platform)).collect();
        let configurations: Vec<_> = measurements
            .iter()
            .map(|one| &one.configuration)
            .chain(series.iter().map(|one| &one.configuration))
            .collect();

        let keys: BTreeSet<&str> = configurations.iter().flat_map(|one| one.keys()).map(String::as_str).collect();
        let value = |configuration: &'a std::collections::BTreeMap<String, String>, key: &str| {
            configuration.get(key).map_or("", String::as_str)
        };
        let (mut fixed, mut scene_keys, mut variant_keys) = (Vec::new(), Vec::new(), Vec::new());
        for key in keys {
            let first = configurations.first().map_or("", |one| value(one, key));
            match configurations.iter().all(|one| value(one, key) == first) {
                true => fixed.push((key, first)),
                false if TECHNIQUES.contains(&key) => variant_keys.push(key),
                false => scene_keys.push(key),
            }
        }

        let scene = |configuration| scene_keys.iter().map(|key| value(configuration, key)).collect::<Vec<_>>();
        let values = |configuration| variant_keys.iter().map(|key| value(configuration, key)).collect::<Vec<_>>();
        let mut variants = in_order(configurations.iter().map(|one| values(one)));
        variants.sort_by_key(|values| values.iter().filter(|value| !BEFORE.contains(value)).count());
        let place = |configuration| variants.iter().position(|one| *one == values(configuration)).unwrap_or(0);

        let mut groups: Vec<Group<'a>> = Vec::new();
        for Measurement { configuration, phase, quantity, kind, runs, .. } in measurements {
            let scene = scene(configuration);
            let quartiles = Quartiles::of(runs.iter().copied());
            let member =
                Member { variant: place(configuration), runs, quartiles, before: None, ratio: None, is_too_few: false };
            let is_same = |group: &&mut Group<'_>| {
                (group.phase, group.quantity, group.kind) == (phase, *quantity, *kind) && group.scene == scene
            };
            match groups.iter_mut().find(is_same) {
                Some(group) => group.members.push(member),
                None => {
                    groups.push(Group { scene, phase, quantity: *quantity, kind: *kind, members: vec![member] });
                }
            }
        }
        groups.iter_mut().for_each(|group| group.compare(&variants));
        let over = |one: &'a Series| Over {
            scene: scene(&one.configuration),
            variant: place(&one.configuration),
            series: one,
        };
        let values = variants.iter().flat_map(|values| variant_keys.iter().copied().zip(values.iter().copied()));
        let values = in_order(values);
        let mut series: Vec<_> = series.into_iter().map(over).collect();
        series.sort_by_key(|over| over.variant);
        let variants = variants.iter().map(|values| variant_name(&variant_keys, values)).collect();
        Self { experiment, platform, fixed, scene_keys, variant_keys, values, variants, groups, series }
    }

    /// Returns, for example, `dirty-log on the machine`.
    pub fn title(&self) -> String {
        let place = match self.platform {
            Platform::Machine => "the machine",
            Platform::Hypervisor => "the hypervisor",
            Platform::Kvm => "KVM",
        };
        format!("{} on {place}", self.experiment)
    }

    /// Returns the settings that are the same in the whole section, in one line.
    pub fn setup(&self) -> String {
        let mut parts: Vec<_> = self.fixed.iter().map(|(key, value)| readable::setting(key, value)).collect();
        let kinds = in_order(self.groups.iter().map(|group| group.kind.name()));
        parts.extend((!kinds.is_empty()).then(|| kinds.join(" and ")));
        parts.join(", ")
    }

    /// Returns the policies and kinds of memory, each with a sentence. The variants of a single technique are left out:
    /// the legend explains them. So are techniques that are simply on.
    pub fn explained(&self) -> Vec<(&'a str, &'static str)> {
        let of_scenes =
            self.groups.iter().flat_map(|group| self.scene_keys.iter().copied().zip(group.scene.iter().copied()));
        let fixed = self.fixed.iter().copied().filter(|(key, value)| !explained::is_usual(key, value));
        let several = self.values.iter().copied().filter(|_| self.variant_keys.len() > 1);
        let all = in_order(fixed.chain(of_scenes).chain(several));
        all.into_iter().filter_map(|(key, value)| Some((value, explained::value(key, value)?))).collect()
    }

    /// Returns a scene in one line; empty if there is only one.
    pub fn scene(&self, values: &[&str]) -> String {
        let set = self.scene_keys.iter().zip(values).filter(|(_, value)| !value.is_empty());
        set.map(|(key, value)| readable::setting(key, value)).collect::<Vec<_>>().join(", ")
    }

    /// Returns what the variants vary, for example `tracker`.
    pub fn variable(&self) -> String {
        self.variant_keys.join(", ")
    }

    /// Returns the name of the variant that a member is compared with. If one technique varies, it is always the first
    /// variant.
    pub fn before(&self, member: &Member<'_>) -> &str {
        member.before.map_or("", |place| &self.variants[place])
    }

    /// Returns whether the published numbers hold only a part of this section, so that a summary shows both.
    pub fn is_beside_published(&self) -> bool {
        BESIDE_PUBLISHED.contains(&self.experiment)
    }

    /// Returns whether there are several variants.
    pub fn has_variants(&self) -> bool {
        self.variants.len() > 1
    }

    /// Returns the warnings: that there are too few runs to claim a change, and a line for each variant and quantity
    /// whose runs show none.
    pub fn warnings(&self) -> Vec<String> {
        let is_too_few = self.groups.iter().flat_map(|group| &group.members).any(|member| member.is_too_few);
        let few = is_too_few.then(|| format!("fewer than {ENOUGH} runs: no change is claimed"));
        let compared: Vec<_> = self
            .groups
            .iter()
            .flat_map(|group| group.members.iter().map(move |member| (group, member)))
            .filter(|(group, member)| group.quantity.is_cost() && member.ratio.is_some())
            .collect();
        let open: Vec<_> = compared.iter().copied().filter(|(group, member)| group.is_open(member)).collect();
        let lines = in_order(open.iter().map(|(group, member)| (group.quantity, member.variant)));
        let line = |(quantity, variant): (Quantity, usize)| {
            let is_of = |pair: &&(&Group<'a>, &Member<'a>)| (pair.0.quantity, pair.1.variant) == (quantity, variant);
            let phases = in_order(open.iter().filter(is_of).map(|(group, _)| group.phase));
            let phases = phases.into_iter().map(|phase| {
                let count = |pairs: &[(&Group<'a>, &Member<'a>)]| {
                    pairs.iter().filter(is_of).filter(|(group, _)| group.phase == phase).count()
                };
                match (count(&open), count(&compared)) {
                    (some, all) if some < all => format!("{phase} ({some} of {all} settings)"),
                    _ => phase.to_owned(),
                }
            });
            let phases = phases.collect::<Vec<_>>().join(", ");
            let (variant, what) = (&self.variants[variant], quantity.name());
            format!("{variant}: the runs show no change of {what} from the baseline: {phases}")
        };
        few.into_iter().chain(lines.into_iter().map(line)).collect()
    }
}

impl Group<'_> {
    /// Returns one unit for all members, so that they can be compared.
    pub fn unit(&self) -> Unit {
        Unit::of(self.quantity, self.members.iter().map(|member| member.quartiles.median).fold(0.0, f64::max))
    }

    /// Returns whether the spread of the runs includes no change. A counted figure is the same in each run and has no
    /// spread.
    pub fn is_open(&self, member: &Member<'_>) -> bool {
        self.kind != Kind::Counted && member.ratio.is_some_and(|ratio| ratio.holds_one() && ratio.low < ratio.high)
    }

    /// Returns the range of the middle half of the runs; `-` if there are too few runs, or they are counted.
    pub fn quartiles(&self, member: &Member<'_>) -> String {
        if self.has_spread(member) { self.unit().spread(member.quartiles) } else { "-".to_owned() }
    }

    /// Returns whether the spread of the runs is shown.
    pub fn has_spread(&self, member: &Member<'_>) -> bool {
        self.kind != Kind::Counted && member.runs.len() >= ENOUGH
    }

    /// Returns the change from the baseline in words; empty if nothing is compared.
    pub fn change(&self, member: &Member<'_>) -> String {
        match member.ratio {
            Some(_) if self.is_open(member) => "none shown".to_owned(),
            Some(ratio) => words::change(ratio.median, Noun::of(self.quantity)),
            None => String::new(),
        }
    }

    /// Returns the change without what it is of: `43.9 % less`.
    pub fn brief_change(&self, member: &Member<'_>) -> String {
        member.ratio.map(|ratio| words::part(ratio.median, Noun::of(self.quantity), 1)).unwrap_or_default()
    }

    /// Returns the interval of a comparison, or why there is none; empty if nothing is compared.
    pub fn interval(&self, member: &Member<'_>) -> String {
        match member.ratio {
            _ if member.is_too_few => TOO_FEW.to_owned(),
            None => String::new(),
            Some(_) if self.kind == Kind::Counted => "exact".to_owned(),
            Some(ratio) => words::interval(&ratio, Noun::of(self.quantity)),
        }
    }

    /// Returns whether every run is 0.
    pub fn is_zero(&self) -> bool {
        self.members.iter().all(|member| member.runs.iter().all(|run| *run == 0.0))
    }

    /// Sorts the members, and compares each with its baseline. `variants` holds the values of their techniques.
    fn compare(&mut self, variants: &[Vec<&str>]) {
        self.members.sort_by_key(|member| member.variant);
        for at in 1..self.members.len() {
            let (others, member) = self.members.split_at_mut(at);
            let Some(member) = member.first_mut() else { continue };
            let differences = |other: &&Member<'_>| {
                variants[other.variant]
                    .iter()
                    .zip(&variants[member.variant])
                    .filter(|(one, other)| one != other)
                    .count()
            };
            let Some(before) = others.iter().find(|other| differences(other) == 1) else { continue };
            member.before = Some(before.variant);
            let is_counted = self.kind == Kind::Counted;
            member.is_too_few = !is_counted && member.runs.len().min(before.runs.len()) < ENOUGH;
            if !before.runs.contains(&0.0) {
                let ratio = if is_counted { Ratio::counted } else { Ratio::of };
                member.ratio = ratio(member.runs, before.runs);
            }
        }
    }
}

/// Returns each value once, in the order of first occurrence.
pub fn in_order<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    all.fold(Vec::new(), |mut seen, one| {
        if !seen.contains(&one) {
            seen.push(one);
        }
        seen
    })
}

/// Returns a variant's name: `combined`, or `split every-level, tracker combined` if several techniques vary.
fn variant_name(keys: &[&str], values: &[&str]) -> String {
    match (keys, values) {
        ([key], [value]) => readable::value(key, value),
        _ => {
            let set = keys.iter().zip(values).filter(|(_, value)| !value.is_empty());
            set.map(|(key, value)| format!("{key} {value}")).collect::<Vec<_>>().join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn what_was_before_comes_first() {
        let results = example::results();
        let sections = sections(&results);
        let titles: Vec<_> = sections.iter().map(Section::title).collect();
        let wanted = [
            "dirty-log on the machine",
            "dirty-log on the hypervisor",
            "page-table on the machine",
            "continuous on the machine",
        ];
        assert_eq!(titles, wanted);
        assert_eq!(sections[0].variants, ["every-level", "records"]);
        assert_eq!(sections[0].scene_keys, ["backing", "mode"]);
        assert_eq!(sections[0].setup(), "1 GiB, chunk 2 MiB, 1 vCPU, native");
        assert_eq!(sections[3].variants, ["write-protect", "combined", "adaptive"]);
    }

    #[test]
    fn variants_are_compared_within_a_scene() {
        let results = example::results();
        let sections = sections(&results);
        assert_eq!(sections[0].groups.len(), 3 * 4 * 5 * 2);
        for group in &sections[0].groups {
            let places: Vec<_> = group.members.iter().map(|member| member.variant).collect();
            assert_eq!(places, [0, 1]);
            assert_eq!(group.members[0].ratio, None);
        }
        let clear = sections[0].groups.iter().find(|group| group.phase == "clear").unwrap();
        let ratio = clear.members[1].ratio.unwrap();
        assert!((ratio.median - 0.56).abs() < 0.04 && !ratio.holds_one(), "{ratio}");
    }

    #[test]
    fn few_runs_claim_nothing() {
        let mut results = example::results();
        results.measurements.iter_mut().for_each(|one| one.runs.truncate(3));
        for section in sections(&results) {
            for (group, member) in section.groups.iter().flat_map(|group| group.members.iter().map(move |m| (group, m)))
            {
                let is_counted = group.kind == Kind::Counted;
                assert_eq!(member.is_too_few, !is_counted && member.before.is_some());
                assert_eq!(group.quartiles(member), "-");
                let wanted = match (member.before, is_counted) {
                    (None, _) => "",
                    (_, true) => "exact",
                    (_, false) => TOO_FEW,
                };
                assert_eq!(group.interval(member), wanted);
            }
            let says_so = section.warnings().contains(&"fewer than 4 runs: no change is claimed".to_owned());
            assert_eq!(says_so, section.groups.iter().any(|group| group.kind != Kind::Counted));
        }
    }

    #[test]
    fn two_techniques_that_vary_are_both_named() {
        let mut results = example::results();
        results.measurements.retain(|one| one.configuration.contains_key("split"));
        results.measurements[0].configuration.insert("tracker".to_owned(), "combined".to_owned());
        let sections = sections(&results);
        assert!(
            sections[0].variants.contains(&"split records, tracker combined".to_owned()),
            "{:?}",
            sections[0].variants
        );
        assert_eq!(sections[0].variants[0], "split every-level");
    }

    #[test]
    fn what_is_compared_differs_in_one_technique() {
        let mut results = example::results();
        results.measurements.truncate(1);
        let variants = [("on-abort", "install-first"), ("on-map", "install-first"), ("on-map", "free-first")];
        results.measurements = variants
            .into_iter()
            .zip([8.0, 2.0, 4.0])
            .map(|((cmo, coalesce), time)| {
                let mut one = results.measurements[0].clone();
                one.configuration.extend([("cmo", cmo), ("coalesce", coalesce)].map(|(k, v)| (k.into(), v.into())));
                one.runs = vec![time; 7];
                one
            })
            .collect();
        let sections = sections(&results);
        let wanted = [
            "cmo on-abort, coalesce install-first",
            "cmo on-map, coalesce free-first",
            "cmo on-map, coalesce install-first",
        ];
        assert_eq!(sections[0].variants, wanted);
        let members = &sections[0].groups[0].members;
        assert_eq!(members.iter().map(|member| member.before).collect::<Vec<_>>(), [None, None, Some(0)]);
        assert_eq!(members[2].ratio.unwrap().median, 0.25);
    }
}
