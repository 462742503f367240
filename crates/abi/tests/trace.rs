// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lines of a trace: reading is the inverse of writing, `docs/trace.md` matches the code, malformed lines are
//! refused.

use core::panic::Location;

use proptest::prelude::*;
use proptest::sample::{Index, select};
use twofold_abi::trace::*;

const DOCUMENT: &str = include_str!("../../../docs/trace.md");

/// The lines of the example in the documentation.
fn example() -> impl Iterator<Item = &'static str> {
    let example = DOCUMENT.split("```trace\n").nth(1).expect("an example");
    example.split("```").next().expect("its end").lines()
}

fn any_event() -> impl Strategy<Value = Event<'static>> {
    let names = select(&["vmid_bits", "a", "x-9.y"][..]);
    let value = any::<u64>;
    let write = (value(), value(), value(), select(How::ALL), select(Order::ALL));
    prop_oneof![
        (names.clone(), value()).prop_map(|(name, value)| Event::Feature { name, value }),
        (value(), any::<u32>(), value(), value()).prop_map(|(pa, entries, vttbr, vtcr)| Event::RootMade {
            pa,
            entries,
            vttbr,
            vtcr
        }),
        value().prop_map(|pa| Event::RootFreed { pa }),
        value().prop_map(|pa| Event::TableTaken { pa }),
        value().prop_map(|pa| Event::TableFreed { pa }),
        value().prop_map(|pa| Event::LockTaken { pa }),
        value().prop_map(|pa| Event::LockReleased { pa }),
        write.prop_map(|(pa, old, new, how, order)| Event::Write { pa, old, new, how, order }),
        (value(), value(), value()).prop_map(|(pa, old, new)| Event::Hardware { pa, old, new }),
        (value(), value()).prop_map(|(pa, size)| Event::DataWritten { pa, size }),
        (select(Tlbi::ALL), value(), value()).prop_map(|(operation, operand, vttbr)| Event::Tlbi {
            operation,
            operand,
            vttbr
        }),
        select(Domain::ALL).prop_map(|domain| Event::Dsb { domain }),
        Just(Event::Isb),
        select(Order::ALL).prop_map(|order| Event::Fence { order }),
        (select(Dc::ALL), value(), value()).prop_map(|(operation, pa, size)| Event::Dc { operation, pa, size }),
        (select(Ic::ALL), value(), value()).prop_map(|(operation, pa, size)| Event::Ic { operation, pa, size }),
        value().prop_map(|vttbr| Event::Vttbr { vttbr }),
        (any::<u32>(), value()).prop_map(|(vcpu, vttbr)| Event::GuestEntered { vcpu, vttbr }),
        any::<u32>().prop_map(|vcpu| Event::GuestLeft { vcpu }),
        any::<u32>().prop_map(|events| Event::Lost { events }),
        names.prop_map(|kind| Event::Other { kind, fields: Some("0x1 2 three") }),
        Just(Event::Other { kind: "new", fields: None }),
    ]
}

fn any_line() -> impl Strategy<Value = Line<'static>> {
    let file = select(&["crates/stage2/src/map.rs", "C:\\a@b.rs", "ä"][..]);
    let site = (file, any::<u32>(), any::<u32>()).prop_map(|(file, line, column)| Site { file, line, column });
    (any::<u64>(), any::<u32>(), any_event(), proptest::option::of(site)).prop_map(|(seq, cpu, event, site)| Line {
        seq,
        cpu,
        event,
        site,
    })
}

