// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Results such as an experiment has, for tests of the reports. The numbers are invented.

use std::collections::BTreeMap;

use crate::results::{FORMAT, HeadlineRow, Kind, Measurement, Platform, Quantity, Results, Series, Verdict};
use crate::statistics::{Quartiles, Random, Ratio};

/// Bras 2026 in four modes and three backings, Kolothum 2023 with three trackers over time, Wang 2021 by memory size;
/// with names that need escaping.
pub fn results() -> Results {
    let mut random = Random::new(7);
    Results {
        format: FORMAT.to_owned(),
        command: "twofold bench headline --report 'a <b> & \"c\".html'".to_owned(),
        program: "twofold 0.1.0, release build".to_owned(),
        host: [
            ("CPU", "AMD <EPYC> & \"more\""),
            ("CPUs", "2"),
            ("under a hypervisor", "yes"),
            ("caches", "L1d 48 KiB, L1i 32 KiB, L2 1 MiB, L3 32 MiB"),
            ("memory", "7.8 GiB"),
            (crate::host::FREE_MEMORY, "6.1 GiB"),
            ("transparent huge pages", "madvise"),
            ("huge page pools", "2 MiB: 0 of 0 free, 1 GiB: 0 of 0 free"),
            ("/dev/kvm", "not there"),
            ("kernel", "Linux 6.12.48"),
            (crate::host::COMMAND_LINE, "console=ttyS0 quiet root=UUID=0000-0000 it's=</script>"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec(),
        headline: headline(),
        measurements: [splits(&mut random), trackers(&mut random), sizes(&mut random)].concat(),
        series: series(&mut random),
        notes: vec!["times of a fault on the machine are a function call's: --exit-cost 1500 is added".to_owned()],
        interrupted: false,
    }
}

fn configuration(settings: &[(&str, &str)]) -> BTreeMap<String, String> {
    settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Seven runs around a value, up to `percent` percent apart from it.
fn around(random: &mut Random, value: f64, percent: u64) -> Vec<f64> {
    let run = |_| value * (1.0 + (random.below(2 * percent * 100) as f64 / 100.0 - percent as f64) / 100.0);
    (0..7).map(run).collect()
}

fn splits(random: &mut Random) -> Vec<Measurement> {
    let mut all = Vec::new();
    for (backing, size, gain) in
        [("anonymous", 1.0, 0.56), ("anonymous_thp", 0.4, 0.75), ("anonymous_hugetlb_1gb", 0.38, 0.76)]
    {
        for mode in ["p40v48-4k", "p40v48-64k", "p36v48-4k", "p36v48-64k"] {
            for (split, factor) in [("records", gain), ("every-level", 1.0)] {
                let configuration = configuration(&[
                    ("backing", backing),
                    ("mode", mode),
                    ("split", split),
                    ("bytes", "1073741824"),
                    ("chunk", "2097152"),
                    ("vcpus", "1"),
                ]);
                for (phase, ns, changes) in [
                    ("populate", 6e8, false),
                    ("enable", 4.4e7, true),
                    ("dirty", 9e7, false),
                    ("get", 3e4, false),
                    ("clear", 6e7, true),
                ] {
                    let factor = if changes { factor } else { 1.0 };
                    for (quantity, times) in [(Quantity::Time, 1.0), (Quantity::CpuTime, 0.97)] {
                        all.push(Measurement {
                            experiment: "dirty-log".to_owned(),
                            platform: Platform::Machine,
                            configuration: configuration.clone(),
                            phase: phase.to_owned(),
                            quantity,
                            kind: Kind::Native,
                            runs: around(random, ns * size * factor * times, 4),
                        });
                    }
                }
            }
        }
    }
    all
}

fn trackers(random: &mut Random) -> Vec<Measurement> {
    let mut all = Vec::new();
    let trackers = [("write-protect", [1_200_000.0, 4000.0, 90_000.0]), ("combined", [70_000.0, 120_000.0, 130_000.0])];
    for (tracker, phases) in trackers {
        for (phase, instructions) in ["dirty", "get", "clear"].into_iter().zip(phases) {
            let one = |quantity, runs| Measurement {
                experiment: "dirty-log".to_owned(),
                platform: Platform::Hypervisor,
                configuration: configuration(&[("tracker", tracker), ("bytes", "67108864"), ("vcpus", "1")]),
                phase: phase.to_owned(),
                quantity,
                kind: Kind::Counted,
                runs,
            };
            all.push(one(Quantity::Instructions, vec![instructions]));
            if phase == "dirty" {
                all.push(one(Quantity::Faults, vec![(instructions / 73.0).floor()]));
                all.push(one(Quantity::TranslationFaults, vec![512.0]));
                all.push(one(Quantity::PermissionFaults, vec![(instructions / 80.0).floor()]));
                all.push(one(Quantity::AccessFlagFaults, vec![random.below(100) as f64]));
            }
            all.push(one(Quantity::Tlbi, vec![(instructions / 1000.0).floor()]));
        }
    }
    all
}

fn sizes(random: &mut Random) -> Vec<Measurement> {
    let mut all = Vec::new();
    for shift in 28..=34 {
        for (cmo, each, fixed) in [("on-map", 0.13, 2e6), ("on-abort", 1.04, 2e6)] {
            for (phase, grows) in [("create", true), ("update", false)] {
                let bytes = 1_u64 << shift;
                let ns = if grows { bytes as f64 * each } else { fixed };
                all.push(Measurement {
                    experiment: "page-table".to_owned(),
                    platform: Platform::Machine,
                    configuration: configuration(&[
                        ("cmo", cmo),
                        ("bytes", &bytes.to_string()),
                        ("backing", "anonymous_hugetlb_1gb"),
                        ("vcpus", "8"),
                    ]),
                    phase: phase.to_owned(),
                    quantity: Quantity::CpuTime,
                    kind: Kind::Modelled,
                    runs: around(random, ns, 9),
                });
            }
        }
    }
    all
}

fn series(random: &mut Random) -> Vec<Series> {
    let of = |tracker: &str, dip: f64, random: &mut Random| {
        let points = (0..500).map(|step| {
            let at = f64::from(step) * 0.02;
            let dip = if (2.0..8.0).contains(&at) { 1.0 - dip * (1.0 - (at * 10.0).fract()) } else { 1.0 };
            (at, 4.2e7 * dip * (1.0 + random.below(600) as f64 / 10_000.0))
        });
        let mut events = vec![(2.0, "enable".to_owned())];
        events.extend((1..60).map(|step| (2.0 + f64::from(step) * 0.1, "get and clear".to_owned())));
        events.push((8.0, "disable".to_owned()));
        Series {
            experiment: "continuous".to_owned(),
            platform: Platform::Machine,
            configuration: configuration(&[("tracker", tracker), ("bytes", "1073741824"), ("vcpus", "2")]),
            name: "accesses per second".to_owned(),
            points: points.collect(),
            events,
        }
    };
    vec![of("combined", 0.25, random), of("write-protect", 0.8, random), of("adaptive", 0.2, random)]
}

fn headline() -> Vec<HeadlineRow> {
    let row = |source: &str, what: &str, published: &str, gain: Option<f64>, ours: f64, verdict: Verdict| HeadlineRow {
        source: source.to_owned(),
        what: what.to_owned(),
        command: "dirty_log_perf_test -g -b 16G".to_owned(),
        published: published.to_owned(),
        published_gain: gain,
        unit: "ms".to_owned(),
        before: Some(quartiles(44.0)),
        after: Some(quartiles(44.0 * (1.0 - ours))),
        gain: Some(Ratio { median: ours, low: ours - 0.04, high: ours + 0.03 }),
        platform: Platform::Machine,
        kind: Kind::Native,
        verdict,
        note: String::new(),
    };
    vec![
        row(
            "Bras 2026",
            "enable, already split",
            "44.01 % less time (sd 2.80)",
            Some(0.4401),
            0.47,
            Verdict::AsExpected,
        ),
        row(
            "Bras 2026",
            "clear, already split",
            "38.98 % less time (sd 1.91)",
            Some(0.3898),
            0.36,
            Verdict::AsExpected,
        ),
        row("Bras 2026", "enable, THP", "24.66 % less time (sd 1.21)", Some(0.2466), 0.02, Verdict::Inconclusive),
        row("Bras 2026", "clear, THP", "25.49 % less time (sd 0.65)", Some(0.2549), 0.29, Verdict::AsExpected),
        row(
            "Wang 2021",
            "create, 1G pages, 40 vCPUs",
            "96.47 % less time (104.55 to 3.69 s)",
            Some(0.9647),
            0.86,
            Verdict::AsExpected,
        ),
        row(
            "Kolothum 2023",
            "dirty, get and clear together",
            "1.3 % less time (4.7 to 4.64 s)",
            Some(0.0128),
            -0.12,
            Verdict::Differs,
        ),
        HeadlineRow {
            before: None,
            after: None,
            gain: None,
            note: "needs a live migration of a guest that runs Redis".to_owned(),
            command: "redis-benchmark -t set -c 900 -n 5000000 --threads 96".to_owned(),
            ..row(
                "Kolothum 2023",
                "Redis during a live migration",
                "10.0 % less time (79.428 to 71.49 s)",
                Some(0.0999),
                0.0,
                Verdict::NotMeasured,
            )
        },
    ]
}

fn quartiles(median: f64) -> Quartiles {
    Quartiles { lower: median * 0.97, median, upper: median * 1.02 }
}
