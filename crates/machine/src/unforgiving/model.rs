// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of the unforgiving machine, and what each event does to it.
//!
//! Invariant: whoever calls has the turn, so events come one after the other. An event that breaks a rule changes nothing
//! more: the run is over.

use std::collections::{HashMap, VecDeque};
use std::panic::Location;
use std::sync::Arc;

use twofold_abi::trace::{self, Event};
use twofold_stage2::platform::{Domain, Ic, Tlbi};
use twofold_stage2::{Features, Ipa, IpaRange, Pa};

use super::bbm::Bbm;
use super::breach::{Change, Rule};
use super::cells::Cells;
use super::clock::{Clock, Moment};
use super::lines::Lines;
use super::stale::{CpuSet, Kind, Stale, StaleEntries};
use super::tables::{PAGE, Page, Place, Root, Standing, Tables};
use super::trace::Trace;
use crate::arena::Arena;
use crate::tlbi::Reach;
use crate::walk;

/// A rule is broken.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) rule: Rule,
    pub(crate) what: String,
    pub(crate) ipa: Option<u64>,
    /// The entries that it is about.
    pub(crate) entries: Vec<u64>,
}

impl Broken {
    pub(crate) fn new(rule: Rule, what: impl Into<String>) -> Box<Self> {
        Box::new(Self { rule, what: what.into(), ipa: None, entries: Vec::new() })
    }

    pub(crate) fn at(mut self: Box<Self>, ipa: u64, entries: &[u64]) -> Box<Self> {
        self.ipa = Some(ipa);
        self.entries = entries.to_vec();
        self
    }
}

/// What happens at an event.
pub(crate) type Outcome<T = ()> = Result<T, Box<Broken>>;

/// The machine's state.
pub(crate) struct Model {
    pub(crate) features: Features,
    pub(crate) bbm: Bbm,
    pub(crate) arena: Arc<Arena>,
    pub(crate) cells: Cells,
    pub(crate) stale: StaleEntries,
    pub(crate) tables: Tables,
    pub(crate) lines: Lines,
    pub(crate) cpus: Vec<Cpu>,
    pub(crate) step: u64,
    pub(super) trace: Option<Trace>,
    /// The last changes of entries.
    changes: VecDeque<Change>,
}

/// One CPU.
#[derive(Debug, Default)]
pub(crate) struct Cpu {
    /// `VTTBR_EL2` as it was written.
    pub(crate) vttbr: u64,
    /// As it has taken effect, at a context synchronization.
    pub(crate) effective: u64,
    /// The pages whose locks it has, in the order in which it took them.
    locks: Vec<u64>,
    /// The tables that it took out since its last invalidation.
    unlinked: Vec<u64>,
    /// Whether it is between a translation and the access that it is for.
    pub(crate) accesses: bool,
    /// Lines that it cleaned, and what it invalidated of instruction caches: not complete yet.
    cleaned: Vec<(u64, u64)>,
    code: Vec<(Option<(u64, u64)>, Clock)>,
    /// TLB invalidations that it issued.
    pub(crate) invalidations: u64,
    /// Its last `DSB`s for loads and stores, and their steps.
    barriers: VecDeque<(Moment, u64)>,
    /// What was complete at its last `DSB ISH`.
    complete: Clock,
    /// Of each VMID, the vCPU whose stage-1 entries may be cached.
    pub(crate) vcpus: HashMap<u16, u32>,
    /// Stage-1 invalidations that are not complete: VMID, and whether on all CPUs.
    stage1: Vec<(u16, bool, bool)>,
}

/// So many changes are remembered for reports.
const REMEMBERED: usize = 1 << 16;
/// And so many barriers of each CPU.
const BARRIERS: usize = 64;

impl Model {
    pub(crate) fn new((features, bbm): (Features, Bbm), arena: Arc<Arena>, cpus: usize) -> Self {
        Self {
            features,
            bbm,
            arena,
            cells: Cells::new(cpus),
            stale: StaleEntries::default(),
            tables: Tables::default(),
            lines: Lines::default(),
            cpus: (0..cpus).map(|_| Cpu::default()).collect(),
            step: 0,
            trace: None,
            changes: VecDeque::new(),
        }
    }

    /// The last changes of these entries.
    pub(crate) fn changes_of(&self, entries: &[u64]) -> Vec<Change> {
        const SHOWN: usize = 8;
        let about = |change: &&Change| entries.contains(&change.entry.raw());
        let mut found: Vec<_> = self.changes.iter().rev().filter(about).take(SHOWN).copied().collect();
        found.reverse();
        found
    }