proptest! {
    #[test]
    fn reading_is_the_inverse_of_writing(line in any_line()) {
        let text = line.to_string();
        prop_assert_eq!(Line::parse(&text), Ok(line), "{}", text);
    }

    /// A line that is cut off anywhere before the end of its site's mark is refused.
    #[test]
    fn a_line_that_is_cut_off_is_refused(line in any_line(), at in any::<Index>()) {
        let text = line.to_string();
        let mark = text.find(" @").unwrap() + 2;
        let cut = &text[..at.index(mark)];
        prop_assert!(Line::parse(cut).is_err(), "{} is {:?}", cut, Line::parse(cut));
    }

    #[test]
    fn garbage_never_panics(text in ".*", bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        let _ = (Line::parse(&text), Header::parse(&text));
        let text = String::from_utf8_lossy(&bytes);
        let _ = (Line::parse(&text), Header::parse(&text));
    }

    /// A reader skips the fields that a later version adds after the known ones.
    #[test]
    fn further_fields_are_passed_over(line in any_line()) {
        prop_assume!(!matches!(line.event, Event::Other { .. }));
        let longer = line.to_string().replacen(" @", " 0x5 later @", 1);
        prop_assert_eq!(Line::parse(&longer), Ok(line));
    }
}

/// Spelled out, so that the format cannot change together with its reader.
#[test]
fn lines_spelled_out() {
    let (how, order) = (How::Store, Order::Release);
    let site = Some(Site { file: "crates/stage2/src/map.rs", line: 81, column: 24 });
    for (event, text) in [
        (
            Event::Write { pa: 0x4100_2000, old: 0, new: 0x0008_0000_8000_07fd, how, order },
            "write 0x41002000 0x0 0x80000800007fd store release",
        ),
        (
            Event::Tlbi { operation: Tlbi::Ripas2Le1Is, operand: 1 << 46, vttbr: 3 << 48 },
            "tlbi ripas2le1is 0x400000000000 0x3000000000000",
        ),
        (
            Event::RootMade { pa: 0x1000, entries: 16, vttbr: 0x1000, vtcr: 0x8000_0000 },
            "root.made 0x1000 16 0x1000 0x80000000",
        ),
        (Event::Isb, "isb"),
        (Event::Lost { events: 12 }, "lost 12"),
    ] {
        let line = Line { seq: 7, cpu: 2, event, site };
        assert_eq!(line.to_string(), format!("7 2 {text} @crates/stage2/src/map.rs:81:24"));
    }
    let line = Line { seq: 1, cpu: 0, event: Event::Hardware { pa: 8, old: 1, new: 0x401 }, site: None };
    assert_eq!(line.to_string(), "1 0 hardware 0x8 0x1 0x401 @-");
    assert_eq!(Header { source: Source::Machine }.to_string(), "twofold-trace 1 machine");
}

#[test]
fn what_is_wrong_is_said() {
    use TraceError::{Malformed, Missing};
    let refused = |text: &str| Line::parse(text).expect_err(text);
    let malformed = |text: &str| match refused(text) {
        Malformed { field, .. } => field,
        other => panic!("{text}: {other}"),
    };
    assert_eq!(refused("1 0 write 0x8 0x0"), Missing { field: "new" });
    assert_eq!(refused("1 0 write 0x8 0x0 @a:1:1"), Missing { field: "new" });
    assert_eq!(refused("1 0 isb"), Missing { field: "site" });
    assert_eq!(refused("1"), Missing { field: "cpu" });
    assert_eq!(malformed(""), "seq");
    assert_eq!(malformed("+1 0 isb @-"), "seq");
    assert_eq!(malformed("18446744073709551616 0 isb @-"), "seq");
    assert_eq!(malformed("1 4294967296 isb @-"), "cpu");
    assert_eq!(malformed("1 0 ISB @-"), "kind");
    assert_eq!(malformed("1 0  isb @-"), "kind");
    for number in ["8", "0x", "0X8", "0xA", "0x+8", "0x10000000000000000", ""] {
        assert_eq!(malformed(&format!("1 0 lock.taken {number} @-")), "pa", "{number}");
    }
    assert_eq!(malformed("1 0 dsb osh @-"), "domain");
    assert_eq!(malformed("1 0 tlbi vae1 0x0 0x0 @-"), "operation");
    for site in ["@", "@a", "@a:1", "@:1:1", "@a:b:1", "@a b:1:1", "@a:1:1 2"] {
        assert_eq!(malformed(&format!("1 0 isb {site}")), "site", "{site}");
    }
    let said = refused("1 0 dsb osh @-").to_string();
    assert_eq!(said, "the field `domain` is not one of the words ishst ish nshst nsh");
}

