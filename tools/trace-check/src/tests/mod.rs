// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Traces written by hand: correct ones, and ones with a single mistake.

mod corruptions;
mod places;

use twofold_abi::trace::is_comment;

use crate::report::{Report, check};

const DOCUMENT: &str = include_str!("../../../../docs/trace.md");

/// Returns the lines of the documentation's example, a break-before-make. The 510 entries of the new table that the
/// example leaves out are added.
fn example() -> Vec<String> {
    let example = DOCUMENT.split("```trace\n").nth(1).expect("an example");
    let mut lines: Vec<_> = example.split("```").next().expect("its end").lines().map(str::to_owned).collect();
    let first = lines.iter().position(|line| line.starts_with("23 ")).expect("the first entry");
    let rest = (1..511).map(|index: u64| {
        let (seq, pa, entry) = (23 + index, 0x4100_3000 + index * 8, 0x8000_07ff + index * 0x1000);
        format!("{seq} 0 write {pa:#x} 0x0 {entry:#x} store relaxed @crates/stage2/src/split.rs:263:19")
    });
    lines.splice(first + 1..first + 1, rest);
    lines
}

/// Checks the example with `instead` in place of the line with this number, or without that line.
fn example_with(seq: u64, instead: Option<&str>) -> Report {
    let prefix = format!("{seq} ");
    let text: Vec<String> = example()
        .into_iter()
        .filter_map(|line| match instead {
            _ if !line.starts_with(&prefix) => Some(line),
            instead => instead.map(|event| format!("{seq} {event} @t.rs:1:1")),
        })
        .collect();
    assert_ne!(text, example(), "{seq}");
    check(&text.join("\n")).unwrap()
}

/// Checks a trace of these events, given without their numbers; returns the text of each breach.
fn breaches(events: &[&str]) -> Vec<String> {
    let lines = events.iter().zip(1..).map(|(event, seq)| format!("{seq} {event} @t.rs:1:1\n"));
    check(&format!("twofold-trace 1 machine\n{}", lines.collect::<String>())).unwrap().breaches
}

/// A tree of VMID 3: the root, of level 1, at 0x10000; a table of level 2 at 0x20000; a table of level 3 at 0x30000,
/// with a page at IPA 0x1000. CPU 0 holds no lock.
const TREE: &[&str] = &[
    "0 root.made 0x10000 512 0x3000000010000 0x80023559",
    "0 dc zva 0x10000 0x1000",
    "0 table.taken 0x20000",
    "0 dc zva 0x20000 0x1000",
    "0 table.taken 0x30000",
    "0 dc zva 0x30000 0x1000",
    "0 write 0x30008 0x0 0x800008000147f store relaxed",
    "0 write 0x20000 0x0 0x30003 store relaxed",
    "0 lock.taken 0x10000",
    "0 write 0x10000 0x0 0x20003 store release",
    "0 lock.released 0x10000",
];

/// A table page that is ready for linking.
const NEW_TABLE: &[&str] = &["0 table.taken 0x40000", "0 dc zva 0x40000 0x1000"];

const FLUSH_VMID: &[&str] = &["0 dsb ishst", "0 tlbi vmalls12e1is 0x0 0x3000000010000", "0 dsb ish"];

fn locked<'a>(lock: &'a [&'a str; 2], body: &[&'a str]) -> Vec<&'a str> {
    [&lock[..1], body, &lock[1..]].concat()
}

const ROOT: [&str; 2] = ["0 lock.taken 0x10000", "0 lock.released 0x10000"];
const LEVEL_2: [&str; 2] = ["0 lock.taken 0x20000", "0 lock.released 0x20000"];
const LEVEL_3: [&str; 2] = ["0 lock.taken 0x30000", "0 lock.released 0x30000"];

#[track_caller]
fn is_right(parts: &[&[&str]]) {
    assert_eq!(breaches(&parts.concat()), [""; 0]);
}

#[track_caller]
fn is_wrong(parts: &[&[&str]], what: &str) {
    let found = breaches(&parts.concat());
    assert!(found.len() == 1 && found[0].contains(what), "{found:#?}");
}

