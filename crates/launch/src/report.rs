// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lines of the hypervisor's control channel, parsed.
//!
//! Invariants: a [`Report`] has each key once and lists keys in the order of their names, so two equal runs print equal
//! reports. A run whose hypervisor reports a figure twice, or ends twice, fails ([`Verdict`](crate::Verdict)): the
//! first value is kept, and each later line is in [`Control::repeated`].

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use twofold_abi::{control, exit};

/// The control channel's lines, sorted by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// Notes for people.
    pub log: Vec<String>,
    /// Why the guest could not be started.
    pub errors: Vec<String>,
    /// The figures.
    pub report: Report,
    /// Pages that the guest wrote, as runs, round by round.
    pub rounds: Vec<String>,
    /// How it ended: power-off, reset, quit, panic, error, tests. `None`: there was no such line.
    pub end: Option<String>,
    /// The image's exit status, its last line. `None`: there was no such line.
    pub exit: Option<i32>,
    /// Lines that repeat a figure or an end, as they are. A good run has none.
    pub repeated: Vec<String>,
    /// A test image's answer to `list`.
    pub tests: Vec<Test>,
    /// Names of tests that passed.
    pub passed: Vec<String>,
    /// Names of tests that failed, and why.
    pub failed: Vec<(String, String)>,
}

/// A test of a test image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// Its name.
    pub name: String,
    /// The exit status that the test must end with.
    pub expect: i32,
}

/// Figures by dotted key, as [`twofold_abi::control`] lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    figures: BTreeMap<String, u64>,
}

impl Control {
    /// Reads the channel's text. Lines of unknown kind or shape are ignored, as the protocol asks.
    pub fn parse(text: &str) -> Self {
        let mut parsed = Self::default();
        for line in text.lines() {
            parsed.take(line.trim());
        }
        parsed
    }

    fn take(&mut self, line: &str) {
        let (kind, rest) = split_word(line);
        match kind {
            control::LOG => self.log.push(rest.to_owned()),
            control::ERROR => self.errors.push(rest.to_owned()),
            control::STAT => {
                let (key, value) = split_word(rest);
                if let (true, Ok(value)) = (is_key(key), value.parse()) {
                    if self.report.get(key).is_none() {
                        self.report.set(key, value);
                    } else {
                        self.repeated.push(line.to_owned());
                    }
                }
            }
            control::ROUND => self.take_round(rest),
            control::END if self.end.is_none() => self.end = Some(rest.to_owned()),
            control::END => self.repeated.push(line.to_owned()),
            control::EXIT => match rest.parse() {
                Ok(status) if self.exit.is_none() => self.exit = Some(status),
                Ok(_) => self.repeated.push(line.to_owned()),
                Err(_) => {}
            },
            control::TEST if !rest.is_empty() => {
                let (name, expect) = split_word(rest);
                let expect = expect.strip_prefix("expect=").and_then(|status| status.parse().ok());
                self.tests.push(Test { name: name.to_owned(), expect: expect.unwrap_or(exit::POWER_OFF) });
            }
            control::PASS if !rest.is_empty() => self.passed.push(rest.to_owned()),
            control::FAIL if !rest.is_empty() => {
                let (name, why) = split_word(rest);
                self.failed.push((name.to_owned(), why.to_owned()));
            }
            _ => {}
        }
    }

    /// Starts a new round, or continues the last one.
    fn take_round(&mut self, line: &str) {
        let (number, runs) = split_word(line);
        let Ok(number) = number.parse::<usize>() else { return };
        if number == self.rounds.len() {
            self.rounds.push(String::new());
        }
        if let Some(round) = self.rounds.get_mut(number) {
            round.push_str(if round.is_empty() || runs.is_empty() { "" } else { " " });
            round.push_str(runs);
        }
    }
}

impl Report {
    /// The figure `key`.
    pub fn get(&self, key: &str) -> Option<u64> {
        self.figures.get(key).copied()
    }