    pub(crate) fn note(&mut self, change: Change) {
        if self.changes.len() == REMEMBERED {
            self.changes.pop_front();
        }
        self.changes.push_back(change);
    }

    fn all(&self) -> CpuSet {
        ((1u16 << self.cpus.len()) - 1) as u8
    }

    // Entries.

    /// Software has written an entry, or a word of a page that may be a table.
    pub(crate) fn written(
        &mut self,
        cpu: usize,
        pa: u64,
        (old, new): (u64, u64),
        moment: Moment,
        site: Option<&'static Location<'static>>,
    ) -> Outcome {
        if old != new {
            self.note(Change { step: self.step, cpu, entry: Pa::new(pa), old, new, site });
        }
        let Some(page) = self.tables.of(pa) else {
            let what = format!("{old:#x} -> {new:#x} is written to {pa:#x}, which is in no table");
            return Err(Broken::new(Rule::LateWrite, what).at(0, &[pa]));
        };
        match page.standing {
            Standing::Loose => Ok(()),
            Standing::Unlinked(..) | Standing::Closed(_) if old == new => Ok(()),
            Standing::Closed(place) => {
                let what = format!("{old:#x} -> {new:#x} is written in a table that was taken out of the tree");
                Err(Broken::new(Rule::LateWrite, what).at(place.ipa_of(pa), &[pa]))
            }
            // Who was inside may end what it does, until that is flushed: what it made is flushed too then.
            Standing::Unlinked(place, unlinked) => {
                self.stale.changed_too(pa, moment);
                self.written_in_tree(cpu, place, pa, (old, new), moment)?;
                if Shape::of(new, place.level) == Shape::Leaf {
                    let (root, at) = (*self.tables.root(place.root), (place.ipa_of(pa), place.level, pa));
                    self.add_stale(&root, place.root, at, (new, Kind::Leaf, true), unlinked);
                }
                Ok(())
            }
            Standing::Linked(place) => self.written_in_tree(cpu, place, pa, (old, new), moment),
        }
    }

    fn written_in_tree(
        &mut self,
        cpu: usize,
        place: Place,
        pa: u64,
        (old, new): (u64, u64),
        moment: Moment,
    ) -> Outcome {
        let (level, ipa) = (place.level, place.ipa_of(pa));
        let holder = self.tables.locked_by(pa & !(PAGE - 1));
        // Until a root is loaded for the first time, it is its maker's alone.
        let is_new = place.level == self.tables.root(place.root).level && !self.tables.root(place.root).was_loaded;
        if !is_new && !self.cpus[cpu].locks.contains(&holder) {
            let what = format!("{old:#x} -> {new:#x}, without the lock of the table at {holder:#x}");
            return Err(Broken::new(Rule::NoLock, what).at(ipa, &[pa]));
        }
        let (was, is) = (Shape::of(old, level), Shape::of(new, level));
        if is != Shape::Invalid {
            self.expose(place.root);
        }
        let resized = self.is_resized(old, new, ipa, level);
        let same = resized || is_same_mapping(old & !self.flags(old, level), new & !self.flags(new, level), level);
        if was != Shape::Invalid && is != Shape::Invalid && !same {
            let what = format!("{old:#018x} becomes {new:#018x} in one step, a {was:?} of level {level} a {is:?}");
            return Err(Broken::new(Rule::LiveChange, what).at(ipa, &[pa]));
        }
        if was == Shape::Invalid && is != Shape::Invalid {
            self.check_make(place, pa, ipa, new)?;
        }
        let root = *self.tables.root(place.root);
        match was {
            Shape::Table if old & ADDRESS != new & ADDRESS || is != Shape::Table => {
                self.unlink((old & ADDRESS, root), (ipa, level, pa), old, moment);
            }
            Shape::Leaf if resized => {
                self.add_stale(&root, place.root, (ipa, level, pa), (old, Kind::Leaf, false), moment);
            }
            Shape::Leaf if gave_more(old, new) => {
                self.add_stale(&root, place.root, (ipa, level, pa), (old, Kind::Leaf, is == Shape::Invalid), moment);
            }
            Shape::Leaf if is == Shape::Leaf && gave_less(old, new) => {
                self.add_stale(&root, place.root, (ipa, level, pa), (old, Kind::Narrower, false), moment);
            }
            _ => {}
        }
        match is {
            Shape::Table if was != Shape::Table => {
                self.link(new & ADDRESS, Place { root: place.root, ipa, level: level + 1 }, pa)
            }
            Shape::Leaf if was == Shape::Invalid => self.check_frame(pa, ipa, (level, new)),
            _ => Ok(()),
        }
    }