#[test]
fn the_example_is_right() {
    let report = check(&example().join("\n")).unwrap();
    assert_eq!(report.breaches, [""; 0]);
    assert_eq!(report.events, example().iter().filter(|line| !is_comment(line)).count() - 1);
}

#[test]
fn without_one_line_the_example_is_wrong() {
    let not_flushed = "is made where something was broken";
    for (seq, what) in [
        (535, "does not hold the lock"),
        (536, "according to the trace"),
        (537, "holds that lock"),
        (538, not_flushed),
        (539, not_flushed),
        (540, not_flushed),
        (541, not_flushed),
        (542, not_flushed),
        (544, "does not hold the lock"),
    ] {
        let found = example_with(seq, None).breaches;
        assert!(found.iter().any(|breach| breach.contains(what)), "{seq}: {found:#?}");
    }
    // On the hypervisor, the trace does not show what hardware records.
    assert_eq!(example_with(21, None).breaches, [""; 0]);
}

#[test]
fn with_one_line_weakened_the_example_is_wrong() {
    for (seq, instead) in [
        (538, "0 dsb nshst"),
        (539, "0 tlbi ipas2e1 0x600000040000 0x3000041000000"),
        (539, "0 tlbi ipas2le1is 0x600000040200 0x3000041000000"),
        (539, "0 tlbi ipas2le1is 0x700000040000 0x3000041000000"),
        (539, "0 tlbi ipas2le1is 0x600040000000 0x3000041000000"),
        (539, "0 tlbi ipas2le1is 0x600000040000 0x2000041000000"),
        (539, "0 tlbi vmalle1is 0x0 0x3000041000000"),
        (539, "0 tlbi ripas2le1is 0x3000040000 0x3000041000000"),
        (540, "0 dsb ishst"),
        (540, "0 dsb nsh"),
        (540, "1 dsb ish"),
        (541, "0 tlbi vmalle1 0x0 0x3000041000000"),
        (542, "0 dsb ishst"),
    ] {
        let found = example_with(seq, Some(instead)).breaches;
        // A malformed operand, and a VMID that is not loaded, are each an earlier breach.
        let said = found.last().is_some_and(|last| last.contains("is made where something was broken"));
        assert!(
            said && found.len() <= 2 && found.last().unwrap().contains("since line "),
            "{seq} {instead}: {found:#?}"
        );
    }
    for (seq, instead) in [
        (539, "0 tlbi ipas2e1is 0x40123 0x3000041000000"),
        (539, "0 tlbi ripas2le1is 0x404000040000 0x3000041000000"),
        (539, "0 tlbi vmalls12e1is 0x0 0x3000041000000"),
        (538, "0 dsb ish"),
        (543, "0 brandnew 0x1 two"),
    ] {
        assert_eq!(example_with(seq, Some(instead)).breaches, [""; 0], "{seq} {instead}");
    }
}

#[test]
fn a_breach_names_its_lines() {
    let found = example_with(542, Some("0 dsb ishst")).breaches;
    let lines: Vec<&str> = found[0].lines().collect();
    let number = |start: &str| example().iter().position(|line| line.starts_with(start)).unwrap() + 1;
    assert!(lines[0].starts_with(&format!("line {}: 545 0 write 0x41002000", number("545 "))), "{}", found[0]);
    assert!(lines[1].ends_with("no VMALLE1IS and DSB ISH after its TLBI was complete"), "{}", found[0]);
    assert!(lines[2].starts_with("    R2 MakeBeforeFlush (Arm ARM D8.16.1): expected DSB ISHST"), "{}", found[0]);
    assert!(lines[3].starts_with(&format!("    since line {}: 536 0 write", number("536 "))), "{}", found[0]);
}

#[test]
fn lines_are_read_in_the_order_of_their_numbers() {
    let mut lines = example();
    lines[1..].reverse();
    let text: Vec<_> = lines.into_iter().filter(|line| !line.is_empty()).collect();
    assert_eq!(check(&text.join("\n")).unwrap().breaches, [""; 0]);
}

