// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's interrupt controller against QEMU's own, as tests of the suite `el2`: one bare-metal guest executes the
//! same random events on both, and has to see the same.
//!
//! Invariant: such a test passes only if both runs executed all events, acknowledged interrupts in them, and agree on
//! each digest. If they differ, both run again up to the first digest that differs, in ever smaller steps, and the error
//! shows the events around the first one that saw something else.

use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use libtest_mimic::{Failed, Trial};
use twofold_launch::guest::{NAME_DEFAULT, WEIGHT_DEFAULT};
use twofold_launch::{Devices, GuestSettings, Launch, Loaded, Machine, Pages, Qemu, Verdict, machine};
use twofold_workload::policies::Policies;
use twofold_workspace::boot::{Boot, Image};
use twofold_workspace::{Workspace, build, output};

use super::guests::seed;
use super::harness::{self, Depth};

/// A test.
struct Case {
    name: &'static str,
    depth: Depth,
    events: u64,
    vcpus: u32,
    /// The hypervisor's CPUs.
    cpus: u32,
    model: &'static str,
}

/// Two vCPUs wait for each other at most events, so theirs take many times as long while the machine does other work. On one
/// CPU they take turns by slices of a few milliseconds: each such event is two switches, with whatever is pending and active.
const CASES: [Case; 6] = [
    Case { name: "replay::events_are_as_on_qemus_own_controller", depth: Depth::Quick, events: 20_000, ..ONE_VCPU },
    Case { name: "replay::events_of_two_vcpus", depth: Depth::Quick, events: 10_000, ..TWO_VCPUS },
    Case { name: "replay::a_million_events", ..ONE_VCPU },
    Case { name: "replay::a_million_events_on_a_lesser_cpu", model: "cortex-a57", ..ONE_VCPU },
    Case { name: "replay::many_events_of_two_vcpus", ..TWO_VCPUS },
    Case { name: "replay::events_of_two_vcpus_on_one_cpu", events: 5_000, cpus: 1, ..TWO_VCPUS },
];
const ONE_VCPU: Case =
    Case { name: "", depth: Depth::Full, events: 1_000_000, vcpus: 1, cpus: 1, model: machine::CPU_DEFAULT };
const TWO_VCPUS: Case = Case { events: 300_000, vcpus: 2, cpus: 2, ..ONE_VCPU };

/// Returns the tests of this depth.
pub fn trials(workspace: &Workspace, qemu: &Qemu, depth: Depth) -> Vec<Trial> {
    let trial = |case: Case| {
        let (workspace, qemu) = (workspace.clone(), qemu.clone());
        let (name, model) = (case.name, case.model);
        let test = move || {
            let events = case.events;
            let pair = Pair { workspace, qemu, case, seed: seed() };
            pair.compare(events).map_err(|error| Failed::from(format!("{error:#}")))
        };
        harness::trial(name, test).with_kind(model.split(',').next().unwrap_or(model))
    };
    CASES.into_iter().filter(|case| depth == Depth::Full || case.depth == Depth::Quick).map(trial).collect()
}

/// The two runs to be compared.
struct Pair {
    workspace: Workspace,
    qemu: Qemu,
    case: Case,
    seed: u64,
}

/// Events to be executed, and those of them that are reported.
#[derive(Clone, Copy)]
struct Part {
    events: u64,
    from: u64,
    every: u64,
}

/// The digests that a run may print: its console keeps 400 lines.
const LINES: u64 = 100;
/// Events that are shown before the one that differs.
const SHOWN: u64 = 25;
const MEMORY: u64 = 64 << 20;
/// The limit against hangs.
const LIMIT: Duration = Duration::from_secs(1800);

impl Pair {
    fn compare(&self, events: u64) -> anyhow::Result<()> {
        let Self { seed, .. } = self;
        let mut part = Part { events, from: 1, every: events.div_ceil(LINES).max(2) };
        let [theirs, ours] = self.run(part)?;
        let Some((mut good, mut bad)) = first_difference(&theirs, &ours, part.events) else {
            let acknowledged = acknowledged(&ours)?;
            ensure!(acknowledged > events / 40, "seed {seed}: {acknowledged} of {events} events took an interrupt");
            let done = ours.last().map_or("", String::as_str);
            output::line(&format!("{events} events, seed {seed}, {} vCPUs: {done}", self.case.vcpus))?;
            return Ok(());
        };
        while part.every > 2 {
            let events = bad - good;
            part = Part { events: bad, from: good + 1, every: events.div_ceil(LINES).max(2) };
            let [theirs, ours] = self.run(part)?;
            let next = first_difference(&theirs, &ours, part.events);
            let again = format!("seed {seed}: events {good} to {bad} differed, and then they did not");
            let (last, first) = next.context(again)?;
            (good, bad) = (last.max(good), first);
            // Digests wait for the UART, so they may be further apart.
            if bad - good >= events {
                break;
            }
        }
        let [theirs, ours] = self.run(Part { events: bad, from: good.saturating_sub(SHOWN).max(1), every: 1 })?;
        let same = theirs.iter().zip(&ours).take_while(|(one, other)| one == other).count();
        let shown = |lines: &[String]| {
            lines[same.min(lines.len())..].iter().take(6).map(|line| format!("\n  {line}")).collect::<String>()
        };
        let before: String = theirs[..same].iter().map(|line| format!("\n  {line}")).collect();
        bail!(
            "seed {seed}: the interrupt controllers differ at an event after {good}, up to {bad}:{before}\n\
             then on QEMU's own:{}\nand on the hypervisor's:{}",
            shown(&theirs),
            shown(&ours)
        )
    }