    /// An entry is made where none was.
    fn check_make(&self, place: Place, pa: u64, ipa: u64, new: u64) -> Outcome {
        let range = Ipa::new(ipa)..Ipa::new(ipa + walk::span(place.level));
        let is_table = Shape::of(new, place.level) == Shape::Table;
        let vmid = self.tables.root(place.root).vmid;
        for stale in self.stale.iter().filter(|stale| stale.vmid == vmid && stale.root == place.root) {
            // Break-before-make has no context synchronization in it (Arm ARM D8.16.1).
            if !stale.overlaps(&range) || stale.kind == Kind::Narrower || stale.is_gone() {
                continue;
            }
            let conflicts = match stale.kind {
                // A walk goes on through the old table, below an entry that is a leaf or another table by now.
                Kind::Table => {
                    stale.entry == pa
                        && if is_table { stale.raw & ADDRESS != new & ADDRESS } else { !self.bbm.allows(new) }
                }
                // A table is no TLB entry of its own; what is made in it is looked at then, or when it is linked.
                Kind::Leaf if is_table => stale.entry == pa && !self.is_resized(stale.raw, new, ipa, place.level),
                Kind::Leaf => {
                    let offset = ipa.max(stale.ipa);
                    let output = |raw: u64, start: u64, level| walk::stage2::output(raw, level, start);
                    let block = if stale.level < place.level { stale.raw } else { new };
                    stale.level != place.level && !self.bbm.allows(block)
                        || output(stale.raw, offset, stale.level) != output(new, offset, place.level)
                        || (stale.raw ^ new) & MEMORY != 0
                }
                Kind::Narrower => false,
            };
            if conflicts {
                let what = format!("{new:#018x} of level {} is made while TLBs may hold {}", place.level, stale.held());
                return Err(Broken::new(Rule::MakeBeforeFlush, what).at(ipa, &[pa, stale.entry]));
            }
        }
        Ok(())
    }

    /// Whether a block gives its place to a table, or takes one's, that maps the same, where CPUs take that without a break.
    fn is_resized(&self, old: u64, new: u64, ipa: u64, level: u8) -> bool {
        let (block, table) = match (Shape::of(old, level), Shape::of(new, level)) {
            (Shape::Leaf, Shape::Table) => (old, new),
            (Shape::Table, Shape::Leaf) => (new, old),
            _ => return false,
        };
        self.bbm.allows(block) && self.maps_the_same(table & ADDRESS, (ipa, level + 1), (block, level))
    }

    /// Whether what is mapped by a table is mapped as by this block.
    fn maps_the_same(&self, table: u64, (ipa, level): (u64, u8), (block, above): (u64, u8)) -> bool {
        (0..PAGE / 8).all(|index| {
            let (raw, here) = (self.read(table + index * 8), ipa + index * walk::span(level));
            match Shape::of(raw, level) {
                Shape::Invalid => true,
                Shape::Table => self.maps_the_same(raw & ADDRESS, (here, level + 1), (block, above)),
                Shape::Leaf => {
                    let output = |raw, level| walk::stage2::output(raw, level, here);
                    output(raw, level) == output(block, above) && (raw ^ block) & MEMORY == 0
                }
            }
        })
    }

    /// The bits of a block that are no address where CPUs have FEAT_BBM.
    fn flags(&self, raw: u64, level: u8) -> u64 {
        if level < 3 && Shape::of(raw, level) == Shape::Leaf { self.bbm.flags() } else { 0 }
    }

    /// The leaf that translates an address now, and its level.
    pub(crate) fn leaf_of(&self, root: usize, ipa: u64) -> Option<(u64, u8)> {
        let root = self.tables.root(root);
        let (mut level, mut entry) = (root.level, root.pa + ipa / walk::span(root.level) * 8);
        loop {
            let raw = self.read(entry);
            match Shape::of(raw, level) {
                Shape::Invalid => return None,
                Shape::Leaf => return Some((raw, level)),
                Shape::Table => level += 1,
            }
            entry = (raw & ADDRESS) + ipa / walk::span(level) % (PAGE / 8) * 8;
        }
    }