#[test]
fn a_valid_entry_changes_its_permissions_only() {
    let change = |new: &str| {
        let write = format!("0 write 0x30008 0x800008000147f {new} rmw acqrel");
        breaches(&[TREE, &locked(&LEVEL_3, &[&write])].concat())
    };
    // S2AP, DBM, AF, XN, bits for software.
    for new in ["0x800008000143f", "0x8000147f", "0x800008000107f", "0x7e80000800014ff"] {
        assert_eq!(change(new), [""; 0], "{new}");
    }
    // Address, memory type, shareability, size (contiguous), type.
    for new in ["0x800008000247f", "0x8000080001443", "0x800008000177f", "0x1800008000147f"] {
        let found = change(new);
        assert!(found.len() == 1 && found[0].contains("without a break"), "{new}: {found:#?}");
    }
    let [old, new] = ["0x30003", "0x40003"];
    let write = format!("0 write 0x20000 {old} {new} rmw acqrel");
    let both = locked(&LEVEL_2, &locked(&LEVEL_3, &[&write]));
    is_wrong(&[TREE, NEW_TABLE, &both], "without a break");
}

/// The engine makes a block executable this way: no other CPU can reach the block while its frame is prepared.
#[test]
fn a_leaf_may_be_put_back_with_other_permissions() {
    const BREAK: &str = "0 write 0x30008 0x800008000147f 0x2 rmw acqrel";
    let back = |make| locked(&LEVEL_3, &[BREAK, make]);
    let executable = back("0 write 0x30008 0x2 0x80000800014ff store release");
    // No flush is due.
    is_right(&[TREE, &executable, &["0 root.freed 0x10000"]]);
    let not_flushed = "is made where something was broken";
    is_wrong(&[TREE, &back("0 write 0x30008 0x2 0x800008000247f store release")], not_flushed);
    is_wrong(&[TREE, &back("0 write 0x30008 0x2 0x800008000144f store release")], not_flushed);
}

#[test]
fn locks_are_taken_and_released_by_one_cpu() {
    is_right(&[TREE, &locked(&LEVEL_2, &locked(&LEVEL_3, &[]))]);
    is_wrong(&[TREE, &["0 lock.taken 0x20000", "1 lock.taken 0x20000"]], "CPU 0 holds that lock");
    is_wrong(&[TREE, &["0 lock.taken 0x20000", "1 lock.released 0x20000"]], "CPU 0 holds that lock");
    is_wrong(&[TREE, &["0 lock.released 0x20000"]], "no CPU holds that lock");
    let unmap = "0 write 0x30008 0x800008000147f 0x4 rmw acqrel";
    is_wrong(&[TREE, &[unmap]], "CPU 0 does not hold the lock of the table 0x30000");
    is_wrong(&[TREE, &locked(&LEVEL_2, &[unmap])], "CPU 0 does not hold the lock of the table 0x30000");
    let other = ["1 lock.taken 0x30000", "1 lock.released 0x30000"];
    is_wrong(&[TREE, &locked(&other, &[unmap])], "CPU 0 does not hold the lock of the table 0x30000");
}

/// Concatenated root tables share the lock of the first one.
#[test]
fn a_root_has_one_lock() {
    let root = ["0 root.made 0x10000 1024 0x3000000010000 0x80023558", "0 dc zva 0x10000 0x2000"];
    let block = ["0 write 0x11000 0x0 0x800004000047d store release"];
    is_right(&[&root, &ROOT, &locked(&ROOT, &block)]);
    is_wrong(&[&root, &ROOT, &block], "does not hold the lock of the table 0x10000");
    is_wrong(&[&root, &locked(&["0 lock.taken 0x11000", "0 lock.released 0x11000"], &ROOT), &block], "0x10000");
}

const UNLINK: [&str; 3] = ["0 lock.taken 0x30000", "0 write 0x20000 0x30003 0x4 rmw acqrel", "0 lock.released 0x30000"];

