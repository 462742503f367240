// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `docs/async-page-fault.md` agrees with the numbers in `abi`, and each test that it names exists. A test program of its
//! own, because mutants are judged without documents.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use twofold_abi::async_fault::{
    ACKNOWLEDGE, COMPATIBLE, DISABLE, ENABLE, INTID, QUERY, TOKENS_MAX, VERSION, WAKE_ALL, area, flags,
};

const DOCUMENT: &str = include_str!("../../../docs/async-page-fault.md");

/// The cells of each row of a table that starts with `first`.
fn rows(first: &str) -> impl Iterator<Item = Vec<&'static str>> {
    DOCUMENT
        .lines()
        .filter(move |line| line.starts_with(first))
        .map(|line| line.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect())
}

#[test]
fn the_area_has_the_documented_layout() {
    let fields = [
        (area::NOT_PRESENT, "u32", "`NOT_PRESENT`"),
        (area::LEVEL, "u32", "`LEVEL`"),
        (area::PC, "u64", "`PC`"),
        (area::SEQUENCE, "u64", "`SEQUENCE`"),
        (area::READY, "u32", "`READY`"),
    ];
    let mut rows = rows("| 0x");
    let mut end = 0;
    for (offset, size, name) in fields {
        assert_eq!(rows.next().unwrap()[..3], [&*format!("{offset:#04x}"), size, name]);
        assert_eq!(offset, end);
        end += if size == "u32" { 4 } else { 8 };
    }
    assert_eq!(rows.next().unwrap()[..2], [&*format!("{:#04x}", area::RESERVED), "`RESERVED`"]);
    assert_eq!((area::RESERVED, area::ANNOUNCEMENT_SIZE), (end, area::READY));
    assert!(DOCUMENT.contains(&format!("{} bytes of guest RAM", area::SIZE)));
    assert!(DOCUMENT.contains(&format!("{WAKE_ALL:#x} (`WAKE_ALL`)")));
}

#[test]
fn the_calls_have_the_documented_numbers() {
    for (name, function) in [("QUERY", QUERY), ("ENABLE", ENABLE), ("DISABLE", DISABLE), ("ACKNOWLEDGE", ACKNOWLEDGE)] {
        let row = rows(&format!("| `{name}`")).next().unwrap();
        assert_eq!(row[1], format!("{function:#x}"), "{name}");
    }
    assert!(DOCUMENT.contains(&format!("now {VERSION:#x} ")));
    assert!(DOCUMENT.contains(&format!("`ENABLE` accepts; now {} ", flags::ALL)));
    assert!(DOCUMENT.contains(&format!("outstanding: {TOKENS_MAX} ")));
    assert!(DOCUMENT.contains(&format!("compatible = {COMPATIBLE:?}")));
    assert!(DOCUMENT.contains(&format!("interrupts = <1 {} 1>", INTID - 16)), "a PPI, edge-triggered");
    assert!(DOCUMENT.contains(&format!("INTID {INTID}.")));
}

#[test]
fn each_test_that_the_document_names_exists() {
    let mut sources = BTreeMap::new();
    for folder in ["tests/async_fault", "tests/async_fault/simulated", "src/async_fault"] {
        for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                let stem = if path.ends_with("simulated/mod.rs") {
                    "simulated"
                } else {
                    path.file_stem().unwrap().to_str().unwrap()
                };
                *sources.entry(stem.to_owned()).or_insert_with(String::new) += &fs::read_to_string(&path).unwrap();
            }
        }
    }
    let mut named = 0;
    for name in DOCUMENT.split('`').skip(1).step_by(2) {
        let Some((module, test)) = name.split_once("::") else { continue };
        let source = sources.get(module).unwrap_or_else(|| panic!("there is no module {module}"));
        assert!(
            source.contains(&format!("#[test]\nfn {test}(")) || source.contains(&format!("#[test]\n    fn {test}(")),
            "{name}"
        );
        named += 1;
    }
    assert!(named > 40, "{named} names");
}