    /// The lines of both runs: QEMU's own controller first.
    fn run(&self, part: Part) -> anyhow::Result<[Vec<String>; 2]> {
        let Part { events, from, every } = part;
        let words = format!("replay={events} from={from} every={every} seed={}", self.seed);
        Ok([self.alone(&words).context("on QEMU's own controller")?, self.as_guest(words)?])
    }

    /// The guest on CPUs without EL2.
    fn alone(&self, words: &str) -> anyhow::Result<Vec<String>> {
        let runs = self.workspace.runs()?;
        let directory = tempfile::Builder::new().prefix("replay-").tempdir_in(runs).context("cannot write logs")?;
        let machine = Machine {
            image: self.workspace.image(build::GUEST.name),
            loaded: Loaded::Alone { memory: MEMORY },
            spare_memory: 0,
            append: Some(words.to_owned()),
            cpu: self.case.model.to_owned(),
            cpus: self.case.vcpus,
            memory_file: None,
            deterministic: false,
        };
        let launch = Launch {
            qemu: &self.qemu,
            machine: &machine,
            directory: directory.path(),
            timeout: Some(LIMIT),
            stop: self.workspace.stop().clone(),
            trace: None,
        };
        let outcome = launch.run(|_| ())?;
        let lines = events_of(&outcome.console.tail(usize::MAX));
        if outcome.status != Some(0) || !is_done(&lines) {
            let verdict = Verdict::of_kernel(&outcome);
            bail!("{verdict}\nThe console's last lines:\n{}", outcome.console.tail(20).join("\n"));
        }
        Ok(lines)
    }

    /// The guest under the hypervisor.
    fn as_guest(&self, words: String) -> anyhow::Result<Vec<String>> {
        let guest = GuestSettings {
            name: NAME_DEFAULT.to_owned(),
            weight: WEIGHT_DEFAULT,
            firmware: None,
            kernel: self.workspace.image(build::GUEST.name),
            initrd: None,
            command_line: words,
            memory: MEMORY,
            cpus: self.case.vcpus,
            pages: Pages::Auto,
            flags: 0,
            devices: Devices::default(),
            swap: None,
            test: None,
            policies: Policies::default(),
        };
        let boot = Boot {
            label: "replay",
            guests: vec![guest],
            cpu: self.case.model,
            host_cpus: Some(self.case.cpus),
            deterministic: false,
            checked: false,
            timeout: Some(LIMIT),
            terminal: false,
            image: Image::Plain,
        };
        let outcome = boot.run(&self.workspace, &self.qemu)?;
        let lines = events_of(&outcome.console.tail(usize::MAX));
        ensure!(is_done(&lines), "the guest ended early:\n{}", outcome.console.tail(20).join("\n"));
        Ok(lines)
    }
}

fn events_of(console: &[&str]) -> Vec<String> {
    let is_one = |line: &&&str| line.starts_with(DIGEST) || line.starts_with(EVENT);
    console.iter().filter(is_one).map(|line| (*line).to_owned()).collect()
}

const DIGEST: &str = "replay: ";
const EVENT: &str = "event ";
const DONE: &str = "replay: done, ";

fn is_done(lines: &[String]) -> bool {
    lines.last().is_some_and(|line| line.starts_with(DONE))
}

fn acknowledged(lines: &[String]) -> anyhow::Result<u64> {
    let text = lines.last().and_then(|line| line.strip_prefix(DONE)?.split(' ').next());
    text.and_then(|text| text.parse().ok()).ok_or_else(|| anyhow!("the guest does not report what it acknowledged"))
}

/// The event of the last digest that agrees, and that of the first one that differs. `events` is the last event.
fn first_difference(theirs: &[String], ours: &[String], events: u64) -> Option<(u64, u64)> {
    let event = |line: Option<&String>| line?.strip_prefix(DIGEST)?.split(' ').next()?.parse().ok();
    let lines = theirs.len().max(ours.len());
    let place = (0..lines).find(|&n| theirs.get(n) != ours.get(n))?;
    let good = place.checked_sub(1).and_then(|last| event(theirs.get(last))).unwrap_or(0);
    // A digest waits for the UART, so one that differs may come at another event.
    let bad = event(theirs.get(place)).into_iter().chain(event(ours.get(place))).max();
    Some((good, bad.unwrap_or(events)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_between_two_digests() {
        let lines = |digests: [u64; 3]| -> Vec<String> {
            [10, 20, 30].iter().zip(digests).map(|(event, digest)| format!("replay: {event} {digest:016x}")).collect()
        };
        assert_eq!(first_difference(&lines([1, 2, 3]), &lines([1, 2, 3]), 40), None);
        assert_eq!(first_difference(&lines([1, 2, 3]), &lines([1, 5, 6]), 40), Some((10, 20)));
        assert_eq!(first_difference(&lines([1, 2, 3]), &lines([4, 5, 6]), 40), Some((0, 10)));
        assert_eq!(first_difference(&lines([1, 2, 3]), &lines([1, 2, 3])[..2], 40), Some((20, 30)));
        let end = |digest: u64| [lines([1, 2, 3]), vec![format!("{DONE}9 acknowledged, {digest}")]].concat();
        assert_eq!(first_difference(&end(1), &end(2), 40), Some((30, 40)));
    }

    #[test]
    fn the_last_line_says_how_many_were_acknowledged() {
        let lines = events_of(&["boot", "replay: 10 0", "replay: done, 123 acknowledged, 4 at most at a time"]);
        assert!(is_done(&lines));
        assert_eq!(acknowledged(&lines).unwrap(), 123);
        assert!(acknowledged(&lines[..1]).is_err());
    }
}
