// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of each vCPU, and the report about all of them.
//!
//! Each vCPU has its own counters and is their only writer, so counting is a load and a store. The keys of the report
//! are those of [`twofold_abi::control`].

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use twofold_memory::Counts;
use twofold_stage2::Level;
use twofold_stage2::fault::FaultKind;

use crate::count::Impossible;
use crate::granule;
use crate::platform::InstructionCounts;
use crate::pmu::Counter;
use crate::virtio::VirtioDevices;
use crate::{control, cpus, heap, swap};

/// One vCPU's counters.
pub struct Stats {
    /// By exception class (ESR_EL2.EC).
    exits: [AtomicU64; CLASSES],
    /// Instructions at EL2 by their purpose: the class of the exit, or a [`Purpose`].
    instructions: [Spent; PURPOSES],
    faults: [AtomicU64; 4],
    write_faults: AtomicU64,
    last: [LastExit; LAST],
    next: AtomicUsize,
}

/// Instructions for one purpose.
struct Spent {
    total: AtomicU64,
    /// The most with interrupts masked ([`masked`](crate::masked)).
    longest: AtomicU64,
}

#[derive(Default)]
struct LastExit {
    esr: AtomicU64,
    pc: AtomicU64,
}

/// The purpose of an exit, if it is more specific than its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A first touch that mapped a leaf of this level.
    FirstTouch(Level),
    /// A write fault on a read-only mapping, which is writable now.
    WriteFault,
    /// A vendor call that marks a phase.
    Phase,
    /// An access to the interrupt controller.
    Gic,
    /// An access to the UART.
    Uart,
    /// An access to the clock.
    Rtc,
    /// The end of a vCPU's turn, and the beginning of the next one.
    Switch,
    /// An access to a virtio device, with the work that it asks for.
    Virtio,
}

/// The syndrome under which an exit because of a physical interrupt is counted: hardware gives it none, and this class is
/// not in use.
pub const INTERRUPT: u64 = 0x3f << 26;

const CLASSES: usize = 64;
/// The classes, then the purposes.
const PURPOSES: usize = CLASSES + 11;
const LAST: usize = 8;

impl Purpose {
    const fn index(self) -> usize {
        CLASSES
            + match self {
                Self::FirstTouch(level) => level.raw() as usize,
                Self::WriteFault => 4,
                Self::Phase => 5,
                Self::Gic => 6,
                Self::Uart => 7,
                Self::Rtc => 8,
                Self::Switch => 9,
                Self::Virtio => 10,
            }
    }
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            exits: [const { AtomicU64::new(0) }; CLASSES],
            instructions: [const { Spent { total: AtomicU64::new(0), longest: AtomicU64::new(0) } }; PURPOSES],
            faults: Default::default(),
            write_faults: AtomicU64::new(0),
            last: Default::default(),
            next: AtomicUsize::new(0),
        }
    }
}

impl Stats {
    /// Counts an exit from the guest.
    pub fn exit(&self, esr: u64, pc: u64) {
        add(&self.exits[class(esr)], 1);
        let next = self.next.load(Ordering::Relaxed);
        let last = &self.last[next % LAST];
        last.esr.store(esr, Ordering::Relaxed);
        last.pc.store(pc, Ordering::Relaxed);
        self.next.store(next + 1, Ordering::Relaxed);
    }

    /// Counts a stage-2 fault.
    pub fn fault(&self, kind: FaultKind) {
        add(&self.faults[kind as usize], 1);
    }

    /// Counts a write fault on a read-only mapping, which is writable now.
    pub fn write_fault(&self) {
        add(&self.write_faults, 1);
    }

    /// The number of these write faults.
    pub fn write_faults(&self) -> u64 {
        get(&self.write_faults)
    }

    /// Instructions that were counted for a purpose, without those of this exit.
    pub fn instructions(&self, purpose: Purpose) -> u64 {
        get(&self.instructions[purpose.index()].total)
    }

    /// Instructions that were counted for any purpose.
    pub fn all_instructions(&self) -> u64 {
        self.instructions.iter().map(|spent| get(&spent.total)).sum()
    }

