// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The output of QEMU: its version, the control channel, the guest's console; and the verdict on them.

use arbitrary::{Result, Unstructured};
use serde_json::Value;
use twofold_abi::{control, exit};
use twofold_launch::check::{CHECK_FAILED, CHECK_OK};
use twofold_launch::qemu::Version;
use twofold_launch::{Check, Console, Control, Outcome, Report, Verdict};

/// A parsed channel, written as lines, parses to the same value. JSON has every figure. A run counts as a success only
/// if every channel reports it.
pub fn console(data: &[u8]) {
    let _ = read(&mut Unstructured::new(data));
}

fn read(u: &mut Unstructured<'_>) -> Result<()> {
    const STATUSES: [Option<i32>; 6] = [
        Some(exit::POWER_OFF),
        Some(exit::RESET),
        Some(exit::PANIC),
        Some(exit::CANNOT_START),
        Some(exit::TEST_FAILED),
        None,
    ];
    let status = if u.arbitrary()? { *u.choose(&STATUSES)? } else { Some(u.arbitrary()?) };
    let checked = u.arbitrary()?;
    let text = String::from_utf8_lossy(u.bytes(u.len())?).into_owned();
    version(&text);
    // The text is split into one part for each channel.
    let (said, shown) = text.split_once('\0').unwrap_or((&text, &text));
    let control = Control::parse(said);
    assert_eq!(Control::parse(&lines(&control)), control);
    json(&control.report);
    let mut console = Console::default();
    shown.lines().for_each(|line| console.take(line));
    check(&console, shown);
    verdict(Outcome { status, console, control, stderr: text.clone() }, checked);
    Ok(())
}

fn version(text: &str) {
    if let Some(version) = Version::parse(text) {
        assert_eq!(Version::parse(&format!("QEMU emulator version {version}")), Some(version));
    }
}

/// Returns the channel's text for these values.
fn lines(said: &Control) -> String {
    let mut text = String::new();
    let mut line = |kind: &str, rest: String| text += &format!("{kind} {rest}\n");
    said.log.iter().for_each(|rest| line(control::LOG, rest.clone()));
    said.errors.iter().for_each(|rest| line(control::ERROR, rest.clone()));
    said.report.iter().for_each(|(key, value)| line(control::STAT, format!("{key} {value}")));
    said.tests.iter().for_each(|test| line(control::TEST, format!("{} expect={}", test.name, test.expect)));
    said.passed.iter().for_each(|name| line(control::PASS, name.clone()));
    said.failed.iter().for_each(|(name, why)| line(control::FAIL, format!("{name} {why}")));
    said.end.iter().for_each(|how| line(control::END, how.clone()));
    said.exit.iter().for_each(|status| line(control::EXIT, status.to_string()));
    said.repeated.iter().for_each(|line| text += &format!("{line}\n"));
    text
}

/// Checks that each figure is at its key's path, and nothing else is there. If other keys continue a key, its figure is
/// at `self`.
fn json(report: &Report) {
    let json = Value::Object(report.to_json());
    for (key, value) in report.iter() {
        let found = key.split('.').fold(&json, |below, part| &below[part]);
        let found = if found.is_object() { &found["self"] } else { found };
        assert_eq!(found, &Value::from(value), "{key} in {json}");
    }
    assert_eq!(figures(&json), report.iter().count());
}

fn figures(json: &Value) -> usize {
    json.as_object().map_or(1, |below| below.values().map(figures).sum())
}

fn check(console: &Console, shown: &str) {
    let failed = shown.lines().any(|line| line.trim().starts_with(CHECK_FAILED));
    let ok = shown.lines().any(|line| line.trim() == CHECK_OK);
    match console.check() {
        Check::Failed(line) => assert!(failed && line.starts_with(CHECK_FAILED)),
        Check::Ok => assert!(ok && !failed),
        Check::Missing => assert!(!ok && !failed),
    }
    let all: Vec<_> = shown.lines().collect();
    let tail = console.tail(20);
    assert_eq!(tail, all[all.len().saturating_sub(20)..]);
}

fn verdict(outcome: Outcome, checked: bool) {
    let verdict = Verdict::new(&outcome, checked);
    let passed = !checked || outcome.console.check() == Check::Ok;
    let once = outcome.control.repeated.is_empty();
    let ended = outcome.control.end.is_some() && outcome.control.exit.is_some();
    let good = outcome.status == Some(exit::POWER_OFF) && ended && once && passed;
    assert_eq!(verdict.is_ok(), good, "{outcome:?}");
    assert!(!verdict.to_string().is_empty() && !verdict.name().is_empty());
}
