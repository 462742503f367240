// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes in the form of Bras 2026: for each variant and phase, the change of the time in each guest mode, with mean
//! and standard deviation. The deviation between modes is not noise. The spread of runs is in the quartiles.

use super::explained::UNAFFECTED;
use super::section::{Group, Member, Section, in_order};
use super::words::{self, Noun};
use crate::results::{Kind, Quantity};
use crate::statistics::ENOUGH;

/// A line for each phase of each variant that is compared. A line needs several modes, and enough runs. If anything
/// else varies, a mean has no meaning, and there is no line.
pub fn averages(section: &Section<'_>) -> Vec<String> {
    if section.scene_keys != ["mode"] {
        return Vec::new();
    }
    let is_affected = |group: &&Group<'_>| group.quantity == Quantity::Time && !UNAFFECTED.contains(&group.phase);
    let groups: Vec<_> = section.groups.iter().filter(is_affected).collect();
    let changes = groups.iter().flat_map(|group| {
        let ratio = |member: &Member<'_>| {
            let before = group.members.iter().find(|one| Some(one.variant) == member.before)?;
            let is_enough = group.kind == Kind::Counted || member.runs.len().min(before.runs.len()) >= ENOUGH;
            let ratio = member.quartiles.median / before.quartiles.median;
            (is_enough && ratio.is_finite()).then_some(((group.phase, member.variant, before.variant), ratio))
        };
        group.members.iter().filter_map(ratio).collect::<Vec<_>>()
    });
    let changes: Vec<_> = changes.collect();
    let lines = in_order(changes.iter().map(|(line, _)| *line)).into_iter().filter_map(|line| {
        let ratios: Vec<f64> = changes.iter().filter(|(other, _)| *other == line).map(|(_, ratio)| *ratio).collect();
        let (phase, variant, before) = line;
        let [variant, before] = [variant, before].map(|place| &section.variants[place]);
        let (mean, deviation) = mean_and_deviation(&ratios);
        let each = ratios.iter().map(|ratio| words::change(*ratio, Noun::TIME)).collect::<Vec<_>>().join(", ");
        (ratios.len() > 1).then(|| {
            format!(
                "{phase}, {variant} beside {before}: {} on average over {} modes, standard deviation {:.2} ({each})",
                words::change(mean, Noun::TIME),
                ratios.len(),
                deviation * 100.0
            )
        })
    });
    lines.collect()
}

/// The mean, and the standard deviation of the sample.
fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0).max(1.0)).sqrt())
}

#[cfg(test)]
mod tests {
    use super::super::section::sections;
    use super::*;
    use crate::results::{Measurement, Platform, Results};

    fn results() -> Results {
        let mut results = Results::begin();
        for (mode, after) in [("p40v48-4k", 60.0), ("p36v48-4k", 50.0)] {
            for (split, time) in [("every-level", 100.0), ("records", after)] {
                let settings =
                    [("mode", mode), ("split", split)].map(|(key, value)| (key.to_owned(), value.to_owned()));
                results.measurements.push(Measurement {
                    experiment: "dirty-log".to_owned(),
                    platform: Platform::Machine,
                    configuration: settings.into(),
                    phase: "clear".to_owned(),
                    quantity: Quantity::Time,
                    kind: Kind::Native,
                    runs: vec![time; ENOUGH],
                });
            }
        }
        results
    }

    fn lines(results: &Results) -> Vec<String> {
        sections(results).iter().flat_map(averages).collect()
    }

    #[test]
    fn a_change_is_averaged_over_modes() {
        let mut results = results();
        let wanted = "clear, records beside every-level: 45.0 % less time on average over 2 modes, standard deviation \
                      7.07 (40.0 % less time, 50.0 % less time)";
        assert_eq!(lines(&results), [wanted]);
        results.measurements[0].runs.truncate(3);
        assert!(lines(&results).is_empty(), "one mode is left with enough runs");
    }

    #[test]
    fn nothing_is_averaged_over_one_mode_or_over_other_settings() {
        let mut results = results();
        results.measurements.iter_mut().take(2).for_each(|one| {
            one.configuration.insert("bytes".to_owned(), "4096".to_owned());
        });
        assert!(lines(&results).is_empty());
        results.measurements.truncate(2);
        assert!(lines(&results).is_empty());
    }
}
