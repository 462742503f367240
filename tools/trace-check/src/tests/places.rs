// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The places of a recorded trace at which each corruption applies, so that the changed trace breaks a rule.

use std::collections::{HashMap, HashSet};

use twofold_abi::trace::{Dc, Domain, Event, How, Line, Order, Tlbi};

use crate::debts::{Debt, Kind};
use crate::guests::{root_of, vmid_of};
use crate::operands::{Formats, What};
use crate::rules::Rule;
use crate::state::Checker;
use crate::tables::page_of;

/// The replaced events, by index in the trace, each with its replacement; `None` removes the event.
pub type Edit = Vec<(usize, Option<Event<'static>>)>;

/// A kind of corruption.
#[derive(Clone)]
pub struct Corruption {
    pub name: &'static str,
    /// The rule that it breaks.
    pub rule: Rule,
    /// The places where it applies.
    pub edits: Vec<Edit>,
}

pub type Places = Vec<Corruption>;

fn places<const N: usize>(all: [(&'static str, Rule, Vec<Edit>); N]) -> Places {
    all.into_iter().map(|(name, rule, edits)| Corruption { name, rule, edits }).collect()
}

/// Returns corruptions of all kinds. The checker contributes one fact only: the entries that are due to be flushed when
/// a flush begins.
pub fn of(events: &[Line<'_>]) -> Places {
    [&tables(events)[..], &orders(events), &entries(events), &operands(events), &guests(events), &flushes(events)]
        .concat()
}

fn is_valid(entry: u64) -> bool {
    entry & 1 != 0
}

fn is_tracked(entry: u64) -> bool {
    is_valid(entry) && entry >> 51 & 1 != 0
}

/// A page that was taken for a table and is not linked yet.
#[derive(Default)]
struct Taken {
    /// The events that zeroed the page.
    zeroed: Vec<usize>,
    /// The events that wrote each entry.
    written: HashMap<u64, Vec<usize>>,
    /// The tables that its entries point to.
    below: Vec<u64>,
    last: usize,
}

/// Tables that are not filled, or that are linked without ordering after their entries.
fn tables(events: &[Line<'_>]) -> Places {
    let (mut zero, mut entry, mut link) = (Vec::new(), Vec::new(), Vec::new());
    let mut taken: HashMap<u64, Taken> = HashMap::new();
    let mut ordered: HashMap<u32, usize> = HashMap::new();
    for (at, line) in events.iter().enumerate() {
        match line.event {
            Event::TableTaken { pa } => drop(taken.insert(pa, Taken::default())),
            Event::TableFreed { pa } => drop(taken.remove(&pa)),
            Event::Dc { operation: Dc::Zva, pa, .. } => {
                if let Some(page) = taken.get_mut(&pa) {
                    page.zeroed.push(at);
                    page.last = at;
                }
            }
            Event::Fence { .. } | Event::Dsb { domain: Domain::Ish | Domain::IshSt } => {
                ordered.insert(line.cpu, at);
            }
            Event::Write { pa, new, .. } => {
                let leads_to = new & 0xffff_ffff_f000;
                let is_link = new & 3 == 3 && taken.contains_key(&leads_to);
                if let Some(page) = taken.get_mut(&page_of(pa)) {
                    page.written.entry(pa).or_default().push(at);
                    page.last = at;
                    if is_link {
                        page.below.push(leads_to);
                    }
                } else if is_link {
                    let last = taken[&leads_to].last;
                    if ordered.get(&line.cpu).is_none_or(|ordered| *ordered < last) {
                        link.push(relaxed(at, line));
                    }
                    linked(&mut taken, leads_to, &mut zero, &mut entry);
                }
            }
            _ => {}
        }
    }
    places([
        ("a new table is never zeroed", Rule::TableNotReady, zero),
        ("one entry is never written", Rule::TableNotReady, entry),
        ("a link has no order", Rule::TableNotReady, link),
    ])
}

fn linked(taken: &mut HashMap<u64, Taken>, pa: u64, zero: &mut Vec<Edit>, entry: &mut Vec<Edit>) {
    let Some(page) = taken.remove(&pa) else { return };
    if page.zeroed.is_empty() {
        entry.extend(page.written.into_values().map(removed));
    } else {
        zero.push(removed(page.zeroed));
    }
    page.below.into_iter().for_each(|below| linked(taken, below, zero, entry));
}

fn removed(events: Vec<usize>) -> Edit {
    events.into_iter().map(|at| (at, None)).collect()
}

fn relaxed(at: usize, line: &Line<'_>) -> Edit {
    let Event::Write { pa, old, new, how, .. } = line.event else { unreachable!("a write") };
    vec![(at, Some(Event::Write { pa, old, new, how, order: Order::Relaxed }))]
}

/// Stores without their release, and missing publication.
fn orders(events: &[Line<'_>]) -> Places {
    let (mut all, mut leaf, mut publication) = (Vec::new(), Vec::new(), Vec::new());
    // For each CPU: whether a fence or barrier followed the last lock; whether an entry was made after the last
    // barrier; that barrier's index.
    let mut taken = HashSet::new();
    let mut ordered: HashMap<u32, bool> = HashMap::new();
    let mut made: HashMap<u32, bool> = HashMap::new();
    let mut barrier: HashMap<u32, Option<usize>> = HashMap::new();
    for (at, line) in events.iter().enumerate() {
        let publishes = barrier.insert(line.cpu, None).flatten();
        match line.event {
            Event::TableTaken { pa } => drop(taken.insert(pa)),
            Event::TableFreed { pa } => drop(taken.remove(&pa)),
            Event::LockTaken { .. } => drop(ordered.insert(line.cpu, false)),
            Event::Fence { .. } => drop(ordered.insert(line.cpu, true)),
            Event::Dsb { domain: Domain::Ish | Domain::IshSt } => {
                ordered.insert(line.cpu, true);
                if made.insert(line.cpu, false) == Some(true) {
                    barrier.insert(line.cpu, Some(at));
                }
            }
            Event::Visible => publication.extend(publishes.map(|at| vec![(at, None)])),
            Event::Write { old, new, order: Order::Release, .. } => {
                all.extend(relaxed(at, line));
                if is_valid(new) && !is_valid(old) {
                    made.insert(line.cpu, true);
                    let is_leaf = !taken.contains(&(new & 0xffff_ffff_f000));
                    if is_leaf && ordered.get(&line.cpu) == Some(&false) {
                        leaf.push(relaxed(at, line));
                    }
                }
            }
            _ => {}
        }
    }
    let all = if all.is_empty() { vec![] } else { vec![all] };
    places([
        ("all releases are relaxed", Rule::FrameNotReady, all),
        ("a leaf is made without a release", Rule::FrameNotReady, leaf),
        ("a publishing DSB is missing", Rule::NotVisible, publication),
    ])
}

/// Entries that are written by another kind of access, or with another value.
fn entries(events: &[Line<'_>]) -> Places {
    let (mut stores, mut tables, mut blocks) = (Vec::new(), Vec::new(), Vec::new());
    let mut taken = HashSet::new();
    for (at, line) in events.iter().enumerate() {
        match line.event {
            Event::TableTaken { pa } => drop(taken.insert(pa)),
            Event::TableFreed { pa } => drop(taken.remove(&pa)),
            Event::Write { pa, old, new, how, order } => {
                if how == How::Rmw && is_tracked(old) {
                    stores.push(vec![(at, Some(Event::Write { pa, old, new, how: How::Store, order }))]);
                }
                // A release store is a store to a table in the tree.
                let is_leaf = is_valid(new) && !taken.contains(&(new & 0xffff_ffff_f000));
                if order != Order::Release || is_valid(old) || !is_leaf {
                    continue;
                }
                let is_page = new & 2 != 0;
                let with_address = |address: u64| {
                    let new = new & !0xffff_ffff_f000 | address;
                    vec![(at, Some(Event::Write { pa, old, new, how, order }))]
                };
                tables.push(with_address(page_of(pa) & if is_page { !0 } else { !0x1f_ffff }));
                if !is_page {
                    blocks.push(with_address(new & 0xffff_ffff_f000 | 0x1000));
                }
            }
            _ => {}
        }
    }
    let all = if stores.is_empty() { vec![] } else { vec![stores.concat()] };
    places([
        ("a read-modify-write of a tracked leaf is a store", Rule::RecordLost, stores),
        ("all read-modify-writes are stores", Rule::RecordLost, all),
        ("a leaf maps a table", Rule::FrameReusedTooEarly, tables),
        ("a block is misaligned", Rule::Malformed, blocks),
    ])
}

/// Operands with reserved bits set.
fn operands(events: &[Line<'_>]) -> Places {
    let (mut reserved, mut superfluous) = (Vec::new(), Vec::new());
    for (at, line) in events.iter().enumerate() {
        let Event::Tlbi { operation, operand, vttbr } = line.event else { continue };
        let with = |operand| vec![(at, Some(Event::Tlbi { operation, operand, vttbr }))];
        if matches!(operation, Tlbi::VmallE1 | Tlbi::VmallE1Is | Tlbi::VmallS12E1Is) {
            superfluous.push(with(0x1000));
        } else {
            reserved.push(with(operand | 1 << 48));
            reserved.push(with(operand | 1 << 62));
            if !matches!(operation, Tlbi::Ripas2E1Is | Tlbi::Ripas2Le1Is) {
                reserved.push(with(operand | 1 << 40));
            }
        }
    }
    places([
        ("reserved bits of an operand are set", Rule::Operand, reserved),
        ("an operation without an operand has one", Rule::Operand, superfluous),
    ])
}

/// The last entry into a guest on a CPU, for a VMID.
#[derive(Clone, Copy)]
struct Ran {
    vcpu: u32,
    /// The invalidation of stage 1 after that entry, if there is only one, and this CPU issued it.
    forgotten: Forgotten,
}

#[derive(Clone, Copy, PartialEq)]
enum Forgotten {
    No,
    At(usize),
    Often,
}

/// Entries into a guest with another VMID or another vCPU.
fn guests(events: &[Line<'_>]) -> Places {
    let (mut vmid, mut vcpus, mut left, mut forget) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut inside: HashMap<u32, (usize, bool)> = HashMap::new();
    let mut ran: HashMap<(u32, u16), Ran> = HashMap::new();
    for (at, line) in events.iter().enumerate() {
        match line.event {
            Event::GuestEntered { vcpu, vttbr } => {
                vmid.push(vec![(at, Some(Event::GuestEntered { vcpu, vttbr: vttbr ^ 1 << 48 }))]);
                left.push(vec![(at, Some(Event::GuestEntered { vcpu: vcpu ^ 1, vttbr }))]);
                let entry = Ran { vcpu, forgotten: Forgotten::No };
                let before = ran.insert((line.cpu, vmid_of(vttbr)), entry);
                let stays = before.is_some_and(|ran| ran.vcpu == vcpu && ran.forgotten == Forgotten::No);
                inside.insert(line.cpu, (at, stays));
                if let Some(Ran { vcpu: other, forgotten: Forgotten::At(at) }) = before
                    && other != vcpu
                {
                    forget.push(vec![(at, None)]);
                }
            }
            Event::GuestLeft { vcpu } => {
                if let Some((entered, true)) = inside.remove(&line.cpu)
                    && let Event::GuestEntered { vttbr, .. } = events[entered].event
                {
                    let other = vcpu ^ 1;
                    vcpus.push(vec![
                        (entered, Some(Event::GuestEntered { vcpu: other, vttbr })),
                        (at, Some(Event::GuestLeft { vcpu: other })),
                    ]);
                }
            }
            Event::Tlbi { operation, vttbr, .. }
                if matches!(operation, Tlbi::VmallE1 | Tlbi::VmallE1Is | Tlbi::VmallS12E1Is) =>
            {
                for ((cpu, vmid), ran) in &mut ran {
                    if *vmid == vmid_of(vttbr) && (*cpu == line.cpu || operation != Tlbi::VmallE1) {
                        let once = ran.forgotten == Forgotten::No && *cpu == line.cpu;
                        ran.forgotten = if once { Forgotten::At(at) } else { Forgotten::Often };
                    }
                }
            }
            _ => {}
        }
    }
    places([
        ("a guest is entered with another VMID", Rule::OtherTree, vmid),
        ("another vCPU is entered than left", Rule::OtherVcpu, left),
        ("another vCPU than the last runs", Rule::OtherVcpu, vcpus),
        ("a vCPU follows another without VMALLE1", Rule::OtherVcpu, forget),
    ])
}

/// Flushes after a permission downgrade, an unmap, or a local permission upgrade: each instruction is left out, and
/// weakened.
fn flushes(events: &[Line<'_>]) -> Places {
    let names = [
        "a downgrade: no DSB",
        "a downgrade: a DSB is local",
        "a downgrade: no DSB for loads",
        "a downgrade: no TLBI",
        "a downgrade: a TLBI is local",
        "a downgrade: no ISB",
        "an unmap: no DSB",
        "an unmap: a DSB is local",
        "an unmap: no DSB for loads",
        "an unmap: no TLBI",
        "an unmap: a TLBI is local",
        "an unmap: no ISB",
        "a local relax: no DSB",
        "a local relax: no DSB for loads",
        "a local relax: no TLBI",
        "a local relax: a TLBI of another page",
        "a local relax: no ISB",
    ];
    let mut places: HashMap<&str, Vec<Edit>> = HashMap::new();
    let sequences = sequences(events);
    let mut formats = Formats::default();
    let mut checker = Checker::default();
    for (at, line) in events.iter().enumerate() {
        if let Event::Feature { name, value } = line.event {
            formats.feature(name, value);
        }
        if let Some(sequence) = sequences.get(&at) {
            let (debts, guarded) = match events[sequence.claim].event {
                Event::Flushed { ipa, size, vttbr } => {
                    let own = checker.flushes.own(root_of(vttbr), &(ipa..ipa + size), line.cpu);
                    if sequence.others_flush(events, &own) {
                        checker.event(at, line).unwrap();
                        continue;
                    }
                    let is_downgrade = own.iter().any(|debt| debt.kind == Kind::Downgrade);
                    let name = if is_downgrade { "a downgrade" } else { "an unmap" };
                    (own, name)
                }
                _ => (Vec::new(), "a local relax"),
            };
            if !debts.is_empty() || guarded == "a local relax" {
                for (what, edit) in sequence.edits(events, &formats, &debts) {
                    let name = format!("{guarded}: {what}");
                    let name = names.iter().find(|known| **known == name).expect("a name");
                    places.entry(name).or_default().push(edit);
                }
            }
        }
        checker.event(at, line).unwrap();
    }
    let of = |name: &'static str| {
        // R5 covers what other CPUs' TLBs hold. R11 covers this CPU's own TLB, and so progress.
        let is_local = name.starts_with("a local relax") && !name.ends_with("no ISB");
        let rule = if is_local { Rule::NoProgress } else { Rule::StillCached };
        Corruption { name, rule, edits: places.remove(name).unwrap_or_default() }
    };
    names.map(of).into()
}

/// The consecutive flush instructions of one CPU before it claims a flush.
struct Sequence {
    instructions: Vec<usize>,
    claim: usize,
}

/// Returns the sequences by the index of their first instruction.
fn sequences(events: &[Line<'_>]) -> HashMap<usize, Sequence> {
    let mut sequences = HashMap::new();
    let mut open: HashMap<u32, Vec<usize>> = HashMap::new();
    for (at, line) in events.iter().enumerate() {
        let instructions = open.entry(line.cpu).or_default();
        match line.event {
            Event::Dsb { domain: Domain::IshSt | Domain::NshSt } => *instructions = vec![at],
            Event::Tlbi { .. } | Event::Dsb { .. } | Event::Isb | Event::Vttbr { .. } if !instructions.is_empty() => {
                instructions.push(at);
            }
            Event::Flushed { .. } | Event::FlushedHere { .. } if !instructions.is_empty() => {
                let sequence = Sequence { instructions: std::mem::take(instructions), claim: at };
                sequences.insert(sequence.instructions[0], sequence);
            }
            _ => instructions.clear(),
        }
    }
    sequences
}

impl Sequence {
    /// Returns whether another CPU may have flushed these debts.
    fn others_flush(&self, events: &[Line<'_>], debts: &[Debt]) -> bool {
        let Some(first) = debts.iter().map(|debt| debt.at).min() else { return false };
        let cpu = events[self.claim].cpu;
        let is_flush = |line: &Line<'_>| match line.event {
            Event::Tlbi { vttbr, .. } => debts.iter().any(|debt| debt.vmid == vmid_of(vttbr)),
            _ => false,
        };
        events[first..self.claim].iter().any(|line| line.cpu != cpu && is_flush(line))
    }

    fn edits(&self, events: &[Line<'_>], formats: &Formats, debts: &[Debt]) -> Vec<(&'static str, Edit)> {
        let mut edits = Vec::new();
        let is_local = matches!(events[self.claim].event, Event::FlushedHere { .. });
        let isbs = self.instructions.iter().rev().take_while(|at| !matches!(events[**at].event, Event::Dsb { .. }));
        let isbs = isbs.filter(|at| events[**at].event == Event::Isb).count();
        let last_barrier = self.instructions.iter().rposition(|at| matches!(events[*at].event, Event::Dsb { .. }));
        for (number, at) in self.instructions.iter().copied().enumerate() {
            let instead = |event| vec![(at, Some(event))];
            match events[at].event {
                // An earlier barrier has made the change visible, so this one is not needed.
                Event::Dsb { .. } if number == 0 && self.is_visible_before(events, debts) => {}
                Event::Dsb { domain } => {
                    edits.push(("no DSB", vec![(at, None)]));
                    if !is_local {
                        let local = if domain == Domain::Ish { Domain::Nsh } else { Domain::NshSt };
                        edits.push(("a DSB is local", instead(Event::Dsb { domain: local })));
                    }
                    if matches!(domain, Domain::Ish | Domain::Nsh) {
                        edits.push(("no DSB for loads", instead(Event::Dsb { domain: Domain::IshSt })));
                    }
                }
                Event::Tlbi { operation, operand, vttbr } => {
                    if !is_local && !self.is_needed(events, formats, at, debts) {
                        continue;
                    }
                    edits.push(("no TLBI", vec![(at, None)]));
                    if is_local && operation == Tlbi::Ipas2E1 {
                        let other = Event::Tlbi { operation, operand: operand ^ 1, vttbr };
                        edits.push(("a TLBI of another page", instead(other)));
                    }
                    let local = match operation {
                        Tlbi::Ipas2E1Is | Tlbi::Ipas2Le1Is => Tlbi::Ipas2E1,
                        Tlbi::VmallE1Is => Tlbi::VmallE1,
                        _ => continue,
                    };
                    edits.push(("a TLBI is local", instead(Event::Tlbi { operation: local, operand, vttbr })));
                }
                Event::Isb if isbs == 1 && last_barrier.is_some_and(|last| number > last) => {
                    edits.push(("no ISB", vec![(at, None)]));
                }
                _ => {}
            }
        }
        edits
    }

    /// Returns whether an earlier barrier followed the last change, so that the first one here is not needed.
    fn is_visible_before(&self, events: &[Line<'_>], debts: &[Debt]) -> bool {
        let Some(last) = debts.iter().map(|debt| debt.at).max() else { return false };
        let (first, cpu) = (self.instructions[0], events[self.claim].cpu);
        let is_barrier = |line: &Line<'_>| matches!(line.event, Event::Dsb { domain: Domain::Ish | Domain::IshSt });
        events[last..first].iter().any(|line| line.cpu == cpu && is_barrier(line))
    }

    /// Returns whether this TLBI is the only one that names some changed entry.
    fn is_needed(&self, events: &[Line<'_>], formats: &Formats, at: usize, debts: &[Debt]) -> bool {
        let names = |at: usize, debt: &Debt| {
            let Event::Tlbi { operation, operand, .. } = events[at].event else { return false };
            match formats.decode(operation, operand).unwrap().what {
                What::ByIpa { range, .. } => range.start < debt.range().end && debt.range().start < range.end,
                What::Combined => false,
                What::All => true,
            }
        };
        let Event::Tlbi { operation, .. } = events[at].event else { return false };
        if operation == Tlbi::VmallE1Is {
            return true;
        }
        let alone = |debt: &Debt| self.instructions.iter().filter(|other| names(**other, debt)).count() == 1;
        debts.iter().any(|debt| names(at, debt) && alone(debt))
    }
}