    /// Sets the figure `key`.
    pub fn set(&mut self, key: &str, value: u64) {
        self.figures.insert(key.to_owned(), value);
    }

    /// The figures below `prefix`, by the rest of their key, in order of names: `under("tlbi")` has `vmalle1is` for
    /// `tlbi.vmalle1is`.
    pub fn under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, u64)> {
        self.iter().filter_map(move |(key, value)| Some((key.strip_prefix(prefix)?.strip_prefix('.')?, value)))
    }

    /// All figures in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.figures.iter().map(|(key, value)| (key.as_str(), *value))
    }

    /// Whether there is no figure at all.
    pub fn is_empty(&self) -> bool {
        self.figures.is_empty()
    }

    /// Why these figures cannot be counts: one is so large that it wrapped below zero, or the parts of the instructions
    /// at EL2 sum to less than their total. `None` if they can be.
    pub fn impossible(&self) -> Option<String> {
        if let Some((key, value)) = self.iter().find(|(_, value)| *value > i64::MAX as u64) {
            return Some(format!("{key} is {value}"));
        }
        let total = self.get("el2_instructions.total")?;
        let parts: u64 = self.under("el2_instructions.by_exit").map(|(_, part)| part).fold(0, u64::saturating_add);
        (parts < total).then(|| format!("el2_instructions.total is {total}, and its parts are {parts}"))
    }

    /// The figures as objects, nested by the dots of their keys. If a key is also a prefix of another one, its own
    /// figure is stored under `self`, which is never a part of a key.
    pub fn to_json(&self) -> Map<String, Value> {
        let mut root = Map::new();
        for (key, value) in self.iter() {
            insert(&mut root, key, value);
        }
        root
    }
}

fn insert(object: &mut Map<String, Value>, key: &str, value: u64) {
    let Some((first, rest)) = key.split_once('.') else {
        match object.get_mut(key) {
            Some(Value::Object(below)) => below.insert("self".to_owned(), value.into()),
            _ => object.insert(key.to_owned(), value.into()),
        };
        return;
    };
    let below = object.entry(first).or_insert_with(|| Value::Object(Map::new()));
    if !below.is_object() {
        let own = below.take();
        *below = Value::Object(Map::from_iter([("self".to_owned(), own)]));
    }
    if let Value::Object(below) = below {
        insert(below, rest, value);
    }
}

fn split_word(text: &str) -> (&str, &str) {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    (word, rest.trim_start())
}

