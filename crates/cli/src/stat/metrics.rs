// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A sample as OpenMetrics text, version 1.0.0, for a scraper.
//!
//! Invariants: the lines of a metric follow each other, whatever guests there are, and the text ends with `# EOF`. A key
//! `group.name` is the metric `twofold_GROUP_total` with the label `kind`, because what counts the same belongs together.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use twofold_launch::sample::Sample;

/// It does not count anything.
const FREQUENCY: &str = "counter.frequency";
/// The groups of what is now, and does not count.
const OF_NOW: [&str; 3] = ["leaves", "balloon", "pages"];

/// The text.
pub fn text(sample: &Sample) -> String {
    let mut text = String::new();
    let mut gauge = |name: &str, unit: &str, help: &str, values: Vec<(String, u64)>| {
        let _ = writeln!(text, "# TYPE twofold_{name} gauge");
        if !unit.is_empty() {
            let _ = writeln!(text, "# UNIT twofold_{name} {unit}");
        }
        let _ = writeln!(text, "# HELP twofold_{name} {help}");
        for (labels, value) in values {
            let _ = writeln!(text, "twofold_{name}{labels} {value}");
        }
    };
    let guests = &sample.guests;
    let each = |value: fn(&twofold_launch::sample::GuestSample) -> u64| {
        guests.iter().map(|guest| (format!("{{guest=\"{}\"}}", guest.name), value(guest))).collect::<Vec<_>>()
    };
    gauge("guest_memory_bytes", "bytes", "The guest's RAM.", each(|guest| guest.memory));
    gauge("guest_vcpus", "", "The guest's vCPUs.", each(|guest| guest.cpus.into()));
    let frequency =
        |guest: &twofold_launch::sample::GuestSample| guest.figures.get(FREQUENCY).copied().unwrap_or_default();
    gauge("counter_frequency_hertz", "hertz", "The guest's ticks in a second.", each(frequency));
    let running = each(|guest| (guest.state == "running").into());
    gauge("guest_running", "", "1 if the guest runs, 0 if it is stopped, starting, off or failed.", running);
    let hypervisor = sample.hypervisor.iter().map(|(key, value)| (format!("{{kind=\"{key}\"}}"), *value));
    gauge("hypervisor", "", "Figures of the hypervisor.", hypervisor.collect());

    let mut groups: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (group, name) in guests
        .iter()
        .flat_map(|guest| guest.figures.keys())
        .filter(|key| *key != FREQUENCY)
        .filter_map(|key| key.split_once('.'))
    {
        groups.entry(group).or_default().insert(name);
    }
    for (group, names) in groups {
        let (kind, suffix) = if OF_NOW.contains(&group) { ("gauge", "") } else { ("counter", "_total") };
        let _ = writeln!(text, "# TYPE twofold_{group} {kind}");
        let _ = writeln!(text, "# HELP twofold_{group} The figures {group}.* of a guest (docs/stat.md).");
        for guest in guests {
            for (name, value) in
                names.iter().filter_map(|name| Some((name, guest.figures.get(&format!("{group}.{name}"))?)))
            {
                let _ = writeln!(text, "twofold_{group}{suffix}{{guest=\"{}\",kind=\"{name}\"}} {value}", guest.name);
            }
        }
    }
    text.push_str("# EOF\n");
    text
}

#[cfg(test)]
mod tests {
    use super::super::rates::tests::samples;
    use super::*;

    #[test]
    fn lines_of_a_metric_follow_each_other() {
        let mut sample = samples()[0].clone();
        sample.guests[0]
            .figures
            .extend([("swap.pages_read", 40), ("pages.resident", 3584)].map(|(key, value)| (key.to_owned(), value)));
        let text = text(&sample);
        let exits: Vec<_> = text.lines().filter(|line| line.contains("twofold_exits")).collect();
        assert_eq!(exits[0], "# TYPE twofold_exits counter");
        assert_eq!(exits[2], "twofold_exits_total{guest=\"web\",kind=\"data_abort\"} 600");
        assert_eq!(exits[5], "twofold_exits_total{guest=\"db\",kind=\"hvc\"} 900");
        assert!(text.contains("twofold_guest_running{guest=\"db\"} 0\n") && text.ends_with("# EOF\n"));
        for line in [
            "# TYPE twofold_leaves gauge",
            "twofold_leaves{guest=\"web\",kind=\"pages_4k\"} 1234",
            "# TYPE twofold_pages gauge",
            "twofold_pages{guest=\"web\",kind=\"resident\"} 3584",
            "twofold_swap_total{guest=\"web\",kind=\"pages_read\"} 40",
            "# TYPE twofold_dirty counter",
            "twofold_dirty_total{guest=\"web\",kind=\"pages\"} 300",
            "twofold_disk_total{guest=\"web\",kind=\"requests\"} 150",
            "twofold_net_total{guest=\"db\",kind=\"bytes_sent\"} 3000",
            "twofold_hypervisor{kind=\"memory.free\"} 2022703104",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}:\n{text}");
        }
        let mut seen: Vec<&str> = Vec::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split('{').next().unwrap_or_default();
            if seen.last() != Some(&name) {
                assert!(!seen.contains(&name), "{name} comes twice");
                seen.push(name);
            }
        }
    }
}