#[test]
fn a_header_says_what_follows() {
    let header = |source| Ok(Header { source });
    assert_eq!(Header::parse("twofold-trace 1 hypervisor"), header(Source::Hypervisor));
    assert_eq!(Header::parse("twofold-trace 1 machine later"), header(Source::Machine));
    assert_eq!(Header::parse("twofold-trace 2 machine"), Err(TraceError::Version { found: 2 }));
    assert_eq!(Header::parse("twofold-trace"), Err(TraceError::Missing { field: "version" }));
    assert_eq!(Header::parse("twofold-trace 1"), Err(TraceError::Missing { field: "source" }));
    assert!(matches!(Header::parse("twofold-trace 1 moon"), Err(TraceError::Malformed { field: "source", .. })));
    for other in ["", "1 0 isb @-", "twofold-tracer 1 machine", "twofold:log hello"] {
        assert_eq!(Header::parse(other), Err(TraceError::NotATrace), "{other}");
    }
}

#[test]
fn a_site_is_where_it_was_called() {
    let here = Location::caller();
    let line = Line { seq: 0, cpu: 0, event: Event::Isb, site: Some(here.into()) };
    let place = format!("{}:{}:{}", here.file(), here.line(), here.column());
    assert!(place.contains("trace.rs:"));
    assert_eq!(line.to_string(), format!("0 0 isb @{place}"));
    let odd = Site { file: "my code/a\tb.rs", line: 1, column: 2 };
    assert_eq!(odd.to_string(), "my?code/a?b.rs:1:2");
}

#[test]
fn orders_have_their_names() {
    use core::sync::atomic::Ordering;
    let orders = [Ordering::Relaxed, Ordering::Acquire, Ordering::Release, Ordering::AcqRel, Ordering::SeqCst];
    let words = orders.map(|order| Order::from(order).word());
    assert_eq!(words, ["relaxed", "acquire", "release", "acqrel", "seqcst"]);
}

#[test]
fn the_example_is_a_trace() {
    let mut lines = example();
    let header = Header::parse(lines.next().expect("a header")).expect("a header");
    assert_eq!(header.source, Source::Machine);
    let mut last = 0;
    for text in lines.filter(|text| !is_comment(text)) {
        let line = Line::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(line.to_string(), text);
        assert!(line.seq > last, "{text}");
        assert!(!matches!(line.event, Event::Other { .. }), "{text}");
        last = line.seq;
    }
    assert!(last > 0);
}

/// The table has one row for each kind, with its fields in order and all words that they may hold, and no other row.
#[test]
fn the_table_of_kinds_is_complete() {
    let table = DOCUMENT.split("\n## Kinds\n").nth(1).and_then(|rest| rest.split("\n## ").next()).expect("the table");
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.split('|').map(str::trim).skip(1).collect())
        .collect();
    let documented: Vec<(&str, Vec<&str>)> =
        rows.iter().map(|row| (row[0].trim_matches('`'), row[1].split_whitespace().collect())).collect();
    let kinds: Vec<(&str, Vec<&str>)> = KINDS.iter().map(|(kind, fields)| (*kind, fields.to_vec())).collect();
    assert_eq!(documented, kinds);
    let has_words = |kind, words: &mut dyn Iterator<Item = &'static str>| {
        let row = rows.iter().find(|row| row[0].trim_matches('`') == kind).expect("a row");
        for word in words {
            assert!(row[2].contains(&format!("`{word}`")), "{kind}: {word}");
        }
    };
    has_words("write", &mut How::ALL.iter().map(|how| how.word()));
    has_words("write", &mut Order::ALL.iter().map(|order| order.word()));
    has_words("tlbi", &mut Tlbi::ALL.iter().map(|operation| operation.word()));
    has_words("dsb", &mut Domain::ALL.iter().map(|domain| domain.word()));
    has_words("dc", &mut Dc::ALL.iter().map(|operation| operation.word()));
    has_words("ic", &mut Ic::ALL.iter().map(|operation| operation.word()));
}
