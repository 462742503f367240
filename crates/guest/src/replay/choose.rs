// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chooses the next event.
//!
//! Two interrupt controllers that are both right may differ where the architecture (Arm IHI 0069H) leaves something
//! open, and QEMU's differs from ours where `twofold_devices::vgic` says so. No event depends on these:
//!
//! | excluded | why |
//! |---|---|
//! | equal priorities | of equal priorities any may be first. Each interrupt has one of 31 levels to itself |
//! | priorities with bits below the fifth, and 0xf8 | a CPU interface has five bits at least; 0xf8 is the level that the mask never admits |
//! | an EOI of another interrupt than the last one acknowledged, or by the other group's register | UNPREDICTABLE |
//! | BPR, CBPR and EOImode while the vCPU handles an interrupt | an EOI may compare the priority that it drops with the interrupt's, at the binary point of that time, and deactivate nothing if they differ |
//! | ICACTIVER of an interrupt that a vCPU handles; ICC_DIR_EL1 of one that is handled with EOImode 0 | the end deactivates it: twice is UNPREDICTABLE |
//! | ICFGR of an interrupt that is enabled | UNPREDICTABLE (`GICD_ICFGR<n>`); QEMU takes no notice until the next event at the interrupt |
//! | ICFGR of the timers | a linked PPI's trigger is fixed, as it may be for any PPI |
//! | acknowledging, ISR_EL1 and ICC_HPPIR of a vCPU that disabled a group in ICC_IGRPEN | in QEMU's own CPU interface a pending interrupt of the disabled group hides those of the other one; in the virtual one, and here, it does not |
//! | a lowered timer line, without a read of the redistributor | a lowered line may take any time to reach the CPU interface; a driver that wants to know reads the controller |
//! | lines in random order of two vCPUs, WFI | the lockstep excludes them: their order is no part of the seed |

use super::event::{BANKS, Bits, Event, HOT, Line, Sgi};
use super::known::{Known, Vcpu};
use crate::random::Random;

/// The next event of this vCPU.
pub fn event(known: &mut Known, vcpu: usize, vcpus: usize) -> Event {
    let groups = known.vcpus[vcpu].enabled;
    let is_whole = groups == [true; 2];
    let random = &mut known.random;
    known.holds ^= one_in(random, 50);
    match random.next() % 100 {
        0..22 if is_whole => Event::Take,
        22..25 if is_whole => Event::Acknowledge { group1: one_in(random, 2) },
        25..27 if is_whole => Event::HighestPending { group1: one_in(random, 2) },
        // Of a disabled group nothing is taken.
        0..27 => Event::Acknowledge { group1: !groups[1] },
        // At times none is ended, so that interrupts preempt each other.
        27..38 if known.holds && is_whole => Event::Take,
        27..38 => Event::End,
        38..41 => Event::Deactivate { intid: random.one_of(&HOT) },
        41..42 => Event::Mask(if one_in(random, 6) { level(random) } else { 0xf8 }),
        42..43 => Event::Point { group1: one_in(random, 2), value: (random.next() & random.next() & 7) as u8 },
        43..46 => enable(random, groups),
        46..47 => Event::Configure { common: one_in(random, 4), split: one_in(random, 3) },
        47..56 => send(random),
        56..73 => set(known, vcpus),
        73..77 => Event::Prioritize { hot: (random.next() % HOT.len() as u64) as usize, priority: level(random) },
        77..78 => trigger(random, vcpus),
        78..81 => Event::Route { intid: shared(random), affinity: route(random, vcpus) },
        81..83 => Event::Control(if one_in(random, 8) { (random.next() % 4) as u8 } else { 3 }),
        83..92 => drive(random),
        92..98 => {
            Event::Get { of: place(random, vcpus), kind: kind(random), bank: (random.next() % BANKS as u64) as u32 }
        }
        _ => Event::Read { of: place(random, vcpus), intid: random.one_of(&HOT) },
    }
}

/// May this vCPU deactivate `intid`? If a vCPU with EOImode 0 handles it, its end does.
pub fn may_deactivate(known: &Known, vcpu: usize, intid: u32) -> bool {
    let handles = |of: &Vcpu| !of.split && of.handling.iter().any(|(other, _)| other == intid);
    !known.vcpus.iter().enumerate().any(|(n, of)| (n == vcpu || intid >= 32) && handles(of))
}

