// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The verdict on a finished launch.
//!
//! Invariant: [`Verdict::Ok`] needs all of these: QEMU's exit status of 0, the hypervisor's own for a power-off in its last
//! line, one report, and for a check also the guest's success line. If one is missing, the verdict is another one, so silence
//! never passes for success.

use std::fmt;

use twofold_abi::exit;

use crate::check::{CHECK_OK, Check};
use crate::outcome::Outcome;

/// How a launch ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The guest powered off, or the test image's tests passed. A requested check passed.
    Ok,
    /// The guest's own check failed.
    CheckFailed(String),
    /// The guest powered off without a line about its check.
    CheckMissing,
    /// The guest asked for a reset.
    Reset,
    /// EL2 panicked; the report.
    Panic(String),
    /// The hypervisor reported twice; the first line that is repeated.
    Repeated(String),
    /// A figure cannot be a count; the figure.
    Miscounted(String),
    /// The guest could not be started; the reason.
    CannotStart(String),
    /// Tests failed; their names and the reasons.
    TestFailed(String),
    /// QEMU ended without the image's last line: the user closed it, or something else ended it.
    Left,
    /// QEMU itself failed; its exit status, if it has one, and its output.
    Qemu(Option<i32>, String),
}

impl Verdict {
    /// The verdict on `outcome`; `checked`: the guest was asked to check itself.
    pub fn new(outcome: &Outcome, checked: bool) -> Self {
        let control = &outcome.control;
        let failed_check = || match outcome.console.check() {
            Check::Failed(line) if checked => Some(Self::CheckFailed(line)),
            _ => None,
        };
        let impossible = control.report.impossible();
        match outcome.status {
            Some(exit::POWER_OFF | exit::RESET | exit::TEST_FAILED) if !control.repeated.is_empty() => {
                Self::Repeated(control.repeated[0].clone())
            }
            Some(exit::POWER_OFF) if control.end.is_none() || control.exit.is_none() => Self::Left,
            Some(exit::POWER_OFF) if impossible.is_some() => Self::Miscounted(impossible.unwrap_or_default()),
            Some(exit::POWER_OFF) if checked => match outcome.console.check() {
                Check::Ok => Self::Ok,
                Check::Missing => Self::CheckMissing,
                Check::Failed(line) => Self::CheckFailed(line),
            },
            Some(exit::POWER_OFF) => Self::Ok,
            Some(exit::RESET) => failed_check().unwrap_or(Self::Reset),
            Some(exit::PANIC) => Self::Panic(panic_report(outcome)),
            Some(exit::CANNOT_START) => Self::CannotStart(control.errors.join("; ")),
            Some(exit::TEST_FAILED) => {
                let tests: Vec<_> = control.failed.iter().map(|(name, why)| format!("{name}: {why}")).collect();
                Self::TestFailed(tests.join("; "))
            }
            status => Self::Qemu(status, outcome.stderr.trim().to_owned()),
        }
    }

    /// The verdict on a kernel that ran by itself ([`Loaded::Kernel`](crate::Loaded)). It has no control channel, and
    /// QEMU ends with 0 even if it panics, so only the kernel's own line on its check counts.
    pub fn of_kernel(outcome: &Outcome) -> Self {
        match (outcome.status, outcome.console.check()) {
            (Some(exit::POWER_OFF), Check::Ok) => Self::Ok,
            (Some(exit::POWER_OFF), Check::Missing) => Self::CheckMissing,
            (Some(exit::POWER_OFF), Check::Failed(line)) => Self::CheckFailed(line),
            (status, _) => Self::Qemu(status, outcome.stderr.trim().to_owned()),
        }
    }

    /// Whether it is [`Verdict::Ok`].
    pub fn is_ok(&self) -> bool {
        *self == Self::Ok
    }

    /// One word for reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::CheckFailed(_) => "check failed",
            Self::CheckMissing => "check missing",
            Self::Reset => "reset",
            Self::Panic(_) => "panic",
            Self::Miscounted(_) => "miscounted",
            Self::Repeated(_) => "repeated",
            Self::CannotStart(_) => "cannot start",
            Self::TestFailed(_) => "test failed",
            Self::Left => "left",
            Self::Qemu(..) => "qemu failed",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok => write!(formatter, "the guest powered off"),
            Self::CheckFailed(line) => {
                write!(formatter, "the guest's own check failed ({line}); the console shows what led to it")
            }
            Self::CheckMissing => write!(
                formatter,
                "the guest powered off without the line `{CHECK_OK}`; with an initrd of your own, print it as \
                 tools/workspace/guest/init does, or run without --check"
            ),
            Self::Reset => write!(
                formatter,
                "the guest asked for a reset, which Linux does after a panic; read the end of the console"
            ),
            Self::Panic(report) => write!(
                formatter,
                "the hypervisor panicked at EL2, which is a bug in Twofold; report it with this text:\n{report}"
            ),
            Self::Repeated(line) => write!(
                formatter,
                "the hypervisor reported twice, which is a bug in Twofold, and no figure of this run counts; report it \
                 with the control log, which has a second `{line}`"
            ),
            Self::Miscounted(what) => write!(
                formatter,
                "a figure of the hypervisor cannot be a count ({what}), which is a bug in Twofold, and no figure of \
                 this run counts; report it with the control log"
            ),
            Self::CannotStart(why) if why.is_empty() => {
                write!(formatter, "the guest could not be started, and the hypervisor gave no reason; see the logs")
            }
            Self::CannotStart(why) => write!(formatter, "the guest could not be started: {why}"),
            Self::TestFailed(tests) => write!(formatter, "failed: {tests}"),
            Self::Left => write!(formatter, "QEMU was closed before the guest powered off"),
            Self::Qemu(Some(status), text) if text.contains("annot allocate memory") => write!(
                formatter,
                "QEMU ended with status {status}: {text}; this machine lacks the memory for it: give a smaller --memory"
            ),
            Self::Qemu(Some(status), text) => {
                write!(formatter, "QEMU ended with status {status}: {}", said(text))
            }
            Self::Qemu(None, text) => write!(
                formatter,
                "QEMU was killed by a signal ({}); is the machine short of memory? Try a smaller --memory",
                said(text)
            ),
        }
    }
}