    /// A table is linked: all that is in it has to be visible before, down to the last table.
    fn link(&mut self, page: u64, place: Place, entry: u64) -> Outcome {
        let Some(Page { taken, standing: Standing::Loose }) = self.tables.of(page) else {
            let what = format!("{page:#x} is linked, and is no page that was taken for a table");
            return Err(Broken::new(Rule::LateWrite, what).at(place.ipa, &[entry]));
        };
        let told = self.arena.word(Pa::new(entry)).map(|word| self.cells.last_tells_walks(word)).unwrap_or_default();
        for index in 0..PAGE / 8 {
            let at = page + index * 8;
            let Some(word) = self.arena.word(Pa::new(at)) else { continue };
            if !self.cells.last_moment(word).is_some_and(|written| told.knows(written)) {
                let what = format!(
                    "the table at {page:#x} is linked, and a walk may still see what was in it before step {taken}, \
                     in entry {index}"
                );
                return Err(Broken::new(Rule::TableNotReady, what).at(place.ipa, &[entry, at]));
            }
        }
        self.tables.set(page, Standing::Linked(place));
        for index in 0..PAGE / 8 {
            let at = page + index * 8;
            let raw = self.read(at);
            let here = place.ipa_of(at);
            match Shape::of(raw, place.level) {
                Shape::Invalid => {}
                Shape::Table => {
                    self.link(raw & ADDRESS, Place { root: place.root, ipa: here, level: place.level + 1 }, at)?;
                }
                Shape::Leaf => {
                    self.check_make_leaf(place, at, here, raw)?;
                    self.check_frame(entry, here, (place.level, raw))?;
                }
            }
        }
        Ok(())
    }

    /// A leaf in a table that is linked now.
    fn check_make_leaf(&self, place: Place, pa: u64, ipa: u64, raw: u64) -> Outcome {
        if self.stale.is_empty() { Ok(()) } else { self.check_make(place, pa, ipa, raw) }
    }

    /// What is behind a new leaf has to be written before: before the entry at `pa` leads to it.
    fn check_frame(&self, pa: u64, ipa: u64, (level, new): (u8, u64)) -> Outcome {
        let told = self.arena.word(Pa::new(pa)).map(|word| self.cells.last_tells_walks(word)).unwrap_or_default();
        let start = walk::stage2::output(new, level, ipa);
        if self.lines.is_known(start, walk::span(level), &told) {
            return Ok(());
        }
        let what = format!("the leaf {new:#018x} may be seen before what the hypervisor wrote to its frame");
        Err(Broken::new(Rule::FrameNotReady, what).at(ipa, &[pa]))
    }

    /// A table's entry is broken: it, and all that was reached through it, may be cached.
    fn unlink(&mut self, (page, root): (u64, Root), (ipa, level, pa): (u64, u8, u64), raw: u64, moment: Moment) {
        let Some(Page { standing: Standing::Linked(place), .. }) = self.tables.of(page) else { return };
        self.add_stale(&root, place.root, (ipa, level, pa), (raw, Kind::Table, true), moment);
        self.tables.set(page, Standing::Unlinked(place, moment));
        self.cpus[usize::from(moment.cpu)].unlinked.push(page);
        for index in 0..PAGE / 8 {
            let at = page + index * 8;
            let raw = self.read(at);
            let here = place.ipa_of(at);
            match Shape::of(raw, place.level) {
                Shape::Invalid => {}
                Shape::Table => self.unlink((raw & ADDRESS, root), (here, place.level, at), raw, moment),
                Shape::Leaf => {
                    self.add_stale(&root, place.root, (here, place.level, at), (raw, Kind::Leaf, true), moment);
                }
            }
        }
    }

    fn add_stale(
        &mut self,
        root: &Root,
        number: usize,
        place: (u64, u8, u64),
        (raw, kind, removed): (u64, Kind, bool),
        moment: Moment,
    ) {
        // Without access flag no TLB holds it (Arm ARM D8.5.1).
        if kind == Kind::Table || raw & ACCESSED != 0 {
            self.stale.add(Stale::new(
                (root.vmid, number),
                place,
                (raw, kind, removed),
                (moment, self.step),
                root.exposed,
            ));
        }
    }

    // Pages.

