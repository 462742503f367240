// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Figures as text: in a unit that leaves few digits, with three significant ones.
//!
//! Invariant: figures that are compared with each other have one unit; a count is never rounded.

use crate::quantity::Quantity;
use crate::statistics::{Quartiles, short};

/// The unit of shown figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unit {
    /// Its symbol, such as `ms`; empty for counts.
    pub name: &'static str,
    size: f64,
    is_count: bool,
}

impl Unit {
    /// Returns the unit for figures of this quantity, of which `largest` is the largest.
    pub fn of(quantity: Quantity, largest: f64) -> Self {
        let fitting = |units: &[(&'static str, f64)]| {
            let fits = |(_, size): &&(&str, f64)| largest >= *size;
            let (name, size) = units.iter().rfind(fits).unwrap_or(&units[0]);
            Self { name, size: *size, is_count: false }
        };
        match quantity {
            Quantity::Time | Quantity::CpuTime => fitting(&[("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)]),
            Quantity::Rate | Quantity::RequestRate => fitting(&[("/s", 1.0), ("k/s", 1e3), ("M/s", 1e6), ("G/s", 1e9)]),
            _ => Self { name: "", size: 1.0, is_count: true },
        }
    }

    /// Returns a figure in this unit.
    pub fn scale(self, value: f64) -> f64 {
        value / self.size
    }

    /// Returns the figure as text, without the unit.
    pub fn shown(self, value: f64) -> String {
        if self.is_count { count(value) } else { short(self.scale(value)) }
    }

    /// Returns the range that holds the middle half of the runs.
    pub fn spread(self, of: Quartiles) -> String {
        format!("{} to {}", self.shown(of.lower), self.shown(of.upper))
    }
}

/// Formats a count: `1,234,567`. A half, which the median of counts can have, is kept.
pub fn count(value: f64) -> String {
    let text = if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.1}") };
    let (whole, rest) = text.split_once('.').map_or((text.as_str(), None), |(whole, rest)| (whole, Some(rest)));
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |digits| ("-", digits));
    let mut grouped = sign.to_owned();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    rest.into_iter().for_each(|rest| grouped.extend(['.'].into_iter().chain(rest.chars())));
    grouped
}

/// Formats a part of a whole: `-39.0 %`.
pub fn percent(part: f64) -> String {
    // No `-0.0 %`.
    let text = format!("{:+.1} %", part * 100.0);
    if text == "-0.0 %" { "+0.0 %".to_owned() } else { text }
}

/// Formats bytes in the largest unit that needs no fraction: `1 GiB`.
pub fn bytes(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let fitting = units.into_iter().find(|(shift, _)| bytes != 0 && bytes.is_multiple_of(1 << shift));
    fitting.map_or_else(|| format!("{bytes} bytes"), |(shift, name)| format!("{} {name}", bytes >> shift))
}

/// Formats the value of a setting, for a column under its name.
pub fn value(key: &str, value: &str) -> String {
    match value.parse() {
        Ok(0) if key == "chunk" => "0".to_owned(),
        Ok(number) if matches!(key, "bytes" | "chunk" | "region" | "limit") => bytes(number),
        Ok(number) if matches!(key, "rate" | "bandwidth") => count(number as f64),
        _ => value.to_owned(),
    }
}

/// Formats a setting with its name if the value alone is not clear: `4 vCPUs`, `1 GiB`, `chunk 2 MiB`.
pub fn setting(key: &str, text: &str) -> String {
    let shown = value(key, text);
    match key {
        "bytes" | "mode" | "backing" => shown,
        "vcpus" if text == "1" => "1 vCPU".to_owned(),
        "vcpus" => format!("{shown} vCPUs"),
        "bandwidth" => format!("at most {shown} bytes/s"),
        "faulting" => format!("{shown} faulting"),
        "workers" => format!("{shown} working"),
        "rate" if text == "0" => "as many requests as it serves".to_owned(),
        "rate" => format!("{shown} requests/s"),
        "sets" => format!("{shown} % SETs"),
        "streams" if text == "1" => "1 stream".to_owned(),
        "streams" => format!("{shown} streams"),
        _ => format!("{} {shown}", key.replace('_', " ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_leave_few_digits() {
        let shown = |quantity, largest, value| {
            let unit = Unit::of(quantity, largest);
            format!("{} {}", unit.shown(value), unit.name)
        };
        assert_eq!(shown(Quantity::Time, 999.0, 12.0), "12.0 ns");
        assert_eq!(shown(Quantity::CpuTime, 4.4e7, 2.5e7), "25.0 ms");
        assert_eq!(shown(Quantity::Time, 3e9, 1e8), "0.100 s");
        assert_eq!(shown(Quantity::Rate, 2.34e7, 2.34e7), "23.4 M/s");
        assert_eq!(shown(Quantity::Time, 0.0, 0.0), "0.000 ns");
        assert_eq!(shown(Quantity::Instructions, 1e9, 1_234_567.0), "1,234,567 ");
    }

    #[test]
    fn counts_are_whole() {
        assert_eq!([0.0, 999.0, 1000.0, -262_144.0, 1500.5].map(count), ["0", "999", "1,000", "-262,144", "1,500.5"]);
    }

    #[test]
    fn settings_say_what_they_are() {
        assert_eq!(setting("bytes", "1073741824"), "1 GiB");
        assert_eq!(setting("bytes", "1610612736"), "1536 MiB");
        assert_eq!(setting("bytes", "1000"), "1000 bytes");
        assert_eq!(setting("chunk", "0"), "chunk 0");
        assert_eq!(setting("vcpus", "1"), "1 vCPU");
        assert_eq!(setting("exit_cost", "1500"), "exit cost 1500");
        assert_eq!(["limit", "workers"].map(|key| setting(key, "4096")), ["limit 4 KiB", "4096 working"]);
    }

    #[test]
    fn parts_are_percentages() {
        assert_eq!(percent(-0.0001), "+0.0 %");
        assert_eq!(percent(0.39), "+39.0 %");
    }
}
