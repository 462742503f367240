// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is still to be flushed, and what a TLB invalidation flushes (Arm ARM D8.16, C5.5).
//!
//! An entry that was broken is flushed when, in this order: a DSB has made the break visible; a TLBI that names its
//! address, level and VMID was issued by that CPU; its DSB is complete; the same again with `VMALLE1IS`, for what was
//! combined with stage 1 before. `VMALLS12E1IS` stands for both.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use twofold_abi::trace::{Domain, Tlbi};

use super::tables::{Entry, Place};

/// An entry that was broken, and is not flushed.
pub struct Debt {
    /// The root of its tree.
    pub tree: u64,
    /// When it was broken, or written last in a table that was.
    pub at: usize,
    /// The event that broke it, or the table above it.
    pub group: usize,
    vmid: u16,
    range: Range<u64>,
    level: u32,
    /// What it was.
    entry: Entry,
    /// It led to a table: operations for the last level are not enough.
    table: bool,
    /// When the invalidation of stage 2 was complete.
    invalidated: Option<usize>,
}

impl Debt {
    pub fn new(place: Place, vmid: u16, entry: Entry, at: usize, group: usize) -> Self {
        let (tree, level) = (place.tree, place.level);
        let table = entry.table_at(level).is_some();
        Self { tree, at, group, vmid, range: place.range(), level, entry, table, invalidated: None }
    }

    /// Whether it is of a leaf that `new` puts back, but for what may change without a break: then nothing is broken any
    /// more, and what a TLB still holds is as good as after such a change (Arm ARM D8.16.1).
    pub fn is_undone_by(&self, place: Place, new: Entry) -> bool {
        let same_place = (self.tree, &self.range) == (place.tree, &place.range());
        same_place && !self.table && self.group == self.at && !self.entry.needs_break_before(new, self.level)
    }

    /// Whether it is of something in `range` of that tree.
    pub fn is_in(&self, tree: u64, range: Range<u64>) -> bool {
        self.tree == tree && overlap(&self.range, &range)
    }
}

/// What is missing.
impl fmt::Display for Debt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.table { "the table" } else { "the leaf" };
        write!(f, "{what} of level {} at IPA {:#x} is not flushed: ", self.level, self.range.start)?;
        f.write_str(match self.invalidated {
            None => "no TLBI that names it between DSB ISHST and DSB ISH",
            Some(_) => "no VMALLE1IS and DSB ISH after its TLBI was complete",
        })
    }
}

/// What is to be flushed, and what each CPU is flushing.
#[derive(Default)]
pub struct Flushes {
    open: Vec<Debt>,
    cpus: HashMap<u32, Cpu>,
}

#[derive(Default)]
struct Cpu {
    /// What was written before this event is visible to walks.
    visible: Option<usize>,
    issued: Vec<Issued>,
}

/// A TLBI whose DSB is still to come.
struct Issued {
    at: usize,
    visible: usize,
    vmid: u16,
    what: What,
}

enum What {
    /// Stage 2, where an address of `range` is translated.
    ByIpa {
        range: Range<u64>,
        last_level: bool,
        level: Option<u32>,
    },
    /// Stage 1, and what was combined with it.
    Combined,
    All,
}

impl Flushes {
    pub fn owe(&mut self, debt: Debt) {
        self.open.push(debt);
    }

    pub fn find(&self, mut wanted: impl FnMut(&Debt) -> bool) -> Option<&Debt> {
        self.open.iter().find(|debt| wanted(debt))
    }

    /// Forgets all such debts, and tells the first.
    pub fn take(&mut self, mut wanted: impl FnMut(&Debt) -> bool) -> Option<Debt> {
        let mut first = None;
        for debt in self.open.extract_if(.., |debt| wanted(debt)) {
            first.get_or_insert(debt);
        }
        first
    }

    /// A CPU issues an invalidation.
    pub fn issue(&mut self, at: usize, cpu: u32, operation: Tlbi, operand: u64, vttbr: u64) {
        let cpu = self.cpus.entry(cpu).or_default();
        // Where nothing was made visible before, a walk may bring back what goes.
        let (Some(visible), Some(what)) = (cpu.visible, decode(operation, operand)) else { return };
        cpu.issued.push(Issued { at, visible, vmid: (vttbr >> 48) as u16, what });
    }

    /// A CPU waits.
    pub fn barrier(&mut self, at: usize, cpu: u32, domain: Domain) {
        if !matches!(domain, Domain::Ish | Domain::IshSt) {
            return;
        }
        let cpu = self.cpus.entry(cpu).or_default();
        cpu.visible = Some(at);
        if domain == Domain::Ish {
            for issued in cpu.issued.drain(..) {
                self.open.retain_mut(|debt| !issued.completes(debt, at));
            }
        }
    }
}

impl Issued {
    /// Complete by now: whether that was the rest of what was to be flushed.
    fn completes(&self, debt: &mut Debt, now: usize) -> bool {
        if debt.vmid != self.vmid || debt.at >= self.visible {
            return false;
        }
        match &self.what {
            What::ByIpa { range, last_level, level } => {
                let level_fits = level.is_none_or(|level| level == debt.level && !debt.table);
                if overlap(range, &debt.range) && level_fits && !(*last_level && debt.table) {
                    debt.invalidated.get_or_insert(now);
                }
                false
            }
            What::Combined => debt.invalidated.is_some_and(|then| then < self.at),
            What::All => true,
        }
    }
}

/// What an operation invalidates on all CPUs; `None` for what is of one CPU only, or names nothing.
fn decode(operation: Tlbi, operand: u64) -> Option<What> {
    let last_level = matches!(operation, Tlbi::Ipas2Le1Is | Tlbi::Ripas2Le1Is);
    match operation {
        Tlbi::Ipas2E1 | Tlbi::VmallE1 => None,
        Tlbi::Ipas2E1Is | Tlbi::Ipas2Le1Is => {
            let ipa = (operand & 0xff_ffff_ffff) << 12;
            // TTL: 0b01 is the 4 KiB granule, and then the level; 0b00 says nothing.
            let level = match (operand >> 46 & 3, operand >> 44 & 3) {
                (0b01, level @ 1..) => Some(level as u32),
                (0b00, _) => None,
                _ => return None,
            };
            Some(What::ByIpa { range: ipa..ipa + 1, last_level, level })
        }
        Tlbi::Ripas2E1Is | Tlbi::Ripas2Le1Is => {
            // TG: 0b01 is the 4 KiB granule.
            if operand >> 46 & 3 != 0b01 {
                return None;
            }
            let (scale, num, hint) = (operand >> 44 & 3, operand >> 39 & 0x1f, operand >> 37 & 3);
            let ipa = (operand & 0x1f_ffff_ffff) << 12;
            let pages = (num + 1) << (5 * scale + 1);
            let level = (hint != 0).then_some(hint as u32);
            Some(What::ByIpa { range: ipa..ipa + (pages << 12), last_level, level })
        }
        Tlbi::VmallE1Is => Some(What::Combined),
        Tlbi::VmallS12E1Is => Some(What::All),
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}