    pub(crate) fn page_taken(&mut self, page: u64) -> Outcome {
        self.trace(Event::TableTaken { pa: page });
        if let Some(Page { standing, .. }) = self.tables.of(page) {
            let what = format!("{page:#x} is taken for a table, and is one: {standing:x?}");
            return Err(Broken::new(Rule::TableFreedTooEarly, what).at(0, &[page]));
        }
        self.check_frame_free(page, PAGE)?;
        self.settle(page);
        self.tables.take(page, self.step);
        Ok(())
    }

    pub(crate) fn page_freed(&mut self, page: u64) -> Outcome {
        self.trace(Event::TableFreed { pa: page });
        if let Some(Page { standing: Standing::Linked(place), .. }) = self.tables.of(page) {
            let what = format!("the table at {page:#x} is freed, and still in the tree");
            return Err(Broken::new(Rule::TableFreedTooEarly, what).at(place.ipa, &[]));
        }
        let reaches = |stale: &&Stale| stale.kind == Kind::Table && stale.raw & ADDRESS == page;
        if let Some(stale) = self.stale.iter().find(reaches) {
            let what = format!("the table at {page:#x} is freed while there may be a {}", stale.held());
            return Err(Broken::new(Rule::TableFreedTooEarly, what).at(stale.ipa, &[stale.entry]));
        }
        self.tables.free(page);
        self.settle(page);
        Ok(())
    }

    fn settle(&mut self, page: u64) {
        for index in 0..PAGE / 8 {
            if let Some(word) = self.arena.word(Pa::new(page + index * 8)) {
                self.cells.settle(word);
            }
        }
    }

    /// A frame is about to become something else: no entry may lead there any more.
    pub(crate) fn check_frame_free(&self, start: u64, size: u64) -> Outcome {
        let reaches = |stale: &&Stale| {
            let output = walk::stage2::output(stale.raw, stale.level, stale.ipa);
            stale.kind == Kind::Leaf && output < start + size && start < output + stale.size()
        };
        let Some(stale) = self.stale.iter().find(reaches) else { return Ok(()) };
        let what = format!("the frame at {start:#x} becomes something else while there may be a {}", stale.held());
        Err(Broken::new(Rule::FrameReusedTooEarly, what).at(stale.ipa, &[stale.entry]))
    }

    /// A flush that was to end `access` in `range`, also where that was changed before `since`, is complete.
    pub(crate) fn check_flushed(
        &self,
        cpu: usize,
        root: u64,
        range: &IpaRange,
        since: &Clock,
        access: Withdrawn,
    ) -> Outcome {
        let Some(root) = self.tables.find_root(root) else { return Ok(()) };
        let both = WRITE | DIRTY_BY_HARDWARE;
        let matters = |stale: &Stale| {
            let writes = stale.raw & WRITE != 0 || stale.raw & DIRTY_BY_HARDWARE != 0;
            let counts = match access {
                Withdrawn::Everything => true,
                Withdrawn::Writes => stale.kind == Kind::Leaf && !stale.removed && writes,
                Withdrawn::Records => stale.kind == Kind::Leaf && !stale.removed && stale.raw & both == both,
            };
            stale.root == root
                && since.knows(stale.changed)
                && stale.kind != Kind::Narrower
                && counts
                && stale.overlaps(range)
        };
        // Another CPU's flush is complete for this one when a barrier is known that came after it.
        let known = self.cells.known(cpu);
        let mut barriers = self.cpus.iter().flat_map(|cpu| &cpu.barriers).filter(|(moment, _)| known.knows(*moment));
        let last = barriers.next().map_or(0, |first| barriers.fold(first.1, |last, (_, step)| last.max(*step)));
        let unknown = |(stale, _, step): &&(Stale, Moment, u64)| matters(stale) && *step > last;
        if let Some((stale, ..)) = self.stale.gone().find(unknown) {
            let what = format!(
                "a flush of {range:?} ({access:?}) relies on another CPU's, and cannot know that it is complete"
            );
            return Err(Broken::new(Rule::StillCached, what).at(stale.ipa, &[stale.entry]));
        }
        let Some(stale) = self.stale.iter().find(|stale| matters(stale)) else { return Ok(()) };
        let what = format!("a flush of {:?} ({access:?}) is complete, and there may be a {}", range, stale.held());
        Err(Broken::new(Rule::StillCached, what).at(stale.ipa, &[stale.entry]))
    }