    /// Instructions that were counted for any other purpose. The value never falls, even if several vCPUs count
    /// meanwhile.
    pub fn instructions_but(&self, purpose: Purpose) -> u64 {
        let others = self.instructions.iter().enumerate().filter(|(index, _)| *index != purpose.index());
        others.map(|(_, spent)| get(&spent.total)).sum()
    }

    /// Counts an access that was answered with an external abort.
    pub fn external(&self) {
        add(&self.faults[EXTERNAL], 1);
    }

    /// Writes the last exits, the newest first.
    pub fn write_last(&self, cpu: usize, out: &mut dyn Write) {
        let next = self.next.load(Ordering::Relaxed);
        for back in 1..=next.min(LAST) {
            let LastExit { esr, pc } = &self.last[(next - back) % LAST];
            let (esr, pc) = (esr.load(Ordering::Relaxed), pc.load(Ordering::Relaxed));
            let _ = writeln!(out, "vCPU {cpu} exit -{back}: {} ESR {esr:#x} PC {pc:#x}", name(class(esr)));
        }
    }
}

/// The index of external aborts, which are not a kind of fault.
const EXTERNAL: usize = 0;
/// The kinds of fault by their numbers.
const FAULTS: [&str; 4] = ["external", "translation", "access_flag", "permission"];

/// Counts the instructions of one vCPU at EL2, by purpose.
///
/// There is one reading for each turn, always at the same place of the exit path. The counter stands still while the
/// guest runs. So the difference of two readings covers everything in between: the rest of one exit's handling, the
/// entry into the guest, and the next exit's entry. That is also as long as the exit kept interrupts masked, unless EL2
/// has looked for one meanwhile ([`masked`](crate::masked)).
pub struct Meter {
    counter: Option<Counter>,
    purpose: usize,
}

impl Meter {
    /// Starts metering, right before the guest is first entered. The count until its first exit belongs to class 0.
    pub fn new(mut counter: Option<Counter>) -> Self {
        if let Some(counter) = &mut counter {
            cpus::looks().count_by(counter.reader(), counter.mask());
            let _ = cpus::looks().take();
            // Instructions before the first entry do not count. A counter that stands still fails the first turn.
            let _ = counter.since_last();
        }
        Self { counter, purpose: 0 }
    }

    /// The guest has left with `esr`: adds the instructions since the last turn to the purpose of that turn.
    #[inline(always)]
    pub fn turn(&mut self, esr: u64, stats: &Stats) -> Result<(), Impossible> {
        if let Some(counter) = &mut self.counter {
            let spent = &stats.instructions[self.purpose];
            let count = match counter.usual_since_last(get(&spent.longest)) {
                Ok(count) => count,
                Err(unusual) => spent.longer(counter.count(unusual)?),
            };
            add(&spent.total, count);
            self.purpose = class(esr);
        }
        Ok(())
    }

    /// [`is_for`](Self::is_for), then [`in_pieces`](Self::in_pieces).
    pub fn is_for_pieces(&mut self, purpose: Purpose, stats: &Stats) -> Result<(), Impossible> {
        self.is_for(purpose);
        self.in_pieces(stats)
    }

    /// This turn may have looked for interrupts: counts what it has spent up to the last look, piece by piece, for its
    /// purpose.
    pub fn in_pieces(&mut self, stats: &Stats) -> Result<(), Impossible> {
        let (Some(counter), Some(seen)) = (&mut self.counter, cpus::looks().take()) else { return Ok(()) };
        let spent = &stats.instructions[self.purpose];
        let between = counter.between(seen.first, seen.last);
        let count = counter.until(seen.last)?;
        // These looks may have begun in an earlier turn, which did not take them. The first piece was no longer than
        // this then.
        let first = count.checked_sub(between).unwrap_or(count);
        let _ = spent.longer(first.max(seen.longest));
        add(&spent.total, count);
        Ok(())
    }

    /// Sets the purpose of this turn.
    #[inline(always)]
    pub fn is_for(&mut self, purpose: Purpose) {
        self.purpose = purpose.index();
    }
}

impl Spent {
    /// Notes a stretch, which is perhaps the longest. Returns it.
    #[cold]
    fn longer(&self, count: u64) -> u64 {
        self.longest.store(get(&self.longest).max(count), Ordering::Relaxed);
        count
    }
}

