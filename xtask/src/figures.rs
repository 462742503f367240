// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rows of a run's table.
//!
//! Invariant: the rows depend on which figures exist and not on their values, except where a row's documentation says
//! so.

use twofold_launch::Report;
use twofold_workspace::table;
use twofold_workspace::table::thousands;

use twofold_peers::recorded;

/// Instructions at EL2 for first touches of 4 KiB pages by a guest that does nothing else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FirstTouch {
    /// Pages touched.
    pub pages: u64,
    /// Instructions for all of them.
    pub instructions: u64,
}

/// The longest stretch at EL2 with interrupts masked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LongestMasked<'a> {
    /// Instructions.
    pub instructions: u64,
    key: &'a str,
}

impl<'a> LongestMasked<'a> {
    /// Returns the longest of a counted report, or `None` if it has none. Of two equal ones, it is the first by name.
    pub fn of(report: &'a Report) -> Option<Self> {
        let stretches = report.under("longest_masked").map(|(key, instructions)| Self { instructions, key });
        stretches.reduce(|longest, other| if other.instructions > longest.instructions { other } else { longest })
    }

    /// Returns the exit that it belongs to.
    pub fn exit(self) -> String {
        let sizes = [("first_touch_4k", "4K page"), ("first_touch_2m", "2M block"), ("first_touch_1g", "1G block")];
        let touch = sizes.iter().find(|(key, _)| *key == self.key);
        touch.map_or_else(|| label(self.key), |(_, leaf)| format!("first touch of a {leaf}"))
    }
}

/// The rows of a run's table.
#[derive(Debug, Default)]
pub struct Rows {
    rows: Vec<[String; 3]>,
}

impl FirstTouch {
    /// Returns the figures of a counted report, or `None` if it has none.
    pub fn of(report: &Report) -> Option<Self> {
        Self::by_size(report, "first_touch_4k", "pages_4k")
    }

    /// Returns the instructions per page, rounded to the nearest.
    pub fn per_page(self) -> u64 {
        (self.instructions + self.pages / 2) / self.pages
    }

    fn by_size(report: &Report, instructions: &str, count: &str) -> Option<Self> {
        let pages = report.get(&format!("first_touches.{count}")).filter(|pages| *pages > 0)?;
        let instructions = report.get(&format!("el2_instructions.{instructions}"))?;
        Some(Self { pages, instructions })
    }
}

impl Rows {
    /// Adds a row of words.
    pub fn words(&mut self, name: &str, value: &str) {
        self.rows.push([name.to_owned(), value.to_owned(), "-".to_owned()]);
    }

    /// Adds the report's counts.
    pub fn counts(&mut self, report: &Report) {
        for (prefix, title) in GROUPS {
            for (key, value) in report.under(prefix) {
                self.number(&format!("{title}: {}", label(key)), value, None);
            }
        }
    }

    /// Adds a row for each sum of the report's counts.
    pub fn summary(&mut self, report: &Report) {
        let sum = |prefix| -> u64 { report.under(prefix).map(|(_, value)| value).sum() };
        let count = |key: &str| report.get(key).unwrap_or(0);
        // First touches and writes are among the permission and translation faults.
        let causes = ["access_flag", "external", "permission", "translation"];
        self.number("stage-2 faults", causes.iter().map(|cause| count(&format!("faults.{cause}"))).sum(), None);
        self.number("exits to EL2", sum("exits"), None);
        let [(names, keys), others @ ..] = LEAVES;
        let (names, keys) = others.into_iter().find(|(_, keys)| report.get(keys[2]).is_some()).unwrap_or((names, keys));
        self.words(names, &keys.map(|key| thousands(count(key))).join(", "));
        self.number("table pages", count("tables.allocated"), None);
        self.number("TLB invalidations", sum("tlbi"), None);
    }

    /// Adds instructions at EL2: of the boot, of its longest stretch with interrupts masked, and of a first touch by
    /// `touch`.
    pub fn main_instructions(&mut self, report: &Report, touch: Option<FirstTouch>) {
        if let Some(total) = report.get("el2_instructions.total") {
            self.number("EL2 instructions: the boot", total, None);
        }
        if let Some(longest) = LongestMasked::of(report) {
            let words = format!("{} ({})", thousands(longest.instructions), longest.exit());
            self.words("EL2 instructions: longest masked stretch", &words);
        }
        if let Some(touch) = touch {
            self.number("EL2 instructions: first touch of a 4K page", touch.per_page(), Some(recorded::FIRST_TOUCH));
        }
    }

    /// Adds instructions at EL2: of the boot, of a first touch by `touch`, and of the boot's own first touches for each
    /// mapping size that it used.
    pub fn instructions(&mut self, report: &Report, touch: Option<FirstTouch>) {
        self.main_instructions(report, touch);
        for (instructions, count, size) in SIZES {
            if let Some(own) = FirstTouch::by_size(report, instructions, count) {
                self.number(&format!("EL2 instructions: first touch in this boot, {size}"), own.per_page(), None);
            }
        }
    }

    /// Returns the table; it has KVM's column if `compared`.
    pub fn table(self, compared: bool) -> String {
        let columns = if compared { 3 } else { 2 };
        let header = ["figure", "Twofold", recorded::HEADING];
        table::with_numbers(&header[..columns], self.rows.into_iter().map(|row| row[..columns].to_vec()), 1..)
    }

    fn number(&mut self, name: &str, value: u64, kvm: Option<u64>) {
        let kvm = kvm.map_or_else(|| "-".to_owned(), thousands);
        self.rows.push([name.to_owned(), thousands(value), kvm]);
    }
}