    /// What this CPU did about an address of a tree is done, down to the context synchronization.
    pub(crate) fn check_fresh(&self, cpu: usize, root: u64, ipa: Ipa) -> Outcome {
        let range = ipa..ipa + PAGE;
        let root = self.tables.find_root(root);
        let held = |stale: &&Stale| Some(stale.root) == root && stale.cpus() >> cpu & 1 == 1 && stale.overlaps(&range);
        let Some(stale) = self.stale.iter().find(held) else { return Ok(()) };
        let what = format!("this CPU was to forget it, and may use a {}", stale.held());
        Err(Broken::new(Rule::StillCached, what).at(stale.ipa, &[stale.entry]))
    }

    /// A root begins to be one, or is none any more.
    pub(crate) fn root(&mut self, start: u64, entries: Option<usize>, vttbr: u64, vtcr: u64) -> Outcome {
        let Some(entries) = entries else {
            self.trace(Event::RootFreed { pa: start });
            let loaded = |cpu: &Cpu| cpu.effective & ROOT == start;
            if let Some(cpu) = self.cpus.iter().position(loaded) {
                let what = format!("the root at {start:#x} is given away while VTTBR_EL2 of CPU {cpu} names it");
                return Err(Broken::new(Rule::TableFreedTooEarly, what));
            }
            self.abandon(start);
            self.tables.remove_root(start);
            return Ok(());
        };
        self.trace(Event::RootMade { pa: start, entries: entries as u32, vttbr, vtcr });
        let level = 2 - (vtcr >> 6 & 3) as u8;
        self.tables.add_root((start, entries, level), self.vmid(vttbr), self.step);
        Ok(())
    }

    /// What is still in a tree that is none any more may be cached, as what is taken out of one. No walk reads it again.
    fn abandon(&mut self, start: u64) {
        let Some(number) = self.tables.find_root(start) else { return };
        let root = *self.tables.root(number);
        for index in 0..root.entries as u64 {
            let (at, here) = (start + index * 8, index * walk::span(root.level));
            let raw = self.read(at);
            let (place, long_ago) = ((here, root.level, at), Moment::default());
            match Shape::of(raw, root.level) {
                Shape::Invalid => {}
                Shape::Table => self.unlink((raw & ADDRESS, root), place, raw, long_ago),
                Shape::Leaf => self.add_stale(&root, number, place, (raw, Kind::Leaf, true), long_ago),
            }
        }
    }

    // Locks.

    pub(crate) fn locked(&mut self, cpu: usize, page: u64) -> Outcome {
        self.trace(Event::LockTaken { pa: page });
        let level = |page: u64| match self.tables.of(page).map(|page| page.standing) {
            Some(Standing::Linked(place) | Standing::Unlinked(place, _) | Standing::Closed(place)) => Some(place.level),
            _ => None,
        };
        if let (Some(new), Some(&above)) = (level(page), self.cpus[cpu].locks.last())
            && let Some(above) = level(above)
            && new <= above
        {
            let what = format!("a table of level {new} is locked by who has the lock of one of level {above}");
            return Err(Broken::new(Rule::LockOrder, what));
        }
        self.cpus[cpu].locks.push(page);
        Ok(())
    }

    pub(crate) fn unlocked(&mut self, cpu: usize, page: u64) -> Outcome {
        self.trace(Event::LockReleased { pa: page });
        match self.cpus[cpu].locks.iter().rposition(|held| *held == page) {
            Some(at) => {
                self.cpus[cpu].locks.remove(at);
                Ok(())
            }
            None => {
                let what = format!("the lock of the table at {page:#x} is given back by who does not have it");
                Err(Broken::new(Rule::LockOrder, what))
            }
        }
    }

    // Instructions.

    pub(crate) fn vmid(&self, vttbr: u64) -> u16 {
        ((vttbr >> 48) & ((1 << self.features.vmid_bits) - 1)) as u16
    }

    pub(crate) fn tlbi(&mut self, cpu: usize, operation: Tlbi, operand: u64) -> Outcome {
        let word = trace::Tlbi::ALL[operation as usize];
        self.trace(Event::Tlbi { operation: word, operand, vttbr: self.cpus[cpu].vttbr });
        let reach = Reach::decode(operation, operand, &self.features)
            .map_err(|error| Broken::new(Rule::Operand, error.to_string()))?;
        for page in std::mem::take(&mut self.cpus[cpu].unlinked) {
            if let Some(Page { standing: Standing::Unlinked(place, _), .. }) = self.tables.of(page) {
                self.tables.set(page, Standing::Closed(place));
            }
        }
        self.cpus[cpu].invalidations += 1;
        let vmid = self.vmid(self.cpus[cpu].effective);
        let cpus = if reach.broadcast { self.all() } else { 1 << cpu };
        let cells = &self.cells;
        self.stale.issue(cpu, vmid, &reach, cpus, |moment, cpu| cells.is_published(moment, cpu));
        if reach.stage1_and_combined {
            self.cpus[cpu].stage1.push((vmid, reach.broadcast, reach.stage2.is_some()));
        }
        Ok(())
    }

