// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The effect of a write to an entry: the rules for the change, and the old entry, which TLBs may hold from now on.
//!
//! Invariant: a page's standing follows the entries above it. The write that makes an entry point to a page links the
//! page and all tables below it. The write that ends that unlinks them.

use std::panic::Location;

use twofold_stage2::{Ipa, Pa};

use super::breach::{Change, Rule};
use super::clock::Moment;
use super::model::{Broken, Cpu, Model, Outcome};
use super::shape::{ACCESSED, gave_less, gave_more, is_same_mapping};
use super::stale::{CpuSet, Kind, Stale};
use super::tables::{Page, Root, Standing, TablePosition};
use crate::walk::{CONTIGUOUS, Shape};

impl Model {
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
                let what = format!("{old:#x} -> {new:#x} is written in a table that was unlinked");
                Err(Broken::new(Rule::LateWrite, what).at(place.ipa_of(pa, self.format), &[pa]))
            }
            // A CPU with the lock of the unlinked table may finish its change before the flush. That flush covers the
            // change too.
            Standing::Unlinked(place, unlinked) => {
                self.stale.changed_too(pa, moment);
                self.written_in_tree(cpu, place, pa, (old, new), moment)?;
                if self.format.shape(new, place.level) == Shape::Leaf {
                    let (root, at) = (*self.tables.root(place.root), (place.ipa_of(pa, self.format), place.level, pa));
                    self.add_stale_below(&root, place.root, at, new, unlinked);
                }
                Ok(())
            }
            Standing::Linked(place) => self.written_in_tree(cpu, place, pa, (old, new), moment),
        }
    }

    fn written_in_tree(
        &mut self,
        cpu: usize,
        place: TablePosition,
        pa: u64,
        (old, new): (u64, u64),
        moment: Moment,
    ) -> Outcome {
        let (level, ipa) = (place.level, place.ipa_of(pa, self.format));
        let holder = self.tables.locked_by(pa & !(self.format.page() - 1));
        // Until a root is first loaded, only its maker can reach it, so no lock is needed.
        let is_new = place.level == self.tables.root(place.root).level && !self.tables.root(place.root).was_loaded;
        if !is_new && !self.cpus[cpu].locks.contains(&holder) {
            let what = format!("{old:#x} -> {new:#x}, without the lock of the table at {holder:#x}");
            return Err(Broken::new(Rule::NoLock, what).at(ipa, &[pa]));
        }
        let (was, is) = (self.format.shape(old, level), self.format.shape(new, level));
        if is != Shape::Invalid {
            self.expose(place.root);
        }
        self.note_group(cpu, place, pa, (old, new));
        let resized = self.is_resized(old, new, ipa, level);
        let regroups = self.regroups(old, new, level);
        let same = resized
            || (!regroups || self.bbm.allows_regrouping())
                && is_same_mapping(self.format, old & !self.flags(old, level), new & !self.flags(new, level), level);
        if was != Shape::Invalid && is != Shape::Invalid && !same {
            let what = format!("{old:#018x} becomes {new:#018x} in one step, a {was:?} of level {level} a {is:?}");
            return Err(Broken::new(Rule::LiveChange, what).at(ipa, &[pa]));
        }
        if was == Shape::Invalid && is != Shape::Invalid {
            self.check_make(place, pa, ipa, new)?;
        }
        let root = *self.tables.root(place.root);
        let format = self.format;
        let address = |raw: u64| format.address(raw, level);
        match was {
            Shape::Table if is != Shape::Table || address(old) != address(new) => {
                self.unlink((address(old), root), (ipa, level, pa), old, moment);
            }
            Shape::Leaf if resized || (regroups && same) => {
                self.add_stale_leaf(&root, place.root, (ipa, level, pa), (old, Kind::Leaf, false), moment);
            }
            Shape::Leaf if gave_more(old, new) => {
                self.add_stale_leaf(
                    &root,
                    place.root,
                    (ipa, level, pa),
                    (old, Kind::Leaf, is == Shape::Invalid),
                    moment,
                );
            }
            Shape::Leaf if is == Shape::Leaf && gave_less(old, new) => {
                self.add_stale_leaf(&root, place.root, (ipa, level, pa), (old, Kind::Narrower, false), moment);
            }
            _ => {}
        }
        match is {
            Shape::Table if was != Shape::Table => {
                self.link(address(new), TablePosition { root: place.root, ipa, level: level + 1 }, pa)
            }
            Shape::Leaf if was == Shape::Invalid => self.check_frame(pa, ipa, (level, new)),
            _ => Ok(()),
        }
    }

    /// Checks an entry that is made where there was none.
    fn check_make(&self, place: TablePosition, pa: u64, ipa: u64, new: u64) -> Outcome {
        let range = Ipa::new(ipa)..Ipa::new(ipa + self.format.span(place.level));
        let is_table = self.format.shape(new, place.level) == Shape::Table;
        let vmid = self.tables.root(place.root).vmid;
        for stale in self.stale.iter().filter(|stale| stale.vmid == vmid && stale.root == place.root) {
            // Break-before-make contains no context synchronization (Arm ARM DDI 0487K.a, D8.16.1).
            if !stale.overlaps(&range) || stale.kind == Kind::Narrower || stale.is_gone() {
                continue;
            }
            let conflicts = match stale.kind {
                // A walk may continue in the old table, below an entry that is now a leaf or another table.
                Kind::Table => {
                    stale.entry == pa
                        && if is_table {
                            self.format.address(stale.raw, stale.level) != self.format.address(new, place.level)
                        } else {
                            !self.bbm.allows(new)
                        }
                }
                // A new table is no TLB entry itself. Its entries are checked when they are made in it, or when it is
                // linked.
                Kind::Leaf if is_table => stale.entry == pa && !self.is_resized(stale.raw, new, ipa, place.level),
                Kind::Leaf => {
                    let at = ipa.max(stale.ipa);
                    let output = |raw: u64, level, start| self.format.output_from(raw, level, start, at);
                    let block = if stale.level < place.level { stale.raw } else { new };
                    stale.level != place.level && !self.bbm.allows(block)
                        || self.regroups(stale.raw, new, place.level) && !self.bbm.allows_regrouping()
                        || output(stale.raw, stale.level, stale.ipa) != output(new, place.level, ipa)
                        || (stale.raw ^ new) & self.format.memory() != 0
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

    /// Whether a block replaces, or is replaced by, a table that maps the same, where the CPUs allow that without a
    /// break.
    fn is_resized(&self, old: u64, new: u64, ipa: u64, level: u8) -> bool {
        let (block, table) = match (self.format.shape(old, level), self.format.shape(new, level)) {
            (Shape::Leaf, Shape::Table) => (old, new),
            (Shape::Table, Shape::Leaf) => (new, old),
            _ => return false,
        };
        self.bbm.allows(block)
            && self.maps_the_same(self.format.address(table, level), (ipa, level + 1), (block, level))
    }

    /// Whether everything that a table maps is mapped as by this block.
    fn maps_the_same(&self, table: u64, (ipa, level): (u64, u8), (block, above): (u64, u8)) -> bool {
        (0..self.format.entries()).all(|index| {
            let (raw, here) = (self.read(table + index * 8), ipa + index * self.format.span(level));
            match self.format.shape(raw, level) {
                Shape::Invalid => true,
                Shape::Table => self.maps_the_same(self.format.address(raw, level), (here, level + 1), (block, above)),
                Shape::Leaf => {
                    let output = |raw, level| self.format.output(raw, level, here);
                    output(raw, level) == output(block, above) && (raw ^ block) & self.format.memory() == 0
                }
            }
        })
    }

    /// The bits in a block's address field that are not part of the address, on CPUs with FEAT_BBM.
    fn flags(&self, raw: u64, level: u8) -> u64 {
        if level < 3 && self.format.shape(raw, level) == Shape::Leaf { self.bbm.flags() } else { 0 }
    }

    /// Links a table. All entries below it, down to the last table, have to be visible before the entry that links it.
    fn link(&mut self, page: u64, place: TablePosition, entry: u64) -> Outcome {
        let Some(Page { taken, standing: Standing::Loose }) = self.tables.of(page) else {
            let what = format!("{page:#x} is linked, and was not taken for a table");
            return Err(Broken::new(Rule::LateWrite, what).at(place.ipa, &[entry]));
        };
        let known =
            self.arena.word(Pa::new(entry)).map(|word| self.cells.last_publishes_to_walks(word)).unwrap_or_default();
        for index in 0..self.format.entries() {
            let at = page + index * 8;
            let Some(word) = self.arena.word(Pa::new(at)) else { continue };
            let filled =
                self.cells.last_stored(word).is_some_and(|(moment, step)| step >= taken && known.knows(moment));
            if !filled {
                let what = format!(
                    "the table at {page:#x} is linked, and a walk may still see what was in it before step {taken}, \
                     in entry {index}"
                );
                return Err(Broken::new(Rule::TableNotReady, what).at(place.ipa, &[entry, at]));
            }
        }
        self.tables.set(page, Standing::Linked(place));
        for index in 0..self.format.entries() {
            let at = page + index * 8;
            let raw = self.read(at);
            let here = place.ipa_of(at, self.format);
            match self.format.shape(raw, place.level) {
                Shape::Invalid => {}
                Shape::Table => {
                    self.link(
                        self.format.address(raw, place.level),
                        TablePosition { root: place.root, ipa: here, level: place.level + 1 },
                        at,
                    )?;
                }
                Shape::Leaf => {
                    if raw & CONTIGUOUS != 0 {
                        self.check_group(place, at)?;
                    }
                    self.check_make_leaf(place, at, here, raw)?;
                    self.check_frame(entry, here, (place.level, raw))?;
                }
            }
        }
        Ok(())
    }

    /// Checks a leaf in a table that is now linked.
    fn check_make_leaf(&self, place: TablePosition, pa: u64, ipa: u64, raw: u64) -> Outcome {
        if self.stale.is_empty() { Ok(()) } else { self.check_make(place, pa, ipa, raw) }
    }

    /// Checks that every write to the frame of a new leaf is visible before the entry at `pa`.
    fn check_frame(&self, pa: u64, ipa: u64, (level, new): (u8, u64)) -> Outcome {
        let known =
            self.arena.word(Pa::new(pa)).map(|word| self.cells.last_publishes_to_walks(word)).unwrap_or_default();
        let start = self.format.output(new, level, ipa);
        if self.lines.is_known(start, self.format.span(level), &known) {
            return Ok(());
        }
        let what = format!("the leaf {new:#018x} may be seen before the hypervisor's writes to its frame");
        Err(Broken::new(Rule::FrameNotReady, what).at(ipa, &[pa]))
    }

    /// Unlinks a table whose entry is broken. TLBs may hold that entry and everything reached through it.
    pub(super) fn unlink(
        &mut self,
        (page, root): (u64, Root),
        (ipa, level, pa): (u64, u8, u64),
        raw: u64,
        moment: Moment,
    ) {
        let Some(Page { standing: Standing::Linked(place), .. }) = self.tables.of(page) else { return };
        self.add_stale(&root, place.root, (ipa, level, pa), (raw, Kind::Table, true), moment);
        self.tables.set(page, Standing::Unlinked(place, moment));
        self.cpus[usize::from(moment.cpu)].unlinked.push(page);
        for index in 0..self.format.entries() {
            let at = page + index * 8;
            let raw = self.read(at);
            let here = place.ipa_of(at, self.format);
            match self.format.shape(raw, place.level) {
                Shape::Invalid => {}
                Shape::Table => {
                    self.unlink((self.format.address(raw, place.level), root), (here, place.level, at), raw, moment)
                }
                Shape::Leaf => {
                    self.add_stale_leaf(&root, place.root, (here, place.level, at), (raw, Kind::Leaf, true), moment);
                }
            }
        }
    }

    /// Adds a leaf that was made in an unlinked table.
    fn add_stale_below(&mut self, root: &Root, number: usize, place: (u64, u8, u64), raw: u64, moment: Moment) {
        let cpus = root.exposed & self.reaches(number, place.0);
        if raw & ACCESSED != 0 && cpus != 0 {
            let what = (raw, Kind::Leaf, true);
            let place = (place.0, (place.1, self.format.span(place.1)), place.2);
            self.stale.add_below(Stale::new((root.vmid, number), place, what, (moment, self.step), cpus));
        }
    }

    /// The CPUs that may still hold an entry of a table on the walk to `ipa`. No other CPU walks through an unlinked
    /// table.
    fn reaches(&self, root: usize, ipa: u64) -> CpuSet {
        let range = Ipa::new(ipa)..Ipa::new(ipa + 1);
        let leads = |stale: &&Stale| stale.root == root && stale.kind == Kind::Table && stale.overlaps(&range);
        self.stale.iter().filter(leads).fold(0, |cpus, stale| cpus | stale.in_tlbs())
    }

    pub(super) fn add_stale(
        &mut self,
        root: &Root,
        number: usize,
        place: (u64, u8, u64),
        (raw, kind, removed): (u64, Kind, bool),
        moment: Moment,
    ) {
        // No TLB holds a leaf without access flag (Arm ARM DDI 0487K.a, D8.5.1).
        if kind == Kind::Table || raw & ACCESSED != 0 {
            let stale = Stale::new(
                (root.vmid, number),
                (place.0, (place.1, self.format.span(place.1)), place.2),
                (raw, kind, removed),
                (moment, self.step),
                root.exposed,
            );
            self.add_stale_entry(root, stale);
        }
    }

    pub(super) fn add_stale_entry(&mut self, root: &Root, stale: Stale) {
        if root.shares_vmids {
            let away = |cpu: &(usize, &Cpu)| self.format.root(cpu.1.effective) != root.pa;
            let away = self.cpus.iter().enumerate().filter(away).fold(0, |set, (cpu, _)| set | 1 << cpu);
            self.stale.add_shared(stale, away);
        } else {
            self.stale.add(stale);
        }
    }

    /// A tree has an entry: the CPUs that have the tree loaded may hold it.
    pub(super) fn expose(&mut self, number: usize) {
        let pa = self.tables.root(number).pa;
        let loaded = self.cpus.iter().enumerate().filter(|(_, cpu)| self.format.root(cpu.effective) == pa);
        let loaded: CpuSet = loaded.map(|(cpu, _)| 1 << cpu).sum();
        self.tables.roots_mut()[number].exposed |= loaded;
    }
}