/// Calls `each` with group, name and value of all counts so far, except exits and instructions; always in this order.
pub fn for_each_event<'a>(
    vcpus: impl Iterator<Item = &'a Stats> + Clone,
    memory: &Counts,
    engine: &InstructionCounts,
    mut each: impl FnMut(&str, &str, u64),
) {
    let sum = |of: &dyn Fn(&Stats) -> u64| vcpus.clone().map(of).sum::<u64>();
    for (index, name) in FAULTS.iter().enumerate() {
        each("faults", name, sum(&|stats| get(&stats.faults[index])));
    }
    each("faults", "first_touch", memory.first_touches.iter().sum());
    each("faults", "write", sum(&Stats::write_faults));
    for (level, name) in LEAVES {
        each("mapped", name, memory.mapped[level]);
    }
    each("tables", "allocated", memory.tables_allocated);
    each("tables", "freed", memory.tables_freed);
    each("memory", "frames_zeroed", memory.frames_zeroed);
    engine.for_each(each);
}

/// The figures of one guest.
pub struct Figures<'a> {
    /// Those of its vCPUs.
    pub vcpus: Vec<&'a Stats>,
    /// Those of its memory.
    pub memory: Counts,
    /// Those of the engine.
    pub engine: &'a InstructionCounts,
    /// Its virtio devices.
    pub virtio: &'a VirtioDevices,
    /// Those of its store, if it has one.
    pub swap: Option<swap::figures::Figures>,
}

/// Calls `each` with group, name and value of the figures of one guest, which may run; always in this order. The
/// instructions are there if they are counted.
pub fn for_each_figure(guest: &Figures<'_>, mut each: impl FnMut(&str, &str, u64)) {
    let vcpus = guest.vcpus.iter().copied();
    for_each_event(vcpus.clone(), &guest.memory, guest.engine, &mut each);
    for (level, name) in LEAVES {
        each("first_touches", name, guest.memory.first_touches[level]);
    }
    let sum = |of: &dyn Fn(&Stats) -> u64| vcpus.clone().map(of).sum::<u64>();
    for_each_class(|name, of| each("exits", name, of.map(|class| sum(&|stats| get(&stats.exits[class]))).sum()));
    guest.virtio.for_each_count(&mut each);
    if let Some(swap) = &guest.swap {
        swap.for_each(&mut each);
    }
    let total = sum(&Stats::all_instructions);
    if total != 0 {
        each("el2_instructions", "total", total);
    }
}