    pub(crate) fn dsb(&mut self, cpu: usize, domain: Domain) {
        self.trace(Event::Dsb { domain: trace::Domain::ALL[domain as usize] });
        let everywhere = matches!(domain, Domain::Ish | Domain::IshSt);
        self.cells.publish(cpu, everywhere);
        if matches!(domain, Domain::IshSt | Domain::NshSt) {
            return;
        }
        let cpus = if everywhere { self.all() } else { 1 << cpu };
        let now = (self.cells.event(cpu), self.step);
        self.stale.complete(cpu, cpus, now);
        if self.cpus[cpu].barriers.len() == BARRIERS {
            self.cpus[cpu].barriers.pop_front();
        }
        self.cpus[cpu].barriers.push_back(now);
        self.complete_stage1(cpu, everywhere);
        if everywhere {
            for (start, size) in std::mem::take(&mut self.cpus[cpu].cleaned) {
                self.lines.clean(start, size);
            }
            for (range, complete) in std::mem::take(&mut self.cpus[cpu].code) {
                self.lines.invalidate_code(range, &complete);
            }
            self.cpus[cpu].complete = *self.cells.known(cpu);
        }
    }

    fn complete_stage1(&mut self, cpu: usize, everywhere: bool) {
        let issued = std::mem::take(&mut self.cpus[cpu].stage1);
        for (vmid, broadcast, both) in issued {
            if broadcast && !everywhere {
                self.cpus[cpu].stage1.push((vmid, broadcast, both));
                self.cpus[cpu].vcpus.remove(&vmid);
                continue;
            }
            let reached = self.cpus.iter_mut().enumerate().filter(|(number, _)| broadcast || *number == cpu);
            reached.for_each(|(_, cpu)| {
                cpu.vcpus.remove(&vmid);
            });
            if both && broadcast {
                self.forget_exposure(vmid);
            }
        }
    }

    /// Everything of a VMID is invalidated: only who has a tree loaded now, with something in it, may hold entries of it
    /// again.
    fn forget_exposure(&mut self, vmid: u16) {
        for number in 0..self.tables.roots().len() {
            let root = *self.tables.root(number);
            if root.vmid != vmid {
                continue;
            }
            let holds = |index: u64| Shape::of(self.read(root.pa + index * 8), root.level) != Shape::Invalid;
            let holds = root.alive && (0..root.entries as u64).any(holds);
            self.tables.roots_mut()[number].exposed = 0;
            if holds {
                self.expose(number);
            }
        }
    }

    /// Something is in a tree: whoever has it loaded may hold that.
    fn expose(&mut self, number: usize) {
        let pa = self.tables.root(number).pa;
        let loaded = self.cpus.iter().enumerate().filter(|(_, cpu)| cpu.effective & ROOT == pa);
        let loaded: CpuSet = loaded.map(|(cpu, _)| 1 << cpu).sum();
        self.tables.roots_mut()[number].exposed |= loaded;
    }

    /// A context synchronization: `ISB`, or entering a guest.
    pub(crate) fn synchronize(&mut self, cpu: usize) -> Outcome {
        self.stale.synchronize(cpu);
        let vttbr = self.cpus[cpu].vttbr;
        if vttbr == self.cpus[cpu].effective {
            return Ok(());
        }
        self.cpus[cpu].effective = vttbr;
        let (vmid, pa) = (self.vmid(vttbr), vttbr & ROOT);
        let Some(number) = self.tables.find_root(pa) else { return Ok(()) };
        let held = |at: usize| self.stale.iter().any(|stale| stale.root == at && stale.cpus() >> cpu & 1 == 1);
        let other = |(at, root): (usize, &Root)| {
            at != number && root.vmid == vmid && (root.exposed >> cpu & 1 == 1 || held(at))
        };
        if let Some(at) = self.tables.roots().iter().enumerate().position(other) {
            let before = self.tables.root(at).pa;
            let what = format!(
                "VMID {vmid} names the tree at {pa:#x} by now, and TLBs may hold entries of the one at {before:#x}"
            );
            return Err(Broken::new(Rule::VmidReused, what));
        }
        let root = &mut self.tables.roots_mut()[number];
        root.exposed |= 1 << cpu;
        root.was_loaded = true;
        Ok(())
    }