#[test]
fn a_table_is_freed_after_its_flush() {
    let (unlink, free) = (locked(&LEVEL_2, &UNLINK), ["0 table.freed 0x30000"]);
    is_right(&[TREE, &unlink, FLUSH_VMID, &free]);
    is_wrong(&[TREE, &free], "still in the tree");
    is_wrong(&[TREE, &locked(&LEVEL_2, &UNLINK[1..2])], "does not hold the lock of the table 0x30000");
    is_wrong(&[TREE, &unlink, &free, FLUSH_VMID], "walks may still reach the table");
    is_wrong(&[TREE, FLUSH_VMID, &unlink, &free], "walks may still reach the table");
    is_wrong(&[TREE, &unlink, &FLUSH_VMID[..2], &free], "walks may still reach the table");
    // By address: any address of the table names the table; the page needs its own address.
    let by_ipa = |tlbi| {
        let vmid = ["0 dsb ish", "0 tlbi vmalle1is 0x0 0x3000000010000", "0 dsb ish"];
        breaches(&[TREE, &unlink, &["0 dsb ishst", tlbi], &vmid, &free].concat())
    };
    assert_eq!(by_ipa("0 tlbi ipas2e1is 0x1 0x3000000010000"), [""; 0]);
    assert_eq!(by_ipa("0 tlbi ripas2e1is 0x478000000000 0x3000000010000"), [""; 0], "32 pages");
    for (tlbi, what) in [
        ("0 tlbi ipas2le1is 0x1 0x3000000010000", "the table of level 2 at IPA 0x0"),
        ("0 tlbi ipas2e1is 0x2 0x3000000010000", "the leaf of level 3 at IPA 0x1000"),
        ("0 tlbi ipas2e1is 0x700000000001 0x3000000010000", "the table of level 2 at IPA 0x0"),
    ] {
        let found = by_ipa(tlbi);
        assert!(found.len() == 1 && found[0].contains(what), "{tlbi}: {found:#?}");
    }
}

/// The tables below an unlinked table are unlinked with it.
#[test]
fn tables_below_are_unlinked_too() {
    let unlink = locked(&ROOT, &locked(&LEVEL_2, &["0 write 0x10000 0x20003 0x4 rmw acqrel"]));
    let free = ["0 table.freed 0x30000", "0 table.freed 0x20000"];
    is_right(&[TREE, &unlink, FLUSH_VMID, &free]);
    is_wrong(&[TREE, &unlink, &free[..1], FLUSH_VMID], "walks may still reach the table");
    // A CPU that is still inside the table makes a leaf there, which needs a flush too.
    let late = locked(&LEVEL_3, &["0 write 0x30010 0x0 0x80002473 store release"]);
    is_right(&[TREE, &unlink, &late, FLUSH_VMID, &free]);
    is_wrong(&[TREE, &unlink, FLUSH_VMID, &late, &free[..1]], "the leaf of level 3 at IPA 0x2000");
}

/// An unmapped address is flushed before it is mapped again, whichever CPUs and tables are involved.
#[test]
fn a_flush_may_be_another_cpus() {
    let unmap = locked(&LEVEL_3, &["0 write 0x30008 0x800008000147f 0x4 rmw acqrel"]);
    let map = locked(&LEVEL_3, &["0 write 0x30008 0x4 0x80002473 store release"]);
    let other = ["1 dsb ishst", "1 tlbi vmalls12e1is 0x0 0x3000000010000", "1 dsb ish"];
    is_right(&[TREE, &unmap, &other, &map]);
    is_wrong(&[TREE, &unmap, &map, FLUSH_VMID], "the leaf of level 3 at IPA 0x1000");
    // The empty table is unlinked and flushed by one address, which does not flush the page.
    let flush = [
        "0 dsb ishst",
        "0 tlbi ipas2e1is 0x5 0x3000000010000",
        "0 dsb ish",
        "0 tlbi vmalle1is 0x0 0x3000000010000",
        "0 dsb ish",
        "0 table.freed 0x30000",
    ];
    let block = locked(&LEVEL_2, &["0 write 0x20000 0x4 0x80000471 store release"]);
    let unlink = locked(&LEVEL_2, &UNLINK);
    is_wrong(&[TREE, &unmap, &unlink, &flush, &block], "the leaf of level 3 at IPA 0x1000");
    is_right(&[TREE, &unmap, &unlink, &flush, FLUSH_VMID, &block]);
}