/// `self` is reserved: JSON stores there the figure of a key that is also a prefix of another one.
fn is_key(key: &str) -> bool {
    key.split('.').all(|part| {
        !part.is_empty() && part != "self" && part.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sorts_lines_by_kind() {
        let control = Control::parse(
            "twofold:log 512 MiB for the guest\r\n\
             twofold:stat faults.translation 31\n\
             twofold:stat exits.wfi 7\n\
             twofold:error no bundle\n\
             twofold:test map_page\n\
             twofold:test panics expect=17\n\
             twofold:pass map_page\n\
             twofold:fail split the entry was 0x3\n\
             twofold:end power-off\n\
             twofold:exit 19\n",
        );
        assert_eq!(control.log, ["512 MiB for the guest"]);
        assert_eq!(control.errors, ["no bundle"]);
        assert_eq!(control.report.get("faults.translation"), Some(31));
        assert_eq!(control.report.get("exits.wfi"), Some(7));
        let test = |name: &str, expect| Test { name: name.to_owned(), expect };
        assert_eq!(control.tests, [test("map_page", 0), test("panics", 17)]);
        assert_eq!(control.passed, ["map_page"]);
        assert_eq!(control.failed, [("split".to_owned(), "the entry was 0x3".to_owned())]);
        assert_eq!(control.end.as_deref(), Some("power-off"));
        assert_eq!(control.exit, Some(19));
    }

    #[test]
    fn a_round_may_have_several_lines() {
        let text = "twofold:round 0 0+3 9+1\ntwofold:round 0 17+1\ntwofold:round 0\ntwofold:round 1\ntwofold:round 3 1+1\n\
                    twofold:round x 1+1\ntwofold:round 2 5+2\n";
        assert_eq!(Control::parse(text).rounds, ["0+3 9+1 17+1", "", "5+2"]);
    }

    #[test]
    fn ignores_what_it_does_not_know() {
        let text = "twofold:news all well\nhello\n\ntwofold:stat\ntwofold:stat A.b 1\ntwofold:stat a..b 1\n\
                    twofold:stat a.self 1\ntwofold:stat self 1\ntwofold:stat self.a 1\n\
                    twofold:stat a -1\ntwofold:stat a 1 2\ntwofold:stat a x\ntwofold:pass\ntwofold:statistic a 1\n\
                    twofold:exit\ntwofold:exit x";
        assert_eq!(Control::parse(text), Control::default());
    }

    #[test]
    fn what_is_said_again_is_kept_apart() {
        let again = ["twofold:stat a.b 2", "twofold:stat a.b 1", "twofold:end reset", "twofold:exit 0"];
        let text = format!("twofold:stat a.b 1\n{}\ntwofold:stat c 18446744073709551615\n{}", again[0], again[1]);
        let text = format!("{text}\ntwofold:end power-off\n{}\ntwofold:exit 16\n{}\n", again[2], again[3]);
        let control = Control::parse(&text);
        assert_eq!(control.exit, Some(16));
        assert_eq!(control.report.iter().collect::<Vec<_>>(), [("a.b", 1), ("c", u64::MAX)]);
        assert_eq!(control.end.as_deref(), Some("power-off"));
        assert_eq!(control.repeated, again);
    }

    #[test]
    fn a_count_below_zero_is_impossible() {
        let impossible = |text: &str| Control::parse(text).report.impossible();
        assert_eq!(impossible("twofold:stat a 1\ntwofold:stat b 9223372036854775807"), None);
        let below = impossible("twofold:stat a 1\ntwofold:stat el2_instructions.total 18446744073709551604");
        assert_eq!(below.as_deref(), Some("el2_instructions.total is 18446744073709551604"));
    }

    #[test]
    fn parts_of_a_total_are_not_less() {
        let of = |hvc: u64| {
            let text = format!(
                "twofold:stat el2_instructions.total 9\ntwofold:stat el2_instructions.by_exit.smc 4\n\
                 twofold:stat el2_instructions.by_exit.hvc {hvc}"
            );
            Control::parse(&text).report.impossible()
        };
        assert_eq!(of(5), None);
        assert_eq!(of(4).as_deref(), Some("el2_instructions.total is 9, and its parts are 8"));
    }

    #[test]
    fn lists_what_is_under_a_prefix() {
        let control = Control::parse("twofold:stat tlbi.b 2\ntwofold:stat tlbi.a 1\ntwofold:stat tlbix.c 3");
        assert_eq!(control.report.under("tlbi").collect::<Vec<_>>(), [("a", 1), ("b", 2)]);
    }

    #[test]
    fn nests_by_dots() {
        let control = Control::parse(
            "twofold:stat el2_instructions.total 9\ntwofold:stat el2_instructions.by_exit.hvc 4\ntwofold:stat one 1",
        );
        let expected = json!({"el2_instructions": {"total": 9, "by_exit": {"hvc": 4}}, "one": 1});
        assert_eq!(Value::Object(control.report.to_json()), expected);
    }

    #[test]
    fn a_key_that_starts_another_keeps_its_figure() {
        let mut report = Report::default();
        report.set("a", 1);
        report.set("a.b", 2);
        assert_eq!(Value::Object(report.to_json()), json!({"a": {"self": 1, "b": 2}}));
    }
}
