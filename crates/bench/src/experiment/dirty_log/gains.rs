// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gains in the form of Bras 2026: for each variant and phase, the part of the time that is saved in each guest mode,
//! with mean and standard deviation. The deviation between modes is not noise. The spread of runs is in the quartiles.

use crate::readable::percent;
use crate::results::{Kind, Measurement, Quantity, Results};
use crate::statistics::{ENOUGH, Quartiles};

/// A line for each phase of each variant except the first. A line needs several variants, several modes, and enough
/// runs.
pub fn averages(results: &Results) -> Vec<String> {
    let mut lines: Vec<(String, Vec<f64>)> = Vec::new();
    let is_affected = |one: &&Measurement| one.quantity == Quantity::Time && !UNAFFECTED.contains(&one.phase.as_str());
    for after in results.measurements.iter().filter(is_affected) {
        let Some((before, what)) = before(results, after) else { continue };
        let is_too_few = after.kind != Kind::Counted && before.runs.len().min(after.runs.len()) < ENOUGH;
        let (before, now) = (median(before), median(after));
        if before <= 0.0 || is_too_few {
            continue;
        }
        let (line, gain) = (format!("{}, {what}", after.phase), (before - now) / before);
        match lines.iter_mut().find(|(known, _)| *known == line) {
            Some((_, gains)) => gains.push(gain),
            None => lines.push((line, vec![gain])),
        }
    }
    let several = lines.into_iter().filter(|(_, gains)| gains.len() > 1);
    let shown = |(line, gains): (String, Vec<f64>)| {
        let (mean, deviation) = mean_and_deviation(&gains);
        let each = gains.iter().map(|gain| percent(-gain)).collect::<Vec<_>>().join(", ");
        format!(
            "{line}: {} on average over {} modes, standard deviation {:.2} ({each})",
            percent(-mean),
            gains.len(),
            deviation * 100.0
        )
    };
    several.map(shown).collect()
}

/// Phases that the techniques of this experiment do not affect.
const UNAFFECTED: [&str; 2] = ["populate", "disable"];

/// The first variant of the same mode and phase, and the settings that differ. `None` for the first variant itself.
fn before<'r>(results: &'r Results, after: &Measurement) -> Option<(&'r Measurement, String)> {
    let is_beside = |one: &&Measurement| {
        one.phase == after.phase
            && one.quantity == after.quantity
            && one.configuration.get("mode") == after.configuration.get("mode")
    };
    let first = results.measurements.iter().find(is_beside)?;
    let differ = after.configuration.iter().filter(|(key, value)| first.configuration.get(*key) != Some(value));
    let words: Vec<_> = differ
        .map(|(key, value)| {
            format!("{key} {value} against {}", first.configuration.get(key).map_or("none", String::as_str))
        })
        .collect();
    (!words.is_empty()).then(|| (first, words.join(", ")))
}

fn median(measurement: &Measurement) -> f64 {
    Quartiles::of(measurement.runs.iter().copied()).median
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
    use super::*;
    use crate::experiment::record::{Variant, Who};
    use crate::experiment::setup::{Policies, Setup, Split};
    use crate::experiment::target::Taken;
    use crate::results::Platform;
    use twofold_workload::mode::Mode;

    #[test]
    fn a_gain_is_averaged_over_modes() {
        let mut results = Results::begin();
        for (mode, after) in [("p40v48-4k", 60.0), ("p36v48-4k", 50.0)] {
            let now = Setup::new(Mode::find(mode).unwrap());
            let before = Setup { policies: Policies { split: Split::EveryLevel, ..now.policies }, ..now.clone() };
            for (setup, time) in [(before, 100.0), (now, after)] {
                let variant = Variant::new("dirty-log", Platform::Machine, &setup);
                for _ in 0..ENOUGH {
                    variant.add(&mut results, "clear", Who::Collector, &Taken::from([(Quantity::Time, time)]));
                }
            }
        }
        let lines = averages(&results);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(
            lines[0].starts_with("clear, split records against every-level: -45.0 % on average over 2 modes"),
            "{lines:?}"
        );
        assert!(lines[0].contains("deviation 7.07"), "{lines:?}");
        results.measurements[0].runs.truncate(3);
        assert!(averages(&results).is_empty(), "one mode is left with enough runs");
    }

    #[test]
    fn one_mode_has_no_deviation() {
        let mut results = Results::begin();
        let setup = Setup::new(Mode::find("p40v48-4k").unwrap());
        let variant = Variant::new("dirty-log", Platform::Machine, &setup);
        variant.add(&mut results, "clear", Who::Collector, &Taken::from([(Quantity::Time, 1.0)]));
        assert!(averages(&results).is_empty());
    }
}