/// Groups of keys in the order in which a table shows them.
const GROUPS: [(&str, &str); 8] = [
    ("faults", "faults"),
    ("exits", "exits"),
    ("mapped", "mapped"),
    ("tables", "table pages"),
    ("memory", "memory"),
    ("tlbi", "TLBI"),
    ("barriers", "barriers"),
    ("cache", "cache"),
];
/// The leaves of each granule.
const LEAVES: [(&str, [&str; 3]); 3] = [
    ("mapped: 1G blocks, 2M blocks, 4K pages", ["mapped.blocks_1g", "mapped.blocks_2m", "mapped.pages_4k"]),
    ("mapped: 64G blocks, 32M blocks, 16K pages", ["mapped.blocks_64g", "mapped.blocks_32m", "mapped.pages_16k"]),
    ("mapped: 4T blocks, 512M blocks, 64K pages", ["mapped.blocks_4t", "mapped.blocks_512m", "mapped.pages_64k"]),
];
const SIZES: [(&str, &str, &str); 3] = [
    ("first_touch_4k", "pages_4k", "4K pages"),
    ("first_touch_2m", "blocks_2m", "2M blocks"),
    ("first_touch_1g", "blocks_1g", "1G blocks"),
];

fn label(key: &str) -> String {
    match key {
        "pages_4k" => "4K pages".to_owned(),
        "blocks_2m" => "2M blocks".to_owned(),
        "blocks_1g" => "1G blocks".to_owned(),
        _ => key.replace('_', " "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use twofold_launch::Control;

    #[test]
    fn a_table_is_aligned_and_headed() {
        let report = Control::parse(
            "twofold:stat faults.translation 14440\ntwofold:stat mapped.pages_4k 14000\n\
             twofold:stat el2_instructions.total 9000000\ntwofold:stat el2_instructions.first_touch_4k 500\n\
             twofold:stat first_touches.pages_4k 2\ntwofold:stat first_touches.blocks_2m 0",
        )
        .report;
        let mut rows = Rows::default();
        rows.words("guest check", "ok");
        rows.counts(&report);
        rows.instructions(&report, Some(FirstTouch { pages: 3, instructions: 1000 }));
        let table = rows.table(true);
        let lines: Vec<_> = table.lines().collect();
        assert!(lines[0].starts_with("figure") && lines[0].ends_with(recorded::HEADING), "{table}");
        let find = |name: &str| *lines.iter().find(|line| line.starts_with(name)).unwrap();
        assert!(find("faults: translation").contains("14,440"));
        assert!(find("mapped: 4K pages").contains("14,000"));
        assert!(find("EL2 instructions: the boot").contains("9,000,000"));
        let touch: Vec<_> = find("EL2 instructions: first touch of").rsplit("  ").map(str::trim).collect();
        assert_eq!(touch[0], "7,672");
        assert!(find("EL2 instructions: first touch of").contains("333"));
        assert!(find("EL2 instructions: first touch in this boot, 4K").contains("250"));
        assert!(!table.contains("2M blocks") && !table.contains("masked"));
        let ends: Vec<_> = lines.iter().map(|line| line.len()).collect();
        assert!(ends.iter().all(|end| *end == ends[0]), "the last column ends below the end of its heading:\n{table}");
    }

    #[test]
    fn ten_rows_sum_up_what_all_rows_show() {
        let report = Control::parse(
            "twofold:stat faults.translation 70\ntwofold:stat faults.permission 4\ntwofold:stat faults.first_touch 47\n\
             twofold:stat exits.hvc 7\ntwofold:stat exits.data_abort 62\ntwofold:stat mapped.blocks_2m 63\n\
             twofold:stat tables.allocated 6\ntwofold:stat tables.freed 1\ntwofold:stat tlbi.vmalle1 4\ntwofold:stat tlbi.ipas2e1 5",
        )
        .report;
        let mut rows = Rows::default();
        rows.summary(&report);
        let shown: Vec<_> = rows.rows.iter().map(|[name, value, _]| format!("{name}={value}")).collect();
        let wanted = [
            "stage-2 faults=74",
            "exits to EL2=69",
            "mapped: 1G blocks, 2M blocks, 4K pages=0, 63, 0",
            "table pages=6",
            "TLB invalidations=9",
        ];
        assert_eq!(shown, wanted);
    }

    #[test]
    fn the_longest_stretch_has_its_exits_name() {
        let longest = |text: &str| {
            let report = Control::parse(text).report;
            LongestMasked::of(&report).map(|longest| (longest.instructions, longest.exit()))
        };
        assert_eq!(longest("twofold:stat el2_instructions.total 9"), None);
        let touch = "twofold:stat longest_masked.hvc 7\ntwofold:stat longest_masked.first_touch_2m 8\n\
                     twofold:stat longest_masked.uart 6";
        assert_eq!(longest(touch), Some((8, "first touch of a 2M block".to_owned())));
        let register = "twofold:stat longest_masked.gic 5\ntwofold:stat longest_masked.system_register 5000";
        assert_eq!(longest(register), Some((5000, "system register".to_owned())));
        let mut rows = Rows::default();
        rows.main_instructions(
            &Control::parse(&format!("{register}\ntwofold:stat el2_instructions.total 9")).report,
            None,
        );
        assert_eq!(rows.rows[1][..2], ["EL2 instructions: longest masked stretch", "5,000 (system register)"]);
    }

    #[test]
    fn without_counting_there_is_no_column_of_kvm() {
        let mut rows = Rows::default();
        rows.words("guest check", "ok");
        let table = rows.table(false);
        assert!(!table.contains("KVM") && !table.contains('-'), "{table}");
    }
}