/// The report is on the control channel. If that is empty, the end of the console is the next best.
fn panic_report(outcome: &Outcome) -> String {
    let lines = [&outcome.control.errors[..], &outcome.control.log[..]].concat();
    if lines.is_empty() { outcome.console.tail(40).join("\n") } else { lines.join("\n") }
}

fn said(text: &str) -> &str {
    if text.is_empty() { "it wrote nothing" } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Console;
    use crate::report::Control;

    fn outcome(status: Option<i32>, control: &str, console: &[&str]) -> Outcome {
        let mut taken = Console::default();
        console.iter().for_each(|line| taken.take(line));
        Outcome { status, console: taken, control: Control::parse(control), stderr: "bad argument\n".to_owned() }
    }

    #[test]
    fn a_host_short_of_memory_is_advised() {
        let text = "qemu-system-aarch64: cannot set up guest memory 'mach-virt.ram': Cannot allocate memory";
        let verdict = Verdict::Qemu(Some(1), text.to_owned()).to_string();
        assert!(verdict.contains(text) && verdict.contains("smaller --memory"), "{verdict}");
    }

    #[test]
    fn a_kernel_by_itself_has_to_say_that_it_is_well() {
        let failed = "guest check: FAILED: no KVM";
        for (status, console, expected) in [
            (Some(0), &["guest check: ok"][..], Verdict::Ok),
            (Some(0), &["Kernel panic - not syncing"][..], Verdict::CheckMissing),
            (Some(0), &[failed, "guest check: ok"][..], Verdict::CheckFailed(failed.to_owned())),
            (Some(1), &["guest check: ok"][..], Verdict::Qemu(Some(1), "bad argument".to_owned())),
            (None, &["guest check: ok"][..], Verdict::Qemu(None, "bad argument".to_owned())),
        ] {
            assert_eq!(Verdict::of_kernel(&outcome(status, "", console)), expected, "{status:?} {console:?}");
        }
    }

    #[test]
    fn every_status_has_its_verdict() {
        let end = "twofold:end power-off\ntwofold:exit 0";
        let twice = "twofold:stat a 1\ntwofold:stat a 2\ntwofold:end power-off\ntwofold:exit 0";
        let ends = "twofold:end power-off\ntwofold:end reset\ntwofold:exit 0";
        let below = "twofold:stat a 18446744073709551604\ntwofold:end power-off\ntwofold:exit 0";
        let ok = ["guest check: ok"];
        let failed = ["guest check: ok", "guest check: FAILED: sums differ"];
        let check_failed = || Verdict::CheckFailed(failed[1].to_owned());
        let table = [
            (Some(0), end, &ok[..], true, Verdict::Ok),
            (Some(0), end, &[][..], false, Verdict::Ok),
            (Some(0), end, &failed[..], false, Verdict::Ok),
            (Some(0), end, &[][..], true, Verdict::CheckMissing),
            (Some(0), end, &["xguest check: ok"][..], true, Verdict::CheckMissing),
            (Some(0), end, &failed[..], true, check_failed()),
            (Some(0), "", &ok[..], true, Verdict::Left),
            (Some(0), "twofold:end power-off", &ok[..], true, Verdict::Left),
            (Some(0), twice, &ok[..], true, Verdict::Repeated("twofold:stat a 2".to_owned())),
            (Some(0), ends, &ok[..], true, Verdict::Repeated("twofold:end reset".to_owned())),
            (Some(0), below, &ok[..], true, Verdict::Miscounted("a is 18446744073709551604".to_owned())),
            (Some(16), twice, &failed[..], true, Verdict::Repeated("twofold:stat a 2".to_owned())),
            (Some(19), ends, &[][..], false, Verdict::Repeated("twofold:end reset".to_owned())),
            (Some(17), twice, &["last words"][..], true, Verdict::Panic("last words".to_owned())),
            (Some(16), "twofold:end reset", &ok[..], true, Verdict::Reset),
            (Some(16), "twofold:end reset", &failed[..], true, check_failed()),
            (Some(16), "twofold:end reset", &failed[..], false, Verdict::Reset),
            (Some(17), "twofold:error ESR 0x1", &ok[..], true, Verdict::Panic("ESR 0x1".to_owned())),
            (Some(17), "", &["last words"][..], true, Verdict::Panic("last words".to_owned())),
            (Some(18), "twofold:error no room", &ok[..], true, Verdict::CannotStart("no room".to_owned())),
            (Some(19), "twofold:fail a b c", &[][..], false, Verdict::TestFailed("a: b c".to_owned())),
            (Some(1), end, &ok[..], true, Verdict::Qemu(Some(1), "bad argument".to_owned())),
            (None, end, &ok[..], true, Verdict::Qemu(None, "bad argument".to_owned())),
        ];
        for (status, control, console, checked, expected) in table {
            let verdict = Verdict::new(&outcome(status, control, console), checked);
            assert_eq!(verdict, expected, "{status:?} {control} {console:?} {checked}");
            assert_eq!(verdict.is_ok(), expected == Verdict::Ok);
            assert!(!verdict.to_string().is_empty());
        }
    }
}