#[test]
fn pages_have_one_use() {
    is_wrong(&[TREE, &["0 table.taken 0x30000"]], "a table in use");
    is_wrong(&[&["0 table.taken 0x30000", "0 table.taken 0x30000"]], "taken already");
    is_right(&[&["0 table.taken 0x30000", "0 table.freed 0x30000", "0 table.taken 0x30000"]]);
    is_wrong(&[&["0 table.taken 0x30000", "0 table.freed 0x30000", "0 table.freed 0x30000"]], "freed already");
    let link = locked(&LEVEL_2, &["0 write 0x20008 0x0 0x40003 store release"]);
    is_right(&[TREE, NEW_TABLE, &link]);
    is_wrong(&[TREE, NEW_TABLE, &["0 table.freed 0x40000"], &link], "a free page");
    is_wrong(&[TREE, &link], "no page was taken");
    let twice = locked(&LEVEL_2, &["0 write 0x20008 0x0 0x30003 store release"]);
    is_wrong(&[TREE, &twice], "in use elsewhere");
    is_wrong(&[TREE, &["0 dc zva 0x20000 0x1000"]], "zeroed");
    is_right(&[TREE, &["0 dc zva 0x21000 0x1000", "0 root.freed 0x10000"]]);
    is_wrong(&[TREE, &locked(&LEVEL_2, &UNLINK), &["0 root.freed 0x10000"]], "the root is freed");
}

#[test]
fn hardware_records_and_does_no_more() {
    // AF and S2AP[1] are clear, DBM is set.
    let tree = [TREE, &locked(&LEVEL_3, &["0 write 0x30010 0x0 0x8000080002073 store release"])].concat();
    let hardware = |pa: &str, old: &str, new: &str| {
        let hardware = format!("1 hardware {pa} {old} {new}");
        breaches(&[&tree[..], &[&hardware]].concat())
    };
    for new in ["0x8000080002473", "0x80000800020f3", "0x80000800024f3"] {
        assert_eq!(hardware("0x30010", "0x8000080002073", new), [""; 0]);
    }
    for (pa, old, new, what) in [
        ("0x30010", "0x8000080002073", "0x8000080002033", "hardware may set only"),
        ("0x30010", "0x8000080002073", "0x8000080003473", "hardware may set only"),
        ("0x30010", "0x8000080002473", "0x80000800024f3", "according to the trace"),
        ("0x30018", "0x0", "0x400", "hardware may set only"),
    ] {
        let found = hardware(pa, old, new);
        assert!(found.len() == 1 && found[0].contains(what), "{new}: {found:#?}");
    }
    let unlink = [&locked(&LEVEL_2, &UNLINK)[..], FLUSH_VMID, &["0 table.freed 0x30000"]].concat();
    let late = ["1 hardware 0x30010 0x8000080002073 0x8000080002473"];
    is_right(&[&tree, &unlink[..5], &late, &unlink[5..]]);
    let found = breaches(&[&tree[..], &unlink, &late].concat());
    assert!(found[0].contains("a walk reached a table that is freed"), "{found:#?}");
}

#[test]
fn after_a_loss_it_begins_anew() {
    let lines = |events: &[&str]| {
        let lines = events.iter().zip(1..).map(|(event, seq)| format!("{seq} {event} @t.rs:1:1\n"));
        check(&format!("twofold-trace 1 hypervisor\n{}", lines.collect::<String>())).unwrap()
    };
    let lost =
        ["0 lost 7", "0 lock.released 0x20000", "0 write 0x20000 0x5 0x0 store release", "0 table.freed 0x30000"];
    let report = lines(&[TREE, &lost].concat());
    assert_eq!((report.breaches.len(), report.lost.len()), (0, 1), "{report:#?}");
    let report = lines(&[TREE, &lost, TREE, &["0 table.freed 0x30000"]].concat());
    assert_eq!(report.breaches.len(), 1, "{report:#?}");
}

