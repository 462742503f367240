// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Results for a spreadsheet: one line for each run of each figure.
//!
//! Invariant: a line has everything that identifies its figure. A setting that this figure lacks and another has is an
//! empty field.

use std::collections::BTreeSet;

use anyhow::Context;

use crate::results::{Quantity, Results};

/// Formats all runs, under a line of names. Times are in nanoseconds, rates in accesses per second, all else is counts.
///
/// # Errors
///
/// No error is known: the text is written to memory.
pub fn csv(results: &Results) -> anyhow::Result<String> {
    let keys: BTreeSet<&str> =
        results.measurements.iter().flat_map(|one| one.configuration.keys()).map(String::as_str).collect();
    let mut writer = csv::Writer::from_writer(Vec::new());
    let names = ["experiment", "platform", "phase", "quantity", "unit", "kind", "run", "value"].map(str::to_owned);
    // A prefix, because a setting may have the name of another column.
    writer.write_record(names.into_iter().chain(keys.iter().map(|key| format!("configuration.{key}"))))?;
    for one in &results.measurements {
        for (run, value) in one.runs.iter().enumerate() {
            let unit = match one.quantity {
                Quantity::Time | Quantity::CpuTime => "ns",
                Quantity::Rate => "1/s",
                _ => "1",
            };
            let (run, value) = (run.to_string(), value.to_string());
            let named = [&one.experiment, one.platform.name(), &one.phase, one.quantity.name(), unit, one.kind.name()];
            let settings = keys.iter().map(|key| one.configuration.get(*key).map_or("", String::as_str));
            writer.write_record(named.into_iter().chain([run.as_str(), value.as_str()]).chain(settings))?;
        }
    }
    let bytes = writer.into_inner().context("cannot write CSV to memory")?;
    Ok(String::from_utf8(bytes)?)
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn each_run_is_a_line_and_is_read_again() {
        let mut results = example::results();
        results.measurements[0].configuration.insert("note".to_owned(), "a, \"b\"\nc".to_owned());
        let text = csv(&results).unwrap();
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let names = reader.headers().unwrap().clone();
        let at = |name: &str| names.iter().position(|other| other == name).unwrap();
        let records: Vec<_> = reader.records().map(Result::unwrap).collect();
        assert_eq!(records.len(), results.measurements.iter().map(|one| one.runs.len()).sum::<usize>());
        assert_eq!(&records[0][at("configuration.note")], "a, \"b\"\nc");
        let mut records = records.iter();
        for one in &results.measurements {
            for (run, value) in one.runs.iter().enumerate() {
                let record = records.next().unwrap();
                assert_eq!(record[at("value")].parse(), Ok(*value));
                assert_eq!(record[at("run")].parse(), Ok(run));
                assert_eq!(record[at("phase")], one.phase);
                assert_eq!(record[at("configuration.bytes")], one.configuration["bytes"]);
            }
        }
    }
}
