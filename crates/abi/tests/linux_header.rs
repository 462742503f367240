// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The C header of the Linux module has the numbers of `twofold_abi::async_fault`: each of them, and no other.
//!
//! The header's own assertions hold its structure against its numbers, whenever the module is built.

use std::collections::BTreeMap;

use twofold_abi::async_fault as abi;

const HEADER: &str = include_str!("../../../guests/linux-apf/protocol.h");
const SOURCE: &str = include_str!("../src/async_fault.rs");
const PREFIX: &str = "#define TWOFOLD_APF_";
/// What the header has beside the numbers: its guard, and a macro with arguments.
const OTHERS: [&str; 2] = ["PROTOCOL_H", "FIELD_IS_AT(field,"];

/// The numbers by their names in C.
fn numbers() -> BTreeMap<&'static str, i64> {
    let number = |number: u64| i64::try_from(number).expect("a number of the protocol has less than 64 bits");
    BTreeMap::from([
        ("VERSION", abi::VERSION.into()),
        ("INTID", abi::INTID.into()),
        ("QUERY", abi::QUERY.into()),
        ("ENABLE", abi::ENABLE.into()),
        ("DISABLE", abi::DISABLE.into()),
        ("ACKNOWLEDGE", abi::ACKNOWLEDGE.into()),
        ("QUERY_VERSION", number(abi::query::VERSION)),
        ("QUERY_FLAGS", number(abi::query::FLAGS)),
        ("QUERY_INTID", number(abi::query::INTID)),
        ("QUERY_TOKENS_MAX", number(abi::query::TOKENS_MAX)),
        ("FLAGS_KERNEL", number(abi::flags::KERNEL)),
        ("FLAGS_ALL", number(abi::flags::ALL)),
        ("SUCCESS", abi::SUCCESS),
        ("NOT_SUPPORTED", abi::NOT_SUPPORTED),
        ("INVALID_PARAMETER", abi::INVALID_PARAMETER),
        ("NO_TOKEN", abi::NO_TOKEN.into()),
        ("WAKE_ALL", abi::WAKE_ALL.into()),
        ("TOKENS_MAX", number(abi::TOKENS_MAX as u64)),
        ("AREA_SIZE", number(abi::area::SIZE)),
        ("AREA_NOT_PRESENT", number(abi::area::NOT_PRESENT as u64)),
        ("AREA_LEVEL", number(abi::area::LEVEL as u64)),
        ("AREA_PC", number(abi::area::PC as u64)),
        ("AREA_SEQUENCE", number(abi::area::SEQUENCE as u64)),
        ("AREA_READY", number(abi::area::READY as u64)),
        ("AREA_RESERVED", number(abi::area::RESERVED as u64)),
        ("AREA_ANNOUNCEMENT_SIZE", number(abi::area::ANNOUNCEMENT_SIZE as u64)),
    ])
}

/// The header's definitions.
fn definitions() -> BTreeMap<&'static str, &'static str> {
    let lines = HEADER.lines().filter_map(|line| line.strip_prefix(PREFIX));
    let split = lines.map(|line| line.split_once(' ').unwrap_or((line, "")));
    split.filter(|(name, _)| !OTHERS.contains(name)).collect()
}

fn literal(text: &str) -> Option<i64> {
    match text.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[test]
fn each_number_of_the_header_is_that_of_the_protocol() {
    let (mut definitions, numbers) = (definitions(), numbers());
    assert_eq!(definitions.remove("COMPATIBLE"), Some(&*format!("\"{}\"", abi::COMPATIBLE)));
    let found: BTreeMap<_, _> = definitions.iter().map(|(name, text)| (*name, literal(text))).collect();
    let wanted: BTreeMap<_, _> = numbers.into_iter().map(|(name, number)| (name, Some(number))).collect();
    assert_eq!(found, wanted);
}

/// A number that is added to the protocol has to come into the table above, and so into the header.
#[test]
fn no_number_of_the_protocol_is_missing_here() {
    let constants = SOURCE.lines().filter(|line| line.trim_start().starts_with("pub const "));
    let texts = 1;
    assert_eq!(constants.count(), numbers().len() + texts);
}