#[test]
fn what_is_no_trace_is_an_error() {
    let error = |text: &str| format!("{:#}", check(text).unwrap_err());
    assert!(error("").contains("empty"));
    assert!(error("hello").contains("not a trace"));
    assert!(error("twofold-trace 9 machine").contains("version 9"));
    let cut = format!("{}\n# a comment\n2 0 write 0x8 0x", "twofold-trace 1 machine\n1 0 isb @-");
    assert!(error(&cut).starts_with("line 4: the field `old` is not"), "{}", error(&cut));
    let twice = "twofold-trace 1 machine\n1 0 isb @-\n1 1 isb @-";
    assert!(error(twice).contains("line 3: line 2 also has the number 1"), "{}", error(twice));
    let root = |fields: &str| error(&format!("twofold-trace 1 machine\n1 0 root.made {fields} @-"));
    assert!(root("0x10000 512 0x0 0x8000").contains("granule"));
    assert!(root("0x10000 4294967295 0x0 0x0").contains("16 tables"));
}

/// VTCR_EL2.PS of `TREE` is 40 bits.
#[test]
fn leaves_are_aligned_and_inside() {
    let block = |level: &[&'static str; 2], at: &str, entry: &str| {
        let write = format!("0 write {at} 0x0 {entry} store release");
        breaches(&[TREE, &locked(level, &[&write])].concat())
    };
    assert_eq!(block(&LEVEL_2, "0x20008", "0x400000047d"), [""; 0]);
    // nT is not an address bit.
    assert_eq!(block(&LEVEL_2, "0x20008", "0x400001047d"), [""; 0]);
    for (level, at, entry, what) in [
        (&LEVEL_2, "0x20008", "0x400000147d", "is not aligned"),
        (&ROOT, "0x10008", "0x400020047d", "is not aligned"),
        (&LEVEL_2, "0x20008", "0x1000000047d", "the 40 bits of a physical address"),
        (&LEVEL_3, "0x30018", "0x4000000479", "at level 3, bits 1:0 of 0b01 are reserved"),
    ] {
        let found = block(level, at, entry);
        assert!(found.len() == 1 && found[0].contains(what), "{entry}: {found:#?}");
    }
    let root = ["0 root.made 0x10000 512 0x3000000010000 0x80020090", "0 dc zva 0x10000 0x1000"];
    let write = locked(&ROOT, &["0 write 0x10008 0x0 0x8000000479 store release"]);
    is_wrong(&[&root, &write], "a block at level 0 is reserved");
}

#[test]
fn a_page_is_a_table_or_a_guests() {
    let table = ["0 table.taken 0x80001000"];
    let unmap = locked(&LEVEL_3, &["0 write 0x30008 0x800008000147f 0x4 rmw acqrel"]);
    is_right(&[TREE, &unmap, FLUSH_VMID, &table]);
    is_wrong(&[TREE, &table], "a leaf of level 3 maps it");
    is_wrong(&[TREE, &unmap, &table], "is not flushed");
    let map = locked(&LEVEL_3, &["0 write 0x30010 0x0 0x2047f store release"]);
    is_wrong(&[TREE, &map], "maps the table 0x20000");
    // The leaf is linked together with its table.
    let below = ["0 write 0x40008 0x0 0x1047f store relaxed"];
    let link = locked(&LEVEL_2, &["0 write 0x20008 0x0 0x40003 store release"]);
    is_wrong(&[TREE, NEW_TABLE, &below, &link], "maps the table 0x10000");
}

