// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What events cost at EL2, as the bare-metal guest measures it ([`twofold_abi::exits`]).
//!
//! Invariants: the machine is deterministic and counts one instruction a nanosecond, so the guest's clock counts
//! instructions, and equal runs give equal figures. Figures come only from a guest that measured all its events.

use std::str::SplitWhitespace;

use twofold_abi::exits::{
    CLOCK, DISTRIBUTOR, EVENTS, Event, HVC, LINE, SGI_OTHER, SGI_SELF, SGI_WAKE, SWITCH, TICK, UART, WAKE,
};
use twofold_workload::policies::Policies;

use crate::devices::Devices;
use crate::experiment::{ExperimentError, Platform};
use crate::guest::{GuestSettings, NAME_DEFAULT, Pages, WEIGHT_DEFAULT};
use crate::verdict::Verdict;

/// What an event costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EventCost {
    /// The event.
    pub event: Event,
    /// How often it was measured.
    pub count: u64,
    /// The nanoseconds of all of them.
    pub nanoseconds: u64,
}

impl EventCost {
    /// The nanoseconds of one event.
    pub fn each(&self) -> f64 {
        self.nanoseconds as f64 / self.count.max(1) as f64
    }
}

/// What the event takes under Linux 6.12's KVM with its host kernel (VHE), of the same guest in the same emulator: `cargo
/// xtask peers kvm` measures it. A vCPU is a thread there, and all threads share one CPU. `None`: another event.
pub fn kvm(event: Event) -> Option<u64> {
    KVM.iter().find(|(of, _)| *of == event).map(|(_, kvm)| *kvm)
}

/// The most instructions that the event may take, the guest's own included: its target, and a quarter of KVM's.
pub fn most(event: Event) -> Option<u64> {
    let target = MOST.iter().find(|(of, _)| *of == event).map(|(_, most)| *most);
    target.into_iter().chain(kvm(event).map(|kvm| kvm / 4)).min()
}

const MOST: [(Event, u64); 6] =
    [(HVC, 150), (DISTRIBUTOR, 300), (TICK, 600), (SGI_OTHER, 900), (UART, 350), (SWITCH, 700)];

const KVM: [(Event, u64); 10] = [
    (HVC, 1_285),
    (DISTRIBUTOR, 2_038),
    (CLOCK, 6_668),
    (UART, 6_321),
    (SGI_SELF, 2_746),
    (TICK, 2_615),
    (WAKE, 8_984),
    (SGI_OTHER, 2_191),
    (SGI_WAKE, 9_997),
    (SWITCH, 7_868),
];

/// Boots the guest with one vCPU, and then with two on one CPU, and lets it measure each event `count` times. An event has
/// the figure of the guest with as many vCPUs as it needs.
///
/// # Errors
///
/// The guest or the hypervisor failed, or a line is missing.
pub fn measure(count: u64, on: &Platform<'_>) -> Result<Vec<EventCost>, ExperimentError> {
    let mut costs = of_guest(count, 1, on)?;
    costs.extend(of_guest(count, 2, on)?.into_iter().filter(|cost| cost.event.vcpus == 2));
    Ok(costs)
}

fn of_guest(count: u64, cpus: u32, on: &Platform<'_>) -> Result<Vec<EventCost>, ExperimentError> {
    let guest = GuestSettings {
        name: NAME_DEFAULT.to_owned(),
        weight: WEIGHT_DEFAULT,
        firmware: None,
        kernel: on.guest.to_owned(),
        initrd: None,
        command_line: format!("exits={count}"),
        memory: 64 << 20,
        cpus,
        pages: Pages::Auto,
        flags: 0,
        devices: Devices::default(),
        swap: None,
        test: None,
        policies: Policies::default(),
    };
    let outcome = on.run(&guest)?;
    let verdict = Verdict::new(&outcome, false);
    let console = outcome.console.tail(usize::MAX);
    if !verdict.is_ok() {
        let tail = console.iter().rev().take(20).rev().map(|line| format!("\n{line}"));
        return Err(ExperimentError::Ended { verdict, console: tail.collect() });
    }
    read(console.iter().copied()).ok_or_else(|| ExperimentError::Failed("measured no event, or not all".to_owned()))
}

/// Reads the lines of a guest's console. Returns `None` if the guest did not get to its end, or a line is not one of
/// the guest's.
pub fn read<'l>(lines: impl IntoIterator<Item = &'l str>) -> Option<Vec<EventCost>> {
    let mut costs = Vec::new();
    for line in lines {
        // The bytes that the guest sends to measure the UART may be in front of the line.
        let Some((_, rest)) = line.split_once(LINE) else { continue };
        if rest.trim() == DONE {
            return Some(costs);
        }
        costs.push(cost(rest.split_whitespace())?);
    }
    None
}

/// What the last line says.
const DONE: &str = "done";

fn cost(mut words: SplitWhitespace<'_>) -> Option<EventCost> {
    let name = words.next()?;
    let event = EVENTS.into_iter().find(|event| event.name == name)?;
    let [count, nanoseconds] = [words.next()?.parse().ok()?, words.next()?.parse().ok()?];
    (words.next().is_none() && count != 0).then_some(EventCost { event, count, nanoseconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_up_to_the_end() {
        let lines = ["[    0.1] boot", "exits: hvc 100 15600", "......exits: uart 10 3000", "", "exits: done", "x"];
        let cost = |event, count, nanoseconds| EventCost { event, count, nanoseconds };
        assert_eq!(read(lines), Some(vec![cost(HVC, 100, 15_600), cost(UART, 10, 3000)]));
        assert_eq!(cost(HVC, 100, 15_600).each(), 156.0);
    }

    #[test]
    fn each_event_has_a_limit_of_a_quarter_of_kvms_at_most() {
        for event in EVENTS {
            let (most, kvm) = (most(event).unwrap(), kvm(event).unwrap());
            assert!(most * 4 <= kvm, "{}: {most} of KVM's {kvm}", event.name);
        }
        assert_eq!((most(HVC), most(SGI_OTHER)), (Some(150), Some(547)));
    }

    #[test]
    fn a_guest_that_stops_early_has_no_figures() {
        assert_eq!(read(["exits: hvc 100 15600"]), None);
        for bad in ["exits: hvc 100", "exits: hvc 0 5", "exits: hvc 1 5 6", "exits: other 1 5", "exits: hvc -1 5"] {
            assert_eq!(read([bad, "exits: done"]), None, "{bad}");
        }
    }
}