    /// Lines are cleaned and invalidated to the point of coherency.
    pub(crate) fn clean(&mut self, cpu: usize, start: u64, size: u64) -> Outcome {
        self.trace(Event::Dc { operation: trace::Dc::Civac, pa: start, size });
        self.cpus[cpu].cleaned.push((start, size));
        Ok(())
    }

    /// Whether a barrier on this CPU waits for others' accesses: those may have begun under what it invalidates.
    pub(crate) fn waits_for_accesses(&self, cpu: usize) -> bool {
        self.stale.is_pending(cpu) && self.cpus.iter().enumerate().any(|(other, state)| other != cpu && state.accesses)
    }

    /// `MSR VTTBR_EL2`.
    pub(crate) fn load_vttbr(&mut self, cpu: usize, vttbr: u64) {
        self.trace(Event::Vttbr { vttbr });
        self.cpus[cpu].vttbr = vttbr;
    }

    /// `ISB`.
    pub(crate) fn isb(&mut self, cpu: usize) -> Outcome {
        self.trace(Event::Isb);
        self.synchronize(cpu)
    }

    pub(crate) fn ic(&mut self, cpu: usize, operation: Ic, line: Option<(u64, u64)>) {
        let range = if operation == Ic::IallUis { None } else { line };
        let (pa, size) = range.unwrap_or_default();
        self.trace(Event::Ic { operation: trace::Ic::ALL[operation as usize], pa, size });
        let complete = self.cpus[cpu].complete;
        self.cpus[cpu].code.push((range, complete));
    }

    /// What memory holds.
    pub(crate) fn read(&self, pa: u64) -> u64 {
        self.arena.load(Pa::new(pa)).unwrap_or(0)
    }
}

/// What a flush is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdrawn {
    /// Any access.
    Everything,
    /// Writes, and hardware's granting them, to what is still mapped.
    Writes,
    /// Writes that hardware recorded and would not record again, to what is still mapped.
    Records,
}

/// What an entry is, found at a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Invalid,
    Table,
    Leaf,
}

impl Shape {
    pub(crate) fn of(raw: u64, level: u8) -> Self {
        match raw & 3 {
            0b11 if level < 3 => Self::Table,
            0b11 => Self::Leaf,
            0b01 if level == 1 || level == 2 => Self::Leaf,
            _ => Self::Invalid,
        }
    }
}

pub(crate) const ADDRESS: u64 = 0x0000_ffff_ffff_f000;
/// BADDR of `VTTBR_EL2`.
pub(crate) const ROOT: u64 = 0x0000_ffff_ffff_fffe;
const READ: u64 = 1 << 6;
pub(crate) const WRITE: u64 = 1 << 7;
/// MemAttr and SH.
const MEMORY: u64 = 0xf << 2 | 3 << 8;
pub(crate) const ACCESSED: u64 = 1 << 10;
pub(crate) const DIRTY_BY_HARDWARE: u64 = 1 << 51;
const EXECUTE_NEVER: u64 = 3 << 53;

/// Whether two valid entries map, or lead to, the same: a change that needs no break (Arm ARM D8.16.1).
fn is_same_mapping(old: u64, new: u64, level: u8) -> bool {
    Shape::of(old, level) == Shape::of(new, level) && (old ^ new) & (ADDRESS | MEMORY) == 0
}

/// Whether a leaf let a guest do, or hardware grant, what the new entry does not.
fn gave_more(old: u64, new: u64) -> bool {
    let lost = |bits: u64| old & bits & !new != 0;
    new & 1 == 0 || lost(READ) || lost(WRITE) || lost(DIRTY_BY_HARDWARE) || !executes_all(old, new)
}

/// Whether the new leaf gives what the old one did not.
fn gave_less(old: u64, new: u64) -> bool {
    new & !old & (READ | WRITE) != 0 || !executes_all(new, old)
}

/// Whether what `one` lets execute, `other` does.
fn executes_all(one: u64, other: u64) -> bool {
    let at = |raw: u64| match (raw & EXECUTE_NEVER) >> 53 {
        0b00 => 0b11,
        0b01 => 0b01,
        0b11 => 0b10,
        _ => 0b00,
    };
    at(one) & !at(other) == 0
}