/// A group is disabled for a short time, because little is seen meanwhile.
fn enable(random: &mut Random, groups: [bool; 2]) -> Event {
    match groups {
        [false, _] => Event::Enable { group1: false, on: true },
        [_, false] => Event::Enable { group1: true, on: true },
        _ => Event::Enable { group1: one_in(random, 2), on: !one_in(random, 6) },
    }
}

fn send(random: &mut Random) -> Event {
    let register = random.one_of(&[Sgi::Group1, Sgi::Group1, Sgi::Group1, Sgi::Group0, Sgi::Alias]);
    let targets = random.one_of(&[1, 1, 2, 2, 3, 0, 0x20, 0xffff]);
    let all_others = u64::from(one_in(random, 6)) << 40;
    let intid = u64::from(random.one_of(&HOT[..SGIS]));
    Event::Send { register, value: intid << 24 | all_others | targets }
}

fn set(known: &mut Known, vcpus: usize) -> Event {
    let random = &mut known.random;
    const KINDS: [Bits; 15] = [
        Bits::Group,
        Bits::SetEnable,
        Bits::SetEnable,
        Bits::SetEnable,
        Bits::SetEnable,
        Bits::ClearEnable,
        Bits::SetPending,
        Bits::SetPending,
        Bits::SetPending,
        Bits::SetPending,
        Bits::ClearPending,
        Bits::ClearPending,
        Bits::SetActive,
        Bits::ClearActive,
        Bits::ClearActive,
    ];
    let kind = random.one_of(&KINDS);
    let (of, bank) = (place(random, vcpus), random.one_of(&HOT) / 32);
    let mut mask = 0;
    for hot in HOT.iter().filter(|hot| *hot / 32 == bank) {
        let share = match kind {
            Bits::SetEnable | Bits::Group => 2,
            Bits::ClearEnable | Bits::SetActive => 6,
            Bits::ClearPending | Bits::ClearActive => 2,
            _ => 5,
        };
        if one_in(random, share) {
            mask |= 1 << (hot % 32);
        }
    }
    // Else little happens after a while: all are pending, or active.
    if matches!(kind, Bits::Group | Bits::ClearActive | Bits::ClearPending) && one_in(random, 2) {
        mask = u32::MAX;
    }
    if kind == Bits::ClearActive {
        mask &= !known.handled(of, bank);
    }
    Event::Set { of, kind, bank, mask }
}

fn trigger(random: &mut Random, vcpus: usize) -> Event {
    const TIMERS: [u32; 2] = [27, 30];
    let intid = random.one_of(&HOT[SGIS..]);
    let intid = if TIMERS.contains(&intid) { 33 } else { intid };
    Event::Trigger { of: place(random, vcpus), intid, edge: one_in(random, 2) }
}

fn drive(random: &mut Random) -> Event {
    let line = random.one_of(&[Line::Uart, Line::Clock, Line::VirtualTimer, Line::PhysicalTimer]);
    Event::Drive { line, level: one_in(random, 2), how: (random.next() % 3) as u8 }
}

fn kind(random: &mut Random) -> Bits {
    let kinds = [
        Bits::Group,
        Bits::SetEnable,
        Bits::ClearEnable,
        Bits::SetPending,
        Bits::SetPending,
        Bits::ClearPending,
        Bits::SetActive,
        Bits::SetActive,
        Bits::ClearActive,
    ];
    random.one_of(&kinds)
}

/// The vCPU whose redistributor is used.
fn place(random: &mut Random, vcpus: usize) -> usize {
    random.next() as usize % vcpus
}

/// The affinity of a vCPU, or of none.
fn route(random: &mut Random, vcpus: usize) -> u8 {
    if one_in(random, 8) { 5 } else { place(random, vcpus) as u8 }
}

fn shared(random: &mut Random) -> u32 {
    random.one_of(&HOT[PRIVATE..])
}

/// One of the levels that the mask admits.
fn level(random: &mut Random) -> u8 {
    (random.next() % 31 * 8) as u8
}

fn one_in(random: &mut Random, count: u64) -> bool {
    (random.next() >> 32).is_multiple_of(count)
}

/// The SGIs among [`HOT`] come first, then the other private ones.
const SGIS: usize = 6;
const PRIVATE: usize = 13;
const _: () = assert!(HOT[SGIS - 1] == 15 && HOT[PRIVATE] == 32);
