// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `docs/mmu-rules.md` has each rule, and the tests that it names exist.

use twofold_machine::strict::Rule;

const DOCUMENT: &str = include_str!("../../../../../docs/mmu-rules.md");
const TESTS: [&str; 10] = [
    include_str!("caches.rs"),
    include_str!("concurrency.rs"),
    include_str!("entries.rs"),
    include_str!("flushes.rs"),
    include_str!("groups.rs"),
    include_str!("guests.rs"),
    include_str!("peers.rs"),
    include_str!("qemu.rs"),
    include_str!("records.rs"),
    include_str!("sizes.rs"),
];

/// The names of tests after `label` in a section.
fn named<'a>(section: &'a str, label: &str) -> Vec<&'a str> {
    let (_, behind) = section.split_once(label).unwrap_or_default();
    let item = behind.split("\n\n").next().and_then(|item| item.split("\n* ").next());
    item.unwrap_or_default().split('`').skip(1).step_by(2).collect()
}

#[test]
fn each_rule_has_a_section_with_a_test_that_is_reported_and_one_that_is_allowed() {
    for rule in Rule::ALL {
        let heading = format!("\n### R{}: {rule:?}\n", rule.number());
        let (_, section) = DOCUMENT.split_once(&heading).unwrap_or_else(|| panic!("no section{heading}"));
        let section = section.split("\n#").next().unwrap_or_default();
        for label in ["\n* Must be reported:", "\n* Must be allowed:"] {
            let names = named(section, label);
            assert!(!names.is_empty(), "R{} names no test{label}", rule.number());
            for name in names {
                let function = format!("fn {name}(");
                assert!(TESTS.iter().any(|file| file.contains(&function)), "there is no test {name}");
            }
        }
        assert!(section.contains("Arm ARM") || section.contains("Ours"), "R{} cites no source", rule.number());
    }
    assert_eq!(DOCUMENT.matches("\n### R").count(), Rule::ALL.len());
}

#[test]
fn rules_are_numbered_in_their_order() {
    assert!(Rule::ALL.iter().enumerate().all(|(index, rule)| rule.number() == index + 1));
}