#[test]
fn operands_are_of_the_cpus() {
    let tlbi = |feature: &str, tlbi: &str| breaches(&[feature, tlbi]);
    let flush = "0 tlbi ipas2e1is 0x600000040000 0x3000000010000";
    let range = "0 tlbi ripas2e1is 0x478000000000 0x3000000010000";
    assert_eq!(tlbi("0 feature tlbi_level_hint 0x1", flush), [""; 0]);
    assert_eq!(tlbi("0 feature tlbi_range 0x1", range), [""; 0]);
    for (feature, instruction, what) in [
        ("0 feature tlbi_level_hint 0x0", flush, "0x600000000000 of the operand are reserved"),
        ("0 feature tlbi_range 0x0", range, "do not have FEAT_TLBIRANGE"),
        ("0 isb", "0 tlbi ipas2e1is 0x400000040000 0x3000000010000", "no level"),
        ("0 isb", "0 tlbi ripas2e1is 0x878000000000 0x3000000010000", "TG 0b10"),
        // A range with level hint 2 that starts at a page.
        ("0 isb", "0 tlbi ripas2e1is 0x47c000000001 0x3000000010000", "cannot begin at 0x1000"),
        ("0 isb", "0 tlbi vmalle1is 0x1 0x3000000010000", "takes no operand"),
    ] {
        let found = tlbi(feature, instruction);
        assert!(found.len() == 1 && found[0].contains(what), "{instruction}: {found:#?}");
    }
}

#[test]
fn a_cpu_runs_the_guest_that_it_has_loaded() {
    const ENTER: [&str; 2] = ["0 guest.entered 0 0x3000000010000", "0 guest.left 0"];
    let load = ["0 dsb ishst", "0 vttbr 0x3000000010000"];
    is_right(&[TREE, &load, &ENTER, &ENTER]);
    is_wrong(&[TREE, &load[..1], &["0 guest.entered 0 0x4000000010000"]], "no existing tree");
    is_wrong(&[TREE, &load, &["0 guest.entered 0 0x4000000010000"]], "the CPU has loaded 0x3000000010000");
    is_wrong(&[TREE, &load, &["0 tlbi vmalle1 0x0 0x3000000010000"]], "no ISB followed");
    is_right(&[TREE, &load, &["0 isb", "0 tlbi vmalle1 0x0 0x3000000010000"]]);
    is_wrong(&[TREE, &load, &["0 root.freed 0x10000"]], "CPU 0 has it loaded");
    // Another vCPU, on this CPU and on another CPU.
    let other = ["0 guest.entered 1 0x3000000010000"];
    let forget = ["0 isb", "0 tlbi vmalle1 0x0 0x3000000010000", "0 dsb nsh"];
    is_right(&[TREE, &load, &ENTER, &forget, &other]);
    is_right(&[TREE, &load, &ENTER, &["1 guest.entered 1 0x3000000010000"]]);
    is_wrong(&[TREE, &load, &ENTER, &other], "vCPU 0");
    is_wrong(&[TREE, &load, &ENTER, &forget[..2], &other], "vCPU 0");
    is_wrong(&[TREE, &load, &ENTER[..1], &["0 guest.left 1"]], "inside as vCPU 0");
}

/// A leaf that is restored with less access needs a flush, like a permission downgrade in place.
#[test]
fn less_access_is_flushed() {
    const NARROW: &str = "0 write 0x30008 0x800008000147f 0x800008000143f rmw acqrel";
    const RELY: [&str; 2] = ["0 isb", "0 flushed 0x1000 0x1000 0x3000000010000"];
    let in_place = locked(&LEVEL_3, &[NARROW]);
    let put_back = locked(
        &LEVEL_3,
        &["0 write 0x30008 0x800008000147f 0x2 rmw acqrel", "0 write 0x30008 0x2 0x800008000143f store release"],
    );
    for narrow in [in_place, put_back] {
        is_right(&[TREE, &narrow, FLUSH_VMID, &RELY]);
        is_wrong(&[TREE, &narrow, &RELY], "the leaf of level 3 at IPA 0x1000 is not flushed");
        is_wrong(&[TREE, &narrow, FLUSH_VMID, &RELY[1..]], "without an ISB");
        // Another CPU's change is that CPU's to flush.
        is_right(&[TREE, &narrow, &["1 flushed 0x1000 0x1000 0x3000000010000"]]);
    }
    let widen = locked(&LEVEL_3, &["0 write 0x30008 0x800008000147f 0x80000800014ff rmw acqrel"]);
    is_right(&[TREE, &widen, &RELY]);
}