/// Writes the figures of all guests together to the control channel.
pub fn report(guests: &[Figures<'_>]) {
    let mut events: Vec<(String, u64)> = Vec::new();
    for (number, guest) in guests.iter().enumerate() {
        let mut place = 0;
        for_each_event(guest.vcpus.iter().copied(), &guest.memory, guest.engine, |group, name, value| {
            match events.get_mut(place) {
                Some((_, sum)) if number != 0 => *sum += value,
                _ => events.push((alloc::format!("{group}.{name}"), value)),
            }
            place += 1;
        });
    }
    for (name, value) in events {
        control::line(twofold_abi::control::STAT, format_args!("{name} {value}"));
    }
    let vcpus = guests.iter().flat_map(|guest| guest.vcpus.iter().copied());
    let sum = |of: &dyn Fn(&Stats) -> u64| vcpus.clone().map(of).sum::<u64>();
    for (level, name) in LEAVES {
        stat("first_touches", name, guests.iter().map(|guest| guest.memory.first_touches[level]).sum());
    }
    stat("heap", "grown", heap::grown());
    VirtioDevices::for_each_sum(guests.iter().map(|guest| guest.virtio), stat);
    // What is so now is so of each guest alone.
    if let Some(all) = guests.iter().filter_map(|guest| guest.swap).reduce(|all, one| all.and(&one)) {
        all.for_each_count(stat);
    }
    for_each_class(|name, of| stat("exits", name, of.map(|class| sum(&|s| get(&s.exits[class]))).sum()));
    let total = sum(&Stats::all_instructions);
    if total != 0 {
        stat("el2_instructions", "total", total);
        let spent = |purpose| sum(&|stats| stats.instructions(purpose));
        for_each_class(|name, of| {
            let other: u64 = of.map(|class| sum(&|stats| get(&stats.instructions[class].total))).sum();
            // A first touch is an abort. That of an instruction fetch is counted here with the data aborts.
            let known: u64 = match name {
                DATA_ABORT => {
                    let device: u64 = DEVICES.map(|(purpose, _)| spent(purpose)).iter().sum();
                    device + spent(Purpose::WriteFault) + LEVELS.map(Purpose::FirstTouch).map(spent).iter().sum::<u64>()
                }
                HVC => spent(Purpose::Phase),
                // A change of vCPU follows an exit, or a wait.
                OTHER => spent(Purpose::Switch),
                _ => 0,
            };
            stat("el2_instructions.by_exit", name, other + known);
        });
        for (level, name) in FIRST_TOUCHES {
            stat("el2_instructions", name, spent(Purpose::FirstTouch(level)));
        }
        stat("el2_instructions", "write_fault", spent(Purpose::WriteFault));
        for (purpose, name) in DEVICES {
            stat("el2_instructions", name, spent(purpose));
        }
        stat("el2_instructions", "vcpu_switch", spent(Purpose::Switch));
        report_masked(&vcpus);
    }
}

/// Writes the longest stretches with interrupts masked. Exits that have a row of their own are not in that of their
/// class.
fn report_masked<'a>(vcpus: &(impl Iterator<Item = &'a Stats> + Clone)) {
    let longest = |index: usize| vcpus.clone().map(|stats| get(&stats.instructions[index].longest)).max().unwrap_or(0);
    for_each_class(|name, of| stat("longest_masked", name, of.map(longest).max().unwrap_or(0)));
    for (level, name) in FIRST_TOUCHES {
        stat("longest_masked", name, longest(Purpose::FirstTouch(level).index()));
    }
    let others = [(Purpose::WriteFault, "write_fault"), (Purpose::Phase, "phase"), (Purpose::Switch, "vcpu_switch")];
    for (purpose, name) in others.iter().chain(&DEVICES) {
        stat("longest_masked", name, longest(purpose.index()));
    }
}

/// The sizes of leaf, by level.
pub(crate) const LEAVES: [(usize, &str); 3] =
    [(3, granule::LEAVES[0]), (2, granule::LEAVES[1]), (1, granule::LEAVES[2])];
/// The devices with a row of their own.
const DEVICES: [(Purpose, &str); 4] =
    [(Purpose::Gic, "gic"), (Purpose::Uart, "uart"), (Purpose::Rtc, "rtc"), (Purpose::Virtio, "virtio")];
const LEVELS: [Level; 4] = [Level::L0, Level::L1, Level::L2, Level::L3];
const FIRST_TOUCHES: [(Level, &str); 3] = [
    (Level::L1, granule::FIRST_TOUCHES[2]),
    (Level::L2, granule::FIRST_TOUCHES[1]),
    (Level::L3, granule::FIRST_TOUCHES[0]),
];

/// Calls `each` with the name of each group of exception classes and its members.
fn for_each_class(mut each: impl FnMut(&str, &mut dyn Iterator<Item = usize>)) {
    for (class, name) in NAMES {
        each(name, &mut core::iter::once(class));
    }
    each(OTHER, &mut (0..CLASSES).filter(|class| name(*class) == OTHER));
}

const NAMES: [(usize, &str); 6] = [
    (0x16, HVC),
    (0x17, "smc"),
    (0x18, "system_register"),
    (0x20, "instruction_abort"),
    (0x24, DATA_ABORT),
    (0x3f, "interrupt"),
];
const HVC: &str = "hvc";
const DATA_ABORT: &str = "data_abort";
const OTHER: &str = "other";

fn name(class: usize) -> &'static str {
    NAMES.iter().find(|(known, _)| *known == class).map_or(OTHER, |(_, name)| name)
}

fn stat(group: &str, name: &str, value: u64) {
    control::line(twofold_abi::control::STAT, format_args!("{group}.{name} {value}"));
}

fn class(esr: u64) -> usize {
    (esr >> 26 & 0x3f) as usize
}

fn add(counter: &AtomicU64, more: u64) {
    counter.store(get(counter) + more, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
